"""Steps are counted by the K planned for them, and those of a change of K apart."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from specschedule.engine import settings, stepcounts
from specschedule.engine.recording import VLLM_LOG, Recording
from specschedule.engine.stepcounts import SETTLED, StepCounts, planned

BOUNDARY = 4


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A recorder that counts steps keeps lines from a logger that outlives it."""
    log = logging.getLogger(VLLM_LOG)
    before = list(log.filters)
    yield
    log.filters[:] = before


def by_batch(batch: int) -> int:
    return 3 if batch <= BOUNDARY else 1


class Counted:
    """Counters, and what they say."""

    def __init__(self, plan: stepcounts.Planned | None = by_batch) -> None:
        self.registry = CollectorRegistry()
        self._counts = StepCounts(plan, "pair", self.registry)

    def line(self, **line: Any) -> "Counted":
        self._counts.count(line, 0)
        return self

    def steps(self, *batches: int, engine: int = 0, **more: Any) -> "Counted":
        for batch in batches:
            line = {"batchSize": batch, "decodes": batch, "graphMode": "FULL", "stepMs": 10.0}
            self._counts.count(line | more, engine)
        return self

    def value(self, name: str, **labels: str) -> float:
        """The sum over every series with these labels."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"specschedule_engine_{name}"
            and labels.items() <= sample.labels.items()
        )

    def parts(self) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["tokens"], sample.labels["part"]): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "specschedule_engine_steps_total"
        }


def test_a_step_verifies_what_the_step_before_it_planned() -> None:
    counted = Counted().steps(2, 2, 2)
    assert counted.parts() == {("3", "stable"): 2}, "what the first one verifies is not known"
    assert counted.value("step_seconds_total", tokens="3") == pytest.approx(0.02)


def test_the_step_that_decides_and_those_after_it_are_the_change() -> None:
    after = [8] * (SETTLED + 4)
    found = Counted().steps(2, 2, *after).parts()
    # The step that first has 8 requests still verifies 3 drafts, and drafts 1.
    assert found == {
        ("3", "stable"): 1,
        ("3", "change"): 1,
        ("1", "change"): SETTLED - 1,
        ("1", "stable"): 4,
    }


def test_a_second_change_begins_anew() -> None:
    found = Counted().steps(2, 2, 8, 2, 2, 2, 2).parts()
    assert found == {("3", "stable"): 2, ("3", "change"): 3, ("1", "change"): 1}


def test_batches_of_the_same_k_are_no_change() -> None:
    assert Counted().steps(1, 4, 2, 3).parts() == {("3", "stable"): 3}


def test_a_step_that_computed_prompts_is_neither_stable_nor_a_change() -> None:
    found = Counted().steps(2, 2).steps(8, prefills=2).steps(8).parts()
    assert found == {("3", "stable"): 1, ("3", "prompt"): 1, ("1", "change"): 1}


def test_a_step_that_followed_none_is_not_counted_but_its_drafts_are() -> None:
    counted = Counted().steps(2)
    counted.line(batchSize=2, decodes=2, draftTokens=6, acceptedTokens=4, tokens=3)
    assert counted.parts() == {}
    assert counted.value("draft_tokens_total", tokens="3") == 6
    assert counted.value("accepted_tokens_total", tokens="3") == 4


def test_what_tells_no_batch_is_no_step() -> None:
    counted = Counted().steps(2).line(running=2, stepMs=4.0)
    assert counted.steps(2).parts() == {("3", "stable"): 1}


def test_engines_are_counted_apart() -> None:
    counted = Counted().steps(2, 2).steps(8, 8, engine=1)
    assert counted.parts() == {("3", "stable"): 1, ("1", "stable"): 1}
    assert counted.value("steps_total", engine="1") == 1


def test_a_graph_mode_that_is_not_told_is_an_empty_label() -> None:
    counted = Counted().steps(2).line(batchSize=2, decodes=2, stepMs=1.0)
    assert counted.value("steps_total", graph_mode="") == 1
    assert counted.value("steps_total", graph_mode="FULL") == 0


def test_without_a_plan_k_is_what_was_verified() -> None:
    counted = Counted(plan=None).steps(2, 2, tokens=3).steps(2, tokens=1)
    counted.steps(2, decodes=0, stepMs=5.0)
    assert counted.parts() == {("3", "stable"): 2, ("1", "change"): 1}


def test_step_times_stand_in_buckets_two_to_an_octave() -> None:
    edges = stepcounts.EDGES
    assert edges == tuple(sorted(edges))
    assert (edges[0], edges[2], edges[-1]) == (0.0005, 0.001, 4.1)
    counted = Counted().steps(2, 2)
    assert counted.value("step_duration_seconds_bucket", le="0.00801") == 0
    assert counted.value("step_duration_seconds_bucket", le="0.0113") == 1


def config(
    speculative: Any = None, scheduler: str | None = None, servers: int = 1, stages: int = 1
) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="pair"),
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler, max_num_seqs=16),
        speculative_config=speculative,
        parallel_config=SimpleNamespace(_api_process_count=servers, pipeline_parallel_size=stages),
    )


def drafting(rows: Any) -> Any:
    return SimpleNamespace(num_speculative_tokens=3, num_speculative_tokens_per_batch_size=rows)


PLANS = {
    "without speculation nothing is drafted": (config(), [0, 0]),
    "without a schedule it is always the most": (config(drafting(None)), [3, 3]),
    "a schedule is followed by batch size": (config(drafting([(1, 4, 3), (5, 16, 1)])), [3, 1]),
    "a gap repeats the row before it": (config(drafting([(1, 2, 2), (9, 16, 0)])), [2, 2]),
}


@pytest.mark.parametrize("claim", PLANS)
def test_k_is_planned_as_the_engine_is_configured(claim: str) -> None:
    of, expected = PLANS[claim]
    plan = planned(of)
    assert plan is not None
    assert [plan(4), plan(8)] == expected, claim


UNKNOWN = {
    "a scheduler that is not vLLM's": config(drafting(None), scheduler="ours.S"),
    "rows that depend on the context": config(drafting([(1, 16, 1, 99, 3), (1, 16, 100, 999, 1)])),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_how_k_is_planned_is_not_known_with(why: str) -> None:
    assert planned(UNKNOWN[why]) is None


def told(batch: int) -> tuple[Any, Any]:
    """What vLLM hands over for a step, as far as it is read here."""
    details = SimpleNamespace(
        num_ctx_requests=0,
        num_ctx_tokens=0,
        num_generation_requests=batch,
        num_generation_tokens=4 * batch,
        elapsed_ms=1.0,
        is_dummy=False,
    )
    graph = SimpleNamespace(runtime_mode="FULL", num_unpadded_tokens=1, num_padded_tokens=1)
    iteration = SimpleNamespace(
        num_generation_tokens=batch,
        time_to_first_tokens_iter=[],
        inter_token_latencies_iter=[0.02, 0.5],
        num_preempted_reqs=0,
        finished_requests=[],
    )
    return SimpleNamespace(iteration_details=details, cudagraph_stats=graph), iteration


def test_a_recorder_told_to_counts_steps_by_what_the_shortest_wait_was() -> None:
    registry = CollectorRegistry()
    recording = Recording({settings.STEPS: "1"}, config(drafting(None)), registry)
    for _ in range(3):
        recording.record(*told(4))
    assert recording.finding is None
    labels = {"model_name": "pair", "engine": "0", "tokens": "3", "graph_mode": "FULL"}
    found = {**labels, "part": "stable"}
    assert registry.get_sample_value("specschedule_engine_steps_total", found) == 2
    # A request that was preempted waited for longer than the step took.
    seconds = registry.get_sample_value("specschedule_engine_step_seconds_total", found)
    assert seconds == pytest.approx(0.04)
    assert registry.get_sample_value("specschedule_engine_recorder_on") == 1.0


TORN = {
    "--api-server-count": config(servers=2),
    "--pipeline-parallel-size": config(stages=2),
}


@pytest.mark.parametrize("why", TORN)
def test_steps_that_are_no_sequence_are_not_counted(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    recording = Recording({settings.STEPS: "1"}, TORN[why], registry)
    recording.record(*told(4))
    assert not recording.on
    assert why in caplog.text
    assert [f.name for f in registry.collect()] == ["specschedule_engine_recorder_on"]


LINES: dict[str, tuple[tuple[Any, ...], bool]] = {
    "one for each step": (("%sIteration(%d): %d context requests", "Engine 000: ", 1, 2), False),
    "the table of graph modes": (("**CUDAGraph Config Settings:**",), False),
    "the one of every ten seconds": (("Engine 000: Avg prompt throughput: %.1f", 1.0), True),
}


@pytest.mark.parametrize("line", LINES)
def test_the_log_keeps_every_line_but_those_that_counters_tell(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    said, kept = LINES[line]
    log = logging.getLogger(VLLM_LOG)
    with caplog.at_level(logging.INFO, logger=VLLM_LOG):
        Recording({settings.TTFT: "1"}, config(), CollectorRegistry())
        log.info(*said)
        assert len(caplog.records) == 1, "the log is as it was while only requests count"
        Recording({settings.STEPS: "1"}, config(), CollectorRegistry())
        log.info(*said)
    assert (len(caplog.records) == 2) is kept
