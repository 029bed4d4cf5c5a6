"""The tax table: where the candidate's time goes, taken apart by band.

Time is told by tokens: good requests jump at a limit, and a window that stalls has none to compare.
"""

from collections.abc import Iterable, Sequence
from math import inf, log

from specschedule.core import eprocess
from specschedule.core.arms import PIECEWISE
from specschedule.core.bands import band_of
from specschedule.core.compare import (
    INCUMBENT,
    NONE,
    Evidence,
    Place,
    drafted_otherwise,
    measured,
    mixed,
    to_share,
)
from specschedule.core.evidence import Cell, Launch, Profile
from specschedule.core.schedule import Band
from specschedule.core.spec import Candidate, Metric
from specschedule.core.verdict import Tax

FEWEST_STABLE = 3
"""Stable steps of a K in a window that tell what one takes."""


def tax_table(evidence: Evidence, candidate: Candidate) -> list[Tax]:
    """Return the costs of a candidate by band, as far as its controls were launched.

    Windows of the candidate that mix several K say nothing about a band and are left out; so are
    those of any arm that drafted another K than planned.
    """
    arm, rate = f"candidate-{candidate.name}", _rate(evidence)
    found: list[Tax] = []
    for at in sorted(set(evidence.spec.load.points)):
        for place in evidence.split(Place(rate, at)):
            band = band_of(candidate.schedule, at, place.context)
            if band is not None:
                found.extend(_stable(evidence, arm, band, place))
    found.extend(_crossings(evidence, arm, candidate.schedule, rate))
    found.extend(_changes(evidence, arm, candidate.schedule))
    found.extend(_bursts(evidence, arm, candidate.schedule, rate))
    return found


def _rate(evidence: Evidence) -> Metric:
    """Return tokens per second; what whole arms are compared by where not all tokens are known."""
    cells = (cell for launch in evidence.counted for cell in launch.cells if cell.timed)
    known = all(cell.output_tokens is not None for cell in cells)
    return Metric.THROUGHPUT if known else evidence.rate


def _stable(evidence: Evidence, arm: str, band: Band, place: Place) -> Iterable[Tax]:
    tokens = band.tokens
    none = evidence.fixed_arm(0) or NONE
    comparisons = [("fromNone", arm, none, "the candidate against no speculation")]
    if tokens:
        static = evidence.fixed_arm(tokens) or f"static-{tokens}"
        constant, piecewise = f"constant-{tokens}", f"{PIECEWISE}{tokens}"
        text = f"K={tokens} on the dynamic code path against the static one"
        comparisons.append(("dynamicPath", constant, static, text))
        text = f"K={tokens} without a schedule, piecewise graphs against the server's own"
        comparisons.append(("graphMode", piecewise, static, text))
        text = f"K={tokens} on the dynamic code path against the static one with the same graphs"
        comparisons.append(("pathAlone", constant, piecewise, text))
    else:
        text = "drafter pass and scheduling at K=0 against no speculation"
        comparisons.append(("zeroTokens", "zero", none, text))
        comparisons.append(("freeZero", none, arm, "what a free K=0 would return"))
    for what, ours, theirs, text in comparisons:
        # Against a standstill no share can be told.
        differences = [d for d in _differences(evidence, place, ours, theirs) if d != inf]
        if differences:
            yield _tax(evidence, arm, band, place, what, differences, text)


def _tax(
    evidence: Evidence,
    arm: str,
    band: Band,
    place: Place,
    what: str,
    differences: Sequence[float],
    text: str,
    *,
    of: str | None = None,
) -> Tax:
    """Return a row.

    Args:
        evidence: Of the run.
        arm: The candidate's.
        band: The band.
        place: Where it was compared; its metric's scale is that of the differences.
        what: Kind of row.
        differences: One for each comparison, on the additive scale.
        text: What was compared with what.
        of: What the differences are of, where that is no metric of the bar but a rate.
    """
    bounds = eprocess.interval(differences, seed=evidence.spec.experiment.seed)
    low, high = (to_share(place.metric, b) for b in bounds) if bounds else (None, None)
    change = to_share(place.metric, sum(differences) / len(differences))
    within = ", no interval"
    if low is not None and high is not None:
        within = f", {low:+.1%} to {high:+.1%}"
    stalls = differences.count(-inf)
    if stalls:
        change = sum(to_share(place.metric, d) for d in differences) / len(differences)
        within = f", {stalls} of them at a standstill"
    span = f"{band.first}-{band.last}" + (
        f", context {place.context}" if place.context is not None else ""
    )
    return Tax(
        candidate=arm.removeprefix("candidate-"),
        band=span,
        tokens=band.tokens,
        at=place.at,
        what=what,
        metric=place.metric if of is None else None,
        change=change,
        low=low,
        high=high,
        count=len(differences),
        message=f"band {span} (K={band.tokens}), {of or place.metric.value} at {place.at}: {text}: "
        f"{change:+.1%} (n = {len(differences)}{within})",
    )


def _differences(evidence: Evidence, place: Place, arm: str, reference: str) -> list[float]:
    def one_k(launch: Launch) -> bool:
        no_evidence = mixed if launch.arm.startswith("candidate-") else drafted_otherwise
        finds = launch.finds_drafts
        return not any(no_evidence(cell, finds=finds) for cell in evidence.at(launch, place))

    def compare(a: Launch, b: Launch) -> float | None:
        return evidence.difference(place, a, b) if one_k(a) and one_k(b) else None

    return evidence.apart(arm, reference, compare)


