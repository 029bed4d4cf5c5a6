"""Compares the definitions that an API server serves with the types of this operator.

A server with older definitions drops the fields it does not know without a word: a limit in the
spec would be no limit, a fact in the status would be gone at the next look.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from specschedule.api.crd import kinds
from specschedule.api.v1alpha1 import GROUP, VERSION

OPENAPI_PATH = f"/openapi/v3/apis/{GROUP}/{VERSION}"
"""Where a server describes what it serves; every authenticated client may read it."""


def missing_fields(openapi: Mapping[str, Any]) -> list[str]:
    """Return the fields of this operator that the server would drop.

    Args:
        openapi: The server's answer at ``OPENAPI_PATH``.

    Returns:
        Names such as ``SpecSchedule.spec.bar.minEffect``; none when the server knows them all.
    """
    served = {
        each["x-kubernetes-group-version-kind"][0]["kind"]: each
        for each in openapi.get("components", {}).get("schemas", {}).values()
        if each.get("x-kubernetes-group-version-kind")
    }
    missing: list[str] = []
    for kind in kinds():
        name = kind.envelope.__name__
        if name not in served:
            missing.append(name)
            continue
        for part, ours in (("spec", kind.spec), ("status", kind.status)):
            theirs = served[name]["properties"].get(part, {})
            missing.extend(_missing(ours, theirs, f"{name}.{part}"))
    return missing


def _missing(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> Iterator[str]:
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "items" in ours:
        yield from _missing(ours["items"], theirs.get("items", {}), where)
    for name, inner in ours.get("properties", {}).items():
        known = theirs.get("properties", {}).get(name)
        if known is None:
            yield f"{where}.{name}"
        else:
            yield from _missing(inner, known, f"{where}.{name}")
