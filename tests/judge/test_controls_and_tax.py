"""Controls that are simpler and better win; the tax is taken apart by band."""

from typing import Any

import pytest

from specschedule.core.judge import Judgement
from specschedule.core.spec import Metric

from .recorded import Run, cell, spec_of

AT_8 = [{"metric": "goodput", "at": [8], "by": "15%"}]
EAGLE = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 5}


def with_controls(
    controls: dict[str, dict[int, float]], candidate: tuple[float, float] = (100.0, 130.0)
) -> Judgement:
    """Incumbent 100 at both points, the candidate as given, each control launched once."""
    run = Run(spec_of(points=(1, 8), improve=AT_8))
    for number in (1, 2, 3):
        jitter = 1 + 0.005 * (number % 2)
        order = [
            ("incumbent", {1: 100.0, 8: 100.0}),
            ("candidate-card", {1: candidate[0], 8: candidate[1]}),
        ]
        for arm, levels in order if number % 2 else order[::-1]:
            run.add(arm, number, [cell(at, level * jitter) for at, level in levels.items()])
    for arm, levels in controls.items():
        run.add(arm, 3, [cell(at, level) for at, level in levels.items()])
    return run.judge(speculative=EAGLE)


def test_a_control_that_is_better_over_the_points_wins() -> None:
    answer = with_controls({"none": {1: 100.0, 8: 160.0}, "static-1": {1: 90.0, 8: 100.0}})
    assert (answer.outcome, answer.reason) == ("NotPromoted", "ControlBeatsCandidate")
    assert answer.recommendation.startswith("none: remove --speculative-config")
    none, static = answer.verdicts[0].controls
    assert (none.arm, none.beats, none.count, none.low) == ("none", True, 1, None)
    assert none.change == pytest.approx((160 / 130 / 1.005**2) ** 0.5 - 1, abs=1e-3)
    assert not static.beats


def test_a_static_control_is_recommended_with_its_whole_argument() -> None:
    answer = with_controls({"static-2": {1: 140.0, 8: 140.0}})
    assert answer.recommendation.startswith(
        "static-2: --speculative-config '"
        '{"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 2}\''
    )


def test_the_best_of_several_controls_is_named() -> None:
    answer = with_controls({"none": {1: 120.0, 8: 150.0}, "static-2": {1: 140.0, 8: 160.0}})
    assert answer.recommendation.startswith("static-2:")


