"""The tax table: where the candidate's time goes, taken apart by band."""

from collections.abc import Sequence
from math import isfinite

from specschedule.core import eprocess
from specschedule.core.bands import band_of
from specschedule.core.compare import NONE, Evidence, Place, to_share
from specschedule.core.noise import Noise
from specschedule.core.values import Value


class Tax(Value):
    """One cost of one band."""

    candidate: str
    """Candidate's arm."""
    band: str
    """Batch sizes, as 3-16."""
    tokens: int
    """K of the band."""
    at: int
    """Load point that was compared."""
    what: str
    """fromNone: candidate against none; dynamicPath: static against constant; zeroTokens: zero
    against none; crossing and firstPass: the crossing window against the mean of both sides."""
    change: float
    """Change; negative is a cost."""
    low: float | None = None
    """Lower end of the 95 % interval; absent below two pairs."""
    high: float | None = None
    """Upper end."""
    count: int
    """Pairs behind it."""
    message: str
    """The same for people."""


def tax_table(evidence: Evidence, noise: Noise, arm: str) -> list[Tax]:
    """Return the costs of an arm by band, as far as its controls were launched."""
    name = arm.removeprefix("candidate-")
    rows = next((c.schedule for c in evidence.spec.candidates if c.name == name), None)
    if rows is None:
        return []
    return [
        row for at in sorted(set(evidence.spec.load.points)) for row in _at(evidence, arm, rows, at)
    ]


def _at(evidence: Evidence, arm: str, rows: Sequence[Sequence[int]], at: int) -> list[Tax]:
    band = band_of(rows, at, None)
    if band is None:
        return []
    span = f"{band.first}-{band.last}"
    found = []
    for what, ours, theirs, text in (
        ("fromNone", arm, NONE, "the candidate against no speculation"),
        (
            "dynamicPath",
            f"constant-{band.tokens}",
            f"static-{band.tokens}",
            "the same K on the dynamic code path against the static one",
        ),
        ("zeroTokens", "zero", NONE, "drafter pass and scheduling at K=0 against no speculation"),
    ):
        differences = _differences(evidence, Place(evidence.rate, at), ours, theirs)
        if not differences or not all(isfinite(d) for d in differences):
            continue
        mean = sum(differences) / len(differences)
        bounds = eprocess.interval(differences, seed=evidence.spec.experiment.seed)
        change = to_share(evidence.rate, mean)
        found.append(
            Tax(
                candidate=arm,
                band=span,
                tokens=band.tokens,
                at=at,
                what=what,
                change=change,
                low=to_share(evidence.rate, bounds[0]) if bounds else None,
                high=to_share(evidence.rate, bounds[1]) if bounds else None,
                count=len(differences),
                message=f"band {span} (K={band.tokens}) at {at}: {text}: {change:+.1%} "
                f"(n = {len(differences)})",
            )
        )
    return found


def _differences(evidence: Evidence, place: Place, arm: str, reference: str) -> list[float]:
    pairs = [(p.arm, p.reference) for p in evidence.pairs(arm, reference)]
    known = [d for a, b in pairs if (d := evidence.difference(place, a, b)) is not None]
    if len(known) >= 2:
        return known
    every = [
        value
        for ours in evidence.of(arm)
        for theirs in evidence.of(reference)
        if (value := evidence.difference(place, ours, theirs)) is not None
    ]
    return [sum(every) / len(every)] if every else []
