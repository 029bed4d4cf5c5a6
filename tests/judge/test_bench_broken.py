"""A/A comparisons: what relaunches show, and what is named when they show too much."""

import pytest

from specschedule.core.compare import Evidence, Place
from specschedule.core.judge import Judgement
from specschedule.core.noise import Noise
from specschedule.core.spec import Metric

from .recorded import Run, cell, spec_of

AT_8 = [{"metric": "goodput", "at": [8], "by": "5%"}]
PLACE = Place(Metric.GOODPUT, 8)


def empty(effort: str = "Standard") -> Run:
    return Run(spec_of(points=(8,), improve=AT_8, experiment={"effort": effort}))


def noise_of(run: Run) -> Noise:
    return Noise(Evidence(run.spec, run.launches))


def test_neighbours_of_the_same_arm_make_the_floor_where_the_order_has_them() -> None:
    run = empty()
    for number, arm, level in (
        (1, "incumbent", 100.0),
        (1, "candidate-card", 150.0),
        (2, "candidate-card", 153.0),
        (2, "incumbent", 120.0),
        (3, "incumbent", 121.2),
        (3, "candidate-card", 180.0),
    ):
        run.add(arm, number, [cell(8, level)])
    noise = noise_of(run)
    assert [round(x, 4) for x in noise.seen(PLACE)] == pytest.approx([0.0198, 0.01], abs=2e-4)
    assert noise.floor(PLACE) == pytest.approx(0.0198, abs=1e-4)
    assert noise.spread(PLACE) == pytest.approx(0.00995, abs=1e-4)


def test_successive_rounds_make_it_where_the_order_has_none() -> None:
    run = empty()
    for number, (incumbent, candidate) in enumerate(((100, 130), (102, 131)), start=1):
        run.add("incumbent", number, [cell(8, incumbent)])
        run.add("candidate-card", number, [cell(8, candidate)])
    assert noise_of(run).seen(PLACE) == pytest.approx([0.0198, 0.00766], abs=1e-4)


def test_an_arm_launched_once_shows_no_noise() -> None:
    run = empty().add("incumbent", 1, [cell(8, 100.0)])
    assert noise_of(run).floor(PLACE) is None


def test_a_noisy_candidate_does_not_widen_what_it_may_lose() -> None:
    run = empty()
    for number, sample in enumerate((60, 100, 60, 100), start=1):
        for arm, level in (("incumbent", 100.0), ("candidate-card", float(sample))):
            run.add(arm, number, [cell(8, level)])
    noise = noise_of(run)
    assert noise.floor(PLACE) == pytest.approx(0.5108, abs=1e-3)
    assert noise.spread(PLACE) == 0.0


def with_twin(twin: float, *, rounds: int = 6, **of_twin: object) -> Judgement:
    run = empty("Thorough")
    for number in range(1, rounds + 1):
        base = 1000.0 * (1 + 0.004 * (number % 2))
        order = [("incumbent", base), ("twin", base * twin), ("candidate-card", base * 1.2)]
        for arm, level in order if number % 2 else order[::-1]:
            run.add(arm, number, [cell(8, level)], **(of_twin if arm == "twin" else {}))
    return run.judge()


def test_a_twin_that_agrees_disturbs_nothing() -> None:
    assert with_twin(1.001).verdicts[0].verdict == "Better"


def test_a_twin_that_differs_breaks_the_bench() -> None:
    answer = with_twin(1.06)
    assert (answer.outcome, answer.reason) == ("Inconclusive", "BenchBroken")
    assert "suspect: launch" in answer.message
    assert "+6.0%" in answer.message


def test_a_twin_on_another_node_makes_the_place_the_suspect() -> None:
    assert "suspect: place" in with_twin(1.06, receipt={"node": "b"}).message


def test_an_effect_of_the_order_is_named() -> None:
    run = empty()
    for number in range(1, 13):
        order = [("incumbent", 1000.0), ("candidate-card", 1300.0)]
        for position, (arm, level) in enumerate(order if number % 2 else order[::-1]):
            run.add(arm, number, [cell(8, level * (1 - 0.08 * position))])
    answer = run.judge()
    assert answer.reason == "BenchBroken"
    assert "suspect: order" in answer.message


def test_relaunches_that_move_one_way_are_drift() -> None:
    run = empty()
    level = 1000.0
    for number in range(1, 13):
        order = ["incumbent", "candidate-card"]
        for arm in order if number % 2 else order[::-1]:
            run.add(arm, number, [cell(8, level * (1.3 if arm != "incumbent" else 1.0))])
            level *= 1.05
    answer = run.judge()
    assert answer.reason == "BenchBroken"
    assert "suspect: drift" in answer.message


def test_ordinary_noise_is_no_suspect() -> None:
    run = empty()
    shifts = (0, 12, -9, 4, -15, 8, 3, -6, 11, -2, 5, -13)
    levels = [({8: 1000.0 + s}, {8: 1200.0 - s}) for s in shifts]
    assert run.pairs(levels).judge().verdicts[0].verdict == "Better"


