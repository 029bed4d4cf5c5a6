"""How long an engine step takes at every batch size, K and context, from few measured windows.

Two layers. A physical trend: a table that never falls over the tokens that the target model
verifies (batch size x (K + 1), padded to captured graph sizes, with a jump above the largest),
reading the KV cache, the drafter, the prefill of the requests that replace finished ones, and an
overhead, fitted by non-negative least squares on relative error. And what the trend misses, a
Gaussian process on the logarithm that passes through what was measured and forgets it with
distance. Its covariance is the uncertainty that everything later carries.

Used to choose what to measure and to propose, never as evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, log2, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import nnls

from specschedule.core.acceptance import Acceptance

Floats = NDArray[np.float64]

DEFAULT_GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Graph sizes that vLLM captures when nothing else is asked for."""
MISFIT = 0.08
"""Standard deviation of the logarithm of what the trend misses far from any window."""
OWN = 0.015
"""Standard deviation of the logarithm of what one setting has to itself: another kernel, another
tile; no neighbour tells of it."""
BATCH_OCTAVES = 1.2
"""Distance in batch size over which the trend's error stays alike."""
WINDOW_OCTAVES = 0.8
"""The same for the verified tokens of one request, K + 1."""
CONTEXT_OCTAVES = 1.5
"""The same for the context."""
ACROSS = 0.7
"""Correlation that is left across the graph limit, and between drafting and not drafting."""
PRIOR_NOISE = 0.01
PRIOR_COUNT = 4
"""The spread of repeated windows before any is seen, and the repeats it counts for."""
SMOOTH = 0.1
"""How strongly neighbouring slopes of the table are held alike, as a relative error."""


class Setting(NamedTuple):
    """A grid point of the sweep."""

    batch: int
    """Requests in flight."""
    tokens: int
    """Speculative tokens, K."""
    context: int | None = None
    """Mean context in tokens; None where it does not vary."""


class Timed(NamedTuple):
    """One window, as the seconds of its mean step."""

    setting: Setting
    seconds: float


