"""Bands of a schedule, for people: which batch sizes share one K."""

from collections.abc import Sequence

from specschedule.core.schedule import Band, ScheduleError, effective


def band_of(rows: Sequence[Sequence[int]], at: int, context: int | None) -> Band | None:
    """Return the band that a batch size (and mean context) falls into, as the schedule goes on.

    None when the rows are no schedule, or K depends on a context that is not given.
    """
    here = [band for band in _bands(rows, at) if band.first <= at <= band.last]
    if not here:
        return None
    if context is None:
        return here[0] if len({band.tokens for band in here}) == 1 else None
    below = [band for band in here if band.context is None or band.context[0] <= context]
    return below[-1] if below else here[0]


def unheld(rows: Sequence[Sequence[int]], points: Sequence[int]) -> list[str]:
    """Return the ranges of batch sizes in which no load point lies, written out with their K."""
    found: dict[tuple[int, int], list[Band]] = {}
    for band in _bands(rows, max(points)):
        if not any(band.first <= at <= band.last for at in points):
            found.setdefault((band.first, band.last), []).append(band)
    return [
        " or ".join([band_text(bands[0]), *(f"{band.tokens}" for band in bands[1:])])
        for bands in found.values()
    ]


def _bands(rows: Sequence[Sequence[int]], at: int) -> list[Band]:
    """Return the bands of a schedule that goes on to a batch size; none where it is no schedule."""
    plain = [list(row) for row in rows]
    try:
        limit = max(at, *(row[1] for row in plain))
        tokens = max(1, *(row[-1] for row in plain))
        return effective(plain, max_tokens=tokens, max_num_seqs=limit).bands()
    except (ScheduleError, IndexError, TypeError):
        return []


def band_text(band: Band) -> str:
    """Write a band as ``3-16, K=1``."""
    span = str(band.first) if band.first == band.last else f"{band.first}-{band.last}"
    return f"{span}, K={band.tokens}"
