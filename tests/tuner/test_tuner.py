"""What is proposed, on published measurements and where it must not be fooled."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.evidence import Cell, Profile, Quantiles
from specschedule.core.proposal import MOST_NOTES, kept
from specschedule.core.schedule import effective
from specschedule.core.spec import Slo
from specschedule.core.tuner import NothingMeasured, propose
from tests.tuner import published
from tests.tuner.published import cell, search


def by_name(proposal):
    return {candidate.name: candidate for candidate in proposal.candidates}


PR_32374 = {
    "EAGLE": (published.EAGLE, [3, 3, 3, 2]),
    "EAGLE3": (published.EAGLE3, [4, 4, 4, 3]),
    "low acceptance": (published.LOW, [3, 3, 2, 0]),
}


@pytest.mark.parametrize(("survival", "best"), PR_32374.values(), ids=PR_32374)
def test_the_profile_of_pr_32374_gives_its_best_ks(survival, best):
    cells = published.from_steps(published.PR_32374_MS, survival)
    found = propose(search((1, 16, 32, 64), 7), cells)
    assert [choice.best for choice in found.choices] == best
    for choice in found.choices:
        assert choice.best in choice.near
        assert choice.chosen == min(choice.near)


@pytest.mark.parametrize(
    "rates", [published.QWEN3_235B, published.GLM_4_7], ids=["Qwen3-235B", "GLM-4.7"]
)
def test_the_tables_of_sglang_22246_give_no_k_that_loses_more_than_the_zone(rates):
    found = propose(
        search(published.SGLANG_BATCHES, max(rates)),
        published.from_rates(rates, published.SGLANG_BATCHES),
    )
    for at, choice in enumerate(found.choices):
        row = {k: rates[k][at] for k in rates}
        assert row[choice.best] >= 0.995 * max(row.values())
        assert row[choice.chosen] >= 0.975 * max(row.values())
    assert "K=0 was not measured" in " ".join(found.notes)
    assert all(row[2] for c in found.candidates for row in c.schedule or [])


def test_the_contexts_of_pr_48944_are_not_said_to_beat_no_speculation():
    wanted = search((256,), 3, contexts=published.CONTEXTS, max_num_seqs=512)
    found = propose(wanted, published.context_axis())
    best = by_name(found)["best"]
    # K=1 was never measured there: the answer is to measure it, not to claim a gain.
    assert best.over_none is not None
    assert best.over_none.low < 0
    assert any("cannot be told yet" in warning for warning in best.warnings)
    assert {ask.tokens for ask in found.measure_next} >= {1}


def test_no_speculation_leads_where_it_is_faster():
    points = (1, 64)
    cells = grid(lambda b, k: 0.01 * (1 + k), points, 2, (0.6, 0.3))
    cells += [cell(b, 0, 0.008, arm="none") for b in points]
    assert propose(search(points, 2), cells).lead == "none"


def experts(batch: int, tokens: int) -> float:
    """Seconds of a step after the One Line document: drafts pay alone and cost in company."""
    share = 6 / 256 * (tokens + 1) ** 0.81
    return 0.0136 + 0.83e-3 * batch * (tokens + 1) + 46.6e-3 * (1 - (1 - share) ** batch) + 4e-4


AGENTS = (0.80, 0.62, 0.50, 0.40, 0.33)
ONE_LINE_POINTS = (1, 2, 4, 8, 12, 16)


def grid(step, points, most, survival, **more):
    return [cell(b, k, step(b, k), survival, **more) for b in points for k in range(most + 1)]


def test_predictable_text_on_experts_gives_the_one_line():
    found = propose(search(ONE_LINE_POINTS, 5), grid(experts, ONE_LINE_POINTS, 5, AGENTS))
    best = by_name(found)["best"]
    table = effective(best.schedule, max_tokens=5, max_num_seqs=16)
    rate = {
        (b, k): b * published.length(AGENTS, k) / experts(b, k)
        for b in ONE_LINE_POINTS
        for k in range(6)
    }
    card = {b: 5 if b <= 2 else 1 for b in ONE_LINE_POINTS}
    ours = sum(rate[b, table.tokens(b)] / rate[b, card[b]] for b in ONE_LINE_POINTS)
    assert ours / len(ONE_LINE_POINTS) >= 0.995
    assert best.over_static is not None
    assert best.over_static.low > 0


def test_a_k_that_the_engine_does_not_start_with_is_named_and_gets_no_number():
    """Field case 14: among 1 to 4 the engine refuses K=2."""
    cells = published.from_steps(published.PR_32374_MS, published.LOW)
    wanted = search((1, 16, 32, 64), 7)
    assert 2 in {choice.best for choice in propose(wanted, cells).choices}
    cells = [each for each in cells if each.tokens != 2]
    found = propose(replace(wanted, unavailable={2: "GraphSizes: none is shared"}), cells)
    assert found.notes[0] == (
        "unavailable, so neither predicted nor proposed: K=2: GraphSizes: none is shared"
    )
    told = [choice.best for choice in found.choices]
    told += [k for choice in found.choices for k in choice.near]
    told += [each.tokens for c in found.candidates for each in c.predicted]
    told += [row[-1] for c in found.candidates for row in c.schedule or []]
    told += [length.tokens for length in found.acceptance]
    assert 2 not in told
    assert {1, 3, 4} <= set(told)
    # Field case 16: all in one line.
    block = dict.fromkeys(range(1, 7), "BlockSize: 7") | {2: "Exited"}
    only = [each for each in cells if each.tokens in (0, 7)]
    notes = propose(replace(wanted, unavailable=block), only).notes
    assert notes[0].endswith("K=1, 3, 4, 5, 6: BlockSize: 7; K=2: Exited")
    assert sum("unavailable" in note for note in notes) == 1


def crossing(batch: int, tokens: int) -> float:
    """Seconds of a step where drafting pays below about 24 in flight and never above."""
    return 6e-3 + (1.5e-3 * tokens + 5e-4) * (batch / 24) ** 2 + 1e-5 * batch * (tokens + 1)


def loses_later(points=(1, 8, 32, 64), **more):
    return propose(search(points, 4, **more), grid(crossing, points, 4, published.EAGLE3))


def test_a_variant_without_zero_is_always_there():
    found = by_name(loses_later())
    assert found["best"].schedule[-1][2] == 0
    assert all(row[2] > 0 for row in found["no-zero"].schedule)
    assert all(row[2] > 0 for row in found["conservative"].schedule)
    assert len(found["conservative"].schedule) <= len(found["best"].schedule)
    assert found["best"].max_tokens == max(row[2] for row in found["best"].schedule)


def test_equal_tables_are_listed_and_marked():
    points = (1, 8)
    found = propose(search(points, 2), grid(lambda b, k: 0.01, points, 2, (0.9, 0.8)))
    names = by_name(found)
    assert names["best"].schedule == [[1, 8, 2]]
    assert names["no-zero"].same_as == "best"
    assert found.lead == "static-2"


def test_every_schedule_is_one_that_the_engine_takes_as_it_is():
    for candidate in loses_later(max_num_seqs=256).candidates:
        if candidate.schedule is not None:
            table = effective(candidate.schedule, max_tokens=candidate.max_tokens, max_num_seqs=256)
            assert table.warnings == ()
            assert table.ranges == candidate.schedule


def test_rows_outside_the_measured_range_say_so():
    best = by_name(loses_later(max_num_seqs=256))["best"]
    assert best.schedule[-1][1] == 256
    assert any("65-256 were not measured" in warning for warning in best.warnings)
    cells = grid(crossing, (4, 8), 4, published.EAGLE3)
    low = by_name(propose(search((2, 8, 16), 4), cells))["best"]
    assert {p.at: p.basis for p in low.predicted} == {
        2: "extrapolated",
        8: "measured",
        16: "extrapolated",
    }
    assert any("1-3 were not measured" in warning for warning in low.warnings)


@pytest.mark.parametrize("undrafted", [0, 300, 30_000])
def test_a_measured_rate_is_predicted_though_many_steps_drafted_nothing(undrafted):
    cells = [cell(8, k, 0.01, undrafted=undrafted if k else 0) for k in range(3)]
    static = next(c for c in propose(search((8,), 2), cells).candidates if c.kind == "static")
    (predicted,) = static.predicted
    seen = cells[predicted.tokens]
    rate = seen.output_tokens / seen.window_seconds
    assert predicted.throughput.value == pytest.approx(rate, rel=0.005)


def test_a_drafter_that_seldom_finds_anything_is_judged_by_what_is_put_out():
    # 880 tokens a second at K=1 and 800 at K=0, though most of the tokens came without a draft.
    cells = [
        cell(8, 0, 0.01),
        cell(8, 1, 0.025, (0.5,), undrafted=40_000),
    ]
    (choice,) = propose(search((8,), 1), cells).choices
    assert (choice.best, choice.chosen) == (1, 1)


def test_the_largest_of_those_alike_is_a_candidate_of_its_own():
    seconds = {0: 0.015} | {k: 0.01 * published.length(published.EAGLE3, k) for k in (1, 2)}
    found = by_name(
        propose(search((1, 8), 2), grid(lambda b, k: seconds[k], (1, 8), 2, published.EAGLE3))
    )
    assert found["best"].schedule == [[1, 8, 1]]
    assert found["largest"].schedule == [[1, 8, 2]]
    assert found["largest"].same_as is None


def test_nothing_is_predicted_beyond_the_kv_cache():
    found = loses_later(kv_cache_tokens=32 * 260)
    assert {p.at for c in found.candidates for p in c.predicted} == {1, 8, 32}
    assert "64 in flight is beyond the KV cache" in " ".join(found.notes)


def test_the_largest_k_that_may_be_tried_is_kept():
    found = propose(search((1, 8), 2), grid(lambda b, k: 0.01, (1, 8), 4, published.EAGLE3))
    assert max(row[2] for c in found.candidates for row in c.schedule or []) == 2


def test_predictions_carry_what_was_measured():
    (first, *_) = by_name(loses_later())["best"].predicted
    length = published.length(published.EAGLE3, first.tokens)
    seconds = crossing(1, first.tokens)
    assert first.throughput.value == pytest.approx(length / seconds, rel=0.02)
    assert first.tpot_ms.value == pytest.approx(1000 * seconds / length, rel=0.02)
    assert first.goodput.value == pytest.approx(first.throughput.value / 128, rel=0.01)
    assert first.throughput.low < first.throughput.value < first.throughput.high
    assert (first.windows, first.basis) == (1, "measured")


# --- the SLO decides


def test_goodput_falls_off_the_edge_of_a_limit_before_throughput_does():
    # 64 requests at 10 ms a token: half of them miss a limit of 10 ms, nearly all one of 9 ms.
    cells = grid(crossing, (1, 64), 1, published.EAGLE3)
    seen = by_name(propose(search((1, 64), 1), cells))["static-1"].predicted[-1].tpot_ms.value
    shares = [
        by_name(propose(search((1, 64), 1, slo=Slo(tpot=seen / 1000 * f)), cells))[
            "static-1"
        ].predicted[-1]
        for f in (1.3, 1.0, 0.9)
    ]
    full, half, few = (128 * p.goodput.value / p.throughput.value for p in shares)
    assert full == pytest.approx(1.0, abs=0.01)
    assert half == pytest.approx(0.5, abs=0.05)
    assert few < 0.05


def test_a_hopeless_limit_leaves_throughput_to_rank():
    cells = grid(crossing, (1, 64), 4, published.EAGLE3)
    hopeless = propose(search((1, 64), 4, slo=Slo(tpot=1e-5)), cells)
    generous = propose(search((1, 64), 4), cells)
    assert [c.best for c in hopeless.choices] == [c.best for c in generous.choices]


def test_a_limit_on_the_first_token_speaks_against_long_steps():
    # K=4 gives a little more throughput for steps twice as long.
    def step(batch, tokens):
        return 0.01 if tokens < 4 else 0.02

    survival = (0.9, 0.0, 0.0, 0.0)
    even = (0.95, 0.95, 0.95, 0.95)
    cells = [
        *(cell(8, k, step(8, k), survival) for k in (0, 1)),
        cell(8, 4, step(8, 4), even),
    ]
    loose, tight = (
        propose(search((8,), 4, slo=Slo(ttft=limit, tpot=1.0)), cells).choices[0]
        for limit in (1.0, 0.02)
    )
    assert loose.best == 4
    assert tight.best < 4


def test_limits_that_no_cell_tells_are_named():
    cells = [
        c.model_copy(update={"ttft_ms": None}) for c in grid(crossing, (1, 8), 2, published.EAGLE3)
    ]
    found = propose(search((1, 8), 2, slo=Slo(ttft=0.5, tpot=0.05)), cells)
    assert any("no cell tells ttft" in note for note in found.notes)


# --- contexts


def by_context(per_context):
    contexts, points = (400, 4000), (16, 64)
    cells = [
        cell(b, k, crossing(b, k) + per_context(b, k, c), published.EAGLE3, context=c)
        for c in contexts
        for b in points
        for k in range(5)
    ]
    cells += [cell(b, 0, 7e-3, arm="none", context=c) for c in contexts for b in points]
    return propose(search(points, 4, contexts=contexts, max_model_len=32_768), cells)


def test_decode_that_is_flat_with_context_gets_no_five_number_schedule():
    found = by_context(lambda b, k, c: 0.0)
    assert "context" not in by_name(found)
    assert any("flat with context" in note for note in found.notes)
    assert {c.context for c in found.choices} == {None}


def test_long_contexts_that_hide_the_cost_of_drafts_raise_k():
    found = by_context(lambda b, k, c: 4e-7 * b * c)
    five = by_name(found)["context"]
    table = effective(five.schedule, max_tokens=five.max_tokens, max_num_seqs=64)
    assert table.tokens(64, 4000) > table.tokens(64, 400)
    assert max(row[3] for row in five.schedule) == 32_768
    assert any("mixed contexts" in warning for warning in five.warnings)


def test_a_context_that_changes_time_but_not_the_best_k_is_not_worth_five_numbers():
    found = by_context(lambda b, k, c: crossing(b, k) * c / 4000)
    assert "context" not in by_name(found)
    assert any("within the noise floor" in note for note in found.notes)


def test_lowering_k_for_short_contexts_carries_the_warning():
    found = by_context(lambda b, k, c: 4e-7 * b * c)
    best, five = (by_name(found)[name] for name in ("best", "context"))
    batch = effective(best.schedule, max_tokens=4, max_num_seqs=64)
    table = effective(five.schedule, max_tokens=4, max_num_seqs=64)
    assert table.tokens(64, 400) < batch.tokens(64)
    assert any(
        f"64 in flight and context 400 (K={table.tokens(64, 400)} instead of {batch.tokens(64)})"
        in w
        for w in five.warnings
    )


def test_raising_k_for_long_contexts_carries_no_warning_of_lowering():
    # Drafts lose far more at short contexts than they gain at long ones: K=0 is best by batch size.
    cells = [
        cell(b, k, 6e-3 * (1 + k * (2 if c == 400 else 0.5)), published.EAGLE3, context=c)
        for c in (400, 4000)
        for b in (16, 64)
        for k in range(3)
    ]
    wanted = search((16, 64), 2, contexts=(400, 4000), max_model_len=32_768)
    found = by_name(propose(wanted, cells))
    best, five = (
        effective(found[name].schedule, max_tokens=2, max_num_seqs=64)
        for name in ("best", "context")
    )
    assert [best.tokens(b) for b in (16, 64)] == [0, 0]
    assert [five.tokens(b, 400) for b in (16, 64)] == [0, 0]
    assert all(five.tokens(b, 4000) > 0 for b in (16, 64))
    warnings = found["context"].warnings
    assert not any("lowers K" in warning for warning in warnings)


def test_rows_by_context_outside_the_measured_range_say_so():
    five = by_name(by_context(lambda b, k, c: 4e-7 * b * c))["context"]
    assert (five.schedule[0][0], max(row[3] for row in five.schedule)) == (1, 32_768)
    for said in ("1-15 were not measured", "contexts below 400 and above 4000 were not measured"):
        assert any(said in warning for warning in five.warnings), said


def beyond_the_cache(contexts, **more):
    """Propose where 64 in flight gain from few drafts, and 64 at a long context were not measured.

    There, as far as a model can tell, reading the context hides what drafts cost.
    """
    cells = [
        cell(b, k, 6e-3 + 4e-7 * b * c + (8e-3 if b == 64 else 1e-4) * k, context=c)
        for c in contexts
        for b in (16, 64)
        for k in range(5)
        if b * c < 16 * 4064 + 1
    ]
    return by_name(propose(search((16, 64), 4, contexts=contexts, **more), cells))


def test_what_the_kv_cache_cannot_hold_chooses_no_k():
    assert "context" in beyond_the_cache((400, 4000)), "without a limit the model decides there"
    found = beyond_the_cache((400, 4000), kv_cache_tokens=16 * 4070)
    assert "context" not in found
    best, alone = (
        effective(each["best"].schedule, max_tokens=4, max_num_seqs=64)
        for each in (found, beyond_the_cache((400,)))
    )
    assert [best.tokens(b) for b in (16, 64)] == [alone.tokens(b) for b in (16, 64)] == [4, 1]


def test_no_gain_is_claimed_where_both_select_the_same_k():
    found = propose(search((1, 8), 2), grid(lambda b, k: 0.01, (1, 8), 2, (0.9, 0.8)))
    best = by_name(found)["best"]
    assert best.schedule == [[1, 8, 2]]
    assert best.over_static is not None
    assert (best.over_static.low, best.over_static.high) == (0.0, 0.0)


# --- what would make it lie


def test_a_drafter_that_loses_its_state_at_zero_is_told():
    fresh, lost = ((0.7, 0.5), (0.4, 0.2))
    order = [(2, fresh), (1, fresh), (2, fresh), (0, fresh), (2, lost), (1, fresh)]
    cells = [cell(8, k, 0.01, survival) for k, survival in order]
    assert any("loses its state" in note for note in propose(search((8,), 2), cells).notes)


def test_rows_without_drafts_warn_of_a_state_lost_there():
    fresh, lost = published.EAGLE3, (0.4, 0.3, 0.2, 0.1)
    cells = [
        cell(b, k, crossing(b, k), survival)
        for b in (1, 8, 32, 64)
        for k, survival in ((1, fresh), (2, fresh), (3, fresh), (4, fresh), (0, fresh), (1, lost))
    ]
    found = propose(search((1, 8, 32, 64), 4), cells)
    warned = {
        c.name for c in found.candidates if any("loses its state" in each for each in c.warnings)
    }
    assert "best" in warned
    assert warned == {
        c.name for c in found.candidates if any(row[-1] == 0 for row in c.schedule or [])
    }


def test_what_a_run_keeps_tells_more_than_what_was_left_out():
    fresh, lost = (0.7, 0.5), (0.4, 0.2)
    order = [(2, fresh), (1, fresh), (2, fresh), (0, fresh), (2, lost), (1, fresh)]
    cells = [cell(8, k, 0.01, s, context=c) for c in (400, 4000) for k, s in order]
    void = [cell(8, 1, 0.01, context=400, void=f"sends lagged {n}") for n in range(12)]
    found = kept(propose(search((8,), 2, contexts=(400, 4000)), [*void, *cells]))
    assert len(found.notes) == MOST_NOTES
    assert any("loses its state" in note for note in found.notes)
    assert any("flat with context" in note for note in found.notes)
    left_out = [note for note in found.notes if "is left out: void" in note]
    assert left_out[-1].startswith(f"{12 - len(left_out) + 1} more, such as: cell")


def test_what_a_run_keeps_predicts_the_lead_by_load_point():
    found = loses_later()
    predicted = {each.name: each.predicted for each in kept(found).proposed}
    assert predicted.pop(found.lead) == by_name(found)[found.lead].predicted != []
    assert not any(predicted.values())


def test_a_schedule_that_was_silently_off_teaches_nothing():
    # The engine drafted 5 whatever was asked for.
    off = [
        cell(b, 5, crossing(b, 5), published.EAGLE3).model_copy(update={"tokens": k})
        for b in (1, 8)
        for k in (0, 1, 2)
    ]
    with pytest.raises(NothingMeasured, match="were verified"):
        propose(search((1, 8), 2), off)


def test_adaptive_verification_is_proposed_where_it_is_supported():
    cells = grid(crossing, (1, 8), 2, published.EAGLE3)
    assert "adaptive" not in by_name(propose(search((1, 8), 2), cells))
    assert "adaptive" in by_name(propose(search((1, 8), 2), cells, adaptive=True))


COUNT = st.one_of(st.none(), st.integers(-5, 10**7))
ANY_CELL = st.builds(
    lambda **fields: Cell(cell="c", launch=1, offered=1, completed=1, **fields),
    arm=st.sampled_from(["probe", "none", "static-2", "constant-1", "candidate-x"]),
    profile=st.builds(
        Profile,
        kind=st.sampled_from(["hold", "hold", "hold", "depth", "open"]),
        concurrency=st.one_of(st.none(), st.integers(-1, 5000)),
        context=st.one_of(st.none(), st.integers(-1, 10**6)),
    ),
    tokens=st.one_of(st.none(), st.integers(-1, 70)),
    context=st.one_of(st.none(), st.integers(-1, 10**6)),
    window_seconds=st.floats(1e-6, 1e6),
    output_tokens=st.one_of(st.none(), st.integers(0, 10**9)),
    drafts=COUNT,
    draft_tokens=COUNT,
    accepted_tokens=COUNT,
    ttft_ms=st.one_of(
        st.none(), st.builds(Quantiles, p50=st.floats(-1, 1e6), p90=st.floats(-1, 1e6))
    ),
)
PLAUSIBLE = st.builds(
    cell,
    st.integers(1, 300),
    st.integers(0, 8),
    st.floats(1e-5, 10),
    arm=st.sampled_from(["probe", "probe", "none"]),
    context=st.sampled_from([None, None, 400, 4000]),
    steps=st.integers(1, 5000),
).filter(lambda c: c.output_tokens)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.one_of(ANY_CELL, PLAUSIBLE), max_size=10),
    st.lists(st.integers(1, 512), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(1, 512),
)
def test_any_cells_give_schedules_that_the_engine_takes_or_a_reason(cells, points, most, seqs):
    wanted = replace(search(points, most), max_num_seqs=seqs)
    try:
        found = propose(wanted, cells)
    except NothingMeasured:
        return
    for candidate in found.candidates:
        if candidate.schedule is not None:
            assert candidate.max_tokens <= most
            effective(candidate.schedule, max_tokens=candidate.max_tokens, max_num_seqs=seqs)
