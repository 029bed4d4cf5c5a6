"""Reading SpecTrials: the launches of one run, from a file or from kubectl's output."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from specschedule.cli.output import BadInput, read_documents
from specschedule.cli.specs import fault
from specschedule.core.evidence import Launch
from specschedule.core.spec import Candidate, Spec
from specschedule.vllm_facts.plain import mapping

_FROM_SPEC = ("arm", "launch", "round", "position", "attempt", "schedule", "contextAxis")
_FROM_STATUS = ("startedAt", "receipt", "fit", "cells", "void", "failed")


def read_trials(path: str, run: str | None) -> list[dict[str, Any]]:
    """Return the SpecTrials of one run, with unmeasured numbers left out.

    Those of a screen are left out: their windows choose what is tested, and are no evidence.

    Raises:
        BadInput: The file holds none, or those of several runs and ``run`` chooses none.
    """
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
    found = [d for d in found if not mapping(d["spec"].get("visit")).get("screen")]
    if not found:
        raise BadInput(f"{path}: holds no SpecTrial" + (f" of run {run}" if run else ""))
    return [_measured(document) for document in found]


def testing(path: str, spec: Spec, documents: Sequence[Mapping[str, Any]]) -> Spec:
    """Return the question with its candidates: where they were searched for, those launched.

    Raises:
        BadInput: They were searched for, and no launch is of one.
    """
    if spec.search is None:
        return spec
    named = {}
    for document in documents:
        trial = document["spec"]
        name = str(trial.get("arm", "")).removeprefix("candidate-")
        if trial.get("schedule") and name != trial.get("arm"):
            tokens = mapping(trial.get("speculative")).get("num_speculative_tokens")
            named[name] = {"name": name, "schedule": trial["schedule"], "maxTokens": tokens}
    if not named:
        raise BadInput(f"{path}: holds no launch of a candidate: the search has found none yet")
    try:
        return spec.testing([Candidate.model_validate(_measured(n)) for n in named.values()])
    except ValidationError as error:
        raise BadInput(f"{path}: spec.schedule{fault(error)}") from error


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


def status_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trial's status, empty where it has none."""
    return mapping(document.get("status"))


def read_launches(path: str, documents: Sequence[Mapping[str, Any]]) -> list[Launch]:
    """Return the launches of a run's trials.

    Raises:
        BadInput: One cannot be read, or is there twice.
    """
    some_ended = any(status_of(document).get("endedAt") for document in documents)
    launches = [_launch(path, document, some_ended=some_ended) for document in documents]
    named = [(launch.arm, launch.launch) for launch in launches]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{path}: launch {twice[1]} of arm {twice[0]} is there twice")
    return launches


def _launch(path: str, document: Mapping[str, Any], *, some_ended: bool) -> Launch:
    """Return a trial's launch; one that still runs beside ended ones does not count."""
    spec, status = document["spec"], status_of(document)
    plain = {key: spec[key] for key in _FROM_SPEC if key in spec}
    plain |= {key: status[key] for key in _FROM_STATUS if key in status}
    if some_ended and status.get("startedAt") and not status.get("endedAt"):
        plain.setdefault("void", "it has not ended")
    owner = {key: plain[key] for key in ("arm", "launch", "round") if key in plain}
    if isinstance(plain.get("cells"), list):
        plain["cells"] = [owner | c if isinstance(c, dict) else c for c in plain["cells"]]
    try:
        return Launch.model_validate(plain)
    except ValidationError as error:
        name = mapping(document.get("metadata")).get("name") or spec.get("arm") or "SpecTrial"
        raise BadInput(f"{path}: {name}{fault(error)}") from error
