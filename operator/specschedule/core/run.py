"""One look at a run that is not over: preflight, the next launches, the verdict, the promotion.

The stages are gone through in order; the first that is not over answers.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from specschedule.core import gates, judge, launches, plan, search
from specschedule.core.arms import Arm, arms
from specschedule.core.decision import Decision, Report, arm_summary, as_launch, trial_name
from specschedule.core.gate import Gate, fails, merged
from specschedule.core.judge import Judgement
from specschedule.core.observed import (
    Action,
    CreateTrial,
    Observed,
    Promotion,
    TrialFacts,
    TrialSpec,
)
from specschedule.core.plan import Cost, LaunchRecord, Slot, Start
from specschedule.core.proposal import Proposals
from specschedule.core.refusal import rejected, superseded, unwanted
from specschedule.core.regime import ServingRegime
from specschedule.core.schedule import ScheduleError
from specschedule.core.spec import Mode, Spec
from specschedule.core.target import ServerFacts, TargetFacts, Unreadable
from specschedule.core.visit import Visit, as_asked
from specschedule.core.workload import Workload

LOOK_S = 2.0
"""A running experiment is looked at this often when nothing happens; events come in between."""

HELD_LOOK_S = 10.0
"""What is held by something outside is looked at less often."""

CHANGED_BY_OTHERS = (
    "the target's speculative argument was changed by somebody else during the run: its evidence "
    "is void"
)

WAITING_LOOK_S = 60.0
"""An approval arrives as an event; this is only a safety net."""


def may_write(observed: Observed, spec: Spec, run: str) -> bool:
    """Say whether the mode, and an approval where it asks for one, lets the target be written."""
    return spec.mode is Mode.AUTO or (
        spec.mode is Mode.APPROVE
        and observed.schedule.approved == run
        and not _ended_before(observed, run)
    )


def _ended_before(observed: Observed, run: str) -> bool:
    """Say whether a run had ended when another spec came between: its approval is used up then."""
    return any(
        entry.get("runId") == run and entry.get("outcome") != "Superseded"
        for entry in observed.schedule.status.get("history") or []
    )


class Run:
    """One look at a run that is not over. Holds what every step of the decision needs."""

    def __init__(
        self,
        observed: Observed,
        spec: Spec,
        run: str,
        now: float,
        matrix: Sequence[gates.MatrixRow],
    ) -> None:
        self.observed = observed
        self.spec = spec
        self.run = run
        self.now = now
        self.matrix = matrix
        self.trials = sorted(
            (t for t in observed.trials if t.spec.run_id == run), key=lambda t: t.spec.launch
        )
        self.screens = [t for t in self.trials if t.spec.screening]
        self.rounds = [t for t in self.trials if not t.spec.screening]
        self.search: search.Look | None = None
        self.started_at = self._started_at()
        self.answers: list[Gate] = []
        self.cost: Cost | None = None
        self.arms: list[Arm] = []
        self.server: ServerFacts | None = None
        """The incumbent's, once it could be read."""

    def _started_at(self) -> float:
        status = self.observed.schedule.status
        if status.get("runId") == self.run and status.get("startedAt"):
            return _unix(status["startedAt"])
        started = [t.status.started_at for t in self.trials if t.status.started_at]
        return _unix(min(started)) if started else self.now

    def decide(self) -> Decision:
        """Go through the stages in order; the first that is not over answers."""
        target = self.observed.target
        if isinstance(target, Unreadable):
            if self.trials:
                return self._finish("Aborted", target.reason, f"in mid-run: {target.message}")
            return self._hold_or_expire("Preflight", target.reason, target.message)
        if self.trials:
            changed = self._target_changed(target, self.trials[0].spec)
            if changed is not None:
                return self._finish("Aborted", "TargetChanged", changed)
        if not isinstance(target.server, Unreadable):
            server = self._incumbent(target.server)
            target = target.model_copy(update={"server": server})
            self.server = server
            self._search(server)
        self.answers = gates.before_pods(
            self.spec,
            target,
            matrix=self.matrix,
            trace=self._workload.trace,
            delivered=self.observed.probes,
        )
        refused = gates.refused(self.answers)
        if refused is not None and not self.trials:
            return self._reject(refused)
        if isinstance(target.server, Unreadable):
            return self._finish("Aborted", target.server.reason, target.server.message)
        if self.observed.metrics.url is None:
            return rejected(
                self.observed,
                self.run,
                self.now,
                "PrometheusNotConfigured",
                "spec.prometheus.url is not set and the operator has no default: goodput cannot be "
                "read; set it to the base URL of the Prometheus that scrapes this namespace",
                self.answers,
            )
        if self.observed.other_run is not None:
            return self._hold_or_expire(
                "Preflight",
                "TargetBusy",
                f"SpecSchedule {self.observed.other_run} is running on the same target and came "
                "first; this one waits",
            )
        if self.observed.load is not None:
            missing = self.observed.load
            return self._hold_or_expire("Preflight", missing.reason, missing.message)
        server = target.server
        try:
            versions = (trial.status.receipt.engine_version for trial in self.trials)
            told = next(filter(None, versions), None)
            self.arms = arms(self.spec, server, version=told, delivered=self.observed.probes)
        except ScheduleError as error:
            return self._reject(fails("schedule", error.reason, error.message))
        self.cost = plan.cost(
            self.spec,
            self.arms,
            boot_seconds=target.boot_seconds,
            gpus=target.gpus,
            done=[as_launch(t) for t in self.rounds],
            workload=self._workload,
            contexts=self.search.contexts if self.search else None,
        )
        if self.search is not None:
            self.cost = self.search.with_cost(self.cost, target)
            if self.search.found is not None and not self.search.found.candidates:
                return self._nothing_to_test(self.search.found)
        return self._measure(target, server)

    def _search(self, server: ServerFacts) -> None:
        """Put what a search found in place of the candidates; a stand-in while it looks."""
        if self.spec.search is None:
            return
        status = self.observed.schedule.status
        known = status.get("proposals") if status.get("runId") == self.run else None
        self.search = search.look(
            self.spec,
            server,
            [_record(t) for t in self.screens],
            uid=self.observed.schedule.uid,
            run=self.run,
            probes=self.observed.probes,
            serving=self._serving,
            proposed=None if known is None else Proposals.model_validate(known),
        )
        self.spec = self.search.spec

    def _nothing_to_test(self, found: search.Found) -> Decision:
        if found.instead is None:
            return self._finish("Inconclusive", "NothingMeasured", found.why)
        return self._finish(
            "NotPromoted", "NothingProposed", found.why, recommendation=found.recommendation
        )

    def _reject(self, refused: Gate) -> Decision:
        return rejected(
            self.observed, self.run, self.now, refused.reason, refused.message, self.answers
        )

    def _incumbent(self, server: ServerFacts) -> ServerFacts:
        """Return the server as it was when the run began."""
        if not self.trials:
            return server
        first = self.trials[0].spec
        return server.model_copy(
            update={"speculative": first.incumbent, "arguments": first.incumbent_arguments}
        )

    def _target_changed(self, target: TargetFacts, first: TrialSpec) -> str | None:
        """Say how the target differs from what the run began with; evidence is void then."""
        if target.template_hash != first.template_hash:
            return "the target's pod template changed during the run: its evidence is void"
        if isinstance(target.server, Unreadable):
            return target.server.message
        if target.server.arguments == first.incumbent_arguments:
            return None
        if self._serves_a_candidate(target.server):
            return None
        return CHANGED_BY_OTHERS

    def _serves_a_candidate(self, server: ServerFacts) -> bool:
        """Say whether a promotion of ours is in force, whose record is no longer in the status."""
        allowed = self.spec.mode is Mode.AUTO or self.observed.schedule.approved == self.run
        return allowed and any(
            t.spec.arm.startswith("candidate-") and t.spec.speculative == server.speculative
            for t in self.trials
        )

    def _measure(self, target: TargetFacts, server: ServerFacts) -> Decision:
        open_trials = [t for t in self.trials if not launches.ended(t)]
        if open_trials and self._overspent(target):
            spent = plan.Finished(reason="BudgetExhausted", message=self._spent())
            return self._conclude(target, server, spent)
        following = self._following()
        if self._expired() and open_trials:
            return self._expire_over(target, server, following)
        disagreeing = [t for t in self.trials if t.status.check not in (None, launches.AGREES)]
        if disagreeing:
            return self._finish("Inconclusive", "MetricsDisagree", disagreeing[0].status.check)
        steps = [
            launches.next_step(t, self.observed.metrics, gpus=target.gpus, now=self.now)
            for t in open_trials
        ]
        slots: list[Slot] = []
        if isinstance(following, Start):
            free = self.spec.experiment.parallelism - len(open_trials)
            slots = following.slots[: max(0, free)]
        actions: list[Action] = [*unwanted(self.observed, self.run)]
        for trial in self.trials:
            if launches.ended(trial):
                actions.extend(launches.clear(trial))
        for step in steps:
            actions.extend(step.actions)
        if slots and self._budget_is_spent(target):
            following = plan.Finished(reason="BudgetExhausted", message=self._spent())
            slots = []
        if isinstance(following, plan.Finished) and not open_trials:
            return self._conclude(target, server, following)
        if slots and self._expired():
            return self._expire_over(target, server, following)
        if slots and self.trials and self._target_serves_otherwise():
            return self._finish("Aborted", "TargetChanged", CHANGED_BY_OTHERS)
        between_arms = self._between_arms(server) if slots and self.rounds else []
        failed = gates.refused(between_arms)
        if failed is not None:
            # More launches would cost GPUs and change nothing.
            self.answers = merged(self.answers, between_arms)
            return self._finish("NotPromoted", failed.reason, failed.message, self._judge())
        held = next((s for s in steps if s.held), None)
        if slots and not self.observed.metrics.available:
            metrics = self.observed.metrics
            return self._hold_or_expire(
                self._stage,
                "MetricsUnavailable",
                f"Prometheus at {metrics.url} cannot be asked: {metrics.message}",
                actions,
            )
        actions.extend(self._create(slot, target, server) for slot in slots)
        said = held or (steps[0] if steps else None)
        report = self._report(
            stage=self._stage,
            reason=said.waiting if said else "Launching",
            message=said.message if said else f"launching {slots[0].arm}",
            held=held is not None,
        )
        again = HELD_LOOK_S if held else (0.0 if slots else LOOK_S)
        return Decision(actions=actions, report=report, look_again_in=again)

    @property
    def _stage(self) -> str:
        return "Screening" if self.search and self.search.wanted else "Measuring"

    def _following(self) -> plan.Next:
        if self.search is not None and self.search.wanted is not None:
            return self.search.wanted
        done = [_record(t) for t in self.rounds]
        return plan.next_launches(
            self.spec,
            self.arms,
            done,
            run=self.run,
            screens=len(self.screens),
            workload=self._workload,
            contexts=self.search.contexts if self.search else None,
        )

    def _create(self, slot: Slot, target: TargetFacts, server: ServerFacts) -> CreateTrial:
        arms = self.search.arms if self.search and slot.screen else self.arms
        arm = next(a for a in arms if a.name == slot.arm)
        visit = Visit(
            run=self.run,
            arm=slot.arm,
            launch=slot.launch,
            round=slot.round,
            url="http://pending",
            windows=slot.windows,
            screen=slot.screen,
            **({"scrapes": 0} if slot.screen else {}),
            **as_asked(self.spec.slo, self.spec.load),
        )
        return CreateTrial(
            name=trial_name(self.observed.schedule.name, self.run, slot.arm, slot.launch),
            spec=TrialSpec(
                run_id=self.run,
                arm=slot.arm,
                launch=slot.launch,
                round=slot.round,
                position=slot.position,
                attempt=slot.attempt,
                schedule=arm.schedule,
                context_axis=arm.context_axis,
                speculative=arm.speculative,
                unchanged=arm.unchanged,
                graph_mode=arm.graph_mode,
                node=slot.node,
                visit=visit,
                template_hash=target.template_hash,
                incumbent=server.speculative,
                incumbent_arguments=server.arguments,
                bar_digest=self.spec.bar.digest(),
                serving=self.observed.serving,
                workload=None if self.trials else self.observed.workload,
            ),
        )

    def _conclude(
        self, target: TargetFacts, server: ServerFacts, finished: plan.Finished
    ) -> Decision:
        # A launch that is cut short tells nothing, and nothing is missing without it.
        self.rounds = [t for t in self.rounds if launches.ended(t)]
        self.answers = merged(self.answers, self._between_arms(server))
        judgement = self._judge()
        cut_short = finished.reason in ("BudgetExhausted", "DeadlineExceeded")
        if cut_short and judgement.outcome == "Inconclusive":
            return self._finish("Inconclusive", finished.reason, finished.message, judgement)
        blocking = gates.blocking(self.answers)
        better = next((v for v in judgement.verdicts if v.verdict == "Better"), None)
        if better is None:
            return self._finish(judgement.outcome, judgement.reason, judgement.message, judgement)
        if blocking is not None:
            outcome = gates.withheld(blocking)
            withheld = judgement.model_copy(update={"recommendation": ""})
            return self._finish(outcome, blocking.reason, blocking.message, withheld)
        return self._better(target, server, better, judgement)

    def _judge(self) -> Judgement:
        """Judge the launches that are over."""
        evidence = [as_launch(t) for t in self.rounds if launches.ended(t)]
        return judge.judge(self.spec, evidence, server=self.server, serving=self._serving)

    def _so_far(self, over: int) -> Judgement | None:
        """Return what so many launches show: once an arm was relaunched, there is a forecast.

        None where they were judged before: what a report leaves out stays as it was.
        """
        status = self.observed.schedule.status
        judged = (status.get("progress") or {}).get("launchesDone")
        if status.get("runId") == self.run and judged == over:
            return None
        judgement = self._judge()
        return judgement if judgement.noise_floor else None

    @property
    def _serving(self) -> ServingRegime | None:
        """What the serving pods did when the run began: its first launch keeps it."""
        return self.trials[0].spec.serving if self.trials else self.observed.serving

    @property
    def _workload(self) -> Workload:
        """What the load sends, as it was when the run began: prompts that grow change no plan."""
        if not self.trials:
            return self.observed.workload
        return self.trials[0].spec.workload or Workload()

    def _between_arms(self, server: ServerFacts) -> list[Gate]:
        target = self.observed.target
        return gates.between_arms(
            self.spec,
            [as_launch(t) for t in self.rounds],
            server,
            serving_images=None if isinstance(target, Unreadable) else target.image_ids,
        )

    def _better(
        self,
        target: TargetFacts,
        server: ServerFacts,
        better: judge.Verdict,
        judgement: Judgement,
    ) -> Decision:
        arm = next(a for a in self.arms if a.name == f"candidate-{better.candidate}")
        if self.spec.mode is Mode.PROPOSE or arm.context_axis:
            return self._finish("Proposed", better.reason, judgement.message, judgement)
        if not (may_write(self.observed, self.spec, self.run) or self._target_serves_otherwise()):
            schedule = self.observed.schedule
            remedy = (
                f"to promote it: kubectl annotate specschedule {schedule.name} "
                f"-n {schedule.namespace} specschedule.dev/approve={self.run}"
            )
            if _ended_before(self.observed, self.run):
                remedy = (
                    "this run had ended before the spec was changed and changed back, and an "
                    f"approval counts once; {self.observed.schedule.again}"
                )
            report = self._report(
                stage="AwaitingApproval",
                reason="AwaitingApproval",
                message=f"{better.message}; {remedy}",
                judgement=judgement,
            )
            return Decision(report=report, look_again_in=WAITING_LOOK_S)
        promotion = Promotion(
            candidate=better.candidate,
            target=self.spec.target.name,
            speculative=arm.speculative,
            previous=server.speculative,
            previous_arguments=server.arguments,
            field=server.arguments_field,
            template_hash=target.template_hash,
            started_at=self.now,
        )
        report = self._report(
            stage="Promoting",
            reason="RollingOut",
            message=better.message,
            judgement=judgement,
            promotion=promotion,
        )
        return Decision(report=report, look_again_in=0.0)

    def _expired(self) -> bool:
        return self.now - self.started_at > self.spec.experiment.deadline

    def _expire(self) -> Decision:
        last = self.observed.schedule.status.get("message") or "nothing was measured"
        reason = self.observed.schedule.status.get("reason") or "DeadlineExceeded"
        if reason not in ("MetricsUnavailable", "Unschedulable", "Refused", "TargetNotFound"):
            reason = "DeadlineExceeded"
        return self._finish(
            "Inconclusive",
            reason,
            f"not decided within experiment.deadline ({self.spec.experiment.deadline:.0f} s); "
            f"last: {last}",
            self._judge(),
        )

    def _expire_over(
        self, target: TargetFacts, server: ServerFacts, following: plan.Next
    ) -> Decision:
        """End at the deadline; what was decided before is not undone by a watched loss."""
        if not isinstance(following, Start) or not following.decided:
            return self._expire()
        limit = f"experiment.deadline ({self.spec.experiment.deadline:.0f} s) is over"
        over = plan.Finished(reason="DeadlineExceeded", message=limit)
        decision = self._conclude(target, server, over)
        cleared = [action for trial in self.trials for action in launches.clear(trial)]
        more = [action for action in decision.actions if action not in cleared]
        return decision.model_copy(update={"actions": [*cleared, *more]})

    def _hold_or_expire(
        self, stage: str, reason: str, message: str, actions: Sequence[Action] = ()
    ) -> Decision:
        if self._expired():
            return self._expire()
        report = self._report(stage=stage, reason=reason, message=message, held=True)
        return Decision(actions=list(actions), report=report, look_again_in=HELD_LOOK_S)

    def _held(self, target: TargetFacts) -> float:
        """Return the GPU-seconds that the run has held so far."""
        return sum(launches.gpu_seconds(t, gpus=target.gpus, now=self.now) for t in self.trials)

    def _target_serves_otherwise(self) -> bool:
        target = self.observed.target
        return (
            isinstance(target, TargetFacts)
            and isinstance(target.server, ServerFacts)
            and target.server.arguments != self.trials[0].spec.incumbent_arguments
        )

    def _overspent(self, target: TargetFacts) -> bool:
        limit = self.spec.experiment.budget.gpu_hours
        return limit is not None and self._held(target) / 3600 > limit

    def _budget_is_spent(self, target: TargetFacts) -> bool:
        """Say whether one more launch would break the budget."""
        assert self.cost is not None
        left = plan.budget_left(self.spec, self.cost, gpu_seconds=self._held(target))
        return left.launches is not None and left.launches < 1

    def _spent(self) -> str:
        return f"experiment.budget.gpuHours ({self.spec.experiment.budget.gpu_hours:g}) is used up"

    def _finish(
        self,
        outcome: str,
        reason: str,
        message: str | None,
        judgement: Judgement | None = None,
        recommendation: str | None = None,
    ) -> Decision:
        """End the run. Without a judgement, nothing that was shown on the way stands any more."""
        stands = judgement or Judgement(
            outcome="Inconclusive", reason=reason, message=message or ""
        )
        actions = [*unwanted(self.observed, self.run)]
        for trial in self.trials:
            actions.extend(launches.clear(trial))
        report = self._report(
            stage="Ended",
            reason=reason,
            message=message or "",
            outcome=outcome,
            ended_at=launches.rfc3339(self.now),
            judgement=stands,
            recommendation=recommendation or stands.recommendation,
        )
        return Decision(actions=actions, report=report, look_again_in=LOOK_S)

    def _report(self, *, stage: str, reason: str, message: str, **more: Any) -> Report:
        over = [t for t in self.trials if launches.ended(t)]
        planned = self.cost.launches if self.cost else 0
        if "judgement" not in more:
            more["judgement"] = self._so_far(len(over))
        return Report(
            run_id=self.run,
            stage=stage,
            started_at=launches.rfc3339(self.started_at),
            reason=reason,
            message=message,
            plan=self.cost,
            progress={"launchesDone": len(over), "launchesPlanned": max(planned, len(over))},
            arms=arm_summary(self.trials),
            gates=self.answers,
            proposals=self.search.proposals if self.search else None,
            superseded=superseded(self.observed, self.run, self.now),
            **more,
        )


def _record(trial: TrialFacts) -> LaunchRecord:
    return LaunchRecord(**dict(as_launch(trial)), over=launches.ended(trial))


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
