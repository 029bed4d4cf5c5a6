"""What others measured and published, and what must be said of it."""

from itertools import permutations

import pytest

from specschedule.core.arms import arms
from specschedule.core.bands import band_of
from specschedule.core.compare import acceptance_length
from specschedule.core.evidence import Cell
from specschedule.core.judge import Judgement
from specschedule.core.target import ServerFacts

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


BATCH_ROWS = ((1, 64, 3), (65, 128, 1), (129, 512, 0))
TWO_D_ROWS = (
    (1, 64, 1, 768, 3),
    (1, 64, 769, 32768, 3),
    (65, 128, 1, 768, 1),
    (65, 128, 769, 32768, 1),
    (129, 512, 1, 768, 0),
    (129, 512, 769, 32768, 3),
)
"""The tier of 129 to 512 is printed; those of the batch-only schedule stand in for the others."""

SERVED = {
    NO_SPEC: (0,) * 4,
    STATIC_3: (3,) * 4,
    BATCH_ONLY: (0,) * 4,
    TWO_D: (0, 3, 3, 3),
}
"""K at 256 in flight, by context."""


def table_48944(
    candidate: tuple[float, ...],
    incumbent: tuple[float, ...],
    rows: tuple[tuple[int, ...], ...] = BATCH_ROWS,
) -> Run:
    """vLLM 48944 at 256 in flight: both position-balanced trials at the printed means."""
    spec = spec_of(
        schedule=rows,
        points=(256,),
        improve=[{"metric": "throughput", "at": [256], "by": "5%"}],
    )
    run = Run(spec)
    arms = {
        "candidate-card": candidate,
        "none": NO_SPEC,
        "static-3": STATIC_3,
        "incumbent": incumbent,
    }
    for number, order in ((1, list(arms)), (2, list(arms)[::-1])):
        for arm in order:
            rates = arms[arm]
            more = {}
            if arm == "incumbent" and rates == BATCH_ONLY:
                more["schedule"] = [list(row) for row in BATCH_ROWS]
            run.add(
                arm,
                number,
                [
                    cell((256, ctx), outputTokens=round(rate * 100), tokens=tokens)
                    for ctx, rate, tokens in zip(CONTEXTS, rates, SERVED[rates], strict=True)
                ],
                **more,
            )
    return run


@pytest.mark.parametrize(
    ("rows", "served"),
    [(BATCH_ROWS, BATCH_ONLY), (TWO_D_ROWS, TWO_D)],
    ids=["batch only", "two axes"],
)
def test_the_tokens_of_48944_are_what_the_rows_say(
    rows: tuple[tuple[int, ...], ...], served: tuple[float, ...]
) -> None:
    bands = [band_of(rows, 256, context) for context in CONTEXTS]
    assert tuple(band.tokens for band in bands if band) == SERVED[served]


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
    run = table_48944(TWO_D, BATCH_ONLY, TWO_D_ROWS)
    answer = run.judge(speculative={"num_speculative_tokens": 3})
    assert answer.outcome == "NotPromoted"
    assert answer.reason == "ControlBeatsCandidate"
    assert answer.recommendation.startswith("none: remove --speculative-config")
    controls = {control.arm: control for control in answer.verdicts[0].controls}
    assert controls["none"].beats
    assert controls["none"].count == 2
    bands = {bar.context: bar.band for bar in answer.verdicts[0].bars if bar.context}
    assert bands == dict(zip(CONTEXTS, ["129-512, K=0"] + ["129-512, K=3"] * 3, strict=True))


def test_the_two_d_schedule_pays_for_k0_at_short_contexts_only() -> None:
    taxes = table_48944(TWO_D, BATCH_ONLY, TWO_D_ROWS).judge().tax
    from_none = [(tax.tokens, tax.change) for tax in taxes if tax.what == "fromNone"]
    assert [tokens for tokens, _ in from_none] == [0, 3, 3, 3]
    assert [change for _, change in from_none] == pytest.approx(
        [-0.303, -0.057, 0.018, 0.094], abs=5e-4
    )
    # What a free K=0 would return: 1890.7 to 2711.7 tokens/s.
    assert [round(tax.change, 2) for tax in taxes if tax.what == "freeZero"] == [0.43]


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
    "s0": (144.0, 145.3, 150.8),
    "s1": (159.6, 262.5, 149.8),
    "s2": (138.3, 113.2, 99.8),
    "s3": (88.8, 127.7, 91.1),
}
"""Tokens/s by aggregator."""
REQUESTS = {
    "s0": (2000, 2000, 2000, 2000),
    "s1": (500, 500, 500, 800),
    "s2": (100, 100, 100, 8000),
    "s3": (100, 100, 8000, 8000),
}
"""Contexts of the four requests as they begin to decode."""
OUTPUT_TOKENS = 256
"""Not printed; any answer of 13 to 412 tokens tells the same."""
BY_CONTEXT = ((1, 32, 1, 512, 4), (1, 32, 513, 32768, 2))


