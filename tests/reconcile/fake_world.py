"""A world in virtual time at the port: launches run the simulated engine's physics.

It keeps objects as a cluster would, enforces the same preconditions, and can be told to die after
any action, to lose a status, to preempt a pod, or to lose its Prometheus.
"""

import zlib
from typing import Any

from specschedule.core.context_axis import CLASS
from specschedule.core.evidence import Cell, Launch, Outputs, PrefixCache, Receipt
from specschedule.core.observed import (
    CreateTrial,
    DeleteTrial,
    MetricsFacts,
    Observed,
    PodFacts,
    RecordTrial,
    RestoreArguments,
    ScheduleFacts,
    SetFinalizer,
    SetSpeculative,
    StartLaunch,
    StartVisit,
    StopLaunch,
    StopVisit,
    TrialFacts,
    TrialSpec,
    TrialStatus,
    VisitFacts,
)
from specschedule.core.regime import ServingRegime
from specschedule.core.schedule import ROWS
from specschedule.core.screening import next_window
from specschedule.core.spec import Spec
from specschedule.core.target import RolloutFacts, ServerFacts, TargetFacts, Unreadable
from specschedule.core.visit import CellClosed, Visit, VisitEnded, VisitFailed, Window
from specschedule.core.workload import Workload
from specschedule.ports import Conflict, Key, Refused
from specschedule.sim import virtual
from specschedule.sim.worlds import WORLDS

KEY = Key("llm", "chat")
BOOT_S = 5.0
VISIT_S = 30.0


_SIMULATED: dict[tuple[str, ...], Launch] = {}
"""Launches are drawn from their names, so a second world sees the same ones."""


def _load(window: Window) -> virtual.Load:
    """The requests of a window; contexts that it mixes are all of their mean length."""
    lengths = window.profile.contexts or [window.profile.context or 64]
    prompt = sum(lengths) // len(lengths)
    return virtual.Load(requests=20, prompt_tokens=prompt, output_tokens=32)


class Killed(BaseException):
    """The operator's process died right after an action."""


