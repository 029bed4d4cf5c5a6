"""One pure decision: from everything seen of a SpecSchedule to what to do and what to report.

Stages are computed from facts and never trusted from status. Three things in the status are
facts of their own: the outcome of the present run (ended runs stay ended), when it started, and
the record of a promotion. All else is rebuilt from the target and the SpecTrials.
"""

from collections.abc import Sequence
from typing import Any

from specschedule.core import gates, launches, rollout
from specschedule.core.decision import Decision, Report
from specschedule.core.observed import (
    DeleteTrial,
    Observed,
    Promotion,
    SetFinalizer,
)
from specschedule.core.refusal import rejected, unwanted
from specschedule.core.run import LOOK_S, Run, may_write
from specschedule.core.spec import Mode, run_id
from specschedule.core.target import Unreadable


def decide(observed: Observed, now: float, *, matrix: Sequence[gates.MatrixRow]) -> Decision:
    """Decide the next step of one SpecSchedule.

    Args:
        observed: Everything seen at this moment.
        now: Unix seconds.
        matrix: What is known of vLLM's versions, as data (see ``vllm_facts.matrix``).
    """
    schedule = observed.schedule
    if schedule.deleting:
        return _deleted(observed)
    in_flight = _promotion_in_flight(schedule.status)
    if in_flight is not None and not _withdrawn(observed, in_flight):
        return _promote(observed, in_flight, now)
    if isinstance(schedule.spec, Unreadable):
        return rejected(observed, None, now, schedule.spec.reason, schedule.spec.message, [])
    run = run_id(schedule.uid, schedule.spec, schedule.retry)
    ended = schedule.status.get("runId") == run and schedule.status.get("outcome")
    # What was proposed goes on to promotion, by its own evidence, once the mode lets it.
    held_back = ended == "Proposed" and schedule.spec.mode is not Mode.PROPOSE
    if ended and (not held_back or _needs_our_scheduler(observed, run)):
        return _ended(observed, run)
    return Run(observed, schedule.spec, run, now, matrix).decide()


def _needs_our_scheduler(observed: Observed, run: str) -> bool:
    """Say whether what a run proposed needs a scheduler that a promotion cannot bring."""
    verdicts = observed.schedule.status.get("verdict") or []
    better = {f"candidate-{v['candidate']}" for v in verdicts if v["verdict"] == "Better"}
    launched = (trial.spec for trial in observed.trials if trial.spec.run_id == run)
    return any(spec.context_axis and spec.arm in better for spec in launched)


def _deleted(observed: Observed) -> Decision:
    """Children go with their owner; only a promotion in flight needs a hand."""
    if not observed.schedule.finalizer:
        return Decision(report=None)
    in_flight = _promotion_in_flight(observed.schedule.status)
    if in_flight is None:
        return Decision(actions=[SetFinalizer(present=False)], report=None)
    return Decision(actions=rollout.on_deletion(in_flight, observed.target), report=None)


def _promotion_in_flight(status: dict[str, Any]) -> Promotion | None:
    if status.get("promotion") and not status.get("outcome"):
        return Promotion.model_validate(status["promotion"])
    return None


def _withdrawn(observed: Observed, promotion: Promotion) -> bool:
    """Say whether the user took back a promotion of which nothing is written yet."""
    schedule, target = observed.schedule, observed.target
    if isinstance(schedule.spec, Unreadable) or isinstance(target, Unreadable):
        return False
    if isinstance(target.server, Unreadable) or promotion.written or promotion.reverting:
        return False
    if target.server.speculative != promotion.previous:
        return False
    run = run_id(schedule.uid, schedule.spec, schedule.retry)
    return run != schedule.status.get("runId") or not may_write(observed, schedule.spec, run)


def _ended(observed: Observed, run: str) -> Decision:
    """An ended run stays ended; leftovers of a killed operator are cleared."""
    status = observed.schedule.status
    actions = unwanted(observed, run)
    for trial in observed.trials:
        if trial.spec.run_id == run:
            actions.extend(launches.clear(trial))
            if not launches.ended(trial):
                actions.append(DeleteTrial(trial=trial.name))
    if observed.schedule.finalizer:
        actions.append(SetFinalizer(present=False))
    report = Report.model_validate(
        {
            "runId": run,
            "stage": "Ended",
            "outcome": status["outcome"],
            "reason": status.get("reason") or status["outcome"],
            "message": status.get("message") or "",
        }
    )
    return Decision(actions=actions, report=report)


def _promote(observed: Observed, promotion: Promotion, now: float) -> Decision:
    """Finish a promotion in flight, whatever else changed meanwhile."""
    spec = observed.schedule.spec
    deadline = 600.0 if isinstance(spec, Unreadable) else spec.rollout.deadline
    status = observed.schedule.status
    step = rollout.next_step(
        promotion,
        observed.target,
        deadline=deadline,
        now=now,
        last=status.get("message") or "nothing was said",
    )
    report = Report.model_validate(
        {
            "runId": status.get("runId"),
            "stage": "Ended" if step.outcome else "Promoting",
            "endedAt": launches.rfc3339(now) if step.outcome else None,
            "outcome": step.outcome,
            "reason": step.reason,
            "message": step.message,
            "promotion": step.promotion,
        }
    )
    return Decision(actions=step.actions, report=report, look_again_in=LOOK_S)