def selected(aggregator: str, contexts: tuple[int, ...]) -> int | None:
    """Return the K that the engine's table holds all the time; None where it varies."""
    represented = {
        "median": sorted(contexts)[len(contexts) // 2],
        "mean": sum(contexts) // len(contexts),
        "max": max(contexts),
    }[aggregator]
    spec = spec_of(schedule=BY_CONTEXT, points=(4,), improve=[{"by": "5%"}])
    server = ServerFacts(
        container="server", max_num_seqs=32, speculative={"num_speculative_tokens": 4}
    )
    arm = next(arm for arm in arms(spec, server) if arm.name == "candidate-card")
    return arm.tokens(4, (represented, represented + OUTPUT_TOKENS))


def test_two_of_four_scenarios_select_one_k_and_the_median_of_another_holds_none() -> None:
    found = {
        name: tuple(selected(aggregator, contexts) for aggregator in AGGREGATORS)
        for name, contexts in REQUESTS.items()
    }
    assert found == {"s0": (2, 2, 2), "s1": (None, 2, 2), "s2": (4, 2, 2), "s3": (2, 2, 2)}


def aggregators(serving: str, candidate: str, launched: tuple[str, ...] = AGGREGATORS) -> Judgement:
    """The four scenarios as categories, each aggregator launched twice in balanced order."""
    spec = spec_of(
        schedule=BY_CONTEXT,
        points=(4,),
        improve=[
            {"metric": "throughput", "at": [4], "by": "5%", "category": name} for name in SCENARIOS
        ],
    )
    run = Run(spec)
    for number, order in ((1, launched), (2, launched[::-1])):
        for which in order:
            cells = []
            for name, rates in SCENARIOS.items():
                tokens = selected(which, REQUESTS[name])
                rate = rates[AGGREGATORS.index(which)]
                known = {} if tokens is None else {"tokens": tokens}
                cells.append(cell((4, name), outputTokens=round(rate * 100), **known))
            arm = {serving: "incumbent", candidate: "candidate-card"}.get(which, "candidate-third")
            run.add(arm, number, cells, schedule=spec.candidates[0].schedule)
    return run.judge()


@pytest.mark.parametrize(("serving", "candidate"), list(permutations(AGGREGATORS, 2)))
def test_no_aggregator_wins_where_two_of_four_scenarios_are_controls(
    serving: str, candidate: str
) -> None:
    answer = aggregators(serving, candidate)
    assert answer.outcome == "NotPromoted"
    bars = {bar.category: bar for bar in answer.verdicts[0].bars if bar.category}
    assert all(bar.answer != "Met" for bar in bars.values())
    for control in ("s0", "s3"):
        if (bars[control].change or 0.0) > 0:
            assert bars[control].reason == "SameConfiguration"


def test_the_gains_of_s1_and_s2_are_no_larger_than_what_equal_configurations_show() -> None:
    """Mean and max select one K in both, and differ by 75 % and 13 %: the table's own noise."""
    found = {
        (candidate, bar.category): (bar.reason, bar.change, bar.floor)
        for serving, candidate in (("median", "mean"), ("mean", "median"))
        for bar in aggregators(serving, candidate).verdicts[0].bars
        if (bar.change or 0.0) > 0 and bar.category in ("s1", "s2")
    }
    noise = {"s1": 262.5 / 149.8 - 1, "s2": 113.2 / 99.8 - 1}
    assert found == {
        ("mean", "s1"): (
            "BelowNoiseFloor",
            pytest.approx(262.5 / 159.6 - 1),
            pytest.approx(noise["s1"]),
        ),
        ("median", "s2"): (
            "BelowNoiseFloor",
            pytest.approx(138.3 / 113.2 - 1),
            pytest.approx(noise["s2"]),
        ),
    }
    third = {bar.category: bar.reason for bar in aggregators("max", "mean").verdicts[0].bars}
    assert third["s1"] == third["s2"] == "SameConfiguration"


@pytest.mark.parametrize(("serving", "candidate"), list(permutations(AGGREGATORS, 2)))
def test_s1_is_never_a_gain_for_its_context_crosses_512_after_some_tokens(
    serving: str, candidate: str
) -> None:
    """Not even on a bench whose relaunches never differ, with no third arm to show the noise."""
    bars = aggregators(serving, candidate, (serving, candidate)).verdicts[0].bars
    (s1,) = (bar for bar in bars if bar.category == "s1")
    assert s1.change is not None
    if s1.change < 0:
        assert s1.answer == "Lost"
    elif "median" in (serving, candidate):
        assert (s1.floor, s1.answer, s1.reason) == (0, "Unproven", "ContextCrossesRows")
    else:
        assert (s1.answer, s1.reason) == ("NotMet", "SameConfiguration")


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
