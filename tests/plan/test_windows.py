"""Which windows a launch measures, and in which order."""

import pytest

from specschedule.core.arms import arms
from specschedule.core.budget import cost
from specschedule.core.evidence import Profile
from specschedule.core.spec import Spec
from specschedule.core.visit import Window
from specschedule.core.windows import apart, swing, windows
from specschedule.load.arrivals import draw
from specschedule.sim.engine import Engine, Request
from specschedule.sim.virtual import Arm as EngineArm
from specschedule.sim.virtual import launched, simulate_hold
from specschedule.sim.worlds import WORLDS
from tests.plan.asked import CATEGORIES, SERVER, SPEC, TRACE, arm_of, held, spec_of


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
    assert {w.profile.kind for w in incumbents} == {"hold", "burst", "equivalence"}


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


BURSTS = {
    "the first launch of any arm": ("Standard", "none", True, [(1, 16, 1), (1, 16, 2)]),
    "a later one": ("Standard", "none", False, []),
    "every launch of Thorough": ("Thorough", "incumbent", False, [(1, 16, 1), (1, 16, 2)]),
    "nothing of Quick": ("Quick", "candidate-card", True, []),
}


@pytest.mark.parametrize("claim", BURSTS)
def test_bursts_go_through_every_boundary_first_pass_apart(claim: str) -> None:
    effort, name, first, expected = BURSTS[claim]
    spec = spec_of(effort=effort)
    found = [
        (w.profile.floor, w.profile.peak, w.profile.pass_)
        for w in windows(spec, arm_of(spec, name), round=1, first=first)
        if w.profile.kind == "burst"
    ]
    assert found == expected


def test_a_burst_that_crosses_nothing_is_not_made() -> None:
    asked = {**SPEC, "load": {"points": [8, 16]}, "experiment": {"effort": "Standard"}}
    asked["candidates"] = [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}]
    asked["bar"] = {"improve": [{"by": "15%"}]}
    spec = Spec.model_validate(asked)
    found = windows(spec, arm_of(spec, "none"), round=1, first=True)
    assert not [w for w in found if w.profile.kind == "burst"]