@dataclass(frozen=True)
class Graphs:
    """Graph sizes that the engine captured, in tokens, rising; empty when it captures none."""

    sizes: tuple[int, ...] = DEFAULT_GRAPH_SIZES

    def padded(self, tokens: int) -> int:
        """Return the tokens that a step computes: padded up to a captured size."""
        at = int(np.searchsorted(self.sizes, tokens))
        return tokens if at == len(self.sizes) else self.sizes[at]

    def beyond(self, tokens: int) -> bool:
        """Say whether a step is too large for every captured graph."""
        return bool(self.sizes) and tokens > self.sizes[-1]

    def last_batches(self, tokens: int, most: int) -> set[int]:
        """Return the batch sizes up to ``most`` that fill a captured graph as well as can be.

        One request more would need the next graph.
        """
        return {size // (tokens + 1) for size in self.sizes if 1 <= size // (tokens + 1) <= most}


class StepTimes:
    """Step time by setting, fitted to windows of one launch path.

    Args:
        windows: Measured windows, at least one.
        acceptance: Tokens per step, which set how often a new request must be prefilled.
        graphs: Captured graph sizes.
    """

    def __init__(self, windows: Sequence[Timed], acceptance: Acceptance, graphs: Graphs) -> None:
        self._acceptance, self._graphs = acceptance, graphs
        by_setting: dict[Setting, list[float]] = {}
        for window in windows:
            by_setting.setdefault(window.setting, []).append(float(np.log(window.seconds)))
        self.settings = list(by_setting)
        means = np.array([np.mean(by_setting[s]) for s in self.settings])
        self.noise = noise(windows).sd
        """Standard deviation of the logarithm between repeated windows of one setting."""
        variance = np.array([self.noise**2 / len(by_setting[s]) for s in self.settings])
        self._contexts = sorted({s.context for s in self.settings if s.context is not None})
        self._deep = [0, *self._contexts] if len(self._contexts) > 1 else []
        self._knots = sorted({s.batch * (s.tokens + 1) for s in self.settings} | {0})
        self._weights = self._fit(np.exp(means))
        self._places = self._placed(self.settings)
        self._residual = means - np.log(self.trend(self.settings))
        self._solver = cho_factor(self._kernel(self._places, self._places) + np.diag(variance))
        self._gain = cho_solve(self._solver, self._residual)

    def predict(self, settings: Sequence[Setting]) -> tuple[Floats, Floats]:
        """Return the mean logarithm of the step's seconds, and its covariance."""
        places = self._placed(settings)
        across = self._kernel(places, self._places)
        mean = np.log(self.trend(settings)) + across @ self._gain
        covariance = self._kernel(places, places) - across @ cho_solve(self._solver, across.T)
        return mean, covariance

    def seconds(self, settings: Sequence[Setting]) -> Floats:
        """Return the predicted seconds of a step."""
        across = self._kernel(self._placed(settings), self._places)
        return np.asarray(self.trend(settings) * np.exp(across @ self._gain))

    def trend(self, settings: Sequence[Setting]) -> Floats:
        """Return the seconds of a step by the physical trend alone: never less in more company."""
        return np.asarray(np.maximum(self._columns(settings) @ self._weights, 1e-9))

    def _fit(self, seconds: Floats) -> Floats:
        """Fit the trend's non-negative weights on relative error."""
        columns = self._columns(self.settings) / seconds[:, None]
        # Slopes of neighbouring pieces of the table are held alike, so that it bends only where
        # the windows say so; the ridge keeps columns that nothing measures at zero.
        scale = np.where(columns.max(axis=0) > 0, columns.max(axis=0), 1.0)
        tables = [(0, self._knots, self._knots[-1])]
        if self._deep:
            deepest = max(s.batch * (s.context or 0) for s in self.settings)
            tables.append((columns.shape[1] - len(self._deep), self._deep, deepest))
        rows = []
        for first, knots, most in tables:
            slope, spans = float(np.mean(seconds)) / max(1.0, float(most)), np.diff(knots)
            for at in range(1, len(spans)):
                row = np.zeros(columns.shape[1])
                row[first + at] = SMOOTH / (slope * spans[at])
                row[first + at - 1] = -SMOOTH / (slope * spans[at - 1])
                rows.append(row)
        ridge = np.diag(1e-4 * scale)
        design = np.vstack([columns, *rows, ridge])
        target = np.concatenate([np.ones(len(seconds)), np.zeros(len(design) - len(seconds))])
        weights, _ = nnls(design / scale, target, maxiter=100 * design.shape[1])
        return np.asarray(weights / scale)

    def _columns(self, settings: Sequence[Setting]) -> Floats:
        """Return the trend's terms, a row per setting."""
        batch = np.array([s.batch for s in settings], dtype=float)
        tokens = np.array([s.tokens for s in settings], dtype=float)
        context = np.array([s.context or 0 for s in settings], dtype=float)
        verified = [s.batch * (s.tokens + 1) for s in settings]
        computed = np.array(verified, dtype=float)
        padded = np.array([self._graphs.padded(n) for n in verified], dtype=float)
        drafting = (tokens > 0).astype(float)
        idle = 1.0 - drafting  # With nothing to draft the drafter still follows the target.
        columns = [
            *_ramps(computed, self._knots),
            np.ones(len(settings)),
            padded,  # Not what is added: then a padded step could be longer than a full one.
            np.array([float(self._graphs.beyond(n)) for n in verified]),
            drafting,
            idle,
            idle * batch,
            tokens,
            tokens * batch,
            batch * self._lengths(tokens),
        ]
        if self._deep:
            # Attention does not grow in a straight line: short contexts hide in other work.
            columns += [batch * ramp for ramp in _ramps(context, self._deep)]
            columns.append(tokens * batch * context)
        return np.column_stack(columns)

    def _lengths(self, tokens: Floats) -> Floats:
        known = np.minimum(tokens.astype(int), self._acceptance.largest)
        return np.asarray(self._acceptance.lengths[known])

    def _placed(self, settings: Sequence[Setting]) -> Floats:
        """Return coordinates in which the trend's error varies by about one unit."""
        middle = self._contexts[len(self._contexts) // 2] if self._contexts else 1
        return np.array(
            [
                (
                    log2(s.batch) / BATCH_OCTAVES,
                    log2(s.tokens + 1) / WINDOW_OCTAVES,
                    log2((s.context or middle) / middle) / CONTEXT_OCTAVES,
                    float(self._graphs.beyond(s.batch * (s.tokens + 1))),
                    float(s.tokens > 0),
                )
                for s in settings
            ]
        )

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        apart = a[:, None, :] - b[None, :, :]
        near = np.exp(-0.5 * (apart[..., :3] ** 2).sum(axis=-1))
        crossed = np.abs(apart[..., 3:]).sum(axis=-1)
        same = np.abs(apart).max(axis=-1) == 0.0
        return np.asarray(MISFIT**2 * near * ACROSS**crossed + OWN**2 * same)


def _ramps(values: Floats, knots: Sequence[int]) -> list[Floats]:
    """Return the pieces of a table over values: each rises from 0 to 1 between two of its knots."""
    return [
        # The last piece goes on beyond what was measured.
        np.clip((values - low) / (high - low), 0.0, 1.0 if high != knots[-1] else np.inf)
        for low, high in pairwise(knots)
    ]


class Noise(NamedTuple):
    """The spread of repeated windows of one setting."""

    sd: float
    """Standard deviation of the logarithm of a window's step time."""
    freedom: int
    """Degrees of freedom that it rests on, those of the prior included."""


def noise(windows: Sequence[Timed]) -> Noise:
    """Return how far windows of one setting differ, drawn towards a prior while few repeat."""
    repeats: dict[Setting, list[float]] = {}
    for window in windows:
        repeats.setdefault(window.setting, []).append(log(window.seconds))
    squares = sum(float(np.var(r) * len(r)) for r in repeats.values())
    freedom = PRIOR_COUNT + len(windows) - len(repeats)
    return Noise(sqrt((PRIOR_COUNT * PRIOR_NOISE**2 + squares) / freedom), freedom)
