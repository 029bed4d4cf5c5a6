"""Rule Sequential: looking after every round cannot promote by luck, and losses always count."""

from collections.abc import Sequence
from math import expm1, log1p
from typing import Any

import pytest

from specschedule.core import eprocess
from specschedule.core.judge import Judgement, settled
from specschedule.core.verdict import BarResult

from .recorded import Run, cell, spec_of

STANDARD = {"experiment": {"effort": "Standard"}}
AT_8 = [{"metric": "goodput", "at": [8], "by": "5%"}]


def judged(gains: Sequence[float], **spec: object) -> Judgement:
    """Judge rounds of a quiet bench (relaunches 0.5 % apart) with these gains."""
    run = Run(spec_of(points=(8,), **{"improve": AT_8, **STANDARD, **spec}))
    pairs = []
    for number, gain in enumerate(gains):
        base = 1000 * (1 + 0.005 * (number % 2))
        pairs.append(({8: base}, {8: base * (1 + gain)}))
    return run.pairs(pairs).judge()


@pytest.mark.parametrize(
    ("claim", "gains", "expected"),
    [
        ("five rounds of a large gain show it", [0.1] * 5, ("Better", "BarShown")),
        ("four cannot", [0.1] * 4, ("Inconclusive", "NotShown")),
        (
            "a gain that is shown but smaller than asked for is not better",
            [0.042] * 6,
            ("NotBetter", "GainNotReached"),
        ),
        ("no gain is shown to be none", [0.0] * 5, ("NotBetter", "GainNotReached")),
        ("a loss is shown", [-0.1] * 5, ("Worse", "LossShown")),
        (
            "a mean that three lucky rounds carry is not evidence",
            [0.3, -0.01, 0.3, 0.0, 0.3, -0.01],
            ("Inconclusive", "NotShown"),
        ),
        ("a collapse needs no second look", [-0.7, 0.1], ("Worse", "BandCollapsed")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdicts(claim: str, gains: Sequence[float], expected: tuple[str, str]) -> None:
    verdict = judged(gains).verdicts[0]
    assert (verdict.verdict, verdict.reason) == expected, claim


def test_evidence_once_reached_stays_but_the_mean_must_still_reach_the_bar() -> None:
    assert judged([0.1] * 5 + [0.09]).verdicts[0].verdict == "Better"
    assert judged([0.1] * 5 + [-0.3]).verdicts[0].verdict != "Better"


def test_each_candidate_tried_raises_the_evidence_needed() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8, **STANDARD))
    run.spec = run.spec.model_copy(
        update={
            "candidates": [
                *run.spec.candidates,
                run.spec.candidates[0].model_copy(update={"name": "other"}),
            ]
        }
    )
    number = 0
    for arm in ("candidate-card", "candidate-other"):
        for _ in range(5):
            number += 1
            both = [("incumbent", 1000.0), (arm, 1100.0)]
            for name, level in both if number % 2 else both[::-1]:
                run.add(name, number, [cell(8, level)])
    bars = {v.candidate: v.bars[0] for v in run.judge().verdicts}
    assert bars["card"].evidence_needed == bars["other"].evidence_needed == 40.0
    assert bars["other"].answer == "Unproven"


def test_the_margin_is_the_noise_floor_of_the_opening_where_that_is_larger() -> None:
    run = Run(spec_of(points=(8,), improve=AT_8, **STANDARD))
    pairs = []
    for number in range(8):
        base = 1000 * (1.06 if number % 2 else 1.0) if number < 5 else 1000.0
        pairs.append(({8: base}, {8: base * 1.2}))
    bar = run.pairs(pairs).judge().verdicts[0].bars[0]
    assert bar.margin == pytest.approx(0.06, abs=1e-6)


def test_an_open_answer_says_how_many_rounds_the_bar_will_need() -> None:
    bar = judged([0.1] * 3).verdicts[0].bars[0]
    assert bar.rounds_needed == 5
    assert bar.rounds_needed_for == pytest.approx(1.03**2 - 1)
    assert "needs about 5 rounds" in bar.message


def test_protect_needs_the_loss_shown_to_be_smaller() -> None:
    protect = [{"metric": "goodput", "at": [4], "within": "3%"}]
    answers = {}
    for rounds in (4, 6):
        run = Run(spec_of(points=(4, 8), improve=AT_8, protect=protect, **STANDARD))
        levels = ({4: 500.0, 8: 1000.0}, {4: 500.0, 8: 1100.0})
        bars = run.pairs([levels] * rounds).judge().verdicts[0].bars
        answers[rounds] = next(bar for bar in bars if bar.kind == "protect").answer
    assert answers == {4: "Unproven", 6: "Met"}


def test_elsewhere_fails_only_on_a_shown_loss() -> None:
    def lost(losses: Sequence[float]) -> str:
        run = Run(spec_of(points=(4, 8), improve=AT_8, **STANDARD))
        pairs = [({4: 500.0, 8: 1000.0}, {4: 500.0 * (1 - x), 8: 1100.0}) for x in losses]
        bars = run.pairs(pairs).judge().verdicts[0].bars
        return next(bar for bar in bars if bar.kind == "elsewhere").answer

    assert lost([0.08] * 4) == "Met"
    assert lost([0.08] * 5) == "Lost"
    assert lost([0.08, 0.08, 0.0, 0.08, 0.01, 0.08]) == "Met"


def at_4(kind: str, levels: Sequence[tuple[float, float]], **asked: Any) -> BarResult:
    """Judge rounds of (incumbent, candidate) at 4 in flight, beside a gain at 8."""
    run = Run(spec_of(points=(4, 8), improve=AT_8, **STANDARD, **asked))
    pairs = [({4: theirs, 8: 1000.0}, {4: ours, 8: 1100.0}) for theirs, ours in levels]
    bars = run.pairs(pairs).judge().verdicts[0].bars
    return next(bar for bar in bars if (bar.kind, bar.at) == (kind, 4))


QUIET = (500.0,) * 8
NOISY = (500.0, 530.0) * 4
"""The incumbent at 4 in flight: relaunches that never differ, and such 6 % apart."""


@pytest.mark.parametrize(
    ("claim", "incumbent", "loss", "within", "expected"),
    [
        ("a larger loss is shown", QUIET, 0.05, "3%", ("Lost", -0.03)),
        ("a loss at the very bound is neither", QUIET, 0.03, "3%", ("Unproven", -0.03)),
        ("3 % where none is named", QUIET, 0.0, None, ("Met", -0.03)),
        ("more than 3 % then is a loss", QUIET, 0.05, None, ("Lost", -0.03)),
        ("twice the floor of a noisy bench", NOISY, 0.05, None, ("Met", 1 / 1.06**2 - 1)),
        ("a named bound stays whatever the noise", NOISY, 0.2, "3%", ("Lost", -0.03)),
    ],
)
def test_protect_sequentially(
    claim: str,
    incumbent: Sequence[float],
    loss: float,
    within: str | None,
    expected: tuple[str, float],
) -> None:
    protect = {"metric": "goodput", "at": [4]} | ({"within": within} if within else {})
    levels = [(level, level * (1 - loss)) for level in incumbent]
    bar = at_4("protect", levels, protect=[protect])
    assert (bar.answer, bar.required) == (expected[0], pytest.approx(expected[1])), claim


def test_elsewhere_allows_what_the_incumbents_relaunches_show() -> None:
    losses = [0.045, 0.05] * 4
    quiet = [(level, level * (1 - loss)) for level, loss in zip(QUIET, losses, strict=True)]
    noisy = [(level, level * (1 - loss)) for level, loss in zip(NOISY, losses, strict=True)]
    bar = {"elsewhere": {"maxLoss": "2%"}}
    found = [at_4("elsewhere", levels, bar=bar) for levels in (quiet, noisy)]
    assert [each.answer for each in found] == ["Lost", "Met"]
    assert [each.margin for each in found] == pytest.approx([0.02, 1 - 1 / 1.06])


def test_a_judged_run_tells_the_interval_and_the_p_of_its_pairs() -> None:
    gains = [0.08, 0.1, 0.12, 0.09, 0.11]
    bar = judged(gains).verdicts[0].bars[0]
    bounds = eprocess.interval([log1p(gain) for gain in gains], seed=0)
    assert bounds is not None
    assert (bar.low, bar.high) == pytest.approx([expm1(bound) for bound in bounds])
    assert bar.low is not None
    assert bar.high is not None
    assert bar.low < sum(gains) / len(gains) < bar.high
    assert bar.p == 2 / 2**5
    once = judged([0.1]).verdicts[0].bars[0]
    assert (once.count, once.low, once.high, once.p) == (1, None, None, 1.0)


@pytest.mark.parametrize(("missing", "verdict"), [(1, "Better"), (2, "Inconclusive")])
def test_a_fifth_of_the_pairs_may_lack_a_window(missing: int, verdict: str) -> None:
    run = Run(spec_of(points=(8, 16), improve=AT_8, **STANDARD))
    for number in range(1, 9):
        for arm, level in (("incumbent", 1000.0), ("candidate-card", 1100.0)):
            cells = [cell(8, level), cell(16, level)]
            if arm != "incumbent" and number <= missing:
                cells[0]["void"] = "sends lagged 9 ms"
            run.add(arm, number, cells)
    assert run.judge().verdicts[0].verdict == verdict


def test_an_open_candidate_is_not_settled() -> None:
    assert settled(judged([0.1] * 4), "card") is None
    assert settled(judged([0.1] * 5), "card") == "Better"
