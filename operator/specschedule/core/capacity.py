"""Load points that a KV cache cannot hold: left out of the question, and named.

Beyond it requests wait or are preempted, so a window there measures the cache and not the
schedule. How large the smallest cache is, only launches tell (and how long requests are, where
their prompts are given): what the first ones measured there does not count either.
"""

from collections.abc import Iterable, Mapping, Sequence

from specschedule.core.compare import requirements
from specschedule.core.evidence import Launch, Profile
from specschedule.core.gate import Gate, fails, passes
from specschedule.core.spec import Spec

GATE = "kvCache"


def smallest(launches: Iterable[Launch]) -> int | None:
    """Return the size of the smallest KV cache of a run, in tokens; None while none is known."""
    counted = [each for each in launches if each.void is None and each.failed is None]
    sizes = [each.receipt.kv_cache_tokens for each in counted]
    return min((size for size in sizes if size is not None), default=None)


def beyond(spec: Spec, size: int | None, launches: Sequence[Launch] = ()) -> dict[int, int]:
    """Return the load points that a KV cache cannot hold, and the tokens of a request there.

    Streams begin together, so their requests are at their longest together, at first.

    Args:
        spec: The question.
        size: Tokens that the cache holds; None when unknown.
        launches: Launches that tell how long requests are.
    """
    found = {}
    for at in sorted(spec.load.points):
        tokens = _request_tokens(spec, launches, at)
        if size is not None and tokens is not None and at * tokens > size:
            found[at] = tokens
    return found


def _request_tokens(spec: Spec, launches: Sequence[Launch], at: int) -> int | None:
    """Return the tokens of a request at its end: as measured, else as synthetic ones will be."""
    told = [
        cell.request_tokens
        for each in launches
        for cell in each.cells
        if cell.profile.kind == "hold"
        and cell.profile.concurrency == at
        and cell.request_tokens is not None
    ]
    return max(told, default=spec.load.request_tokens)


def narrowed(spec: Spec, launches: Sequence[Launch]) -> tuple[Spec, list[Launch]]:
    """Return question and launches without the load points that do not fit.

    The question stays as it is where none would be left. Outputs that were compared at such a
    load go as well: requests were preempted there, and later rounds send other prompts.
    """
    out = beyond(spec, smallest(launches), launches).keys()
    if not out:
        return spec, list(launches)
    kept = [at for at in spec.load.points if at not in out]
    if kept:
        spec = spec.model_copy(update={"load": spec.load.model_copy(update={"points": kept})})
    return spec, [
        each.model_copy(
            update={
                "cells": [cell for cell in each.cells if out.isdisjoint(_in_flight(cell.profile))]
            }
        )
        for each in launches
    ]


def _in_flight(profile: Profile) -> set[int | None]:
    """Return the loads that a window holds."""
    return {profile.concurrency, profile.high, *(level for level, _ in profile.steps or ())}


def answer(spec: Spec, points: Mapping[int, int], size: int) -> Gate:
    """Answer for load points that do not fit: left out, unless the bar or the load stands on them.

    Args:
        spec: The question as it was asked.
        points: Load points that do not fit, and the tokens of a request there.
        size: Tokens that the smallest cache holds.
    """
    listed = ", ".join(f"{at} in flight of {tokens} tokens" for at, tokens in points.items())
    said = f"{listed} do not fit the smallest KV cache, {size} tokens"
    asked = {at for each in requirements(spec.bar) for at in each.at or []}
    needed = sorted(asked & points.keys())
    if needed:
        named = ", ".join(map(str, needed))
        return fails(GATE, "BeyondKvCache", f"{said}, and the bar names {named}")
    if points.keys() >= set(spec.load.points):
        return fails(GATE, "BeyondKvCache", f"{said}: no load point is left")
    return passes(GATE, f"{said}: left out", "PointsLeftOut")
