"""What a run costs, by arm, before the first pod starts; and what its budget still allows."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from math import ceil

from specschedule.core.arms import PIECEWISE, ZERO, Arm
from specschedule.core.compare import INCUMBENT, TWIN, Offered
from specschedule.core.evidence import Launch
from specschedule.core.spec import Effort, Rule, Spec
from specschedule.core.values import Value
from specschedule.core.visit import COMPARED_TOKENS, Window, waves
from specschedule.core.windows import (
    CROSSING_SECONDS,
    MOST_CATEGORIES,
    Contexts,
    apart,
    depths,
    swing,
    swings,
    windows,
)
from specschedule.core.workload import Workload

ROUNDS = {Effort.QUICK: (3, 3), Effort.STANDARD: (5, 12), Effort.THOROUGH: (6, 24)}
"""Fewest and most rounds per candidate, by effort, of rule Sequential."""

ASSUMED_BOOT_S = 240.0
"""Boot time where no serving pod and no launch tells it."""

WARM_UP_SECONDS = 30.0
"""Assumed until a launch has told."""

ASSUMED_TPOT_S = 0.03
"""Assumed where the SLO has no tpot."""

NAMES_SHOWN = 8
"""Names of a list that are written out."""

SCRAPES_PER_VISIT = 4
"""One before the first window counts, three after the last."""


def rounds(spec: Spec) -> tuple[int, int]:
    """Return the fewest and the most rounds of a candidate.

    Rule EveryPair is answered by the fewest; one more follows where a loss is to be watched.
    """
    fewest, most = ROUNDS[spec.experiment.effort]
    return (fewest, fewest + 1) if spec.rule is Rule.EVERY_PAIR else (fewest, most)


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
    notes: list[str] = []
    """What first launches measure beside the rest, what it adds, and what is left out."""


def cost(
    spec: Spec,
    arms: Sequence[Arm],
    *,
    boot_seconds: float | None,
    gpus: int,
    scrape_seconds: float = 15.0,
    done: Sequence[Launch] = (),
    workload: Workload | None = None,
    contexts: Contexts | None = None,
) -> Cost:
    """Predict what a run costs.

    Args:
        spec: The question.
        arms: Its arms.
        boot_seconds: Container start to Ready, from the serving pods; None when unknown (then
            four minutes).
        gpus: GPUs of one pod.
        scrape_seconds: Interval of Prometheus' scrapes.
        done: Launches so far; their boot times, warm-ups and windows replace the guesses.
        workload: What the load sends, where that was read.
        contexts: What is held by context, as a search says.
    """
    sent = workload or Workload()
    boot = _mean((x.receipt.boot_seconds for x in done), otherwise=_boot(boot_seconds))
    warm_up = _mean((x.warm_up_seconds for x in done), otherwise=WARM_UP_SECONDS)
    taken = _taken(spec, done)
    fewest, most = rounds(spec)
    candidates = [a for a in arms if a.same_as is None and a.name.startswith("candidate-")]
    rates = swing(spec, arms, done)
    if rates is None and swings(spec, arms):
        points = spec.load.points
        rates = Offered(min(points) / _request(spec), max(points) / _request(spec))
    rows = []
    at_most, at_most_seconds = 0, 0.0
    for arm in arms:
        early, late = _counts(spec, arm, candidates, fewest, most)
        held = apart(spec, arm.name, sent.categories)
        planned = partial(windows, spec, arm, contexts=contexts, trace=sent.trace)
        first = planned(round=1, first=True, apart=held)
        later = [planned(round=at + 1, first=False, swing=rates) for at in range(1, early)]
        visits = [first, *later]
        seconds = boot + warm_up + SCRAPES_PER_VISIT * scrape_seconds
        seconds += sum(_seconds(spec, w, taken) for v in visits for w in v) / len(visits)
        rows.append(
            ArmCost(
                arm=arm.name,
                launches=early,
                minutes=round(early * seconds / 60, 1),
                gpu_hours=round(early * seconds * gpus / 3600, 3),
                buys=arm.why if early or arm.same_as else f"{arm.why}; only if it is needed",
            )
        )
        at_most += late
        at_most_seconds += late * seconds
    minutes = sum(row.minutes for row in rows)
    return Cost(
        launches=sum(row.launches for row in rows),
        minutes=round(minutes / spec.experiment.parallelism, 1),
        gpu_hours=round(sum(row.gpu_hours for row in rows), 3),
        launches_at_most=at_most,
        gpu_hours_at_most=round(at_most_seconds * gpus / 3600, 3),
        arms=rows,
        notes=_notes(spec, arms[0], sent.categories, taken),
    )


def _notes(spec: Spec, arm: Arm, categories: Sequence[str], taken: dict[str, float]) -> list[str]:
    """Say what first launches measure beside the rest, how long that takes, what is left out."""
    found = _depth_notes(spec, arm, taken)
    held = apart(spec, arm.name, categories)
    if not held:
        return found
    plain, whole = (
        sum(_seconds(spec, w, taken) for w in windows(spec, arm, round=1, first=True, apart=each))
        for each in ((), held)
    )
    points = " and ".join(str(at) for at in sorted({at for at, _ in held}))
    names = sorted({name for _, name in held})
    whose = "the first launch of incumbent and candidate"
    if spec.experiment.effort is not Effort.QUICK:
        whose = "the first launch of every arm"
    found.append(
        f"{whose} holds {_listed(names)} apart at {points} in flight: {(whole - plain) / 60:.1f} "
        "minutes more; what loses there is measured again in the next pair"
    )
    out = sorted(set(categories) - set(names))
    if out:
        found.append(
            f"not held apart: {_listed(out)} ({MOST_CATEGORIES} categories at most, by name); a "
            "category that the bar names is held in every launch"
        )
    return found


def _depth_notes(spec: Spec, arm: Arm, taken: dict[str, float]) -> list[str]:
    swept, left_out = depths(spec, arm)
    found = []
    if swept:
        first = windows(spec, arm, round=1, first=True)
        seconds = sum(_seconds(spec, w, taken) for w in first if w.profile.kind == "depth")
        found.append(
            f"the first launch of every arm decodes one stream at depths "
            f"{' and '.join(map(str, swept))}: {seconds / 60:.1f} minutes more"
        )
    return [*found, *([f"not swept: {left_out}"] if left_out else [])]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def with_screen(
    confirm: Cost,
    spec: Spec,
    arms: Iterable[tuple[Arm, int]],
    *,
    boot: float | None,
    gpus: int,
) -> Cost:
    """Add what a screen costs to what testing one proposal costs.

    Args:
        confirm: Cost of the run after the screen.
        spec: The question, with a search.
        arms: Arms of the screen that are launched, and the windows that each may take.
        boot: Seconds from container start to Ready; None when unknown.
        gpus: GPUs of one pod.
    """
    rows = []
    for arm, number in arms:
        seconds = _boot(boot) + WARM_UP_SECONDS + number * 3 * _request(spec)
        rows.append(
            ArmCost(
                arm=arm.name,
                launches=1,
                minutes=round(seconds / 60, 1),
                gpu_hours=round(seconds * gpus / 3600, 3),
                buys=f"screen: {arm.why}",
            )
        )
    hours = sum(row.gpu_hours for row in rows)
    return confirm.model_copy(
        update={
            "launches": confirm.launches + len(rows),
            "minutes": round(
                confirm.minutes + sum(r.minutes for r in rows) / spec.experiment.parallelism, 1
            ),
            "gpu_hours": round(confirm.gpu_hours + hours, 3),
            "launches_at_most": confirm.launches_at_most + len(rows),
            "gpu_hours_at_most": round(confirm.gpu_hours_at_most + hours, 3),
            "arms": [*rows, *confirm.arms],
        }
    )


def _mean(values: Iterable[float | None], *, otherwise: float) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else otherwise


def _taken(spec: Spec, done: Sequence[Launch]) -> dict[str, float]:
    """Return how long windows took, by what they measure: to settle, and then to count.

    A window settles from the end of the one before to its own start; the first one of a visit is
    behind the warm-up. Where the times are not known, one wave of requests settles it.
    """
    found = {}
    for launch in done:
        ended: float | None = None
        for at, cell in enumerate(launch.cells):
            at_time = cell.started_at
            started = None if at_time is None else datetime.fromisoformat(at_time).timestamp()
            settled = 0.0 if at == 0 else _request(spec)
            if started is not None and ended is not None:
                settled = max(0.0, started - ended)
            ended = None if started is None else started + cell.window_seconds
            found[_measures(cell.cell)] = settled + cell.window_seconds
    return found


def _measures(cell: str) -> str:
    """Return a window's name without its round and its seed."""
    return cell.split("-", 1)[-1].rsplit("-s", 1)[0]


