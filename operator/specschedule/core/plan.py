"""The experiment's plan: balanced rounds, windows and cost, and what to launch next.

Everything is a function of (spec, seed, what is done), so a restarted operator goes on exactly
where it was.
"""

import random
from collections.abc import Sequence
from math import ceil

from specschedule.core import judge
from specschedule.core.arms import ZERO, Arm, arms
from specschedule.core.compare import INCUMBENT, NONE, TWIN, Evidence, requirements, uncounted
from specschedule.core.controls import standing
from specschedule.core.evidence import Launch, Profile
from specschedule.core.spec import Effort, Spec
from specschedule.core.values import Value
from specschedule.core.visit import Window

__all__ = [
    "Arm",
    "ArmCost",
    "BudgetLeft",
    "Cost",
    "Finished",
    "LaunchRecord",
    "Next",
    "Slot",
    "Start",
    "arms",
    "budget_left",
    "cost",
    "next_launches",
    "windows",
]

MAX_ATTEMPTS = 3
"""A pair that was void this often is not launched again."""

ROUNDS = {Effort.QUICK: (3, 3), Effort.STANDARD: (5, 12), Effort.THOROUGH: (6, 24)}
"""Fewest and most rounds per candidate, by effort."""

CONTROLS_AFTER = {Effort.QUICK: 3, Effort.STANDARD: 2}
"""Round of the first candidate after whose pair the controls are launched once."""

PATH_ARMS_AFTER = 4
"""Standard: round after whose pair the arms of the tax table are launched once."""

NEAR_THE_LEAD = 0.05
"""Standard: a control within this share of the best arm is launched in every later round."""

CROSSING_SECONDS = 5.0
"""Time on each side of a boundary."""

WARM_UP_SECONDS = 30.0
"""Assumed for the cost until it is known."""

ASSUMED_TPOT_S = 0.03
"""Assumed for the cost where the SLO has no tpot."""

SCRAPES_PER_VISIT = 4
"""One before the first window counts, three after the last."""


class LaunchRecord(Launch):
    """A launch as far as it has come."""

    over: bool = True
    """False while it is planned or running."""


class Slot(Value):
    """A launch to start."""

    arm: str
    """Arm."""
    launch: int
    """Number of the launch in the run, from 1."""
    round: int
    """Round, from 1."""
    position: int
    """Position in the round, from 1."""
    attempt: int = 1
    """Which try of its pair this is, from 1."""
    windows: list[Window]
    """What to measure."""


class Start(Value):
    """Launches to start now; none while running ones must end first."""

    slots: list[Slot] = []
    """In order."""


class Finished(Value):
    """Nothing is left to launch."""

    reason: str
    """Decided, AllTried, IncumbentFailed, PairVoid or NothingToTest."""
    message: str
    """The same for people."""


Next = Start | Finished


def next_launches(
    spec: Spec, arms: Sequence[Arm], done: Sequence[LaunchRecord], *, run: str
) -> Next:
    """Say what to launch now.

    Args:
        spec: The question.
        arms: Its arms.
        done: Every launch of the run so far with its cells, running ones too (over is False).
        run: Run id; with the seed it decides the coins.
    """
    return _Walk(spec, arms, done, run).next()


