"""From what a reconcile found to the status of a SpecSchedule: a pure function.

A report says only what was looked at this time. What it leaves out about the same run stays as
stored; nothing of another run does, but for the history.
"""

from typing import Any

from specschedule.api.conditions import conditions
from specschedule.api.v1alpha1 import Status
from specschedule.core.decision import Report
from specschedule.core.launches import rfc3339
from specschedule.core.observed import ScheduleFacts
from specschedule.core.spec import Spec

SET_ONCE = ("startedAt", "endedAt")
"""Times of a run that never change."""

ENDED = ("outcome", "endedAt")
"""What only a run that is over has."""

JUDGED = ("noiseFloor", "verdict", "tax", "watch", "notes")
"""What a judgement says as a whole: nothing of an earlier one stays beside it."""


def status_of(report: Report, schedule: ScheduleFacts, now: float) -> dict[str, Any]:
    """Return the whole status to store.

    Args:
        report: What was found.
        schedule: The object, with its status as stored.
        now: Unix seconds.

    Raises:
        pydantic.ValidationError: The report says something that the CRD has no place for.
    """
    stored = schedule.status
    kept = stored if _is_of_this_run(report, schedule) else {}
    if report.outcome is None:
        # A run that was proposed goes on once its mode lets the target be written.
        kept = {field: value for field, value in kept.items() if field not in ENDED}
    if report.judgement is not None:
        kept = {field: value for field, value in kept.items() if field not in JUDGED}
    status = kept | _said(report, schedule, now)
    status |= {field: kept[field] for field in SET_ONCE if field in kept}
    history = [entry for entry in (report.superseded, *stored.get("history", [])) if entry]
    if isinstance(schedule.spec, Spec):
        history = history[: schedule.spec.history_limit]
    return status | {"history": history}


def _is_of_this_run(report: Report, schedule: ScheduleFacts) -> bool:
    stored = schedule.status
    if report.run_id is None:
        # A spec that cannot be read has no run id; its generation says which one it is.
        return "runId" not in stored and stored.get("observedGeneration") == schedule.generation
    return stored.get("runId") == report.run_id


def _said(report: Report, schedule: ScheduleFacts, now: float) -> dict[str, Any]:
    judgement = report.judgement
    said = Status.model_validate(
        {
            "observedGeneration": schedule.generation,
            "runId": report.run_id,
            "stage": report.stage,
            "startedAt": report.started_at,
            "endedAt": report.ended_at,
            "plan": report.plan,
            "progress": report.progress,
            "arms": report.arms,
            "gates": report.gates,
            "noiseFloor": judgement.noise_floor if judgement else [],
            "verdict": judgement.verdicts if judgement else [],
            "tax": judgement.tax if judgement else [],
            "watch": judgement.watch if judgement else [],
            "notes": judgement.notes if judgement else [],
            "outcome": report.outcome,
            "reason": report.reason,
            "message": report.message,
            "recommendation": report.recommendation or None,
            "promotion": report.promotion,
            "proposals": report.proposals,
            "conditions": conditions(
                report.outcome,
                report.reason,
                report.message,
                held=report.held,
                generation=schedule.generation,
                now=rfc3339(now),
                previous=schedule.status.get("conditions", []),
            ),
        }
    ).plain()
    return {field: value for field, value in said.items() if value != []}
