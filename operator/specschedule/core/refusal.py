"""What a run leaves alone or takes away before it starts: refusals, and what others left behind."""

from typing import Any

from specschedule.core import launches
from specschedule.core.decision import Decision, Report
from specschedule.core.gate import Gate
from specschedule.core.observed import Action, DeleteTrial, Observed


def unwanted(observed: Observed, run: str | None) -> list[Action]:
    """Take away what no run needs: every pod and job, and trials that nobody remembers."""
    remembered = {entry.get("runId") for entry in observed.schedule.status.get("history") or []}
    actions: list[Action] = []
    for trial in observed.trials:
        if trial.spec.run_id == run:
            continue
        if not launches.ended(trial) or trial.spec.run_id not in remembered:
            actions.append(DeleteTrial(trial=trial.name))
        else:
            actions.extend(launches.clear(trial))
    return actions


def rejected(
    observed: Observed,
    run: str | None,
    now: float,
    reason: str,
    message: str,
    answers: list[Gate],
) -> Decision:
    """Refuse a run for good, before any pod."""
    if run is not None and observed.schedule.again:
        message = f"{message} ({observed.schedule.again})"
    return Decision(
        actions=unwanted(observed, None),
        report=Report(
            run_id=run,
            stage="Ended",
            started_at=launches.rfc3339(now),
            ended_at=launches.rfc3339(now),
            outcome="Rejected",
            reason=reason,
            message=message,
            gates=answers,
            superseded=superseded(observed, run, now),
        ),
    )


def superseded(observed: Observed, run: str | None, now: float) -> dict[str, Any] | None:
    """Return the history entry of the run in status that this one replaces."""
    status = observed.schedule.status
    before = status.get("runId")
    if not before or before == run:
        return None
    ended = status.get("outcome")
    entry = {
        "runId": before,
        "outcome": ended or "Superseded",
        "reason": status.get("reason") if ended else "SpecChanged",
        "startedAt": status.get("startedAt"),
        "endedAt": status.get("endedAt") or launches.rfc3339(now),
        "recommendation": status.get("recommendation"),
        "watch": [f"{seen['candidate']}: {seen['message']}" for seen in status.get("watch") or []],
    }
    return {key: value for key, value in entry.items() if value not in (None, [])}
