"""The statistics under the judge, as properties that hold for every input."""

from itertools import product
from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.eprocess import evidence, interval, rounds_needed, sign_flip_p

differences = st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=12)
scales = st.floats(0.005, 0.1)


@settings(deadline=None, max_examples=40)
@given(differences, scales)
def test_evidence_is_the_mean_over_bets_of_products_and_never_forgets(
    x: list[float], scale: float
) -> None:
    bets = [factor / scale for factor in (0.5, 1, 2, 4, 8)]
    reached = [1.0] * len(bets)
    largest = 0.0
    for value in x:
        reached = [
            e * 2 / (1 + exp(min(700.0, -2 * bet * value)))
            for e, bet in zip(reached, bets, strict=True)
        ]
        largest = max(largest, sum(reached) / len(reached))
    assert evidence(x, scale=scale) >= largest * (1 - 1e-9)
    assert evidence([*x, -1.0], scale=scale) >= evidence(x, scale=scale) * (1 - 1e-12)


@settings(deadline=None, max_examples=40)
@given(differences, scales)
def test_one_pair_doubles_the_evidence_at_most(x: list[float], scale: float) -> None:
    assert evidence(x, scale=scale) <= 2.0 ** len(x) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.001, 0.2), min_size=1, max_size=7), scales)
def test_flipping_signs_by_fair_coins_is_a_fair_bet(sizes: list[float], scale: float) -> None:
    """The expectation over all signs of the evidence at any fixed pair is at most 1."""
    bets = np.array([0.5, 1, 2, 4, 8])[:, None] / scale
    total = 0.0
    for signs in product((-1, 1), repeat=len(sizes)):
        x = np.array(sizes) * np.array(signs)
        total += float(np.prod(2 / (1 + np.exp(-2 * bets * x)), axis=1).mean())
    assert total / 2 ** len(sizes) == pytest.approx(1.0)


def test_the_chance_of_ever_reaching_twenty_is_at_most_one_in_twenty() -> None:
    """Exact: every sequence of ten fair signs, looked at after every pair."""
    sizes = [0.01, 0.03, 0.02, 0.05, 0.01, 0.04, 0.02, 0.02, 0.03, 0.06]
    fooled = sum(
        evidence([size * sign for size, sign in zip(sizes, signs, strict=True)], scale=0.02) >= 20
        for signs in product((-1, 1), repeat=len(sizes))
    )
    assert fooled / 2 ** len(sizes) <= 0.05


@pytest.mark.parametrize(
    ("claim", "x", "least", "most"),
    [
        ("four perfect pairs are not enough", [1.0] * 4, 15.99, 16.0),
        ("five are", [1.0] * 5, 20.0, 32.0),
        ("a total loss ends a bet for good", [-inf] + [1.0] * 20, 0.0, 0.0),
        ("a total loss of the other side is one doubling", [inf], 2.0, 2.0),
        ("no pairs are no evidence", [], 1.0, 1.0),
    ],
)
def test_evidence_at_the_ends(claim: str, x: list[float], least: float, most: float) -> None:
    assert least <= evidence(x, scale=0.02) <= most, claim


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-0.2, 0.2).map(lambda x: round(x, 3)), min_size=1, max_size=10))
def test_sign_flip_p_counts_every_flip(x: list[float]) -> None:
    observed = abs(sum(x))
    sums = [
        sum(v * s for v, s in zip(x, signs, strict=True))
        for signs in product((-1, 1), repeat=len(x))
    ]
    expected = sum(abs(total) >= observed - 1e-12 for total in sums) / len(sums)
    assert sign_flip_p(x) == pytest.approx(expected)


def test_sign_flip_p_of_known_sets() -> None:
    assert sign_flip_p([0.1] * 6) == pytest.approx(2 / 2**6)
    assert sign_flip_p([0.1] * 24) == pytest.approx(2 / 2**24)
    assert sign_flip_p([0.0, 0.0]) == 1.0
    assert sign_flip_p([]) is None
    assert sign_flip_p([0.1, -inf]) is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=12), st.integers(0, 5))
def test_the_interval_holds_the_mean_and_repeats_by_seed(x: list[float], seed: int) -> None:
    low, high = interval(x, seed=seed) or (inf, -inf)
    assert min(x) - 1e-12 <= low <= sum(x) / len(x) + 1e-12
    assert sum(x) / len(x) - 1e-12 <= high <= max(x) + 1e-12
    assert interval(x, seed=seed) == (low, high)


def test_one_launch_has_no_interval() -> None:
    assert interval([0.1], seed=0) is None


def test_the_interval_covers_at_five_pairs_what_it_says() -> None:
    """A plain percentile bootstrap covers about 83 % here."""
    chance = np.random.default_rng(7)
    held = 0
    for run in range(1000):
        low, high = interval(list(chance.normal(0.05, 0.02, 5)), seed=run) or (0.0, 0.0)
        held += low <= 0.05 <= high
    assert 0.91 <= held / 1000 <= 0.98


@pytest.mark.parametrize(
    ("claim", "gain", "sd", "least", "most"),
    [
        ("five where the effect dwarfs the noise", 0.10, 0.01, 5, 5),
        ("more where it does not", 0.05, 0.02, 6, 20),
        ("many where noise is larger", 0.06, 0.05, 15, 60),
    ],
)
def test_rounds_needed(claim: str, gain: float, sd: float, least: int, most: int) -> None:
    rounds = rounds_needed(gain, margin=0.03, sd=sd, needed=20.0)
    assert rounds is not None, claim
    assert least <= rounds <= most, claim


@pytest.mark.parametrize(
    ("claim", "gain", "sd"),
    [("inside the margin", 0.03, 0.01), ("a fifth of the noise", 0.04, 0.05)],
)
def test_no_number_of_rounds_shows_it(claim: str, gain: float, sd: float) -> None:
    assert rounds_needed(gain, margin=0.03, sd=sd, needed=20.0) is None, claim


def test_more_candidates_need_more_rounds() -> None:
    one = rounds_needed(0.2, margin=0.03, sd=0.01, needed=20.0)
    three = rounds_needed(0.2, margin=0.03, sd=0.01, needed=60.0)
    assert (one, three) == (5, 6)
    assert log(60, 2) < 6
