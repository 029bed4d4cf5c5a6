"""Attainment: the share of offered requests that are good, at an offered load."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from specschedule.core.judge import Judgement
from specschedule.core.verdict import BarResult

from .recorded import Run, cell, spec_of

LOAD = {"points": [8], "requestsPerSecond": [4, 2.5]}
ATTAINS = [{"metric": "attainment", "by": "10%"}]
STANDARD = {"experiment": {"effort": "Standard"}}


def window(good: int, rate: float, peak: float | None = None, **more: Any) -> dict[str, Any]:
    """One open-loop window of 100 requests."""
    profile: dict[str, Any] = {"kind": "open", "requestsPerSecond": rate}
    if peak is not None:
        profile["peakRequestsPerSecond"] = peak
    return {
        "cell": f"open{rate:g}-{peak or 'steady'}",
        "profile": profile,
        "windowSeconds": 100 / rate,
        "offered": 100,
        "completed": 100,
        "good": good,
        **more,
    }


def bars(judgement: Judgement, *kinds: str) -> list[BarResult]:
    return [bar for bar in judgement.verdicts[0].bars if bar.kind in kinds]


def test_attainment_is_a_difference_of_proportions_at_every_offered_load() -> None:
    run = Run(spec_of(load=LOAD, improve=ATTAINS))
    for number in (1, 2, 3):
        for arm, good in (("incumbent", (80, 60)), ("candidate-card", (95, 80))):
            open_loops = [window(good[0], 2.5), window(good[1], 4)]
            run.add(arm, number, [cell(8, 100.0), *open_loops])
    slow, fast = bars(run.judge(), "improve")
    assert (slow.requests_per_second, slow.answer, slow.change) == (
        2.5,
        "Met",
        pytest.approx(0.15),
    )
    assert (fast.requests_per_second, fast.answer, fast.change) == (4, "Met", pytest.approx(0.2))
    assert slow.at is None
    assert slow.incumbent == pytest.approx(0.8)
    assert "attainment at 2.5 requests/s" in slow.message


NAMED = {
    "ttftP99": ({"ttftMs": {"p99": 200.0}}, {"ttftMs": {"p99": 150.0}}, 0.25),
    "tpotP50": ({"tpotMs": {"p50": 20.0}}, {"tpotMs": {"p50": 18.0}}, 0.1),
    "goodput": ({"good": 50}, {"good": 60}, 0.2),
    "throughput": ({"outputTokens": 3000}, {"outputTokens": 3300}, 0.1),
}


@pytest.mark.parametrize("metric", NAMED)
def test_any_metric_of_whole_requests_is_judged_at_the_offered_loads_that_are_named(metric) -> None:
    before, after, gain = NAMED[metric]
    asked = {"metric": metric, "requestsPerSecond": [4], "by": "5%"}
    run = Run(spec_of(load=LOAD, improve=[asked]))
    for number in (1, 2, 3):
        for arm, here in (("incumbent", before), ("candidate-card", after)):
            # At the other rate, and at requests in flight, it is as it was.
            loops = [window(50, 2.5) | before, window(50, 4) | here]
            run.add(arm, number, [cell(8, 100.0), *loops])
    (bar,) = bars(run.judge(), "improve")
    assert (bar.at, bar.requests_per_second, bar.answer) == (None, 4, "Met")
    assert bar.change == pytest.approx(gain)
    assert f"{metric} at 4 requests/s" in bar.message


def test_latency_lost_at_a_named_load_is_lost_though_it_is_kept_in_flight() -> None:
    protect = [{"metric": "ttftP99", "requestsPerSecond": [4], "within": "10%"}]
    spec = spec_of(load=LOAD, improve=[{"at": [8], "by": "5%"}], protect=protect)
    run = Run(spec)
    for number in (1, 2, 3):
        for arm, good, ttft in (("incumbent", 100.0, 200.0), ("candidate-card", 120.0, 300.0)):
            slow = window(50, 4, ttftMs={"p99": ttft})
            run.add(arm, number, [cell(8, good, ttftMs={"p99": 100.0}), slow, window(50, 2.5)])
    (bar,) = bars(run.judge(), "protect")
    assert (bar.answer, bar.requests_per_second) == ("Lost", 4)


def test_a_held_load_says_nothing_about_attainment() -> None:
    run = Run(spec_of(load=LOAD, improve=ATTAINS))
    for number in (1, 2, 3):
        for arm, good in (("incumbent", 800), ("candidate-card", 950)):
            run.add(arm, number, [cell(8, offered=1000, completed=1000, good=good)])
    judgement = run.judge()
    assert judgement.outcome == "Inconclusive"
    assert {bar.reason for bar in bars(judgement, "improve")} == {"MetricMissing"}


def test_errors_and_late_requests_lower_attainment_alike() -> None:
    run = Run(spec_of(load=LOAD, improve=ATTAINS))
    failing = {"completed": 70, "failed": 30}
    for number in (1, 2, 3):
        run.add("incumbent", number, [cell(8, 1.0), window(90, 4), window(90, 2.5)])
        candidate = [window(70, 4, **failing), window(70, 2.5, **failing)]
        run.add("candidate-card", number, [cell(8, 1.0), *candidate])
    assert {bar.answer for bar in bars(run.judge(), "improve")} == {"Lost"}


def swinging(goods: Sequence[tuple[int | None, int | None]]) -> Run:
    """Rounds that gain 10 % goodput; from the second on with an open loop of 1 to 6 requests/s."""
    run = Run(spec_of(points=(8,), improve=[{"at": [8], "by": "5%"}], **STANDARD))
    for number, (ours, theirs) in enumerate(goods, start=1):
        level = 1000 * (1 + 0.005 * (number % 2))
        both: list[tuple[str, float, int | None]] = [
            ("incumbent", level, theirs),
            ("candidate-card", 1.1 * level, ours),
        ]
        for arm, rate, good in both if number % 2 else both[::-1]:
            more = [] if good is None else [window(good, 1, 6)]
            run.add(arm, number, [cell(8, rate), *more])
    return run


NONE_YET = (None, None)


@pytest.mark.parametrize(
    ("claim", "goods", "expected"),
    [
        ("as good as before", [NONE_YET, *[(98, 97)] * 5], ("Better", "Met", "NoLossShown")),
        (
            "requests are lost where K changes under way",
            [NONE_YET, *[(70, 98)] * 5],
            ("Worse", "Lost", "LossShown"),
        ),
        (
            "a collapse in one round is not averaged away",
            [NONE_YET, (98, 97), (30, 98), (98, 97), (98, 97), (98, 97)],
            ("Worse", "Lost", "BandCollapsed"),
        ),
        (
            "the candidate's windows are missing",
            [NONE_YET, *[(None, 98)] * 5],
            ("Inconclusive", "Unproven", "MetricMissing"),
        ),
        (
            "two of five are missing",
            [NONE_YET, (98, 97), (None, 98), (98, 97), (None, 98), (98, 97)],
            ("Inconclusive", "Unproven", "MetricMissing"),
        ),
    ],
)
def test_an_open_loop_across_the_boundaries_must_show_no_loss(
    claim: str, goods: Sequence[tuple[int | None, int | None]], expected: tuple[str, ...]
) -> None:
    verdict = swinging(goods).judge().verdicts[0]
    (bar,) = [bar for bar in verdict.bars if bar.peak_requests_per_second == 6]
    assert (verdict.verdict, bar.answer, bar.reason) == expected, claim
    assert bar.requests_per_second == 1
    assert bar.kind == "elsewhere"


REPLAYED = {"points": [8], "trace": {"configMap": "recorded"}}


def replayed(
    goods: Sequence[tuple[int, int | None]], improve: Sequence[dict[str, Any]]
) -> Judgement:
    """Three rounds that gain 30 % goodput, with (incumbent, candidate) good of 100 in the trace."""
    run = Run(spec_of(load=REPLAYED, improve=improve))
    for number, (theirs, ours) in enumerate(goods, start=1):
        for arm, rate, good in (("incumbent", 100.0, theirs), ("candidate-card", 130.0, ours)):
            trace = {"kind": "open", "requestsPerSecond": 1.5, "trace": "sha256:0123456789ab"}
            more = [] if good is None else [window(good, 1.5, profile=trace)]
            run.add(arm, number, [cell(8, rate), *more])
    return run.judge()


@pytest.mark.parametrize(
    ("claim", "goods", "expected"),
    [
        ("as good as before", [(90, 90)] * 3, ("Better", "Met", "NoLossShown")),
        ("worse in every pair", [(90, 70)] * 3, ("Worse", "Lost", "LossShown")),
        ("not replayed", [(90, None)] * 3, ("Inconclusive", "Unproven", "MetricMissing")),
        (
            "below half of the incumbent's in one pair",
            [(40, 40), (40, 15), (40, 40)],
            ("Worse", "Lost", "BandCollapsed"),
        ),
        (
            "more than half, however many requests that is",
            [(90, 90), (90, 46), (90, 90)],
            ("Better", "Met", "NoLossShown"),
        ),
        (
            "all of the two good requests of a hundred is chance",
            [(2, 2), (2, 0), (2, 2)],
            ("Better", "Met", "NoLossShown"),
        ),
        (
            "inside what the incumbent's relaunches show",
            [(90, 90), (30, 14), (90, 90)],
            ("Better", "Met", "NoLossShown"),
        ),
    ],
)
def test_a_trace_must_show_no_loss_where_the_bar_does_not_name_it(
    claim: str, goods: Sequence[tuple[int, int | None]], expected: tuple[str, ...]
) -> None:
    verdict = replayed(goods, [{"at": [8], "by": "15%"}]).verdicts[0]
    (bar,) = [bar for bar in verdict.bars if bar.trace]
    assert (verdict.verdict, bar.answer, bar.reason) == expected, claim
    assert (bar.kind, bar.at, bar.requests_per_second) == ("elsewhere", None, None)
    assert bar.message.startswith("attainment at trace: ")


def test_attainment_is_asked_for_at_the_trace_as_at_a_rate() -> None:
    judgement = replayed([(70, 90), (71, 90), (70, 90)], ATTAINS)
    (bar,) = bars(judgement, "improve")
    assert (bar.trace, bar.answer, bar.change) == (True, "Met", pytest.approx(0.59 / 3))
    assert [floor.metric.value for floor in judgement.noise_floor if floor.trace] == ["attainment"]
    assert not [bar for bar in bars(judgement, "elsewhere") if bar.trace], "once is enough"


@pytest.mark.parametrize(
    ("claim", "load", "requirement", "words"),
    [
        (
            "no offered load",
            {"points": [8]},
            {"metric": "attainment", "by": "5%"},
            "set load.requestsPerSecond",
        ),
        (
            "at requests in flight",
            LOAD,
            {"metric": "attainment", "at": [8], "by": "5%"},
            "leave at out",
        ),
        (
            "a trace among the prompts",
            {"points": [8], "prompts": {"configMap": "p"}, "trace": {"configMap": "p"}},
            {"by": "5%"},
            "every key there is a category",
        ),
        (
            "at a context",
            LOAD,
            {"metric": "attainment", "context": 512, "by": "5%"},
            "leave context out",
        ),
        (
            "a rate that is not offered",
            LOAD,
            {"metric": "ttftP99", "requestsPerSecond": [4, 3], "by": "5%"},
            r"requestsPerSecond names \[3.0\], which load.requestsPerSecond lacks",
        ),
        (
            "a named rate without any",
            {"points": [8]},
            {"metric": "ttftP99", "requestsPerSecond": [4], "by": "5%"},
            "set load.requestsPerSecond",
        ),
        (
            "requests in flight and a rate",
            LOAD,
            {"metric": "ttftP99", "at": [8], "requestsPerSecond": [4], "by": "5%"},
            "leave at out",
        ),
        (
            "the decode rate at a rate",
            LOAD,
            {"metric": "decodeRate", "requestsPerSecond": [4], "by": "5%"},
            "one request at a time",
        ),
        ("a rate of 0", {**LOAD, "requestsPerSecond": [0]}, {"by": "5%"}, "greater than 0"),
    ],
)
def test_a_requirement_without_its_offered_load_is_refused(
    claim: str, load: dict[str, Any], requirement: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        spec_of(load=load, improve=[requirement])
