"""What a Prometheus histogram can say: bounds at its real bucket edges, and nothing between.

Marginal histograms know how many requests each limit let through, not which ones, so joint
goodput has bounds only.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

Buckets = Mapping[float, float]
"""Cumulative counts by upper edge; the last edge is infinity."""


class BetweenEdges(ValueError):
    """A limit lies between two bucket edges: only bounds can be given."""


class Bounds(NamedTuple):
    """A value that lies between two others, both included."""

    low: float
    high: float


class Edges(NamedTuple):
    """The bucket that holds a quantile."""

    above: float
    """Lower edge; 0 for the first bucket."""
    below: float
    """Upper edge; infinity for the last."""

    def __str__(self) -> str:
        if self.below == inf:
            return f"> {self.above:g} s"
        return f"< {self.below:g} s" if not self.above else f"{self.above:g}-{self.below:g} s"


def grown(before: Buckets, after: Buckets) -> dict[float, float]:
    """Return what a histogram counted between two scrapes.

    Raises:
        ValueError: A count shrank, or the edges are others: the server restarted.
    """
    if set(before) - set(after) or any(after[edge] < count for edge, count in before.items()):
        raise ValueError("its counts shrank between the two scrapes: the server restarted")
    return {edge: count - before.get(edge, 0.0) for edge, count in after.items()}


def attained(buckets: Buckets, limit: float, *, bounds_accepted: bool = False) -> Bounds:
    """Return the share of requests that met a limit.

    Args:
        buckets: A histogram.
        limit: In seconds, like the edges.
        bounds_accepted: Whether bounds will do where the limit is no bucket edge.

    Raises:
        BetweenEdges: The limit is no bucket edge and bounds are not accepted.
        ValueError: The histogram is empty.
    """
    edges, total = _checked(buckets)
    if limit in buckets:
        return Bounds(buckets[limit] / total, buckets[limit] / total)
    below = max((edge for edge in edges if edge < limit), default=None)
    above = min(edge for edge in edges if edge > limit)
    if not bounds_accepted:
        raise BetweenEdges(
            f"the limit {limit:g} s lies between the bucket edges "
            f"{0.0 if below is None else below:g} and {above:g}: choose one of them, or accept "
            "bounds"
        )
    return Bounds(0.0 if below is None else buckets[below] / total, buckets[above] / total)


def joint(shares: Sequence[Bounds]) -> Bounds:
    """Return bounds on the share that met every limit, from the share that met each.

    At worst the misses fall on different requests, at best on the same ones.
    """
    worst = 1.0 - sum(1.0 - share.low for share in shares)
    return Bounds(max(0.0, worst), min((share.high for share in shares), default=1.0))


def quantile(buckets: Buckets, share: float) -> Edges:
    """Return the bucket that holds a quantile; a number inside it would be invented.

    Raises:
        ValueError: The histogram is empty.
    """
    edges, total = _checked(buckets)
    for at, edge in enumerate(edges):
        if buckets[edge] >= share * total:
            return Edges(edges[at - 1] if at else 0.0, edge)
    raise ValueError("the histogram's counts do not rise to its total")


def _checked(buckets: Buckets) -> tuple[list[float], float]:
    edges = sorted(buckets)
    if not edges or edges[-1] != inf or buckets[inf] <= 0:
        raise ValueError("the histogram holds no requests")
    return edges, buckets[inf]