@pytest.mark.parametrize(
    ("claim", "controls"),
    [
        ("a control better at one point but worse over all", {"none": {1: 50.0, 8: 150.0}}),
        ("a control ahead by less than the noise floor", {"none": {1: 100.7, 8: 130.9}}),
        ("no control was measured", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_better_candidate_stands_against(
    claim: str, controls: dict[str, dict[int, float]]
) -> None:
    answer = with_controls(controls)
    assert (answer.outcome, answer.recommendation) == ("Promoted", ""), claim


def test_6_a_drafter_that_ignores_k0_is_judged_against_no_speculation_and_not_by_counters() -> None:
    run = Run(spec_of(schedule=((1, 2, 2), (3, 16, 0)), points=(1, 8), improve=AT_8))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(1, 40.0), cell(8, 100.0, tokens=2)])
        # At 8 in flight nothing is drafted by the counters, and all is paid for all the same.
        run.add("candidate-card", number, [cell(1, 40.0, tokens=2), cell(8, 100.0, tokens=0)])
    run.add("none", 3, [cell(1, 30.0, tokens=0), cell(8, 115.0, tokens=0)])
    answer = run.judge()
    assert answer.outcome == "NotPromoted"
    (row,) = [tax for tax in answer.tax if (tax.what, tax.at) == ("fromNone", 8)]
    assert (row.tokens, row.change) == (0, pytest.approx(100 / 115 - 1, abs=2e-3))


def test_that_none_was_not_measured_is_said() -> None:
    assert "NoneNotMeasured" in {note.reason for note in with_controls({}).notes}


def test_a_control_worse_than_what_serves_is_not_recommended() -> None:
    answer = with_controls({"none": {1: 80.0, 8: 80.0}}, candidate=(70.0, 70.0))
    assert answer.verdicts[0].verdict == "Worse"
    assert answer.verdicts[0].controls[0].beats
    assert answer.recommendation == ""


def test_a_worse_candidate_still_leaves_the_recommendation_of_a_better_control() -> None:
    answer = with_controls({"none": {1: 120.0, 8: 120.0}}, candidate=(70.0, 70.0))
    assert answer.verdicts[0].verdict == "Worse"
    assert answer.recommendation.startswith("none:")


def test_a_control_beats_a_candidate_without_a_good_request() -> None:
    answer = with_controls({"none": {1: 120.0, 8: 120.0}}, candidate=(0.0, 0.0))
    assert answer.recommendation.startswith("none:")
    assert answer.verdicts[0].controls[0].change is None


def taxed() -> Judgement:
    spec = spec_of(
        schedule=((1, 4, 3), (5, 64, 0)),
        points=(4, 8),
        improve=[{"at": [8], "by": "5%"}],
        experiment={"effort": "Standard"},
    )
    run = Run(spec)
    for number in (1, 2):
        scale = 1 + 0.01 * number
        for arm, at_4, at_8 in (
            ("incumbent", 50.0, 80.0),
            ("candidate-card", 45.0, 90.0),
            ("none", 40.0, 100.0),
            ("static-3", 50.0, 80.0),
            ("constant-3", 45.0, 76.0),
            ("zero", 36.0, 92.0),
        ):
            tokens = {"none": (0, 0), "candidate-card": (3, 0), "zero": (0, 0)}.get(arm, (3, 3))
            cells = [
                cell(4, at_4 * scale, tokens=tokens[0]),
                cell(8, at_8 * scale, tokens=tokens[1]),
            ]
            if arm == "candidate-card":
                first, later = (
                    crossing(number_of_pass, level * scale)
                    for number_of_pass, level in ((1, 30.0), (2, 60.0))
                )
                cells = [first, *cells, later]
            run.add(arm, number, cells)
    return run.judge()


def crossing(number_of_pass: int, goodput: float | None = None, **more: Any) -> dict[str, Any]:
    """A window across the boundary between 4 and 8 in flight."""
    profile = {
        "kind": "crossing",
        "low": 4,
        "high": 8,
        "boundary": 4,
        "periodSeconds": 5,
        "pass": number_of_pass,
    }
    name = f"cross4-p{number_of_pass}"
    return cell(4, goodput, profile=profile, **more) | {"cell": name}


@pytest.mark.parametrize(
    ("what", "at", "change"),
    [
        ("fromNone", 4, 45 / 40 - 1),
        ("fromNone", 8, 90 / 100 - 1),
        ("dynamicPath", 4, 45 / 50 - 1),
        ("zeroTokens", 8, 92 / 100 - 1),
        ("freeZero", 8, 100 / 90 - 1),
        ("firstPass", 4, 30 / 67.5 - 1),
        ("crossing", 4, 60 / 67.5 - 1),
    ],
)
def test_each_part_of_the_tax_has_its_number_and_interval(
    what: str, at: int, change: float
) -> None:
    row = next(tax for tax in taxed().tax if (tax.what, tax.at) == (what, at))
    assert row.change == pytest.approx(change, abs=2e-3)
    assert row.count == 2
    assert row.low is not None
    assert row.high is not None
    assert row.low - 1e-9 <= row.change <= row.high + 1e-9


def by_tokens(at: int, rate: float, goodput: float = 0.0) -> dict[str, Any]:
    return cell(at, goodput, outputTokens=round(rate * 100), tokens=3 if at <= 4 else 1)


def crossed(*rates: float, swing: tuple[float, float] = (1.0, 1.0)) -> Judgement:
    """A sound schedule in three rounds, with the tokens/s of its window across the boundary.

    An open loop across it attains the share ``swing`` tells of incumbent and candidate.
    """
    spec = spec_of(
        schedule=((1, 4, 3), (5, 64, 1)),
        points=(4, 8),
        improve=[{"metric": "throughput", "at": [8], "by": "5%"}],
    )
    run = Run(spec)
    profile = {"kind": "open", "requestsPerSecond": 1, "peakRequestsPerSecond": 8}
    for number, rate in enumerate(rates, start=1):
        for arm, gain, attained in zip(
            ("incumbent", "candidate-card"), (1.0, 1.2), swing, strict=True
        ):
            opened = cell(8, attained * 100, profile=profile, offered=10_000, completed=10_000)
            opened |= {"cell": "swing", "outputTokens": 1000}
            cells = [by_tokens(4, 100 * gain), by_tokens(8, 200 * gain), opened]
            if arm == "candidate-card":
                cells.append(crossing(2, 0.0, outputTokens=round(rate * 100)))
            run.add(arm, number, cells)
    return run.judge()


def stalls(answer: Judgement) -> list[str]:
    return [note.message for note in answer.notes if note.reason == "CrossingsStall"]


def test_a_tax_is_told_by_tokens_where_no_request_was_good() -> None:
    spec = spec_of(points=(8,), improve=AT_8)
    run = Run(spec)
    for number in (1, 2):
        run.add("incumbent", number, [by_tokens(8, 100.0, goodput=5.0)])
        run.add("candidate-card", number, [by_tokens(8, 90.0)])
        run.add("none", number, [by_tokens(8, 120.0)])
    (row,) = [tax for tax in run.judge().tax if tax.what == "fromNone"]
    assert (row.metric, row.count) == (Metric.THROUGHPUT, 2)
    assert row.change == pytest.approx(90 / 120 - 1)


def test_a_crossing_at_which_everything_stands_still_is_a_cost_of_all() -> None:
    (row,) = [tax for tax in crossed(0.0, 0.0, 0.0).tax if tax.what == "crossing"]
    assert (row.change, row.count, row.low) == (-1.0, 3, None)
    assert "3 of them at a standstill" in row.message


def test_one_standstill_of_three_is_counted_and_not_all_that_is_said() -> None:
    (row,) = [tax for tax in crossed(180.0, 0.0, 180.0).tax if tax.what == "crossing"]
    assert row.change == pytest.approx(-1 / 3)
    assert "1 of them at a standstill" in row.message


BURSTS = {
    "later passes against the incumbent's": ({2: (300.0, 240.0)}, -0.2),
    "the first pass, which pays for first use, is left out": ({1: (300.0, 30.0)}, None),
    "a standstill": ({2: (300.0, 0.0)}, -1.0),
    "an incumbent that has none": ({2: (None, 240.0)}, None),
}


@pytest.mark.parametrize("claim", BURSTS)
def test_bursts_of_the_candidate_are_held_against_those_of_the_incumbent(claim: str) -> None:
    passes, change = BURSTS[claim]
    run = Run(spec_of(points=(4, 8), improve=AT_8))
    for number in (1, 2):
        for arm, at in (("incumbent", 0), ("candidate-card", 1)):
            cells = [by_tokens(4, 100.0), by_tokens(8, 200.0)]
            for number_of_pass, rates in passes.items():
                profile = {"kind": "burst", "floor": 4, "peak": 8, "pass": number_of_pass}
                if (rate := rates[at]) is not None:
                    burst = cell(8, 0.0, profile=profile, outputTokens=round(rate * 100))
                    cells.append(burst | {"cell": f"burst8-p{number_of_pass}"})
            run.add(arm, number, cells)
    found = [(tax.at, tax.change, tax.count) for tax in run.judge().tax if tax.what == "burst"]
    assert found == ([] if change is None else [(8, pytest.approx(change), 2)])


def steps(tokens: int, **parts: tuple[int, float]) -> dict[str, Any]:
    told = {part: {"count": n, "meanMs": ms} for part, (n, ms) in parts.items()}
    return {"tokens": tokens, "count": 999, "meanMs": 10.0, **told}


CHANGES: dict[str, tuple[list[dict[str, Any]], float | None]] = {
    "as many stable steps of the same K": (
        [
            steps(3, stable=(90, 10.0), change=(3, 16.0)),
            steps(1, stable=(50, 5.0), change=(6, 6.0)),
        ],
        (3 * 10 + 6 * 5) / (3 * 16 + 6 * 6) - 1,
    ),
    "a K that was never stable is left out": (
        [steps(3, stable=(90, 10.0), change=(3, 20.0)), steps(1, change=(6, 60.0))],
        -0.5,
    ),
    "two stable steps tell nothing": ([steps(3, stable=(2, 10.0), change=(3, 20.0))], None),
    "K never changed": ([steps(3, stable=(90, 10.0))], None),
    "no recorder": ([], None),
}


@pytest.mark.parametrize("claim", CHANGES)
def test_steps_at_a_change_of_k_are_held_against(claim: str) -> None:
    told, change = CHANGES[claim]
    run = Run(spec_of(schedule=((1, 4, 3), (5, 64, 1)), points=(4, 8), improve=AT_8))
    for number in (1, 2):
        run.add("incumbent", number, [cell(4, 50.0), cell(8, 80.0)])
        window = crossing(2, **({"steps": told} if told else {}))
        run.add("candidate-card", number, [cell(4, 50.0), cell(8, 80.0), window])
    found = [row for row in run.judge().tax if row.what == "crossingSteps"]
    if change is None:
        assert found == []
        return
    (row,) = found
    assert row.change == pytest.approx(change)
    assert (row.at, row.band, row.tokens, row.count, row.metric) == (4, "1-4", 3, 2, None)
    assert "engine steps per second at 4: steps at a change of K" in row.message


def test_void_windows_tell_no_steps() -> None:
    run = Run(spec_of(schedule=((1, 4, 3), (5, 64, 1)), points=(4, 8), improve=AT_8))
    run.add("incumbent", 1, [cell(4, 50.0), cell(8, 80.0)])
    told = [steps(3, stable=(90, 10.0), change=(3, 20.0))]
    window = crossing(2, steps=told, void="the engine compiled in it")
    run.add("candidate-card", 1, [cell(4, 50.0), cell(8, 80.0), window])
    assert run.judge().tax == []


SOUND = {
    "crossings as fast as both sides": ((180.0,) * 3, (1.0, 1.0), False),
    "only crossings stall": ((100.0, 102.0, 98.0), (1.0, 1.0), True),
    "they stand still": ((0.0,) * 3, (1.0, 1.0), True),
    "and the open loop across the boundary suffers for it": ((100.0,) * 3, (1.0, 0.5), True),
    "one slow crossing among good ones": ((100.0, 180.0, 182.0), (1.0, 1.0), False),
}


@pytest.mark.parametrize("claim", SOUND)
def test_fewer_bands_are_advised_where_only_crossings_stall(claim: str) -> None:
    rates, swing, advised = SOUND[claim]
    answer = crossed(*rates, swing=swing)
    assert bool(stalls(answer)) == advised, claim
    assert all("use fewer bands" in message for message in stalls(answer))
    lost = [bar.at for bar in answer.verdicts[0].bars if bar.answer == "Lost"]
    assert lost == ([None] if swing[1] < 1 else [])


def test_where_a_band_itself_is_lost_its_crossings_are_not_blamed() -> None:
    spec = spec_of(schedule=((1, 4, 3), (5, 64, 1)), points=(4, 8), improve=AT_8)
    run = Run(spec)
    for number in (1, 2, 3):
        run.add("incumbent", number, [by_tokens(4, 100.0, 1.0), by_tokens(8, 200.0, 2.0)])
        held = [by_tokens(4, 100.0, 1.0), by_tokens(8, 100.0, 1.0)]
        run.add("candidate-card", number, [*held, crossing(2, 0.0, outputTokens=5000)])
    answer = run.judge()
    assert answer.verdicts[0].verdict == "Worse"
    assert stalls(answer) == []


FIRSTS = {
    "before any other window": ([], True),
    "after a load at the boundary, not above it": ([cell(4, 50.0)], True),
    "after a load above the boundary": ([cell(8, 80.0)], False),
    "after another pass across it": ([crossing(2, 60.0)], False),
    "after outputs were compared above it": (
        [cell(4, 1.0, profile={"kind": "equivalence", "steps": [[8, 12]]})], False,
    ),
    "after an open loop, which may have gone anywhere": (
        [cell(4, 50.0, profile={"kind": "open", "requestsPerSecond": 1})], False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", FIRSTS)
def test_a_first_pass_is_one_only_while_the_launch_was_never_above_the_boundary(claim: str) -> None:
    before, first = FIRSTS[claim]
    run = Run(spec_of(schedule=((1, 4, 3), (5, 64, 1)), points=(4, 8), improve=AT_8))
    held = [cell(4, 50.0), cell(8, 80.0)]
    run.add("incumbent", 1, held)
    run.add("candidate-card", 1, [*before, crossing(1, 30.0), *held])
    assert ("firstPass" in {row.what for row in run.judge().tax}) == first


def test_a_second_visit_to_a_launch_has_no_first_pass() -> None:
    run = Run(spec_of(schedule=((1, 4, 3), (5, 64, 1)), points=(4, 8), improve=AT_8))
    held = [cell(4, 50.0), cell(8, 80.0)]
    run.add("incumbent", 1, held)
    run.add("candidate-card", 1, [crossing(1, 30.0, visit=2), *held])
    assert run.judge().tax == []


def test_a_tax_of_arms_launched_once_says_that_it_has_no_interval() -> None:
    run = Run(spec_of(points=(1,), improve=[{"by": "15%"}]))
    for arm, level in (("incumbent", 100.0), ("candidate-card", 92.0), ("constant-5", 90.0)):
        run.add(arm, 1, [cell(1, level, tokens=5)])
    (row,) = run.judge().tax
    assert (row.count, row.low, row.high) == (1, None, None)
    assert "(n = 1, no interval)" in row.message


def test_windows_whose_k_varies_are_no_evidence_for_a_band() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2):
        for arm, level in (("incumbent", 100.0), ("candidate-card", 130.0), ("none", 90.0)):
            run.add(arm, number, [cell(8, level)])
    assert run.judge().tax == []


@pytest.mark.parametrize(("drafted", "rows"), [(1000, [-0.05]), (1900, [])])
def test_a_control_that_drafted_another_k_than_planned_is_no_evidence_for_a_band(
    drafted: int, rows: list[float]
) -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    counted = {"tokens": 1, "drafts": 1000, "draftTokens": 1000}
    for number in (1, 2):
        run.add("incumbent", number, [cell(8, 100.0)])
        run.add("candidate-card", number, [cell(8, 130.0, **counted)])
        run.add("static-1", number, [cell(8, 100.0, **counted)])
        run.add("constant-1", number, [cell(8, 95.0, **counted | {"draftTokens": drafted})])
    found = [tax.change for tax in run.judge().tax if tax.what == "dynamicPath"]
    assert found == pytest.approx(rows)


@pytest.mark.parametrize(("drafter", "rows"), [("ngram", [-0.05]), ("demo/drafter", [])])
def test_fewer_drafts_than_planned_are_as_planned_where_drafts_are_found(
    drafter: str, rows: list[float]
) -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    counted = {"tokens": 1, "drafts": 1000, "draftTokens": 800}
    levels = {"incumbent": 100.0, "candidate-card": 130.0, "static-1": 100.0, "constant-1": 95.0}
    for number in (1, 2):
        for arm, level in levels.items():
            run.add(arm, number, [cell(8, level, **counted)], receipt={"drafter": drafter})
    found = [tax.change for tax in run.judge().tax if tax.what == "dynamicPath"]
    assert found == pytest.approx(rows)


def test_tokens_drafted_otherwise_than_planned_are_noted_not_failed() -> None:
    """2 clients, K=4 planned, 3.4 measured: prefills belong to the batch size."""
    spec = spec_of(schedule=((1, 2, 4), (3, 16, 0)), points=(2,), improve=[{"by": "15%"}])
    run = Run(spec)
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(2, 100.0)])
        run.add("candidate-card", number, [cell(2, 130.0, tokens=4, drafts=1000, draftTokens=3400)])
    answer = run.judge()
    assert answer.verdicts[0].verdict == "Better"
    said = next(note for note in answer.notes if note.reason == "TokensVary")
    assert "3.40" in said.message
    assert "prefills" in said.message


