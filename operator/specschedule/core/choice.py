"""From scores by batch size and K to the rows of a schedule.

K is the smallest of those that cannot be told from the best; rows are merged by dynamic
programming over the batch sizes, with a price per boundary, so that a boundary exists only where
it buys something. Because the smaller K wins wherever two are alike, a boundary lies where the
larger one has become better by the zone of indifference, never on the crossover that noise moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, log2

import numpy as np
from numpy.typing import NDArray

from specschedule.core.cost import Graphs
from specschedule.core.schedule import Band

Floats = NDArray[np.float64]

BOUNDARY_PRICE = 0.01
"""What a boundary must buy: a share of the objective at one load point."""
FEW_TIERS_PRICE = 0.06
"""The same where few tiers are wanted."""
PREFERENCE = 5e-4
"""What a step towards the preferred K buys among those that cannot be told from the best."""
AROUND = 0.25
"""Octaves by which the batch size wanders around a load point (standard deviation), half of the
time."""
SMALL = 8
"""Batch sizes up to here are looked at one by one: one request more is a large share of them."""
BACKGROUND = 0.05
"""Share of the weight that all batch sizes get, evenly by octave."""


@dataclass(frozen=True)
class Grid:
    """Batch sizes at which Ks are compared; each stands for those after the one before it."""

    batches: tuple[int, ...]
    weights: Floats
    """Share of the time spent there; adds up to 1."""
    point: float
    """Mean weight of a load point."""
    ends: Mapping[int, frozenset[int]]
    """By K: batch sizes at which its row may end."""


def grid(
    time_at: Mapping[int, float], *, tokens: Sequence[int], max_num_seqs: int, graphs: Graphs
) -> Grid:
    """Return the batch sizes that a choice of rows looks at.

    Args:
        time_at: Share of the time that the server spends at a batch size.
        tokens: Ks that may be chosen.
        max_num_seqs: Largest batch size of the server.
        graphs: Captured graph sizes; rows end on them.
    """
    top = min(max(time_at), max_num_seqs)
    free = frozenset({*range(1, min(16, top) + 1), *range(16, top + 1, 8)})
    ends = {k: frozenset(graphs.last_batches(k, top)) if graphs.sizes else free for k in tokens}
    small = range(1, min(SMALL, top) + 1)
    told = (b for b in time_at if b <= top)
    batches = sorted({top, *small, *told, *(b for e in ends.values() for b in e)})
    firsts = [1, *(b + 1 for b in batches[:-1])]
    octaves = np.array([log2(b + 1) - log2(a) for a, b in zip(firsts, batches, strict=True)])
    weights = BACKGROUND * octaves / octaves.sum()
    places = np.log2(batches)
    for batch, share in time_at.items():
        near = np.exp(-0.5 * ((places - log2(min(batch, top))) / AROUND) ** 2) * octaves
        exact = (np.array(batches) == min(batch, top)).astype(float)
        spread = (exact + near / near.sum()) / 2
        weights = weights + (1 - BACKGROUND) * share / sum(time_at.values()) * spread
    return Grid(tuple(batches), weights / weights.sum(), 1 / len(time_at), ends)


def near_best(scores: Floats, zone: float) -> list[int]:
    """Return the columns within the zone of indifference of the best, rising.

    Args:
        scores: Logarithms, one per K.
        zone: Share below the best that counts as alike.
    """
    return [int(i) for i in np.flatnonzero(scores >= scores.max() + log(1 - zone))]


def rows(
    where: Grid,
    scores: Floats,
    tokens: Sequence[int],
    *,
    zone: float,
    price: float = BOUNDARY_PRICE,
    largest: bool = False,
) -> list[Band]:
    """Return the bands with the smallest loss and the fewest boundaries.

    Args:
        where: Batch sizes.
        scores: Logarithms of the objective: a row per batch size, a column per K.
        tokens: The Ks of the columns, rising.
        zone: Share below the best that counts as alike.
        price: What a boundary costs, as a share of the objective at one load point.
        largest: Prefer the largest K of those alike, not the smallest.
    """
    costs = np.array([_costs(row, tokens, zone, largest) for row in scores])
    costs, price = costs * where.weights[:, None], price * where.point
    count, width = costs.shape
    best = costs[0].copy()
    came = np.zeros((count, width), dtype=int)
    for at in range(1, count):
        before = where.batches[at - 1]
        leaving = [(best[k], k) for k in range(width) if before in where.ends[tokens[k]]]
        cheapest, source = min(leaving, default=(np.inf, 0))
        switch = cheapest + price < best
        came[at] = np.where(switch, source, np.arange(width))
        best = np.where(switch, cheapest + price, best) + costs[at]
    column = int(np.argmin(best))
    chosen = [column]
    for at in range(count - 1, 0, -1):
        column = int(came[at][column])
        chosen.append(column)
    return _bands(where.batches, [tokens[c] for c in reversed(chosen)])


def loss(where: Grid, scores: Floats, tokens: Sequence[int], bands: Sequence[Band]) -> float:
    """Return the share of the objective that bands lose against the best K everywhere."""
    return 1.0 - exp(
        -float(np.dot(where.weights, scores.max(axis=1) - gained(where, scores, tokens, bands)))
    )


def gained(where: Grid, scores: Floats, tokens: Sequence[int], bands: Sequence[Band]) -> Floats:
    """Return the score that bands have at each batch size of the grid."""
    column = {k: i for i, k in enumerate(tokens)}
    return np.array(
        [row[column[tokens_at(bands, b)]] for b, row in zip(where.batches, scores, strict=True)]
    )


def tokens_at(bands: Sequence[Band], batch: int) -> int:
    """Return K at a batch size; the last band goes on."""
    return next((b.tokens for b in bands if b.first <= batch <= b.last), bands[-1].tokens)


def _costs(scores: Floats, tokens: Sequence[int], zone: float, largest: bool) -> Floats:
    """Return what each K loses at a batch size: nothing within the zone but a preference."""
    alike = near_best(scores, zone)
    wanted = alike[-1] if largest else alike[0]
    lost = np.asarray(scores.max() - scores)
    lost[alike] = 0.0
    away = np.abs(np.arange(len(tokens)) - wanted)
    return lost + PREFERENCE * away


def _bands(batches: Sequence[int], tokens: Sequence[int]) -> list[Band]:
    out: list[Band] = []
    first = 1
    for batch, k in zip(batches, tokens, strict=True):
        if out and out[-1].tokens == k:
            out[-1] = out[-1]._replace(last=batch)
        else:
            out.append(Band(first, batch, k))
        first = batch + 1
    return out
