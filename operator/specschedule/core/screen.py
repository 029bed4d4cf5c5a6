"""Which windows to measure next in a screening launch, and when to stop.

Seed windows span the batch sizes and the Ks. After them each window goes where it can still
change the choice: where what is expected to be lost by taking the best K so far is largest, at
the load points and on both sides of every boundary that would be proposed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import expm1, log2, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from specschedule.core.chance import shuffled
from specschedule.core.choice import BOUNDARY_PRICE, Grid, grid, rows, tokens_at
from specschedule.core.compare import NONE
from specschedule.core.cost import DEFAULT_GRAPH_SIZES, Graphs, Setting
from specschedule.core.depth import flat
from specschedule.core.evidence import Cell
from specschedule.core.forecast import Forecast
from specschedule.core.neighbours import VARIANTS, undecided
from specschedule.core.schedule import Band
from specschedule.core.spec import Slo
from specschedule.core.sweep import Sweep, sweep
from specschedule.core.values import Value

Floats = NDArray[np.float64]

INDIFFERENT = 0.02
"""Ks within this share of the best are alike, or within the noise where that is wider."""
ASSUMED_FLOOR = 0.01
"""Noise floor where relaunches have not shown it."""
ENOUGH = 0.005
"""Expected regret at which measuring stops. Half of the promised 1 %, because the model can be
more certain of itself than it should be."""
SWEEP_REPEATS = 3
"""Repeats that a sweep of every setting would need."""
REPEATS = 2
"""Windows of each setting of a launch whose K is fixed."""
FEWER = 5
"""How many times fewer windows than such a sweep may be spent."""
WORTH_A_WINDOW = 5e-4
"""Expected loss at one place below which its rival is not worth a window."""
BESIDE = 0.2
"""Weight of a batch size beside a proposed boundary, against a load point."""
WINDOW_LENGTH_SD = 0.015
"""Standard deviation of the logarithm of a window's acceptance length."""
HOLDS_NONE = "the server cannot hold any of the load points"
"""Why nothing is measured where not even the seeds fit."""
AGAIN = 1
"""Seeds that are measured a second time before anything is chosen: what differs then is noise. A
second one would cost a small budget more than it tells."""
TRIES = 3
"""Windows of one setting that may fail to count before it is given up."""


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

    @property
    def budget(self) -> int:
        """Windows that may be spent on the schedule's path.

        With those of the launch without speculation a fifth of a sweep of every setting. Where that
        is less than the seeds and one for each load point, those and the seeds measured again.
        """
        settings = len(self.points) * (self.max_tokens + 1) * max(1, len(self.contexts))
        fifth = settings * SWEEP_REPEATS // FEWER - REPEATS * len(none_settings(self))
        least = len(seeds(self)) + len(self.points)
        return fifth if fifth >= least else least + AGAIN

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


class Ask(Value):
    """A window to measure."""

    concurrency: int
    """Requests to hold in flight."""
    tokens: int
    """K."""
    context: int | None = None
    """Mean context, in tokens, where it matters."""
    why: str
    """What it is for."""

    @property
    def setting(self) -> Setting:
        """The grid point."""
        return Setting(self.concurrency, self.tokens, self.context)


class Next(Value):
    """What to measure next."""

    asks: list[Ask]
    """Windows, in the order in which to measure them; empty when it is enough."""
    expected_regret: float | None = None
    """Share of the objective expected to be lost by stopping now; None before the seeds."""
    reason: str
    """Why to go on or to stop."""


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


def seeds(search: Search) -> list[Setting]:
    """Return the settings to measure first: K = 0, 1, 2 and the largest, at few batch sizes."""
    small, large = search.points[0], min(search.points[-1], search.max_num_seqs)
    middle = min(search.points, key=lambda b: abs(log2(b) - (log2(small) + log2(large)) / 2))
    most = search.max_tokens
    first = search.contexts[0] if search.contexts else None
    wanted = [(small, k) for k in (0, 1, 2, most)] + [(large, k) for k in (0, most)]
    if small < middle < large:
        wanted += [(middle, k) for k in (min(2, most), most)]
    found = [Setting(b, min(k, most), first) for b, k in wanted]
    # The depth sweep: whether steps depend on the context at all.
    found += [Setting(large, most, context) for context in search.contexts[1:]]
    found += [Setting(large, 0, context) for context in search.contexts[-1:]]
    found += [Setting(small, k, context) for context in search.contexts[-1:] for k in (0, most)]
    return [s for s in dict.fromkeys(found) if search.possible(s)]


def none_settings(search: Search) -> list[Setting]:
    """Return the settings to measure in the launch without speculation."""
    first = search.contexts[0] if search.contexts else None
    points = search.points
    few = dict.fromkeys((points[0], points[-1]))
    settings = [Setting(b, 0, first) for b in few]
    settings += [Setting(points[-1], 0, c) for c in search.contexts[1:][-1:]]
    return [s for s in settings if search.possible(s)]


