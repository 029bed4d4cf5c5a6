"""The recorder tells what the engine tells, bounded, and never harms it."""

import http.client
import json
import logging
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from specschedule.engine import page, settings
from specschedule.engine.goodput import outcome
from specschedule.engine.recording import Recording
from specschedule.engine.ring import Ring
from specschedule.engine.settings import Limits
from specschedule.engine.steps import step_line

from ..booted import free_port

CONFIG = SimpleNamespace(model_config=SimpleNamespace(served_model_name="pair"))


def finished(reason="stop", e2e=1.0, decode=0.9, tpot=0.03):
    return SimpleNamespace(
        finish_reason=reason,
        e2e_latency=e2e,
        decode_time=decode,
        mean_time_per_output_token=tpot,
    )


def iteration(*requests, first_tokens=0, tokens=3):
    return SimpleNamespace(
        num_generation_tokens=tokens,
        time_to_first_tokens_iter=[0.1] * first_tokens,
        num_preempted_reqs=0,
        finished_requests=list(requests),
    )


def scheduler(**more):
    return SimpleNamespace(num_running_reqs=2, num_waiting_reqs=0, kv_cache_usage=0.5, **more)


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 40), st.integers(1, 12))
def test_a_ring_keeps_the_last_lines_under_their_own_numbers(kept, written, since, limit) -> None:
    ring = Ring(kept)
    for at in range(written):
        assert ring.append({"value": at}) == at
    every = [{"step": at, "value": at} for at in range(max(0, written - kept), written)]
    assert ring.since(since, limit) == [line for line in every if line["step"] >= since][:limit]
    assert ring.plain() == {"oldest": max(0, written - kept), "next": written}


def test_a_page_gives_facts_with_both_clocks_and_steps_in_parts() -> None:
    ring, port = Ring(10), free_port()
    page.serve(port, lambda: {"kind": "test"}, ring)
    for at in range(3):
        ring.append({"value": at})
    status, text = ask(port, "/facts")
    facts = json.loads(text)
    assert (status, facts["kind"], facts["oldest"], facts["next"]) == (200, "test", 0, 3)
    assert {"monotonic", "unix"} <= facts.keys()
    lines = ask(port, "/steps?since=1&limit=1")[1].splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "value": 1}]
    assert ask(port, "/steps?since=3") == (200, "")
    assert ask(port, "/steps?since=-1")[0] == 400
    assert ask(port, "/other")[0] == 404


LIMITS = Limits(ttft=0.2, tpot=0.04, e2e=2.0)


@pytest.mark.parametrize(
    ("why", "request_", "expected"),
    [
        ("every limit met", finished(), "good"),
        ("exactly on every limit", finished(e2e=2.0, decode=1.8, tpot=0.04), "good"),
        ("its first token late", finished(e2e=1.2, decode=0.9), "slow"),
        ("its tokens slow", finished(tpot=0.041), "slow"),
        ("late as a whole", finished(e2e=2.1, decode=2.0), "slow"),
        ("stopped by length", finished("length"), "good"),
        ("one token has no time per token", finished(e2e=0.1, decode=0.0, tpot=0), "good"),
        ("given up", finished("abort"), "failed"),
        ("an engine error", finished("error"), "failed"),
        ("cut for repeating itself", finished("repetition"), "failed"),
    ],
)
def test_a_request_is_good_when_it_meets_every_limit(why, request_, expected) -> None:
    assert outcome(request_, LIMITS) == expected, why


def test_a_limit_that_is_not_given_cannot_be_missed() -> None:
    assert outcome(finished(e2e=99.0, decode=0.0, tpot=9.0), Limits(tpot=9.0)) == "good"


def test_a_line_tells_all_that_the_engine_tells() -> None:
    told = scheduler(
        spec_decoding_stats=SimpleNamespace(
            num_drafts=2,
            num_draft_tokens=6,
            num_accepted_tokens=4,
            num_draft_tokens_per_pos=[2, 2, 2, 0],
        ),
        iteration_details=SimpleNamespace(
            num_ctx_requests=1,
            num_ctx_tokens=40,
            num_generation_requests=2,
            num_generation_tokens=8,
            elapsed_ms=12.3456,
            is_dummy=False,
        ),
        cudagraph_stats=SimpleNamespace(
            runtime_mode="PIECEWISE", num_unpadded_tokens=48, num_padded_tokens=64
        ),
    )
    assert step_line(told, iteration(finished(), first_tokens=1)) == {
        "running": 2,
        "waiting": 0,
        "kvCacheUsage": 0.5,
        "tokens": 3,
        "drafts": 2,
        "draftTokens": 6,
        "acceptedTokens": 4,
        "batchSize": 3,
        "prefills": 1,
        "prefillTokens": 40,
        "decodes": 2,
        "decodeTokens": 8,
        "elapsedMs": 12.346,
        "graphMode": "PIECEWISE",
        "targetTokens": 48,
        "paddedTokens": 64,
        "outputTokens": 3,
        "firstTokens": 1,
        "preemptions": 0,
        "finished": 1,
    }


