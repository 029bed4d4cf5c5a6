"""Reads the API server's audit log: who wrote what, and since when."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import host

_READS = ("get", "list", "watch")


def events(log: Path, since: str = "", reads: bool = False) -> Iterator[dict[str, object]]:
    """Yields the requests of the log that changed something, oldest first.

    A write is logged when it is answered, whatever the answer was. The cluster's own components'
    reads are never logged.

    Args:
        log: The audit log, one JSON object a line.
        since: The earliest moment, RFC 3339; every moment where empty.
        reads: Whether to yield get, list and watch requests too.

    Raises:
        host.Failure: If `since` is not RFC 3339 with a time zone.
    """
    earliest = _moment(since) if since else None
    with log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # still being written
            event = json.loads(line)
            verb = event["verb"]
            if verb in _READS and not reads:
                continue
            # A watch is answered when it starts; that it ended later is no second request.
            answered = "ResponseStarted" if verb == "watch" else "ResponseComplete"
            if event["stage"] not in (answered, "Panic"):
                continue
            time = event["requestReceivedTimestamp"]
            if earliest and datetime.fromisoformat(time) < earliest:
                continue
            target = event.get("objectRef", {})
            yield {
                "time": time,
                "user": event["user"]["username"],
                "verb": verb,
                "group": target.get("apiGroup", ""),
                "resource": target.get("resource", ""),
                "subresource": target.get("subresource", ""),
                "namespace": target.get("namespace", ""),
                "name": target.get("name", ""),
                "code": event.get("responseStatus", {}).get("code"),
            }


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise host.Failure(f"--since {text!r} is not RFC 3339 ({error})") from error
    if moment.tzinfo is None:
        raise host.Failure(f"--since {text!r} has no time zone; add Z for UTC")
    return moment
