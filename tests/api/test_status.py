"""A status tells one run: what was found now, what was found before, and the runs that are over."""

from typing import Any

import pytest
from pydantic import ValidationError

from specschedule.api.status import status_of
from specschedule.core.decision import Report
from specschedule.core.observed import Promotion, ScheduleFacts
from specschedule.core.spec import Metric, Spec
from specschedule.core.target import Unreadable
from specschedule.core.verdict import Judgement, Watched

SPEC = Spec.model_validate(
    {
        "target": {"name": "chat"},
        "slo": {"ttft": "500ms"},
        "candidates": [{"name": "card", "schedule": [[1, 16, 1]]}],
        "load": {"points": [1]},
        "bar": {"improve": [{"by": "15%"}]},
        "historyLimit": 2,
    }
)
NOW = 1_796_000_000.0


def facts(status: dict[str, Any] | None = None, **more: Any) -> ScheduleFacts:
    return ScheduleFacts(
        **{
            "namespace": "llm",
            "name": "chat",
            "uid": "u",
            "generation": 4,
            "created_at": NOW - 60,
            "spec": SPEC,
            "status": status or {},
            **more,
        }
    )


def report(**more: Any) -> Report:
    return Report(
        **{
            "run_id": "7f3a",
            "stage": "Measuring",
            "reason": "Booting",
            "message": "none boots",
            **more,
        }
    )


def test_the_first_report_of_a_run() -> None:
    status = status_of(report(started_at="2026-11-29T10:00:00Z"), facts(), NOW)
    assert {k: v for k, v in status.items() if k != "conditions"} == {
        "observedGeneration": 4,
        "runId": "7f3a",
        "stage": "Measuring",
        "startedAt": "2026-11-29T10:00:00Z",
        "reason": "Booting",
        "message": "none boots",
        "history": [],
    }
    assert len(status["conditions"]) == 5


def test_the_same_report_again_changes_nothing() -> None:
    once = status_of(report(started_at="2026-11-29T10:00:00Z"), facts(), NOW)
    assert status_of(report(started_at="2026-11-29T10:00:00Z"), facts(once), NOW + 60) == once


def test_what_a_report_leaves_out_about_the_same_run_stays() -> None:
    promotion = Promotion(candidate="card", target="chat", started_at=NOW)
    arms = [{"arm": "none", "launches": 1, "cells": 3, "goodput": []}]
    before = status_of(
        report(arms=arms, promotion=promotion, recommendation="remove it"), facts(), NOW
    )
    after = status_of(report(outcome="Promoted", reason="RolledOut"), facts(before), NOW)
    assert after["outcome"] == "Promoted"
    assert after["reason"] == "RolledOut"
    for field in ("arms", "promotion", "recommendation"):
        assert after[field] == before[field]


def test_nothing_of_an_earlier_judgement_stays_beside_a_later_one() -> None:
    watched = Watched(
        candidate="card",
        metric=Metric.GOODPUT,
        at=1,
        change=-0.04,
        pairs=[-0.03, -0.05],
        spread=0.06,
        message="goodput at 1: -4.0%",
    )
    first = Judgement(outcome="Inconclusive", reason="NotShown", message="m", watch=[watched])
    before = status_of(report(judgement=first), facts(), NOW)
    assert [item["at"] for item in before["watch"]] == [1]
    held = status_of(report(), facts(before), NOW)
    assert held["watch"] == before["watch"]
    later = first.model_copy(update={"watch": []})
    assert "watch" not in status_of(report(judgement=later), facts(held), NOW)


def test_nothing_of_another_run_stays_but_its_history() -> None:
    before = status_of(
        report(run_id="old", outcome="NotPromoted", recommendation="remove it"), facts(), NOW
    )
    past = {"runId": "old", "outcome": "NotPromoted", "reason": "Booting"}
    after = status_of(report(superseded=past), facts(before), NOW)
    assert "outcome" not in after
    assert "recommendation" not in after
    assert after["history"] == [past]


def test_the_history_is_newest_first_and_limited() -> None:
    status: dict[str, Any] = {}
    for run in ("a", "b", "c", "d"):
        past = (
            {"runId": status["runId"], "outcome": "Superseded", "reason": "x"} if status else None
        )
        status = status_of(report(run_id=run, superseded=past), facts(status), NOW)
    assert [entry["runId"] for entry in status["history"]] == ["c", "b"]


def test_start_and_end_of_a_run_are_set_once() -> None:
    def rejected(at: str) -> Report:
        return report(run_id=None, stage="Ended", outcome="Rejected", started_at=at, ended_at=at)

    unreadable = Unreadable(reason="InvalidSpec", message="spec.slo: missing")
    first = status_of(rejected("2026-11-29T10:00:00Z"), facts(spec=unreadable), NOW)
    again = status_of(rejected("2026-11-29T10:05:00Z"), facts(first, spec=unreadable), NOW)
    assert again == first
    mended = facts(first, spec=unreadable, generation=5)
    assert status_of(rejected("2026-11-29T10:09:00Z"), mended, NOW)["startedAt"].endswith("09:00Z")


def test_what_the_definition_has_no_place_for_is_an_error_not_a_loss() -> None:
    with pytest.raises(ValidationError, match=r"arms\.0\.mood"):
        status_of(
            report(arms=[{"arm": "none", "launches": 1, "cells": 3, "mood": "good"}]), facts(), NOW
        )
