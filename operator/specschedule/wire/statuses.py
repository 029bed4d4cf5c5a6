"""Keeps the status of a SpecSchedule under its promised size. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from specschedule.wire.patches import without_nulls

LARGEST = 64 * 1024
"""Bytes of JSON."""

MET_KEPT = 8
"""Requirements that are met, of each verdict, that stay when there is no room for all."""

TEXT_KEPT = 400
"""Characters of a long text that stay when there is no room for all."""

_PLACE = ("metric", "at", "requestsPerSecond", "trace", "category", "context")
_NOTE = re.compile(r" \(left out of the status, which is limited to 64 KiB: ([^()]*)\)$")

Status = dict[str, Any]
_Cut = tuple[str, Callable[[Status], Status]]


def fitted(status: Mapping[str, Any]) -> Status:
    """Return the status without nulls, and without what loses least until it is small enough.

    Past runs go first, oldest first (``history`` holds the newest first), then ``_CUTS`` in
    order; the message names what is left out. Outcome, reason, conditions and the record of a
    promotion are never cut.
    """
    small: Status = without_nulls(status)
    if _size(small) <= LARGEST:
        return small
    message = str(small.get("message") or "")
    noted = _NOTE.search(message)
    left_out = noted.group(1).split(", ") if noted else []
    message = _NOTE.sub("", message)
    for what, cut in _CUTS:
        shorter = cut(small)
        if shorter == small:
            continue
        small = shorter
        left_out = [name for name, _ in _CUTS if name == what or name in left_out]
        if len(message) > TEXT_KEPT and what == _LONG_TEXTS:
            message = _shortened(message)
        note = f" (left out of the status, which is limited to 64 KiB: {', '.join(left_out)})"
        small["message"] = message + note
        if _size(small) <= LARGEST:
            break
    return small


def _size(status: Mapping[str, Any]) -> int:
    return len(json.dumps(status, separators=(",", ":")).encode())


def _older_runs(status: Status) -> Status:
    history = list(status.get("history", []))
    # Leaves room for the note in the message.
    while history and _size(status | {"history": history}) > LARGEST - TEXT_KEPT:
        history.pop()
    return status | {"history": history} if "history" in status else status


def _without(field: str) -> Callable[[Status], Status]:
    return lambda status: {name: value for name, value in status.items() if name != field}


def _each(field: str, change: Callable[[Status], Status]) -> Callable[[Status], Status]:
    """Return a cut of every item of a list."""

    def cut(status: Status) -> Status:
        if not status.get(field):
            return status
        return status | {field: [change(item) for item in status[field]]}

    return cut


def _floors_of_the_bar(status: Status) -> Status:
    def place(entry: Status) -> tuple[Any, ...]:
        return tuple(entry.get(key) for key in _PLACE)

    bars = [bar for verdict in status.get("verdict", []) for bar in verdict.get("bars", [])]
    named = {place(bar) for bar in bars}
    floors = status.get("noiseFloor", [])
    kept = [floor for floor in floors if place(floor) in named]
    return status | {"noiseFloor": kept} if kept != floors else status


def _predictions(status: Status) -> Status:
    if "proposals" not in status:
        return status
    shorter = _each("proposed", _without("predicted"))(status["proposals"])
    return status | {"proposals": shorter}


def _few_met(verdict: Status) -> Status:
    bars = verdict.get("bars", [])
    met = [at for at, bar in enumerate(bars) if bar.get("answer") == "Met"]
    beyond = set(met[MET_KEPT:])
    return verdict | {"bars": [bar for at, bar in enumerate(bars) if at not in beyond]}


def _gates_that_hold(status: Status) -> Status:
    gates = status.get("gates", [])
    kept = [gate for gate in gates if gate.get("answer") not in ("Pass", "NotApplicable")]
    return status | {"gates": kept} if kept != gates else status


def _shortened(value: Any) -> Any:
    """Return plain data whose long texts end in an ellipsis."""
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if isinstance(value, str) and len(value) > TEXT_KEPT:
        return value[: TEXT_KEPT - 1] + "…"
    return value


_NEVER_CUT = ("outcome", "reason", "conditions", "promotion")
_LONG_TEXTS = "the ends of long texts"


def _texts(status: Status) -> Status:
    return {
        name: value if name in _NEVER_CUT else _shortened(value) for name, value in status.items()
    }


_CUTS: tuple[_Cut, ...] = (
    ("older runs of history", _older_runs),
    ("tax", _without("tax")),
    ("watch", _without("watch")),
    ("notes", _without("notes")),
    ("predictions by load point", _predictions),
    ("noise floors that no requirement names", _floors_of_the_bar),
    ("pairs of requirements", _each("verdict", _each("bars", _without("pairs")))),
    ("requirements that are met", _each("verdict", _few_met)),
    ("gates that pass", _gates_that_hold),
    ("decode rates of arms", _each("arms", _without("decode"))),
    ("goodput of arms", _each("arms", _without("goodput"))),
    (_LONG_TEXTS, _texts),
    ("all requirements", _each("verdict", _without("bars"))),
    ("controls", _each("verdict", _without("controls"))),
    ("noise floors", _without("noiseFloor")),
    ("arms", _without("arms")),
    ("plan", _without("plan")),
    ("gates", _without("gates")),
    ("verdict", _without("verdict")),
    ("recommendation", _without("recommendation")),
)
"""What is left out, from what loses least; the SpecTrials hold the evidence of all of it."""
