"""The next step of one launch: from a planned trial to recorded evidence, or to why there is none.

A launch is a pod and its load job. What happened is recorded in the trial before anything is
deleted, so a process killed between two steps goes on where it was.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from specschedule.core.evidence import Cell, Fit
from specschedule.core.observed import (
    Action,
    MetricsFacts,
    PodFacts,
    RecordTrial,
    StartLaunch,
    StartVisit,
    StopLaunch,
    StopVisit,
    TrialFacts,
    TrialStatus,
    VisitFacts,
)
from specschedule.core.values import Value
from specschedule.core.visit import CellClosed, Fitted, VisitEnded, VisitFailed, Warmed

NOT_THE_ARMS_FAULT = ("Preempted", "Evicted", "NodeLost", "Deleted", "NotDelivered")
"""Ends of a pod that void its launch; every other end is a failure of its arm."""

IMAGE_PULL_PATIENCE_S = 120.0
"""A registry may hiccup; an image that cannot be pulled for this long is missing."""

NOT_SWITCHED = "NotSwitched"
"""Begins the failure of a launch whose engine does not do what a scheduler of ours planned."""

BOOT_PATIENCE_S = 1800.0
"""A server that is not Ready this long after its container started never will be; large models
take tens of minutes."""

MAX_VISITS = 3
"""Load jobs per launch: a lost log, a missed scrape or a window that must not count means that the
visit is done again."""


STORING_PATIENCE_S = 5.0
"""A scrape is in Prometheus soon after it was answered, or it timed out and never will be."""


class Step(Value):
    """What to do for a launch, and what it waits for."""

    actions: list[Action] = []
    """In order."""
    waiting: str
    """Reason constant of what it waits for."""
    message: str
    """The same for people, in the cluster's own words where there are some."""
    held: bool = False
    """Whether it is stopped by something outside the experiment."""


