"""``specschedule judge``: the verdict over recorded trials."""

from collections.abc import Mapping
from typing import Any

import click
from pydantic import ValidationError

from specschedule.cli.histograms import bounds, text
from specschedule.cli.output import BadInput, emit, output_option
from specschedule.cli.specs import fault, only, read_target, valid_spec
from specschedule.cli.trials import read_launches, read_trials, status_of, testing
from specschedule.core import gates
from specschedule.core.compare import TRACE, Offered
from specschedule.core.evidence import Launch
from specschedule.core.gate import Gate, overrides
from specschedule.core.judge import judge
from specschedule.core.launches import AGREES
from specschedule.core.regime import ServingRegime
from specschedule.core.schedule import ScheduleError
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts, Unreadable
from specschedule.core.verdict import ArmFacts, BarResult, Floor, Judgement, Note


@click.command()
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option("--trials", help="SpecTrials, as kubectl get -o yaml gives them.")
@click.option("--run", help="Run id, where the trials are of several runs.")
@click.option("--target", help="Manifest of the serving Deployment, for the exact batch sizes.")
@click.option(
    "--histograms",
    multiple=True,
    metavar="ARM=PAGE",
    help="Instead of trials: an arm and its /metrics page, or two of them (BEFORE,AFTER).",
)
@click.option(
    "--accept-bounds",
    is_flag=True,
    help="With --histograms: bounds will do where a limit of the SLO is no bucket edge.",
)
@output_option
def command(
    path: str,
    trials: str | None,
    run: str | None,
    target: str | None,
    histograms: tuple[str, ...],
    accept_bounds: bool,
    output: str,
) -> None:
    """Judge the candidates of a SpecSchedule by the launches in TRIALS.

    The numbers are judged, and the gates that the trials can answer are printed beside. One that
    fails withholds promotion. So does one that is Unknown where the operator wrote the trials;
    numbers from elsewhere carry no receipts, and it is noted only.

    Histograms know how many requests met each limit and not which: they give bounds only.
    """
    schedule = only(path, "SpecSchedule")
    spec = valid_spec(path, schedule)
    if (trials is None) == (not histograms):
        raise BadInput("give either --trials or --histograms")
    if trials is None:
        told = bounds(spec, histograms, accepted=accept_bounds)
        emit(told, text(told), output)
        return
    documents = read_trials(trials, run)
    spec = testing(trials, spec, documents)
    launches = read_launches(trials, documents)
    server = _server(trials, documents)
    named = None if target is None else _named_server(target, spec, schedule)
    answers = _gates(spec, launches, _exact_server(spec, documents, server, named))
    answer = judge(spec, launches, server=server, serving=_serving(trials, launches, documents))
    answer = _withheld(answer, answers, documents)
    notes = [*answer.notes, *_bar_notes(spec, documents), *_gate_notes(answers)]
    answer = answer.model_copy(update={"notes": notes})
    plain = answer.plain() | {"gates": [gate.plain() for gate in answers]}
    emit(plain, _text(answer, answers), output)


def _server(path: str, documents: list[dict[str, Any]]) -> ServerFacts | None:
    """Return what the trials say of the incumbent's server; None when they say nothing.

    Raises:
        BadInput: What they say is no speculative config.
    """
    for document in documents:
        spec = document["spec"]
        field = "incumbent" if "incumbent" in spec else "speculative"
        if field in spec and "incumbent" in (field, spec.get("arm")):
            try:
                return ServerFacts(container="", speculative=spec[field])
            except ValidationError as error:
                raise BadInput(f"{path}: spec.{field}{fault(error)}") from error
    return None


def _serving(
    path: str, launches: list[Launch], documents: list[dict[str, Any]]
) -> ServingRegime | None:
    """Return what the serving pods did when the first launch was planned, if it is on record."""
    _, first = min(zip(launches, documents, strict=True), key=lambda each: each[0].launch)
    try:
        told = first["spec"].get("serving")
        return None if told is None else ServingRegime.model_validate(told)
    except ValidationError as error:
        raise BadInput(f"{path}: spec.serving{fault(error)}") from error


def _named_server(path: str, spec: Spec, schedule: Mapping[str, Any]) -> ServerFacts:
    """Return the server of the target's manifest.

    Raises:
        BadInput: It cannot be read.
    """
    server = read_target(path, spec, schedule).server
    if isinstance(server, Unreadable):
        raise BadInput(f"{path}: {server.reason}: {server.message}")
    return server


def _exact_server(
    spec: Spec,
    documents: list[dict[str, Any]],
    known: ServerFacts | None,
    named: ServerFacts | None,
) -> ServerFacts:
    """Return the server as the gates need it: from its manifest, else from what is asked of it."""
    if named is not None:
        return named.model_copy(update={"speculative": known.speculative}) if known else named
    schedules = [candidate.schedule for candidate in spec.candidates]
    largest = max(row[1] for rows in schedules for row in rows)
    drafts = spec.speculative is None or any(d["spec"].get("incumbent") for d in documents)
    speculative = known.speculative if known else ({} if drafts else None)
    held = [status_of(document).get("gpuSeconds") for document in documents]
    # Where nobody says that it held no GPU, naming one leaves the gate open.
    gpus = 0 if set(held) == {0} else 1
    return ServerFacts(
        container="",
        speculative=speculative,
        gpus=gpus,
        max_num_seqs=max(largest, *spec.load.points),
    )


def _gates(spec: Spec, launches: list[Launch], server: ServerFacts) -> list[Gate]:
    try:
        return [*gates.between_arms(spec, launches, server), overrides(spec)]
    except ScheduleError as error:
        raise BadInput(f"a schedule: {error.reason}: {error.message}") from error


