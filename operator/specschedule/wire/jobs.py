"""What a load Job and its log say. Pure.

The log mixes standard output with standard error, so a line counts only when it is an event; but
a line that claims to be one and is not means that evidence was damaged, and the visit failed.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from specschedule.core.observed import VisitFacts
from specschedule.core.screening import REQUESTS, most_windows
from specschedule.core.visit import Event, Visit, VisitEnded, VisitFailed, visit_event, waves
from specschedule.wire.pods import unix


class DamagedLog(Exception):
    """A line of a load job's log claims to be an event and is none."""


def events(log: str) -> list[Event]:
    """Return the events of a load job's log; a last line without its end is left for later.

    Raises:
        DamagedLog: A whole line has an ``event`` but cannot be read.
    """
    found: list[Event] = []
    for number, line in enumerate(log.split("\n")[:-1], start=1):
        if not line.lstrip().startswith("{"):
            continue
        try:
            said = json.loads(line)
        except ValueError as error:
            if '"event"' in line:
                raise DamagedLog(f"line {number} of the load job's log is cut off") from error
            continue
        if not isinstance(said, dict) or "event" not in said:
            continue
        try:
            found.append(visit_event.validate_python(said))
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(str(part) for part in first["loc"])
            raise DamagedLog(
                f"line {number} of the load job's log is no event: {path}: {first['msg']}"
            ) from error
    return found


def visit_facts(
    job: Mapping[str, Any], pod: Mapping[str, Any] | None, log: str | None
) -> VisitFacts:
    """Read a load Job.

    Args:
        job: The Job as stored.
        pod: Its pod, if there is one.
        log: The pod's log so far; None when it cannot be read (any more).
    """
    created_at = unix(job["metadata"]["creationTimestamp"])
    try:
        said = events(log or "")
    except DamagedLog as damage:
        return VisitFacts(phase="Failed", message=str(damage), created_at=created_at)
    finished = _finished(job)
    if finished is None:
        words = _waiting(pod) if pod is not None else "its pod does not exist yet"
        return VisitFacts(phase="Running", message=words, created_at=created_at, events=said)
    kind, words = finished
    whole = any(isinstance(event, (VisitEnded, VisitFailed)) for event in said)
    if kind == "Complete" and whole:
        return VisitFacts(phase="Succeeded", created_at=created_at, events=said)
    if kind == "Complete":
        words = "the load job ended, but its log is lost: it holds no last event"
    elif pod is not None:
        words = f"{words}; {_death(pod, log)}"
    return VisitFacts(phase="Failed", message=words, created_at=created_at, events=said)


def longest_seconds(visit: Visit) -> int:
    """Return the seconds after which a visit cannot be alive any more.

    Each window is as many waves of requests as its load needs, plus one before and one after; an
    open loop lasts as long as its arrivals do. A screen's windows are not known before.
    """
    seconds = visit.warm_up_timeout + 2 * visit.scrape_timeout + 120
    if visit.screen is not None:
        waiting = most_windows(visit.screen) * (REQUESTS + 2) + visit.screen.max_tokens + 1
        seconds += waiting * visit.request_timeout
    for window in visit.windows:
        in_flight = window.profile.concurrency or 1
        if (rate := window.profile.mean_rate) is not None:
            seconds += window.requests / rate + 2 * visit.request_timeout
            continue
        steps = window.profile.steps or [[in_flight, window.requests]]
        seconds += (waves(steps) + 2) * visit.request_timeout
    return int(seconds)


def _finished(job: Mapping[str, Any]) -> tuple[str, str] | None:
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            words = ": ".join(
                part for part in (condition.get("reason"), condition.get("message")) if part
            )
            return condition["type"], words
    return None


def _waiting(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    for each in status.get("containerStatuses") or []:
        waiting = (each.get("state") or {}).get("waiting")
        if waiting:
            return f"load pod: {waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": ")
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return f"load pod: {condition.get('message') or condition.get('reason')}"
    return ""


def _death(pod: Mapping[str, Any], log: str | None) -> str:
    """Return how the load pod ended, with the last thing it said."""
    status = pod.get("status") or {}
    parts = [part for part in (status.get("reason"), status.get("message")) if part]
    for each in status.get("containerStatuses") or []:
        terminated = (each.get("state") or {}).get("terminated")
        if terminated:
            parts.append(f"exit code {terminated.get('exitCode')} ({terminated.get('reason')})")
        elif waiting := (each.get("state") or {}).get("waiting"):
            parts.append(f"{waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": "))
    lines = (log or "").strip().splitlines()
    if lines:
        parts.append(f"last line: {lines[-1].strip()[:300]}")
    return "load pod: " + (", ".join(parts) or "no trace of it is left")
