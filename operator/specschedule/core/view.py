"""What is searched for, and what the windows so far mean for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import expm1

import numpy as np
from numpy.typing import NDArray

from specschedule.core.choice import BOUNDARY_PRICE, Grid, grid, rows
from specschedule.core.cost import DEFAULT_GRAPH_SIZES, Graphs, Setting
from specschedule.core.forecast import Forecast
from specschedule.core.schedule import Band
from specschedule.core.spec import Slo
from specschedule.core.sweep import Sweep

Floats = NDArray[np.float64]

INDIFFERENT = 0.02
"""Ks within this share of the best are alike, or within the noise where that is wider."""
ASSUMED_FLOOR = 0.01
"""Noise floor where relaunches have not shown it."""


@dataclass(frozen=True)
class Search:
    """What is tuned, for which load, and within which limits."""

    slo: Slo
    time_at: Mapping[int, float]
    """Share of the time that serving spends at a number of requests in flight."""
    max_tokens: int
    """Largest K that may be tried."""
    max_num_seqs: int
    """Largest batch size of the server."""
    output_tokens: int
    """Output length of a request."""
    prompt_tokens: int = 0
    """Prompt length of a request, where contexts are not given."""
    contexts: tuple[int, ...] = ()
    """Mean contexts of the workload; empty where it does not matter."""
    graphs: Graphs = field(default_factory=lambda: Graphs(DEFAULT_GRAPH_SIZES))
    kv_cache_tokens: int | None = None
    """Tokens that the KV cache holds; None when unknown."""
    max_model_len: int | None = None
    """Longest sequence; None when unknown."""
    floor: float = ASSUMED_FLOOR
    """Noise floor of the objective, as a share."""
    seed: int = 0
    """Decides the order of windows."""
    time_told: str | None = None
    """What ``time_at`` says, for people; None where nobody told it and load points weigh alike."""
    unavailable: Mapping[int, str] = field(default_factory=dict)
    """Ks that the engine does not start with, and why; none of them is proposed."""

    @property
    def zone(self) -> float:
        """Share below the best within which Ks are alike, on a machine without noise."""
        return max(INDIFFERENT, self.floor)

    @property
    def points(self) -> tuple[int, ...]:
        """Load points, rising."""
        return tuple(sorted(self.time_at))

    def possible(self, setting: Setting) -> bool:
        """Say whether the server can hold a setting: batch size, KV cache, sequence length.

        Streams begin together, so their requests are at their longest together, at first.
        """
        context = setting.context
        if context is None:
            context = self.prompt_tokens + self.output_tokens // 2
        reach = context + self.output_tokens // 2 + setting.tokens
        return (
            setting.batch <= self.max_num_seqs
            and setting.tokens <= self.max_tokens
            and (self.max_model_len is None or reach <= self.max_model_len)
            and (self.kv_cache_tokens is None or setting.batch * reach <= self.kv_cache_tokens)
        )


@dataclass(frozen=True)
class View:
    """What the windows so far mean for a search."""

    search: Search
    forecast: Forecast
    contexts: tuple[int | None, ...]
    """Contexts that are told apart; (None,) when there are none."""
    grid: Grid

    @cached_property
    def floor(self) -> float:
        """Noise floor, as a share: as it is known, or what repeated windows show where more.

        One standard deviation between repeats is also that of the difference between two settings
        with two windows each.
        """
        return max(self.search.floor, -expm1(-self.forecast.steps.noise))

    @property
    def zone(self) -> float:
        """Share below the best within which Ks are alike: indifferent, or not told from noise."""
        return max(self.search.zone, self.floor)

    def scores(self, context: int | None) -> Floats:
        """Return scores on the grid at a context: a row per batch size, a column per K."""
        return np.asarray(self._scores[self.contexts.index(context)])

    @cached_property
    def _scores(self) -> Floats:
        return np.array([self.forecast.table(self.grid.batches, c) for c in self.contexts])

    @cached_property
    def held(self) -> NDArray[np.bool_]:
        """Whether the server can hold a place: a row per context, a column per batch size."""
        possible = self.search.possible
        return np.array(
            [[possible(Setting(b, 0, c)) for b in self.grid.batches] for c in self.contexts]
        )

    def shares(self, contexts: Sequence[int | None] = ()) -> Floats:
        """Return what each context counts by: a row per context, a column per batch size, sums 1.

        At a batch size only the contexts count at which the server can hold it: elsewhere nothing
        is measured. Where it can hold none of them, all contexts that it can hold stand in for
        them, and the shortest where it can hold none at all.

        Args:
            contexts: Contexts to average over; every one that is told apart when empty.
        """
        held = self.held.copy()
        held[0] |= ~held.any(axis=0)
        wanted = held & np.array([[not contexts or c in contexts] for c in self.contexts])
        weights = np.where(wanted.any(axis=0), wanted, held).astype(float)
        return np.asarray(weights / weights.sum(axis=0))

    def pooled(self, contexts: Sequence[int | None] = ()) -> Floats:
        """Return scores on the grid, averaged over contexts by their shares.

        Args:
            contexts: As for ``shares``.
        """
        return np.asarray(np.einsum("cb,cbk->bk", self.shares(contexts), self._scores))

    @property
    def places(self) -> dict[int | None, Floats]:
        """The share of each context by batch size."""
        return dict(zip(self.contexts, self.shares(), strict=True))

    @cached_property
    def best(self) -> dict[int | None, list[Band]]:
        """The best bands by context."""
        return {c: self.rows(self.scores(c)) for c in self.contexts}

    def rows(
        self,
        scores: Floats,
        *,
        price: float = BOUNDARY_PRICE,
        zero: bool = True,
        largest: bool = False,
    ) -> list[Band]:
        """Return the best bands for scores on the grid.

        Args:
            scores: A row per batch size, a column per K.
            price: What a boundary costs, as a share of the objective at one load point.
            zero: Whether K may be 0.
            largest: Prefer the largest K of those alike, not the smallest.
        """
        columns = [i for i, k in enumerate(self.tokens) if k > 0 or zero]
        return rows(
            self.grid,
            scores[:, columns],
            [self.tokens[i] for i in columns],
            zone=self.zone,
            price=price,
            largest=largest,
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ks that can be proposed: the columns of the scores."""
        return self.forecast.tokens


def view(search: Search, found: Sweep) -> View:
    """Fit the model to a sweep.

    Args:
        search: What is tuned.
        found: Windows that count, at least one on the schedule's path.
    """
    forecast = Forecast(
        found,
        search.slo,
        max_tokens=search.max_tokens,
        output_tokens=search.output_tokens,
        graphs=search.graphs,
        unavailable=search.unavailable,
    )
    contexts: tuple[int | None, ...] = found.contexts or (None,)
    where = grid(
        search.time_at,
        tokens=forecast.tokens,
        max_num_seqs=search.max_num_seqs,
        graphs=search.graphs,
    )
    return View(search, forecast, contexts, where)