def test_a_line_leaves_out_what_the_engine_does_not_tell() -> None:
    none = scheduler(spec_decoding_stats=None, iteration_details=None, cudagraph_stats=None)
    assert step_line(none, None) == {"running": 2, "waiting": 0, "kvCacheUsage": 0.5}


def test_a_step_took_as_long_as_the_request_that_waited_least() -> None:
    stats = iteration()
    stats.inter_token_latencies_iter = [0.0123456, 0.5]
    assert step_line(None, stats)["stepMs"] == 12.346
    stats.inter_token_latencies_iter = []
    assert "stepMs" not in step_line(None, stats)


def test_it_is_off_and_registers_nothing_where_nothing_turns_it_on() -> None:
    registry = CollectorRegistry()
    recording = Recording({}, CONFIG, registry)
    recording.record(scheduler(), iteration(finished()))
    assert not recording.on
    assert recording.finding is None
    assert list(registry.collect()) == []


def test_good_requests_are_counted_beside_the_limits_they_met() -> None:
    registry = CollectorRegistry()
    asked = {settings.TTFT: "200", settings.TPOT: "40"}
    recording = Recording(asked, CONFIG, registry)
    labels = {"model_name": "pair", "engine": "0"}

    def count(outcome: str) -> float | None:
        name = "specschedule_engine_requests_total"
        return registry.get_sample_value(name, {**labels, "outcome": outcome})

    assert [count(each) for each in ("good", "slow", "failed")] == [0.0, 0.0, 0.0]
    recording.record(scheduler(), iteration(finished(), finished(tpot=1.0), first_tokens=3))
    recording.record(scheduler(), None)
    recording.record(scheduler(), iteration(finished("error"), finished("length")))
    assert [count(each) for each in ("good", "slow", "failed")] == [2.0, 1.0, 1.0]
    assert registry.get_sample_value("specschedule_engine_first_tokens_total", labels) == 3.0
    limit = "specschedule_engine_slo_seconds"
    assert registry.get_sample_value(limit, {"limit": "ttft"}) == 0.2
    assert registry.get_sample_value(limit, {"limit": "e2e"}) is None
    assert registry.get_sample_value("specschedule_engine_recorder_on") == 1.0
    assert not [f.name for f in registry.collect() if f.name.startswith("vllm")]


def test_steps_are_read_from_its_port() -> None:
    port = free_port()
    asked = {settings.RECORDER_PORT: str(port), settings.RING: "2"}
    recording = Recording(asked, CONFIG, CollectorRegistry())
    for _ in range(3):
        recording.record(scheduler(), iteration(), mm_cache_stats=None, engine_idx=1)
    lines = [json.loads(line) for line in ask(port, "/steps?since=0")[1].splitlines()]
    assert [line["step"] for line in lines] == [1, 2], "the first was overwritten, and it shows"
    assert {line["engine"] for line in lines} == {1}
    assert all(line["sinceLastMs"] >= 0 for line in lines)
    facts = json.loads(ask(port, "/facts")[1])
    assert (facts["kind"], facts["on"], facts["finding"]) == ("recorder", True, None)


def test_what_another_version_passes_besides_harms_nothing() -> None:
    recording = Recording({settings.TPOT: "40"}, CONFIG, CollectorRegistry())
    recording.record(scheduler(), iteration(), None, 0, new_stats=object())
    assert recording.on


@pytest.mark.parametrize(
    ("why", "arguments"),
    [
        ("a record without times", (scheduler(), iteration(SimpleNamespace(finish_reason="stop")))),
        ("statistics of another shape", (scheduler(), 7)),
        ("fewer arguments than expected", ()),
    ],
)
def test_its_first_fault_switches_it_off_and_is_said_once(why, arguments, caplog) -> None:
    registry, port = CollectorRegistry(), free_port()
    asked = {settings.TTFT: "200", settings.RECORDER_PORT: str(port)}
    recording = Recording(asked, CONFIG, registry)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recording.record(*arguments)
    assert not recording.on, why
    assert [r.getMessage()[:35] for r in caplog.records] == ["The recorder has switched itself of"]
    assert registry.get_sample_value("specschedule_engine_recorder_on") == 0.0
    facts = json.loads(ask(port, "/facts")[1])
    assert (facts["on"], facts["finding"]) == (False, recording.finding)


def test_a_variable_it_cannot_read_leaves_the_engine_alone(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        recording = Recording({settings.TTFT: "soon"}, CONFIG, CollectorRegistry())
    recording.record(scheduler(), iteration())
    assert not recording.on
    assert settings.TTFT in caplog.text


def test_a_taken_port_leaves_the_engine_alone_and_says_that_it_is_off() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        asked = {settings.RECORDER_PORT: str(other.getsockname()[1]), settings.TTFT: "200"}
        registry = CollectorRegistry()
        recording = Recording(asked, CONFIG, registry)
        recording.record(scheduler(), iteration(finished()))
    assert not recording.on
    assert registry.get_sample_value("specschedule_engine_recorder_on") == 0.0
