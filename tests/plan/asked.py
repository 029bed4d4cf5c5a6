"""A question, its server, and launches that were measured."""

from collections.abc import Mapping
from typing import Any

from specschedule.core.arms import Arm, arms
from specschedule.core.evidence import Cell, Launch, Profile
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.core.workload import Trace

SPEC = {
    "target": {"kind": "Deployment", "name": "chat"},
    "slo": {"ttft": "500ms", "tpot": "40ms"},
    "candidates": [
        {"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]},
        {"name": "second", "schedule": [[1, 4, 5], [5, 16, 2]]},
    ],
    "load": {"points": [1, 8, 16], "outputTokens": 256},
    "bar": {
        "improve": [{"metric": "goodput", "at": [8], "by": "15%"}],
        "protect": [{"metric": "decodeRate", "at": [1], "category": "code", "within": "3%"}],
    },
    "experiment": {"effort": "Quick", "budget": {"gpuHours": 2}},
}


SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "num_speculative_tokens": 5},
)


def spec_of(**experiment: Any) -> Spec:
    return Spec.model_validate({**SPEC, "experiment": {**SPEC["experiment"], **experiment}})


def arm_of(spec: Spec, name: str) -> Arm:
    return next(arm for arm in arms(spec, SERVER) if arm.name == name)


def held(spec: Spec, per_second: Mapping[int, float], **more: Any) -> Launch:
    """The incumbent's first launch, which ends so many requests per second at each load point."""
    cells = [
        Cell(
            cell=f"r1-hold{at}-s0",
            arm="incumbent",
            launch=1,
            profile=Profile(kind="hold", concurrency=at),
            window_seconds=100.0,
            offered=round(100 * rate),
            completed=round(100 * rate),
            good=round(100 * rate),
        )
        for at, rate in per_second.items()
    ]
    return Launch(arm="incumbent", launch=1, round=1, cells=cells, **more)


TRACE = Trace(digest="sha256:0123456789ab", requests=90, seconds=60.0, longest=900)


CATEGORIES = ["code", "prose", "shell", "tool-json"]
