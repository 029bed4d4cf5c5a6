"""Keeps the status of a SpecSchedule under its promised size. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from specschedule.wire.patches import without_nulls

LARGEST = 64 * 1024
"""Bytes of JSON."""

_NOTE = " (older runs left out of status.history: the status is limited to 64 KiB)"


def fitted(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status without nulls, its oldest past runs left out until it is small enough.

    ``history`` holds the newest run first. What the present run says is never cut.
    """
    small: dict[str, Any] = without_nulls(status)
    if _size(small) <= LARGEST or not small.get("history"):
        return small
    message = str(small.get("message") or "")
    small = {**small, "message": message if message.endswith(_NOTE) else message + _NOTE}
    while small["history"] and _size(small) > LARGEST:
        small["history"] = small["history"][:-1]
    return small


def _size(status: Mapping[str, Any]) -> int:
    return len(json.dumps(status, separators=(",", ":")).encode())
