"""Two servers of the real engine on one machine, asked in turn: what one takes more than the other.

Both are alive at once and only one is busy, in the order ABBA or BAAB, so that what drifts hits
both alike. A launch draws its memory layout and the like anew, so the unit is a launch of both:
the interval is of launches, and who boots first changes with each. The engine itself says how
long its steps took, by a histogram that knows nothing of ours.
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.paired import Interval, interval
from tests.instrumented import EVERY_K, Booted, prompt, serving

LAUNCHES = 4
BLOCKS = 24
"""ABBA, in each launch."""
IN_FLIGHT, TOKENS, PROMPT = 4, 90, 24
"""A window is so many requests at once, each with so many tokens: some 30 steps, a second. What a
shared machine gives to this one wanders within two (steps half a second apart correlate by 0.6, two
seconds apart by 0.2), so that short windows in turn differ least by it."""
PAUSE_SECONDS = 0.3
"""Before each window: the other server's threads stop spinning within it."""
LATENCY = "vllm:inter_token_latency_seconds"
"""The engine observes it once for each request in each step."""


@dataclass(frozen=True)
class Arm:
    """One of the two servers."""

    name: str
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[Sequence[int]] = tuple(map(tuple, EVERY_K))
    inside: bool = True


def short_steps(engine: Mapping[str, Any]) -> list[str]:
    """Return arguments that serve the drafter as the target, whose steps are the shortest.

    What is added between two steps weighs most there, and the engine's own work between two
    steps is the same as for any model.
    """
    return ["--model", str(engine["drafter"])]


def measure(
    arms: tuple[Arm, Arm], folder: Path, engine: Mapping[str, Any], only: int | None = None
) -> bool:
    """Measure the launches that are left, or one of them; say whether all are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, LAUNCHES + 1):
        done = folder / f"launch-{number}.json"
        if only in (None, number) and not done.exists():
            began = time.monotonic()
            order = arms if number % 2 else arms[::-1]
            windows = launch(order, folder / f"launch-{number}", engine)
            done.write_text(json.dumps(windows))
            sys.stderr.write(
                f"launch {number}: {len(windows)} windows, {time.monotonic() - began:.0f} s\n"
            )
    return all((folder / f"launch-{n}.json").exists() for n in range(1, LAUNCHES + 1))


def launch(order: tuple[Arm, Arm], folder: Path, engine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Boot both, the first one first; return the windows in order."""
    with ExitStack() as stack:
        servers = {
            arm.name: stack.enter_context(
                serving(
                    engine,
                    folder / arm.name,
                    arm.arguments,
                    arm.variables,
                    rows=arm.rows,
                    inside=arm.inside,
                )
            )
            for arm in order
        }
        first, second = (arm.name for arm in order)
        for name in servers:
            window(servers[name])
        blocks = [first, second, second, first], [second, first, first, second]
        return [
            {"arm": name, **window(servers[name])}
            for turn in range(BLOCKS)
            for name in blocks[turn % 2]
        ]


def window(server: Booted) -> dict[str, float]:
    """Return the mean time of a step over one window, in milliseconds, and what was drafted."""
    time.sleep(PAUSE_SECONDS)
    before = server.metrics()
    server.together([prompt(PROMPT, at) for at in range(IN_FLIGHT)], TOKENS)
    deadline = time.monotonic() + 10
    # The last steps are counted a moment after their tokens are sent.
    while True:
        after = server.metrics()
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        if grown["vllm:request_success_total"] == IN_FLIGHT:
            break
        assert time.monotonic() < deadline, "the engine counts no end of these requests"
        time.sleep(0.02)
    drafts = grown["vllm:spec_decode_num_drafts_total"]
    return {
        "stepMs": 1e3 * grown[f"{LATENCY}_sum"] / grown[f"{LATENCY}_count"],
        "steps": grown[f"{LATENCY}_count"] / IN_FLIGHT,
        "tokens": grown["vllm:spec_decode_num_draft_tokens_total"] / drafts if drafts else 0.0,
    }


@dataclass(frozen=True)
class Compared:
    """What the launches show.

    Attributes:
        more: Logarithm of the ratio of step times, one value per launch.
        step_ms: Mean step of the arm without, in milliseconds.
        spread: Median difference between two adjacent windows of one arm, as a share.
        lines: A table.
    """

    more: Interval
    step_ms: float
    spread: float
    lines: Sequence[str]


def compared(folder: Path, arm: str, reference: str) -> Compared:
    """Compare the two arms.

    Raises:
        ValueError: They did not draft alike, and so did not do the same work.
    """
    values, steps, apart = [], [], []
    lines = [
        f"| launch | first to boot | {arm}: step (ms) | {reference}: step (ms) | takes more | K |",
        "|---|---|---|---|---|---|",
    ]
    for number in range(1, LAUNCHES + 1):
        windows = json.loads((folder / f"launch-{number}.json").read_text())
        by_arm = {
            name: [each["stepMs"] for each in windows if each["arm"] == name]
            for name in (arm, reference)
        }
        drafted = {round(each["tokens"], 2) for each in windows}
        if len(drafted) != 1:
            raise ValueError(f"launch {number}: drafts differ between windows: {drafted}")
        means = {name: math.exp(fmean(map(math.log, ms))) for name, ms in by_arm.items()}
        values.append(math.log(means[arm] / means[reference]))
        steps.append(means[reference])
        apart += [
            abs(math.log(a["stepMs"] / b["stepMs"]))
            for a, b in zip(windows, islice(windows, 1, None), strict=False)
            if a["arm"] == b["arm"]
        ]
        lines.append(
            f"| {number} | {windows[0]['arm']} | {means[arm]:.3f} | {means[reference]:.3f} "
            f"| {100 * math.expm1(values[-1]):+.2f} % | {drafted.pop():g} |"
        )
    half = sorted(apart)[len(apart) // 2]
    return Compared(interval(values), fmean(steps), math.expm1(half), lines)


def kept(more: Interval, limit: float) -> str:
    """Say whether a cost stays within a limit: kept, missed, or not shown either way.

    Args:
        more: Logarithm of a ratio.
        limit: Largest share that it may take more.
    """
    if more.high <= math.log1p(limit):
        return "kept"
    return "MISSED" if more.low > math.log1p(limit) else "NOT SHOWN: the interval reaches past it"
