"""The event engine schedules, verifies and counts as vLLM does."""

import dataclasses
import math
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.schedule import effective
from specschedule.sim.engine import Engine, Output, Request, Settings, StepFault, drive
from specschedule.sim.physics import Linear, Step
from specschedule.sim.worlds import Collapse, Noise, World

QUIET = Noise(step=0, launch=0)


class Recorder:
    """A step time that remembers every step; one second each."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> float:
        self.steps.append(step)
        return 1.0


def world_of(step_time: Callable[[Step], float] | None = None, **fields: object) -> World:
    defaults: dict[str, object] = {
        "name": "test",
        "source": "test",
        "step_time": step_time or Linear(0.01, 0.001),
        "acceptance": (0.8, 0.6, 0.4),
        "noise": QUIET,
    }
    return World(**(defaults | fields))  # type: ignore[arg-type]


def engine_of(world: World, *, launch_seed: int = 1, **fields: object) -> Engine:
    return Engine(world, Settings(**fields), launch_seed=launch_seed)  # type: ignore[arg-type]


def request(
    number: int, *, prompt: int = 16, output: int = 20, arrived: float = 0.0, **fields: object
) -> Request:
    return Request(
        prompt_tokens=prompt,
        output_tokens=output,
        seed=number,
        arrived=arrived,
        **fields,  # type: ignore[arg-type]
    )


def run(engine: Engine, requests: list[Request]) -> list[Output]:
    for each in requests:
        engine.add(each)
    return [output for _, outputs in drive(engine, 0.0) for output in outputs]


def schedule(rows: list[list[int]], most: int, seqs: int = 64) -> Callable[[int, int], int]:
    return effective(rows, max_tokens=most, max_num_seqs=seqs).tokens


def test_tokens_chosen_in_a_step_are_verified_in_the_next() -> None:
    recorder = Recorder()
    engine = engine_of(
        world_of(recorder), max_tokens=3, tokens_for=schedule([[1, 1, 3], [2, 8, 1]], 3)
    )
    engine.add(request(1, output=30))
    engine.begin(0)
    engine.finish(1)
    engine.begin(1)
    engine.finish(2)
    engine.add(request(2, output=4))
    for now in range(2, 7):
        engine.begin(now)
        engine.finish(now + 1)
    seen = [(step.decoding, step.verified, step.drafted) for step in recorder.steps[:5]]
    assert seen == [
        (0, 0, 3),  # prefill of the first: one request is scheduled, 3 drafts follow
        (1, 3, 3),
        (1, 3, 1),  # the second joins: 3 drafts of before are verified, 1 is made
        (2, 1, 1),
        (2, 1, 1),
    ]


def test_a_prefill_counts_as_a_scheduled_request() -> None:
    recorder = Recorder()
    table = schedule([[1, 2, 2], [3, 8, 0]], 2)
    engine = engine_of(world_of(recorder), max_tokens=2, tokens_for=table)
    for number in range(2):
        engine.add(request(number, output=40))
    engine.begin(0), engine.finish(1)
    engine.add(request(9, prompt=16, output=1))
    engine.begin(1), engine.finish(2)
    assert recorder.steps[1].decoding == 2
    assert recorder.steps[1].drafted == 0


def test_a_long_prompt_is_prefilled_in_chunks_that_each_count() -> None:
    recorder = Recorder()
    engine = engine_of(world_of(recorder), max_num_batched_tokens=100)
    (last,) = [o for o in run(engine, [request(1, prompt=250, output=2)]) if o.finished]
    assert [step.prefill for step in recorder.steps] == [100, 100, 50, 0]
    assert last.request.first_token_at == 3.0
    assert last.request.last_token_at == 4.0


def test_mean_context_is_that_of_the_requests_past_prefill() -> None:
    asked: list[tuple[int, int]] = []

    def table(batch: int, context: int) -> int:
        asked.append((batch, context))
        return 1

    engine = engine_of(world_of(), max_tokens=1, tokens_for=table)
    asked.clear()
    engine.add(request(1, prompt=100, output=50))
    engine.begin(0), engine.finish(1)
    engine.add(request(2, prompt=1000, output=50))
    engine.begin(1), engine.finish(2)
    assert asked == [(1, 1), (2, 101)]


def test_no_draft_is_counted_where_the_schedule_says_zero() -> None:
    table = schedule([[1, 8, 0]], 3)
    engine = engine_of(world_of(), max_tokens=3, tokens_for=table)
    run(engine, [request(number) for number in range(4)])
    assert engine.counts.drafts == engine.counts.draft_tokens == engine.counts.accepted == 0
    assert engine.counts.generated == 80


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_acceptance_by_position_is_the_worlds(tokens: int) -> None:
    engine = engine_of(world_of(), max_tokens=tokens)
    run(engine, [request(number, output=400) for number in range(60)])
    counts = engine.counts
    assert counts.draft_tokens == tokens * counts.drafts
    for position in range(tokens):
        expected = (0.8, 0.6, 0.4)[position]
        spread = 4 * math.sqrt(expected * (1 - expected) / counts.drafts)
        assert counts.accepted_at[position] / counts.drafts == pytest.approx(expected, abs=spread)
    assert sum(counts.accepted_at) == counts.accepted


def test_every_output_token_is_counted_once() -> None:
    engine = engine_of(world_of(), max_tokens=3)
    outputs = run(engine, [request(number, output=7 + number) for number in range(9)])
    by_request: dict[int, int] = {}
    for output in outputs:
        by_request[output.request.seed] = by_request.get(output.request.seed, 0) + output.tokens
    assert by_request == {number: 7 + number for number in range(9)}
    assert engine.counts.generated == sum(by_request.values())
    assert engine.cache.used == 0


def test_the_same_prompt_is_guessed_alike_in_every_launch() -> None:
    def steps_of(launch_seed: int) -> list[int]:
        world = world_of(noise=Noise(step=0.02, launch=0.02), spread=0.3)
        engine = engine_of(world, launch_seed=launch_seed, max_tokens=3)
        return [output.tokens for output in run(engine, [request(5, output=60)])]

    assert steps_of(1) == steps_of(2)


def test_prompts_differ_in_how_well_they_are_guessed_where_the_world_says_so() -> None:
    def accepted(spread: float) -> list[float]:
        out = []
        for seed in range(12):
            engine = engine_of(world_of(spread=spread), max_tokens=3)
            run(engine, [request(seed, output=600)])
            out.append(engine.counts.accepted / engine.counts.drafts)
        return out

    assert statistics.stdev(accepted(0.5)) > 3 * statistics.stdev(accepted(0.0))


def test_schedule_wins_where_it_picks_the_better_side_of_a_crossover() -> None:
    def seconds(fields: dict[str, object], concurrency: int) -> float:
        engine = engine_of(world_of(Linear(0.01, 0.002)), **fields)
        for number in range(concurrency):
            engine.add(request(number, output=200))
        return max(now for now, _ in drive(engine, 0.0))

    table = schedule([[1, 2, 3], [3, 64, 0]], 3)
    none, static, dynamic = {}, {"max_tokens": 3}, {"max_tokens": 3, "tokens_for": table}
    assert seconds(static, 1) < 0.8 * seconds(none, 1)
    assert seconds(none, 24) < 0.8 * seconds(static, 24)
    assert seconds(dynamic, 1) == pytest.approx(seconds(static, 1))
    assert seconds(dynamic, 24) < 0.85 * seconds(static, 24)


def test_drafter_that_ignores_the_schedule_drafts_the_most_and_verifies_what_was_chosen() -> None:
    recorder = Recorder()
    table = schedule([[1, 8, 1]], 3)
    engine = engine_of(
        world_of(recorder), max_tokens=3, tokens_for=table, drafter_ignores_tokens=True
    )
    run(engine, [request(1)])
    assert {step.drafted for step in recorder.steps} == {3}
    assert {step.verified for step in recorder.steps[1:]} == {1}


def test_more_requests_than_max_num_seqs_wait_in_order() -> None:
    engine = engine_of(world_of(), max_num_seqs=2)
    outputs = run(engine, [request(number, output=5) for number in range(5)])
    assert [o.request.seed for o in outputs if o.finished] == [0, 1, 2, 3, 4]
    assert max(len([o for o in outputs if o.request.last_token_at == t]) for t in range(9)) <= 2


def test_a_full_cache_preempts_the_youngest_and_computes_it_anew() -> None:
    engine = engine_of(world_of(), kv_tokens=160)
    requests = [request(number, prompt=40, output=40) for number in range(3)]
    outputs = run(engine, requests)
    assert engine.counts.preemptions > 0
    assert requests[0].preemptions == 0
    assert sum(output.tokens for output in outputs) == 120
    assert all(each.produced == 40 for each in requests)
    assert engine.cache.used == 0


def test_prompts_with_a_common_beginning_hit_the_prefix_cache() -> None:
    engine = engine_of(world_of())
    run(engine, [request(1, prompt=64, prefix=(1, 2, 3, 4))])
    assert engine.counts.prefix_hits == 0
    run(engine, [request(2, prompt=64, prefix=(1, 2, 9, 10))])
    assert engine.counts.prefix_hits == 32
    run(engine, [request(3, prompt=64, prefix=(1, 2, 3, 4))])
    # A prompt is never found whole: its last token is computed.
    assert engine.counts.prefix_hits == 32 + 48
    assert engine.counts.prefix_queries == 3 * 64
    assert engine.cache.reset()
    run(engine, [request(4, prompt=64, prefix=(1, 2, 3, 4))])
    assert engine.counts.prefix_hits == 32 + 48


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    engine = engine_of(world_of(), prefix_caching=False)
    for _ in range(2):
        run(engine, [request(1, prompt=64, prefix=(1, 2, 3, 4))])
    assert engine.counts.prefix_queries == engine.counts.prefix_hits == 0


def test_an_aborted_request_gives_its_room_back_and_makes_no_token() -> None:
    engine = engine_of(world_of())
    gone, stays = request(1, output=50), request(2, output=50)
    engine.add(gone), engine.add(stays)
    engine.begin(0)
    engine.abort(gone)
    outputs = engine.finish(1)
    assert [output.request for output in outputs] == [stays]
    assert engine.running == [stays]
    rest = [output for _, outputs in drive(engine, 1.0) for output in outputs]
    assert {output.request for output in rest} == {stays}
    assert engine.cache.used == 0


def test_launches_differ_by_the_worlds_spread_and_equal_seeds_by_nothing() -> None:
    world = world_of(noise=Noise(step=0.0, launch=0.02))
    factors = [math.log(engine_of(world, launch_seed=seed).launch_factor) for seed in range(400)]
    assert statistics.stdev(factors) == pytest.approx(0.02, rel=0.15)
    assert statistics.fmean(factors) == pytest.approx(0.0, abs=0.004)
    assert (
        engine_of(world, launch_seed=7).launch_factor
        == engine_of(world, launch_seed=7).launch_factor
    )


def test_step_noise_and_drift_are_the_worlds() -> None:
    noise = Noise(step=0.05, launch=0.0, drift=0.1, drift_period=400.0)
    engine = engine_of(world_of(lambda step: 1.0, noise=noise))
    engine.add(request(1, output=4000))
    times = [now for now, _ in drive(engine, 0.0)]
    steps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    quarter = [s for s, at in zip(steps, times, strict=True) if 80 < at % 400 < 120]
    opposite = [s for s, at in zip(steps, times, strict=True) if 280 < at % 400 < 320]
    assert statistics.fmean(quarter) == pytest.approx(math.exp(0.1), rel=0.02)
    assert statistics.fmean(opposite) == pytest.approx(math.exp(-0.1), rel=0.02)
    assert statistics.stdev(quarter) == pytest.approx(0.055, rel=0.2)


def test_the_first_change_costs_more_than_later_ones() -> None:
    world = world_of(lambda step: 1.0, first_change=5.0, change=0.5)
    engine = engine_of(world, max_tokens=2, tokens_for=schedule([[1, 1, 2], [2, 8, 1]], 2))
    engine.add(request(0, output=200))
    seconds: list[float] = []
    for turn in range(3):
        engine.add(request(10 + turn, output=6))
        for _ in range(12):
            seconds.append(engine.begin(0.0) or 0.0)
            engine.finish(0.0)
    assert sorted(set(seconds)) == [1.0, 1.5, 6.5]
    assert seconds.count(6.5) == 1
    assert seconds.count(1.5) == 5


def test_collapse_slows_only_the_dynamic_path_at_zero_and_only_from_its_batch_on() -> None:
    world = world_of(lambda step: 1.0, collapse=Collapse(median=4, sigma=0.0, from_batch=3))

    def step_seconds(requests: int, **fields: object) -> float:
        engine = engine_of(world, **fields)
        for number in range(requests):
            engine.add(request(number))
        engine.begin(0), engine.finish(1)
        return engine.begin(1) or 0.0

    zero = {"max_tokens": 2, "tokens_for": schedule([[1, 8, 0]], 2)}
    assert step_seconds(3, **zero) == pytest.approx(4.0)
    assert step_seconds(2, **zero) == pytest.approx(1.0)
    assert step_seconds(3) == pytest.approx(1.0)
    assert step_seconds(3, max_tokens=2) == pytest.approx(1.0)


def test_a_planted_fault_ends_the_step_at_which_the_tokens_change() -> None:
    changes: list[tuple[int, int]] = []

    def die(before: int, after: int) -> None:
        changes.append((before, after))
        raise StepFault("boom")

    table = schedule([[1, 1, 3], [2, 8, 1]], 3)
    engine = Engine(
        world_of(), Settings(max_tokens=3, tokens_for=table), launch_seed=1, on_change=die
    )
    engine.add(request(1, output=9))
    engine.begin(0), engine.finish(1)
    assert changes == []
    engine.add(request(2))
    engine.begin(1)
    with pytest.raises(StepFault):
        engine.finish(2)
    assert changes == [(3, 1)]


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(0, 3)),
        min_size=1,
        max_size=24,
    ),
    tokens=st.integers(0, 3),
    seqs=st.integers(1, 12),
    budget=st.integers(8, 200),
    blocks=st.integers(9, 60),
    rows=st.sampled_from([None, [[1, 2, 3], [3, 6, 1], [7, 64, 0]]]),
)
def test_whatever_is_asked_every_request_ends_with_all_its_tokens_and_no_room_is_lost(
    prompts: list[tuple[int, int, int]],
    tokens: int,
    seqs: int,
    budget: int,
    blocks: int,
    rows: list[list[int]] | None,
) -> None:
    recorder = Recorder()
    table = schedule(rows, tokens, seqs) if rows and tokens else None
    engine = engine_of(
        dataclasses.replace(world_of(recorder), spread=0.2),
        max_tokens=tokens,
        tokens_for=table,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        kv_tokens=16 * blocks,
    )
    requests = [
        request(at, prompt=prompt, output=output, prefix=tuple(range(common))[: prompt // 16])
        for at, (prompt, output, common) in enumerate(prompts)
    ]
    outputs = run(engine, requests)
    assert [each.produced for each in requests] == [output for _, output, _ in prompts]
    assert sum(output.tokens for output in outputs) == engine.counts.generated
    assert sum(output.finished for output in outputs) == len(prompts)
    assert engine.cache.used == 0
    assert all(
        step.decoding * (1 + step.verified) + step.prefill <= budget for step in recorder.steps
    )
    assert all(step.decoding <= seqs for step in recorder.steps)
    assert engine.counts.accepted <= engine.counts.draft_tokens
    assert all(step.speculative or not step.verified for step in recorder.steps)
