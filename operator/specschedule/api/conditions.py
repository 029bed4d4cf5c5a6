"""Conditions from the state of a run: a pure function of what is known.

The phase is derived from the conditions, never the other way round. A condition keeps its
lastTransitionTime until its status flips, so that its age means something.
"""

from collections.abc import Mapping, Sequence
from typing import Any

TYPES = ("Accepted", "Progressing", "Promoted", "Degraded", "Ready")

_TRUE_WHEN_ENDED: Mapping[str, frozenset[str]] = {
    "Rejected": frozenset(),
    "Promoted": frozenset({"Accepted", "Promoted", "Ready"}),
    "Proposed": frozenset({"Accepted", "Ready"}),
    "NotPromoted": frozenset({"Accepted", "Ready"}),
    "Inconclusive": frozenset({"Accepted"}),
    "Aborted": frozenset({"Accepted"}),
    "RolledBack": frozenset({"Accepted", "Degraded"}),
}
_TRUE_WHILE_RUNNING = frozenset({"Accepted", "Progressing"})

MESSAGE_LENGTH = 1024
"""Longer messages are cut: several conditions repeat them, and a status stays under 64 KiB."""


def conditions(
    outcome: str | None,
    reason: str,
    message: str,
    *,
    held: bool,
    generation: int,
    now: str,
    previous: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the five conditions of a SpecSchedule.

    Args:
        outcome: How the run ended; None while it runs, waits for approval or is held.
        reason: CamelCase constant of ``api.reasons``: why it is where it is.
        message: The same for people.
        held: Whether something outside the experiment holds the run up.
        generation: metadata.generation that this is said of.
        now: RFC 3339 time.
        previous: Conditions as stored.

    Raises:
        ValueError: The outcome is none that a present run can have.
    """
    if outcome is not None and outcome not in _TRUE_WHEN_ENDED:
        raise ValueError(f"{outcome!r} is no outcome of a present run")
    text = message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…"
    true = _TRUE_WHILE_RUNNING if outcome is None else _TRUE_WHEN_ENDED[outcome]
    state = outcome or ("Held" if held else "Running")
    before = {c["type"]: c for c in previous}
    stated = []
    for type_ in TYPES:
        status = "True" if type_ in true else "False"
        known = before.get(type_, {})
        flipped = known.get("status") != status
        remarkable = status == ("False" if type_ == "Accepted" else "True")
        # The others only name the state that makes them what they are.
        tells = remarkable or type_ in ("Progressing", "Ready")
        stated.append(
            {
                "type": type_,
                "status": status,
                "reason": reason if tells else state,
                "message": text if tells else "",
                "lastTransitionTime": now if flipped else known["lastTransitionTime"],
                "observedGeneration": generation,
            }
        )
    return stated