def _withheld(answer: Judgement, answers: list[Gate], documents: list[dict[str, Any]]) -> Judgement:
    """Withhold promotion where the operator would: counters that disagree, a gate that fails."""
    checks = [status_of(document).get("check") for document in documents]
    disagreeing = next((check for check in checks if check not in (None, AGREES)), None)
    if disagreeing is not None:
        return answer.model_copy(
            update={
                "outcome": "Inconclusive",
                "reason": "MetricsDisagree",
                "message": str(disagreeing),
            }
        )
    holding = gates.blocking(answers)
    if holding is None or answer.outcome not in ("Promoted", "Proposed"):
        return answer
    if holding.answer == "Unknown" and not _recorded(documents):
        said = f"{answer.message} (by these numbers alone: gates are Unknown, see the notes)"
        return answer.model_copy(update={"message": said})
    return answer.model_copy(
        update={
            "outcome": gates.withheld(holding),
            "reason": holding.reason,
            "message": f"gate {holding.gate}: {holding.message}",
            "recommendation": "",
        }
    )


def _recorded(documents: list[dict[str, Any]]) -> bool:
    """Say whether these are the operator's own records, with all that it knew."""
    return all(document["spec"].get("templateHash") for document in documents)


def _gate_notes(answers: list[Gate]) -> list[Note]:
    """Say which gates the trials do not answer."""
    unknown = [f"{gate.gate} ({gate.reason})" for gate in answers if gate.answer == "Unknown"]
    if not unknown:
        return []
    return [
        Note(
            reason="GatesUnknown",
            message=f"the trials do not answer {', '.join(unknown)}; the operator would not "
            "promote on that",
        )
    ]


def _bar_notes(spec: Spec, documents: list[dict[str, Any]]) -> list[Note]:
    """Say when the trials were measured under another bar than the one they are judged by."""
    digests = {str(d["spec"]["barDigest"]) for d in documents if d["spec"].get("barDigest")}
    other = sorted(digests - {spec.bar.digest()})
    if not other:
        return []
    return [
        Note(
            reason="BarDiffers",
            message=f"the trials were planned under bar {', '.join(other)}, this bar is "
            f"{spec.bar.digest()}: a bar written after the measurement proves nothing",
        )
    ]


def _text(answer: Judgement, answers: list[Gate]) -> str:
    lines = [f"{answer.outcome}: {answer.reason}", answer.message]
    if answer.recommendation:
        lines.append(f"Recommendation: {answer.recommendation}")
    for verdict in answer.verdicts:
        lines += [
            "",
            f"{verdict.candidate}: {verdict.verdict} ({verdict.reason}), "
            f"rule {verdict.rule.value}, {verdict.pairs} pairs",
        ]
        if verdict.bars:
            lines.append(
                f"  {'REQUIREMENT':34} {'ASKED':>7} {'CHANGE':>7} {'95% INTERVAL':>17} {'P':>6} "
                f"{'N':>3} {'FLOOR':>6}  ANSWER"
            )
        lines += [_bar_line(bar) for bar in verdict.bars]
        lines += [f"  control: {control.message}" for control in verdict.controls]
    for title, rows in (
        (
            "Noise floor",
            [
                f"{f.metric.value} at {_load(f)}"
                + (f", {f.category}" if f.category else "")
                + (f", context {f.context}" if f.context else "")
                + f": {f.floor:.1%} (n = {f.count})"
                for f in answer.noise_floor
            ],
        ),
        ("Tax", [tax.message for tax in answer.tax]),
        ("Watch", [watched.message for watched in answer.watch]),
        (
            "Arms",
            [line for arm in answer.arms for line in _arm_lines(arm)],
        ),
        (
            "Gates",
            [f"{g.answer:<13} {g.gate}: {g.reason}: {g.message}" for g in answers],
        ),
        ("Notes", [f"{note.reason}: {note.message}" for note in answer.notes]),
    ):
        if rows:
            lines += ["", f"{title}:", *(f"  {row}" for row in rows)]
    return "\n".join(lines)


def _arm_lines(arm: ArmFacts) -> list[str]:
    length = f"{arm.acceptance_length:.3f}" if arm.acceptance_length is not None else "n/a"
    return [
        f"{arm.arm}: {arm.launches} launches, acceptance length {length}",
        *(
            f"  {rate.category or f'depth {rate.depth}'} at {rate.at}: "
            f"{rate.tokens_per_second:.4g} tokens/s of one stream (n = {rate.windows})"
            for rate in arm.decode
        ),
    ]


def _load(place: BarResult | Floor) -> str:
    """Write the load of a place: requests in flight or per second, or the trace."""
    if place.trace:
        return str(TRACE)
    if place.requests_per_second is None:
        return str(place.at)
    peak = getattr(place, "peak_requests_per_second", None) or place.requests_per_second
    return str(Offered(place.requests_per_second, peak))


def _bar_line(bar: BarResult) -> str:
    where = f"{bar.kind} {bar.metric.value} at {_load(bar)}"
    where += f" {bar.category}" if bar.category else ""
    where += f" ctx {bar.context}" if bar.context else ""
    change = f"{bar.change:+.1%}" if bar.change is not None else "n/a"
    interval = "n/a"
    if bar.low is not None and bar.high is not None:
        interval = f"{bar.low:+.1%} to {bar.high:+.1%}"
    floor = f"{bar.floor:.1%}" if bar.floor is not None else "n/a"
    p = f"{bar.p:.2g}" if bar.p is not None else "n/a"
    return (
        f"  {where:34} {bar.required:>+7.1%} {change:>7} {interval:>17} {p:>6} {bar.count:>3} "
        f"{floor:>6}  {bar.answer} ({bar.reason})"
    )
