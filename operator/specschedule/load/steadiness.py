"""When throughput is steady: a warm-up or a change of load is over, as far as noise lets see."""

import math
from bisect import bisect_right
from itertools import pairwise

TOLERANCE = 0.02
"""Parts of the time since a change may differ by this much and still be called equal."""
NOISE = 2.0
"""... or by this many standard errors of their difference, where that is more."""


class Throughput:
    """Tokens received since the load last changed.

    The time since then is cut into four equal parts. The first is thrown away; throughput is
    steady when the other three agree within ``TOLERANCE`` or within what the size of the chunks
    alone explains. The longer it takes, the longer the parts and the finer the comparison.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._times: list[float] = []
        self._tokens: list[int] = []
        self._squares: list[int] = []

    def add(self, now: float, tokens: int) -> None:
        """Count a chunk; times must not decrease."""
        self._times.append(now)
        self._tokens.append(tokens + (self._tokens[-1] if self._tokens else 0))
        self._squares.append(tokens * tokens + (self._squares[-1] if self._squares else 0))

    def elapsed(self, now: float) -> float:
        """Seconds since the change."""
        return now - self._started

    def steady(self, now: float) -> bool:
        """Say whether the last three quarters of the time since the change agree."""
        quarter = (now - self._started) / 4
        if quarter <= 0:
            return False
        marks = [bisect_right(self._times, self._started + quarter * i) for i in (1, 2, 3, 4)]
        sums = [self._between(self._tokens, a, b) for a, b in pairwise(marks)]
        squares = [self._between(self._squares, a, b) for a, b in pairwise(marks)]
        mean = sum(sums) / 3
        if min(sums) <= 0:
            return False
        # A sum of n chunk sizes at random times has a variance of at most the sum of squares.
        error = math.sqrt(2 * sum(squares) / 3)
        return max(sums) - min(sums) <= max(TOLERANCE * mean, NOISE * error)

    def rate(self, now: float) -> float:
        """Return tokens per second over the last three quarters of the time since the change."""
        start = self._started + (now - self._started) / 4
        first = bisect_right(self._times, start)
        return self._between(self._tokens, first, len(self._times)) / (now - start)

    @staticmethod
    def _between(cumulative: list[int], first: int, last: int) -> int:
        """Return the sum of the entries first..last-1 of a series given by its running sums."""
        upper = cumulative[last - 1] if last else 0
        return upper - (cumulative[first - 1] if first else 0)
