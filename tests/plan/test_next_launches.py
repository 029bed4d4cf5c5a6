"""What is launched next: a pure function of what is done, in balanced and recorded order."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.compare import INCUMBENT
from specschedule.core.evidence import Cell, Receipt
from specschedule.core.plan import (
    MAX_ATTEMPTS,
    Arm,
    Finished,
    LaunchRecord,
    Slot,
    Start,
    arms,
    next_launches,
)
from specschedule.core.spec import Rule, Spec
from specschedule.core.target import ServerFacts
from specschedule.core.workload import Workload

SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "num_speculative_tokens": 5},
)
CARD = "candidate-card"
SENT = Workload(categories=["code", "prose"])


def spec_of(effort: str = "Quick", *, candidates: Sequence[str] = ("card",), **more: Any) -> Spec:
    rows = {"card": [[1, 2, 5], [3, 16, 1]], "second": [[1, 4, 5], [5, 16, 2]]}
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"tpot": "40ms"},
            "candidates": [{"name": name, "schedule": rows[name]} for name in candidates],
            "load": {"points": [1, 8]},
            "bar": {"improve": [{"metric": "goodput", "at": [8], "by": "15%"}]},
            "experiment": {"effort": effort, **more},
        }
    )


def record(slot: Slot, arm: Arm, gains: Mapping[str, float], **more: Any) -> LaunchRecord:
    """End a launch with one held window per load point on a quiet bench."""
    level = 1000 * (1 + gains.get(slot.arm, 0.0)) * (1 + 0.003 * (slot.launch % 3))
    cells = [
        Cell(
            cell=window.cell,
            arm=slot.arm,
            launch=slot.launch,
            round=slot.round,
            profile=window.profile,
            tokens=window.tokens,
            window_seconds=10.0,
            offered=20000,
            completed=20000,
            good=round(10 * level),
        )
        for window in slot.windows
        if window.profile.kind == "hold"
    ]
    plain: dict[str, Any] = {"cells": cells, "schedule": arm.schedule} | more
    if plain.get("void") or plain.get("failed"):
        plain["cells"] = []
    return LaunchRecord(
        arm=slot.arm,
        launch=slot.launch,
        round=slot.round,
        position=slot.position,
        attempt=slot.attempt,
        **plain,
    )


Fate = Callable[[Slot], dict[str, Any]]


def carry_out(
    spec: Spec,
    gains: Mapping[str, float],
    fate: Fate = lambda slot: {},
    *,
    run: str = "7f3a",
    server: ServerFacts = SERVER,
) -> tuple[list[LaunchRecord], Finished]:
    """Do what the plan says until it is finished."""
    ways = {arm.name: arm for arm in arms(spec, server)}
    done: list[LaunchRecord] = []
    for _ in range(400):
        answer = next_launches(spec, list(ways.values()), done, run=run)
        if isinstance(answer, Finished):
            return done, answer
        assert answer.slots, "nothing runs and nothing is to be started"
        done.extend(record(slot, ways[slot.arm], gains, **fate(slot)) for slot in answer.slots)
    raise AssertionError("the plan does not end")


def order_of(done: Sequence[LaunchRecord]) -> list[str]:
    return [record.arm for record in done]


def test_quick_is_three_adjacent_pairs_and_one_launch_of_none() -> None:
    done, end = carry_out(spec_of(), {CARD: 0.3})
    names = order_of(done)
    assert end.reason == "Decided"
    assert names[6:] == ["none"]
    first, second = names[0], names[1]
    assert {first, second} == {INCUMBENT, CARD}
    assert names[:6] == [first, second, second, first, first, second]
    assert [r.launch for r in done] == list(range(1, 8))
    assert [(r.round, r.position) for r in done] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 1),
        (3, 2),
        (3, 3),
    ]


def test_the_coin_is_decided_by_run_and_seed() -> None:
    firsts = {carry_out(spec_of(seed=seed), {CARD: 0.3})[0][0].arm for seed in range(12)}
    assert firsts == {INCUMBENT, CARD}
    assert order_of(carry_out(spec_of(seed=3), {})[0]) == order_of(
        carry_out(spec_of(seed=3), {})[0]
    )


def test_quick_runs_static_ks_only_when_they_are_listed() -> None:
    done, _ = carry_out(spec_of(static=[1, 3]), {CARD: 0.3})
    assert order_of(done)[6:] == ["none", "static-1", "static-3"]


def test_the_next_candidate_enters_only_if_the_leader_fails() -> None:
    spec = spec_of(candidates=("card", "second"))
    done, end = carry_out(spec, {CARD: 0.3})
    assert "candidate-second" not in order_of(done)
    done, end = carry_out(spec, {CARD: 0.02, "candidate-second": 0.4})
    assert end.reason == "Decided"
    assert order_of(done).count("candidate-second") == 3
    assert order_of(done).count("none") == 1
    assert {r.round for r in done if r.arm == "candidate-second"} == {4, 5, 6}
    done, end = carry_out(spec, {})
    assert end.reason == "AllTried"
    assert len(done) == 13


def test_a_void_launch_has_its_pair_launched_again() -> None:
    lost = iter(["preempted"])

    def fate(slot: Slot) -> dict[str, Any]:
        return {"void": next(lost, None)} if slot.arm == CARD and slot.round == 2 else {}

    done, end = carry_out(spec_of(), {CARD: 0.3}, fate)
    again = [(r.arm, r.attempt) for r in done if r.round == 2]
    assert end.reason == "Decided"
    assert sorted(again[-2:]) == [(CARD, 2), (INCUMBENT, 2)]
    assert len(done) == 7 + len(again) - 2


def test_a_void_window_has_the_pair_launched_again_too() -> None:
    spec, ways = spec_of(), {arm.name: arm for arm in arms(spec_of(), SERVER)}
    start = next_launches(spec, list(ways.values()), [], run="7f3a")
    assert isinstance(start, Start)
    first = record(start.slots[0], ways[start.slots[0].arm], {})
    cells = [first.cells[0].model_copy(update={"void": "sends lagged 9 ms"}), *first.cells[1:]]
    answer = next_launches(
        spec, list(ways.values()), [first.model_copy(update={"cells": cells})], run="7f3a"
    )
    assert isinstance(answer, Start)
    assert (answer.slots[0].arm, answer.slots[0].attempt) == (start.slots[0].arm, 2)


def test_a_launch_that_compiled_is_done_again_once_others_found_warm_caches() -> None:
    def fate(slot: Slot) -> dict[str, Any]:
        return {"receipt": Receipt(caches_warm=slot.launch > 1)}

    done, end = carry_out(spec_of(), {CARD: 0.3}, fate)
    assert end.reason == "Decided"
    assert [r.attempt for r in done if r.round == 1] == [1, 1, 2, 2]


def test_a_pair_void_three_times_ends_the_run_with_the_reason() -> None:
    done, end = carry_out(
        spec_of(), {}, lambda slot: {"void": "node lost"} if slot.arm == CARD else {}
    )
    assert end.reason == "PairVoid"
    assert "node lost" in end.message
    assert max(r.attempt for r in done) == MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("claim", "broken", "reason", "launched"),
    [
        ("the incumbent: nothing can be judged", INCUMBENT, "IncumbentFailed", 2),
        ("the only candidate: nothing is left to try", CARD, "AllTried", 2),
        ("none: it is unavailable and the run goes on", "none", "Decided", 7),
    ],
)
def test_an_arm_that_fails_by_itself(claim: str, broken: str, reason: str, launched: int) -> None:
    done, end = carry_out(
        spec_of(), {CARD: 0.3}, lambda slot: {"failed": "crashed"} if slot.arm == broken else {}
    )
    assert end.reason == reason, claim
    assert len(done) <= launched


def test_a_candidate_that_fails_makes_room_for_the_next() -> None:
    spec = spec_of(candidates=("card", "second"))
    done, end = carry_out(
        spec,
        {"candidate-second": 0.4},
        lambda slot: {"failed": "crashed"} if slot.arm == CARD else {},
    )
    assert end.reason == "Decided"
    assert order_of(done).count(CARD) == 1


def test_nothing_is_started_while_a_launch_runs_unless_told_to() -> None:
    spec = spec_of()
    ways = arms(spec, SERVER)
    start = next_launches(spec, ways, [], run="7f3a")
    assert isinstance(start, Start)
    assert len(start.slots) == 1
    running = record(start.slots[0], ways[0], {}, over=False)
    assert next_launches(spec, ways, [running], run="7f3a") == Start(slots=[])
    two = spec_of(parallelism=2)
    both = next_launches(two, ways, [], run="7f3a")
    assert isinstance(both, Start)
    assert {slot.arm for slot in both.slots} == {INCUMBENT, CARD}
    assert [slot.launch for slot in both.slots] == [1, 2]


def test_standard_stops_as_soon_as_the_evidence_is_enough() -> None:
    done, end = carry_out(spec_of("Standard"), {CARD: 0.3})
    assert end.reason == "Decided"
    assert max(r.round for r in done) == 5
    assert order_of(done).count("none") == 1
    assert order_of(done).count("static-1") == 1


def test_standard_stops_early_on_a_collapse_once_the_controls_were_measured() -> None:
    done, end = carry_out(spec_of("Standard"), {CARD: -0.8})
    assert end.reason == "AllTried"
    assert max(r.round for r in done) == 3
    assert "none" in order_of(done)


def test_standard_makes_a_control_near_the_lead_a_full_member() -> None:
    done, _ = carry_out(spec_of("Standard"), {CARD: 0.3, "none": 0.28})
    rounds = [r.round for r in done if r.arm == "none"]
    assert rounds == [2, 3, 4, 5]
    assert order_of(done).count("static-1") == 1


def test_standard_pairs_stay_adjacent_in_every_round() -> None:
    done, _ = carry_out(spec_of("Standard"), {CARD: 0.16, "none": 0.15, "static-1": 0.14})
    for number in {r.round for r in done}:
        pair = [r.launch for r in done if r.round == number and r.arm in (INCUMBENT, CARD)]
        assert pair[1] - pair[0] == 1


def test_standard_goes_to_twelve_rounds_when_nothing_is_shown() -> None:
    chance = random.Random(1)
    gains = {CARD: 0.15}

    def fate(slot: Slot) -> dict[str, Any]:
        if slot.arm == CARD:
            gains[CARD] = 0.16 + chance.choice([-0.15, 0.15])
        return {}

    spec = spec_of("Standard")
    ways = {arm.name: arm for arm in arms(spec, SERVER)}
    done: list[LaunchRecord] = []
    while isinstance(answer := next_launches(spec, list(ways.values()), done, run="a"), Start):
        for slot in answer.slots:
            fate(slot)
            done.append(record(slot, ways[slot.arm], gains))
    assert max(r.round for r in done) == 12


def test_path_arms_are_launched_when_graph_modes_differ() -> None:
    def fate(slot: Slot) -> dict[str, Any]:
        mode = "PIECEWISE" if slot.arm == CARD else "FULL"
        return {"receipt": Receipt(graph_mode=mode)}

    done, _ = carry_out(spec_of("Standard"), {CARD: 0.3}, fate)
    assert {"constant-1", "constant-5", "piecewise-1", "piecewise-5"} <= set(order_of(done))
    alike, _ = carry_out(spec_of("Standard"), {CARD: 0.3})
    assert not any(name.startswith(("constant", "piecewise")) for name in order_of(alike))


def test_a_graph_mode_that_does_not_differ_needs_no_variant() -> None:
    def fate(slot: Slot) -> dict[str, Any]:
        backend = "FLASHINFER" if slot.arm == CARD else "FLASH_ATTN"
        return {"receipt": Receipt(graph_mode="PIECEWISE", attention_backend=backend)}

    done, _ = carry_out(spec_of("Standard"), {CARD: 0.3}, fate)
    assert "constant-1" in order_of(done)
    assert not any(name.startswith("piecewise") for name in order_of(done))


def test_thorough_launches_every_arm_in_every_round_in_balanced_positions() -> None:
    done, end = carry_out(spec_of("Thorough"), {CARD: 0.3})
    assert end.reason == "Decided"
    names = {INCUMBENT, "twin", CARD, "none", "static-1"}
    by_round = {n: [r for r in done if r.round == n] for n in range(1, 7)}
    for number, records in by_round.items():
        assert {r.arm for r in records} == names, number
        assert sorted(r.position for r in records) == [1, 2, 3, 4, 5]


def cycle(run: str) -> list[list[str]]:
    """Return the orders of the first five rounds of a Thorough run with five arms."""
    spec = spec_of("Thorough")
    ways = {arm.name: arm for arm in arms(spec, SERVER)}
    done: list[LaunchRecord] = []
    while True:
        answer = next_launches(spec, list(ways.values()), done, run=run)
        assert isinstance(answer, Start)
        (slot,) = answer.slots
        if slot.round > 5:
            return [[r.arm for r in done if r.round == number] for number in range(1, 6)]
        done.append(record(slot, ways[slot.arm], {CARD: 0.01}))


def test_thorough_balances_positions_and_predecessors_over_as_many_rounds_as_arms() -> None:
    """A row is mirrored by coin: no arm stands in a place, or follows an arm, more than twice."""
    seen = set()
    for run in range(6):
        orders = cycle(f"run{run}")
        assert all(len(set(order)) == 5 for order in orders)
        for place in range(5):
            stood = Counter(order[place] for order in orders)
            assert max(stood.values()) <= (1 if place == 2 else 2), (place, orders)
        followed = Counter(pair for order in orders for pair in pairwise(order))
        assert max(followed.values()) <= 2, orders
        seen |= set(followed)
    assert len(seen) == 5 * 4, "each follows each in some run"


def rounds_with_decode_rate(spec: Spec, level: float, *, gain: float = 0.3) -> int:
    """Return the rounds of a run in which the incumbent's decode rate is 60 or 66 tokens/s.

    The candidate's is ``level`` times 60.
    """

    def rate(slot: Slot) -> float:
        return 60.0 * (level if slot.arm == CARD else 1 + 0.1 * (slot.round % 2))

    ways = {arm.name: arm for arm in arms(spec, SERVER)}
    done: list[LaunchRecord] = []
    while isinstance(answer := next_launches(spec, list(ways.values()), done, run="a"), Start):
        for slot in answer.slots:
            ended = record(slot, ways[slot.arm], {CARD: gain})
            cells = [c.model_copy(update={"decode_rate": rate(slot)}) for c in ended.cells]
            done.append(ended.model_copy(update={"cells": cells}))
    return max(r.round for r in done)


WATCHED = {
    "inside the spread of the relaunches": (0.96, 1),
    "beyond it: more pairs would tell nothing new": (0.85, 0),
    "not of the same sign in every pair": (1.02, 0),
}


@pytest.mark.parametrize(("effort", "fewest"), [("Quick", 3), ("Standard", 5)])
@pytest.mark.parametrize("claim", WATCHED)
def test_a_watched_loss_gets_one_more_pair(effort: str, fewest: int, claim: str) -> None:
    level, more = WATCHED[claim]
    assert rounds_with_decode_rate(spec_of(effort), level) == fewest + more, claim


def test_a_watched_loss_of_a_candidate_that_fails_anyway_gets_none() -> None:
    assert rounds_with_decode_rate(spec_of(), 0.96, gain=0.1) == 3


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["Quick", "Standard"]),
    st.integers(0, 2**31 - 1),
    st.floats(0, 0.3),
    st.floats(0, 0.1),
    st.integers(1, 3),
)
def test_whatever_happens_the_plan_ends_and_repeats_itself(
    effort: str, seed: int, void: float, failing: float, parallelism: int
) -> None:
    """Launches that are void or fail at random: it ends, and a restart changes nothing."""
    spec = spec_of(effort, candidates=("card", "second"), parallelism=parallelism, seed=seed)
    ways = {arm.name: arm for arm in arms(spec, SERVER)}
    chance = random.Random(seed)
    gains = {name: chance.uniform(-0.2, 0.3) for name in ways}
    done: list[LaunchRecord] = []
    running: list[Slot] = []
    for _ in range(600):
        open_ = [record(slot, ways[slot.arm], {}, over=False, cells=[]) for slot in running]
        answer = next_launches(spec, list(ways.values()), [*done, *open_], run="r")
        shuffled = [*open_, *done]
        chance.shuffle(shuffled)
        assert next_launches(spec, list(ways.values()), shuffled, run="r") == answer
        if isinstance(answer, Finished) and not running:
            break
        if isinstance(answer, Start):
            assert len(running) + len(answer.slots) <= parallelism
            running.extend(answer.slots)
        slot = running.pop(chance.randrange(len(running)))
        roll = chance.random()
        more: dict[str, Any] = {}
        if roll < void:
            more["void"] = "preempted"
        elif roll < void + failing:
            more["failed"] = "crashed"
        done.append(record(slot, ways[slot.arm], gains, **more))
    else:
        raise AssertionError("the plan does not end")
    keys = [(r.arm, r.round, r.attempt) for r in done]
    assert len(set(keys)) == len(keys)
    assert len({r.launch for r in done}) == len(done)
    assert max((r.attempt for r in done), default=1) <= MAX_ATTEMPTS


def test_rule_every_pair_is_answered_by_the_fewest_rounds() -> None:
    spec = spec_of("Standard")
    spec = spec.model_copy(update={"bar": spec.bar.model_copy(update={"rule": Rule.EVERY_PAIR})})
    done, end = carry_out(spec, {CARD: 0.15})
    assert end.reason == "AllTried"
    assert max(r.round for r in done) == 5


HALVES = {
    "Quick": "ABA",
    "Standard": "AABBA",
    "Thorough": "AAABBB",
}


@pytest.mark.parametrize(("effort", "places"), HALVES.items(), ids=HALVES.keys())
def test_arms_on_two_nodes_change_places_half_way(effort: str, places: str) -> None:
    def fate(slot: Slot) -> dict[str, Any]:
        own = "A" if slot.arm == CARD else "B"
        return {"receipt": Receipt(node=slot.node or own)}

    done, _ = carry_out(spec_of(effort, parallelism=2), {CARD: 0.3}, fate)
    seen = {arm: [r.receipt.node for r in done if r.arm == arm] for arm in (CARD, INCUMBENT)}
    assert seen[CARD] == list(places)
    assert all(a != b for a, b in zip(seen[CARD], seen[INCUMBENT], strict=True))


@pytest.mark.parametrize(
    ("claim", "nodes"),
    [("both run on one node", ("A", "A")), ("a node is not known", ("A", None))],
)
def test_without_two_places_nobody_asks_for_one(claim: str, nodes: tuple[str, str | None]) -> None:
    asked: list[str | None] = []

    def fate(slot: Slot) -> dict[str, Any]:
        asked.append(slot.node)
        return {"receipt": Receipt(node=nodes[slot.arm == CARD])}

    carry_out(spec_of("Standard"), {CARD: 0.3}, fate)
    assert set(asked) == {None}, claim


def held_apart(
    effort: str, losses: Mapping[str, list[float]], fate: Fate = lambda slot: {}
) -> list[tuple[int, str, list[str]]]:
    """Return (round, arm, categories held at 1) of each launch.

    The candidate's decode rate by category loses so much in the pair of a round.
    """
    spec = spec_of(effort)
    ways = {arm.name: arm for arm in arms(spec, SERVER)}
    done: list[LaunchRecord] = []
    seen = []
    while isinstance(
        answer := next_launches(spec, list(ways.values()), done, run="a", workload=SENT),
        Start,
    ):
        for slot in answer.slots:
            held = [w for w in slot.windows if w.category and w.profile.concurrency == 1]
            seen.append((slot.round, slot.arm, sorted(w.category or "" for w in held)))
            ended = record(slot, ways[slot.arm], {CARD: 0.3}, **fate(slot))
            categories = {w.cell: w.category for w in slot.windows}
            cells = []
            for cell in ended.cells:
                category = categories[cell.cell]
                by_round = dict(enumerate(losses.get(category or "", []), start=1))
                level = 60.0 * (1 - by_round.get(slot.round, 0.0) * (slot.arm == CARD))
                cells.append(cell.model_copy(update={"category": category, "decode_rate": level}))
            done.append(ended.model_copy(update={"cells": cells}))
    return seen


@pytest.mark.parametrize("effort", ["Quick", "Standard"])
def test_the_first_pair_holds_every_category_and_later_ones_what_was_lost_so_far(
    effort: str,
) -> None:
    seen = held_apart(effort, {"prose": [0.07, 0.07, -0.01]})
    pairs = [(number, held) for number, arm, held in seen if arm in (INCUMBENT, CARD)]
    assert (
        pairs[:8]
        == [
            *[(1, ["code", "prose"])] * 2,
            *[(2, ["prose"])] * 2,
            *[(3, ["prose"])] * 2,
            *[(4, [])] * 2,
        ][: len(pairs)]
    )
    (first, *later) = [held for _, arm, held in seen if arm == "none"]
    assert first == ([] if effort == "Quick" else ["code", "prose"])
    assert not any(later)


def test_a_loss_that_no_second_pair_shows_is_not_measured_a_third_time() -> None:
    seen = held_apart("Quick", {"prose": [0.07, -0.01]})
    assert [held for number, arm, held in seen if arm == CARD] == [["code", "prose"], ["prose"], []]


def test_a_first_pair_that_was_void_holds_them_again() -> None:
    lost = iter(["preempted"])
    seen = held_apart(
        "Quick", {}, lambda slot: {"void": next(lost, None)} if slot.arm == CARD else {}
    )
    assert [held for number, _, held in seen if number == 1] == [["code", "prose"]] * len(
        [1 for number, *_ in seen if number == 1]
    )
    assert len([1 for number, arm, _ in seen if (number, arm) == (1, CARD)]) == 2


def test_from_the_second_round_on_every_arm_meets_the_same_open_loop() -> None:
    seen: dict[int, set[tuple[str, str, int]]] = {}

    def fate(slot: Slot) -> dict[str, Any]:
        owner = {"arm": slot.arm, "launch": slot.launch, "round": slot.round}
        cells = []
        for window in slot.windows:
            if window.profile.kind == "open":
                opened = (window.cell, str(window.profile.plain()), window.seed)
                seen.setdefault(slot.round, set()).add(opened)
            # More in flight end more requests; the candidate ends more than the incumbent.
            done = 10_000 * (window.profile.concurrency or 4) * (1.3 if slot.arm == CARD else 1)
            cells.append(
                Cell(
                    **owner,
                    cell=window.cell,
                    profile=window.profile,
                    tokens=window.tokens,
                    window_seconds=1000.0,
                    offered=round(done),
                    completed=round(done),
                    good=round(done * (1 - 0.001 * (slot.launch % 3))),
                )
            )
        return {"cells": cells}

    done, end = carry_out(spec_of("Standard"), {}, fate)
    assert end.reason == "Decided"
    last = max(record.round for record in done)
    assert sorted(seen) == list(range(2, last + 1))
    assert all(len(windows) == 1 for windows in seen.values())
    profiles = {profile for windows in seen.values() for _, profile, _ in windows}
    assert profiles == {
        "{'kind': 'open', 'requestsPerSecond': 10.0, 'peakRequestsPerSecond': 80.0}"
    }


def test_a_load_point_that_the_kv_cache_cannot_hold_is_not_measured_again() -> None:
    """Synthetic requests end at 256 tokens; eight of them need 2048."""
    spec = spec_of()
    spec = spec.model_copy(
        update={"load": spec.load.model_copy(update={"points": [1, 8, 16]})},
    )
    small = {"receipt": Receipt(kv_cache_tokens=3_000)}
    done, end = carry_out(spec, {CARD: 0.3}, lambda slot: small)
    held = [{c.profile.concurrency for c in each.cells} for each in done]
    assert held == [{1, 8, 16}] + [{1, 8}] * 6
    assert end.reason == "Decided"
