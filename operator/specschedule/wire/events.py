"""Events about a SpecSchedule. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

from specschedule.wire import names

LONGEST_NOTE = 1024
"""Characters that the API server takes."""


def event(
    schedule: Mapping[str, Any], reason: str, message: str, *, warning: bool, now: str
) -> dict[str, Any]:
    """Return an event whose name is derived from what it says, so that it exists once.

    Args:
        schedule: The SpecSchedule as stored.
        reason: CamelCase constant.
        message: The same for people; cut to what the API server takes.
        warning: Whether it is bad news.
        now: RFC 3339 time.
    """
    metadata = schedule["metadata"]
    kind = "Warning" if warning else "Normal"
    said = "\n".join((metadata["uid"], kind, reason, message))
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    note = message if len(message) <= LONGEST_NOTE else message[: LONGEST_NOTE - 1] + "…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:200].rstrip('-.')}.{digest}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": "SpecSchedule",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": note,
        "source": {"component": names.MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
