"""Writes the two CustomResourceDefinitions from the types: ``python -m specschedule.api.crd``.

The same definitions go to ``crds/`` (for ``kubectl apply``) and, wrapped for Helm, into the
chart's templates, because Helm never upgrades what lies in a chart's own ``crds`` folder.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from specschedule.api import reasons, rules
from specschedule.api.structural import docstrings, structural
from specschedule.api.v1alpha1 import GROUP, VERSION, SpecSchedule, SpecTrial, Status
from specschedule.core.observed import TrialSpec, TrialStatus
from specschedule.core.spec import Spec

CATEGORY = "speculation"
"""``kubectl get speculation`` lists both kinds. Not ``specschedule``: kubectl expands a category
before it looks for a kind, so ``kubectl get specschedule NAME`` would ask for both."""

NAME_LENGTH = 63
"""Names of the objects are label values of their pods."""

_NOTICE = "# Generated from operator/specschedule/api by `make generate`. Do not edit.\n"


class Kind(NamedTuple):
    """One kind of object and how the API server shows it."""

    envelope: type[BaseModel]
    plural: str
    short: str
    spec: dict[str, Any]
    status: dict[str, Any]
    columns: list[dict[str, Any]]


def _column(
    name: str, path: str, description: str, *, type_: str = "string", wide: bool = False
) -> dict[str, Any]:
    column = {"name": name, "type": type_, "description": description, "jsonPath": path}
    return column | ({"priority": 1} if wide else {})


_AGE = _column("Age", ".metadata.creationTimestamp", "Time since creation.", type_="date")


def kinds() -> list[Kind]:
    """Return both kinds with their schemas and rules."""
    spec = structural(Spec, defaults=True)
    add_rules(spec, rules.SPEC_RULES)
    attach(spec, rules.SPEC_LISTS)
    status = structural(Status, defaults=False)
    attach(status, rules.STATUS_LISTS)
    attach(status, {("conditions", "[]", "reason"): {"description": reasons.description()}})
    trial = structural(TrialSpec, defaults=False)
    add_rules(trial, rules.TRIAL_RULES)
    return [
        Kind(
            SpecSchedule,
            "specschedules",
            "sps",
            spec,
            status,
            [
                _column("Stage", ".status.stage", "Where the run is."),
                _column("Outcome", ".status.outcome", "How the run ended."),
                _column(
                    "Reason",
                    '.status.conditions[?(@.type=="Ready")].reason',
                    "Why it is where it is.",
                ),
                _column("Target", ".spec.target.name", "Serving workload.", wide=True),
                _column("Mode", ".spec.mode", "What may happen to the target.", wide=True),
                _column("Run", ".status.runId", "Id of the run.", wide=True),
                _AGE,
            ],
        ),
        Kind(
            SpecTrial,
            "spectrials",
            "spt",
            trial,
            structural(TrialStatus, defaults=False),
            [
                _column("Run", ".spec.runId", "Run that the launch belongs to."),
                _column("Arm", ".spec.arm", "Arm launched."),
                _column("Launch", ".spec.launch", "Number of the launch.", type_="integer"),
                _column("Round", ".spec.round", "Round of the launch.", type_="integer"),
                _column("Started", ".status.startedAt", "Since its pod exists.", type_="date"),
                _column("Ended", ".status.endedAt", "Since it is over.", type_="date"),
                _column("Void", ".status.void", "Why it does not count.", wide=True),
                _column("Failed", ".status.failed", "Why it was not measured.", wide=True),
                _AGE,
            ],
        ),
    ]


def attach(schema: dict[str, Any], keywords: Mapping[rules.Path, Mapping[str, Any]]) -> None:
    """Add keywords to the places of a schema that the paths name.

    Raises:
        KeyError: A path names a field that the type does not have.
    """
    for path, added in keywords.items():
        _place(schema, path).update(added)


def add_rules(schema: dict[str, Any], additions: Mapping[rules.Path, Sequence[rules.Rule]]) -> None:
    """Add CEL rules to the places that the paths name, after those already there.

    Raises:
        KeyError: A path names a field that the type does not have.
    """
    for path, added in additions.items():
        _place(schema, path).setdefault("x-kubernetes-validations", []).extend(added)


def _place(schema: dict[str, Any], path: rules.Path) -> dict[str, Any]:
    for step in path:
        schema = schema["items"] if step == "[]" else schema["properties"][step]
    return schema


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    name = kind.envelope.__name__
    said = docstrings(kind.envelope)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": kind.plural,
                "singular": name.lower(),
                "shortNames": [kind.short],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": kind.columns,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": " ".join((kind.envelope.__doc__ or "").split()),
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {
                                    "type": "object",
                                    "properties": {
                                        "name": {"type": "string", "maxLength": NAME_LENGTH}
                                    },
                                },
                                "spec": kind.spec | {"description": " ".join(said["spec"].split())},
                                "status": kind.status
                                | {"description": " ".join(said["status"].split())},
                            },
                        }
                    },
                }
            ],
        },
    }


class _InFull(yaml.SafeDumper):
    """Writes equal parts out in full; anchors read badly in a diff."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_InFull, sort_keys=False, width=96, allow_unicode=True)


def plain_text(kind: Kind) -> str:
    """Return the definition as a file for ``kubectl apply``."""
    return _NOTICE + _yaml(definition(kind))


def chart_text(kind: Kind) -> str:
    """Return the definition as a template of the chart, kept when the release is uninstalled."""
    crd = definition(kind)
    # Helm would read these braces as its own.
    body = _yaml({"spec": crd["spec"]}).replace("{{", '{{ "{{" }}')
    head = _yaml({"apiVersion": crd["apiVersion"], "kind": crd["kind"]})
    return (
        _NOTICE
        + "{{- if .Values.crds.install }}\n"
        + head
        + "metadata:\n"
        + f"  name: {crd['metadata']['name']}\n"
        + '  labels: {{- include "specschedule.labels" . | nindent 4 }}\n'
        + "  {{- if .Values.crds.keep }}\n"
        + "  annotations:\n"
        + "    helm.sh/resource-policy: keep\n"
        + "  {{- end }}\n"
        + body
        + "{{- end }}\n"
    )


def write(crds: Path, templates: Path) -> list[Path]:
    """Write all files and return their paths."""
    written = []
    for kind in kinds():
        for path, text in (
            (crds / f"{kind.plural}.yaml", plain_text(kind)),
            (templates / f"crd-{kind.plural}.yaml", chart_text(kind)),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            written.append(path)
    return written


def main(arguments: list[str]) -> int:
    """Write the definitions: ``crd CRDS_FOLDER CHART_FOLDER``."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m specschedule.api.crd CRDS_FOLDER CHART_FOLDER\n")
        return 2
    crds, chart = map(Path, arguments)
    write(crds, chart / "templates")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
