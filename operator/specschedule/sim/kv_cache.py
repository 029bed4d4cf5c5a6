"""The KV cache: blocks of 16 tokens, shared by prefix, evicted least recently used first."""

from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 16
"""Tokens per block, vLLM's default."""


class KvCache:
    """Counts blocks and remembers which prompt prefixes are still in them."""

    def __init__(self, tokens: int, *, prefix_caching: bool) -> None:
        self.blocks = max(1, tokens // BLOCK)
        self.prefix_caching = prefix_caching
        self.used = 0
        """Blocks that running requests hold; a shared block counts once."""
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def usage(self) -> float:
        """Share of the blocks in use."""
        return self.used / self.blocks

    def cached_prefix(self, prefix: Sequence[int]) -> int:
        """Return how many leading blocks of a prompt are in the cache."""
        count = 0
        for block in prefix:
            if block not in self._holders and block not in self._idle:
                break
            count += 1
        return count

    def share(self, prefix: Sequence[int]) -> bool:
        """Hold prompt blocks, new or cached; all of them or, without room, none."""
        fresh = sum(block not in self._holders for block in prefix)
        if self.used + fresh > self.blocks:
            return False
        for block in prefix:
            holders = self._holders.get(block, 0)
            self._holders[block] = holders + 1
            if not holders:
                self.used += 1
                self._idle.pop(block, None)
        self._evict()
        return True

    def take(self, count: int) -> bool:
        """Hold blocks of its own for one request, if there is room."""
        if self.used + count > self.blocks:
            return False
        self.used += count
        self._evict()
        return True

    def release(self, prefix: Sequence[int], own: int) -> None:
        """Give back a request's blocks; its prompt stays cached until the room is needed."""
        self.used -= own
        for block in prefix:
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
                continue
            del self._holders[block]
            self.used -= 1
            if self.prefix_caching:
                self._idle[block] = None

    def reset(self) -> bool:
        """Forget idle prefixes; False while requests hold blocks, as vLLM answers."""
        if self.used:
            return False
        self._idle.clear()
        return True

    def _evict(self) -> None:
        while len(self._idle) + self.used > self.blocks:
            self._idle.popitem(last=False)
