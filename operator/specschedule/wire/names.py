"""Names, labels and annotations of everything the operator makes in a cluster.

Children carry no label but these, so that no Service, PodDisruptionBudget or autoscaler of the
serving workload can select them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from specschedule.api.v1alpha1 import GROUP, VERSION

API_VERSION = f"{GROUP}/{VERSION}"

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "specschedule"
SCHEDULE = f"{GROUP}/schedule"
"""Label: name of the SpecSchedule; events of children find their way by it."""
OWNER_UID = f"{GROUP}/schedule-uid"
"""Label: UID of the SpecSchedule; children are listed by it."""
RUN = f"{GROUP}/run"
ARM = f"{GROUP}/arm"
LAUNCH = f"{GROUP}/launch"
TRIAL = f"{GROUP}/trial"
VISIT = f"{GROUP}/visit"
ROLE = f"{GROUP}/role"
"""Label: trial for servers under test, load for load jobs."""

CONTAINER = f"{GROUP}/container"
"""Annotation of trial pods: name of the vLLM container."""
PORT = f"{GROUP}/port"
"""Annotation of trial pods: port of the OpenAI API."""
DROPPED = f"{GROUP}/dropped"
"""Annotation of trial pods: what of the serving template was left out."""
NOT_CARRIED = f"{GROUP}/not-carried"
"""Annotation of trial pods: which instruments the target cannot carry, and why."""
APPROVE = f"{GROUP}/approve"
"""Annotation of a SpecSchedule: the run id that may be promoted."""
RETRY = f"{GROUP}/retry"
"""Annotation of a SpecSchedule: count of retries; a new one is a new run."""
FINALIZER = f"{GROUP}/promotion"
"""Stands on a SpecSchedule between the first write to the target and the run's end."""

LONGEST = 63
"""Longest label value, and longest name of a pod's host name or a Job."""


def fitted(*parts: str) -> str:
    """Join parts with ``-`` into a name of at most 63 characters, cut and hashed when longer."""
    name = "-".join(parts)
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-.')}-{digest}"


def job_name(trial: str, visit: int) -> str:
    """Return the name of a visit's Job."""
    return fitted(trial, f"v{visit}")


def own(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are ours; others may have put more on an object of ours."""
    return {k: v for k, v in labels.items() if k == MANAGED_BY or k.startswith(f"{GROUP}/")}


def owner_reference(parent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a controller reference to an object of ours; it never blocks the owner's deletion."""
    return {
        "apiVersion": API_VERSION,
        "kind": parent["kind"],
        "name": parent["metadata"]["name"],
        "uid": parent["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def controlled_by(manifest: Mapping[str, Any], uid: str) -> bool:
    """Say whether the object's controller has this UID and the object carries our label."""
    metadata = manifest.get("metadata") or {}
    return (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER and any(
        reference.get("controller") and reference.get("uid") == uid
        for reference in metadata.get("ownerReferences") or []
    )


def selecting(services: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> list[str]:
    """Return the names of the Services whose selector matches the labels."""
    return [
        service["metadata"]["name"]
        for service in services
        if (selector := (service.get("spec") or {}).get("selector"))
        and selector.items() <= labels.items()
    ]
