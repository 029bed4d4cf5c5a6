"""Load points that a KV cache cannot hold: left out of the question, and named.

Beyond it requests wait or are preempted, so a window there measures the cache and not the
schedule. How large the smallest cache is, only launches tell (and how long requests are, where
their prompts are given): what the first ones measured there does not count either.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from specschedule.core.compare import requirements
from specschedule.core.evidence import Cell, Launch
from specschedule.core.gate import Gate, fails, passes
from specschedule.core.spec import Spec

GATE = "kvCache"

L = TypeVar("L", bound=Launch)


def smallest(launches: Iterable[Launch]) -> int | None:
    """Return the size of the smallest KV cache of a run, in tokens; None while none is known."""
    counted = [each for each in launches if each.void is None and each.failed is None]
    sizes = [each.receipt.kv_cache_tokens for each in counted]
    return min((size for size in sizes if size is not None), default=None)


def beyond(spec: Spec, launches: Sequence[Launch]) -> dict[int, int]:
    """Return the load points that the smallest KV cache cannot hold, and tokens per request.

    Streams begin together, so their requests are at their longest together, at first.
    """
    size = smallest(launches)
    if size is None:
        return {}
    found = {}
    for at in sorted(spec.load.points):
        tokens = _request_tokens(spec, launches, at)
        if tokens is not None and at * tokens > size:
            found[at] = tokens
    return found


def _request_tokens(spec: Spec, launches: Sequence[Launch], at: int) -> int | None:
    """Return the tokens of a request at its end: as measured, else as synthetic ones will be."""
    told = [
        cell.request_tokens
        for each in launches
        for cell in each.cells
        if cell.profile.concurrency == at and cell.request_tokens is not None
    ]
    if told:
        return max(told)
    return spec.load.request_tokens


def fitting(spec: Spec, points: Iterable[int]) -> Spec:
    """Return the question without some load points; as it is when none would be left."""
    out = set(points)
    kept = [at for at in spec.load.points if at not in out]
    if not out or not kept:
        return spec
    return spec.model_copy(update={"load": spec.load.model_copy(update={"points": kept})})


def without(launches: Sequence[L], points: Iterable[int]) -> list[L]:
    """Return launches without their windows at some load points."""
    out = set(points)
    if not out:
        return list(launches)
    return [
        each.model_copy(update={"cells": [c for c in each.cells if not _touches(c, out)]})
        for each in launches
    ]


def _touches(cell: Cell, points: set[int]) -> bool:
    return cell.timed and not points.isdisjoint({cell.profile.concurrency, cell.profile.high})


def answer(spec: Spec, points: Sequence[int], said: str) -> Gate:
    """Answer for load points that do not fit: left out, unless the bar or the load stands on them.

    Args:
        spec: The question as it was asked.
        points: Load points that do not fit.
        said: The same for people, with the cache's size.
    """
    asked = {at for each in requirements(spec.bar) for at in each.at or []}
    needed = sorted(asked.intersection(points))
    if needed:
        return fails(GATE, "BeyondKvCache", f"{said}, and the bar names {_listed(needed)}")
    if set(spec.load.points) <= set(points):
        return fails(GATE, "BeyondKvCache", f"{said}: no load point is left")
    return passes(GATE, f"{said}: left out", "PointsLeftOut")


def _listed(points: Sequence[int]) -> str:
    return ", ".join(map(str, points))
