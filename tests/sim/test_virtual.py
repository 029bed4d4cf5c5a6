"""Windows and launches in virtual time: what a judge would be given."""

import dataclasses
import math
import statistics

import pytest

from specschedule.core.spec import Slo
from specschedule.sim import text
from specschedule.sim.arguments import Refused
from specschedule.sim.engine import Engine, Request, drive
from specschedule.sim.virtual import (
    Arm,
    Load,
    launched,
    rates,
    simulate_hold,
    simulate_launch,
)
from specschedule.sim.worlds import WORLDS, Noise

DEMO = WORLDS["demo"]
QUIET = dataclasses.replace(DEMO, noise=Noise(step=0, launch=0))
CARD = Arm("card", 5, [[1, 2, 5], [3, 16, 1]])
SLO = Slo(ttft=0.5, tpot=0.06)


def test_a_window_holds_its_work_and_its_counters_agree() -> None:
    cell = simulate_hold(DEMO, CARD, concurrency=8, slo=SLO)
    assert cell.completed == cell.offered
    assert cell.completed >= 20
    assert cell.good == cell.completed
    assert cell.profile.concurrency == 8
    assert cell.tokens == 1
    assert cell.draft_tokens == cell.drafts
    assert cell.engine_output_tokens == cell.output_tokens
    assert cell.drafts is not None
    assert cell.accepted_tokens is not None
    assert cell.accepted_tokens / cell.drafts == pytest.approx(0.80, abs=0.05)


def test_rate_and_decode_rate_are_those_of_the_physics() -> None:
    cell = simulate_hold(QUIET, Arm("none"), concurrency=1, load=Load(output_tokens=101))
    decode, prefill = 0.008 + 0.0012, 0.008 + 128 * 5e-5
    assert cell.decode_rate == pytest.approx(1 / decode)
    assert cell.ttft_ms is not None
    assert cell.ttft_ms.p50 == pytest.approx(1000 * prefill)
    assert rates([cell]) == [pytest.approx(101 / (prefill + 100 * decode))]


def test_without_speculation_there_are_no_draft_counters() -> None:
    cell = simulate_hold(DEMO, Arm("none"), concurrency=4)
    assert cell.drafts is cell.draft_tokens is cell.accepted_tokens is None
    assert cell.tokens == 0


def test_tokens_are_left_out_where_they_vary() -> None:
    rows = [[1, 512, 1, 256, 1], [1, 512, 257, 8192, 3]]
    arm, world = Arm("by-context", 3, rows), WORLDS["context-axis"]
    for prompt, tokens in ((100, 1), (240, None)):
        load = Load(prompt_tokens=prompt, output_tokens=64)
        assert simulate_hold(world, arm, concurrency=1, load=load).tokens == tokens


def test_good_counts_the_requests_that_meet_every_limit() -> None:
    tight = simulate_hold(DEMO, Arm("static-5", 5), concurrency=16, slo=Slo(tpot=0.03))
    assert tight.good == 0
    free = simulate_hold(DEMO, Arm("static-5", 5), concurrency=16, slo=Slo(tpot=0.09))
    assert free.good == free.completed
    none_asked = simulate_hold(DEMO, Arm("static-5", 5), concurrency=16)
    assert none_asked.good is None


def test_equal_seeds_give_equal_windows_and_prompts_are_shared_by_arms() -> None:
    again = [simulate_hold(DEMO, CARD, concurrency=8, seed=3, launch_seed=4) for _ in range(2)]
    assert again[0] == again[1]
    other = simulate_hold(DEMO, CARD, concurrency=8, seed=3, launch_seed=5)
    assert other.window_seconds != again[0].window_seconds
    # The same prompts are guessed alike in another launch: only time differs.
    assert other.accepted_tokens == again[0].accepted_tokens


def test_relaunches_differ_by_the_worlds_launch_spread() -> None:
    world = dataclasses.replace(DEMO, noise=Noise(step=0.005, launch=0.02))
    found = [
        math.log(rates([simulate_hold(world, CARD, concurrency=4, launch_seed=seed)])[0])
        for seed in range(60)
    ]
    assert statistics.stdev(found) == pytest.approx(0.02, rel=0.3)


def test_windows_of_one_launch_share_its_shift() -> None:
    world = dataclasses.replace(DEMO, noise=Noise(step=0.0, launch=0.05))
    quiet = rates(simulate_launch(QUIET, CARD, points=[1, 8]).cells)
    for seed in range(4):
        launch = simulate_launch(world, CARD, points=[1, 8], launch_seed=seed)
        shifts = [now / still for now, still in zip(rates(launch.cells), quiet, strict=True)]
        assert shifts[0] == pytest.approx(shifts[1], rel=1e-9)
        assert shifts[0] != pytest.approx(1.0, abs=1e-4)


def test_a_launch_is_evidence_with_a_receipt() -> None:
    launch = simulate_launch(
        WORLDS["collapse"],
        Arm("candidate-x", 2, [[1, 4, 2], [5, 512, 0]]),
        points=[1, 8],
        launch=5,
        round=3,
        position=2,
    )
    assert (launch.launch, launch.round, launch.position) == (5, 3, 2)
    assert launch.receipt.graph_mode == "PIECEWISE"
    assert launch.receipt.schedule == launch.schedule == [[1, 4, 2], [5, 512, 0]]
    assert [cell.tokens for cell in launch.cells] == [2, 0]
    assert {cell.launch for cell in launch.cells} == {5}


def test_an_arm_that_vllm_would_refuse_is_refused() -> None:
    with pytest.raises(Refused, match="must start at 1"):
        launched(DEMO, Arm("bad", 3, [[2, 8, 3]]))


def test_http_and_virtual_time_share_one_engine(start, static) -> None:
    """The same prompt gains the same tokens in the same steps over HTTP and in virtual time."""
    prompt = list(range(500, 540))
    engine = Engine(DEMO, launched(DEMO, Arm("static-5", 5)).settings, launch_seed=1)
    engine.add(Request(prompt_tokens=40, output_tokens=80, seed=text.seed_of(prompt), arrived=0.0))
    virtual = [output.tokens for _, outputs in drive(engine, 0.0) for output in outputs]
    with start("--world", "demo", *static) as process:
        events = process.events(
            "/v1/completions",
            {"prompt": prompt, "max_tokens": 80, "ignore_eos": True, "temperature": 0},
        )
    served = [len(event["choices"][0]["text"]) // 4 for event in events]
    assert served == virtual
