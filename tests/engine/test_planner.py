"""The schedulers' decisions: which K a step gets, and whether the engine did what was planned."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core import inband
from specschedule.core.schedule import effective
from specschedule.engine.planner import (
    BootError,
    Planner,
    booted,
    check_prepared,
    mean_context,
    past_prefill,
)
from specschedule.engine.proof import ENOUGH, PATIENCE, Proof
from specschedule.engine.ring import Ring

BY_CONTEXT = [[1, 4, 1, 512, 1], [1, 4, 513, 4096, 3], [5, 8, 1, 512, 0], [5, 8, 513, 4096, 2]]


def table(rows, max_tokens=4, max_num_seqs=8):
    return effective(rows, max_tokens=max_tokens, max_num_seqs=max_num_seqs)


def request(computed, prompt=100):
    return SimpleNamespace(num_computed_tokens=computed, num_prompt_tokens=prompt)


def output(scheduled, drafts=(), finished=()):
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        scheduled_spec_decode_tokens={name: [-1] * k for name, k in dict(drafts).items()},
        finished_req_ids=set(finished),
    )


@pytest.mark.parametrize(
    ("why", "requests", "mean"),
    [
        ("decoding requests only", [request(600), request(800)], 700),
        ("prefills do not drag it down", [request(600), request(0), request(50)], 600),
        ("a prompt just computed counts", [request(100), request(300)], 200),
        ("all of them where none is past prefill", [request(0), request(64)], 32),
        ("whole tokens", [request(512), request(513)], 512),
    ],
)
def test_the_context_is_the_mean_of_those_past_prefill(why, requests, mean) -> None:
    named = {str(at): each for at, each in enumerate(requests)}
    decoding = past_prefill(named.keys(), named)
    assert mean_context(named.keys(), named, decoding) == mean, why


def test_prefills_count_for_the_batch_size_and_not_for_the_context() -> None:
    planner = Planner(table(BY_CONTEXT))
    requests = {"a": request(2000), **{f"p{n}": request(0) for n in range(4)}}
    assert planner.plan(requests, output({"a": 2})) == 3
    assert planner.plan(requests, output(dict.fromkeys(requests, 1))) == 2


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 9000)), min_size=1, max_size=8),
)
def test_three_number_rows_are_followed_by_batch_size_at_every_context(ks, sizes) -> None:
    rows = [[2 * at + 1, 2 * at + 2, k] for at, k in enumerate(ks)]
    requests = {str(at): request(*each) for at, each in enumerate(sizes)}
    planned = Planner(table(rows)).plan(requests, output(dict.fromkeys(requests, 1)))
    # Two batch sizes to a row, the last row goes on, and no K is above num_speculative_tokens.
    # That the engine reads rows so is shown on the engine itself, in tests/vllm/test_lookup.py.
    assert planned == min(ks[min((len(sizes) - 1) // 2, len(ks) - 1)], 4)


@given(st.lists(st.integers(0, 6000), min_size=1, max_size=8))
def test_five_number_rows_are_read_at_the_mean_context(contexts) -> None:
    requests = {str(at): request(each, prompt=0) for at, each in enumerate(contexts)}
    long = sum(contexts) / len(contexts) >= 513
    few = len(contexts) <= 4
    expected = {(True, True): 3, (True, False): 1, (False, True): 2, (False, False): 0}[few, long]
    planned = Planner(table(BY_CONTEXT)).plan(requests, output(dict.fromkeys(requests, 1)))
    assert planned == expected


def test_a_step_is_recorded_with_what_was_planned_before_it_and_for_the_next() -> None:
    ring = Ring(9)
    planner = Planner(table([[1, 1, 4], [2, 8, 1]]), ring)
    planner.window = "w1"
    requests = {"a": request(0)}
    planner.plan(requests, output({"a": 100}))
    requests["a"] = request(100)
    requests["b"] = request(0)
    planner.plan(requests, output({"a": 5, "b": 100}, {"a": 4}))
    requests = {"a": request(105), "b": request(100)}
    planner.plan(requests, output({"a": 2, "b": 2}, {"a": 1, "b": 1}))
    planner.plan(requests, output({"a": 2, "b": 2}, {"a": 1, "b": 1}))
    lines = [{k: v for k, v in line.items() if k != "at"} for line in ring.since(0, 9)]
    common = {"window": "w1"}
    first = {"firstOfShape": True}
    pair = {"batchSize": 2, "context": 102, "tokens": 1, "decodes": 2, "verified": 1}
    assert lines == [
        {"step": 0, **common, "batchSize": 1, "context": 0, "tokens": 4, "decodes": 0}
        | {"targetTokens": 100, **first},
        {"step": 1, **common, "batchSize": 2, "context": 100, "tokens": 1, "decodes": 1}
        | {"verified": 4, "targetTokens": 105, **first},
        {"step": 2, **common, **pair, "targetTokens": 4, **first},
        {"step": 3, **common, **pair, "targetTokens": 4},
    ]
    assert planner.proof.finding is None


def test_a_request_that_sat_out_a_step_is_held_against_its_own_last_plan() -> None:
    planner = Planner(table([[1, 1, 4], [2, 8, 1]]))
    requests = {"a": request(200), "b": request(200)}
    planner.plan(requests, output({"a": 1}))
    planner.plan(requests, output({"b": 1}))
    planner.plan(requests, output({"a": 5, "b": 5}, {"a": 4, "b": 4}))
    planner.plan(requests, output({"b": 2}, {"b": 1}))
    planner.plan(requests, output({"a": 2}, {"a": 1}))
    assert planner.proof.plain()["observed"] == {"1": {"1": 2}, "4": {"4": 2}}


def test_a_name_used_again_is_another_request() -> None:
    planner = Planner(table([[1, 8, 4]]))
    planner.plan({"a": request(200)}, output({"a": 1}))
    planner.plan({"b": request(0)}, output({"b": 9}, finished={"a"}))
    planner.plan({"a": request(100)}, output({"a": 1}))
    assert planner.proof.plain()["observed"] == {}


def test_a_k_is_proven_by_seeing_it_and_only_then() -> None:
    proof = Proof()
    for _ in range(ENOUGH - 1):
        proof.observe(3, 3)
    proof.observe(3, 0)
    assert proof.proven == []
    proof.observe(3, 3)
    proof.observe(0, 0)
    assert proof.proven == [3]
    assert proof.finding is None


@pytest.mark.parametrize(
    ("why", "pairs", "finding"),
    [
        ("more than planned, once", [(1, 3)], "K=1 was planned and 3 drafts were scheduled"),
        ("any draft where none was planned", [(0, 1)], "K=0 was planned and 1 drafts"),
        ("a K that never comes", [(3, 2)] * PATIENCE, "K=3 was planned 64 times and never came"),
        ("a K that rarely comes", [(3, 2)] * 200 + [(3, 3)], "K=3 was planned"),
        ("a K that comes among others", [(3, 3)] + [(3, 2)] * 200, None),
        ("a drafter that finds nothing", [(3, 0)] * 500, None),
    ],
)
def test_a_mismatch_is_a_finding_that_stands(why, pairs, finding) -> None:
    proof = Proof()
    for planned, observed in pairs:
        proof.observe(planned, observed)
    for _ in range(100):
        proof.observe(2, 2)
    assert (proof.finding or "").startswith(finding or ""), why
    assert (proof.finding is None) == (finding is None), why
    json.dumps(proof.plain())


def test_the_boot_table_is_the_engines() -> None:
    found = booted([(1, 2, 3), (3, 4, 1)], [0, 3, 3, 1, 1], max_tokens=3, max_num_seqs=4)
    assert found.ranges == [[1, 2, 3], [3, 4, 1]]


@pytest.mark.parametrize(
    ("why", "rows", "lookup", "said"),
    [
        ("no schedule", None, None, "no schedule in effect"),
        ("a schedule switched off by the engine", [[1, 4, 3]], None, "no schedule in effect"),
        ("another reading of the rows", [[1, 2, 3]], [0, 3, 3, 0, 0], "3, 3, 0, 0"),
        ("rows of an unknown form", [[1, 2, 3, 4]], [0, 1, 1, 1, 1], "num_speculative_tokens_per"),
    ],
)
def test_an_engine_that_is_not_understood_is_refused(why, rows, lookup, said) -> None:
    with pytest.raises(BootError, match=said):
        booted(rows, lookup, max_tokens=3, max_num_seqs=4)


def test_a_k_that_the_engine_did_not_prepare_for_is_refused() -> None:
    boot = table([[1, 2, 4], [3, 3, 1], [4, 8, 0]])
    check_prepared(table([[1, 8, 1, 512, 0], [1, 8, 513, 4096, 4]]), boot)
    with pytest.raises(BootError, match=r"K=2, 3 is in the table .* \[0, 1, 4\]"):
        check_prepared(table([[1, 2, 3], [3, 8, 2]]), boot)


LIMITS = {"max_tokens": 4, "max_num_seqs": 8}


def test_a_switch_survives_the_trip() -> None:
    found = inband.read(inband.arguments("s", BY_CONTEXT, "w1"), "s", **LIMITS)
    assert found == inband.Switch(table(BY_CONTEXT), "w1")


def test_other_arguments_of_a_request_are_none_of_ours() -> None:
    assert inband.read({"session_id": "7"}, "s", **LIMITS) is None


ASKED = inband.arguments("s", [[1, 8, 2]], "w1")


@pytest.mark.parametrize(
    ("why", "changed", "named"),
    [
        ("another secret", {inband.SECRET: "t"}, inband.SECRET),
        ("no secret", {inband.SECRET: ""}, inband.SECRET),
        ("a secret beyond ASCII", {inband.SECRET: "§"}, inband.SECRET),
        ("a list for a secret", {inband.SECRET: ["s"]}, inband.SECRET),
        ("no window", {inband.WINDOW: ""}, inband.WINDOW),
        ("a window without end", {inband.WINDOW: "w" * 999}, inband.WINDOW),
        ("rows that are no text", {inband.ROWS: 3}, inband.ROWS),
        ("rows that are no JSON", {inband.ROWS: "[[1,"}, inband.ROWS),
        ("rows without bottom", {inband.ROWS: "[" * 100_000}, inband.ROWS),
        ("rows that are no schedule", {inband.ROWS: "[[2, 8, 1]]"}, "must start at 1"),
    ],
)
def test_what_cannot_be_switched_to_is_refused_by_name(why, changed, named) -> None:
    with pytest.raises(inband.Refused, match=named):
        inband.read({**ASKED, **changed}, "s", **LIMITS)


def test_the_secret_is_never_repeated() -> None:
    with pytest.raises(inband.Refused) as refused:
        inband.read({**ASKED, inband.SECRET: "guess"}, "launch-secret", **LIMITS)
    assert "launch-secret" not in str(refused.value)
    assert "guess" not in str(refused.value)


def test_shapes_that_were_not_seen_for_long_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr("specschedule.engine.planner.SHAPES_KEPT", 2)
    ring = Ring(9)
    of = Planner(table([[1, 8, 4]]), ring)
    for target in (10, 20, 10, 30, 10, 20):
        of.plan({"a": request(0)}, output({"a": target}))
    first = [line.get("firstOfShape", False) for line in ring.since(0, 9)]
    assert first == [True, True, False, True, False, True]