def rfc3339(unix: float) -> str:
    """Write Unix seconds as RFC 3339 in UTC."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(trial: TrialFacts) -> bool:
    """Say whether the launch is over and recorded."""
    return trial.status.ended_at is not None


def next_step(trial: TrialFacts, metrics: MetricsFacts, *, gpus: int, now: float) -> Step:
    """Return the next step of a launch that is not over."""
    pod = trial.pod
    if pod is None:
        if trial.status.started_at is not None:
            return _over(trial, now, gpus, void=f"{trial.spec.arm}: its pod was deleted")
        if not metrics.available:
            return _held_by_metrics(metrics)
        return Step(
            actions=[StartLaunch(trial=trial.name)],
            waiting="Launching",
            message=f"launching {trial.spec.arm}",
        )
    if pod.phase == "Ended":
        return _pod_ended(trial, pod, now, gpus)
    if trial.status.started_at is None:
        started = trial.status.model_copy(update={"started_at": rfc3339(pod.created_at)})
        return Step(
            actions=[RecordTrial(trial=trial.name, status=started)],
            waiting="Launching",
            message=f"launching {trial.spec.arm}",
        )
    if pod.phase == "Pending":
        return _pending(trial, pod, now, gpus)
    if trial.visit is not None:
        return _visiting(trial, pod, trial.visit, metrics, now, gpus)
    if pod.phase != "Ready" or pod.url is None:
        if now - pod.created_at > BOOT_PATIENCE_S:
            return _over(trial, now, gpus, failed=f"not Ready after {BOOT_PATIENCE_S:.0f} s")
        return Step(waiting="Booting", message=f"{trial.spec.arm} boots: {pod.message}")
    if not metrics.available:
        return _held_by_metrics(metrics)
    return _visit(trial, pod)


def _pod_ended(trial: TrialFacts, pod: PodFacts, now: float, gpus: int) -> Step:
    reason = pod.reason or "Exited"
    if reason in NOT_THE_ARMS_FAULT:
        return _over(trial, now, gpus, void=f"{reason}: {pod.message}")
    stage = "under load" if trial.status.ready_at or pod.ready_at else "at start-up"
    return _over(trial, now, gpus, failed=f"{reason} {stage}: {pod.message}")


def _pending(trial: TrialFacts, pod: PodFacts, now: float, gpus: int) -> Step:
    if now - pod.created_at > IMAGE_PULL_PATIENCE_S:
        if pod.reason == "ImagePull":
            return _over(trial, now, gpus, failed=f"ImagePull: {pod.message}")
        if pod.reason == "NotDelivered":
            return _over(trial, now, gpus, void=f"NotDelivered: {pod.message}")
    return Step(
        waiting=pod.reason or "Scheduling",
        message=f"{trial.spec.arm} waits: {pod.message}",
        held=pod.reason is not None,
    )


def _visit(trial: TrialFacts, pod: PodFacts) -> Step:
    number = trial.status.visits + 1
    assert pod.url is not None
    visit = trial.spec.visit.model_copy(update={"url": pod.url, "visit": number})
    if visit.screen is not None:
        done = [*visit.screen.done, *trial.status.cells]
        # What this launch can hold, and which graphs it has, only its receipt tells.
        screen = visit.screen.within(pod.receipt).model_copy(update={"done": done})
        visit = visit.model_copy(update={"screen": screen})
    update = {"visits": number, "ready_at": rfc3339(pod.ready_at or pod.created_at)}
    if pod.receipt.plain():
        update["receipt"] = pod.receipt
    status = trial.status.model_copy(update=update)
    return Step(
        actions=[
            RecordTrial(trial=trial.name, status=status),
            StartVisit(trial=trial.name, visit=visit),
        ],
        waiting="Measuring",
        message=f"measuring {trial.spec.arm}",
    )


def _visiting(
    trial: TrialFacts,
    pod: PodFacts,
    visit: VisitFacts,
    metrics: MetricsFacts,
    now: float,
    gpus: int,
) -> Step:
    cells = _said(trial, visit)
    failure = next((e for e in visit.events if isinstance(e, VisitFailed)), None)
    finished = next((e for e in visit.events if isinstance(e, VisitEnded)), None)
    if failure is None and finished is None and visit.phase == "Running":
        return _running(trial, cells)
    found = f"{NOT_SWITCHED}: {pod.finding}" if pod.finding is not None else None
    if finished is None:
        cause = f"{failure.reason}: {failure.message}" if failure else visit.message
        cause = found if found is not None and not cause.startswith(NOT_SWITCHED) else cause
        return _again(trial, pod, cause, cells, now, gpus)
    if pod.compiled_at is None:
        return Step(
            waiting="Recording",
            message=f"{trial.spec.arm}: its log cannot be read just now",
            held=True,
        )
    cells = [_undisturbed(cell, pod.compiled_at) for cell in cells]
    if trial.spec.screening or (trial.spec.context_axis and found is not None):
        # Windows that choose what is tested, or whose K is not as planned, are no evidence:
        # Prometheus is not asked.
        return _over(trial, now, gpus, cells=cells, failed=found)
    spoilt = next((c.void for c in cells if c.void is not None), None)
    if spoilt is not None and trial.status.visits < MAX_VISITS:
        return _again(trial, pod, spoilt, cells, now, gpus)
    if all(c.void is not None for c in cells if c.timed):
        return _over(trial, now, gpus, void=f"no window counts: {spoilt}")
    if trial.scraped is None:
        return _held_by_metrics(metrics)
    check = check_counts(cells, trial.scraped, trial.unseen)
    if check != AGREES and _only_behind(cells, trial.scraped):
        if finished.scraped_at and now - finished.scraped_at[-1] < STORING_PATIENCE_S:
            return Step(waiting="Measuring", message=f"{trial.spec.arm}: {check} yet")
        if trial.status.visits < MAX_VISITS:
            return _again(trial, pod, check, cells, now, gpus)
    return _over(trial, now, gpus, cells=cells, check=check)


def _said(trial: TrialFacts, visit: VisitFacts) -> list[Cell]:
    """Return the cells of a visit so far, after those of a screen's earlier visits.

    Each window of a screen stands by itself.
    """
    cells = [event.cell for event in visit.events if isinstance(event, CellClosed)]
    if not trial.spec.screening:
        return cells
    return [*(c for c in trial.status.cells if c.visit < trial.status.visits), *cells]


def _told(trial: TrialFacts) -> dict[str, Any]:
    """Return what a visit said beside its cells, as fields of the status; nothing before it did."""
    found: dict[str, Any] = {}
    for event in trial.visit.events if trial.visit is not None else []:
        if isinstance(event, Fitted):
            found["fit"] = event.fit
        elif isinstance(event, Warmed):
            found |= {"warm_up_seconds": event.seconds, "warm_up_steady": event.steady}
    return found


def _undisturbed(cell: Cell, compiled_at: Sequence[float]) -> Cell:
    """Return a cell, void if the engine compiled something in it, or its load was not held.

    No later window pays for compiling. Crossings keep their first-use costs; they are measured in
    order to show them.
    """
    if cell.void is None and cell.not_held is not None:
        return cell.model_copy(update={"void": cell.not_held})
    steady = cell.profile.kind in ("hold", "open", "depth")
    if cell.void is not None or cell.started_at is None or not steady:
        return cell
    opened = datetime.fromisoformat(cell.started_at).timestamp()
    hit = [at for at in compiled_at if opened <= at <= opened + cell.window_seconds]
    if not hit:
        return cell
    return cell.model_copy(
        update={"void": f"the engine compiled code {len(hit)} times in this window"}
    )


def _running(trial: TrialFacts, cells: list[Cell]) -> Step:
    planned = "" if trial.spec.screening else f" of {len(trial.spec.visit.windows)}"
    message = f"measuring {trial.spec.arm}: {len(cells)}{planned} cells"
    if len(cells) == len(trial.status.cells):
        return Step(waiting="Measuring", message=message)
    status = trial.status.model_copy(update={"cells": cells, **_told(trial)})
    return Step(
        actions=[RecordTrial(trial=trial.name, status=status)],
        waiting="Measuring",
        message=message,
    )


def _again(
    trial: TrialFacts, pod: PodFacts, cause: str, cells: list[Cell], now: float, gpus: int
) -> Step:
    """Repeat the visit; blame the arm only when its server answers no more.

    A screen goes on where it was: what it measured so far is kept.
    """
    fit: Fit | None = _told(trial).get("fit")
    hopeless = cause.startswith(NOT_SWITCHED) or (fit is not None and fit.nothing_left)
    if trial.status.visits < MAX_VISITS and not hopeless:
        kept = cells if trial.spec.screening else []
        status = trial.status.model_copy(update={"cells": kept})
        return Step(
            actions=[
                RecordTrial(trial=trial.name, status=status),
                StopVisit(trial=trial.name),
            ],
            waiting="VisitAgain",
            message=f"{trial.spec.arm}: visit {trial.status.visits} failed ({cause}); once more",
        )
    if cause.startswith(("ServerUnreachable", "Stalled", NOT_SWITCHED)):
        return _over(trial, now, gpus, failed=cause)
    said = cause if hopeless else f"{MAX_VISITS} visits failed: {cause}"
    return _over(trial, now, gpus, void=said)


def _over(
    trial: TrialFacts,
    now: float,
    gpus: int,
    *,
    void: str | None = None,
    failed: str | None = None,
    cells: list[Cell] | None = None,
    check: str | None = None,
) -> Step:
    """Record the end; samples taken before a death are discarded, but for a screen's."""
    if cells is None and trial.spec.screening:
        said = _said(trial, trial.visit) if trial.visit is not None else []
        cells = max(trial.status.cells, said, key=len)
    receipt = trial.status.receipt
    if trial.pod and trial.pod.receipt.plain():
        receipt = trial.pod.receipt
    status: TrialStatus = trial.status.model_copy(
        update={
            "ended_at": rfc3339(now),
            "gpu_seconds": round(gpu_seconds(trial, gpus=gpus, now=now), 1),
            "receipt": receipt,
            "cells": cells or [],
            **_told(trial),
            "device": trial.pod.device if trial.pod else trial.status.device,
            "void": void,
            "failed": failed,
            "check": check,
        }
    )
    return Step(
        actions=[RecordTrial(trial=trial.name, status=status), *clear(trial)],
        waiting="Recording",
        message=f"{trial.spec.arm}: " + (void or failed or f"{len(cells or [])} cells recorded"),
    )


