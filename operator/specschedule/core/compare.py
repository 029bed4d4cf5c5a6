"""Launches made comparable: what each metric is, which cells count, which launches are a pair.

The unit is the launch: windows inside one launch are averaged, never counted as evidence.
Differences are taken on an additive scale on which more is better: log ratios for rates,
inverted log ratios for latencies, plain differences for attainment.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, expm1, inf, log, log1p
from typing import Any, Literal, NamedTuple

from specschedule.core.context_axis import by_context
from specschedule.core.evidence import Cell, Launch, Profile
from specschedule.core.spec import Bar, Improve, Metric, Protect, Spec

INCUMBENT = "incumbent"
NONE = "none"
TWIN = "twin"

MIN_REQUESTS = 20
"""A window in which fewer requests finished cannot carry a gain."""

CONTEXT_STEP = 1.5
"""Mean contexts of one load point further apart than this factor are different contexts."""

MIXED_STEP = 0.1
"""A window whose tokens per verification are further than this share from the plan is mixed."""

Parts = Mapping[tuple[str | None, int | None], float]
"""A metric of one launch by (category, context class), each the mean of its windows."""


class Offered(NamedTuple):
    """The offered load of an open-loop window, in requests per second."""

    low: float
    peak: float
    """The rate half-way; equal to low where the rate is steady."""
    trace: bool = False
    """Whether recorded arrivals are replayed; a question has one trace, so no rate names it."""

    def __str__(self) -> str:
        if self.trace:
            return "trace"
        span = f"{self.low:g}" if self.low == self.peak else f"{self.low:g}-{self.peak:g}"
        return f"{span} requests/s"


TRACE = Offered(0.0, 0.0, trace=True)
"""The recorded arrivals of ``load.trace``."""


class Place(NamedTuple):
    """What is compared where."""

    metric: Metric
    at: int | None
    """Requests in flight; None in an open loop."""
    category: str | None = None
    """None pools the categories, by windows that mix them where there are any."""
    context: int | None = None
    """Mean context that the bar names, or a context class; None pools them, by windows with prompts
    as they are where there are any."""
    offered: Offered | None = None
    """The offered load, in an open loop."""

    @property
    def load(self) -> dict[str, Any]:
        """Its load and category, as fields of what is said of it."""
        steady = self.offered is not None and not self.offered.trace
        return {
            "at": self.at,
            "requests_per_second": self.offered.low if self.offered and steady else None,
            "trace": True if self.offered == TRACE else None,
            "category": self.category,
            "context": self.context,
        }

    def __str__(self) -> str:
        parts = [f"{self.metric.value} at {self.offered or self.at}"]
        if self.category is not None:
            parts.append(f"category {self.category}")
        if self.context is not None:
            parts.append(f"context {self.context}")
        return ", ".join(parts)


class Pair(NamedTuple):
    """Two launches of one round, the arm and its reference."""

    round: int
    arm: Launch
    reference: Launch
    arm_first: bool
    """Whether the arm was launched before its reference."""


def requirements(bar: Bar) -> list[Improve | Protect]:
    """Return what the bar says about named places, gains first."""
    return [*bar.improve, *bar.protect]


def places(spec: Spec, requirement: Improve | Protect) -> list[Place]:
    """Return the places that a requirement names: load points, or offered loads."""
    metric, category, context = requirement.metric, requirement.category, requirement.context
    named = requirement.requests_per_second
    if named or metric is Metric.ATTAINMENT:
        rates = named or spec.load.requests_per_second or ()
        loads = [Offered(rate, rate) for rate in sorted(set(rates))]
        if spec.load.trace is not None and not named:
            loads.append(TRACE)
        return [Place(metric, None, category, offered=load) for load in loads]
    points = sorted(set(requirement.at or spec.load.points))
    return [Place(metric, at, category, context) for at in points]


def offered(profile: Profile) -> Offered | None:
    """Return the offered load of a window; None where it is no open loop of known arrivals."""
    low = profile.requests_per_second
    if profile.kind == "open" and profile.trace is not None:
        return TRACE
    if profile.kind != "open" or low is None:
        return None
    return Offered(low, profile.peak_requests_per_second or low)


def to_effect(metric: Metric, share: float) -> float:
    """Return a share (+0.15: 15 % better) on the additive scale."""
    if metric is Metric.ATTAINMENT:
        return share
    if metric.smaller_is_better:
        return inf if share >= 1 else -log1p(-share)
    return -inf if share <= -1 else log1p(share)


def to_share(metric: Metric, effect: float) -> float:
    """Return a difference on the additive scale as a share, better being positive."""
    if metric is Metric.ATTAINMENT:
        return effect
    if metric.smaller_is_better:
        return 1.0 - exp(-effect)
    return expm1(effect)


def measured(cell: Cell, metric: Metric) -> float | None:
    """Return a cell's value of a metric; None when it was not measured.

    Units: requests/s (goodput), tokens/s (throughput, decodeRate), ms (latencies), a fraction
    (attainment).
    """
    match metric:
        case Metric.GOODPUT:
            return None if cell.good is None else cell.good / cell.window_seconds
        case Metric.ATTAINMENT:
            return None if cell.good is None or not cell.offered else cell.good / cell.offered
        case Metric.THROUGHPUT:
            tokens = cell.output_tokens
            return None if tokens is None else tokens / cell.window_seconds
        case Metric.DECODE_RATE:
            return cell.decode_rate
        case _:
            quantiles = cell.ttft_ms if metric.value.startswith("ttft") else cell.tpot_ms
            value = getattr(quantiles, metric.value[4:].lower(), None)
            return None if value is None or value <= 0 else float(value)


def drafted_tokens(cell: Cell) -> float | None:
    """Return the tokens drafted per verification; 0 when nothing was drafted, None if unknown."""
    if cell.draft_tokens is None or cell.drafts is None:
        return None
    return cell.draft_tokens / cell.drafts if cell.drafts else 0.0


def drafted_otherwise(cell: Cell, *, finds: bool = False) -> bool:
    """Say whether the engine's counters show another K than the one planned.

    Args:
        cell: A window.
        finds: Whether its launch finds drafts, so that fewer than K are as planned.
    """
    drafted = drafted_tokens(cell)
    if cell.tokens is None or drafted is None:
        return False
    apart = drafted - cell.tokens
    return (apart if finds else abs(apart)) > MIXED_STEP * max(1, cell.tokens)


def mixed(cell: Cell, *, finds: bool = False) -> bool:
    """Say whether a window is no evidence for one K: none is planned, or another was drafted."""
    return cell.tokens is None or drafted_otherwise(cell, finds=finds)


def acceptance_length(cells: Iterable[Cell]) -> float | None:
    """Return tokens per verification, pooled: 1 + accepted / drafts.

    None where nothing was drafted, or it is not known.
    """
    counted = [c for c in cells if c.drafts is not None and c.accepted_tokens is not None]
    drafts = sum(cell.drafts or 0 for cell in counted)
    if not drafts:
        return None
    return 1 + sum(cell.accepted_tokens or 0 for cell in counted) / drafts


def difference(metric: Metric, arm: Parts, reference: Parts) -> float | None:
    """Return how much better the arm is than its reference, on the additive scale.

    Both are averaged over their categories and contexts, which must be the same ones. Infinite
    where one of two rates is zero, 0 where both are; None when there is nothing to compare.
    """
    keys = set(arm)
    if not keys or keys != set(reference):
        return None
    a = sum(arm[key] for key in keys) / len(keys)
    b = sum(reference[key] for key in keys) / len(keys)
    if metric is Metric.ATTAINMENT:
        return a - b
    if a <= 0 or b <= 0:
        return 0.0 if a <= 0 and b <= 0 else (-inf if a <= 0 else inf)
    return log(b / a) if metric.smaller_is_better else log(a / b)


@dataclass
class Evidence:
    """The launches of a run, split into those that count and those that do not."""

    spec: Spec
    launches: Sequence[Launch]
    counted: list[Launch] = field(init=False)
    """In time order."""
    dropped: list[tuple[Launch, str]] = field(init=False)
    """Launches that do not count, and why."""
    contexts: dict[int, list[int]] = field(init=False)
    """Context classes of the load points that have several, named by the smallest context."""
    _parts: dict[tuple[int, Place], Parts] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        ordered = in_time_order(self.launches)
        warm = any(launch.receipt.caches_warm for launch in ordered)
        self.counted, self.dropped = [], []
        for launch in ordered:
            why = uncounted(launch)
            if why is None and warm and launch.receipt.caches_warm is False:
                why = "it compiled or tuned while the other launches found warm caches"
            if why is None:
                self.counted.append(launch)
            else:
                self.dropped.append((launch, why))
        self.contexts = self._context_classes()

    def _context_classes(self) -> dict[int, list[int]]:
        """Find load points that were measured at several contexts: in most launches, by a gap.

        Prompts drawn anew for every round make means wander; that alone is no second context.
        """
        seen: dict[int, list[list[int]]] = defaultdict(list)
        for launch in self.counted:
            own: dict[int, list[int]] = defaultdict(list)
            for cell in self.cells(launch):
                if cell.context is not None and cell.profile.concurrency is not None:
                    own[cell.profile.concurrency].append(cell.context)
            for at, contexts in own.items():
                seen[at].append(contexts)
        classes = {}
        for at, launches in seen.items():
            every = sorted(context for contexts in launches for context in contexts)
            starts = [b for a, b in pairwise(every) if b > CONTEXT_STEP * max(a, 1)]
            both = sum(
                any(min(contexts) < start <= max(contexts) for start in starts)
                for contexts in launches
            )
            if 2 * both > len(launches):
                classes[at] = [every[0], *starts]
        return classes

    def cells(
        self, launch: Launch, kind: Literal["hold", "open", "burst"] = "hold"
    ) -> Iterable[Cell]:
        """Yield the windows of a launch that count, of one kind of load."""
        limit = self.spec.load.max_send_lag * 1000
        for cell in launch.cells:
            late = cell.send_lag_ms_p99 is not None and cell.send_lag_ms_p99 > limit
            if cell.profile.kind == kind and _counts(cell, launch) and not late:
                yield cell

    def swings(self, launches: Iterable[Launch]) -> list[Offered]:
        """Return the rising and falling offered loads that were measured in some launches."""
        found = {offered(cell.profile) for x in launches for cell in self.cells(x, "open")}
        return sorted(load for load in found if load is not None and load.low < load.peak)

    def context_class(self, cell: Cell) -> int | None:
        """Return the context class of a held window; None where its load point has only one."""
        if cell.context is None or cell.profile.concurrency is None:
            return None
        starts = self.contexts.get(cell.profile.concurrency, [])
        return max((s for s in starts if s <= cell.context), default=None)

    def at(self, launch: Launch, place: Place) -> list[Cell]:
        """Return the windows of a launch that belong to a place.

        Where no category is named, those that mix them, if there are any, and where no context is,
        those with prompts as they are: how many others a launch has must not weigh.
        """
        found = [
            cell
            for cell in self.cells(launch, "hold" if place.offered is None else "open")
            if (cell.profile.concurrency, offered(cell.profile)) == (place.at, place.offered)
            and (place.category is None or cell.category == place.category)
            and (place.context is None or self._is_at(cell, place.context))
        ]
        mixing = [cell for cell in found if cell.category is None]
        if mixing and place.category is None:
            found = mixing
        plain = [cell for cell in found if cell.profile.as_they_are]
        return plain if plain and place.context is None else found

    def _is_at(self, cell: Cell, context: int) -> bool:
        """Say whether a held window is at a context: one that the bar names, or of a class."""
        if any(requirement.context == context for requirement in requirements(self.spec.bar)):
            return cell.context == context and cell.profile.contexts is None
        return self.context_class(cell) == context

    def parts(self, launch: Launch, place: Place) -> Parts:
        """Return what a launch shows at a place."""
        key = (id(launch), place)
        if key not in self._parts:
            values: dict[tuple[str | None, int | None], list[float]] = defaultdict(list)
            for cell in self.at(launch, place):
                value = measured(cell, place.metric)
                if value is not None:
                    values[cell.category, self.context_class(cell)].append(value)
            self._parts[key] = {k: sum(v) / len(v) for k, v in values.items()}
        return self._parts[key]

    def difference(self, place: Place, arm: Launch, reference: Launch) -> float | None:
        """Return how much better one launch is than another at a place."""
        return difference(place.metric, self.parts(arm, place), self.parts(reference, place))

    def log_ratio(self, place: Place, arm: Launch, reference: Launch) -> float | None:
        """Return the logarithm of one level over another, on whatever scale it is judged."""
        return difference(Metric.THROUGHPUT, self.parts(arm, place), self.parts(reference, place))

    def over(self, metric: Metric, arm: Launch, reference: Launch) -> float | None:
        """Return the mean difference over the load points (and contexts) that both measured."""
        found = [
            self.difference(place, arm, reference)
            for at in sorted(set(self.spec.load.points))
            for place in self.split(Place(metric, at))
        ]
        kept = [value for value in found if value is not None]
        opposed = {inf, -inf} <= set(kept)
        return sum(kept) / len(kept) if kept and not opposed else None

    def split(self, place: Place) -> list[Place]:
        """Return a place by context class, where the load point has several.

        Windows with prompts as they are stay a place of their own.
        """
        classes = self.contexts.get(place.at, []) if place.at is not None else []
        if place.context is not None or not classes:
            return [place]
        here = [cell for each in self.counted for cell in self.at(each, place)]
        plain = any(cell.context is None and cell.profile.as_they_are for cell in here)
        return [
            *([place] if plain else []),
            *(place._replace(context=context) for context in classes),
        ]

    def of(self, arm: str) -> list[Launch]:
        """Return the counted launches of an arm."""
        return [launch for launch in self.counted if launch.arm == arm]

    def pairs(self, arm: str, reference: str = INCUMBENT) -> list[Pair]:
        """Return the pairs of two arms, by round: the last try, neighbours first."""
        rounds: dict[int, list[Launch]] = defaultdict(list)
        for launch in self.counted:
            if launch.arm in (arm, reference):
                rounds[launch.round].append(launch)
        found = []
        for number in sorted(rounds):
            tries: dict[int, list[Launch]] = defaultdict(list)
            for launch in rounds[number]:
                tries[launch.attempt].append(launch)
            both = rounds[number]
            lasts = [x for i, x in enumerate(both) if all(x.arm != y.arm for y in both[i + 1 :])]
            candidates = [tries[attempt] for attempt in sorted(tries, reverse=True)]
            for group in [*candidates, lasts]:
                matched = _matched(number, group, arm)
                if matched:
                    found.extend(matched)
                    break
        return found

    def apart(
        self, arm: str, reference: str, compare: Callable[[Launch, Launch], float | None]
    ) -> list[float]:
        """Return the differences of two arms: one per round that both are in.

        Arms that share no round are compared by all their launches, as one difference: then
        drift is part of it.
        """
        pairs = [compare(pair.arm, pair.reference) for pair in self.pairs(arm, reference)]
        known = [value for value in pairs if value is not None]
        if known:
            return known
        every = [
            value
            for ours in self.of(arm)
            for theirs in self.of(reference)
            if (value := compare(ours, theirs)) is not None
        ]
        opposed = {inf, -inf} <= set(every)
        return [sum(every) / len(every)] if every and not opposed else []

    def thin(self, place: Place, launches: Iterable[Launch]) -> bool:
        """Say whether any window at a place holds too few requests to carry a gain."""
        return any(
            cell.completed + cell.failed < MIN_REQUESTS
            for launch in launches
            for cell in self.at(launch, place)
        )

    def crosses_rows(self, place: Place, launches: Iterable[Launch]) -> bool:
        """Say whether K varied in any held window because its contexts cross an edge of the rows.

        Such a window holds no K. Prompts of many lengths, and of unknown ones, are meant to vary.
        """
        return place.at is not None and any(
            cell.tokens is None
            and cell.profile.contexts is None
            and (cell.profile.context or self.spec.load.prompts is None)
            for launch in launches
            if by_context(launch.schedule)
            for cell in self.at(launch, place)
        )

    def unplanned_tokens(self) -> list[str]:
        """Say where the tokens drafted are not those planned: the windows are mixed."""
        found: dict[str, str] = {}
        for launch in self.counted:
            for cell in self.cells(launch):
                drafted = drafted_tokens(cell)
                if drafted is None or not drafted_otherwise(cell, finds=launch.finds_drafts):
                    continue
                where = f"{launch.arm} at {cell.profile.concurrency}"
                found.setdefault(
                    where,
                    f"{where}: {drafted:.2f} tokens were drafted per verification where "
                    f"{cell.tokens} are planned; the batch size counts every scheduled request, "
                    "prefills too",
                )
        return list(found.values())

    def fixed_arm(self, tokens: int) -> str | None:
        """Return the arm of one fixed K without a schedule: a control, or the incumbent itself.

        None where no such arm was measured.
        """
        name = f"static-{tokens}" if tokens else NONE
        if self.of(name):
            return name
        plain = [launch for launch in self.of(INCUMBENT) if launch.schedule is None]
        planned = {cell.tokens for launch in plain for cell in self.cells(launch)}
        return INCUMBENT if planned == {tokens} else None

    @property
    def rate(self) -> Metric:
        """Goodput where it was measured, else throughput: what whole arms are compared by."""
        for launch in self.counted:
            if any(cell.good is not None for cell in launch.cells):
                return Metric.GOODPUT
        return Metric.THROUGHPUT


def in_time_order(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches in time order: by number, or by round where numbers repeat."""
    numbers = [launch.launch for launch in launches]
    if len(set(numbers)) == len(numbers):
        return sorted(launches, key=lambda launch: launch.launch)
    return sorted(launches, key=lambda x: (x.round, x.attempt, x.position, x.launch))


