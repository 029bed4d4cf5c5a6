"""The port ``World`` on one machine: launches and visits are processes, objects are files."""

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specschedule.adapters import engine
from specschedule.adapters.local import processes
from specschedule.adapters.local.command import Command, machine
from specschedule.adapters.local.ledger import Ledger
from specschedule.adapters.local.pages import Pages
from specschedule.adapters.visits import final_counts, lost
from specschedule.core.evidence import Receipt
from specschedule.core.observed import (
    Action,
    CreateTrial,
    DeleteTrial,
    Observed,
    PodFacts,
    RecordTrial,
    StartLaunch,
    StartVisit,
    StopLaunch,
    StopVisit,
    TrialFacts,
    TrialSpec,
    TrialStatus,
    VisitFacts,
)
from specschedule.core.target import Unreadable
from specschedule.core.visit import Visit, VisitEnded
from specschedule.core.workload import Workload
from specschedule.engine import settings
from specschedule.engine.deliver import deliver, deliver_table
from specschedule.ports import Key, Metrics, Refused
from specschedule.vllm_facts.failures import last_words
from specschedule.vllm_facts.instruments import Instruments
from specschedule.vllm_facts.logs import while_serving, without_times
from specschedule.vllm_facts.receipt import with_left_out
from specschedule.wire import jobs, manifests

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
TICK_S = 0.25
SCRAPE_S = 0.5
"""Between two readings of a load process' page, where no Prometheus does it."""

_GONE = "its process ended with the run that started it"

LOAD = (sys.executable, "-m", "specschedule.cli.main", "load")


class OutOfTime(Exception):
    """The time given is over, and no pair of launches is half done."""


@dataclass
class _Server:
    """A launch that runs."""

    process: processes.Process
    argv: list[str]
    url: str
    carried: Instruments
    ready_at: float | None = None
    receipt: Receipt | None = None
    """Once it was read whole."""


@dataclass
class _Load:
    """A visit that runs, or has ended."""

    process: processes.Process
    visit: Visit
    port: int


