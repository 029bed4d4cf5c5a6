"""Bands of a schedule, for people: which batch sizes share one K."""

from collections.abc import Sequence

from specschedule.core.schedule import Band, ScheduleError, effective


def bands(rows: Sequence[Sequence[int]], up_to: int) -> list[Band]:
    """Return the bands of a schedule as written, and as its tail goes on up to a batch size.

    Empty when the rows are no schedule.
    """
    plain = [list(row) for row in rows]
    try:
        limit = max(up_to, *(row[1] for row in plain))
        tokens = max(1, *(row[-1] for row in plain))
        return effective(plain, max_tokens=tokens, max_num_seqs=limit).bands()
    except (ScheduleError, IndexError, TypeError, ValueError):
        return []


def band_of(rows: Sequence[Sequence[int]], at: int, context: int | None) -> Band | None:
    """Return the band that a batch size (and mean context) falls into."""
    for band in bands(rows, at):
        if not band.first <= at <= band.last:
            continue
        if band.context is None or context is None or context >= band.context[0]:
            found = band
            if band.context is None or context is None or context <= band.context[1]:
                return found
    return None


def band_text(band: Band) -> str:
    """Write a band as ``3-16, K=1``."""
    span = str(band.first) if band.first == band.last else f"{band.first}-{band.last}"
    return f"{span}, K={band.tokens}"
