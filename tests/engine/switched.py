"""Drives vLLM's schedulers with the probe's on top, without a model: switches, and a misfit engine.

Run by vLLM's own Python: MODEL, DRAFTER and a port for each scheduler's page as arguments. Out: one
JSON object with what happened under each of the two.
"""

import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from scheduled import made
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from specschedule.core import inband
from specschedule.engine import settings
from specschedule.engine.probe import EitherProbeScheduler

SECRET = "only-this-launch"
MOST = 4
"""Draft tokens at most, as the rows of ``scheduled`` have it."""


def ask(scheduler: Any, name: str, k: int, tokens: int = 24) -> None:
    """Add a request that switches the table to a K."""
    extra = inband.arguments(SECRET, [[1, 16, k]], name)
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=extra)
    scheduler.add_request(Request(name, [5] * 20, sampling, None))


def step(scheduler: Any) -> tuple[Any, ModelRunnerOutput]:
    """Schedule a step, and answer it as a model that accepts nothing would."""
    before = {
        name: (each.num_computed_tokens, each.num_prompt_tokens)
        for name, each in scheduler.requests.items()
    }
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    done = {n: before[n][0] + output.num_scheduled_tokens[n] >= before[n][1] for n in names}
    sampled = [[9] if done[n] else [] for n in names]
    return output, ModelRunnerOutput(names, {n: at for at, n in enumerate(names)}, sampled)


def in_flight(scheduler: Any, ks: Sequence[int]) -> list[dict[str, Any]]:
    """Switch while two steps are in flight; a line for every step."""
    flying: deque[tuple[Any, ModelRunnerOutput]] = deque()
    lines: list[dict[str, Any]] = []
    left = list(ks)
    while scheduler.has_unfinished_requests() or flying or left:
        if left and len(lines) % 5 == 0:
            k = left.pop(0)
            ask(scheduler, f"k{k}", k)
        output, result = step(scheduler)
        if result.req_ids:
            flying.append((output, result))
            lines.append(
                {
                    "window": scheduler.facts()["window"],
                    "tokens": output.num_spec_tokens_to_schedule,
                    "drafts": {n: len(d) for n, d in output.scheduled_spec_decode_tokens.items()},
                }
            )
        if flying and (len(flying) == 2 or not result.req_ids):
            scheduler.update_from_output(*flying.popleft())
    return lines


def served(scheduler: Any, name: str, k: int, *, surplus: int = 0) -> list[int]:
    """Serve one request by an engine that drafts so many more than planned; K of each step."""
    ask(scheduler, name, k)
    planned = []
    while scheduler.has_unfinished_requests():
        output, result = step(scheduler)
        scheduler.update_from_output(output, result)
        planned.append(output.num_spec_tokens_to_schedule)
        drafts = [[9] * min(planned[-1] + surplus, MOST) for _ in result.req_ids]
        scheduler.update_draft_token_ids(DraftTokenIds(result.req_ids, drafts))
    return planned


def main() -> None:
    model, drafter, *ports = sys.argv[1:]
    os.environ[settings.SECRET] = SECRET
    os.environ[settings.SCHEDULER_PORT] = ports[0]
    asynchronous = made(EitherProbeScheduler, model, drafter)
    lines = in_flight(asynchronous, [2, 0, 4, 1])
    told: dict[str, Any] = {"asynchronous": type(asynchronous).__name__, "lines": lines}
    told["inFlight"] = asynchronous.facts()
    os.environ[settings.SCHEDULER_PORT] = ports[1]
    plain = made(EitherProbeScheduler, model, drafter, asynchronous=False)
    told["plain"] = type(plain).__name__
    told["well"] = served(plain, "well", 2)
    told["before"] = plain.facts()
    told["misfit"] = served(plain, "misfit", 1, surplus=2)
    told["after"] = plain.facts()
    told["refused"] = served(plain, "refused", 0)
    told["end"] = plain.facts()
    sys.stdout.write(json.dumps(told) + "\n")


main()
