"""``specschedule preflight``: the gates that need no pod."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specschedule.cli.output import BadInput, emit, output_option
from specschedule.cli.specs import only, read_target, trace_of, trace_option, valid_spec
from specschedule.core.gate import Gate, fails
from specschedule.core.matrix import Runner
from specschedule.core.preflight import before_pods
from specschedule.core.schedule import ScheduleError, parse
from specschedule.core.stand_in import stand_in
from specschedule.core.target import ServerFacts
from specschedule.vllm_facts import matrix
from specschedule.vllm_facts.drafter import block_in

_VERSION = re.compile(r"v?\d+\.\d+\.\d+\S*$")


@click.command()
@click.option("-f", "--file", "spec_path", required=True, help="SpecSchedule, as YAML.")
@click.option("--target", "target_path", required=True, help="Its Deployment, as YAML.")
@click.option(
    "--config-map", "config_map_paths", multiple=True, help="ConfigMap that the target names."
)
@click.option("--engine-version", help="vLLM's version, where the image does not say it.")
@click.option(
    "--drafter", "drafter_path", help="Folder of the drafter's files, or its config.json."
)
@click.option("--log", "log_path", help="Start-up log of the serving engine.")
@click.option("--metrics", "metrics_path", help="One scrape of the serving engine's /metrics.")
@trace_option
@click.option("--exit-code", is_flag=True, help="Exit with 1 when the run is not accepted.")
@output_option
def command(
    spec_path: str,
    target_path: str,
    config_map_paths: tuple[str, ...],
    engine_version: str | None,
    drafter_path: str | None,
    log_path: str | None,
    metrics_path: str | None,
    trace: Path | None,
    exit_code: bool,
    output: str,
) -> None:
    """Answer the gates that need no pod: can this run work at all?

    A gate that fails or is Unknown keeps the run from being accepted. The exit code is 0 for any
    answer, 1 for a run that is not accepted where --exit-code is given, and 2 for bad input.
    """
    schedule = only(spec_path, "SpecSchedule")
    fault = _schedule_fault(schedule)
    if fault is not None:
        _answer([fault], output, exit_code)
        return
    spec = valid_spec(spec_path, schedule)
    if engine_version is not None and not _VERSION.match(engine_version):
        raise BadInput(f"--engine-version {engine_version}: write it as 0.32.0")
    maps = [only(path, "ConfigMap") for path in config_map_paths]
    facts = read_target(target_path, spec, schedule, {_name(each): _texts(each) for each in maps})
    if spec.search is not None and isinstance(facts.server, ServerFacts):
        spec = stand_in(spec, facts.server)
    log, metrics = _read(log_path), _read(metrics_path)
    said, runner = (None, None) if log is None else _version_and_runner(log)
    gates = before_pods(
        spec,
        facts,
        matrix=matrix.ROWS,
        engine_version=engine_version or said,
        runner=runner,
        drafter_block=_drafter_block(drafter_path),
        trace=trace_of(trace) if trace is not None else None,
        delivered=True,
    )
    if isinstance(facts.server, ServerFacts) and (log is not None or metrics is not None):
        # What reads logs takes long to load, and is seldom needed.
        from specschedule.vllm_facts.serving import serving_gates

        seen = serving_gates(spec, facts.server, log_text=log, metrics_text=metrics)
        gates = _worst_of_each(gates, seen)
    _answer(gates, output, exit_code)


def _answer(gates: list[Gate], output: str, exit_code: bool) -> None:
    accepted = not any(gate.holds for gate in gates)
    emit({"accepted": accepted, "gates": [gate.plain() for gate in gates]}, _text(gates), output)
    if exit_code and not accepted:
        sys.exit(1)


def _schedule_fault(schedule: Mapping[str, Any]) -> Gate | None:
    """Answer a bad schedule in the schedule's own words, not in those of a type check."""
    spec = schedule.get("spec")
    candidates = spec.get("candidates") if isinstance(spec, Mapping) else None
    for at, candidate in enumerate(candidates if isinstance(candidates, list) else []):
        if not isinstance(candidate, Mapping) or "schedule" not in candidate:
            continue
        try:
            parse(candidate["schedule"])
        except ScheduleError as error:
            where = f"spec.candidates[{at}].schedule"
            return fails("schedule", f"Schedule{error.reason}", f"{where}: {error.message}")
    return None


def _worst_of_each(before: list[Gate], seen: list[Gate]) -> list[Gate]:
    """Answer each gate once: what was seen counts, unless it saw less or the rest is worse."""
    answers = {gate.gate: gate for gate in before}
    for gate in seen:
        known = answers.get(gate.gate)
        if known is None or (not known.holds and gate.answer != "NotApplicable"):
            answers[gate.gate] = gate
    return list(answers.values())


def _text(gates: list[Gate]) -> str:
    width = max(len(gate.gate) for gate in gates)
    lines = [
        f"{gate.answer:<13}  {gate.gate:<{width}}  {gate.reason}: {gate.message}" for gate in gates
    ]
    holding = [gate.gate for gate in gates if gate.holds]
    verdict = f"not accepted: {', '.join(holding)}" if holding else "accepted"
    return "\n".join([*lines, verdict])


def _version_and_runner(log: str) -> tuple[str | None, Runner | None]:
    from specschedule.vllm_facts.logs import read_log

    facts = read_log(log)
    return facts.version, facts.model_runner


def _drafter_block(path: str | None) -> int | None:
    """Return the block size in a drafter's files.

    Raises:
        BadInput: They cannot be read, or name none.
    """
    if path is None:
        return None
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        block = block_in(_read(str(file)) or "")
    except ValueError as error:
        raise BadInput(f"--drafter {file}: not JSON: {error}") from error
    if block is None:
        raise BadInput(f"--drafter {file}: names no block_size")
    return block


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, Mapping) else ""


def _texts(document: Mapping[str, Any]) -> dict[str, str]:
    data = document.get("data")
    return {str(k): str(v) for k, v in data.items()} if isinstance(data, Mapping) else {}


def _read(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
