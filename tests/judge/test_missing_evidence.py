"""Missing evidence is never a pass, and what is not comparable is not compared."""

import pytest

from specschedule.core.evidence import Receipt
from specschedule.core.judge import Judgement

from .recorded import Run, cell, spec_of

AT_8 = [{"metric": "goodput", "at": [8], "by": "15%"}]


def run_of(**of_candidate: object) -> Run:
    """Three pairs that meet the bar, with something about the candidate's launches changed."""
    cells = of_candidate.pop("cells", [cell(8, 130.0)])
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2, 3):
        order = [("incumbent", [cell(8, 100.0)], {}), ("candidate-card", cells, of_candidate)]
        for arm, windows, more in order if number % 2 else order[::-1]:
            run.add(arm, number, windows, **more)
    return run


def test_the_unchanged_run_is_promoted() -> None:
    assert run_of().judge().outcome == "Promoted"


@pytest.mark.parametrize(
    ("claim", "run", "expected"),
    [
        (
            "void windows",
            run_of(cells=[cell(8, 130.0, void="sends lagged 9 ms")]),
            ("Inconclusive", "TooFewPairs", "sends lagged 9 ms"),
        ),
        (
            "void launches",
            run_of(void="preempted"),
            ("Inconclusive", "TooFewPairs", "preempted"),
        ),
        (
            "sends that lagged beyond the limit",
            run_of(cells=[cell(8, 130.0, sendLagMsP99=9.0)]),
            ("Inconclusive", "MetricMissing", "nothing can be compared"),
        ),
        (
            "no count of good requests",
            run_of(cells=[cell(8)]),
            ("Inconclusive", "MetricMissing", "nothing can be compared"),
        ),
        (
            "windows at another load point",
            run_of(cells=[cell(16, 130.0)]),
            ("Inconclusive", "MetricMissing", "nothing can be compared"),
        ),
        (
            "too few finished requests",
            run_of(cells=[cell(8, good=19, completed=19, windowSeconds=19 / 130)]),
            ("Inconclusive", "TooFewRequests", "fewer than 20"),
        ),
        (
            "a category that the candidate did not run",
            run_of(cells=[cell((8, "code"), 130.0)]),
            ("Inconclusive", "MetricMissing", "nothing can be compared"),
        ),
        (
            "cells of another arm",
            run_of(cells=[cell(8, 130.0, arm="static-3")]),
            ("Inconclusive", "TooFewPairs", "no window was measured"),
        ),
        (
            "another image",
            run_of(receipt={"imageId": "sha256:b"}),
            ("Promoted", "EveryPairMeetsBar", ""),
        ),
        (
            "a schedule that the engine dropped",
            run_of(receipt={"schedule": [[1, 16, 5]]}),
            ("NotPromoted", "ScheduleNotInEffect", "[[1, 16, 5]]"),
        ),
        (
            "a schedule that the engine writes otherwise",
            run_of(receipt={"schedule": [[1, 2, 5], [3, 8, 1], [9, 16, 1]]}),
            ("Promoted", "EveryPairMeetsBar", ""),
        ),
        (
            "a start-up that failed",
            run_of(failed="failed during graph capture: assertion"),
            ("NotPromoted", "CandidateFailed", "failed during graph capture"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_said_of(claim: str, run: Run, expected: tuple[str, str, str]) -> None:
    answer = run.judge()
    assert (answer.outcome, answer.reason) == expected[:2], claim
    assert expected[2] in answer.message


def receipts(ours: dict[str, object], theirs: dict[str, object]) -> Judgement:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(8, 100.0)], receipt=theirs)
        run.add("candidate-card", number, [cell(8, 130.0)], receipt=ours)
    return run.judge()


@pytest.mark.parametrize(
    ("fact", "ours", "theirs"),
    [
        ("imageId", "sha256:b", "sha256:a"),
        ("engineVersion", "0.33.0", "0.32.0"),
        ("model", "org/b", "org/a"),
        ("gpu", "H200", "H100"),
    ],
)
def test_arms_on_different_engines_are_not_compared(fact: str, ours: str, theirs: str) -> None:
    answer = receipts({fact: ours}, {fact: theirs})
    assert (answer.outcome, answer.reason) == ("Inconclusive", "ArmsNotComparable")
    assert ours in answer.message
    assert theirs in answer.message


def test_arms_that_found_different_prefix_caches_are_not_compared() -> None:
    """vLLM 54227: control 2 % of prompt tokens cached, candidate 91 %."""
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2, 3):
        for arm, level, hits in (("incumbent", 100.0, 20), ("candidate-card", 230.0, 910)):
            cache = {"queries": 1000, "hits": hits}
            run.add(arm, number, [cell(8, level, prefixCache=cache)])
    answer = run.judge()
    assert (answer.outcome, answer.reason) == ("Inconclusive", "ArmsNotComparable")
    assert "prefix cache" in answer.message
    assert "91%" in answer.message
    assert "2%" in answer.message


def test_a_launch_that_compiled_does_not_count_where_others_found_warm_caches() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number, warm in ((1, False), (2, True), (3, True)):
        levels = (("incumbent", 100.0), ("candidate-card", 500.0 if not warm else 130.0))
        for arm, level in levels:
            run.add(arm, number, [cell(8, level)], receipt={"cachesWarm": warm})
    answer = run.judge()
    assert answer.verdicts[0].pairs == 2
    assert [note.reason for note in answer.notes].count("LaunchNotCounted") == 2


def test_caches_cold_for_all_count_for_all() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2, 3):
        for arm, level in (("incumbent", 100.0), ("candidate-card", 130.0)):
            run.add(arm, number, [cell(8, level)], receipt={"cachesWarm": False})
    assert run.judge().outcome == "Promoted"


