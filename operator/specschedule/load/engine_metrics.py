"""The engine's own counters over a window, from its Prometheus text.

Only the few series needed are read, by line, because a whole parse of vLLM's page would hold
up sending for tens of milliseconds. Series of several engines (data parallel ranks) are summed.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specschedule.core.evidence import Steps
from specschedule.load import step_counts
from specschedule.vllm_facts.metrics import (
    ACCEPTED_BY_POSITION,
    ACCEPTED_TOKENS,
    DRAFT_TOKENS,
    DRAFTS,
    ENDED,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    RECORDER_ON,
    RUNNING,
    STEP_DURATIONS,
    STEP_SECONDS,
    STEPS,
)

COUNTERS = (
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_BY_POSITION,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    ENDED,
)
_WANTED = {
    **{f"{name}_total": name for name in (*COUNTERS, STEPS, STEP_SECONDS)},
    **{name: name for name in (RUNNING, RECORDER_ON)},
    f"{STEP_DURATIONS}_bucket": STEP_DURATIONS,
}
"""Family by the name of its samples."""
_OURS = ("vllm:", "specschedule_engine_")
_ABORTED = 'finished_reason="abort"'

_POSITION = re.compile(r'[{,]position="(\d+)"')

Sample = dict[str, dict[str, float]]
"""Value by family and by the label text of the series."""


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """Counters over a window; None where the engine has no such series."""

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_by_position: list[int] | None = None
    """From the first draft position, summed over engines."""
    output_tokens: int | None = None
    preemptions: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    aborted: int | None = None
    steps: list[Steps] | None = None
    """By K, in a window as a whole."""
    fault: str | None = None
    """Why the counters cannot be trusted."""


def read(text: str) -> Sample:
    """Return the series wanted, as they are; NaN is as good as absent."""
    sample: Sample = {}
    for line in text.splitlines():
        if not line.startswith(_OURS):
            continue
        name = line[:end] if (end := line.find("{")) > 0 else line.split(" ", 1)[0]
        if name not in _WANTED:
            continue
        labels, _, value = line[len(name) :].rpartition(" ")
        number = float(value)
        if math.isfinite(number):
            sample.setdefault(_WANTED[name], {})[labels] = number
    return sample


def total(sample: Sample, name: str, label: str = "") -> float | None:
    """Return a family summed over its series that have a label; None when there are none."""
    found = [value for labels, value in sample.get(name, {}).items() if label in labels]
    return sum(found) if found else None


def running(sample: Sample) -> float | None:
    """Return the requests running; None when the engine does not say."""
    return total(sample, RUNNING)


def over(readings: Sequence[Sample]) -> EngineDelta:
    """Return what happened from the first reading to the last, at least two.

    Those between must rise too: of several processes that answer in turn, the first and the last
    reading alone may look like one.
    """
    delta = difference(readings[0], readings[-1])
    faults = (difference(before, after).fault for before, after in pairwise(readings))
    return replace(
        delta,
        steps=step_counts.over(readings),
        fault=delta.fault or next(filter(None, faults), None),
    )


def difference(before: Sample, after: Sample) -> EngineDelta:
    """Return what happened between two readings.

    A series that shrank or vanished means that the engine restarted or that several processes
    answer in turn: the counters of that window are worth nothing.
    """
    fault = None
    for name in COUNTERS:
        for labels, value in before.get(name, {}).items():
            later = after.get(name, {}).get(labels)
            if later is None or later < value:
                shown = "nothing" if later is None else f"{later:g}"
                fault = (
                    f"the engine's counter {name}{labels} went from {value:g} to {shown}: it "
                    "restarted, or several processes answer /metrics"
                )

    def delta(name: str, label: str = "") -> int | None:
        first, last = total(before, name, label), total(after, name, label)
        if last is None:
            return None
        return max(0, round(last - (first or 0.0)))

    return EngineDelta(
        drafts=delta(DRAFTS),
        draft_tokens=delta(DRAFT_TOKENS),
        accepted_tokens=delta(ACCEPTED_TOKENS),
        accepted_by_position=_by_position(before, after),
        output_tokens=delta(OUTPUT_TOKENS),
        preemptions=delta(PREEMPTIONS),
        prefix_queries=delta(PREFIX_QUERIES),
        prefix_hits=delta(PREFIX_HITS),
        aborted=delta(ENDED, _ABORTED),
        fault=fault,
    )


def _by_position(before: Sample, after: Sample) -> list[int] | None:
    """Return the tokens accepted at each draft position; None where a position is missing."""
    first = before.get(ACCEPTED_BY_POSITION, {})
    grown: dict[int, float] = {}
    for labels, value in after.get(ACCEPTED_BY_POSITION, {}).items():
        position = _POSITION.search(labels)
        if position is None:
            return None
        at = int(position[1])
        grown[at] = grown.get(at, 0.0) + max(0.0, value - first.get(labels, 0.0))
    if not grown or sorted(grown) != list(range(len(grown))):
        return None
    return [round(grown[at]) for at in range(len(grown))]
