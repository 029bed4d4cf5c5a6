"""``specschedule tune``: the whole run on this machine, without Kubernetes."""

import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import click

from specschedule.adapters.local import Command, FolderRefused, Ledger, LocalWorld, OutOfTime
from specschedule.adapters.prometheus import PrometheusMetrics
from specschedule.cli.live import Screen
from specschedule.cli.output import BadInput, emit, output_option
from specschedule.cli.specs import categories_of, read_spec, trace_of, trace_option
from specschedule.core.spec import Spec
from specschedule.core.target import Unreadable
from specschedule.core.workload import Workload
from specschedule.reconcile import Reconciler

UNFINISHED = 3
INTERRUPTED = 128 + signal.SIGINT
LONGEST_LOOK_S = 10.0
"""Processes are watched in between, so a decision is made sooner when something happens."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option(
    "--local",
    is_flag=True,
    required=True,
    help="Launches and load are processes of this machine; nothing else can be tuned this way.",
)
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path),
    default="specschedule-run",
    show_default=True,
    help="Run folder; the same one again goes on with the run in it.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Begin no launch after so many minutes, but for the second of a pair.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="What spec.load.prompts names: a folder with a file per category, or a ConfigMap in YAML.",
)
@trace_option
@click.option(
    "--load-port",
    default=9100,
    show_default=True,
    help="Port of the load process's counters, where spec.prometheus is to read them.",
)
@click.option(
    "--instruments/--no-instruments",
    default=True,
    show_default=True,
    help="Let launches carry what observes the engine from inside: the same in every arm.",
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND")
@output_option
def command(
    path: str,
    local: bool,
    folder: Path,
    minutes: float | None,
    prompts: Path | None,
    trace: Path | None,
    load_port: int,
    instruments: bool,
    argv: tuple[str, ...],
    output: str,
) -> None:
    """Find out which schedule the server that COMMAND starts should serve with.

    Example: specschedule tune -f chat.yaml --local -- vllm serve MODEL --speculative-config ...

    Each launch gets a free port of loopback at the end of COMMAND. Nothing is promoted: at the end
    it prints the command to serve with, and DIR/trials.yaml holds the evidence for judge. Without
    spec.prometheus this process itself reads the load process's counters. Killed at any moment,
    the same command goes on with the run. Exits 0 at an outcome, 3 when time is up, 130 when
    interrupted.
    """
    spec = read_spec(path)
    workload = _check(spec, prompts, trace)
    serving = Command(argv, os.environ)
    server = serving.server()
    if isinstance(server, Unreadable):
        raise BadInput(f"{shlex.join(argv)}: {server.reason}: {server.message}")
    try:
        ledger = Ledger(folder, spec, argv, now=time.time())
    except FolderRefused as refused:
        raise BadInput(str(refused)) from refused
    with closing(ledger):
        logging.basicConfig(
            filename=folder / "logs/tune.log",
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(message)s",
        )
        world = LocalWorld(
            ledger,
            serving,
            prometheus=PrometheusMetrics(),
            prompts=prompts,
            trace=trace,
            workload=workload,
            load_port=load_port,
            instruments=instruments,
            until=None if minutes is None else time.time() + minutes * 60,
        )
        # What is shown on the way must not stand before the answer where that is JSON.
        code = _finish(world, ledger, Screen(sys.stderr if output == "json" else None))
        ledger.export()
        answer = _answer(ledger, serving)
        emit(answer, _text(answer, code), output)
    raise click.exceptions.Exit(code)


def _check(spec: Spec, prompts: Path | None, trace: Path | None) -> Workload:
    """Refuse what cannot work on one machine; return what the load sends."""
    if spec.experiment.parallelism > 1:
        raise BadInput("spec.experiment.parallelism: with --local one arm runs at a time; set 1")
    if spec.load.api_key_secret_ref is not None and "SPECSCHEDULE_API_KEY" not in os.environ:
        raise BadInput("spec.load.apiKeySecretRef: with --local, set SPECSCHEDULE_API_KEY instead")
    if (spec.load.prompts is None) != (prompts is None):
        named = spec.load.prompts.config_map if spec.load.prompts else "(none)"
        raise BadInput(
            f"spec.load.prompts: names ConfigMap {named}; with --local, --prompts says where its "
            "prompts are, and both or neither must be given"
        )
    if (spec.load.trace is None) != (trace is None):
        named = f"ConfigMap {spec.load.trace.config_map}" if spec.load.trace else "(none)"
        raise BadInput(
            f"spec.load.trace: names {named}; with --local, --trace says where its arrivals are, "
            "and both or neither must be given"
        )
    return Workload(
        categories=categories_of(prompts) if prompts is not None else [],
        trace=trace_of(trace) if trace is not None else None,
    )


def _finish(world: LocalWorld, ledger: Ledger, screen: Screen) -> int:
    """Go on until the outcome, the end of the time, or a signal; leave no process."""
    reconcile = Reconciler(world, time.time)
    # What was ignored from the start stays ignored, as under nohup.
    heeded = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in heeded}
    try:
        while True:
            again = reconcile(ledger.key)
            screen.show(ledger.status)
            if ledger.status.get("outcome"):
                return 0
            if again:
                world.wait(LONGEST_LOOK_S)
    except OutOfTime:
        return UNFINISHED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        world.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _answer(ledger: Ledger, serving: Command) -> dict[str, Any]:
    """Return what a run came to so far, with the command to serve with where it found one."""
    status = ledger.status
    fields = ("runId", "stage", "outcome", "reason", "message", "recommendation", "progress")
    answer = {field: status[field] for field in fields if field in status}
    answer |= {"verdict": status.get("verdict", []), "run": str(ledger.folder)}
    if status.get("outcome") == "Proposed":
        better = next(v["candidate"] for v in status["verdict"] if v["verdict"] == "Better")
        launched = (spec for spec, _ in ledger.trials().values())
        won = next(s for s in launched if s.arm == f"candidate-{better}")
        if won.context_axis:
            # No argument alone serves so: the recommendation says what does.
            return answer
        argv = serving.with_speculative(won.speculative)
        assert not isinstance(argv, Unreadable), "it was launched with this very edit"
        answer["command"] = argv
    return answer


def _text(answer: Mapping[str, Any], code: int) -> str:
    folder = shlex.quote(answer["run"])
    lines = []
    if "command" in answer:
        lines += ["", "Serve with:", "", f"  {shlex.join(answer['command'])}"]
    elif answer.get("recommendation"):
        lines += ["", f"Recommendation: {answer['recommendation']}"]
    if code == UNFINISHED:
        lines += ["", "Time is up; the same command goes on with the run."]
    elif code == INTERRUPTED:
        lines += [
            "",
            "Interrupted: the launch under way is void; the same command goes on.",
        ]
    if answer.get("progress", {}).get("launchesDone"):
        replay = f"specschedule judge -f {folder}/schedule.json --trials {folder}/trials.yaml"
        lines += ["", f"The verdict from the evidence: {replay}"]
    return "\n".join(lines)
