"""``specschedule judge``: the verdict over recorded trials."""

import math
from collections.abc import Mapping
from typing import Any

import click
from pydantic import ValidationError

from specschedule.cli.output import BadInput, emit, output_option, read_documents
from specschedule.cli.specs import fault, read_spec
from specschedule.core.evidence import Launch
from specschedule.core.judge import judge
from specschedule.core.observed import ServerFacts
from specschedule.core.spec import Spec
from specschedule.core.verdict import BarResult, Judgement, Note

_FROM_SPEC = ("arm", "launch", "round", "position", "attempt", "schedule")
_FROM_STATUS = ("startedAt", "receipt", "cells", "void", "failed")


@click.command()
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option("--trials", required=True, help="SpecTrials, as kubectl get -o yaml gives them.")
@click.option("--run", help="Run id, where the trials are of several runs.")
@output_option
def command(path: str, trials: str, run: str | None, output: str) -> None:
    """Judge the candidates of a SpecSchedule by the launches in TRIALS."""
    spec = read_spec(path)
    documents = _trials(trials, run)
    launches = [_launch(trials, document) for document in documents]
    named = [(launch.arm, launch.launch) for launch in launches]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{trials}: launch {twice[1]} of arm {twice[0]} is there twice")
    answer = judge(spec, launches, server=_server(documents))
    answer = answer.model_copy(update={"notes": [*answer.notes, *_bar_notes(spec, documents)]})
    emit(answer.plain(), _text(answer), output)


def _trials(path: str, run: str | None) -> list[dict[str, Any]]:
    """Return the SpecTrials of one run, with unmeasured numbers left out."""
    found: list[dict[str, Any]] = []
    for document in read_documents(path):
        found.extend(document if isinstance(document, list) else [document])
    for at, document in enumerate(found):
        if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
            raise BadInput(f"{path}: item {at + 1} is no SpecTrial: it has no spec")
    runs = sorted({str(d["spec"]["runId"]) for d in found if d["spec"].get("runId") is not None})
    if run is None and len(runs) > 1:
        raise BadInput(f"{path}: holds trials of runs {', '.join(runs)}: choose one with --run")
    if run is not None:
        found = [d for d in found if str(d["spec"].get("runId")) == run]
    if not found:
        raise BadInput(f"{path}: holds no SpecTrial" + (f" of run {run}" if run else ""))
    return [_measured(document) for document in found]


def _measured(value: Any) -> Any:
    """Leave out null and not-a-number: what was not measured is absent."""
    if isinstance(value, dict):
        kept = {key: _measured(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None}
    if isinstance(value, list):
        return [_measured(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _launch(path: str, document: Mapping[str, Any]) -> Launch:
    spec, status = document["spec"], document.get("status") or {}
    plain = {key: spec[key] for key in _FROM_SPEC if key in spec}
    plain |= {key: status[key] for key in _FROM_STATUS if key in status}
    owner = {key: plain[key] for key in ("arm", "launch", "round") if key in plain}
    if isinstance(plain.get("cells"), list):
        plain["cells"] = [owner | c if isinstance(c, dict) else c for c in plain["cells"]]
    try:
        return Launch.model_validate(plain)
    except ValidationError as error:
        name = (document.get("metadata") or {}).get("name") or spec.get("arm") or "SpecTrial"
        raise BadInput(f"{path}: {name}{fault(error)}") from error


def _server(documents: list[dict[str, Any]]) -> ServerFacts | None:
    """Return what the trials say of the incumbent's server; None when they say nothing."""
    for document in documents:
        spec = document["spec"]
        if "incumbent" in spec:
            return ServerFacts(container="", speculative=spec["incumbent"])
        if spec.get("arm") == "incumbent" and "speculative" in spec:
            return ServerFacts(container="", speculative=spec["speculative"])
    return None


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


def _text(answer: Judgement) -> str:
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
                f"  {'REQUIREMENT':34} {'ASKED':>7} {'CHANGE':>7} {'95% INTERVAL':>17} {'N':>3} "
                f"{'FLOOR':>6}  ANSWER"
            )
        lines += [_bar_line(bar) for bar in verdict.bars]
        lines += [f"  control: {control.message}" for control in verdict.controls]
    for title, rows in (
        (
            "Noise floor",
            [
                f"{f.metric.value} at {f.at}"
                + (f", {f.category}" if f.category else "")
                + f": {f.floor:.1%} (n = {f.count})"
                for f in answer.noise_floor
            ],
        ),
        ("Tax", [tax.message for tax in answer.tax]),
        ("Watch", [watched.message for watched in answer.watch]),
        (
            "Arms",
            [
                f"{arm.arm}: {arm.launches} launches, acceptance length "
                + (f"{arm.acceptance_length:.3f}" if arm.acceptance_length is not None else "n/a")
                for arm in answer.arms
            ],
        ),
        ("Notes", [f"{note.reason}: {note.message}" for note in answer.notes]),
    ):
        if rows:
            lines += ["", f"{title}:", *(f"  {row}" for row in rows)]
    return "\n".join(lines)


def _bar_line(bar: BarResult) -> str:
    where = f"{bar.kind} {bar.metric.value} at {bar.at}"
    where += f" {bar.category}" if bar.category else ""
    where += f" ctx {bar.context}" if bar.context else ""
    change = f"{bar.change:+.1%}" if bar.change is not None else "n/a"
    interval = "n/a"
    if bar.low is not None and bar.high is not None:
        interval = f"{bar.low:+.1%} to {bar.high:+.1%}"
    floor = f"{bar.floor:.1%}" if bar.floor is not None else "n/a"
    return (
        f"  {where:34} {bar.required:>+7.1%} {change:>7} {interval:>17} {bar.count:>3} "
        f"{floor:>6}  {bar.answer} ({bar.reason})"
    )
