"""What a look at a SpecSchedule comes to: the decision, and the report for status and events."""

from collections.abc import Sequence
from typing import Any

from specschedule.core import launches
from specschedule.core.compare import unfit
from specschedule.core.decode import decode_rates
from specschedule.core.evidence import Launch
from specschedule.core.gate import Gate
from specschedule.core.judge import Judgement
from specschedule.core.observed import Action, Promotion, TrialFacts
from specschedule.core.plan import Cost
from specschedule.core.proposal import Proposals
from specschedule.core.spec import digest_of
from specschedule.core.values import Value


class Report(Value):
    """What a reconcile found, for status, conditions and events."""

    run_id: str | None = None
    stage: str
    started_at: str | None = None
    ended_at: str | None = None
    outcome: str | None = None
    """None while the run goes on."""
    reason: str
    message: str
    held: bool = False
    """Whether something outside the experiment holds it up."""
    plan: Cost | None = None
    progress: dict[str, int] | None = None
    arms: list[dict[str, Any]] = []
    gates: list[Gate] = []
    judgement: Judgement | None = None
    recommendation: str | None = None
    promotion: Promotion | None = None
    proposals: Proposals | None = None
    """What a search found; None before, and without one."""
    superseded: dict[str, Any] | None = None
    """History entry of a run that this one replaced; None when there is none."""


class Decision(Value):
    """What to do now, what to report, and when to look again."""

    actions: list[Action] = []
    report: Report | None
    """None when the object is being deleted: there is nobody to report to."""
    look_again_in: float | None = None
    """Seconds; None when only an event can change anything."""


def as_launch(trial: TrialFacts) -> Launch:
    """Return a trial as evidence."""
    return Launch(
        arm=trial.spec.arm,
        launch=trial.spec.launch,
        round=trial.spec.round,
        position=trial.spec.position,
        attempt=trial.spec.attempt,
        schedule=trial.spec.schedule,
        context_axis=trial.spec.context_axis,
        started_at=trial.status.started_at,
        receipt=trial.status.receipt,
        warm_up_seconds=trial.status.warm_up_seconds,
        fit=trial.status.fit,
        device=trial.status.device,
        cells=trial.status.cells,
        void=trial.status.void,
        failed=trial.status.failed,
    )


def arm_summary(trials: Sequence[TrialFacts]) -> list[dict[str, Any]]:
    """Return by arm: launches, cells, mean goodput (requests/s) by load point, decode rates."""
    summary: list[dict[str, Any]] = []
    for arm in dict.fromkeys(t.spec.arm for t in trials):
        own = [t for t in trials if t.spec.arm == arm]
        counted = [
            cell
            for trial in own
            for cell in trial.status.cells
            if cell.void is None and cell.good is not None and unfit(cell) is None
        ]
        held = [cell for cell in counted if cell.profile.kind == "hold"]
        goodput = []
        for point in sorted({c.profile.concurrency for c in held if c.profile.concurrency}):
            here = [cell for cell in held if cell.profile.concurrency == point]
            plain = [cell for cell in here if cell.plain_load]
            values = [(cell.good or 0) / cell.window_seconds for cell in plain or here]
            mean = round(sum(values) / len(values), 4)
            goodput.append({"at": point, "perSecond": mean, "windows": len(values)})
        entry: dict[str, Any] = {
            "arm": arm,
            "launches": sum(1 for t in own if launches.ended(t) and not t.status.void),
            "cells": len(counted),
            "goodput": goodput,
            "decode": [rate.plain() for rate in decode_rates(counted)],
        }
        faults = [t.status.failed or t.status.void for t in own if t.status.failed or t.status.void]
        if faults:
            entry["faults"] = faults[-3:]
        summary.append(entry)
    return summary


def trial_name(schedule: str, run: str, arm: str, launch: int) -> str:
    """Return the derived name of a SpecTrial: at most 52 characters, so that a Job's pods fit."""
    name = f"{schedule}-{run}-{arm}-{launch}"
    if len(name) <= 52:
        return name
    return f"{name[:43].rstrip('-')}-{digest_of(name)[:8]}"
