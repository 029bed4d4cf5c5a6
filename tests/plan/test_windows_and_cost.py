"""What a launch measures, and what a run costs before its first pod starts."""

import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main
from specschedule.core.arms import Arm, arms
from specschedule.core.budget import Cost, budget_left, cost
from specschedule.core.evidence import Cell, Launch, Profile, Receipt
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.core.visit import Window
from specschedule.core.windows import MOST_CATEGORIES, apart, swing, windows
from specschedule.core.workload import Trace, Workload
from specschedule.load.arrivals import draw
from specschedule.sim.engine import Engine, Request
from specschedule.sim.virtual import Arm as EngineArm
from specschedule.sim.virtual import launched, simulate_hold
from specschedule.sim.worlds import WORLDS

SPEC = {
    "target": {"kind": "Deployment", "name": "chat"},
    "slo": {"ttft": "500ms", "tpot": "40ms"},
    "candidates": [
        {"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]},
        {"name": "second", "schedule": [[1, 4, 5], [5, 16, 2]]},
    ],
    "load": {"points": [1, 8, 16], "outputTokens": 256},
    "bar": {
        "improve": [{"metric": "goodput", "at": [8], "by": "15%"}],
        "protect": [{"metric": "decodeRate", "at": [1], "category": "code", "within": "3%"}],
    },
    "experiment": {"effort": "Quick", "budget": {"gpuHours": 2}},
}
SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "num_speculative_tokens": 5},
)


def spec_of(**experiment: Any) -> Spec:
    return Spec.model_validate({**SPEC, "experiment": {**SPEC["experiment"], **experiment}})


def arm_of(spec: Spec, name: str) -> Arm:
    return next(arm for arm in arms(spec, SERVER) if arm.name == name)


def test_every_arm_of_a_round_sees_the_same_windows_in_the_same_order() -> None:
    spec = spec_of()
    for number in (1, 2, 3):
        seen = {
            name: [
                (w.cell, w.profile, w.category, w.seed)
                for w in windows(spec, arm_of(spec, name), round=number, first=number == 1)
            ]
            for name in ("incumbent", "candidate-card", "none")
        }
        assert seen["incumbent"] == seen["candidate-card"] == seen["none"]


def test_windows_hold_each_point_and_each_category_that_the_bar_names() -> None:
    spec = spec_of()
    *found, outputs = windows(spec, arm_of(spec, "candidate-card"), round=3, first=False)
    assert outputs.profile.kind == "equivalence"
    assert sorted(w.cell.rsplit("-s", 1)[0] for w in found) == [
        "r3-hold1",
        "r3-hold1-code",
        "r3-hold16",
        "r3-hold8",
    ]
    assert {w.profile.concurrency: w.tokens for w in found} == {1: 5, 8: 1, 16: 1}
    assert all(w.requests == 20 for w in found)
    assert len({w.cell for w in found}) == len(found)


CATEGORIES = ["code", "prose", "shell", "tool-json"]
APART = {
    "a candidate in Quick": ("Quick", "candidate-card", CATEGORIES, 8),
    "the incumbent in Quick": ("Quick", "incumbent", CATEGORIES, 8),
    "no control in Quick, which must stay short": ("Quick", "none", CATEGORIES, 0),
    "a control in Standard": ("Standard", "none", CATEGORIES, 8),
    "no more than four categories": ("Standard", "incumbent", [*CATEGORIES, "a", "z"], 8),
    "none where prompts are synthetic": ("Standard", "incumbent", [], 0),
}


