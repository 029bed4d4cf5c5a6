"""Coins and orders that look random and are decided by what they are for: hashes, not a state.

The same seed, run and purpose give the same coin wherever and however often it is tossed.
"""

from collections.abc import Iterable
from typing import TypeVar

from specschedule.core.spec import digest_of

T = TypeVar("T")


def coin(*what: object) -> bool:
    """Return heads or tails, decided by what is tossed for."""
    return int(digest_of([str(part) for part in what])[0], 16) < 8


def shuffled(items: Iterable[T], *what: object) -> list[T]:
    """Return items in an order that is decided by their names and by what it is for."""
    purpose = [str(part) for part in what]
    return sorted(items, key=lambda item: digest_of([*purpose, str(item)]))