class FakeWorld:
    def __init__(self, spec: dict[str, Any], *, physics: str, incumbent: dict[str, Any] | None):
        self.now = 10_000.0
        self.physics = WORLDS[physics]
        self.spec: Spec | Unreadable = Spec.model_validate(spec)
        self.generation = 1
        self.uid = "uid-1"
        self.status: dict[str, Any] = {}
        self.finalizer = False
        self.deleting = False
        self.approved: str | None = None
        self.speculative = incumbent
        self.template_hash = "template-1"
        self.target_version = 1
        self.target_missing = False
        self.rollout_at: float | None = None
        self.rollout_s = 20.0
        self.rollout_fails_with: str | None = None
        self.data_parallel = 1
        self.trials: dict[str, tuple[TrialSpec, TrialStatus]] = {}
        self.pods: dict[str, float] = {}
        self.pod_ends: dict[str, tuple[str, str]] = {}
        self.pending: tuple[str, str] | None = None
        self.visits: dict[str, tuple[float, Launch]] = {}
        self.prometheus_down = False
        self.quota_full = False
        self.refused: list[StartVisit] = []
        self.miscount = False
        self.images: dict[str, str] = {}
        self.missing: Unreadable | None = None
        self.performed: list[Any] = []
        self.announced: list[tuple[str, bool]] = []
        self.die_after: int | None = None
        self.refuses: dict[str, str] = {}
        """Arms that end while they boot, and their last words."""
        self.screen_dies_after: int | None = None
        """Windows after which the first visit of each screening launch fails."""
        self.traffic_stops_from: int | None = None
        """Number of the launch from which on the tokens stop half-way through a visit."""
        self.probe_never_switches = False
        self.finds: dict[str, str] = {}
        """What the scheduler of an arm's launches wrote into its log during the visit."""
        self.scheduler_class: str | None = None
        self.probes = True
        """Whether launches can carry a scheduler of ours."""
        self.serving: ServingRegime | None = None
        self.workload = Workload()
        self.kv_cache_tokens = 100_000
        self.captured_sizes: list[int] | None = [8 * at for at in range(1, 129)]

    def clock(self) -> float:
        return self.now

    def writes(self) -> list[Any]:
        return [a for a in self.performed if isinstance(a, (SetSpeculative, RestoreArguments))]

    def launched(self) -> list[str]:
        return [a.trial for a in self.performed if isinstance(a, StartLaunch)]

    # The port.

    def observe(self, key: Key) -> Observed | None:
        if self.uid == "":
            return None
        return Observed(
            schedule=ScheduleFacts(
                namespace=key.namespace,
                name=key.name,
                uid=self.uid,
                generation=self.generation,
                created_at=9_000.0,
                deleting=self.deleting,
                finalizer=self.finalizer,
                spec=self.spec,
                approved=self.approved,
                again="start again with specschedule.dev/retry=1",
                status=self.status,
            ),
            target=self._target(),
            load=self.missing,
            workload=self.workload,
            probes=self.probes,
            trials=[self._trial(name) for name in sorted(self.trials)],
            serving=None if self.trials else self.serving,
            metrics=MetricsFacts(
                url="http://prometheus",
                available=not self.prometheus_down,
                message="connection refused" if self.prometheus_down else "",
            ),
        )

    def _target(self) -> TargetFacts | Unreadable:
        if self.target_missing:
            return Unreadable(reason="TargetNotFound", message="Deployment llm/chat does not exist")
        rolled = self.rollout_at is None or self.now - self.rollout_at > self.rollout_s
        complete = rolled and self.rollout_fails_with is None
        return TargetFacts(
            resource_version=str(self.target_version),
            generation=self.target_version,
            template_hash=self.template_hash,
            server=ServerFacts(
                container="vllm",
                model="demo/model",
                max_num_seqs=16,
                scheduler_class=self.scheduler_class,
                data_parallel_size=self.data_parallel,
                speculative=self.speculative,
                arguments=["demo/model", repr(self.speculative)],
            ),
            replicas=2,
            gpus=1,
            boot_seconds=BOOT_S,
            image_ids=["sha256:a"],
            rollout=RolloutFacts(
                complete=complete,
                message="2 of 2 replicas updated" if complete else "0 of 2 replicas updated",
                failing=self.rollout_fails_with,
            ),
        )

    def _trial(self, name: str) -> TrialFacts:
        spec, status = self.trials[name]
        visit = self._visit(name)
        return TrialFacts(
            name=name,
            spec=spec,
            status=status,
            pod=self._pod(name),
            visit=visit,
            scraped=self._scraped(visit) if visit and visit.phase == "Succeeded" else None,
        )

    def _pod(self, name: str) -> PodFacts | None:
        if name not in self.pods:
            return None
        created = self.pods[name]
        if name in self.pod_ends:
            reason, message = self.pod_ends[name]
            return PodFacts(phase="Ended", reason=reason, message=message, created_at=created)
        if self.pending is not None:
            reason, message = self.pending
            return PodFacts(phase="Pending", reason=reason, message=message, created_at=created)
        if (words := self.refuses.get(self.trials[name][0].arm)) is not None:
            return PodFacts(phase="Ended", reason="Exited", message=words, created_at=created)
        if self.now - created < BOOT_S:
            return PodFacts(phase="Starting", message="loading weights", created_at=created)
        screening = self.trials[name][0].screening
        known = Receipt() if screening else self._evidence(name).receipt
        config = self._config(name) or {}
        receipt = known.model_copy(
            update={
                "image_id": self.images.get(self.trials[name][0].arm, "sha256:a"),
                "log_level_hides_warnings": False,
                "caches_warm": True,
                "kv_cache_tokens": self.kv_cache_tokens,
                "captured_sizes": self.captured_sizes,
                "num_speculative_tokens": config.get("num_speculative_tokens"),
                "async_scheduling": True,
                "attention_backend": "FLASH_ATTN",
                "scheduler": "context-axis" if self._ours(name, config) else None,
            }
        )
        return PodFacts(
            phase="Ready",
            created_at=created,
            ready_at=created + BOOT_S,
            url="http://10.0.0.1:8000",
            receipt=receipt,
            finding=self.finds.get(self.trials[name][0].arm),
        )

    def _ours(self, name: str, config: dict[str, Any]) -> bool:
        """Whether a scheduler of ours follows a launch's rows: brought, or the server's own."""
        own = self.scheduler_class == CLASS and ROWS in config
        return self.trials[name][0].context_axis or own

    def _config(self, name: str) -> dict[str, Any] | None:
        """The speculative config that a launch runs with."""
        spec, _ = self.trials[name]
        return spec.incumbent if spec.unchanged else spec.speculative

    def _evidence(self, name: str) -> Launch:
        """Run the arm's launch in virtual time, through the windows that were planned for it."""
        spec, _ = self.trials[name]
        runs = repr((spec.speculative, spec.schedule))
        key = (self.physics.name, name, runs, repr(spec.visit.windows))
        if key not in _SIMULATED:
            _SIMULATED[key] = self._simulate(name)
        return _SIMULATED[key]

    def _simulate(self, name: str) -> Launch:
        spec, _ = self.trials[name]
        config = self._config(name) or {}
        rows = config.get("num_speculative_tokens_per_batch_size")
        arm = virtual.Arm(
            spec.arm,
            max_tokens=config.get("num_speculative_tokens", 0),
            # The scheduler of such a launch follows its own table.
            schedule=spec.schedule if spec.context_axis else rows,
        )
        seed = zlib.crc32(name.encode())
        held = [w for w in spec.visit.windows if w.profile.kind == "hold"]
        (compared,) = (w for w in spec.visit.windows if w.profile.kind == "equivalence")
        plain = [w for w in held if w.profile.as_they_are]
        launch = virtual.simulate_launch(
            self.physics,
            arm,
            points=[w.profile.concurrency for w in plain],
            load=_load(plain[0]),
            launch_seed=seed,
            slo=spec.visit.slo,
            launch=spec.launch,
            round=spec.round,
        )
        measured = dict(zip((w.cell for w in plain), launch.cells, strict=True))
        for w in held:
            if w.cell not in measured:
                measured[w.cell] = virtual.simulate_hold(
                    self.physics,
                    arm,
                    concurrency=w.profile.concurrency,
                    load=_load(w),
                    launch_seed=seed,
                    slo=spec.visit.slo,
                )
        cells = [
            (c := measured[w.cell]).model_copy(
                update={
                    "cell": w.cell,
                    "launch": spec.launch,
                    "round": spec.round,
                    "profile": w.profile,
                    "context": w.context,
                    "tokens": w.tokens,
                    "category": w.category,
                    "prefix_cache": PrefixCache(queries=c.offered * 64, hits=0),
                    "preemptions": 0,
                }
            )
            for w in held
        ]
        prompts = sum(count for _, count in compared.profile.steps or [])
        answers = Outputs(prompts="0a1b", unit="token", answers=["17 4"] * prompts)
        said = cells[0].model_copy(
            update={
                "cell": compared.cell,
                "profile": compared.profile,
                "tokens": None,
                "outputs": answers,
            }
        )
        return launch.model_copy(update={"cells": [*cells, said]})

    def _screened(self, name: str, visit: Visit) -> Launch:
        """Carry a screen out as the load process would, window after window."""
        spec, _ = self.trials[name]
        assert visit.screen is not None
        cells: list[Cell] = []
        done = visit.screen.done
        most = (spec.speculative or {}).get("num_speculative_tokens", 0)
        seed = zlib.crc32(name.encode())
        while (window := next_window(visit, cells)) is not None:
            at = len(done) + len(cells)
            rows = None if spec.arm == "none" else [[1, 16, window.tokens]]
            cell = virtual.simulate_hold(
                self.physics,
                virtual.Arm(spec.arm, max_tokens=most, schedule=rows),
                concurrency=window.profile.concurrency,
                load=_load(window),
                seed=seed + at,
                launch_seed=seed,
                start=30.0 * at,
                slo=spec.visit.slo,
            )
            cells.append(
                cell.model_copy(
                    update={
                        "cell": window.cell,
                        "profile": window.profile,
                        "context": window.context,
                        "tokens": window.tokens,
                        "visit": visit.visit,
                    }
                )
            )
            if visit.visit == 1 and len(cells) == self.screen_dies_after:
                break
        return Launch(arm=spec.arm, launch=spec.launch, round=0, cells=cells)

    def _visit(self, name: str) -> VisitFacts | None:
        if name not in self.visits:
            return None
        started, launch = self.visits[name]
        done = self.now - started >= VISIT_S
        events = [CellClosed(cell=c) for c in launch.cells] if done else []
        if done and launch.arm == "probe" and self.probe_never_switches:
            dead = VisitFailed(reason="NotSwitched", message="K=2 was asked for and K=5 planned")
            return VisitFacts(phase="Failed", created_at=started, events=[dead])
        dies = launch.round == 0 and self._dies(launch)
        stops = self.traffic_stops_from is not None and launch.launch >= self.traffic_stops_from
        if done and (dies or stops):
            dead = VisitFailed(reason="Stalled", message="no token for 120 s")
            events = events[: len(events) // 2] if stops else events
            return VisitFacts(phase="Failed", created_at=started, events=[*events, dead])
        return VisitFacts(
            phase="Succeeded" if done else "Running",
            created_at=started,
            events=[*events, VisitEnded(scraped_at=[self.now])] if done else [],
        )

    def _dies(self, launch: Launch) -> bool:
        first = all(cell.visit == 1 for cell in launch.cells)
        return first and len(launch.cells) == self.screen_dies_after

    def _scraped(self, visit: VisitFacts) -> dict[str, dict[str, float]] | None:
        if self.prometheus_down:
            return None
        counts = {}
        for event in visit.events:
            if isinstance(event, CellClosed):
                cell = event.cell
                good = float(cell.good or 0)
                counts[cell.cell] = {
                    "good": good + (1 if self.miscount else 0),
                    "slow": cell.completed - good,
                    "failed": float(cell.failed),
                }
        return counts

    def perform(self, key: Key, action: Any) -> None:
        if self.quota_full and isinstance(action, StartVisit):
            self.refused.append(action)
            raise Refused("exceeded quota: count/jobs.batch=0")
        self._do(action)
        self.performed.append(action)
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                self.die_after = None
                raise Killed

    def _do(self, action: Any) -> None:
        match action:
            case CreateTrial(name=name, spec=spec):
                assert not self.deleting, "created for an object that is being deleted"
                self.trials.setdefault(name, (spec, TrialStatus()))
            case StartLaunch(trial=name):
                assert not self.deleting
                self.pods.setdefault(name, self.now)
            case StartVisit(trial=name, visit=visit):
                assert visit.url.startswith("http://10.")
                of = self._screened(name, visit) if visit.screen else self._evidence(name)
                self.visits.setdefault(name, (self.now, of))
            case StopVisit(trial=name):
                self.visits.pop(name, None)
            case StopLaunch(trial=name):
                self.pods.pop(name, None)
            case RecordTrial(trial=name, status=status):
                spec, stored = self.trials[name]
                assert stored.ended_at is None or stored == status, "a record was rewritten"
                self.trials[name] = (spec, status)
            case DeleteTrial(trial=name):
                for kept in (self.trials, self.pods, self.visits):
                    kept.pop(name, None)
            case SetSpeculative(speculative=wanted, resource_version=version):
                self._write_target(wanted, version)
            case RestoreArguments(resource_version=version):
                self._write_target(self.status["promotion"].get("previous"), version)
                self.rollout_fails_with = None
            case SetFinalizer(present=present):
                self.finalizer = present

    def _write_target(self, wanted: dict[str, Any] | None, version: str) -> None:
        if version != str(self.target_version):
            raise Conflict("resourceVersion")
        assert self.finalizer, "the target was written without our finalizer"
        assert self.status.get("promotion"), "the target was written before the record"
        self.speculative = wanted
        self.target_version += 1
        self.rollout_at = self.now

    def report(self, key: Key, status: dict[str, Any], *, resource_uid: str) -> None:
        assert resource_uid == self.uid
        self.status = status

    def announce(self, key: Key, reason: str, message: str, *, warning: bool) -> None:
        self.announced.append((reason, warning))
