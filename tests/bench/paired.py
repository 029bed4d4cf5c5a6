"""Ratios of pairs that were measured side by side, with the interval that they show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its interval.

    Attributes:
        mean: The mean.
        low: Lower end of the interval.
        high: Upper end.
        count: How many values it is of.
    """

    mean: float
    low: float
    high: float
    count: int

    def change(self) -> str:
        """Return logarithms of ratios as changes in percent."""
        low, mean, high = (100 * math.expm1(each) for each in (self.low, self.mean, self.high))
        return f"{mean:+.2f} % ({low:+.2f} to {high:+.2f}, n = {self.count})"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean with its Student interval.

    Raises:
        ValueError: There are fewer than two values, which show no spread.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} value shows no spread: measure more")
    mean = fmean(values)
    half = stats.sem(values) * stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return Interval(mean, mean - half, mean + half, len(values))
