"""Acceptance at every K from the few that were measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.acceptance import acceptance, from_survival, stale_after_zero
from tests.tuner.published import EAGLE, cell, length

CODING = (1.81, 2.40, 2.80, 3.06, 3.22, 3.30, 3.33)
MATH = (1.83, 2.50, 2.95, 3.28, 3.45, 3.61, 3.68)
SUMMARIES = (1.69, 2.11, 2.35, 2.46, 2.50, 2.52, 2.52)
"""Acceptance length at K = 1 to 7, each measured: speculators issue 563, Qwen3-8B with EAGLE3."""


def at(tokens: int, mean: float, **more: object) -> object:
    survival = [(mean - 1) / tokens] * tokens
    return cell(8, tokens, 0.01, survival, **more)


@pytest.mark.parametrize("measured", [CODING, MATH, SUMMARIES], ids=["coding", "math", "summaries"])
def test_three_measured_ks_give_the_published_lengths_of_all_seven(measured):
    found = acceptance(at(k, measured[k - 1]) for k in (1, 2, 7))
    assert found.lengths[1:] == pytest.approx(measured, rel=0.03)
    assert found.measured == (1, 2, 7)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_measured_k_keeps_its_measured_length(k):
    found = acceptance(at(k, CODING[k - 1]) for k in (1, 2, 7))
    assert found.lengths[k] == pytest.approx(CODING[k - 1], rel=1e-4)
    assert found.sd[k] < found.sd[4]


def test_the_prefix_is_exact_where_every_step_starts_afresh():
    assert from_survival(EAGLE) == pytest.approx([length(EAGLE, k) for k in range(8)])


def test_a_run_that_a_short_draft_cuts_goes_on_in_the_next_step():
    # Half of the steps accept 3 of 3, half none: 5 tokens in 2 steps. At K=1 the long run of 4
    # tokens takes 2 steps of its own: 5 tokens in 3 steps, more than the prefix's 1.5.
    assert from_survival([0.5, 0.5, 0.5])[1] == pytest.approx(5 / 3)


def test_one_more_k_pulls_the_estimate_of_its_neighbours():
    positions = {"acceptedByPosition": [round(4000 * 8 * s) for s in EAGLE]}
    long = cell(8, 7, 0.01, EAGLE, **positions)
    alone = acceptance([long])
    # n-gram drafts: at K=2 more is accepted than the long run tells.
    helped = acceptance([long, cell(8, 2, 0.01, [0.80, 0.55])])
    assert alone.lengths[2] == pytest.approx(length(EAGLE, 2), rel=1e-3)
    assert helped.lengths[2] == pytest.approx(2.35, rel=1e-3)
    assert alone.lengths[3] < helped.lengths[3] < alone.lengths[3] * 2.35 / alone.lengths[2]
    assert helped.lengths[7] == pytest.approx(alone.lengths[7])


def test_windows_of_one_k_are_pooled_by_their_drafts():
    many, few = cell(8, 1, 0.01, [0.8], steps=3000), cell(8, 1, 0.01, [0.4], steps=1000)
    assert acceptance([many, few]).lengths[1] == pytest.approx(1.7)


def test_a_position_is_accepted_of_the_drafts_that_reached_it():
    # 500 drafts of 4 tokens and 500 of one: position 3 is accepted in 200 of 500, not of 1000.
    long = cell(
        1, 4, 0.01, [0.8, 0.6, 0.4, 0.4], steps=500, acceptedByPosition=[400, 300, 200, 200]
    )
    short = cell(1, 1, 0.01, [0.8], steps=500, acceptedByPosition=[400])
    lengths = acceptance([long, short]).lengths
    assert lengths[3] - lengths[2] == pytest.approx(0.4, abs=0.02)
    varied = long.model_copy(update={"tokens": None})
    assert acceptance([varied]).measured == ()


def test_nothing_measured_means_no_drafts():
    assert acceptance([cell(8, 0, 0.01)]).lengths.tolist() == [1.0]


@given(
    st.dictionaries(
        st.integers(1, 12), st.tuples(st.integers(1, 10**6), st.floats(0, 1)), min_size=1
    )
)
def test_lengths_never_fall_with_k_and_stay_possible(measured):
    cells = []
    for tokens, (drafts, share) in measured.items():
        base = cell(1, tokens, 0.01)
        accepted = int(drafts * tokens * share)
        cells.append(base.model_copy(update={"drafts": drafts, "accepted_tokens": accepted}))
    found = acceptance(cells)
    assert len(found.lengths) == max(measured) + 1
    assert (np.diff(found.lengths) >= -1e-12).all()
    assert (found.lengths >= 1).all()
    assert (found.lengths <= 1 + np.arange(len(found.lengths)) + 1e-9).all()
    assert np.isfinite(found.sd).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_both_estimates_stay_possible_for_any_survival(survival):
    found = from_survival(sorted(survival, reverse=True))
    assert found[0] == pytest.approx(1.0)
    assert (found >= 1 - 1e-9).all()
    assert (found <= 1 + np.arange(len(found)) + 1e-9).all()


def zero() -> object:
    return cell(8, 0, 0.01)


def test_a_drafter_that_forgets_at_zero_is_found():
    usual, lost = cell(8, 2, 0.01, [0.7, 0.5]), cell(8, 2, 0.01, [0.5, 0.3])
    (found,) = stale_after_zero([usual, usual, zero(), lost, usual])
    assert "K=2" in found
    assert "1.80 in windows after K=0, 2.20 otherwise" in found


@pytest.mark.parametrize(
    ("why", "cells"),
    [
        ("as much is accepted as otherwise", [(2, 0.7), (2, 0.7), (0, 0), (2, 0.7)]),
        ("there is nothing to compare with", [(0, 0), (2, 0.2)]),
        (
            "a difference below five percent is no lost state",
            [(2, 0.7), (2, 0.7), (0, 0), (2, 0.67)],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_state_is_called_lost_where(why, cells):
    made = [cell(8, k, 0.01, [share, share / 2]) for k, share in cells]
    assert stale_after_zero(made) == []
