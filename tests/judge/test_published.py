"""What others measured and published, and what must be said of it."""

import pytest

from specschedule.core.compare import acceptance_length
from specschedule.core.evidence import Cell
from specschedule.core.judge import Judgement

from .recorded import Run, cell, spec_of

CARD = ((1, 2, 5), (3, 16, 1))


def one_line() -> Judgement:
    """'One Line, Thirty-Five Percent': four of six boots paired, two control boots beside them.

    C8, C1 and the other controls of tool-JSON are not printed there; levels in the ranges that
    the text gives stand in for them.
    """
    spec = spec_of(
        schedule=CARD,
        points=(1, 8, 16),
        protect=[{"metric": "decodeRate", "at": [1], "within": "1.5%"}],
    )
    run = Run(spec)

    def boot(arm: str, number: int, c1: float, c8: float, c16: float, tool: float) -> None:
        run.add(
            arm,
            number,
            [
                cell(1, c1 / 100, decode=c1),
                cell(8, c8),
                cell(16, c16),
                cell((1, "tool-json"), tool / 100, decode=tool),
                cell((1, "shell"), 1.6, decode=160.0),
            ],
        )

    boot("incumbent", 1, 123.8, 240.0, 317.6, 157.6)
    boot("candidate-card", 1, 123.1, 303.5, 430.8, 146.8)
    boot("incumbent", 2, 124.4, 241.5, 320.0, 158.7)
    boot("candidate-card", 2, 124.0, 304.1, 427.1, 146.5)
    boot("incumbent", 3, 123.9, 240.6, 318.4, 145.0)
    boot("incumbent", 4, 124.1, 240.9, 319.1, 159.0)
    return run.judge()


def test_one_line_is_promoted_by_every_pair() -> None:
    answer = one_line()
    assert (answer.outcome, answer.reason) == ("Promoted", "EveryPairMeetsBar")
    bars = {(bar.kind, bar.at): bar for bar in answer.verdicts[0].bars}
    assert bars["improve", 16].pairs == pytest.approx([430.8 / 317.6 - 1, 427.1 / 320.0 - 1])
    assert bars["improve", 16].band == "3-16, K=1"
    assert bars["protect", 1].answer == "Met"
    assert answer.recommendation == ""


def test_one_line_puts_tool_json_on_the_watch_list_with_its_spread() -> None:
    watched = {(w.metric.value, w.category): w for w in one_line().watch}
    tool = watched["decodeRate", "tool-json"]
    assert tool.at == 1
    assert tool.pairs == pytest.approx([146.8 / 157.6 - 1, 146.5 / 158.7 - 1])
    assert tool.change == pytest.approx(-0.0727, abs=1e-3)
    assert abs(tool.change) < tool.spread == pytest.approx(159.0 / 145.0 - 1)
    assert ("decodeRate", "shell") not in watched


def test_one_line_says_that_its_order_was_not_balanced() -> None:
    assert "OrderNotBalanced" in {note.reason for note in one_line().notes}


CONTEXTS = (400, 900, 1900, 4000)
NO_SPEC = (2711.7, 1987.1, 1815.2, 1535.9)
STATIC_3 = (2139.8, 1838.9, 1822.4, 1692.8)
BATCH_ONLY = (1875.6, 1453.5, 1416.6, 1232.8)
TWO_D = (1890.7, 1874.6, 1848.2, 1680.4)


def table_48944(candidate: tuple[float, ...], incumbent: tuple[float, ...]) -> Run:
    """vLLM 48944 at 256 in flight: both position-balanced trials at the printed means."""
    spec = spec_of(
        schedule=((1, 64, 3), (65, 128, 1), (129, 512, 0)),
        points=(256,),
        improve=[{"metric": "throughput", "at": [256], "by": "5%"}],
    )
    run = Run(spec)
    tokens = {"candidate-card": 0, "none": 0, "static-3": 3, "incumbent": 3}
    arms = {
        "candidate-card": candidate,
        "none": NO_SPEC,
        "static-3": STATIC_3,
        "incumbent": incumbent,
    }
    for number, order in ((1, list(arms)), (2, list(arms)[::-1])):
        for arm in order:
            run.add(
                arm,
                number,
                [
                    cell((256, ctx), outputTokens=round(rate * 100), tokens=tokens[arm])
                    for ctx, rate in zip(CONTEXTS, arms[arm], strict=True)
                ],
            )
    return run


@pytest.mark.parametrize("incumbent", [NO_SPEC, STATIC_3], ids=["none serves", "K=3 serves"])
def test_the_batch_only_schedule_is_worse_at_every_context(incumbent: tuple[float, ...]) -> None:
    answer = table_48944(BATCH_ONLY, incumbent).judge()
    verdict = answer.verdicts[0]
    assert (answer.outcome, verdict.verdict, verdict.reason) == (
        "NotPromoted",
        "Worse",
        "LossShown",
    )
    assert {bar.context: bar.answer for bar in verdict.bars if bar.context} == dict.fromkeys(
        CONTEXTS, "Lost"
    )


def test_the_batch_only_schedule_pays_the_published_tax_against_none() -> None:
    taxes = table_48944(BATCH_ONLY, STATIC_3).judge().tax
    found = [tax.change for tax in taxes if tax.what == "fromNone"]
    assert found == pytest.approx([-0.308, -0.269, -0.220, -0.197], abs=5e-4)
    bands = [tax.band for tax in taxes if tax.what == "fromNone"]
    assert bands == [f"129-512, context {context}" for context in CONTEXTS]
    returned = [tax.change for tax in taxes if tax.what == "freeZero"]
    assert returned[0] == pytest.approx(2711.7 / 1875.6 - 1, abs=1e-3)


