"""Neighbours of a schedule: a boundary moved to the next batch size, a row of a middle K between.

The rows of a schedule come from a model. Where the model cannot tell a neighbour from them and the
difference could matter, the windows that decide it are measured in the probe launch, and what is
still undecided is worth a test.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from specschedule.core.choice import BOUNDARY_PRICE, SMALL, Grid, tokens_at
from specschedule.core.cost import Setting
from specschedule.core.forecast import Forecast
from specschedule.core.schedule import Band

UNDECIDED_SD = 1.64
"""Standard deviations within which a neighbour cannot be told from the schedule."""
VARIANTS = 2
"""Neighbours that are looked into at most."""
FAR = 2
"""Row ends of its K that a middle row may reach beyond the boundary, at most."""


@dataclass(frozen=True)
class Neighbour:
    """Rows next to those of a schedule."""

    bands: list[Band]
    """The rows."""
    what: str
    """How they differ, for people."""
    gain: float
    """What they are predicted to gain, a logarithm of the objective."""
    sd: float
    """Its standard deviation."""
    decides: list[Setting]
    """Settings whose windows tell most: both Ks where the rows differ most of the time."""

    @property
    def most(self) -> float:
        """What they could gain."""
        return self.gain + UNDECIDED_SD * self.sd

    def undecided(self, least: float) -> bool:
        """Say whether they cannot be told from the schedule and could gain more than ``least``."""
        return abs(self.gain) < UNDECIDED_SD * self.sd and self.most > least


def undecided(
    best: Sequence[Band],
    where: Grid,
    forecast: Forecast,
    contexts: Mapping[int | None, NDArray[np.float64]],
) -> list[Neighbour]:
    """Return neighbours that the model cannot tell from the best rows, the largest stake first.

    Args:
        best: The best rows.
        where: Batch sizes, their weights, and where rows may end.
        forecast: What settings would deliver.
        contexts: Share of each context by batch size of the grid; of None when none are told apart.
    """
    found = []
    for bands, what in neighbours(best, where, forecast.tokens):
        neighbour = _compared(bands, what, best, where, forecast, contexts)
        if neighbour is not None and neighbour.undecided(BOUNDARY_PRICE * where.point):
            found.append(neighbour)
    return sorted(found, key=lambda each: -each.most)


def neighbours(
    best: Sequence[Band], where: Grid, tokens: Sequence[int]
) -> Iterator[tuple[list[Band], str]]:
    """Give the rows next to the best ones, and how they differ.

    Args:
        best: The best rows.
        where: Batch sizes, and where rows may end.
        tokens: Ks that may be chosen.
    """
    yield from _moved(best, where)
    yield from _between(best, where, tokens)


def _ends(where: Grid, tokens: int) -> list[int]:
    """Return where a row of one K may end; among few requests at every batch size."""
    return sorted(where.ends[tokens] | {b for b in where.batches if b <= SMALL})


def _moved(best: Sequence[Band], where: Grid) -> Iterator[tuple[list[Band], str]]:
    """Move each boundary to the row ends before and after it."""
    for at, (a, b) in enumerate(pairwise(best)):
        ends = _ends(where, a.tokens)
        before = [e for e in ends if a.first <= e < a.last][-1:]
        after = [e for e in ends if a.last < e < b.last][:1]
        for last in (*before, *after):
            bands = [a._replace(last=last), b._replace(first=last + 1)]
            yield [*best[:at], *bands, *best[at + 2 :]], f"K={a.tokens} up to {last}, not {a.last}"


def _between(
    best: Sequence[Band], where: Grid, tokens: Sequence[int]
) -> Iterator[tuple[list[Band], str]]:
    """Put a row of each K between two rows at their boundary, or in place of the first's end."""
    for at, (a, b) in enumerate(pairwise(best)):
        low, high = sorted((a.tokens, b.tokens))
        starts = [e for e in _ends(where, a.tokens) if a.first <= e < a.last][-1:]
        for k in (k for k in tokens if low < k < high):
            for start in (*starts, a.last):
                for last in [e for e in _ends(where, k) if start < e < b.last][:FAR]:
                    bands = [
                        a._replace(last=start),
                        Band(start + 1, last, k),
                        b._replace(first=last + 1),
                    ]
                    yield (
                        [*best[:at], *bands, *best[at + 2 :]],
                        f"K={k} at {start + 1} to {last}, between K={a.tokens} and K={b.tokens}",
                    )


def _compared(
    bands: list[Band],
    what: str,
    best: Sequence[Band],
    where: Grid,
    forecast: Forecast,
    contexts: Mapping[int | None, NDArray[np.float64]],
) -> Neighbour | None:
    """Return a neighbour with its gain over the best rows; None where no batch size differs."""
    places = [
        (at, batch, ours, theirs, weight)
        for at, (batch, weight) in enumerate(zip(where.batches, where.weights, strict=True))
        if (ours := tokens_at(bands, batch)) != (theirs := tokens_at(best, batch))
    ]
    if not places:
        return None
    signed = {
        Setting(batch, k, context): sign * weight * float(shares[at])
        for at, batch, ours, theirs, weight in places
        for context, shares in contexts.items()
        if shares[at]
        for k, sign in ((ours, 1.0), (theirs, -1.0))
    }
    mean, covariance = forecast.scores(list(signed))
    share = np.array(list(signed.values()))
    at, batch, ours, theirs, _ = max(places, key=lambda place: place[-1])
    context = max(contexts, key=lambda each: contexts[each][at])
    return Neighbour(
        bands,
        what,
        gain=float(share @ mean),
        sd=sqrt(max(0.0, float(share @ covariance @ share))),
        decides=[Setting(batch, k, context) for k in (ours, theirs)],
    )
