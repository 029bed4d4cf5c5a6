"""Conditions follow the state of the run, and age from the moment they flipped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.api.conditions import MESSAGE_LENGTH, TYPES, conditions

# Accepted, Progressing, Promoted, Degraded, Ready
TABLE = {
    "Rejected": ("Rejected", False, "FFFFF"),
    "running, or waiting for approval": (None, False, "TTFFF"),
    "held": (None, True, "TTFFF"),
    "Promoted": ("Promoted", False, "TFTFT"),
    "Proposed": ("Proposed", False, "TFFFT"),
    "NotPromoted": ("NotPromoted", False, "TFFFT"),
    "Inconclusive": ("Inconclusive", False, "TFFFF"),
    "Aborted": ("Aborted", False, "TFFFF"),
    "RolledBack": ("RolledBack", False, "TFFTF"),
}
OUTCOMES = [None, *(outcome for outcome, _, _ in TABLE.values() if outcome)]


def stated(
    outcome: str | None = None,
    reason: str = "Booting",
    message: str = "arm none boots",
    *,
    held: bool = False,
    generation: int = 3,
    now: str = "2026-11-29T10:00:00Z",
    previous: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    return conditions(
        outcome,
        reason,
        message,
        held=held,
        generation=generation,
        now=now,
        previous=previous or [],
    )


def by_type(stated: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in stated}


@pytest.mark.parametrize("state", TABLE)
def test_each_state_has_its_row(state: str) -> None:
    outcome, held, row = TABLE[state]
    found = stated(outcome, held=held)
    assert [c["type"] for c in found] == list(TYPES)
    assert "".join(c["status"][0] for c in found) == row


TELLING = {
    "a rejection says why it is not accepted": ("Rejected", {"Accepted", "Progressing", "Ready"}),
    "a running one says what it waits for": (None, {"Progressing", "Ready"}),
    "a promotion says how it went": ("Promoted", {"Promoted", "Progressing", "Ready"}),
    "a rollback says what went wrong": ("RolledBack", {"Degraded", "Progressing", "Ready"}),
}


@pytest.mark.parametrize("claim", TELLING)
def test_reason_and_message_stand_where_they_are_looked_for(claim: str) -> None:
    outcome, telling = TELLING[claim]
    found = by_type(stated(outcome, "TheReason", "the message"))
    assert {t for t, c in found.items() if c["reason"] == "TheReason"} == telling
    assert {t for t, c in found.items() if c["message"] == "the message"} == telling


def test_a_held_run_is_told_from_a_running_one() -> None:
    held = by_type(stated(None, "MetricsUnavailable", "no answer", held=True))
    assert held["Progressing"]["reason"] == "MetricsUnavailable"
    assert held["Promoted"]["reason"] == "Held"
    assert by_type(stated(None))["Promoted"]["reason"] == "Running"


@given(
    st.lists(st.tuples(st.sampled_from(OUTCOMES), st.booleans()), min_size=1, max_size=8),
)
def test_the_transition_time_is_the_time_of_the_last_flip(
    states: list[tuple[str | None, bool]],
) -> None:
    previous: list[dict[str, Any]] = []
    flipped: dict[str, tuple[str, str]] = {}
    for hour, (outcome, held) in enumerate(states):
        now = f"2026-11-29T{hour:02}:00:00Z"
        previous = stated(outcome, held=held, now=now, previous=previous, generation=hour)
        for condition in previous:
            known = flipped.get(condition["type"])
            if known is None or known[0] != condition["status"]:
                flipped[condition["type"]] = (condition["status"], now)
            assert condition["lastTransitionTime"] == flipped[condition["type"]][1]
            assert condition["observedGeneration"] == hour


def test_superseded_is_no_state_of_a_present_run() -> None:
    with pytest.raises(ValueError, match="Superseded"):
        stated("Superseded")


def test_a_long_message_is_cut_visibly() -> None:
    message = by_type(stated(None, message="x" * 5000))["Ready"]["message"]
    assert len(message) == MESSAGE_LENGTH
    assert message.endswith("x…")