def test_the_two_d_schedule_is_not_promoted_over_the_better_control() -> None:
    answer = table_48944(TWO_D, BATCH_ONLY).judge(speculative={"num_speculative_tokens": 3})
    assert answer.outcome == "NotPromoted"
    assert answer.reason == "ControlBeatsCandidate"
    assert answer.recommendation.startswith("none: remove --speculative-config")
    controls = {control.arm: control for control in answer.verdicts[0].controls}
    assert controls["none"].beats
    assert controls["none"].count == 2


def test_the_collapse_of_49548_names_its_band_and_is_not_averaged_away() -> None:
    spec = spec_of(
        schedule=((1, 4, 2), (5, 512, 0)),
        points=(1, 8),
        improve=[{"metric": "throughput", "at": [1], "by": "1%"}],
    )
    run = Run(spec)
    samples = zip((232, 231, 233), (24, 90, 157), strict=True)
    for number, (control, sample) in enumerate(samples, start=1):
        run.add(
            "incumbent",
            number,
            [cell(1, outputTokens=5000), cell(8, outputTokens=control * 100)],
        )
        run.add(
            "candidate-card",
            number,
            [cell(1, outputTokens=5960), cell(8, outputTokens=sample * 100)],
        )
    answer = run.judge()
    verdict = answer.verdicts[0]
    assert (answer.outcome, verdict.verdict, verdict.reason) == (
        "NotPromoted",
        "Worse",
        "BandCollapsed",
    )
    assert "5-512" in verdict.message
    assert "worst window 24 " in verdict.message
    gained = next(bar for bar in verdict.bars if bar.at == 1)
    assert gained.change == pytest.approx(0.192)


def test_one_row_of_measurements_is_enough_to_see_a_collapse() -> None:
    """vllm-ascend 16637: 333 to 107 tokens/s at 16 clients."""
    spec = spec_of(schedule=((1, 8, 3), (9, 32, 0)), points=(16,), improve=[{"by": "5%"}])
    answer = Run(spec).pairs([({16: 333.0}, {16: 107.0})]).judge()
    assert answer.verdicts[0].verdict == "Worse"
    assert "9-32" in answer.message
    assert "0.32" in answer.message


@pytest.mark.parametrize("effort", ["Quick", "Standard"])
def test_five_alternating_repeats_around_zero_are_inconclusive(effort: str) -> None:
    """vLLM 51466: +3 % at first, then no benefit in a controlled run."""
    changes = (0.03, -0.02, 0.01, -0.04, 0.0)
    spec = spec_of(
        points=(8,),
        improve=[{"metric": "goodput", "at": [8], "by": "3%"}],
        experiment={"effort": effort},
    )
    run = Run(spec).pairs([({8: 100.0}, {8: 100.0 * (1 + change)}) for change in changes])
    answer = run.judge()
    assert answer.outcome == "Inconclusive"
    bar = answer.verdicts[0].bars[0]
    assert bar.pairs == pytest.approx(list(changes))
    assert bar.floor == pytest.approx(1.01 / 0.96 - 1, abs=1e-3)
    for shown in ("+3.0%", "-2.0%", "+1.0%", "-4.0%", "+0.0%"):
        assert shown in answer.message


AGGREGATORS = ("median", "mean", "max")
SCENARIOS = {
    "s0": (2000, (144.0, 145.3, 150.8), (2, 2, 2)),
    "s1": (575, (159.6, 262.5, 149.8), (None, 2, 2)),
    "s2": (2075, (138.3, 113.2, 99.8), (4, 2, 2)),
    "s3": (4050, (88.8, 127.7, 91.1), (2, 2, 2)),
}
"""Tokens/s by aggregator and the K each selects; S1's median crosses a boundary: its K varies."""


def test_no_aggregator_wins_where_two_of_four_scenarios_are_controls() -> None:
    spec = spec_of(
        schedule=((1, 32, 1, 512, 4), (1, 32, 513, 32768, 2)),
        points=(4,),
        improve=[
            {"metric": "throughput", "at": [4], "by": "5%", "category": name} for name in SCENARIOS
        ],
    )
    run = Run(spec)
    for number, order in ((1, (0, 1, 2)), (2, (2, 1, 0))):
        for which in order:
            cells = [
                cell(
                    (4, name),
                    outputTokens=round(rates[which] * 100),
                    **({"tokens": tokens[which]} if tokens[which] is not None else {}),
                )
                for name, (_, rates, tokens) in SCENARIOS.items()
            ]
            arm = ("incumbent", "candidate-card", "candidate-max")[which]
            run.add(arm, number, cells, schedule=spec.candidates[0].schedule)
    answer = run.judge()
    bars = {bar.category: bar for bar in answer.verdicts[0].bars if bar.category}
    assert answer.outcome != "Promoted"
    for control in ("s0", "s3"):
        assert bars[control].answer != "Met"
    assert bars["s3"].reason == "SameConfiguration"
    assert bars["s3"].floor == pytest.approx(127.7 / 88.8 - 1, abs=1e-3)
    assert bars["s0"].floor == pytest.approx(150.8 / 145.3 - 1, abs=1e-3)


@pytest.mark.parametrize(
    ("counts", "length"),
    [
        ([(1000, 3000), (10, 0)], 3.970),
        ([(100, 300), (100, 0)], 2.5),
    ],
    ids=["two pods, one nearly idle", "two engines, one of them accepting nothing"],
)
def test_acceptance_is_pooled_over_counters(counts: list[tuple[int, int]], length: float) -> None:
    cells = [
        Cell.model_validate(
            {"arm": "a", "launch": 1, **cell(8, 1.0), "drafts": drafts, "acceptedTokens": accepted}
        )
        for drafts, accepted in counts
    ]
    assert acceptance_length(cells) == pytest.approx(length, abs=5e-4)