def test_an_incumbent_without_speculation_is_the_arm_none() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2):
        run.add("incumbent", number, [cell(8, 100.0, tokens=0)])
        run.add("candidate-card", number, [cell(8, 130.0, tokens=1)])
    answer = run.judge()
    assert [(tax.what, tax.change) for tax in answer.tax] == [("fromNone", pytest.approx(0.3))]
    assert "NoneNotMeasured" not in {note.reason for note in answer.notes}


@pytest.mark.parametrize(
    ("zero", "none", "within", "verdict"),
    [
        (137.1, 127.7, "5%", "Worse"),
        (148.4, 127.2, "5%", "Worse"),
        (137.1, 127.7, "10%", "NotBetter"),
        (148.4, 127.2, "10%", "Worse"),
    ],
)
def test_a_schedule_of_k0_is_not_the_control_without_speculation(
    zero: float, none: float, within: str, verdict: str
) -> None:
    """vLLM 49652: K=0 everywhere costs 7.4 % and 16.7 % more TPOT than no speculation."""
    spec = spec_of(
        schedule=((1, 16, 0),),
        points=(8,),
        improve=[{"metric": "tpotP50", "at": [8], "by": "15%"}],
        protect=[{"metric": "tpotP50", "at": [8], "within": within}],
        bar={"minEffect": "10%"},
    )
    run = Run(spec)
    for number in (1, 2, 3):
        for arm, tpot in (("incumbent", none), ("candidate-card", zero)):
            run.add(arm, number, [cell(8, 10.0, tokens=0, tpotMs={"p50": tpot})])
    answer = run.judge()
    kept = next(bar for bar in answer.verdicts[0].bars if bar.kind == "protect")
    assert kept.change == pytest.approx(1 - zero / none)
    assert (kept.answer == "Met") == (abs(zero / none - 1) <= float(within[:-1]) / 100)
    assert answer.verdicts[0].verdict == verdict
    assert answer.outcome == "NotPromoted"
    assert [tax.what for tax in answer.tax] == ["fromNone", "freeZero"]