class _Walk:
    """A walk through the rounds of each candidate up to the first launch that is missing."""

    def __init__(
        self, spec: Spec, arms: Sequence[Arm], done: Sequence[LaunchRecord], run: str
    ) -> None:
        self.spec = spec
        self.effort = spec.experiment.effort
        self.arms = {arm.name: arm for arm in arms if arm.same_as is None}
        self.done = sorted(done, key=lambda record: record.launch)
        self.run = run
        self.gone: set[str] = set()
        """Controls that cannot be measured."""

    def next(self) -> Next:
        candidates = [name for name in self.arms if name.startswith("candidate-")]
        if not candidates:
            return Finished(
                reason="NothingToTest",
                message="every candidate does exactly what the incumbent does",
            )
        fewest, most = ROUNDS[self.effort]
        number = 0
        for candidate in candidates:
            limit = most
            local = 0
            while local < limit:
                local += 1
                number += 1
                order = self._order(candidate, local, number)
                answer = self._missing(candidate, number, order)
                if answer is not None:
                    return answer
                if self._failed(candidate):
                    break
                if local < fewest:
                    continue
                judgement = judge.judge(self.spec, self._before(number + 1))
                if not judge.settled(judgement, candidate.removeprefix("candidate-")):
                    continue
                if judgement.watch and limit == most and fewest < most and local < most:
                    limit = local + 1
                    continue
                break
            if self._better(candidate, number):
                return Finished(reason="Decided", message=f"{candidate} meets the bar")
        return Finished(reason="AllTried", message=f"no candidate met the bar in {number} rounds")

    def _better(self, candidate: str, number: int) -> bool:
        judgement = judge.judge(self.spec, self._before(number + 1))
        name = candidate.removeprefix("candidate-")
        return any(v.candidate == name and v.verdict == "Better" for v in judgement.verdicts)

    def _before(self, number: int) -> list[LaunchRecord]:
        return [record for record in self.done if record.round < number and record.over]

    def _coin(self, *what: object) -> random.Random:
        """Return a source of chance that depends on the seed, the run and the question only."""
        return random.Random(":".join(map(str, (self.spec.experiment.seed, self.run, *what))))

    def _order(self, candidate: str, local: int, number: int) -> list[str]:
        """Return the arms of a round in launch order."""
        if self.effort is Effort.THOROUGH:
            return self._williams(candidate, number)
        block, second = divmod(local - 1, 2)
        same_coin = self.effort is Effort.QUICK
        first = self._coin(candidate, "pair", 0 if same_coin else block).random() < 0.5
        pair = [INCUMBENT, candidate] if first != bool(second) else [candidate, INCUMBENT]
        members = self._members(candidate, number)
        self._coin(candidate, "members", block).shuffle(members)
        order = [*pair, *reversed(members)] if second else [*members, *pair]
        return order + [arm for arm in self._once(candidate, local, number) if arm not in order]

    def _controls(self) -> list[str]:
        return [n for n in self.arms if n == NONE or n.startswith("static-")]

    def _members(self, candidate: str, number: int) -> list[str]:
        """Return the controls close enough to the lead to be launched in every round."""
        if self.effort is not Effort.STANDARD:
            return []
        evidence = Evidence(self.spec, self._before(number))
        if not any(evidence.of(arm) for arm in self._controls()):
            return []
        behind = standing(evidence, [INCUMBENT, candidate, *self._controls()])
        return [arm for arm in self._controls() if behind.get(arm, 1.0) <= NEAR_THE_LEAD]

    def _once(self, candidate: str, local: int, number: int) -> list[str]:
        """Return arms that one launch is enough for, to be launched after this round's pair."""
        if local == CONTROLS_AFTER[self.effort]:
            wanted = self._controls()
        elif self.effort is Effort.STANDARD and local == PATH_ARMS_AFTER:
            wanted = self._path_arms(candidate, number)
        else:
            return []
        launched = {record.arm for record in self._before(number)}
        return [arm for arm in wanted if arm not in launched]

    def _path_arms(self, candidate: str, number: int) -> list[str]:
        """Return the arms that take the candidate's tax apart, where there is a tax to explain."""
        table = self.arms[candidate].table
        used = {band.tokens for band in table.bands()} if table else set()
        found = [ZERO] if 0 in used and ZERO in self.arms else []
        if self._paths_differ(candidate, number):
            found += [f"constant-{k}" for k in sorted(used) if f"constant-{k}" in self.arms]
        return found

    def _paths_differ(self, candidate: str, number: int) -> bool:
        seen: dict[str, list[tuple[object, ...]]] = {}
        for record in self._before(number):
            receipt = record.receipt
            facts = (receipt.graph_mode, receipt.captured_sizes, receipt.attention_backend)
            seen.setdefault(record.arm, []).append(facts)
        ours, theirs = seen.get(candidate, []), seen.get(INCUMBENT, [])
        return any(a != b for a in ours for b in theirs)

    def _williams(self, candidate: str, number: int) -> list[str]:
        """Return a row of a Williams square over all arms, mirrored by coin."""
        members = [INCUMBENT, TWIN, candidate, *self._controls()]
        if number > 1:
            members += self._path_arms(candidate, number)
        self._coin("labels").shuffle(members)
        size = len(members)
        cycle, row = divmod(number - 1, size)
        rows = list(range(size))
        self._coin("rows", cycle).shuffle(rows)
        zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(size)]
        order = [members[(rows[row] + step) % size] for step in zigzag]
        if self._coin("mirror", number).random() < 0.5:
            order.reverse()
        return order

    def _missing(self, candidate: str, number: int, order: Sequence[str]) -> Next | None:
        """Return what a round still needs; None when it is complete."""
        group = [arm for arm in order if arm in (INCUMBENT, TWIN, candidate)]
        wanted: list[tuple[int, str, int]] = []
        running = sum(1 for record in self.done if not record.over)
        attempt = self._attempt(number, group)
        waiting = False
        for position, arm in enumerate(order, start=1):
            tries = attempt if arm in group else self._attempt(number, [arm])
            if tries > MAX_ATTEMPTS and arm in group:
                return Finished(
                    reason="PairVoid",
                    message=f"the pair of round {number} was void {MAX_ATTEMPTS} times; last: "
                    f"{self._last_void(number, group)}",
                )
            if tries > MAX_ATTEMPTS or self._failed(arm):
                if arm == INCUMBENT:
                    return Finished(
                        reason="IncumbentFailed",
                        message=f"the incumbent could not be measured: {self._fault(arm)}",
                    )
                if arm == candidate:
                    return None
                continue
            record = self._record(number, arm, tries)
            if record is None:
                wanted.append((position, arm, tries))
            elif not record.over:
                waiting = True
        if not wanted and not waiting:
            return None
        free = max(0, self.spec.experiment.parallelism - running)
        last = max((record.launch for record in self.done), default=0)
        return Start(
            slots=[
                Slot(
                    arm=arm,
                    launch=last + at,
                    round=number,
                    position=position,
                    attempt=tries,
                    windows=windows(
                        self.spec,
                        self.arms[arm],
                        round=number,
                        first=all(record.arm != arm for record in self.done),
                    ),
                )
                for at, (position, arm, tries) in enumerate(wanted[:free], start=1)
            ]
        )

    def _attempt(self, number: int, group: Sequence[str]) -> int:
        """Return the try that a group is at: one more than the last void one."""
        own = [r for r in self.done if r.round == number and r.arm in group]
        latest = max((record.attempt for record in own), default=1)
        void = any(r.over and r.attempt == latest and self._void(r) is not None for r in own)
        return latest + 1 if void else latest

    def _void(self, record: LaunchRecord) -> str | None:
        """Say why a launch must be done again, through no fault of its arm."""
        if record.failed is not None:
            return None
        if record.void is not None:
            return record.void
        warm = any(other.receipt.caches_warm for other in self.done)
        if warm and record.receipt.caches_warm is False:
            return "it compiled or tuned while other launches found warm caches"
        return uncounted(record) if record.cells else None

    def _last_void(self, number: int, group: Sequence[str]) -> str:
        said = [
            f"{r.arm}: {why}"
            for r in self.done
            if r.round == number and r.arm in group and (why := self._void(r)) is not None
        ]
        return said[-1] if said else "unknown"

    def _record(self, number: int, arm: str, attempt: int) -> LaunchRecord | None:
        for record in self.done:
            if (record.round, record.arm, record.attempt) == (number, arm, attempt):
                return record
        return None

    def _failed(self, arm: str) -> bool:
        return any(r.arm == arm and r.over and r.failed is not None for r in self.done)

    def _fault(self, arm: str) -> str:
        return next((r.failed for r in self.done if r.arm == arm and r.failed is not None), "")