@pytest.mark.parametrize("claim", APART)
def test_first_launches_hold_categories_at_the_lowest_and_the_highest_load(claim: str) -> None:
    effort, arm, categories, expected = APART[claim]
    found = apart(spec_of(effort=effort), arm, categories)
    assert len(set(found)) == len(found) == expected
    assert {at for at, _ in found} <= {1, 16}
    assert [name for at, name in found if at == 1] == sorted(categories)[: expected // 2]


def test_a_category_that_the_bar_names_too_is_held_once() -> None:
    spec = spec_of()
    held = apart(spec, "incumbent", CATEGORIES)
    found = windows(spec, arm_of(spec, "incumbent"), round=1, first=True, apart=held)
    of_categories = [(w.profile.concurrency, w.category) for w in found if w.category]
    assert sorted(of_categories) == sorted(held)
    assert (1, "code") in held
    assert len({w.cell for w in found}) == len(found)


def test_what_categories_add_is_in_the_price_and_what_is_left_out_is_named() -> None:
    spec = spec_of()
    many = Workload(categories=[*CATEGORIES, "a-first", "zulu"])
    plain, whole = (
        cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, workload=sent)
        for sent in (None, many)
    )
    assert plain.notes == []
    held, left_out = whole.notes
    assert "incumbent and candidate holds a-first, code, prose, shell apart at 1 and 16" in held
    # The bar holds code at 1 anyway; a request is as slow as the SLO lets it be.
    added = (3 * (1 + 20) + MOST_CATEGORIES * (1 + 2)) * (0.5 + 256 * 0.04) / 60
    assert f"{added:.1f} minutes more" in held
    assert "tool-json, zulu" in left_out
    before, after = ({row.arm: row.minutes for row in each.arms} for each in (plain, whole))
    for arm in ("incumbent", "candidate-card"):
        assert after[arm] - before[arm] == pytest.approx(added, abs=0.11), "its first launch only"
    assert after["none"] == before["none"]


def test_orders_and_prompts_change_from_round_to_round_and_repeat_by_seed() -> None:
    spec = spec_of()
    arm = arm_of(spec, "incumbent")
    orders = [
        tuple(w.profile.concurrency for w in windows(spec, arm, round=n, first=False))
        for n in range(1, 13)
    ]
    assert len(set(orders)) > 1
    assert windows(spec, arm, round=4, first=False) == windows(spec, arm, round=4, first=False)
    seeds = [windows(spec, arm, round=n, first=False)[0].seed for n in range(1, 13)]
    assert len(set(seeds)) == 12


def test_standard_crosses_each_boundary_both_ways_first_pass_apart() -> None:
    spec = spec_of(effort="Standard")

    def crossings(found: list[Window]) -> list[tuple[int, ...]]:
        profiles = [w.profile for w in found if w.profile.kind == "crossing"]
        return [(p.low, p.boundary, p.high, p.pass_) for p in profiles]

    found = windows(spec, arm_of(spec, "candidate-card"), round=1, first=True)
    assert crossings(found) == [(1, 2, 8, 1), (1, 2, 8, 2)]
    later = windows(spec, arm_of(spec, "candidate-card"), round=2, first=False)
    assert crossings(later) == [(1, 2, 8, 2)], "nothing is a first pass in a launch's later windows"
    incumbents = windows(spec, arm_of(spec, "incumbent"), round=1, first=True)
    assert {w.profile.kind for w in incumbents} == {"hold", "equivalence"}


def test_first_passes_come_before_all_that_would_cross_their_boundary() -> None:
    spec = Spec.model_validate(
        {
            **SPEC,
            "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 8, 2], [9, 16, 0]]}],
            "experiment": {"effort": "Standard"},
        }
    )
    found = windows(spec, arm_of(spec, "candidate-card"), round=1, first=True)
    first, second = (w.profile for w in found[:2])
    assert (first.low, first.boundary, first.high, first.pass_) == (1, 2, 8, 1)
    assert (second.low, second.boundary, second.high, second.pass_) == (8, 8, 16, 1)
    assert [w.profile.pass_ for w in found if w.profile.kind == "crossing"] == [1, 1, 2, 2]


def outputs_of(schedules: list[list[list[int]]], points: list[int]) -> list[list[int]]:
    """The staircase over which outputs are compared; the server's largest batch is 16."""
    candidates = [{"name": f"c{n}", "schedule": rows} for n, rows in enumerate(schedules)]
    load = {**SPEC["load"], "points": points}
    bar = {"improve": [{"metric": "goodput", "by": "15%"}]}
    spec = Spec.model_validate({**SPEC, "candidates": candidates, "load": load, "bar": bar})
    arm = arm_of(spec, "incumbent")
    (outputs,) = (
        w for w in windows(spec, arm, round=2, first=False) if w.profile.kind == "equivalence"
    )
    assert outputs.seed == spec.experiment.seed, "relaunches are asked the same"
    assert outputs.profile.steps is not None
    return outputs.profile.steps