def test_an_incumbent_that_cannot_be_measured_decides_nothing() -> None:
    run = run_of()
    run.add("incumbent", 4, failed="out of memory")
    answer = run.judge()
    assert (answer.outcome, answer.reason) == ("Inconclusive", "IncumbentFailed")


def test_a_pair_that_was_launched_again_counts_once_by_its_last_try() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    run.add("incumbent", 1, [cell(8, 50.0)], attempt=1)
    run.add("candidate-card", 1, void="preempted", attempt=1)
    run.add("incumbent", 1, [cell(8, 100.0)], attempt=2)
    run.add("candidate-card", 1, [cell(8, 130.0)], attempt=2)
    run.add("candidate-card", 2, [cell(8, 130.0)])
    run.add("incumbent", 2, [cell(8, 100.0)])
    bar = run.judge().verdicts[0].bars[0]
    assert bar.pairs == pytest.approx([0.3, 0.3])


def test_nothing_launched_is_nothing_judged() -> None:
    run = Run(spec_of()).add("incumbent", 1, [cell(8, 100.0)])
    answer = run.judge()
    assert (answer.outcome, answer.reason) == ("Inconclusive", "NothingMeasured")


def test_a_no_speculation_arm_has_no_acceptance() -> None:
    run = run_of(cells=[cell(8, 130.0, drafts=100, acceptedTokens=150)])
    run.add("none", 3, [cell(8, 90.0, drafts=0, acceptedTokens=0)])
    lengths = {arm.arm: arm.acceptance_length for arm in run.judge().arms}
    assert lengths == {"incumbent": None, "candidate-card": 2.5, "none": None}
    none = run.judge().plain()["arms"][-1]
    assert "acceptanceLength" not in none


def test_the_next_candidate_is_judged_on_its_own_rounds() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    run.spec = run.spec.model_copy(
        update={
            "candidates": [
                *run.spec.candidates,
                run.spec.candidates[0].model_copy(update={"name": "second"}),
            ]
        }
    )
    for number, arm, level in (
        (1, "candidate-card", 95.0),
        (2, "candidate-card", 95.0),
        (3, "candidate-second", 130.0),
        (4, "candidate-second", 130.0),
    ):
        run.add("incumbent", number, [cell(8, 100.0)])
        run.add(arm, number, [cell(8, level)])
    answer = run.judge()
    assert [(v.candidate, v.verdict) for v in answer.verdicts] == [
        ("card", "Worse"),
        ("second", "Better"),
    ]
    assert answer.outcome == "Promoted"


def test_a_short_context_gain_does_not_hide_a_long_context_loss() -> None:
    """vLLM 54691: short +20 %, long -30 %; one table by batch size cannot express it."""
    spec = spec_of(points=(8,), improve=[{"metric": "goodput", "at": [8], "by": "1%"}])
    run = Run(spec)
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell((8, 2000), 100.0), cell((8, 185000), 20.0)])
        run.add("candidate-card", number, [cell((8, 2000), 120.0), cell((8, 185000), 14.0)])
    answer = run.judge()
    assert answer.verdicts[0].verdict == "Worse"
    assert "context 185000" in answer.message
    (said,) = [note.message for note in answer.notes if note.reason == "DependsOnContext"]
    assert "+20.0% at context 2000, -30.0% at context 185000" in said
    assert "one table by batch size cannot express that" in said


def test_a_loss_at_every_context_is_not_blamed_on_the_context() -> None:
    run = Run(spec_of(points=(8,), improve=[{"metric": "goodput", "at": [8], "by": "1%"}]))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell((8, 2000), 100.0), cell((8, 185000), 20.0)])
        run.add("candidate-card", number, [cell((8, 2000), 70.0), cell((8, 185000), 14.0)])
    assert not [note for note in run.judge().notes if note.reason == "DependsOnContext"]


def test_contexts_that_wander_from_round_to_round_are_one_context() -> None:
    run = Run(spec_of(points=(4, 8), improve=AT_8))
    for number, context in ((1, 300), (2, 900), (3, 300)):
        for arm, level in (("incumbent", 100.0), ("candidate-card", 130.0)):
            run.add(arm, number, [cell((4, context), 50.0), cell((8, context), level)])
    assert run.judge().outcome == "Promoted"


def test_a_context_that_the_candidate_did_not_run_is_missing() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2, 3):
        for arm in ("incumbent", "none"):
            run.add(arm, number, [cell((8, 300), 100.0), cell((8, 4000), 20.0)])
        run.add("candidate-card", number, [cell((8, 300), 130.0)])
    answer = run.judge()
    assert (answer.outcome, answer.reason) == ("Inconclusive", "MetricMissing")


def test_what_was_measured_beyond_the_kv_cache_does_not_count() -> None:
    """The first launch measured the point before anybody knew; its collapse is the cache's."""
    cells = [cell(8, 130.0), cell(16, 1.0, requestTokens=400)]
    run = Run(spec_of(points=(8, 16), improve=AT_8))
    for number in (1, 2, 3):
        for arm in ("incumbent", "candidate-card"):
            windows = [cell(8, 100.0), cell(16, 100.0)] if arm == "incumbent" else cells
            run.add(arm, number, windows, receipt={"kvCacheTokens": 5_000})
    found = run.judge()
    assert found.outcome == "Promoted"
    assert {bar.at for verdict in found.verdicts for bar in verdict.bars} == {8}
    larger = [
        x.model_copy(update={"receipt": Receipt(kv_cache_tokens=6_400)}) for x in run.launches
    ]
    run.launches = larger
    assert run.judge().reason == "BandCollapsed", "it holds 16 requests of 400 tokens"