def next_windows(search: Search, cells: Iterable[Cell], *, count: int = 3) -> Next:
    """Say which windows to measure next on the schedule's path.

    Args:
        search: What is tuned.
        cells: Windows so far.
        count: Windows to ask for at once after the seeds.
    """
    cells = list(cells)
    found = sweep(cells, contexts=search.contexts)
    done = {w.setting for w in found.schedule}
    spent = len(found.schedule)
    lost = given_up(cells, found)
    wanted = seeds(search)
    if not wanted:
        return Next(asks=[], reason=HOLDS_NONE)
    # By plan: windows do not tell their context apart until there are some of another one.
    measured = {planned(w.cell) or w.setting for w in found.schedule}
    missing = [s for s in wanted if not _is_measured(s, measured) and s not in lost]
    if missing:
        return Next(
            asks=[_ask(s, "seed") for s in shuffled(missing, search.seed, "seeds")],
            reason="seed windows span the batch sizes and the Ks",
        )
    if not any(setting.tokens for setting in done):
        return Next(asks=[], reason=f"no window with drafts counts: {found.notes[-1]}")
    again = [s for s in wanted if s in done - lost and s.tokens == search.max_tokens]
    if again := again[: max(0, AGAIN - (spent - len(done)))]:
        return Next(
            asks=[_ask(s, "a seed again: what differs is noise") for s in again],
            reason="how far repeats differ decides what can be told apart",
        )
    left = search.budget - spent
    if flat(found, search.zone) is not None:
        # One context stands for all, and what the depth sweep took at others is paid already.
        one = found.contexts[0]
        search = replace(search, contexts=(one,))
        spent = sum(window.setting.context == one for window in found.schedule)
        found, left = found.anywhere(one), min(left, search.budget - spent)
    seen = view(search, found)
    asks, rivals, regret = _adaptive(seen, count)
    unseen, once = _checks(seen)
    # What would be proposed is measured before anything else. With windows to spare, so are the
    # strongest rivals that no window has seen and what decides between the proposal and its
    # neighbours, then the proposal a second time.
    unseen, asks, rivals, beside, once = (
        [ask for ask in those if ask.setting not in lost]
        for those in (unseen, asks, rivals, _beside_best(seen), once)
    )
    spare = [*rivals[:1], *beside, *rivals[1:]]
    asks = [*unseen, *asks][:count] or spare[:count] or once[:count]
    if not asks:
        return Next(asks=[], expected_regret=regret, reason="what is left to gain is too little")
    if left <= 0:
        return Next(asks=[], expected_regret=regret, reason="the budget of windows is spent")
    return Next(
        asks=shuffled(asks[:left], search.seed, spent),
        expected_regret=regret,
        reason="these windows can still change the choice",
    )


def planned(cell: Cell) -> Setting | None:
    """Return the setting that a window was to measure; None where it held no fixed number."""
    batch, tokens = cell.profile.concurrency, 0 if cell.arm == NONE else cell.tokens
    if cell.profile.kind != "hold" or batch is None or tokens is None:
        return None
    return Setting(batch, tokens, cell.context)


def given_up(cells: Iterable[Cell], found: Sweep) -> set[Setting]:
    """Return settings whose windows failed to count so often that no more are tried.

    Args:
        cells: Windows so far.
        found: What of them counts.
    """
    counted = {id(window.cell) for window in (*found.schedule, *found.none)}
    failed = Counter(planned(cell) for cell in cells if id(cell) not in counted)
    return {setting for setting, times in failed.items() if setting and times >= TRIES}


def expected_regret(
    mean: Floats, covariance: Floats, chosen: int, zone: float = 0.0
) -> tuple[float, int]:
    """Return what a choice is expected to lose to its strongest rival.

    Args:
        mean: Logarithm of the objective by K.
        covariance: Its covariance.
        chosen: Column of the choice.
        zone: Share that the choice gives away on purpose, which does not count.

    Returns:
        Expected loss as a share, column of the rival.
    """
    gap = mean - mean[chosen] - zone
    spread = np.diag(covariance) + covariance[chosen, chosen] - 2 * covariance[chosen]
    sd = np.sqrt(np.maximum(spread, 1e-12))
    z = gap / sd
    gain = np.asarray(sd * np.exp(-0.5 * z**2) / sqrt(2 * np.pi) + gap * ndtr(z))
    gain[chosen] = 0.0
    rival = int(np.argmax(gain))
    return float(gain[rival]), rival


def places(seen: View) -> dict[tuple[int, int | None], float]:
    """Return the places that a choice depends on, with their weights, which add up to 1.

    Load points, and the batch sizes on both sides of each boundary of the best schedule.
    """
    search = seen.search
    share = sum(search.time_at.values()) * len(seen.contexts)
    weights = {
        (min(b, search.max_num_seqs), c): w / share
        for b, w in search.time_at.items()
        for c in seen.contexts
    }
    for context, bands in seen.best.items():
        for batch in _beside(bands, seen.grid.batches):
            weight = BESIDE / (len(search.points) * len(seen.contexts))
            weights.setdefault((batch, context), weight)
    possible = {p: w for p, w in weights.items() if search.possible(Setting(p[0], 0, p[1]))}
    total = sum(possible.values()) or 1.0
    return {p: w / total for p, w in possible.items()}