def gpu_seconds(trial: TrialFacts, *, gpus: int, now: float) -> float:
    """Return the GPU-seconds that a launch held, or holds so far."""
    if trial.status.gpu_seconds is not None:
        return trial.status.gpu_seconds
    return gpus * (now - trial.pod.created_at) if trial.pod else 0.0


def clear(trial: TrialFacts) -> list[Action]:
    """Return what takes a launch's load job and pod away."""
    actions: list[Action] = []
    if trial.visit is not None:
        actions.append(StopVisit(trial=trial.name))
    if trial.pod is not None:
        actions.append(StopLaunch(trial=trial.name))
    return actions


def _held_by_metrics(metrics: MetricsFacts) -> Step:
    return Step(
        waiting="MetricsUnavailable",
        message=f"Prometheus at {metrics.url} cannot be asked: {metrics.message}",
        held=True,
    )


AGREES = "Agrees"


def check_counts(
    cells: list[Cell], scraped: Mapping[str, Mapping[str, float]], unseen: str = ""
) -> str:
    """Compare each counted cell's record with the counters that Prometheus has of it.

    Args:
        cells: Records of the load process.
        scraped: Requests by cell and outcome (good, slow, failed).
        unseen: What was asked, where nothing was scraped.

    Returns:
        ``Agrees``, or which cell disagrees and how.
    """
    counting = [cell for cell in cells if cell.void is None]
    for cell in counting:
        counted = scraped.get(cell.cell)
        if counted is None:
            found = sum(each.cell in scraped for each in counting)
            said = f"{found} of {len(counting)} windows have series"
            return f"cell {cell.cell}: Prometheus has no counters of it; {said}" + (
                f": {unseen}" if unseen else ""
            )
        for outcome, requests in _requests(cell).items():
            if counted.get(outcome) != requests:
                return (
                    f"cell {cell.cell}: the record has {requests} {outcome} requests, "
                    f"Prometheus {counted.get(outcome, 'none')}"
                )
    return AGREES


def _only_behind(cells: list[Cell], scraped: Mapping[str, Mapping[str, float]]) -> bool:
    """Say whether scrapes that were missed explain all that differs: they never show too much."""
    return all(
        counted <= _requests(cell).get(outcome, 0)
        for cell in cells
        if cell.void is None
        for outcome, counted in scraped.get(cell.cell, {}).items()
    )


def _requests(cell: Cell) -> dict[str, int]:
    good = cell.good or 0
    return {"good": good, "slow": cell.completed - good, "failed": cell.failed}
