"""How many draft tokens are accepted at every K, from the few Ks that were measured.

Acceptance does not depend on the batch size, so windows of one K are pooled. From one run at the
largest K the acceptance at a smaller one is estimated twice: by the prefix (a shorter draft is
accepted as far as the longer one would have been) and by the split (a long accepted run that a
shorter draft cuts goes on in the next step). Both err low, so the larger one is taken, and every
other K that was measured pulls the estimate to itself and its neighbours to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from specschedule.core.evidence import Cell

ESTIMATED_SD = 0.02
"""Standard deviation of the logarithm of an estimated acceptance length, half-way between
measured Ks: estimators were within 4 % on recorded EAGLE traces."""
DESIGN_EFFECT = 2.0
"""Drafts of one prompt are alike: variance against that of independent drafts."""
STALE_SD = 4.0
"""Standard deviations by which acceptance after K=0 must fall short to be called stale."""
STALE_SHARE = 0.05
"""And the share by which it must."""


@dataclass(frozen=True)
class Acceptance:
    """Mean tokens per step and request (acceptance length), by K from 0 to the largest measured."""

    lengths: NDArray[np.float64]
    """1 + accepted draft tokens per step; index is K."""
    sd: NDArray[np.float64]
    """Standard deviation of the logarithm of each length."""
    measured: tuple[int, ...]
    """Ks with windows of their own, besides 0."""

    @property
    def largest(self) -> int:
        """The largest K that is known."""
        return len(self.lengths) - 1


@dataclass
class _Pooled:
    drafts: int = 0
    accepted: int = 0
    counted: int = 0
    """Drafts of windows that tell positions."""
    by_position: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def add(self, cell: Cell, tokens: int) -> None:
        drafts = cell.drafts or 0
        self.drafts += drafts
        self.accepted += cell.accepted_tokens or 0
        if cell.accepted_by_position is not None:
            positions = np.zeros(tokens)
            told = cell.accepted_by_position[:tokens]
            positions[: len(told)] = told
            self.by_position = self.by_position + positions if self.counted else positions
            self.counted += drafts

    @property
    def length(self) -> float:
        return 1.0 + self.accepted / self.drafts


def acceptance(cells: Iterable[Cell]) -> Acceptance:
    """Return the acceptance length at every K up to the largest that was measured.

    Args:
        cells: Windows of one K each, with the engine's draft counters. Windows of K = 0 say
            nothing about acceptance and are skipped.
    """
    pooled: dict[int, _Pooled] = {}
    for cell in cells:
        if cell.tokens and cell.drafts:
            pooled.setdefault(cell.tokens, _Pooled()).add(cell, cell.tokens)
    measured = tuple(sorted(pooled))
    if not measured:
        return Acceptance(np.ones(1), np.zeros(1), ())
    shape = _shape(pooled, measured)
    known = [0, *measured]
    pull = np.interp(
        range(len(shape)), known, [0.0, *(log(pooled[k].length / shape[k]) for k in measured)]
    )
    lengths = np.clip(shape * np.exp(pull), 1.0, 1.0 + np.arange(len(shape)))
    # Never more at a smaller K than at a larger one.
    lengths = np.minimum.accumulate(lengths[::-1])[::-1]
    return Acceptance(lengths, _uncertainty(lengths, pooled, known), measured)


def from_survival(survival: Sequence[float]) -> NDArray[np.float64]:
    """Return acceptance lengths by K from the survival of each position at the largest K.

    Args:
        survival: Probability that draft position 1, 2, ... is accepted, falling.
    """
    reached = np.minimum.accumulate(np.clip([1.0, *survival, 0.0], 0.0, 1.0))
    runs = reached[:-1] - reached[1:]
    """Probability that exactly 0, 1, ... draft tokens are accepted."""
    produced = float(np.dot(np.arange(1, len(runs) + 1), runs))
    lengths = []
    for k in range(len(survival) + 1):
        prefix = float(reached[: k + 1].sum())
        steps = sum(ceil((j + 1) / (k + 1)) * share for j, share in enumerate(runs))
        lengths.append(max(prefix, produced / steps))
    return np.array(lengths)


def stale_after_zero(cells: Sequence[Cell]) -> list[str]:
    """Say where acceptance falls short in a window that follows one of K = 0 in its launch.

    A drafter that loses its state while nothing is drafted guesses worse afterwards.

    Args:
        cells: Windows of K = 0 and above, in the order in which they were measured.
    """
    after: dict[int, _Pooled] = {}
    other: dict[int, _Pooled] = {}
    for before, cell in pairwise(cells):
        if cell.tokens and cell.drafts and (before.arm, before.launch) == (cell.arm, cell.launch):
            side = after if before.tokens == 0 else other
            side.setdefault(cell.tokens, _Pooled()).add(cell, cell.tokens)
    found = []
    for tokens in sorted(after.keys() & other.keys()):
        lost, usual = after[tokens], other[tokens]
        sd = sqrt(sum(_variance(p.length, tokens) / p.drafts for p in (lost, usual)))
        short = usual.length - lost.length
        if short > STALE_SD * sd and short > STALE_SHARE * usual.length:
            found.append(
                f"K={tokens}: acceptance length {lost.length:.2f} in windows after K=0, "
                f"{usual.length:.2f} otherwise: the drafter loses its state at K=0"
            )
    return found


def _shape(pooled: dict[int, _Pooled], measured: Sequence[int]) -> NDArray[np.float64]:
    """Return lengths by K that the measured ones then correct."""
    largest = pooled[measured[-1]]
    if largest.counted:
        return from_survival([float(x) for x in largest.by_position / largest.counted])
    return _filled([0, *measured], [0.0, *(pooled[k].length - 1.0 for k in measured)])


def _filled(known: Sequence[int], accepted: Sequence[float]) -> NDArray[np.float64]:
    """Return lengths by K through known ones; each further position is accepted less often.

    Between two known Ks the gains fall by a constant ratio that leads from one to the other.
    """
    gains: list[float] = []
    for (a, low), (b, high) in pairwise(zip(known, accepted, strict=True)):
        before = gains[-1] if gains else 1.0
        gains += _falling(before, max(0.0, high - low), b - a)
    return 1.0 + np.concatenate([[0.0], np.cumsum(gains)])


def _falling(before: float, total: float, count: int) -> list[float]:
    """Return ``count`` gains that fall from ``before`` by a constant ratio and add up."""
    if count == 1 or total <= 0.0 or before <= 0.0 or total >= count * before:
        return [total / count] * count

    def excess(ratio: float) -> float:
        return before * sum(ratio**i for i in range(1, count + 1)) - total

    ratio = float(brentq(excess, 0.0, 1.0))
    return [before * ratio**i for i in range(1, count + 1)]


def _variance(length: float, tokens: int) -> float:
    """Return the variance of the tokens of one step, from its mean, and the design effect.

    Each position is taken to be accepted with one probability given that all before it were.
    """
    survival = np.array(_falling(1.0, length - 1.0, tokens))
    mean = float(survival.sum())
    square = float(np.dot(2 * np.arange(1, tokens + 1) - 1, survival))
    return DESIGN_EFFECT * max(square - mean * mean, 1e-6)


def _uncertainty(
    lengths: NDArray[np.float64], pooled: dict[int, _Pooled], known: Sequence[int]
) -> NDArray[np.float64]:
    """Return the standard deviation of the logarithm: sampling, and what lies between."""
    sampling = {
        k: sqrt(_variance(p.length, k) / p.drafts) / p.length for k, p in pooled.items()
    } | {0: 0.0}
    sd = np.interp(range(len(lengths)), known, [sampling[k] for k in known])
    for a, b in pairwise(known):
        for k in range(a + 1, b):
            # Widest half-way, and never wider than the whole gain that is at stake.
            apart = 2 * min(k - a, b - k) / (b - a)
            stake = log(lengths[b] / lengths[a])
            sd[k] = sqrt(sd[k] ** 2 + min(apart * ESTIMATED_SD, stake / 2) ** 2)
    return np.asarray(sd)