CARD = [[1, 2, 5], [3, 16, 1]]
STAIRCASES = {
    "each band at its largest load point, up and down": (
        ([CARD], [1, 8, 16]), [[1, 8], [16, 22], [1, 4]],
    ),
    "a band without a load point where it begins": (
        ([CARD], [1]), [[1, 8], [3, 8], [1, 4]],
    ),
    "the bands of all candidates": (
        ([CARD, [[1, 4, 5], [5, 16, 2]]], [1, 8]), [[1, 8], [3, 8], [8, 8], [3, 4], [1, 4]],
    ),
    "one band": (([[[1, 16, 2]]], [4]), [[4, 8]]),
    "no more in flight than the server batches": (([CARD], [1, 64]), [[1, 8], [16, 22], [1, 4]]),
    "no band that the server never reaches": (
        ([[[1, 2, 5], [3, 32, 2], [33, 64, 0]]], [2, 8]), [[2, 8], [8, 9], [2, 4]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", STAIRCASES)
def test_outputs_are_compared_in_every_band(claim: str) -> None:
    asked, steps = STAIRCASES[claim]
    assert outputs_of(*asked) == steps


def held(spec: Spec, per_second: Mapping[int, float], **more: Any) -> Launch:
    """The incumbent's first launch, which ends so many requests per second at each load point."""
    cells = [
        Cell(
            cell=f"r1-hold{at}-s0",
            arm="incumbent",
            launch=1,
            profile=Profile(kind="hold", concurrency=at),
            window_seconds=100.0,
            offered=round(100 * rate),
            completed=round(100 * rate),
            good=round(100 * rate),
        )
        for at, rate in per_second.items()
    ]
    return Launch(arm="incumbent", launch=1, round=1, cells=cells, **more)


RATES = {1: 0.2, 8: 1.5, 16: 2.4}


def test_offered_loads_are_measured_by_every_launch_of_any_effort() -> None:
    for effort in ("Quick", "Standard"):
        load = {"points": [8], "requestsPerSecond": [4, 0.5]}
        asked = [
            {"metric": "attainment", "by": "5%"},
            {"metric": "attainment", "category": "code", "by": "5%"},
        ]
        plain = {**SPEC, "load": load, "bar": {"improve": asked}, "experiment": {"effort": effort}}
        spec = Spec.model_validate(plain)
        for name in ("incumbent", "candidate-card", "none"):
            found = windows(spec, arm_of(spec, name), round=2, first=False)
            opens = [w for w in found if w.profile.kind == "open"]
            assert [(w.profile.requests_per_second, w.category) for w in opens] == [
                (0.5, None),
                (0.5, "code"),
                (4, None),
                (4, "code"),
            ]
            assert len({w.cell for w in opens}) == 4


def swept(spec: Spec, *, first: bool, limit: int | None, name: str = "none") -> list[Window]:
    server = SERVER.model_copy(update={"max_model_len": limit})
    arm = next(each for each in arms(spec, server) if each.name == name)
    found = windows(spec, arm, round=1 if first else 2, first=first)
    return [window for window in found if window.profile.kind == "depth"]


def test_first_launches_sweep_two_depths_with_one_stream() -> None:
    spec = spec_of(effort="Standard")
    for name in ("incumbent", "candidate-card", "none", "static-1"):
        found = swept(spec, first=True, limit=4096, name=name)
        assert [(w.profile.context, w.profile.concurrency) for w in found] == [(512, 1), (2048, 1)]
        assert swept(spec, first=False, limit=4096, name=name) == []
    assert {w.tokens for w in swept(spec, first=True, limit=4096, name="candidate-card")} == {5}
    assert swept(spec_of(), first=True, limit=4096) == [], "Quick must stay short"


SWEPT = {
    "a depth beyond the model is named": ({}, 2048, [512], "2048: beyond max_model_len 2048"),
    "one that just fits is swept": ({}, 2048 + 256, [512, 2048], None),
    "so are all where nobody says how much fits": ({}, None, [], "--max-model-len is not given"),
    "prompts of the user's own are not made longer": (
        {"prompts": {"configMap": "p"}}, 4096, [], "prompts are given",
    ),
    "a deep prompt that is cached tells nothing": (
        {"prefixCache": "Shared"}, 4096, [], "a deep prompt is cached",
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", SWEPT)
def test_depths_that_are_left_out_are_named(claim: str) -> None:
    load, limit, expected, words = SWEPT[claim]
    plain = {**SPEC, "load": {**SPEC["load"], **load}, "experiment": {"effort": "Standard"}}
    spec = Spec.model_validate(plain)
    found = swept(spec, first=True, limit=limit)
    assert [w.profile.context for w in found] == expected
    server = SERVER.model_copy(update={"max_model_len": limit})
    notes = cost(spec, arms(spec, server), boot_seconds=240.0, gpus=1).notes
    left_out = [note for note in notes if note.startswith("not swept: ")]
    assert [words in note for note in left_out] == ([True] if words else [])
    minutes = len(expected) * 21 * (0.5 + 256 * 0.04) / 60
    told = [note for note in notes if "decodes one stream at depths" in note]
    assert [f"{minutes:.1f} minutes more" in note for note in told] == [True] * bool(expected)


def test_contexts_that_the_bar_names_are_held_with_prompts_made_that_long() -> None:
    rows = [[1, 16, 1, 1023, 1], [1, 16, 1024, 4096, 3]]
    asked = [
        {"metric": "goodput", "at": [8], "context": 2048, "by": "15%"},
        {"metric": "decodeRate", "at": [1], "category": "code", "context": 512, "by": "3%"},
    ]
    candidates = [{"name": "card", "schedule": rows}]
    plain = {**SPEC, "candidates": candidates, "bar": {"improve": asked}}
    spec = Spec.model_validate(plain)
    for number in (1, 2):
        arm = arm_of(spec, "candidate-card")
        found = windows(spec, arm, round=number, first=number == 1)
        held = {
            (w.profile.concurrency, w.category, w.context): (w.profile.context, w.tokens)
            for w in found
            if w.profile.kind == "hold"
        }
        # Requests go from 128 to 384 tokens as they are; answers are 256 tokens long.
        assert held == {
            (1, None, None): (None, 1),
            (8, None, None): (None, 1),
            (16, None, None): (None, 1),
            (8, None, 2048): (1920, 3),
            (1, "code", 512): (384, 1),
        }
        assert len({w.cell for w in found}) == len(found)


TRACE = Trace(digest="sha256:0123456789ab", requests=90, seconds=60.0, longest=900)


@pytest.mark.parametrize("effort", ["Quick", "Standard"])
def test_every_launch_replays_the_trace_once(effort: str) -> None:
    asked = [{"metric": "attainment", "category": "code", "by": "5%"}]
    load = {"points": [8], "trace": {"configMap": "recorded"}}
    plain = {**SPEC, "load": load, "bar": {"improve": asked}, "experiment": {"effort": effort}}
    spec = Spec.model_validate(plain)
    for name in ("incumbent", "candidate-card", "none"):
        for number in (1, 2):
            found = windows(spec, arm_of(spec, name), round=number, first=number == 1, trace=TRACE)
            replays = [w for w in found if w.profile.trace is not None]
            assert [(w.category, w.requests) for w in replays] == [(None, 90), ("code", 90)]
            assert {w.profile.trace for w in replays} == {TRACE.digest}
            assert {w.profile.mean_rate for w in replays} == {1.5}
            assert {w.profile.kind for w in replays} == {"open"}


def test_a_trace_costs_every_launch_as_long_as_it_lasts() -> None:
    load = {**SPEC["load"], "trace": {"configMap": "recorded"}}
    spec = Spec.model_validate({**SPEC, "load": load})
    plain, whole = (
        cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, workload=sent)
        for sent in (None, Workload(trace=TRACE))
    )
    request = 0.5 + 256 * 0.04
    added = plain.launches * (60 + request) / 60
    assert whole.minutes - plain.minutes == pytest.approx(added, abs=0.3)


@pytest.mark.parametrize(
    ("claim", "effort", "launches", "expected"),
    [
        ("before the incumbent was measured", "Standard", [], None),
        ("as fast as the incumbent's held load ends", "Standard", [RATES], (0.2, 2.4)),
        ("Quick measures none", "Quick", [RATES], None),
        ("a rate that does not rise crosses nothing", "Standard", [{1: 2.0, 16: 2.0}], None),
    ],
)
def test_the_swinging_load_is_what_the_incumbent_can_bear(
    claim: str, effort: str, launches: list[dict[int, float]], expected: tuple[float, float] | None
) -> None:
    spec = spec_of(effort=effort)
    done = [held(spec, rates) for rates in launches]
    found = swing(spec, arms(spec, SERVER), done)
    assert (found and (found.low, found.peak)) == expected, claim


def test_a_void_launch_tells_no_rates() -> None:
    spec = spec_of(effort="Standard")
    assert swing(spec, arms(spec, SERVER), [held(spec, RATES, void="preempted")]) is None


def test_a_schedule_without_a_boundary_between_load_points_is_not_swung_across_it() -> None:
    plain = {**SPEC, "candidates": [{"name": "card", "schedule": [[1, 16, 2]]}]}
    spec = Spec.model_validate({**plain, "experiment": {"effort": "Standard"}})
    assert swing(spec, arms(spec, SERVER), [held(spec, RATES)]) is None


def test_all_arms_swing_by_the_same_arrivals() -> None:
    spec = spec_of(effort="Standard")
    offered = swing(spec, arms(spec, SERVER), [held(spec, RATES)])
    seen = [
        [
            w
            for w in windows(spec, arm_of(spec, name), round=2, first=False, swing=offered)
            if w.profile.kind == "open"
        ]
        for name in ("incumbent", "candidate-card", "none")
    ]
    assert [(w.profile, w.seed, w.requests) for (w,) in seen] == [
        (
            Profile(kind="open", requests_per_second=0.2, peak_requests_per_second=2.4),
            seen[0][0].seed,
            64,
        )
    ] * 3


def test_requests_in_flight_follow_the_swing_across_every_boundary() -> None:
    world = WORLDS["demo"]
    launched_arm = EngineArm("incumbent", 5)
    points = {at: simulate_hold(world, launched_arm, concurrency=at) for at in (1, 8, 16)}
    rates = {at: cell.completed / cell.window_seconds for at, cell in points.items()}
    spec = spec_of(effort="Standard")
    offered = swing(spec, arms(spec, SERVER), [held(spec, rates)])
    assert offered is not None
    turn = draw(offered.low, 64, seed=1, peak=offered.peak)
    engine = Engine(world, launched(world, launched_arm).settings, launch_seed=1)
    arrivals = [
        Request(prompt_tokens=128, output_tokens=128, seed=at, arrived=arrival.at)
        for at, arrival in enumerate(turn.arrivals)
    ]
    seen: list[int] = []
    now = 0.0
    while arrivals or engine.running or engine.waiting:
        while arrivals and arrivals[0].arrived <= now:
            engine.add(arrivals.pop(0))
        seconds = engine.begin(now)
        if seconds is None:
            now = arrivals[0].arrived
            continue
        now += seconds
        engine.finish(now)
        seen.append(len(engine.running))
    top = seen.index(max(seen))
    for boundary in (2, 4):
        assert min(seen[:top]) <= boundary < max(seen)
        assert min(seen[top:]) <= boundary


def cost_of(**experiment: Any) -> Cost:
    spec = spec_of(**experiment)
    return cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=2)


def test_quick_costs_seven_launches_when_the_first_candidate_decides() -> None:
    answer = cost_of()
    by_arm = {row.arm: row for row in answer.arms}
    assert answer.launches == 7
    assert {name: row.launches for name, row in by_arm.items()} == {
        "incumbent": 3,
        "candidate-card": 3,
        "candidate-second": 0,
        "none": 1,
    }
    # Each candidate has one round more where a loss is to be watched.
    assert answer.launches_at_most == 17
    assert "only if it is needed" in by_arm["candidate-second"].buys
    assert answer.gpu_hours == pytest.approx(answer.minutes * 2 / 60, rel=0.01)
    assert answer.gpu_hours_at_most > answer.gpu_hours


def test_a_launch_costs_boot_warm_up_windows_and_scrapes() -> None:
    spec = spec_of()
    answer = cost(spec, arms(spec, SERVER)[:1], boot_seconds=240.0, gpus=1, scrape_seconds=15.0)
    request = 0.5 + 256 * 0.04
    held = sum((1 + -(-20 // at)) * request for at in (1, 1, 8, 16))
    # Outputs: bands end at 2, 4 and 16, so 8 + 3 + 2 + 2 + 4 waves of 20 tokens on average.
    held += 19 * (0.5 + 20 * 0.04)
    assert answer.arms[0].minutes == 0.0
    answer = cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, scrape_seconds=15.0)
    assert answer.arms[0].minutes == pytest.approx(3 * (240 + 30 + 60 + held) / 60, abs=0.06)


REQUEST = 0.5 + 256 * 0.04
"""Seconds of a request, as long as the SLO allows."""
REFINED = {
    "windows of 20 s that opened 25 s after each other": (25, 12.0, 5.0),
    "a wave of requests settles a window whose time is not known": (None, None, REQUEST),
}


@pytest.mark.parametrize("claim", REFINED)
def test_boot_warm_up_settling_and_windows_are_refined_by_launches(claim: str) -> None:
    every, warm_up, settled = REFINED[claim]
    spec = spec_of()
    began = datetime(2026, 11, 29, 10, tzinfo=UTC)
    planned = windows(spec, arm_of(spec, "incumbent"), round=1, first=True)
    cells = [
        Cell(
            cell=window.cell,
            arm="incumbent",
            launch=1,
            profile=window.profile,
            started_at=None
            if every is None
            else (began + timedelta(seconds=every * at)).isoformat(),
            window_seconds=20.0,
            offered=100,
            completed=100,
        )
        for at, window in enumerate(planned)
    ]
    receipt = Receipt(boot_seconds=100.0)
    done = [
        Launch(
            arm="incumbent",
            launch=1,
            round=1,
            receipt=receipt,
            warm_up_seconds=warm_up,
            cells=cells,
        )
    ]
    answer = cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, done=done)
    measured = len(cells) * 20 + (len(cells) - 1) * settled
    expected = 3 * (100 + (warm_up or 30) + 60 + measured) / 60
    assert answer.arms[0].minutes == pytest.approx(expected, abs=0.06)


def test_effort_buys_more_launches() -> None:
    quick, standard, thorough = (
        cost_of(effort=effort).launches for effort in ("Quick", "Standard", "Thorough")
    )
    assert quick < standard < thorough


def test_two_arms_at_a_time_halve_the_minutes_and_not_the_gpu_hours() -> None:
    one, two = cost_of(), cost_of(parallelism=2)
    assert two.minutes == pytest.approx(one.minutes / 2, abs=0.1)
    assert two.gpu_hours == one.gpu_hours


def test_the_budget_left_is_told_in_gpu_hours_and_launches() -> None:
    spec, answer = spec_of(), cost_of()
    left = budget_left(spec, answer, gpu_seconds=3600.0)
    each = answer.gpu_hours / answer.launches
    assert left.gpu_hours == 1.0
    assert left.launches == int(1.0 / each)
    assert budget_left(spec, answer, gpu_seconds=90000.0).launches == 0
    free = spec.model_copy(
        update={
            "experiment": spec.experiment.model_copy(
                update={"budget": spec.experiment.budget.model_copy(update={"gpu_hours": None})}
            )
        }
    )
    assert budget_left(free, answer, gpu_seconds=0.0).plain() == {}


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat", "namespace": "llm"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "chat"}},
        "template": {
            "metadata": {"labels": {"app": "chat"}},
            "spec": {
                "containers": [
                    {
                        "name": "server",
                        "image": "vllm/vllm-openai:v0.32.0",
                        "command": ["vllm", "serve", "org/model"],
                        "args": [
                            "--max-num-seqs=16",
                            '--speculative-config={"method":"eagle3","model":"org/drafter",'
                            '"num_speculative_tokens":5}',
                        ],
                        "resources": {"limits": {"nvidia.com/gpu": 2}},
                    }
                ]
            },
        },
    },
}


def ask(tmp_path: Path, target: Any, *more: str, spec: Any = SPEC) -> Any:
    schedule = {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schedule))
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(target))
    paths = ["-f", str(tmp_path / "s.yaml"), "--target", str(tmp_path / "d.yaml")]
    return CliRunner().invoke(main, ["plan", *paths, *more])


