"""What a trial pod's status says, in the cluster's own words. Pure.

A pod that is being deleted or has ended is over, whatever its containers still do; why it ended
decides whether the launch is void (preempted, evicted, lost) or its arm has failed.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from specschedule.core.evidence import Receipt
from specschedule.core.observed import PodFacts
from specschedule.wire import delivery, names

_IMAGE_WAITS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)

_WITHOUT = "; where that cannot be mended, let the operator run without instruments"

_DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
}
"""Reasons of the DisruptionTarget condition."""

_STATUS_REASONS = {
    "Preempting": "Preempted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeLost",
    "Terminated": "NodeLost",
    "Shutdown": "NodeLost",
    "Evicted": "Evicted",
    "DeadlineExceeded": "Evicted",
    "UnexpectedAdmissionError": "Evicted",
    "NodeAffinity": "Evicted",
    "NodePorts": "Evicted",
}
"""status.reason of pods that the kubelet or a controller ended, or would not start."""


def unix(rfc3339: str) -> float:
    """Return Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(rfc3339).timestamp()


def pod_facts(
    pod: Mapping[str, Any],
    *,
    was_ready: bool,
    last_line: str | None = None,
    receipt: Receipt | None = None,
) -> PodFacts:
    """Read a trial pod.

    Args:
        pod: The pod as stored.
        was_ready: Whether it is on record that the pod was Ready before.
        last_line: Last line that its server said, where it has ended.
        receipt: Facts read from the server.
    """
    status = pod.get("status") or {}
    server = _server_status(pod)
    phase, reason, message = _phase(pod, status, server, was_ready)
    if phase == "Ended" and last_line and reason in ("Exited", "OutOfMemory"):
        message = f"{message}: {last_line}"
    ready = _condition(status, "Ready")
    return PodFacts(
        phase=phase,
        reason=reason,
        message=message,
        created_at=unix(pod["metadata"]["creationTimestamp"]),
        ready_at=unix(ready["lastTransitionTime"]) if phase == "Ready" else None,
        url=url(pod),
        restarts=server.get("restartCount", 0),
        receipt=receipt or Receipt(),
    )


def url(pod: Mapping[str, Any]) -> str | None:
    """Return the base URL of a trial pod's server, once the pod has an address."""
    port = (pod["metadata"].get("annotations") or {}).get(names.PORT)
    return url_at(pod, port) if port else None


def url_at(pod: Mapping[str, Any], port: int | str) -> str | None:
    """Return the base URL of a port of a pod, once the pod has an address."""
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Say whether a pod is Ready."""
    return _condition(pod.get("status") or {}, "Ready").get("status") == "True"


def server_ended(pod: Mapping[str, Any]) -> bool:
    """Say whether the server's container ran and has ended, so that its last words can be read."""
    return "terminated" in (_server_status(pod).get("state") or {})


def exit_code(pod: Mapping[str, Any]) -> int | None:
    """Return the exit code of the server's container, once it has ended."""
    code: int | None = ((_server_status(pod).get("state") or {}).get("terminated") or {}).get(
        "exitCode"
    )
    return code


def boot_seconds(pod: Mapping[str, Any]) -> float | None:
    """Return seconds from the server container's start to Ready; None before that."""
    ready = _condition(pod.get("status") or {}, "Ready")
    started = ((_server_status(pod).get("state") or {}).get("running") or {}).get("startedAt")
    if ready.get("status") != "True" or started is None:
        return None
    return max(0.0, unix(ready["lastTransitionTime"]) - unix(started))


def image_id(pod: Mapping[str, Any]) -> str | None:
    """Return the digest of the image that the server's container runs."""
    running: str | None = _server_status(pod).get("imageID")
    return running or None


def _server_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    name = (pod["metadata"].get("annotations") or {}).get(names.CONTAINER)
    found: Mapping[str, Any] = next(
        (
            each
            for each in (pod.get("status") or {}).get("containerStatuses") or []
            if each["name"] == name
        ),
        {},
    )
    return found


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        (each for each in status.get("conditions") or [] if each["type"] == kind), {}
    )
    return found