def _boot(seconds: float | None) -> float:
    return ASSUMED_BOOT_S if seconds is None else seconds


def _counts(
    spec: Spec, arm: Arm, candidates: Sequence[Arm], fewest: int, most: int
) -> tuple[int, int]:
    """Return an arm's launches (when the first candidate decides early, at most)."""
    effort = spec.experiment.effort
    every = most * len(candidates)
    if arm.same_as is not None or not candidates:
        return 0, 0
    if arm.name in (INCUMBENT, TWIN):
        return fewest, every
    if arm.name.startswith("candidate-"):
        return (fewest if arm is candidates[0] else 0), most
    if arm.name == ZERO or arm.name.startswith(("constant-", PIECEWISE)):
        early = 0 if arm.name != ZERO else 1 if effort is Effort.STANDARD else fewest - 1
        return early, (1 if effort is Effort.STANDARD else every)
    if effort is Effort.QUICK:
        return 1, 1
    return (fewest if effort is Effort.THOROUGH else 1), every


def _seconds(spec: Spec, window: Window, taken: dict[str, float]) -> float:
    """Predict a window: requests in waves at the pace that the SLO allows, one wave to settle."""
    known = taken.get(_measures(window.cell))
    if known is not None:
        return known
    slo = spec.slo
    if window.profile.steps is not None:
        first, token = slo.ttft or 0.2, slo.tpot or ASSUMED_TPOT_S
        return waves(window.profile.steps) * (first + sum(COMPARED_TOKENS) / 2 * token)
    request = _request(spec)
    rate = window.profile.mean_rate
    if rate is not None:
        return request + window.requests / rate
    if window.profile.kind == "crossing":
        return max(4 * CROSSING_SECONDS, request)
    together = window.profile.concurrency or window.profile.peak or 1
    return request * (1 + ceil(window.requests / together))


def _request(spec: Spec) -> float:
    """Predict the seconds of a request: what the SLO allows it."""
    request = (spec.slo.ttft or 0.2) + spec.load.output_tokens * (spec.slo.tpot or ASSUMED_TPOT_S)
    return request if spec.slo.e2e is None else min(request, spec.slo.e2e)


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
