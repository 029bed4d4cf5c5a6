"""Which windows to measure next in a screening launch, and when to stop.

Seed windows span the batch sizes and the Ks. After them each window goes where it can still
change the choice: where what is expected to be lost by taking the best K so far is largest, at
the load points and on both sides of every boundary that would be proposed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log2, sqrt

import numpy as np
from scipy.special import ndtr

from specschedule.core.chance import shuffled
from specschedule.core.choice import tokens_at
from specschedule.core.compare import NONE
from specschedule.core.cost import Setting
from specschedule.core.depth import flat
from specschedule.core.evidence import Cell
from specschedule.core.neighbours import VARIANTS, undecided
from specschedule.core.schedule import Band
from specschedule.core.sweep import Sweep, sweep
from specschedule.core.values import Value
from specschedule.core.view import Floats, Search, View, view

SWEEP_REPEATS = 3
"""Repeats that a sweep of every setting would need."""
REPEATS = 2
"""Windows of each setting of a launch whose K is fixed."""
FEWER = 5
"""How many times fewer windows than such a sweep may be spent."""
ENOUGH = 0.005
"""Expected regret at which measuring stops. Half of the promised 1 %, because the model can be
more certain of itself than it should be."""
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


def allowance(search: Search) -> int:
    """Windows that may be spent on the schedule's path.

    With those of the launch without speculation a fifth of a sweep of every setting. Where that
    is less than the seeds and one for each load point, those and the seeds measured again.
    """
    settings = len(search.points) * (search.max_tokens + 1) * max(1, len(search.contexts))
    fifth = settings * SWEEP_REPEATS // FEWER - REPEATS * len(none_settings(search))
    least = len(seeds(search)) + len(search.points)
    return fifth if fifth >= least else least + AGAIN


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
    left = allowance(search) - spent
    if flat(found, search.zone) is not None:
        # One context stands for all, and what the depth sweep took at others is paid already.
        one = found.contexts[0]
        search = replace(search, contexts=(one,))
        spent = sum(window.setting.context == one for window in found.schedule)
        found, left = found.anywhere(one), min(left, allowance(search) - spent)
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