def _phase(
    pod: Mapping[str, Any],
    status: Mapping[str, Any],
    server: Mapping[str, Any],
    was_ready: bool,
) -> tuple[Any, str | None, str]:
    """Return phase, reason and message; the first that applies, worst first."""
    if ended := _end(pod, status, server):
        return ("Ended", *ended)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") != "True":
        waiting = "Unschedulable" if scheduled.get("reason") else None
        return "Pending", waiting, scheduled.get("message") or "waits for the scheduler"
    if _condition(status, "Ready").get("status") == "True":
        return "Ready", None, f"ready on {pod['spec'].get('nodeName')}"
    if waiting_state := _waiting(status, server):
        return ("Pending", *waiting_state)
    if "running" not in (server.get("state") or {}):
        return "Pending", None, "its containers are being made"
    words = _condition(status, "Ready").get("message") or "its readiness probe does not pass yet"
    return ("NotReady" if was_ready else "Starting"), None, words


def _end(
    pod: Mapping[str, Any], status: Mapping[str, Any], server: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return reason and message of a pod that is over or going."""
    over = status.get("phase") in ("Succeeded", "Failed")
    going = "deletionTimestamp" in pod["metadata"]
    died = (server.get("state") or {}).get("terminated")
    if not (over or going or died):
        return None
    disruption = _condition(status, "DisruptionTarget")
    if disruption.get("status") == "True":
        reason = _DISRUPTIONS.get(disruption.get("reason", ""), "Evicted")
        return reason, disruption.get("message") or disruption.get("reason") or "disrupted"
    named = status.get("reason") or ""
    if over and (named in _STATUS_REASONS or named.startswith("OutOf")):
        return _STATUS_REASONS.get(named, "Evicted"), f"{named}: {status.get('message') or ''}"
    if going and not _before_deletion(pod, died):
        return "Deleted", "the pod was deleted"
    if died:
        return _death(died, f"container {server['name']}")
    for each in status.get("initContainerStatuses") or []:
        init = (each.get("state") or {}).get("terminated")
        if init and init.get("exitCode"):
            reason, words = _death(init, f"init container {each['name']}")
            if each["name"] == delivery.NAME and reason != "NodeLost":
                return "NotDelivered", words + _WITHOUT
            return reason, words
    return "Exited", status.get("message") or f"the pod ended in phase {status.get('phase')}"


def _before_deletion(pod: Mapping[str, Any], died: Mapping[str, Any] | None) -> bool:
    """Say whether the server had died before anybody asked for the pod's deletion."""
    if not died or not died.get("finishedAt"):
        return False
    grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
    return unix(died["finishedAt"]) < unix(pod["metadata"]["deletionTimestamp"]) - grace


def _death(terminated: Mapping[str, Any], what: str) -> tuple[str, str]:
    if terminated.get("reason") == "ContainerStatusUnknown":
        return "NodeLost", f"{what} was lost by its node"
    if terminated.get("reason") == "OOMKilled":
        return "OutOfMemory", f"{what} was killed for exceeding its memory limit"
    words = f"{what} exited with {terminated.get('exitCode')}"
    if said := terminated.get("message"):
        words += f" ({said.strip()})"
    return "Exited", words


def _waiting(status: Mapping[str, Any], server: Mapping[str, Any]) -> tuple[str | None, str] | None:
    """Return reason and message of the first container that waits for something by name."""
    for each in [*(status.get("initContainerStatuses") or []), server]:
        waiting = (each.get("state") or {}).get("waiting") or {}
        named = waiting.get("reason")
        if named in (None, "ContainerCreating", "PodInitializing"):
            continue
        words = f"container {each['name']}: {named}: {waiting.get('message') or ''}".rstrip(": ")
        if named in _IMAGE_WAITS and each["name"] == delivery.NAME:
            return "NotDelivered", words + _WITHOUT
        return ("ImagePull" if named in _IMAGE_WAITS else None), words
    return None