def windows(spec: Spec, arm: Arm, *, round: int, first: bool) -> list[Window]:
    """Return what a launch measures: the same for all arms of a round, in the same order.

    Args:
        spec: The question.
        arm: Arm; it decides the planned tokens and, in Standard and Thorough, the crossings.
        round: Round of the launch, from 1; it decides the order and the prompts.
        first: Whether it is the arm's first launch, which measures every crossing.
    """
    load, effort = spec.load, spec.experiment.effort
    points = sorted(set(load.points))
    random.Random(f"{spec.experiment.seed}:points:{round}").shuffle(points)
    named = {
        (at, requirement.category)
        for requirement in requirements(spec.bar)
        for at in requirement.at or points
        if requirement.category is not None
    }
    contexts = None
    if load.prompts is None:
        contexts = (load.prompt_tokens, load.prompt_tokens + load.output_tokens)
    seeds = 2 if effort is Effort.THOROUGH else 1
    base = 1000 * spec.experiment.seed + 10 * round
    found = []
    for at in points:
        for category in (None, *sorted(c for a, c in named if a == at and c is not None)):
            for seed in range(base, base + seeds):
                middle = f"hold{at}" + (f"-{category}" if category else "")
                found.append(
                    Window(
                        cell=f"r{round}-{middle}-s{seed}",
                        profile=Profile(kind="hold", concurrency=at),
                        category=category,
                        tokens=arm.tokens(at, contexts),
                        seed=seed,
                        requests=load.requests,
                    )
                )
    if effort is Effort.QUICK or not arm.name.startswith("candidate-"):
        return found
    crossings = _crossings(arm, points)
    if not first and effort is Effort.STANDARD and crossings:
        crossings = [crossings[round % len(crossings)]]
    found.extend(
        Window(
            cell=f"r{round}-cross{boundary}-p{number}-s{base}",
            profile=Profile(
                kind="crossing",
                low=low,
                high=high,
                boundary=boundary,
                period_seconds=CROSSING_SECONDS,
                pass_=number,
            ),
            seed=base,
            requests=load.requests,
        )
        for low, boundary, high in crossings
        for number in (1, 2)
    )
    return found


