"""Verdicts on rows by context: what may be claimed, and what follows from a win."""

import json
import re
from typing import Any

from specschedule.core.evidence import Launch
from specschedule.core.judge import judge
from specschedule.core.spec import Spec
from specschedule.engine import settings

from .recorded import cell

ROWS = [[1, 16, 1, 1024, 3], [1, 16, 1025, 8192, 5]]
SHORT, LONG, MIXED = 400, 4000, 2200


def spec(mode: str = "Auto", *, context: int | None = None) -> Spec:
    improve: dict[str, Any] = {"metric": "goodput", "at": [8], "by": "15%"}
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "mode": mode,
            "slo": {"tpot": "40ms"},
            "candidates": [{"name": "deep", "schedule": ROWS}],
            "load": {"points": [8]},
            "bar": {"improve": [improve if context is None else {**improve, "context": context}]},
            "experiment": {"effort": "Quick"},
        }
    )


def launched(number: int, arm: str, rates: dict[int, float], *, axis: bool) -> Launch:
    """One launch: good requests per second by context, the middle one of windows that mix."""
    tokens = {SHORT: 3, LONG: 5 if axis else 3, MIXED: None if axis else 3}
    profile = {"kind": "hold", "concurrency": 8}
    profiles = {
        SHORT: profile | {"context": SHORT - 64},
        LONG: profile | {"context": LONG - 64},
        MIXED: profile | {"contexts": [SHORT - 64, LONG - 64]},
    }
    cells = [
        cell(8, rate, tokens=tokens[at], context=at, profile=profiles[at], cell=f"hold8-{at}")
        for at, rate in rates.items()
    ]
    plain = {
        "arm": arm,
        "launch": number,
        "round": (number + 1) // 2,
        "schedule": ROWS if axis else None,
        "contextAxis": axis,
        "cells": [{"arm": arm, "launch": number, **each} for each in cells],
    }
    return Launch.model_validate(plain)


def run(candidate: dict[int, float]) -> list[Launch]:
    """Six launches in the order ABBAAB, with little noise."""
    incumbent = {SHORT: 2.0, MIXED: 1.5, LONG: 1.0}
    launches = []
    for number, arm in enumerate("ABBAAB", start=1):
        rates = incumbent if arm == "A" else candidate
        wander = 1 + 0.002 * (-1) ** number
        rates = {at: rate * wander for at, rate in rates.items()}
        name = "incumbent" if arm == "A" else "candidate-deep"
        launches.append(launched(number, name, rates, axis=arm == "B"))
    return launches


GAINS = {SHORT: 2.0, MIXED: 1.8, LONG: 1.4}


def test_a_winner_that_needs_our_scheduler_is_proposed_whatever_the_mode() -> None:
    for mode in ("Auto", "Approve", "Propose"):
        answer = judge(spec(mode, context=LONG), run(GAINS))
        assert (answer.verdicts[0].verdict, answer.outcome) == ("Better", "Proposed"), mode
        assert answer.recommendation.startswith("deep: serve with num_speculative_tokens 5")
        assert "--scheduler-cls specschedule.engine.context.EitherContextScheduler" in (
            answer.recommendation
        )
        given = re.search(r"--additional-config '(.*?)'", answer.recommendation)
        assert given is not None
        assert settings.rows({}, json.loads(given[1])) == ROWS
        assert answer.message.endswith("; proposed only: see the recommendation")
        assert "an engine that takes five-number rows" in answer.recommendation


def test_an_engine_that_followed_the_rows_itself_may_be_written_to() -> None:
    launches = [each.model_copy(update={"context_axis": False}) for each in run(GAINS)]
    answer = judge(spec(context=LONG), launches)
    assert (answer.outcome, answer.recommendation) == ("Promoted", "")


def test_no_gain_is_claimed_where_both_arms_select_the_same_k() -> None:
    answer = judge(spec(context=SHORT), run({SHORT: 2.6, MIXED: 1.8, LONG: 1.4}))
    (bar,) = (each for each in answer.verdicts[0].bars if each.kind == "improve")
    assert (bar.answer, bar.reason) == ("NotMet", "SameConfiguration")
    assert "both arms select K=3 here" in bar.message
    assert answer.verdicts[0].verdict == "NotBetter"
    assert answer.outcome == "NotPromoted"


def test_a_loss_in_mixed_traffic_fails_the_bar_that_a_held_context_met() -> None:
    answer = judge(spec(context=LONG), run({SHORT: 2.0, MIXED: 1.2, LONG: 1.4}))
    assert answer.verdicts[0].verdict == "Worse"
    lost = [bar.context for bar in answer.verdicts[0].bars if bar.answer == "Lost"]
    assert lost == [MIXED]
    (said,) = (note.message for note in answer.notes if note.reason == "ContextsMixed")
    assert said.startswith("context 2200 at 8 in flight stands for requests with prompts of 336, ")


def test_what_a_bar_asks_at_a_context_is_not_answered_by_windows_that_mix() -> None:
    launches = run({SHORT: 2.0, MIXED: 3.0, LONG: 1.4})
    (bar,) = (
        each
        for each in judge(spec(context=MIXED), launches).verdicts[0].bars
        if each.kind == "improve"
    )
    assert (bar.answer, bar.reason) == ("Unproven", "MetricMissing")
