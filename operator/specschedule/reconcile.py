"""Observe, decide, act, report: one call for one object, in either world.

A call may be repeated, skipped or cut off anywhere; the next one finishes the work.
"""

import logging
from collections.abc import Callable

from specschedule.api.status import status_of
from specschedule.core.decide import decide
from specschedule.core.decision import Report
from specschedule.core.observed import Observed
from specschedule.ports import Conflict, Key, Refused, World
from specschedule.vllm_facts import matrix

log = logging.getLogger(__name__)

CONFLICT_LOOK_S = 0.5
REFUSED_LOOK_S = 15.0

GOOD_NEWS = ("Promoted", "Proposed", "NotPromoted")


class Reconciler:
    """Brings one SpecSchedule a step forward per call."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self._world = world
        self._clock = clock
        self._refused: dict[Key, tuple[int, float]] = {}
        """Until when a generation of an object is left alone after a refused write."""

    def __call__(self, key: Key) -> float | None:
        """Carry out the next step; return the seconds until the next look, or None."""
        observed = self._world.observe(key)
        if observed is None:
            self._refused.pop(key, None)
            return None
        now = self._clock()
        generation, until = self._refused.pop(key, (0, 0.0))
        schedule = observed.schedule
        if generation == schedule.generation and now < until and not schedule.deleting:
            # What was written before the refusal calls again at once; the refusal stands.
            self._refused[key] = (generation, until)
            return until - now
        decision = decide(observed, now, matrix=matrix.ROWS)
        report = decision.report
        again = decision.look_again_in
        for action in decision.actions:
            try:
                self._world.perform(key, action)
            except Conflict as conflict:
                log.info("%s/%s: %s; looking again", *key, conflict)
                return CONFLICT_LOOK_S
            except Refused as refused:
                log.warning("%s/%s: %s refused: %s", *key, type(action).__name__, refused)
                if report is None:
                    # The object is being deleted: what is refused must not keep it.
                    continue
                if report.outcome is None:
                    # Without the new record of a promotion: the write was not made.
                    said = {"held": True, "reason": "Refused", "message": str(refused)}
                    report = report.model_copy(update={**said, "promotion": None})
                again = REFUSED_LOOK_S
                self._refused[key] = (schedule.generation, now + REFUSED_LOOK_S)
                break
        if report is not None:
            self._report(key, observed, report, now)
        return again

    def _report(self, key: Key, observed: Observed, report: Report, now: float) -> None:
        schedule = observed.schedule
        status = status_of(report, schedule, now)
        self._world.report(key, status, resource_uid=schedule.uid)
        before = schedule.status
        said = (report.run_id, report.stage, report.outcome, report.reason)
        if said != tuple(before.get(field) for field in ("runId", "stage", "outcome", "reason")):
            bad_news = report.held or (
                report.outcome is not None and report.outcome not in GOOD_NEWS
            )
            what = report.outcome or report.reason
            log.log(
                logging.WARNING if bad_news else logging.INFO,
                "%s/%s: run %s: %s: %s",
                *(*key, report.run_id, what, report.message),
            )
            self._world.announce(key, what, report.message, warning=bad_news)
