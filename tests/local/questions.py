"""A question small enough to be asked of a simulated engine many times."""

import copy
import json
import sys
from typing import Any

from specschedule.core.spec import Spec

SPEC: dict[str, Any] = {
    "target": {"name": "chat"},
    "slo": {"ttft": "5s", "tpot": "1s"},
    "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
    "load": {
        "points": [4],
        "requests": 20,
        "promptTokens": 16,
        "outputTokens": 8,
        "maxSendLag": "1s",
    },
    "bar": {"improve": [{"metric": "goodput", "at": [4], "by": "20%"}]},
    "experiment": {"effort": "Quick", "seed": 7, "deadline": "1h"},
}
SPECULATIVE = {"method": "eagle3", "model": "demo/drafter", "num_speculative_tokens": 5}


def question(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SPEC), **changes}


def spec(**changes: Any) -> Spec:
    return Spec.model_validate(question(**changes))


def sim(*options: str, tokens: int = 5) -> list[str]:
    """The command that serves: a simulated engine with one fixed K."""
    words = [sys.executable, "-m", "specschedule.cli.main", "sim", "demo/model"]
    words += ["--boot", "100ms", *options]
    config = {**SPECULATIVE, "num_speculative_tokens": tokens}
    return [*words, "--speculative-config", json.dumps(config)]