def _crossings(arm: Arm, points: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (low, boundary, high): the nearest load points on both sides of each boundary."""
    found = []
    for boundary in arm.boundaries():
        below = [at for at in points if at <= boundary]
        above = [at for at in points if at > boundary]
        if below and above:
            found.append((max(below), boundary, min(above)))
    return found


class ArmCost(Value):
    """What one arm costs, and what it buys."""

    arm: str
    """Arm."""
    launches: int
    """Launches."""
    minutes: float
    """Minutes of its pods, boot included."""
    gpu_hours: float
    """GPU-hours."""
    buys: str
    """What its launches are for."""


class Cost(Value):
    """What a run costs when the first candidate decides it as early as it can."""

    launches: int
    """Launches together."""
    minutes: float
    """Minutes from start to end."""
    gpu_hours: float
    """GPU-hours of all trial pods."""
    launches_at_most: int
    """Launches when every candidate needs every round."""
    gpu_hours_at_most: float
    """GPU-hours when every candidate needs every round."""
    arms: list[ArmCost]
    """By arm."""


def cost(
    spec: Spec,
    arms: Sequence[Arm],
    *,
    boot_seconds: float | None,
    gpus: int,
    scrape_seconds: float = 15.0,
    done: Sequence[Launch] = (),
) -> Cost:
    """Predict what a run costs.

    Args:
        spec: The question.
        arms: Its arms.
        boot_seconds: Container start to Ready, from the serving pods; None when unknown (then
            four minutes).
        gpus: GPUs of one pod.
        scrape_seconds: Interval of Prometheus' scrapes.
        done: Launches so far; their boot times and windows replace the guesses.
    """
    boots = [x.receipt.boot_seconds for x in done if x.receipt.boot_seconds is not None]
    boot = sum(boots) / len(boots) if boots else boot_seconds if boot_seconds is not None else 240.0
    taken = {
        cell.cell.split("-", 1)[-1].rsplit("-s", 1)[0]: cell.window_seconds
        for launch in done
        for cell in launch.cells
    }
    fewest, most = ROUNDS[spec.experiment.effort]
    launched = [arm for arm in arms if arm.same_as is None]
    candidates = [arm for arm in launched if arm.name.startswith("candidate-")]
    rows = []
    at_most, at_most_seconds = 0, 0.0
    for arm in launched:
        counts = _counts(spec, arm, candidates, fewest, most)
        seconds = sum(
            boot
            + WARM_UP_SECONDS
            + SCRAPES_PER_VISIT * scrape_seconds
            + sum(_seconds(spec, w, taken) for w in windows(spec, arm, round=1, first=at == 0))
            for at in range(max(1, counts[0]))
        ) / max(1, counts[0])
        rows.append(
            ArmCost(
                arm=arm.name,
                launches=counts[0],
                minutes=round(counts[0] * seconds / 60, 1),
                gpu_hours=round(counts[0] * seconds * gpus / 3600, 3),
                buys=arm.why if counts[0] else f"{arm.why}; launched only when it is needed",
            )
        )
        at_most += counts[1]
        at_most_seconds += counts[1] * seconds
    minutes = sum(row.minutes for row in rows)
    return Cost(
        launches=sum(row.launches for row in rows),
        minutes=round(minutes / spec.experiment.parallelism, 1),
        gpu_hours=round(sum(row.gpu_hours for row in rows), 3),
        launches_at_most=at_most,
        gpu_hours_at_most=round(at_most_seconds * gpus / 3600, 3),
        arms=rows,
    )


def _counts(
    spec: Spec, arm: Arm, candidates: Sequence[Arm], fewest: int, most: int
) -> tuple[int, int]:
    """Return an arm's launches (when the first candidate decides early, at most)."""
    every = spec.experiment.effort is Effort.THOROUGH
    if arm.name in (INCUMBENT, TWIN):
        return fewest, most * len(candidates)
    if arm.name.startswith("candidate-"):
        return (fewest if candidates and arm is candidates[0] else 0), most
    if arm.name == ZERO or arm.name.startswith("constant-"):
        return (fewest - 1 if every else 1) if arm.name == ZERO else 0, (
            most * len(candidates) if every else 1
        )
    if spec.experiment.effort is Effort.QUICK:
        return 1, 1
    return (fewest if every else 1), most * len(candidates)


def _seconds(spec: Spec, window: Window, taken: dict[str, float]) -> float:
    """Predict a window: requests in waves at the pace that the SLO allows, one wave to settle."""
    known = taken.get(window.cell.split("-", 1)[-1].rsplit("-s", 1)[0])
    if known is not None:
        return known
    slo, load = spec.slo, spec.load
    request = (slo.ttft or 0.2) + load.output_tokens * (slo.tpot or ASSUMED_TPOT_S)
    if slo.e2e is not None:
        request = min(request, slo.e2e)
    if window.profile.kind == "crossing":
        return max(4 * CROSSING_SECONDS, request)
    return request * (1 + ceil(window.requests / (window.profile.concurrency or 1)))


class BudgetLeft(Value):
    """What the budget still allows."""

    gpu_hours: float | None = None
    """GPU-hours left; None without a budget."""
    launches: int | None = None
    """Launches that still fit; None without a budget."""


def budget_left(spec: Spec, cost: Cost, *, gpu_seconds: float) -> BudgetLeft:
    """Return what the budget still allows.

    Args:
        spec: The question with its budget.
        cost: The run's predicted cost.
        gpu_seconds: GPU-seconds that trial pods have held so far.
    """
    limit = spec.experiment.budget.gpu_hours
    if limit is None:
        return BudgetLeft()
    left = max(0.0, limit - gpu_seconds / 3600)
    each = cost.gpu_hours / cost.launches if cost.launches else 0.0
    return BudgetLeft(gpu_hours=round(left, 3), launches=int(left / each) if each > 0 else None)
