"""On a noisy machine nothing is told apart that only noise sets apart."""

from math import exp

import pytest

from specschedule.core.cost import PRIOR_NOISE, Graphs, Setting, Timed, noise
from specschedule.core.depth import flat
from specschedule.core.screen import allowance
from specschedule.core.sweep import sweep
from specschedule.core.tuner import propose
from specschedule.core.view import INDIFFERENT, view
from tests.tuner.published import cell, length, search
from tests.tuner.screened import screened

POINTS = (1, 8, 64)
CONTEXTS = (400, 4000)
SURVIVAL = (0.7, 0.4, 0.2)
SEEDS = range(8)


def pays(batch, tokens, context):
    """Drafts pay alone and cost in company, whatever the context."""
    return 6e-3 + (1.5e-3 * tokens + 5e-4) * (batch / 24) ** 2 + 1e-5 * batch * (tokens + 1)


def deep(batch, tokens, context):
    """Reading the context hides what drafts cost."""
    return pays(batch, tokens, context) + 4e-7 * batch * (context or 0)


def alike(batch, tokens, context):
    """Every K delivers the same within 1 %, but for K=0, which loses a third."""
    return 0.01 * length(SURVIVAL, tokens) * (1.0 + 0.003 * tokens if tokens else 1.5)


def wanted(*contexts):
    return search(POINTS, 3, contexts=contexts, max_model_len=32_768, graphs=Graphs(()))


def proposed(step, spread, seed, *contexts):
    asked = wanted(*contexts)
    cells, _ = screened(asked, step, noise=spread, seed=seed, survival=SURVIVAL)
    return propose(asked, cells), cells


def names(proposal):
    return {each.name for each in proposal.candidates}


@pytest.mark.parametrize("spread", [0.03, 0.1])
def test_noise_between_windows_makes_no_context_axis(spread):
    for seed in SEEDS:
        found, cells = proposed(pays, spread, seed, *CONTEXTS)
        assert "context" not in names(found), seed
        assert len(cells) <= allowance(wanted(*CONTEXTS))


def test_a_context_axis_is_found_through_noise_that_it_stands_out_of():
    found, _ = proposed(deep, 0.03, 1, *CONTEXTS)
    assert "context" in names(found)
    assert "context" in names(proposed(deep, 0.0, 0, *CONTEXTS)[0])


def test_a_flat_depth_sweep_leaves_the_other_contexts_alone():
    _, cells = proposed(pays, 0.01, 0, *CONTEXTS)
    beside = [c for c in cells if c.context == CONTEXTS[1]]
    assert sorted((c.profile.concurrency, c.tokens) for c in beside) == [
        (1, 0),
        (1, 3),
        (64, 0),
        (64, 3),
    ]
    # What is left of the budget is that of one context.
    assert len(cells) - len(beside) <= allowance(wanted(CONTEXTS[0]))
    _, cells = proposed(deep, 0.01, 0, *CONTEXTS)
    assert sum(c.context == CONTEXTS[1] for c in cells) > len(beside)


def test_the_zone_is_as_wide_as_the_noise_of_repeats():
    quiet = [cell(8, k, 0.01, SURVIVAL) for k in (0, 1, 2, 3)]
    loud = [cell(8, k, 0.01 * exp(x), SURVIVAL) for k in (0, 1, 2, 3) for x in (-0.08, 0.08)]
    narrow, wide = (view(search((8,), 3), sweep(cells)) for cells in (quiet, loud))
    assert narrow.zone == INDIFFERENT
    assert wide.zone == pytest.approx(1 - exp(-wide.forecast.steps.noise))
    assert 0.06 < wide.zone < 0.12


@pytest.mark.parametrize(("spread", "near"), [(0.003, [3]), (0.1, [1, 2, 3])])
def test_what_repeats_do_not_tell_apart_is_a_tie_and_keeps_the_smaller_k(spread, near):
    # K=3 looks 5 % better than K=1 in the mean of two windows each.
    gain = {0: 0.6, 1: 1.0, 2: 1.0, 3: 1.05}
    cells = [
        cell(b, k, 0.01 * length(SURVIVAL, k) / gain[k] * exp(x), SURVIVAL)
        for b in POINTS
        for k in gain
        for x in (-spread, spread)
    ]
    found = propose(wanted(), cells)
    assert all(choice.near == near for choice in found.choices)
    assert {choice.chosen for choice in found.choices} == {near[0]}


def test_a_noisy_screen_stops_within_its_budget_and_never_takes_what_loses():
    for seed in SEEDS:
        found, cells = proposed(alike, 0.06, seed)
        assert len(cells) <= allowance(wanted())
        assert 0 not in {choice.chosen for choice in found.choices}, seed


def windows(*changes):
    """Two settings, each at two contexts that differ by so much, with repeats as given."""
    return sweep(
        [
            cell(batch, 3, 0.01 * exp(x), SURVIVAL, context=context)
            for batch in (8, 64)
            for context, many in zip(CONTEXTS, changes, strict=True)
            for x in many
        ],
        contexts=CONTEXTS,
    )


FLAT = {
    "within the zone": (((0.0,), (0.015,)), True),
    "beyond it on a quiet machine": (((0.0,), (0.3,)), False),
    "no more than repeats differ": (((-0.08, 0.08, 0.01), (0.0, 0.06, 0.12)), True),
    "beyond what repeats differ by": (((-0.02, 0.02), (0.18, 0.22)), False),
}


@pytest.mark.parametrize(("changes", "is_flat"), FLAT.values(), ids=FLAT)
def test_decode_is_flat(changes, is_flat):
    said = flat(windows(*changes), INDIFFERENT)
    assert (said is not None) is is_flat


def test_where_nothing_was_measured_at_two_contexts_the_axis_is_not_told():
    cells = [cell(8, 3, 0.01, context=400), cell(64, 3, 0.02, context=4000)]
    assert "no setting was measured at two contexts" in flat(sweep(cells), INDIFFERENT)
    assert flat(sweep([cell(8, 3, 0.01)]), INDIFFERENT) is None


def test_noise_is_what_repeats_of_one_setting_show_and_not_what_settings_do():
    settings = [Setting(8, 1), Setting(8, 2), Setting(64, 1)]
    apart = [Timed(s, 0.01 * (1 + at)) for at, s in enumerate(settings)]
    assert noise(apart).sd == pytest.approx(PRIOR_NOISE)
    repeated = [Timed(s, t * exp(x)) for s, t in apart for x in (-0.1, 0.1) for _ in range(10)]
    assert noise(repeated).sd == pytest.approx(0.1, rel=0.05)
