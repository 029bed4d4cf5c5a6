"""The experiment's plan: balanced rounds, and what to launch next.

The plan is a function of (spec, seed, what is done), so a restarted operator goes on exactly
where it was.
"""

from collections.abc import Iterable, Mapping, Sequence

from specschedule.core import capacity, judge
from specschedule.core.arms import PIECEWISE, ZERO, Arm, arms
from specschedule.core.budget import ArmCost, BudgetLeft, Cost, budget_left, cost, rounds
from specschedule.core.chance import coin, shuffled
from specschedule.core.compare import INCUMBENT, TWIN, Evidence, uncounted
from specschedule.core.controls import is_control, standing
from specschedule.core.evidence import Launch
from specschedule.core.spec import Effort, Rule, Spec
from specschedule.core.values import Value
from specschedule.core.visit import Screen, Window
from specschedule.core.windows import Apart, Contexts, apart, swing, windows
from specschedule.core.workload import Workload

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
    "pair_order",
    "windows",
]

MAX_ATTEMPTS = 3
"""A pair that was void this often is not launched again."""

CONTROLS_AFTER = {Effort.QUICK: 3, Effort.STANDARD: 2, Effort.THOROUGH: 2}
"""Round of a candidate by whose end each control was launched once: after its pair, except in
Thorough, where every round holds them."""

PATH_ARMS_AFTER = 4
"""Standard: round after whose pair the arms of the tax table are launched once."""

NEAR_THE_LEAD = 0.05
"""Standard: a control within this share of the best arm is launched in every later round."""


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
    node: str | None = None
    """Node to prefer, so that arms which run on two nodes change places."""
    windows: list[Window] = []
    """What to measure."""
    screen: Screen | None = None
    """What to screen, instead."""


class Start(Value):
    """Launches to start now; none while running ones must end first."""

    slots: list[Slot] = []
    """In order."""
    decided: bool = False
    """Whether a candidate is Better already, and is only launched again for a watched loss."""


class Finished(Value):
    """Nothing is left to launch."""

    reason: str
    """Decided, AllTried, IncumbentFailed, PairVoid or NothingToTest."""
    message: str
    """The same for people."""


Next = Start | Finished


def next_launches(
    spec: Spec,
    arms: Sequence[Arm],
    done: Sequence[LaunchRecord],
    *,
    run: str,
    screens: int = 0,
    workload: Workload | None = None,
    contexts: Contexts | None = None,
) -> Next:
    """Say what to launch now.

    Args:
        spec: The question.
        arms: Its arms.
        done: Every launch of the run so far with its cells, running ones too (over is False).
        run: Run id; with the seed it decides the coins.
        screens: Launches that a search took before; numbers go on after them.
        workload: What the load sends, where that was read.
        contexts: What is held by context, as a search says.
    """
    spec, _ = capacity.narrowed(spec, done)
    return _Walk(spec, arms, done, run, screens, workload or Workload(), contexts).next()


def pair_order(spec: Spec, candidate: str, local: int, *, run: str) -> list[str]:
    """Return the order of incumbent and candidate in a candidate's round, numbered from 1.

    Two rounds are ABBA or BAAB by coin; in Quick one coin decides all three (ABBAAB).
    """
    block, second = divmod(local - 1, 2)
    toss = 0 if spec.experiment.effort is Effort.QUICK else block
    incumbent_first = coin(spec.experiment.seed, run, candidate, "pair", toss) != bool(second)
    return [INCUMBENT, candidate] if incumbent_first else [candidate, INCUMBENT]


