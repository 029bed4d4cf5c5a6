"""Which windows a screening measures, and when it stops."""

from dataclasses import replace

import numpy as np
import pytest

from specschedule.core.choice import tokens_at
from specschedule.core.cost import Graphs, Setting
from specschedule.core.screen import (
    REPEATS,
    allowance,
    expected_regret,
    next_windows,
    none_settings,
    seeds,
)
from specschedule.core.sweep import sweep
from specschedule.core.view import view
from tests.tuner.published import EAGLE3, SGLANG_BATCHES, cell, search
from tests.tuner.screened import screened

POINTS = (1, 8, 64)
WANTED = search(POINTS, 5)


def engine(batch: int, tokens: int, context: int | None = None) -> float:
    """Seconds of a step of an engine that drafts pay for while it is idle."""
    busy = max(6e-3, 5e-5 * batch * (tokens + 1))
    return busy + (1e-3 + 4e-4 * tokens if tokens else 8e-4)


def test_seeds_hold_zero_one_two_and_the_largest():
    found = seeds(WANTED)
    assert {s.tokens for s in found if s.batch == 1} == {0, 1, 2, 5}
    assert {s.tokens for s in found if s.batch == 64} >= {0, 5}
    assert {s.batch for s in found} == set(POINTS)


def test_seeds_come_in_an_order_that_the_seed_decides():
    orders = [
        [ask.setting for ask in next_windows(replace(WANTED, seed=seed), []).asks]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_a_seed_that_was_measured_is_not_asked_for_again():
    done = [cell(1, 0, engine(1, 0))]
    assert Setting(1, 0) not in {ask.setting for ask in next_windows(WANTED, done).asks}


def test_a_window_that_does_not_count_is_measured_again():
    lost = cell(1, 0, engine(1, 0)).model_copy(update={"void": "engine restarted"})
    assert Setting(1, 0) in {ask.setting for ask in next_windows(WANTED, [lost]).asks}


def test_it_stops_within_a_fifth_of_the_full_grid():
    wanted = search((1, 4, 16, 64, 128), 7)
    cells, found = screened(wanted, engine, noise=0.01)
    assert len(cells) + REPEATS * len(none_settings(wanted)) <= 5 * 8 * 3 / 5
    assert "budget" in found.reason
    assert np.mean(regrets(wanted, cells)) < 0.01


def regrets(wanted, cells):
    """Return by load point what the best rows truly lose, as shares."""
    bands = view(wanted, sweep(cells)).best[None]
    lost = []
    for batch in wanted.points:
        rates = [(1 + sum(EAGLE3[:k])) / engine(batch, k) for k in range(wanted.max_tokens + 1)]
        lost.append(1 - rates[tokens_at(bands, batch)] / max(rates))
    return lost


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_becomes_slower_under_way_changes_the_choice_by_little(seed):
    wanted = search((1, 4, 16, 64, 128), 7, seed=seed)
    cells, _ = screened(wanted, engine, drift=0.05, noise=0.005, seed=seed)
    assert np.mean(regrets(wanted, cells)) <= 0.02


@pytest.mark.parametrize(
    ("points", "most"), [((1, 4, 16, 32, 64), 7), (SGLANG_BATCHES, 4), (SGLANG_BATCHES, 6)]
)
def test_a_screen_takes_a_fifth_of_the_full_grid_with_its_launch_without_speculation(points, most):
    wanted = search(points, most)
    windows = allowance(wanted) + REPEATS * len(none_settings(wanted))
    assert windows <= len(points) * (most + 1) * 3 / 5
    assert allowance(wanted) >= len(seeds(wanted)) + len(points)


def test_a_small_grid_still_gets_its_seeds_a_repeat_and_a_window_for_each_point():
    assert allowance(WANTED) == len(seeds(WANTED)) + 1 + len(POINTS)


def test_it_stops_early_where_nothing_is_left_to_gain():
    wanted = search((1, 4, 16, 64, 128), 7)
    cells, found = screened(wanted, step=lambda b, k, c: 0.001 * (1 + 3 * k))
    assert "too little" in found.reason
    assert len(cells) < allowance(wanted)
    assert found.expected_regret == pytest.approx(0.0, abs=1e-4)


def test_a_server_that_holds_no_load_point_is_told():
    found = next_windows(search((64,), 3, kv_cache_tokens=1000), [])
    assert found.asks == []
    assert "cannot hold" in found.reason


def test_what_is_proposed_has_been_measured():
    wanted = search((1, 4, 16, 64, 128), 7)
    cells, _ = screened(wanted, engine, noise=0.01)
    seen = view(wanted, sweep(cells))
    measured = {(c.profile.concurrency, c.tokens) for c in cells}
    assert {(b, tokens_at(seen.best[None], b)) for b in wanted.points} <= measured


LIMITS = {
    "more requests than run at once": {"max_num_seqs": 32},
    "more tokens than the KV cache holds": {"kv_cache_tokens": 64 * 180},
    "longer than a sequence may be": {"max_model_len": 258},
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_never_asked_for(limit):
    wanted = search(POINTS, 5, **({"max_num_seqs": 64} | limit))
    asked = {ask.setting for ask in next_windows(wanted, []).asks} | set(none_settings(wanted))
    assert asked == {s for s in asked if wanted.possible(s)}
    assert 0 < len(asked) < len(seeds(WANTED)) + len(none_settings(WANTED))


@pytest.mark.parametrize(
    ("setting", "possible"),
    [
        (Setting(64, 5, 1000), True),
        (Setting(65, 5, 1000), False),
        (Setting(64, 6, 1000), False),
        (Setting(64, 5, 2000), False),
        (Setting(2, 5, 8000), False),
        (Setting(2, 5, 7900), True),
    ],
)
def test_what_the_server_can_hold(setting, possible):
    wanted = search((64,), 5, kv_cache_tokens=100_000, max_model_len=8000)
    assert wanted.possible(setting) is possible


def test_a_cliff_at_the_largest_graph_is_found():
    def cliff(batch, tokens, context=None):
        return engine(batch, tokens) + (6e-3 if batch * (tokens + 1) > 128 else 0.0)

    wanted = search((1, 32, 64), 5, graphs=Graphs(tuple(range(8, 129, 8))))
    cells, _ = screened(wanted, cliff)
    bands = view(wanted, sweep(cells)).best[None]
    for batch in wanted.points:
        rates = [(1 + sum(EAGLE3[:k])) / cliff(batch, k) for k in range(6)]
        assert rates[tokens_at(bands, batch)] >= 0.97 * max(rates)


def test_a_depth_is_asked_for_however_many_windows_there_are_of_the_first_context():
    wanted = search((8,), 3, contexts=(400, 4000))
    alike = [cell(8, k, engine(8, k), context=400) for k in range(4)]
    asked = {ask.setting for ask in next_windows(wanted, alike).asks}
    assert asked == {Setting(8, 0, 4000), Setting(8, 3, 4000)}


def test_contexts_begin_with_a_depth_sweep():
    wanted = search((8, 64), 3, contexts=(400, 4000))
    found = seeds(wanted)
    assert {(s.batch, s.tokens) for s in found if s.context == 4000} == {
        (8, 0),
        (8, 3),
        (64, 0),
        (64, 3),
    }


def test_expected_regret_is_what_chance_says():
    mean = np.array([0.00, -0.01, -0.05])
    covariance = np.diag([0.01, 0.02, 0.01]) ** 2
    covariance[0, 1] = covariance[1, 0] = 5e-5
    lost, rival = expected_regret(mean, covariance, 0)
    drawn = np.random.default_rng(1).multivariate_normal(mean, covariance, 400_000)
    assert rival == 1
    assert lost == pytest.approx(np.maximum(drawn[:, 1] - drawn[:, 0], 0).mean(), rel=0.02)


def test_what_is_given_away_on_purpose_is_no_regret():
    mean, covariance = np.array([0.0, -0.015]), np.diag([0.001, 0.001]) ** 2
    assert expected_regret(mean, covariance, 1)[0] == pytest.approx(0.015, rel=0.01)
    assert expected_regret(mean, covariance, 1, zone=0.02)[0] < 1e-4
