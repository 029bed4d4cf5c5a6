"""Whatever the files hold, the judge answers, in JSON, and promotes nothing it cannot compare."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.evidence import Launch
from specschedule.core.judge import judge

from .recorded import spec_of

numbers = st.one_of(st.none(), st.integers(0, 50), st.integers(0, 10**9))
rates = st.one_of(st.none(), st.floats(0, 1e12))


def without_none(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if value is not None}


@st.composite
def cells(draw: st.DrawFn) -> dict[str, Any]:
    profile = draw(
        st.one_of(
            st.builds(
                lambda n: {"kind": "hold", "concurrency": n}, st.sampled_from([1, 8, 16, 99])
            ),
            st.just({"kind": "hold"}),
            st.builds(
                lambda n: {"kind": "crossing", "low": 1, "high": 8, "boundary": 2, "pass": n},
                st.integers(1, 2),
            ),
        )
    )
    plain = {
        "cell": "c",
        "profile": profile,
        "category": draw(st.sampled_from([None, "code", "prose"])),
        "context": draw(st.one_of(st.none(), st.integers(0, 10**6))),
        "tokens": draw(st.sampled_from([None, 0, 1, 5])),
        "windowSeconds": draw(st.floats(1e-3, 1e6)),
        "offered": draw(st.integers(0, 100)),
        "completed": draw(st.integers(0, 100)),
        "good": draw(numbers),
        "outputTokens": draw(numbers),
        "decodeRate": draw(rates),
        "drafts": draw(numbers),
        "draftTokens": draw(numbers),
        "acceptedTokens": draw(numbers),
        "void": draw(st.sampled_from([None, None, "lag"])),
    }
    if draw(st.booleans()):
        plain["tpotMs"] = without_none({"p50": draw(rates)})
    if draw(st.booleans()):
        plain["prefixCache"] = {"queries": draw(st.integers(0, 9)), "hits": draw(st.integers(0, 9))}
    return without_none(plain)


@st.composite
def launches(draw: st.DrawFn) -> list[Launch]:
    arms = ["incumbent", "candidate-card", "candidate-card", "twin", "none", "static-1", "zero"]
    found = []
    for number in range(1, draw(st.integers(0, 12)) + 1):
        arm = draw(st.sampled_from(arms))
        owner = {
            "arm": arm,
            "launch": draw(st.sampled_from([number, 1])),
            "round": (number + 1) // 2,
        }
        plain = {
            **owner,
            "schedule": draw(st.sampled_from([None, [[1, 2, 5], [3, 16, 1]], [[1, 16, 1]]])),
            "cells": [{**owner, **cell} for cell in draw(st.lists(cells(), max_size=4))],
            "void": draw(st.sampled_from([None, None, None, "preempted"])),
            "failed": draw(st.sampled_from([None, None, None, None, "crashed"])),
        }
        found.append(Launch.model_validate(without_none(plain)))
    return found


@settings(deadline=None, max_examples=150)
@given(launches(), st.sampled_from(["Quick", "Standard"]))
def test_any_evidence_gets_an_answer_in_json(found: list[Launch], effort: str) -> None:
    spec = spec_of(
        improve=[{"metric": "goodput", "at": [8], "by": "15%"}, {"metric": "tpotP50", "by": "1%"}],
        protect=[{"metric": "decodeRate", "at": [1]}, {"metric": "attainment", "within": "3%"}],
        experiment={"effort": effort},
        load={"points": [1, 8, 16], "requestsPerSecond": [2]},
    )
    answer = judge(spec, found)
    json.dumps(answer.plain(), allow_nan=False)
    if answer.outcome == "Promoted":
        better = next(v for v in answer.verdicts if v.verdict == "Better")
        assert better.pairs >= 2
        assert all(bar.answer == "Met" for bar in better.bars)
    else:
        assert answer.outcome in ("NotPromoted", "Inconclusive")
        assert answer.reason
        assert answer.message
