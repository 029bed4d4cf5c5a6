"""What the recorder inside the engine counted of its steps in a window, by K."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from specschedule.core.evidence import Steps, StepTimes
from specschedule.core.histogram import grown, quantile
from specschedule.vllm_facts.metrics import RECORDER_ON, STEP_DURATIONS, STEP_SECONDS, STEPS

_LABEL = re.compile(r'(\w+)="([^"]*)"')

Sample = Mapping[str, Mapping[str, float]]
"""Value by family and by the label text of the series."""


class Kind(NamedTuple):
    """What a series counts."""

    tokens: int
    graph_mode: str
    """Empty where it was not told."""
    part: str


def over(readings: Sequence[Sample]) -> list[Steps] | None:
    """Return the steps from the first reading to the last, by rising K.

    None where the engine carries no recorder, or one that switched itself off meanwhile: what it
    counted until then is no account of the window.

    Args:
        readings: Of the engine's metrics, at least two.
    """
    if not all(map(_counting, readings)):
        return None
    if any(_shrank(before, after) for before, after in pairwise(readings)):
        return None
    first, last = readings[0], readings[-1]
    counts, seconds = (_by_kind(first, last, family) for family in (STEPS, STEP_SECONDS))
    return [
        _steps(
            {kind: count for kind, count in counts.items() if kind.tokens == tokens},
            seconds,
            _p99(first, last, tokens),
        )
        for tokens in sorted({kind.tokens for kind in counts})
    ]


def _counting(sample: Sample) -> bool:
    """Whether a recorder counts steps in every process that answers; before any there is none."""
    on = sample.get(RECORDER_ON, {})
    return bool(on) and min(on.values()) == 1.0 and STEPS in sample


def _shrank(before: Sample, after: Sample) -> bool:
    later = after[STEPS]
    return any(later.get(labels, -inf) < value for labels, value in before[STEPS].items())


def _by_kind(first: Sample, last: Sample, family: str) -> dict[Kind, float]:
    """Return what grew, summed over engines."""
    found: dict[Kind, float] = defaultdict(float)
    for text, labels, value in _series(last, family):
        kind = Kind(int(labels["tokens"]), labels.get("graph_mode", ""), labels["part"])
        found[kind] += value - first.get(family, {}).get(text, 0.0)
    return {kind: value for kind, value in found.items() if value > 0}


def _steps(counts: Mapping[Kind, float], seconds: Mapping[Kind, float], p99: float | None) -> Steps:
    """Put together what is known of the steps of one K."""

    def times(part: str | None) -> StepTimes | None:
        kinds = [kind for kind in counts if part in (None, kind.part)]
        count = round(sum(counts[kind] for kind in kinds))
        if not count:
            return None
        total = sum(seconds.get(kind, 0.0) for kind in kinds)
        return StepTimes(count=count, mean_ms=round(total / count * 1e3, 3))

    whole = times(None)
    assert whole is not None, "there is a K only where it was counted"
    modes: Counter[str] = Counter()
    for kind, count in counts.items():
        modes[kind.graph_mode] += round(count)
    return Steps(
        tokens=next(iter(counts)).tokens,
        count=whole.count,
        mean_ms=whole.mean_ms,
        p99_at_most_ms=p99,
        graph_modes=None if "" in modes else dict(sorted(modes.items())),
        stable=times("stable"),
        change=times("change"),
    )


def _p99(first: Sample, last: Sample, tokens: int) -> float | None:
    """Return the upper edge of the bucket that holds the 99th percentile, in milliseconds.

    None where it is the last, which has no edge, and where the histogram is not whole.
    """
    before, after = (_buckets(sample, tokens) for sample in (first, last))
    try:
        edge = quantile(grown(before, after), 0.99).below
    except ValueError:
        return None
    return None if edge == inf else round(edge * 1e3, 3)


def _buckets(sample: Sample, tokens: int) -> dict[float, float]:
    """Return cumulative counts by upper edge, summed over engines."""
    found: dict[float, float] = defaultdict(float)
    for _, labels, value in _series(sample, STEP_DURATIONS):
        if labels["tokens"] == str(tokens):
            found[float(labels["le"])] += value
    return found


def _series(sample: Sample, family: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for text, value in sample.get(family, {}).items():
        yield text, dict(_LABEL.findall(text)), value