class _Walk:
    """A walk through the rounds of each candidate up to the first launch that is missing."""

    def __init__(
        self,
        spec: Spec,
        arms: Sequence[Arm],
        done: Sequence[LaunchRecord],
        run: str,
        screens: int,
        workload: Workload,
        contexts: Contexts | None,
    ) -> None:
        self.spec = spec
        self.effort = spec.experiment.effort
        self.arms = {arm.name: arm for arm in arms if arm.same_as is None}
        self.done = sorted(done, key=lambda record: record.launch)
        self.run = run
        self.screens = screens
        self.workload = workload
        self.contexts = contexts
        self.seed = (spec.experiment.seed, run)

    def next(self) -> Next:
        """Go through the candidates in order; the next one enters only if the leader fails."""
        candidates = [name for name in self.arms if name.startswith("candidate-")]
        if not candidates:
            return Finished(
                reason="NothingToTest",
                message="every candidate does exactly what the incumbent does",
            )
        number = 0
        for candidate in candidates:
            local, going_on = 0, True
            while going_on:
                local += 1
                number += 1
                nodes = self._nodes(candidate, local, number)
                order = self._order(candidate, local, number)
                answer = self._missing(candidate, number, order, nodes)
                if isinstance(answer, Start) and local > rounds(self.spec)[0]:
                    decided = self._verdict(candidate, number - 1) == "Better"
                    return answer.model_copy(update={"decided": decided})
                if answer is not None:
                    return answer
                going_on = not self._failed(candidate) and self._goes_on(candidate, local, number)
            if self._verdict(candidate, number) == "Better":
                return Finished(reason="Decided", message=f"{candidate} meets the bar")
        return Finished(reason="AllTried", message=f"no candidate met the bar in {number} rounds")

    def _goes_on(self, candidate: str, local: int, number: int) -> bool:
        """Say whether a candidate needs another round after this one.

        A loss inside the spread, of the same sign in every pair, gets one more pair. Rule EveryPair
        needs no other: one more pair cannot mend a bad one.
        """
        fewest, most = rounds(self.spec)
        if local >= most:
            return False
        if local < fewest:
            can_stop = self.effort is not Effort.QUICK and local > CONTROLS_AFTER[self.effort]
            return not (can_stop and self._verdict(candidate, number) == "Worse")
        judgement = judge.judge(self.spec, self._before(number + 1))
        name = candidate.removeprefix("candidate-")
        if judge.settled(judgement, name) is None:
            return self.spec.rule is not Rule.EVERY_PAIR
        watched = any(item.candidate == name and item.inside_spread for item in judgement.watch)
        before = judge.judge(self.spec, self._before(number))
        return watched and (local == fewest or judge.settled(before, name) is None)

    def _verdict(self, candidate: str, number: int) -> str | None:
        judgement = judge.judge(self.spec, self._before(number + 1))
        return judge.settled(judgement, candidate.removeprefix("candidate-"))

    def _before(self, number: int) -> list[LaunchRecord]:
        return [record for record in self.done if record.round < number and record.over]

    def _order(self, candidate: str, local: int, number: int) -> list[str]:
        """Return the arms of a round in launch order."""
        if self.effort is Effort.THOROUGH:
            return self._williams(candidate, number)
        block, second = divmod(local - 1, 2)
        pair = pair_order(self.spec, candidate, local, run=self.run)
        members = self._members(candidate, number)
        members = shuffled(members, *self.seed, candidate, "members", block)
        order = [*pair, *reversed(members)] if second else [*members, *pair]
        return order + [arm for arm in self._once(candidate, local, number) if arm not in order]

    def _controls(self) -> list[str]:
        return [name for name in self.arms if is_control(name)]

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
        heads = ["constant-"] if self._paths_differ(candidate, number) else []
        if self._loses_full_graphs(candidate, number):
            heads.append(PIECEWISE)
        wanted = [f"{head}{k}" for k in sorted(used) for head in heads]
        return found + [name for name in wanted if name in self.arms]

    def _loses_full_graphs(self, candidate: str, number: int) -> bool:
        """Say whether the candidate runs without the full graphs that the incumbent has."""
        modes: dict[str, set[str]] = {}
        for record in self._before(number):
            modes.setdefault(record.arm, set()).add(record.receipt.graph_mode or "")
        full = any(mode.startswith("FULL") for mode in modes.get(INCUMBENT, ()))
        return full and modes.get(candidate) == {"PIECEWISE"}

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
        members = shuffled(members, *self.seed, "labels")
        size = len(members)
        cycle, row = divmod(number - 1, size)
        rows = shuffled(range(size), *self.seed, "rows", cycle)
        zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(size)]
        order = [members[(rows[row] + step) % size] for step in zigzag]
        if coin(*self.seed, "mirror", number):
            order.reverse()
        return order

    def _nodes(self, candidate: str, local: int, number: int) -> dict[str, str]:
        """Return the nodes to prefer, where the pair of the candidate's first round ran on two.

        Places swap half-way through the fewest rounds, back after as many, and so on: then
        neither arm has a place of its own, whenever the evidence is enough.
        """
        first = number - local + 1
        home = {
            record.arm: record.receipt.node
            for record in self._before(number)
            if record.round == first
            and record.arm in (INCUMBENT, candidate)
            and record.receipt.node is not None
            and self._void(record) is None
        }
        if len(set(home.values())) < len((INCUMBENT, candidate)):
            return {}
        swapped = (local - 1) // max(1, rounds(self.spec)[0] // 2) % 2
        if not swapped:
            return home
        return {INCUMBENT: home[candidate], candidate: home[INCUMBENT]}

    def _missing(
        self, candidate: str, number: int, order: Sequence[str], nodes: Mapping[str, str]
    ) -> Next | None:
        """Return what a round still needs; None when it is complete."""
        group = self._group(order, candidate)
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
        last = max((record.launch for record in self.done), default=self.screens)
        offered = swing(self.spec, list(self.arms.values()), self._before(number))
        return Start(
            slots=[
                Slot(
                    arm=arm,
                    launch=last + at,
                    round=number,
                    position=position,
                    attempt=tries,
                    node=nodes.get(arm),
                    windows=windows(
                        self.spec,
                        self.arms[arm],
                        round=number,
                        first=self._is_first(arm),
                        apart=self._apart(candidate, number, arm),
                        contexts=self.contexts,
                        swing=offered,
                        trace=self.workload.trace,
                    ),
                )
                for at, (position, arm, tries) in enumerate(wanted[:free], start=1)
            ]
        )

    def _group(self, order: Iterable[str], candidate: str) -> list[str]:
        """Return the arms of a round that are compared pair by pair."""
        return [arm for arm in order if arm in (INCUMBENT, TWIN, candidate)]

    def _is_first(self, arm: str) -> bool:
        """Say whether no launch of an arm is under way, or was one that counts."""
        return all(each.arm != arm or self._void(each) is not None for each in self.done)

    def _apart(self, candidate: str, number: int, arm: str) -> Apart:
        """Return what a launch holds by category: all in the first pair, then what was lost so far.

        A loss of one pair may be chance; a second one tells.
        """
        if not self._group([arm], candidate):
            return apart(self.spec, arm, self.workload.categories) if self._is_first(arm) else ()
        before = self._before(number)
        if all(record.arm != candidate for record in before):
            return apart(self.spec, arm, self.workload.categories)
        lost = judge.losing(self.spec, before, candidate.removeprefix("candidate-"))
        return {(p.at, p.category) for p in lost if p.at and p.category and p.context is None}

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
        judged = ("hold", "open")
        spoiled = [cell.void for cell in record.cells if cell.void and cell.profile.kind in judged]
        if spoiled:
            return f"a window is void: {spoiled[0]}"
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
