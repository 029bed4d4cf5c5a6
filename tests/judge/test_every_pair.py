"""Rule EveryPair: every pair meets the bar, two pairs at least, and far above the noise."""

import json
from typing import Any

import pytest

from specschedule.core.judge import Judgement

from .recorded import Run, cell, spec_of

AT_8 = [{"metric": "goodput", "at": [8], "by": "15%"}]


def judged(*pairs: tuple[float, float], **spec: object) -> Judgement:
    run = Run(spec_of(points=(8,), **{"improve": AT_8, **spec}))
    return run.pairs([({8: a}, {8: b}) for a, b in pairs]).judge()


@pytest.mark.parametrize(
    ("claim", "pairs", "expected"),
    [
        (
            "gains far above bar and noise in every pair",
            ((100, 130), (101, 131), (100, 129)),
            ("Promoted", "Better", "EveryPairMeetsBar"),
        ),
        (
            "exactly the gain asked for is enough",
            ((100, 115), (100, 115), (100, 115)),
            ("Promoted", "Better", "EveryPairMeetsBar"),
        ),
        (
            "one pair below the bar spoils it",
            ((100, 130), (101, 131), (100, 114)),
            ("Inconclusive", "Inconclusive", "PairsDisagree"),
        ),
        (
            "one before/after is worthless",
            ((100, 130),),
            ("Inconclusive", "Inconclusive", "TooFewPairs"),
        ),
        (
            "a gain of 15 % is not promoted on a bench that relaunches 4 % apart",
            ((100, 130), (104, 135), (100, 130)),
            ("Inconclusive", "Inconclusive", "BelowNoiseFloor"),
        ),
        (
            "gains that no noise explains up to the bar are not better",
            ((100, 103), (100.5, 103), (100, 102.5)),
            ("NotPromoted", "NotBetter", "GainNotReached"),
        ),
        (
            "a loss in every pair beyond the noise is worse",
            ((100, 90), (101, 91), (100, 90)),
            ("NotPromoted", "Worse", "LossShown"),
        ),
        (
            "no good request at all is a collapse, not a division by zero",
            ((100, 0), (100, 0), (100, 0)),
            ("NotPromoted", "Worse", "BandCollapsed"),
        ),
        (
            "an incumbent without a good request is no reference",
            ((0, 100), (0, 100), (0, 100)),
            ("Inconclusive", "Inconclusive", "ReferenceIsZero"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdicts(
    claim: str, pairs: tuple[tuple[float, float], ...], expected: tuple[str, str, str]
) -> None:
    answer = judged(*pairs)
    verdict = answer.verdicts[0]
    assert (answer.outcome, verdict.verdict, verdict.reason) == expected, claim
    json.dumps(answer.plain(), allow_nan=False)


def test_a_bench_too_noisy_is_told_with_the_gain_that_could_be_proven() -> None:
    bar = judged((100, 130), (104, 135), (100, 130)).verdicts[0].bars[0]
    assert bar.floor == pytest.approx(0.04)
    assert "20.0%" in bar.message
    assert "effort Standard" in bar.message


def test_mode_propose_proposes() -> None:
    answer = judged((100, 130), (101, 131), (100, 129), mode="Propose")
    assert answer.outcome == "Proposed"


def protected(
    losses: tuple[float, ...], within: str | None = "3%", noise: float = 0.0
) -> Judgement:
    protect = {"metric": "decodeRate", "at": [1]} | ({"within": within} if within else {})
    run = Run(spec_of(points=(1, 8), improve=AT_8, protect=[protect]))
    for number, loss in enumerate(losses, start=1):
        base = 60.0 * (1 + noise * (number % 2))
        both = [("incumbent", base, 100.0), ("candidate-card", base * (1 - loss), 130.0)]
        for arm, decode, goodput in both if number % 2 else both[::-1]:
            run.add(arm, number, [cell(1, decode / 100, decode=decode), cell(8, goodput)])
    return run.judge()


@pytest.mark.parametrize(
    ("claim", "answer", "verdict"),
    [
        ("each pair within it", protected((0.01, 0.02, 0.029)), "Better"),
        ("exactly at it", protected((0.03, 0.03, 0.03)), "Better"),
        ("one pair outside it", protected((0.01, 0.02, 0.04)), "Inconclusive"),
        ("every pair outside it", protected((0.05, 0.06, 0.05)), "Worse"),
        ("3 % when none is named and the bench is quiet", protected((0.02,) * 3, None), "Better"),
        ("not 5 % when the bench is quiet", protected((0.05,) * 3, None), "Worse"),
        ("twice the floor when the bench is noisy", protected((0.05,) * 3, None, 0.04), "Better"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_protect(claim: str, answer: Judgement, verdict: str) -> None:
    assert answer.verdicts[0].verdict == verdict, claim


def elsewhere(*losses: float, noise: float = 0.0) -> Judgement:
    run = Run(spec_of(points=(4, 8), improve=AT_8))
    pairs = []
    for number, loss in enumerate(losses):
        base = 50.0 * (1 + noise * (number % 2))
        pairs.append(({4: base, 8: 100.0}, {4: base * (1 - loss), 8: 130.0}))
    return run.pairs(pairs).judge()


@pytest.mark.parametrize(
    ("claim", "answer", "verdict"),
    [
        ("a dip in one pair is no shown loss", elsewhere(0.0, 0.08, 0.01), "Better"),
        ("a loss in every pair is one", elsewhere(0.07, 0.08, 0.06), "Worse"),
        (
            "a loss inside the incumbent's spread is not",
            elsewhere(0.07, 0.08, 0.06, noise=0.1),
            "Better",
        ),
        ("a collapse in one pair is one", elsewhere(0.0, 0.6, 0.0), "Worse"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_elsewhere(claim: str, answer: Judgement, verdict: str) -> None:
    assert answer.verdicts[0].verdict == verdict, claim


def test_a_loss_inside_the_spread_is_watched() -> None:
    watched = elsewhere(0.07, 0.08, 0.06, noise=0.1).watch
    assert [(item.at, item.spread) for item in watched] == [(4, pytest.approx(0.1))]


def test_another_bands_gain_does_not_hide_a_collapse() -> None:
    run = Run(spec_of(points=(1, 8, 16), improve=[{"at": [16], "by": "15%"}]))
    levels = ({1: 10.0, 8: 100.0, 16: 100.0}, {1: 40.0, 8: 40.0, 16: 400.0})
    answer = run.pairs([levels] * 3).judge()
    assert answer.verdicts[0].reason == "BandCollapsed"
    assert "at 8" in answer.message


def test_smaller_latencies_are_better_and_shares_are_of_the_latency() -> None:
    spec = spec_of(
        points=(8,),
        improve=[{"metric": "tpotP50", "at": [8], "by": "20%"}],
        protect=[{"metric": "ttftP99", "at": [8], "within": "5%"}],
    )
    run = Run(spec)
    for number in (1, 2, 3):
        for arm, tpot, ttft in (("incumbent", 20.0, 100.0), ("candidate-card", 16.0, 105.0)):
            quantiles = {"tpotMs": {"p50": tpot}, "ttftMs": {"p99": ttft}}
            run.add(arm, number, [cell(8, 10.0, **quantiles)])
    bars = run.judge().verdicts[0].bars
    assert [(bar.answer, bar.change) for bar in bars if bar.kind != "elsewhere"] == [
        ("Met", pytest.approx(0.2)),
        ("Met", pytest.approx(-0.05)),
    ]


def test_windows_of_one_launch_are_one_value() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    windows = [cell(8, 130.0, seed=seed) for seed in range(10)]
    run.add("incumbent", 1, [cell(8, 100.0, seed=seed) for seed in range(10)])
    run.add("candidate-card", 1, windows)
    assert run.judge().verdicts[0].reason == "TooFewPairs"


@pytest.mark.parametrize("rule", ["EveryPair", "Sequential"])
@pytest.mark.parametrize(("gain", "outcome"), [(0.02, "Inconclusive"), (0.05, "Promoted")])
def test_an_improvement_never_asks_for_less_than_the_smallest_effect(
    rule: str, gain: float, outcome: str
) -> None:
    run = Run(spec_of(points=(8,), improve=[{"at": [8], "by": "1%"}], bar={"rule": rule}))
    for number in range(1, 31):
        order = [("incumbent", 500.0), ("candidate-card", 500.0 * (1 + gain))]
        for arm, level in order if number % 2 else order[::-1]:
            run.add(arm, number, [cell(8, level * (1 + 0.001 * (number % 3)))])
    answer = run.judge()
    bar = answer.verdicts[0].bars[0]
    assert bar.required == 0.03
    assert "bar.minEffect; by is 1.0%" in bar.message
    assert (answer.outcome == "Promoted") == (outcome == "Promoted")


def test_a_protected_decode_rate_leaves_goodput_protected_at_that_point() -> None:
    protect = [{"metric": "decodeRate", "at": [1], "within": "3%"}]
    run = Run(spec_of(points=(1, 8), improve=AT_8, protect=protect))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(1, 20.0, decode=60.0), cell(8, 100.0)])
        run.add("candidate-card", number, [cell(1, 0.0, decode=60.0), cell(8, 130.0)])
    verdict = run.judge().verdicts[0]
    assert (verdict.verdict, verdict.reason) == ("Worse", "BandCollapsed")
    assert "goodput at 1" in verdict.message


def with_categories(*losses: float) -> Judgement:
    """The candidate loses so much of its decode rate in prose; each pair but the first holds it."""
    run = Run(spec_of(points=(1, 8), improve=AT_8))
    for number in (1, 2, 3):
        for arm, level in (("incumbent", 100.0), ("candidate-card", 130.0)):
            cells = [cell(1, level, decode=60.0), cell(8, level, decode=20.0)]
            if number <= len(losses):
                loss = losses[number - 1] if arm != "incumbent" else 0.0
                cells.append(cell((1, "prose"), 0.2 * level, decode=60.0 * (1 - loss)))
            run.add(arm, number, cells)
    return run.judge()


def test_windows_of_one_category_weigh_nothing_in_what_pools_them() -> None:
    with_prose, without = with_categories(0.07), with_categories()
    assert with_prose.outcome == "Promoted"
    bars = [[bar.plain() for bar in judged.verdicts[0].bars] for judged in (with_prose, without)]
    assert bars[0] == bars[1]
    rates = {arm.arm: arm.decode for arm in with_prose.arms}
    assert [(r.at, r.category, r.tokens_per_second, r.windows) for r in rates["incumbent"]] == [
        (1, "prose", 60.0, 1)
    ]
    assert rates["candidate-card"][0].tokens_per_second == pytest.approx(55.8)


@pytest.mark.parametrize(
    ("claim", "losses", "watched"),
    [
        ("one pair may be chance", (0.07,), []),
        ("two pairs of the same sign are watched", (0.07, 0.06), [(1, "prose")]),
        ("a gain in the second one ends it", (0.07, -0.01), []),
        ("below minEffect nothing is watched", (0.01, 0.02), []),
    ],
)
def test_a_category_is_watched_from_its_second_pair_on(
    claim: str, losses: tuple[float, ...], watched: list[tuple[int, str]]
) -> None:
    found = [(w.at, w.category) for w in with_categories(*losses).watch]
    assert found == watched, claim


def long_prompts(at: int, context: int, goodput: float) -> dict[str, Any]:
    """A window whose prompts were made as long as a mean context wants."""
    profile = {"kind": "hold", "concurrency": at, "context": context - 64}
    return cell((at, context), goodput, profile=profile)


def at_contexts(*, long: float, improve: object, plain: float = 130.0) -> Judgement:
    """Three pairs at 8 in flight: prompts as they are, and a mean context of 4096 tokens."""
    run = Run(spec_of(points=(8,), improve=improve))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(8, 100.0), long_prompts(8, 4096, 50.0)])
        run.add("candidate-card", number, [cell(8, plain), long_prompts(8, 4096, long)])
    return run.judge()


LONG = [{"metric": "goodput", "at": [8], "context": 4096, "by": "15%"}]


@pytest.mark.parametrize(
    ("claim", "judgement", "expected"),
    [
        (
            "a gain there is a gain there, whatever happens elsewhere within its bounds",
            at_contexts(long=65.0, plain=100.0, improve=LONG),
            [("improve", 4096, "Met", 0.3), ("elsewhere", None, "Met", 0.0)],
        ),
        (
            "a gain with prompts as they are is none there",
            at_contexts(long=50.0, improve=LONG),
            [("improve", 4096, "NotMet", 0.0), ("elsewhere", None, "Met", 0.3)],
        ),
        (
            "a loss with prompts as they are is not hidden by the context",
            at_contexts(long=65.0, plain=80.0, improve=LONG),
            [("improve", 4096, "Met", 0.3), ("elsewhere", None, "Lost", -0.2)],
        ),
        (
            "what names no context is judged by prompts as they are",
            at_contexts(long=20.0, improve=AT_8),
            [("improve", None, "Met", 0.3)],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_context_of_the_bar_is_a_place_of_its_own(
    claim: str, judgement: Judgement, expected: list[tuple[str, int | None, str, float]]
) -> None:
    bars = judgement.verdicts[0].bars
    found = [(b.kind, b.context, b.answer, pytest.approx(b.change)) for b in bars]
    assert found == expected, claim


def test_a_context_that_was_not_measured_is_unproven() -> None:
    run = Run(spec_of(points=(8,), improve=LONG))
    run.pairs([({8: 100.0}, {8: 130.0})] * 3)
    bar = run.judge().verdicts[0].bars[0]
    assert (bar.answer, bar.reason) == ("Unproven", "MetricMissing")
    assert "goodput at 8, context 4096" in bar.message


def test_near_contexts_of_the_bar_are_told_apart_where_both_are_named() -> None:
    """By a gap alone, 1000 and 1200 tokens would be one context."""
    improve = [
        {"metric": "goodput", "at": [8], "context": context, "by": "15%"}
        for context in (1000, 1200)
    ]
    run = Run(spec_of(points=(8,), improve=improve))
    for number in (1, 2, 3):
        for arm, gain in (("incumbent", 0.0), ("candidate-card", 0.3)):
            near = [
                long_prompts(8, 1000, 50.0 * (1 + gain)),
                long_prompts(8, 1200, 40.0 * (1 + gain / 10)),
            ]
            run.add(arm, number, [cell(8, 100.0), *near])
    bars = run.judge().verdicts[0].bars
    assert [(b.context, b.answer) for b in bars if b.kind == "improve"] == [
        (1000, "Met"),
        (1200, "NotMet"),
    ]


def test_decode_rates_are_told_by_depth_as_far_as_windows_count() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    run.pairs([({8: 100.0}, {8: 130.0})] * 2)
    depths = [
        cell(1, decode=rate, profile={"kind": "depth", "concurrency": 1, "context": depth}, **more)
        for depth, rate, more in (
            (512, 60.0, {}),
            (2048, 45.0, {}),
            (2048, 10.0, {"void": "sends lagged"}),
            (4096, 9.0, {"inFlightExact": 0.2}),
        )
    ]
    run.add("incumbent", 3, [cell(8, 100.0), *depths])
    (rates,) = [arm.decode for arm in run.judge().arms if arm.arm == "incumbent"]
    assert [(r.depth, r.category, r.tokens_per_second) for r in rates] == [
        (512, None, 60.0),
        (2048, None, 45.0),
    ]


@pytest.mark.parametrize(
    ("schedule", "bands"),
    [
        (((1, 2, 5), (3, 16, 1)), []),
        (((1, 2, 5), (3, 6, 2), (7, 16, 1)), ["3-6, K=2"]),
        (((1, 8, 5), (9, 16, 1), (17, 64, 0)), ["9-16, K=1", "17-64, K=0"]),
        (((1, 4, 1, 512, 3), (1, 4, 513, 9999, 5), (5, 6, 1, 512, 1), (5, 6, 513, 9999, 2),
          (7, 8, 1, 512, 0), (7, 8, 513, 9999, 1)), ["5-6, K=1 or 2"]),
    ],
    ids=["each band has a point", "one has none", "those above all points", "by context too"],
)  # fmt: skip
def test_a_band_without_a_load_point_is_said_to_be_untold(
    schedule: tuple[tuple[int, ...], ...], bands: list[str]
) -> None:
    run = Run(spec_of(schedule=schedule, points=(1, 8), improve=AT_8))
    run.pairs([({1: 100.0, 8: 100.0}, {1: 100.0, 8: 130.0})] * 3)
    said = [note.message for note in run.judge().notes if note.reason == "BandNotHeld"]
    assert len(said) == len(bands)
    assert all(f"its band {band}:" in text for band, text in zip(bands, said, strict=True))


def test_a_window_that_did_not_hold_its_load_does_not_count() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8))
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(8, 100.0)])
        run.add("candidate-card", number, [cell(8, 130.0, inFlightExact=0.6)])
    answer = run.judge()
    assert (answer.outcome, answer.reason) == ("Inconclusive", "TooFewPairs")
    assert "8 requests were in flight only 60% of the time" in answer.message


def test_windows_whose_counts_contradict_each_other_do_not_count() -> None:
    for claim in ({"good": 101}, {"failed": 1}):
        counts = {"offered": 100, "completed": 100, "good": 90, **claim}
        run = Run(spec_of(points=(8,), improve=AT_8))
        for number in (1, 2, 3):
            run.add("incumbent", number, [cell(8, 0.5)])
            run.add("candidate-card", number, [cell(8, **counts)])
        answer = run.judge()
        assert (answer.outcome, answer.reason) == ("Inconclusive", "TooFewPairs")
        assert "cannot be" in answer.message
        run.add("candidate-card", 3, [cell(8, 0.9), cell(8, **counts)])
        notes = {note.reason: note.message for note in run.judge().notes}
        assert "cannot be" in notes["WindowNotCounted"]