def _beside(bands: Sequence[Band], batches: Sequence[int]) -> list[int]:
    """Return the batch sizes on the grid before and after each boundary."""
    out = []
    for band in bands[:-1]:
        out += [band.last, *batches[batches.index(band.last) + 1 :][:1]]
    return out


def _adaptive(seen: View, count: int) -> tuple[list[Ask], list[Ask], float]:
    """Return windows that can change the choice, unseen rivals, and the expected regret now."""
    weights = places(seen)
    tokens = seen.tokens
    settings = [Setting(b, k, c) for b, c in weights for k in tokens]
    mean, covariance = seen.forecast.scores(settings)
    usable = np.array([seen.search.possible(s) for s in settings])
    noise = seen.forecast.steps.noise**2 + WINDOW_LENGTH_SD**2

    def stakes() -> list[tuple[float, int, int]]:
        """Return by place: expected loss, index of the choice, index of its rival."""
        found = []
        for at, (batch, context) in enumerate(weights):
            own = np.arange(at * len(tokens), (at + 1) * len(tokens))
            own = own[usable[own]]
            lost, chosen, rival = _at_stake(
                mean[own],
                covariance[np.ix_(own, own)],
                [settings[i].tokens for i in own],
                tokens_at(seen.best[context], batch),
                seen.zone,
            )
            found.append((lost, int(own[chosen]), int(own[rival])))
        return found

    shares = list(weights.values())
    now = stakes()
    regret = sum(w * lost for w, (lost, _, _) in zip(shares, now, strict=True))
    rivals = [
        _ask(settings[rival], f"strongest rival of K={settings[chosen].tokens}, never measured")
        for lost, chosen, rival in sorted(now, reverse=True)
        if lost > WORTH_A_WINDOW and settings[rival] not in seen.forecast.windows
    ]
    asks: list[Ask] = []
    for _ in range(count):
        losses = [
            (w * lost, chosen, rival) for w, (lost, chosen, rival) in zip(shares, now, strict=True)
        ]
        total = sum(lost for lost, _, _ in losses)
        if total < ENOUGH:
            break
        lost, *pair = max(losses)
        apart = covariance[:, pair[0]] - covariance[:, pair[1]]
        at = max(pair, key=lambda j: apart[j] ** 2 / (covariance[j, j] + noise))
        ours, theirs = (settings[j].tokens for j in pair)
        why = (
            f"K={ours} or K={theirs} at {settings[at].batch} in flight: {lost / total:.0%} of the "
            f"expected regret of {total:.1%}"
        )
        asks.append(_ask(settings[at], why))
        column = covariance[:, at]
        covariance = covariance - np.outer(column, column) / (covariance[at, at] + noise)
        now = stakes()
    return asks, rivals, regret


def _at_stake(
    mean: Floats, covariance: Floats, tokens: Sequence[int], proposed: int, zone: float
) -> tuple[float, int, int]:
    """Return the larger expected loss of the best K and of the proposed one, with its rival.

    The proposed K may be a smaller one that looks alike; what it gives away on purpose does not
    count.
    """
    best = int(np.argmax(mean))
    lost, rival = expected_regret(mean, covariance, best)
    found = (lost, best, rival)
    if proposed in tokens:
        own = tokens.index(proposed)
        lost, rival = expected_regret(mean, covariance, own, zone)
        found = max(found, (lost, own, rival))
    return found


def _checks(seen: View) -> tuple[list[Ask], list[Ask]]:
    """Return windows at what would be proposed and was never measured, and measured once."""
    asks: tuple[list[Ask], list[Ask]] = ([], [])
    for context, bands in seen.best.items():
        for point in seen.search.points:
            batch = min(point, seen.search.max_num_seqs)
            setting = Setting(batch, tokens_at(bands, batch), context)
            count = seen.forecast.windows.get(setting, 0)
            if count < 2 and seen.search.possible(setting):
                why = "proposed and measured once" if count else "proposed and never measured"
                asks[count].append(_ask(setting, why))
    return asks


def _beside_best(seen: View) -> list[Ask]:
    """Return windows that tell the best rows from their neighbours, two of a setting at most."""
    found = undecided(seen.rows(seen.pooled()), seen.grid, seen.forecast, seen.places)[:VARIANTS]
    asks = {
        setting: _ask(setting, f"decides whether {each.what}")
        for each in found
        for setting in each.decides
        if seen.forecast.windows.get(setting, 0) < 2 and seen.search.possible(setting)
    }
    return list(asks.values())


def _ask(setting: Setting, why: str) -> Ask:
    return Ask(concurrency=setting.batch, tokens=setting.tokens, context=setting.context, why=why)


def _is_measured(setting: Setting, done: set[Setting]) -> bool:
    """Say whether a seed was measured, at its context or one near it."""
    return any(
        (s.batch, s.tokens) == (setting.batch, setting.tokens)
        and (
            s.context is None
            or setting.context is None
            or abs(log2(s.context / setting.context)) < 0.3
        )
        for s in done
    )
