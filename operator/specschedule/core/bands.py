"""Bands of a schedule, for people: which batch sizes share one K."""

from collections.abc import Sequence

from specschedule.core.schedule import Band, ScheduleError, effective


def band_of(rows: Sequence[Sequence[int]], at: int, context: int | None) -> Band | None:
    """Return the band that a batch size (and mean context) falls into, as the schedule goes on.

    None when the rows are no schedule, or K depends on a context that is not given.
    """
    plain = [list(row) for row in rows]
    try:
        limit = max(at, *(row[1] for row in plain))
        tokens = max(1, *(row[-1] for row in plain))
        table = effective(plain, max_tokens=tokens, max_num_seqs=limit)
    except (ScheduleError, IndexError, TypeError):
        return None
    here = [band for band in table.bands() if band.first <= at <= band.last]
    if context is None:
        return here[0] if len({band.tokens for band in here}) == 1 else None
    below = [band for band in here if band.context is None or band.context[0] <= context]
    return below[-1] if below else here[0]


def band_text(band: Band) -> str:
    """Write a band as ``3-16, K=1``."""
    span = str(band.first) if band.first == band.last else f"{band.first}-{band.last}"
    return f"{span}, K={band.tokens}"
