"""Reasons are finite and documented: the table is compared with what the code can say."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specschedule.api.reasons import REASONS, description
from specschedule.core import schedule

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "specschedule"
SOURCES = [
    *(PACKAGE / "core").glob("*.py"),
    *(PACKAGE / "vllm_facts").glob("*.py"),
    *(PACKAGE / "adapters").rglob("*.py"),
    PACKAGE / "reconcile.py",
]

CAMEL = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)*")

BY_KEYWORD = {
    "Finished": "reason",
    "Judgement": "reason",
    "RolloutStep": "reason",
    "Step": "waiting",
    "Unreadable": "reason",
    "report": "reason",
}
BY_POSITION = {
    "fails": 1,
    "finish": 1,
    "hold_or_expire": 1,
    "refuse": 1,
    "rejected": 3,
    "say": 1,
    "unknown": 1,
}
NEVER_OF_A_RUN = {"Decided", "AllTried"}
"""Ends of a plan, after which the judge gives the reason."""


def said() -> Iterator[tuple[str, str]]:
    """Constants that the code gives as a run's reason, with the file that does."""
    for path in SOURCES:
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", "")).lstrip("_")
            given = [k.value for k in call.keywords if k.arg == BY_KEYWORD.get(name, "")]
            position = BY_POSITION.get(name)
            if position is not None and len(call.args) > position:
                given.append(call.args[position])
            yield from ((reason, path.name) for node in given for reason in constants(node))


def constants(node: ast.expr) -> Iterator[str]:
    """Reasons in an expression: a constant, or either side of a choice."""
    if isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))
    elif isinstance(node, ast.Constant) and CAMEL.fullmatch(str(node.value)):
        yield str(node.value)


def test_the_scan_finds_what_is_said_in_every_way() -> None:
    found = {reason for reason, _ in said()}
    assert {"Booting", "RolledOut", "TargetNotFound", "TargetBusy", "DataParallel"} <= found
    assert {"NotRead", "NothingMeasured", "EntryScript", "PrometheusNotConfigured"} <= found


def test_every_reason_that_a_run_can_give_is_documented() -> None:
    missing = {
        f"{reason} ({name})"
        for reason, name in said()
        if reason not in REASONS and reason not in NEVER_OF_A_RUN
    }
    assert not missing, "say in api/reasons.py what they mean"


def test_every_fault_of_a_schedule_is_documented() -> None:
    faults = vars(schedule)
    names = [n for n in faults if n.isupper() and not n.startswith("_")]
    values = [faults[n] for n in names[names.index("EMPTY") : names.index("UNSORTED")]]
    assert "Overlap" in values
    assert {f"Schedule{reason}" for reason in values} <= set(REASONS)


def test_no_documented_reason_is_one_that_nothing_says() -> None:
    text = "\n".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "reasons.py"
    )
    composed = re.compile(r"Schedule([A-Z]\w+)|Engine(\w+)Schedule")

    def occurs(reason: str) -> bool:
        parts = composed.fullmatch(reason)
        inner = next((g for g in parts.groups() if g), reason) if parts else reason
        return f'"{reason}"' in text or f'"{inner}"' in text

    assert not [reason for reason in REASONS if not occurs(reason)]


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_a_constant_and_its_text_a_sentence(reason: str) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]{2,39}", reason)
    assert re.fullmatch(r"[A-Za-z].{10,}\.", REASONS[reason])


def test_explain_carries_them_all() -> None:
    assert all(f"{reason}: {sentence}" in description() for reason, sentence in REASONS.items())
