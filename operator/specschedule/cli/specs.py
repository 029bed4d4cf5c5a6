"""Reading the manifests that several commands take: the SpecSchedule and its target."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from specschedule.cli.output import BadInput, read_documents
from specschedule.core.spec import Spec
from specschedule.core.target import TargetFacts
from specschedule.core.values import WRITTEN
from specschedule.core.workload import Trace, trace_facts
from specschedule.load.prompts import PromptsMissing, read_pool
from specschedule.vllm_facts.plain import mapping
from specschedule.vllm_facts.target import target_facts


def read_spec(path: str) -> Spec:
    """Return the spec of the one SpecSchedule in a file.

    Raises:
        BadInput: The file holds none, or several, or a spec that is not valid.
    """
    return valid_spec(path, only(path, "SpecSchedule"))


def valid_spec(path: str, schedule: Mapping[str, Any]) -> Spec:
    """Return the spec of a SpecSchedule that was read from a file.

    Raises:
        BadInput: The spec is not valid.
    """
    try:
        return Spec.model_validate(schedule.get("spec"), context=WRITTEN)
    except ValidationError as error:
        raise BadInput(f"{path}: spec{fault(error)}") from error


def read_target(
    path: str,
    spec: Spec,
    schedule: Mapping[str, Any],
    config_maps: Mapping[str, Mapping[str, str]] | None = None,
) -> TargetFacts:
    """Return the facts of the serving Deployment in a file.

    Args:
        path: The file.
        spec: Names the target, and its container where the user does.
        schedule: The SpecSchedule with that spec: its target is in its own namespace.
        config_maps: Data of ConfigMaps that its pod template names, by name.

    Raises:
        BadInput: The file holds no Deployment with the target's name, or one of another namespace.
    """
    namespace = _said(schedule, "namespace")
    deployment = only(path, spec.target.kind, name=spec.target.name, namespace=namespace)
    if _said(deployment, "name") != spec.target.name:
        raise BadInput(
            f"{path}: holds {spec.target.kind} {_said(deployment, 'name')}, but spec.target.name "
            f"is {spec.target.name}"
        )
    theirs = _said(deployment, "namespace")
    if None not in (theirs, namespace) and theirs != namespace:
        raise BadInput(
            f"{path}: holds {spec.target.kind} {spec.target.name} of namespace {theirs}, but the "
            f"SpecSchedule is of namespace {namespace}"
        )
    return target_facts(deployment, config_maps=config_maps, container=spec.target.container)


def categories_of(prompts: Path) -> list[str]:
    """Return the categories of the prompts in a folder or a ConfigMap in YAML.

    Raises:
        BadInput: There are none.
    """
    try:
        return sorted(read_pool(prompts).categories)
    except PromptsMissing as error:
        raise BadInput(f"--prompts {error}") from error


def trace_of(path: Path) -> Trace:
    """Return what a plan must know of the recorded arrivals in a file.

    Raises:
        BadInput: There are none.
    """
    try:
        return trace_facts(path.read_bytes().decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--trace {path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:
        raise BadInput(f"--trace {error}") from error


trace_option = click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="What spec.load.trace names: a file of JSON lines.",
)
"""Where the recorded arrivals of a question are, for commands that plan a run."""


def fault(error: ValidationError) -> str:
    """Return the first fault of a value as ``.path: what is wrong``."""
    first = error.errors()[0]
    return "".join(f".{part}" for part in first["loc"]) + f": {first['msg']}"


def only(
    path: str, kind: str, name: str | None = None, namespace: object = None
) -> Mapping[str, Any]:
    """Return the one object of a kind in a file, or the one of that name and namespace of several.

    Raises:
        BadInput: The file holds none, or several.
    """
    found = [
        document
        for document in read_documents(path)
        if isinstance(document, dict) and document.get("kind") == kind
    ]
    for field, wanted in (("name", name), ("namespace", namespace)):
        if wanted is not None and len(found) > 1:
            found = [document for document in found if _said(document, field) == wanted]
    if len(found) != 1:
        count = "no" if not found else f"{len(found)}"
        raise BadInput(f"{path}: holds {count} {kind}; it must hold one")
    return found[0]


def _said(document: Mapping[str, Any], field: str) -> object:
    """Return a field of an object's metadata; None where it says none."""
    return mapping(document.get("metadata")).get(field)