def test_a_price_says_when_preflight_refuses_the_run(tmp_path: Path) -> None:
    sound = ask(tmp_path, DEPLOYMENT)
    assert "refuses" not in sound.output
    target = copy.deepcopy(DEPLOYMENT)
    target["spec"]["template"]["spec"]["containers"][0]["args"] += ["-dp", "2"]
    assert "preflight refuses this run: dataParallel: " in ask(tmp_path, target).output
    plain = json.loads(ask(tmp_path, target, "-o", "json").output)
    assert plain["refused"]["reason"] == "DataParallel"
    assert "refused" not in json.loads(ask(tmp_path, DEPLOYMENT, "-o", "json").output)


def test_the_command_prints_what_each_arm_buys(tmp_path: Path) -> None:
    result = ask(tmp_path, DEPLOYMENT, "--boot", "4m", "-o", "json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert said["launches"] == 7
    assert said["gpuHours"] == pytest.approx(cost_of().gpu_hours)
    assert [row["arm"] for row in said["arms"]][:2] == ["incumbent", "candidate-card"]
    assert said["budget"]["gpuHours"] == 2.0
    text = ask(tmp_path, DEPLOYMENT, "--boot", "4m").output
    assert "candidate-second" in text
    assert "a hard limit" in text


@pytest.mark.parametrize(
    ("claim", "target", "more", "said"),
    [
        ("a duration without unit", DEPLOYMENT, ["--boot", "4"], "--boot: '4' is not a duration"),
        ("no Deployment", {"kind": "Service"}, [], "holds no Deployment"),
        (
            "another engine",
            {
                **DEPLOYMENT,
                "spec": {
                    "template": {
                        "spec": {
                            "containers": [
                                {
                                    "name": "server",
                                    "command": ["python", "-m", "sglang.launch_server"],
                                }
                            ]
                        }
                    }
                },
            },
            [],
            "EngineNotSupported",
        ),
    ],
)
def test_bad_input_gets_one_clear_line(
    tmp_path: Path, claim: str, target: Any, more: list[str], said: str
) -> None:
    result = ask(tmp_path, target, *more)
    assert result.exit_code == 2, claim
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_prompts_are_priced_by_their_categories_or_the_price_says_that_it_lacks_them(
    tmp_path: Path,
) -> None:
    spec = {**SPEC, "load": {**SPEC["load"], "prompts": {"configMap": "chat-prompts"}}}
    assert "not in this price" in ask(tmp_path, DEPLOYMENT, spec=spec).output
    prompts = str(Path(__file__).parents[2] / "hack/prompts/chat-prompts.yaml")
    told = ask(tmp_path, DEPLOYMENT, "--prompts", prompts, spec=spec).output
    assert "holds code, prose, shell, tool-json apart at 1 and 16 in flight" in told
    assert "not in this price" not in told
    wrong = ask(tmp_path, DEPLOYMENT, "--prompts", str(tmp_path / "none.yaml"), spec=spec)
    assert wrong.exit_code == 2
    assert "--prompts" in wrong.output


def test_a_trace_is_priced_where_it_is_given_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    spec = {**SPEC, "load": {**SPEC["load"], "trace": {"configMap": "recorded"}}}
    assert (
        "replays the trace too, which is not in this price"
        in ask(tmp_path, DEPLOYMENT, spec=spec).output
    )
    trace = tmp_path / "trace.jsonl"
    entry = '{{"timestamp": {}, "input_length": 9, "output_length": 9}}\n'
    trace.write_text("".join(entry.format(1000 * n) for n in range(40)))
    told = ask(tmp_path, DEPLOYMENT, "--trace", str(trace), spec=spec).output
    assert "not in this price" not in told
    assert "refuses" not in told
    trace.write_text("".join(entry.format(60_000 * n) for n in range(40)))
    told = ask(tmp_path, DEPLOYMENT, "--trace", str(trace), spec=spec).output
    assert "preflight refuses this run: trace: " in told
    trace.write_text("nonsense\n")
    wrong = ask(tmp_path, DEPLOYMENT, "--trace", str(trace), spec=spec)
    assert wrong.exit_code == 2
    assert "trace.jsonl:1" in wrong.output


def test_an_impossible_schedule_is_named(tmp_path: Path) -> None:
    bad = {**SPEC, "candidates": [{"name": "card", "schedule": [[4, 8, 2]]}]}
    result = ask(tmp_path, DEPLOYMENT, spec=bad)
    assert result.exit_code == 2
    assert "NotFromOne" in result.output


def test_a_search_is_priced_with_its_screen_before_anything_is_known(tmp_path: Path) -> None:
    spec = {key: value for key, value in SPEC.items() if key != "candidates"}
    result = ask(tmp_path, DEPLOYMENT, "--boot", "4m", "-o", "json", spec=spec | {"search": {}})
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert [row["arm"] for row in said["arms"]][:4] == [
        "probe",
        "none",
        "incumbent",
        "candidate-search",
    ]
    assert said["launches"] == sum(row["launches"] for row in said["arms"])
    assert said["gpuHours"] == pytest.approx(
        sum(row["gpuHours"] for row in said["arms"]), abs=0.005
    )