def _crossings(
    evidence: Evidence, arm: str, rows: Sequence[Sequence[int]], rate: Metric
) -> list[Tax]:
    """Return what crossing a boundary costs, the first pass apart from later ones.

    Each window across a boundary is compared with the mean of the same launch's windows on both
    sides. It spends equal times there but for streams that end their request after the way down, so
    where the upper side is faster a cost is understated. A pass that is called the first, and
    before which the launch was above the boundary, is neither.
    """
    found: dict[tuple[int, str], list[float]] = {}
    for launch in evidence.of(arm):
        reached = 0.0
        for cell in launch.cells:
            before, reached = reached, max(reached, _most_in_flight(cell.profile))
            boundary = cell.profile.boundary
            if cell.profile.kind != "crossing" or cell.void is not None or boundary is None:
                continue
            what = "firstPass" if cell.profile.pass_ == 1 else "crossing"
            if what == "firstPass" and (cell.visit > 1 or before > boundary):
                continue
            value = _against_both_sides(evidence, launch, cell, rate)
            if value is not None:
                found.setdefault((boundary, what), []).append(value)
    taxes = []
    for (boundary, what), differences in sorted(found.items()):
        band = band_of(rows, boundary, None)
        if band is not None:
            text = f"{'first pass' if what == 'firstPass' else 'passes'} across its upper boundary"
            taxes.append(_tax(evidence, arm, band, Place(rate, boundary), what, differences, text))
    return taxes


def _changes(evidence: Evidence, arm: str, rows: Sequence[Sequence[int]]) -> list[Tax]:
    """Return how much slower engine steps are at a change of K, where the engine tells.

    Each window across a boundary is one comparison: its steps at changes of K against as many
    stable steps of the same K, none of which computed a prompt.
    """
    found: dict[int, list[float]] = {}
    for launch in evidence.of(arm):
        for cell in launch.cells:
            boundary = cell.profile.boundary
            if cell.profile.kind != "crossing" or cell.void is not None or boundary is None:
                continue
            if (value := _against_stable(cell)) is not None:
                found.setdefault(boundary, []).append(value)
    text = "steps at a change of K against stable steps of the same K"
    return [
        _tax(
            evidence,
            arm,
            band,
            Place(Metric.THROUGHPUT, boundary),
            "crossingSteps",
            differences,
            text,
            of="engine steps per second",
        )
        for boundary, differences in sorted(found.items())
        if (band := band_of(rows, boundary, None)) is not None
    ]


def _bursts(
    evidence: Evidence, arm: str, rows: Sequence[Sequence[int]], rate: Metric
) -> Iterable[Tax]:
    """Yield what the candidate gains or loses in bursts, the first pass left out."""

    def swings(launch: Launch) -> dict[tuple[int, int], float]:
        return {
            (cell.profile.floor, cell.profile.peak): value
            for cell in evidence.cells(launch, "burst")
            if cell.profile.floor is not None and cell.profile.peak is not None
            if cell.profile.pass_ != 1 and (value := measured(cell, rate)) is not None
        }

    for between in sorted({each for launch in evidence.of(arm) for each in swings(launch)}):

        def compare(a: Launch, b: Launch, between: tuple[int, int] = between) -> float | None:
            ours, theirs = swings(a).get(between), swings(b).get(between)
            if ours is None or not theirs:
                return None
            return log(ours / theirs) if ours else -inf

        floor, peak = between
        differences, band = evidence.apart(arm, INCUMBENT, compare), band_of(rows, peak, None)
        if differences and band is not None:
            text = f"bursts from {floor} in flight to {peak} and back, against the incumbent"
            yield _tax(evidence, arm, band, Place(rate, peak), "burst", differences, text)


def _against_stable(cell: Cell) -> float | None:
    """Return the log of stable time over time at changes; None unless both are told of some K."""
    both = [
        (each.change.count, each.change.mean_ms, each.stable.mean_ms)
        for each in cell.steps or []
        if each.change is not None
        and each.stable is not None
        and each.stable.count >= FEWEST_STABLE
    ]
    changing = sum(count * mean for count, mean, _ in both)
    stable = sum(count * mean for count, _, mean in both)
    return log(stable / changing) if changing > 0 and stable > 0 else None


def _most_in_flight(profile: Profile) -> float:
    """Return how many requests a window may have had in flight; an open loop may have had any."""
    levels = [profile.concurrency, profile.high, profile.peak]
    levels += [level for level, _ in profile.steps or []]
    return max((level for level in levels if level is not None), default=inf)


def _against_both_sides(
    evidence: Evidence, launch: Launch, cell: Cell, rate: Metric
) -> float | None:
    low, high = cell.profile.low, cell.profile.high
    value = measured(cell, rate)
    if low is None or high is None or value is None:
        return None
    sides = [evidence.parts(launch, Place(rate, at)) for at in (low, high)]
    if not all(sides):
        return None
    means = [sum(parts.values()) / len(parts) for parts in sides]
    stable = sum(means) / 2
    if stable <= 0:
        return None
    return log(value / stable) if value > 0 else -inf
