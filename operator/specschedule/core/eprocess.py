"""Anytime-valid evidence from paired differences, and the intervals reported beside it.

All functions take differences on an additive scale (log ratios, or differences of
proportions), one per pair of launches. See Waudby-Smith and Ramdas for e-processes, Hesterberg
(2015) for the small-sample correction of the bootstrap.
"""

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

E_NEEDED = 20.0
"""Evidence that shows something at the 5 % level however often one looks: 1 / 0.05."""

_BETS = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
"""Bets mixed evenly, in units of one over the scale."""

MIN_SCALE = 0.002
"""Smallest scale of the bets: 0.2 %; measured noise may be zero by chance."""

CONFIDENCE = 0.95


def evidence(differences: Sequence[float], *, scale: float) -> float:
    """Return the largest e-value ever reached for "the differences lie above zero".

    Mixes prod 2 / (1 + exp(-2 bet x)), which is prod exp(bet x) / cosh(bet x), over bets of
    0.5 to 8 / scale. Under differences symmetric about zero (or about anything below) the chance
    of ever reaching 1 / alpha is at most alpha. Each pair can double the evidence at most.

    Args:
        differences: In time order, the margin already taken off. Infinite ones are allowed.
        scale: Typical size of a difference, fixed without looking at their signs.
    """
    if not len(differences):
        return 1.0
    x = np.asarray(differences, dtype=float)
    bets = _BETS[:, None] / max(scale, MIN_SCALE)
    logs = np.cumsum(log(2) - np.logaddexp(0.0, -2.0 * bets * x[None, :]), axis=1)
    peak = logs.max(axis=0)
    finite = np.isfinite(peak)
    if not finite.any():
        return 0.0
    values = np.exp(logs[:, finite]).mean(axis=0)
    return float(values.max())


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Return the exact two-sided p of "the sum is zero", by flipping every sign both ways.

    Exact for any count: the sums of both halves are listed and matched. None without
    differences, or with infinite ones.
    """
    x = np.asarray(differences, dtype=float)
    if not len(x) or not np.isfinite(x).all():
        return None
    observed = abs(x.sum()) * (1 - 1e-12) - 1e-15
    left, right = (_flips(half) for half in (x[: len(x) // 2], x[len(x) // 2 :]))
    right.sort()
    below = np.searchsorted(right, -observed - left, side="right").sum()
    above = len(right) * len(left) - np.searchsorted(right, observed - left, side="left").sum()
    extreme = below + above if observed > 0 else 2 ** len(x)
    return float(min(1.0, extreme / 2.0 ** len(x)))


def _flips(x: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for value in x:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def interval(differences: Sequence[float], *, seed: int) -> tuple[float, float] | None:
    """Return a 95 % bootstrap interval of the mean over pairs; None for fewer than two.

    The percentiles are widened for small counts (Hesterberg's expanded percentile interval):
    a plain one covers far less than it says at five pairs.
    """
    x = np.asarray(differences, dtype=float)
    n = len(x)
    if n < 2 or not np.isfinite(x).all():
        return None
    chance = np.random.default_rng(seed)
    means = x[chance.integers(0, n, size=(2000, n))].mean(axis=1)
    wide = float(ndtr(-np.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 + CONFIDENCE) / 2)))
    low, high = np.quantile(means, [wide, 1 - wide])
    return float(low), float(high)


def rounds_needed(gain: float, *, margin: float, sd: float, needed: float) -> int | None:
    """Predict how many rounds will show a true gain, at the noise seen.

    Args:
        gain: True difference.
        margin: What it must exceed.
        sd: Standard deviation of one pair's difference.
        needed: e-value to reach.

    Returns:
        Rounds at which the expected growth of the best bet reaches it, at least the number
        that doubling needs; None when no number will do, because the gain does not exceed the
        margin, or not by enough of the noise.
    """
    if gain <= margin:
        return None
    sd = max(sd, MIN_SCALE)
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    x = gain - margin + sd * nodes
    bets = _BETS[:, None] / sd
    growth = (log(2) - np.logaddexp(0.0, -2.0 * bets * x)) @ weights / weights.sum()
    best = float(growth.max())
    floor = int(np.ceil(np.log2(needed)))
    return max(floor, int(np.ceil(log(needed) / best))) if best > 0 else None