class LocalWorld:
    """One run folder, one command, one thread."""

    def __init__(
        self,
        ledger: Ledger,
        command: Command,
        *,
        prometheus: Metrics,
        prompts: Path | None = None,
        trace: Path | None = None,
        workload: Workload | None = None,
        load_port: int = manifests.LOAD_PORT,
        instruments: bool = True,
        until: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a world, and end what an earlier process of this run left.

        Args:
            ledger: The run folder.
            command: The command that serves now.
            prometheus: Prometheus, asked where the spec names a server.
            prompts: Prompts of the load: a folder or a file.
            trace: Recorded arrivals: a file.
            workload: What the load sends, as read from these.
            load_port: Port of the load process's counters, where a Prometheus reads them.
            instruments: Whether launches carry what observes the engine from inside.
            until: Unix seconds after which no launch begins, but for the second of a pair.
            clock: Unix seconds.
        """
        self._ledger, self._command, self._clock = ledger, command, clock
        self._prompts, self._load_port, self._until = prompts, load_port, until
        self._trace, self._workload = trace, workload or Workload()
        self._url = ledger.spec.prometheus.url if ledger.spec.prometheus else None
        self._pages = Pages()
        self._metrics: Metrics = prometheus if self._url else self._pages
        self._target = command.target()
        self._instruments = instruments
        self._probes = _page(self._carried(secret="any", port=1)) is not None
        self._servers: dict[str, _Server] = {}
        self._loads: dict[str, _Load] = {}
        self._scraped_at = 0.0
        self._seen: list[object] = []
        """Signs of the processes at the last observation."""
        self._records = ledger.folder / "processes"
        for name in processes.end_leftovers(self._records):
            log.info("ended %s, which an earlier process of this run left", name)

    def close(self) -> None:
        """End every process."""
        for load in self._loads.values():
            load.process.stop(grace=1.0)
        for server in self._servers.values():
            server.process.stop()

    def observe(self, key: Key) -> Observed | None:
        """Gather the facts."""
        self._seen = self._signs()
        metrics = self._metrics.check(self._url)
        return Observed(
            schedule=self._ledger.schedule(),
            target=self._target,
            trials=[
                self._trial(name, spec, status, metrics.url)
                for name, (spec, status) in self._ledger.trials().items()
            ],
            metrics=metrics,
            workload=self._workload,
            probes=self._probes,
        )

    def perform(self, key: Key, action: Action) -> None:
        """Carry out one action; repeating it changes nothing.

        Raises:
            Conflict: A precondition did not hold.
            Refused: It cannot be done here.
            OutOfTime: A launch would begin, and the time given is over.
        """
        match action:
            case CreateTrial(name=name, spec=spec):
                self._check_time(spec)
                self._ledger.create(name, spec)
            case StartLaunch(trial=trial):
                self._start_launch(trial)
            case StartVisit(trial=trial, visit=visit):
                self._start_visit(trial, visit)
            case StopVisit(trial=trial):
                self._stop_visit(trial)
            case StopLaunch(trial=trial):
                self._stop_launch(trial)
            case RecordTrial(trial=trial, status=status):
                self._ledger.record(trial, status)
            case DeleteTrial(trial=trial):
                self._stop_visit(trial)
                self._stop_launch(trial)
                self._ledger.delete(trial)
            case _:
                raise Refused("a run on one machine writes to no serving workload")

    def report(self, key: Key, status: dict[str, Any], *, resource_uid: str) -> None:
        """Store the status, if it differs from what is stored."""
        self._ledger.report(status)

    def announce(self, key: Key, reason: str, message: str, *, warning: bool) -> None:
        """Log it: the status says the same on the screen."""
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)

    def wait(self, seconds: float) -> None:
        """Return when something has happened since the last observation, or after so long.

        Raises:
            OutOfTime: Nothing runs, nothing happens, and the time given is over.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(TICK_S)
            self._look()
            if self._signs() != self._seen:
                return
        if self._late() and not self._servers:
            raise OutOfTime

    def _look(self) -> None:
        """Ask booting servers for their health, and read the pages of running visits."""
        booting = [server for server in self._servers.values() if server.ready_at is None]
        for server in booting:
            if engine.get(server.url, "/health", seconds=1.0) is not None:
                server.ready_at = self._clock()
        if self._url is None and time.monotonic() - self._scraped_at >= SCRAPE_S:
            self._scraped_at = time.monotonic()
            for load in self._loads.values():
                if load.process.exit_code() is None:
                    self._pages.read(load.port)

    def _signs(self) -> list[object]:
        """Return what changes when something happened that a decision may want to know."""
        servers = [(each.process.exit_code(), each.ready_at) for each in self._servers.values()]
        loads = [(x.process.exit_code(), x.process.written()) for x in self._loads.values()]
        return [servers, loads]

    def _late(self) -> bool:
        return self._until is not None and self._clock() >= self._until

    def _check_time(self, spec: TrialSpec) -> None:
        """Say when the time is over; a pair is not torn, as its launches must be neighbours."""
        if not self._late():
            return
        turn = (spec.round, spec.attempt)
        first = any(
            (planned.round, planned.attempt) == turn and _paired(planned.arm)
            for planned, _ in self._ledger.trials().values()
        )
        if not (first and _paired(spec.arm)):
            raise OutOfTime

    def _start_launch(self, name: str) -> None:
        if name in self._servers:
            return
        spec, _ = self._ledger.trials()[name]
        secret = spec.visit.screen.secret if spec.visit.screen is not None else None
        port, page = _free_ports(2)
        carried = self._carried(screening=spec.screening, secret=secret, port=page)
        if spec.context_axis:
            carried = self._following(carried, spec.schedule or [])
        argv = self._command.with_speculative(
            "unchanged" if spec.unchanged else spec.speculative,
            graph_mode=spec.graph_mode,
            instruments=carried,
        )
        if isinstance(argv, Unreadable):
            raise Refused(argv.message)
        variables = self._command.variables(carried, self._plugins) if carried.carried else {}
        argv = [*argv, "--host", HOST, "--port", str(port)]
        process = processes.start(
            self._records,
            name,
            argv,
            environment=self._environment(variables),
            log=self._ledger.folder / f"logs/{name}.log",
        )
        self._servers[name] = _Server(process, argv, f"http://{HOST}:{port}", carried)

    def _carried(
        self, *, screening: bool = False, secret: str | None = None, port: int = 0
    ) -> Instruments:
        """Return what a launch carries of ours, as a trial pod would."""
        if not self._instruments:
            return Instruments()
        if ":" in str(self._ledger.folder.resolve()):
            why = "PYTHONPATH cannot name the run folder, whose path has a :"
            return Instruments(left_out=(why,))
        return self._command.instruments(
            self._ledger.spec.slo, screening=screening, secret=secret, port=port
        )

    def _following(self, carried: Instruments, rows: Sequence[Sequence[int]]) -> Instruments:
        """Return what a launch carries whose context-axis scheduler follows a table."""
        found = self._command.following(carried, rows, self._plugins)
        if isinstance(found, Unreadable):
            raise Refused(found.message)
        try:
            deliver_table(self._plugins, rows)
        except OSError as error:
            raise Refused(f"{self._plugins} cannot be written: {error}") from error
        return found

    @cached_property
    def _plugins(self) -> Path:
        """Lay out what runs inside the engine, and return where."""
        folder = self._ledger.folder / "plugins"
        try:
            deliver(folder)
        except OSError as error:
            raise Refused(f"{folder} cannot be written: {error}") from error
        return folder

    def _start_visit(self, name: str, visit: Visit) -> None:
        if name in self._loads:
            return
        if visit.screen is not None and (server := self._servers.get(name)) is not None:
            screen = visit.screen.model_copy(update={"page": _page(server.carried)})
            visit = visit.model_copy(update={"screen": screen})
        port = self._load_port if self._url else _free_ports(1)[0]
        variables = manifests.visit_variables(visit, port=port)
        if not self._url:
            variables["SPECSCHEDULE_METRICS_HOST"] = HOST
        if self._prompts is not None:
            variables["SPECSCHEDULE_PROMPTS"] = str(self._prompts)
        if self._trace is not None:
            variables["SPECSCHEDULE_TRACE"] = str(self._trace.resolve())
        visited = f"{name}-v{visit.visit}"
        if self._ledger.spec.load.records is not None:
            folder = self._ledger.folder / "records"
            folder.mkdir(exist_ok=True)
            variables["SPECSCHEDULE_RECORDS"] = str((folder / f"{visited}.jsonl.gz").resolve())
        process = processes.start(
            self._records,
            visited,
            LOAD,
            environment=self._environment(variables),
            log=self._ledger.folder / f"logs/{visited}.log",
        )
        self._loads[name] = _Load(process, visit, port)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **more, processes.OWNER: self._ledger.uid}

    def _stop_visit(self, name: str) -> None:
        if (load := self._loads.get(name)) is not None:
            load.process.stop()
            del self._loads[name]

    def _stop_launch(self, name: str) -> None:
        if (server := self._servers.get(name)) is not None:
            server.process.stop()
            del self._servers[name]

    def _trial(
        self, name: str, spec: TrialSpec, status: TrialStatus, metrics_url: str | None
    ) -> TrialFacts:
        server, load = self._servers.get(name), self._loads.get(name)
        visit = self._visit(load) if load is not None else None
        return TrialFacts(
            name=name,
            spec=spec,
            status=status,
            pod=self._pod(server, visit) if server is not None else lost(status, _GONE),
            visit=visit,
            **(
                final_counts(
                    self._metrics, metrics_url, spec, load.visit.visit, visit, self._clock()
                )
                if load and visit
                else {}
            ),
        )

    def _pod(self, server: _Server, visit: VisitFacts | None) -> PodFacts:
        process = server.process
        facts: dict[str, Any] = {"created_at": process.created_at}
        code = process.exit_code()
        if code is not None:
            words = last_words(without_times(process.said()), code)
            message = f"the server exited with {code}" + (f": {words}" if words else "")
            return PodFacts(phase="Ended", reason="Exited", message=message, **facts)
        if server.ready_at is None:
            return PodFacts(phase="Starting", message="its /health does not answer yet", **facts)
        facts |= {"ready_at": server.ready_at, "url": server.url}
        if visit is not None and visit.phase != "Running":
            facts |= while_serving(process.said())
            facts["compiled_at"] = [at for at in facts["compiled_at"] if at >= visit.created_at]
        return PodFacts(
            phase="Ready", message=f"ready on {HOST}", receipt=self._receipt(server), **facts
        )

    def _receipt(self, server: _Server) -> Receipt:
        """Read the facts of a launch, once: a receipt that lacks an answer is read again."""
        if server.receipt is not None:
            return server.receipt
        assert server.ready_at is not None
        found, whole = engine.receipt(
            server.url,
            log_text=without_times(server.process.said()[: engine.LOG_HEAD_BYTES]),
            known={
                **machine(),
                "image_id": self._command.installed(),
                "arguments": server.argv,
                "boot_seconds": round(server.ready_at - server.process.created_at, 1),
            },
        )
        found = with_left_out(found, "; ".join(server.carried.left_out))
        if whole:
            server.receipt = found
        return found

    def _visit(self, load: _Load) -> VisitFacts:
        process = load.process
        created_at = process.created_at
        if self._clock() - created_at > jobs.longest_seconds(load.visit):
            process.stop(grace=1.0)
        code = process.exit_code()
        try:
            said = jobs.events(without_times(process.said()))
        except jobs.DamagedLog as damage:
            return VisitFacts(phase="Failed", message=str(damage), created_at=created_at)
        if code is None:
            return VisitFacts(phase="Running", created_at=created_at, events=said)
        if code == 0 and said and isinstance(said[-1], VisitEnded):
            return VisitFacts(phase="Succeeded", created_at=created_at, events=said)
        words = without_times(process.said()).strip().rpartition("\n")[2]
        message = f"the load process exited with {code}: {words[:300]}"
        return VisitFacts(phase="Failed", message=message, created_at=created_at, events=said)


def _page(carried: Instruments) -> str | None:
    """Return where a launch's probe scheduler tells its steps; None where it carries none."""
    port = carried.variables.get(settings.SCHEDULER_PORT)
    return f"http://{HOST}:{port}" if port is not None else None


def _paired(arm: str) -> bool:
    return arm == "incumbent" or arm.startswith("candidate-")


def _free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on, all different."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