def test_arms_that_agree_at_a_cell_are_controls_of_each_other_there() -> None:
    """The same K on the same path is noise; the same K on another path is tax."""
    spec = spec_of(points=(8,), improve=AT_8, schedule=((1, 4, 3), (5, 16, 1)))
    own = [[1, 4, 5], [5, 16, 1]]

    def reason(incumbent: object, **receipts: dict[str, object]) -> str:
        run = Run(spec)
        for number in (1, 2, 3):
            for arm, level in (("incumbent", 100.0), ("candidate-card", 130.0)):
                more = {"schedule": incumbent} if arm == "incumbent" else {}
                run.add(
                    arm,
                    number,
                    [cell(8, level, tokens=1)],
                    receipt=receipts.get(arm[:1], {}),
                    **more,
                )
        return run.judge().verdicts[0].bars[0].reason

    assert reason(own) == "SameConfiguration"
    assert reason(None) == "EveryPairReachesIt"
    assert reason(own, i={"graphMode": "FULL"}, c={"graphMode": "PIECEWISE"}) != "SameConfiguration"
    assert (
        reason(own, i={"capturedSizes": [1, 2]}, c={"capturedSizes": [1, 2, 4]})
        != "SameConfiguration"
    )


@pytest.mark.parametrize(
    ("incumbent", "candidate", "reason"),
    [
        ((1000, 1000), (1000, 1000), "SameConfiguration"),
        ((1000, 800), (1000, 800), "SameConfiguration"),
        ((1000, 1000), (1000, 800), "EveryPairReachesIt"),
        (None, (1000, 800), "EveryPairReachesIt"),
        (None, None, "SameConfiguration"),
    ],
    ids=["as planned", "alike", "apart", "one of them is not told", "nothing is told"],
)
def test_arms_that_drafted_different_k_are_no_controls_of_each_other(
    incumbent: tuple[int, int] | None, candidate: tuple[int, int] | None, reason: str
) -> None:
    run = Run(spec_of(points=(8,), improve=AT_8, schedule=((1, 4, 3), (5, 16, 1))))
    for number in (1, 2, 3):
        for arm, level, told in (
            ("incumbent", 100.0, incumbent),
            ("candidate-card", 130.0, candidate),
        ):
            counted = {} if told is None else {"drafts": told[0], "draftTokens": told[1]}
            rows = [[1, 4, 5 if arm == "incumbent" else 3], [5, 16, 1]]
            run.add(arm, number, [cell(8, level, tokens=1, **counted)], schedule=rows)
    assert run.judge().verdicts[0].bars[0].reason == reason


def in_places(nodes: str, *, place_effect: float, gain: float = 1.1) -> Judgement:
    """Rounds AB BA ... whose candidate runs on these nodes and whose incumbent on the other."""
    run = empty()
    for number, node in enumerate(nodes, start=1):
        both = [("candidate-card", gain, node), ("incumbent", 1.0, "AB"[node == "A"])]
        for arm, level, place in both if number % 2 else both[::-1]:
            slow = 1.0 if place == "A" else 1.0 - place_effect
            value = 1000.0 * level * slow * (1 + 0.002 * (number % 3))
            run.add(arm, number, [cell(8, value)], receipt={"node": place})
    return run.judge()


def test_a_place_that_decides_is_named_once_arms_have_changed_places() -> None:
    verdict = in_places("AABB" * 3, place_effect=0.06).verdicts[0]
    assert verdict.reason == "BenchBroken"
    assert "suspect: place" in verdict.message
    assert "launches on A differ from those on B by +6" in verdict.message


def test_places_that_are_alike_disturb_nothing_and_a_gain_is_no_place() -> None:
    assert in_places("AABBA", place_effect=0.0).outcome == "Promoted"
    never_changed = in_places("AAAAA", place_effect=0.0)
    assert "PlaceNotBalanced" in {note.reason for note in never_changed.notes}


TESTED = {
    "Quick: three pairs": ("Quick", 3, True),
    "Standard, as early as it may end": ("Standard", 5, True),
    "Standard, before the sixth relaunch": ("Standard", 6, True),
    "Standard, from the sixth relaunch on": ("Standard", 7, False),
}


@pytest.mark.parametrize("claim", TESTED)
def test_a_bench_that_so_few_relaunches_cannot_test_is_said_to_be_untested(claim: str) -> None:
    effort, rounds, said = TESTED[claim]

    def judged(drift: float) -> Judgement:
        run = empty(effort)
        for number in range(1, rounds + 1):
            both = [("incumbent", 1000.0), ("candidate-card", 1200.0)]
            for arm, level in both if number % 2 else both[::-1]:
                grown = level * (1 + drift) ** len(run.launches)
                run.add(arm, number, [cell(8, grown)])
        return run.judge()

    found = [n.message for n in judged(0.0).notes if n.reason == "BenchNotTested"]
    assert len(found) == said
    quick = [message for message in found if "effort Quick never has so many" in message]
    assert len(quick) == (effort == "Quick")
    # The number is where the check begins to see: here a bench that drifts by 5 % a launch.
    assert (judged(0.05).verdicts[0].reason == "BenchBroken") == (not said)