def contradiction(cell: Cell) -> str | None:
    """Say which counts of a window contradict each other; None when they can all be true."""
    if cell.good is not None and cell.good > cell.completed:
        return f"{cell.good} good requests of {cell.completed} completed cannot be"
    if cell.completed + cell.failed > cell.offered:
        return (
            f"{cell.completed} completed and {cell.failed} failed requests of {cell.offered} "
            "offered cannot be"
        )
    return None


def unfit(cell: Cell) -> str | None:
    """Say why a window that nobody declared void is no evidence all the same."""
    return contradiction(cell) or cell.not_held


def uncounted(launch: Launch) -> str | None:
    """Say why a launch cannot be evidence; None when it can."""
    if launch.void is not None:
        return launch.void or "void"
    if launch.failed is not None:
        return launch.failed or "failed"
    if not any(_counts(cell, launch) for cell in launch.cells):
        voids = [why for cell in launch.cells if (why := cell.void or unfit(cell))]
        return f"no window counts: {voids[0]}" if voids else "no window was measured"
    return None


def _counts(cell: Cell, launch: Launch) -> bool:
    ours = cell.timed and cell.arm == launch.arm
    return ours and cell.void is None and unfit(cell) is None


def _matched(number: int, launches: Sequence[Launch], arm: str) -> list[Pair]:
    """Pair launches of two arms as they follow one another; each is used once."""
    found = []
    waiting: Launch | None = None
    for launch in launches:
        if waiting is None or waiting.arm == launch.arm:
            waiting = launch
            continue
        ours, other = (launch, waiting) if launch.arm == arm else (waiting, launch)
        found.append(Pair(number, ours, other, arm_first=ours is waiting))
        waiting = None
    return found
