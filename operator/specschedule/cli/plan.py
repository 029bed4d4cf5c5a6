"""``specschedule plan``: what a run will launch, what it costs, and what each arm buys."""

from pathlib import Path

import click

from specschedule.cli.output import BadInput, emit, output_option
from specschedule.cli.specs import (
    categories_of,
    only,
    read_target,
    trace_of,
    trace_option,
    valid_spec,
)
from specschedule.core.budget import Cost, budget_left, cost
from specschedule.core.gate import Gate, refused
from specschedule.core.plan import arms
from specschedule.core.preflight import before_pods
from specschedule.core.schedule import ScheduleError
from specschedule.core.search import look
from specschedule.core.stand_in import stand_in
from specschedule.core.target import Unreadable
from specschedule.core.values import parse_duration
from specschedule.core.workload import Workload
from specschedule.vllm_facts import matrix


@click.command()
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option("--target", required=True, help="Manifest of the serving Deployment.")
@click.option("--boot", help="Time from container start to Ready, such as 4m.")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="What spec.load.prompts names: a folder with a file per category, or a ConfigMap in YAML.",
)
@trace_option
@output_option
def command(
    path: str,
    target: str,
    boot: str | None,
    prompts: Path | None,
    trace: Path | None,
    output: str,
) -> None:
    """Print launches, minutes and GPU-hours by arm, and what each arm buys.

    A run that preflight refuses costs nothing: that it does is printed beside the price. What
    holding prompt categories apart adds is known with --prompts only.
    """
    schedule = only(path, "SpecSchedule")
    spec = valid_spec(path, schedule)
    workload = Workload(
        categories=categories_of(prompts) if prompts is not None else [],
        trace=trace_of(trace) if trace is not None else None,
    )
    facts = read_target(target, spec, schedule)
    if isinstance(facts.server, Unreadable):
        raise BadInput(f"{target}: {facts.server.reason}: {facts.server.message}")
    looked = None
    if spec.search is not None:
        looked = look(spec, facts.server, [], uid="", run="")
        spec = looked.spec
    try:
        seconds = parse_duration(boot) if boot is not None else facts.boot_seconds
        planned = arms(spec, facts.server, delivered=True)
    except ScheduleError as error:
        raise BadInput(f"{path}: spec.candidates: {error.reason}: {error.message}") from error
    except ValueError as error:
        raise BadInput(f"--boot: {error}") from error
    answer = cost(spec, planned, boot_seconds=seconds, gpus=facts.gpus, workload=workload)
    unpriced = [
        said
        for asked, given, said in (
            (spec.load.prompts, prompts, _PROMPTS_UNKNOWN),
            (spec.load.trace, trace, _TRACE_UNKNOWN),
        )
        if asked is not None and given is None
    ]
    answer = answer.model_copy(update={"notes": [*answer.notes, *unpriced]})
    if looked is not None:
        answer = looked.with_cost(answer, facts.model_copy(update={"boot_seconds": seconds}))
    left = budget_left(spec, answer, gpu_seconds=0.0)
    tested = spec if spec.candidates else stand_in(spec, facts.server)
    gates = before_pods(tested, facts, matrix=matrix.ROWS, trace=workload.trace, delivered=True)
    fault = refused(gates)
    plain = answer.plain() | {"budget": left.plain()}
    if fault is not None:
        plain["refused"] = fault.plain()
    emit(plain, _text(answer, left.gpu_hours, fault), output)


_PROMPTS_UNKNOWN = (
    "first launches hold prompt categories apart too, which is not in this price: say with "
    "--prompts which there are"
)
_TRACE_UNKNOWN = (
    "every launch replays the trace too, which is not in this price: say with --trace where it is"
)


def _text(answer: Cost, budget: float | None, fault: Gate | None) -> str:
    lines = [f"{'ARM':24} {'LAUNCHES':>8} {'MINUTES':>8} {'GPU-HOURS':>10}  BUYS"]
    lines += [
        f"{row.arm:24} {row.launches:>8} {row.minutes:>8.1f} {row.gpu_hours:>10.2f}  {row.buys}"
        for row in answer.arms
    ]
    lines.append(
        f"{'together':24} {answer.launches:>8} {answer.minutes:>8.1f} {answer.gpu_hours:>10.2f}"
        "  when the first candidate decides as early as it can, and answers take all the time that "
        "the SLO allows"
    )
    lines.append(
        f"{'at most':24} {answer.launches_at_most:>8} {'':>8} {answer.gpu_hours_at_most:>10.2f}"
        "  when every candidate needs every round"
    )
    lines += answer.notes
    if budget is not None:
        lines.append(f"budget: {budget:g} GPU-hours, a hard limit")
    if fault is not None:
        lines.append(f"preflight refuses this run: {fault.gate}: {fault.message}")
    return "\n".join(lines)
