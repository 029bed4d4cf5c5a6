"""Gates between arms for rows by context: what counts is the table and the K that was recorded."""

from typing import Any

import pytest

from specschedule.core.context_axis import CLASS
from specschedule.core.evidence import Cell, Launch, Receipt
from specschedule.core.gate import Gate
from specschedule.core.gates import between_arms
from specschedule.core.receipts import compared
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

ROWS = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]
EVERY_K = [[1, 1, 4], [2, 2, 3], [3, 3, 2], [4, 4, 1], [5, 16, 0]]
SPEC = Spec.model_validate(
    {
        "target": {"name": "chat"},
        "slo": {"ttft": "500ms"},
        "candidates": [{"name": "deep", "schedule": ROWS}],
        "load": {"points": [8]},
        "bar": {"improve": [{"by": "15%"}]},
    }
)
SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "num_speculative_tokens": 3},
)


def cell(tokens: int | None, per_draft: float, **more: Any) -> Cell:
    """A window of 1000 drafts."""
    drafted = round(1000 * per_draft)
    plain = {
        "cell": "hold8",
        "arm": "x",
        "launch": 1,
        "profile": {"kind": "hold", "concurrency": 8},
        "tokens": tokens,
        "windowSeconds": 30.0,
        "offered": 20,
        "completed": 20,
        "outputTokens": 4000,
        "engineOutputTokens": 4000,
        "drafts": 1000 if drafted else 0,
        "draftTokens": drafted,
        "acceptedTokens": drafted // 2,
        "preemptions": 0,
        "prefixCache": {"queries": 1000, "hits": 0},
        **more,
    }
    return Cell.model_validate({k: v for k, v in plain.items() if v is not None})


def launched(arm: str, cells: list[Cell], *, axis: bool = False, **facts: Any) -> Launch:
    told: dict[str, Any] = {
        "engine_version": "0.32.0",
        "instruments": ["fingerprint", "counters"],
        "num_speculative_tokens": 4 if axis else 3,
        **facts,
    }
    return Launch(
        arm=arm,
        launch=1,
        round=1,
        schedule=ROWS if axis else None,
        context_axis=axis,
        receipt=Receipt.model_validate({k: v for k, v in told.items() if v is not None}),
        cells=cells,
    )


def answers(candidate: Launch, server: ServerFacts = SERVER) -> dict[str, Gate]:
    without = cell(0, 0.0, drafts=None, draftTokens=None, acceptedTokens=None)
    launches = [
        launched("incumbent", [cell(3, 3.0)]),
        candidate,
        launched("none", [without], num_speculative_tokens=None),
    ]
    return {gate.gate: gate for gate in between_arms(SPEC, launches, server)}


def steps(**counts: int) -> list[dict[str, Any]]:
    return [
        {"tokens": int(name.removeprefix("k")), "count": count, "meanMs": 9.0}
        for name, count in counts.items()
    ]


FOLLOWS = {"schedule": ROWS, "scheduler": "context-axis"}


def test_the_table_that_the_scheduler_told_counts_and_the_rows_of_the_boot_do_not() -> None:
    found = answers(launched("candidate-deep", [cell(1, 1.0)], axis=True, **FOLLOWS))
    assert (found["scheduleInEffect"].answer, found["scheduleInEffect"].reason) == ("Pass", "Holds")
    boot = launched("candidate-deep", [cell(1, 1.0)], axis=True, schedule=EVERY_K)
    assert answers(boot)["scheduleInEffect"].reason == "OtherScheduleInEffect"


HELD = {
    "the K of its context": (cell(4, 4.0), "Pass", "Holds"),
    "the K of another context": (cell(4, 1.0), "Fail", "DraftsShort"),
    "mixed, between its Ks": (cell(None, 2.5), "Pass", "HoldsWithNotes"),
    "mixed, with the K of each step": (
        cell(None, 2.5, steps=steps(k1=500, k4=500)),
        "Pass",
        "HoldsWithNotes",
    ),
    "mixed, with steps at a K that its table lacks": (
        cell(None, 2.5, steps=steps(k1=300, k3=400, k4=300)),
        "Fail",
        "OtherScheduleInEffect",
    ),
    "mixed, a few steps on the way": (
        cell(None, 2.5, steps=steps(k0=200, k1=500, k3=10, k4=500)),
        "Pass",
        "HoldsWithNotes",
    ),
    "mixed, more than its largest": (cell(None, 4.5), "Fail", "NotLimited"),
    "mixed, fewer than its smallest": (cell(None, 0.5), "Fail", "DraftsShort"),
    "mixed, none at all": (cell(None, 0.0), "Fail", "SpeculationOff"),
}


@pytest.mark.parametrize("what", HELD)
def test_windows_are_held_against_the_ks_of_the_table(what: str) -> None:
    window, answer, reason = HELD[what]
    # The acceptance of an arm without a draft is another gate's.
    found = answers(launched("candidate-deep", [window], axis=True, **FOLLOWS))
    assert (found["scheduleInEffect"].answer, found["scheduleInEffect"].reason) == (answer, reason)


def test_the_scheduler_is_declared_and_no_difference_between_arms() -> None:
    candidate = launched("candidate-deep", [cell(1, 1.0)], axis=True, **FOLLOWS)
    found = answers(candidate)["instruments"]
    assert (found.answer, found.reason) == ("Pass", "Same")
    assert "candidate-deep the context-axis scheduler too, as launched" in found.message
    incumbent = launched("incumbent", [cell(3, 3.0)])
    differing = {each.fact for each in compared(SPEC, [incumbent, candidate], {"none"})}
    assert differing == set()


def test_a_scheduler_that_did_not_show_itself_is_unknown() -> None:
    seen = launched("candidate-deep", [cell(1, 1.0)], axis=True, **FOLLOWS)
    silent = launched("candidate-deep", [cell(1, 1.0)], axis=True)
    assert answers(silent)["instruments"].answer == "Unknown"
    both = [launched("incumbent", [cell(3, 3.0)]), silent, seen.model_copy(update={"launch": 2})]
    found = {gate.gate: gate for gate in between_arms(SPEC, both, SERVER)}["instruments"]
    assert (found.answer, found.reason) == ("Unknown", "NotRead"), "one that told is not all"
    assert "candidate-deep" in found.message


OWN = SERVER.model_copy(update={"scheduler_class": CLASS})
"""A server that names the scheduler itself: launches bring nothing along for it."""


def test_a_servers_own_scheduler_must_show_its_table_too() -> None:
    window = [cell(1, 1.0)]
    arm = {"num_speculative_tokens": 4}
    seen = launched("candidate-deep", window, **FOLLOWS, **arm).model_copy(
        update={"schedule": ROWS}
    )
    found = answers(seen, OWN)
    assert found["scheduleInEffect"].answer == found["instruments"].answer == "Pass"
    said = "candidate-deep the context-axis scheduler too, as the server names it"
    assert said in found["instruments"].message
    silent = launched("candidate-deep", window, **arm).model_copy(update={"schedule": ROWS})
    assert answers(silent, OWN)["instruments"].answer == "Unknown"
    boot = launched("candidate-deep", window, **arm, scheduler="context-axis", schedule=EVERY_K)
    boot = boot.model_copy(update={"schedule": ROWS})
    assert answers(boot, OWN)["scheduleInEffect"].reason == "OtherScheduleInEffect"
