"""How fast single streams decode, apart by prompt category and by depth of context."""

from collections import defaultdict
from collections.abc import Iterable

from specschedule.core.compare import unfit
from specschedule.core.evidence import Cell
from specschedule.core.values import Value


class DecodeRate(Value):
    """Decode rate of an arm in windows of one kind."""

    at: int
    """Requests in flight."""
    category: str | None = None
    """Prompt category; absent in a depth sweep."""
    depth: int | None = None
    """Prompt tokens before the first token that counts, in a depth sweep."""
    tokens_per_second: float
    """Mean over windows of the median over requests, first to last token of one stream."""
    windows: int
    """Measured windows behind the mean."""


def decode_rates(cells: Iterable[Cell]) -> list[DecodeRate]:
    """Return the decode rates of an arm: by load point and category, then by depth.

    Args:
        cells: Windows of one arm; those that do not count are left out.
    """
    found: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for cell in cells:
        if cell.decode_rate is None or cell.void is not None or unfit(cell) is not None:
            continue
        if cell.profile.kind == "hold" and cell.category is not None:
            found[0, cell.profile.concurrency or 1, cell.category].append(cell.decode_rate)
        if cell.profile.kind == "depth":
            depth = cell.profile.context or 0
            found[depth, cell.profile.concurrency or 1, ""].append(cell.decode_rate)
    return [
        DecodeRate(
            at=at,
            category=category or None,
            depth=depth or None,
            tokens_per_second=round(sum(rates) / len(rates), 4),
            windows=len(rates),
        )
        for (depth, at, category), rates in sorted(found.items())
    ]