def test_an_incumbent_of_fixed_k_is_the_static_control_of_that_k() -> None:
    run = Run(spec_of(points=(1,), improve=[{"by": "15%"}]))
    for number in (1, 2):
        for arm, level in (
            ("incumbent", 100.0),
            ("candidate-card", 92.0),
            ("constant-5", 90.0),
        ):
            run.add(arm, number, [cell(1, level, tokens=5)])
    assert [(tax.what, tax.change) for tax in run.judge().tax] == [
        ("dynamicPath", pytest.approx(-0.1))
    ]


def test_a_control_that_cannot_be_compared_holds_the_verdict() -> None:
    run = Run(spec_of(points=(1, 8, 16), improve=AT_8))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(1, 0.0), cell(8, 60.0), cell(16, 70.0)])
        run.add("candidate-card", number, [cell(1, 0.0), cell(8, 90.0), cell(16, 100.0)])
    run.add("none", 3, [cell(1, 40.0), cell(8, 0.0), cell(16, 90.0)])
    answer = run.judge()
    assert (answer.outcome, answer.reason) == ("Inconclusive", "ControlIncomparable")
    assert answer.verdicts[0].controls[0].change is None
    assert "none cannot be compared" in answer.message


def test_where_graph_modes_differ_the_path_is_taken_apart_into_graphs_and_the_rest() -> None:
    run = Run(spec_of(points=(8,), schedule=((1, 16, 3),), improve=AT_8))
    for number in (1, 2):
        for arm, level, mode in (
            ("incumbent", 100.0, "FULL_AND_PIECEWISE"),
            ("candidate-card", 85.0, "PIECEWISE"),
            ("static-3", 100.0, "FULL_AND_PIECEWISE"),
            ("piecewise-3", 88.0, "PIECEWISE"),
            ("constant-3", 80.0, "PIECEWISE"),
        ):
            cells = [cell(8, level * (1 + 0.01 * number), tokens=3)]
            run.add(arm, number, cells, receipt={"graphMode": mode})
    answer = run.judge()
    found = {row.what: row for row in answer.tax}
    assert {what: row.change for what, row in found.items()} == {
        "dynamicPath": pytest.approx(-0.2),
        "graphMode": pytest.approx(-0.12),
        "pathAlone": pytest.approx(80 / 88 - 1),
    }
    whole, parts = found["dynamicPath"], (found["graphMode"], found["pathAlone"])
    assert 1 + whole.change == pytest.approx((1 + parts[0].change) * (1 + parts[1].change))
    assert all(row.count == 2 and row.low is not None for row in found.values())
    # It takes a cost apart and is nothing to serve.
    assert {control.arm for control in answer.verdicts[0].controls} == {"static-3"}


def test_adaptive_verification_is_recommended_with_its_argument() -> None:
    answer = with_controls({"adaptive": {1: 120.0, 8: 180.0}})
    assert (answer.outcome, answer.reason) == ("NotPromoted", "ControlBeatsCandidate")
    assert answer.recommendation.startswith(
        'adaptive: --speculative-config \'{"method": "eagle3", "model": "org/drafter", '
        '"num_speculative_tokens": 5, "enable_adaptive_verification": true}\''
    )
