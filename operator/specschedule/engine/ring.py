"""A bounded record of steps, written by the engine's thread and read by another."""

import threading
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any


class Ring:
    """The last so many lines, each with its number.

    Numbers go up by one for ever, so a reader sees by a gap that lines were overwritten before
    it came.
    """

    def __init__(self, capacity: int) -> None:
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=capacity)
        self._next = 0
        self._lock = threading.Lock()

    def append(self, line: Mapping[str, Any]) -> int:
        """Keep a line, at the cost of the oldest one when full, and return its number."""
        with self._lock:
            self._lines.append(line)
            self._next += 1
            return self._next - 1

    def since(self, number: int, limit: int) -> list[dict[str, Any]]:
        """Return up to ``limit`` lines from a number on, each with its number as ``step``."""
        with self._lock:
            oldest = self._next - len(self._lines)
            start = max(number, oldest)
            lines = list(islice(self._lines, start - oldest, start - oldest + limit))
        return [{"step": start + at, **line} for at, line in enumerate(lines)]

    def plain(self) -> dict[str, int]:
        """Return the number of the oldest line kept and of the next one to come."""
        with self._lock:
            return {"oldest": self._next - len(self._lines), "next": self._next}
