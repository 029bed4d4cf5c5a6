"""Step time from few windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.acceptance import Acceptance
from specschedule.core.cost import (
    DEFAULT_GRAPH_SIZES,
    PRIOR_NOISE,
    Graphs,
    Setting,
    StepTimes,
    Timed,
)
from tests.tuner.published import EAGLE3, length

LENGTHS = Acceptance(np.array([length(EAGLE3, k) for k in range(8)]), np.zeros(8), (1, 2, 7))
SEEDS = [(1, 0), (1, 1), (1, 2), (1, 7), (64, 0), (64, 1), (64, 7), (8, 2), (8, 7)]


def linear(batch: int, tokens: int, context: int = 0) -> float:
    drafting = (1.5e-3 + tokens * 4e-4) if tokens else 1e-3
    return 6e-3 + 2e-5 * batch * (tokens + 1) + drafting + 4e-8 * batch * context


def fitted(step, seeds=SEEDS, graphs=Graphs(()), **more):
    return StepTimes([Timed(Setting(b, k), step(b, k)) for b, k in seeds], LENGTHS, graphs, **more)


def test_nine_windows_of_a_linear_engine_tell_all_the_others():
    model = fitted(linear)
    others = [Setting(b, k) for b in (1, 2, 4, 8, 16, 32, 64) for k in range(8)]
    truth = [linear(s.batch, s.tokens) for s in others]
    assert model.seconds(others) == pytest.approx(truth, rel=0.03)


def test_context_is_a_cost_per_token_read():
    seeds = [(b, k, c) for b, k in SEEDS for c in (1000, 8000)]
    windows = [Timed(Setting(b, k, c), linear(b, k, c)) for b, k, c in seeds]
    model = StepTimes(windows, LENGTHS, Graphs(()))
    between = [Setting(16, 3, 3000), Setting(32, 0, 3000)]
    assert model.seconds(between) == pytest.approx(
        [linear(s.batch, s.tokens, 3000) for s in between], rel=0.04
    )


def test_a_measured_setting_keeps_its_measured_time():
    model = fitted(lambda b, k: linear(b, k) * (1.3 if (b, k) == (8, 2) else 1.0))
    mean, covariance = model.predict([Setting(8, 2), Setting(24, 4)])
    assert np.exp(mean[0]) == pytest.approx(1.3 * linear(8, 2), rel=0.02)
    assert covariance[0, 0] < covariance[1, 1] / 4


def test_the_jump_above_the_largest_graph_is_learnt_from_both_sides():
    graphs = Graphs(tuple(range(8, 257, 8)))

    def cliff(batch, tokens):
        return linear(batch, tokens) + (6e-3 if batch * (tokens + 1) > 256 else 0.0)

    model = fitted(cliff, [*SEEDS, (64, 3), (64, 4), (48, 4), (48, 5)], graphs)
    below, above = model.seconds([Setting(40, 5), Setting(44, 5)])
    assert above - below == pytest.approx(6e-3, rel=0.25)


def test_repeats_tell_the_noise_and_steady_the_mean():
    once = [Timed(Setting(8, 2), 0.01), Timed(Setting(1, 0), 0.005)]
    loud = [Timed(Setting(8, 2), 0.01 * f) for f in (0.9, 1.1, 0.95, 1.05)] + once[1:]
    assert StepTimes(once, LENGTHS, Graphs(())).noise == pytest.approx(PRIOR_NOISE)
    model = StepTimes(loud, LENGTHS, Graphs(()))
    assert 0.04 < model.noise < 0.1
    assert model.seconds([Setting(8, 2)])[0] == pytest.approx(0.01, rel=0.03)


def test_more_windows_of_a_setting_make_it_surer():
    seeds = [*SEEDS, (32, 3)]
    _, one = fitted(linear, seeds).predict([Setting(32, 3)])
    _, three = fitted(linear, [*seeds, (32, 3), (32, 3)]).predict([Setting(32, 3)])
    assert three[0, 0] < one[0, 0]


@pytest.mark.parametrize(
    ("tokens", "padded"), [(1, 1), (3, 4), (5, 8), (257, 272), (512, 512), (513, 513)]
)
def test_a_step_is_padded_up_to_the_next_captured_graph(tokens, padded):
    graphs = Graphs(DEFAULT_GRAPH_SIZES)
    assert graphs.padded(tokens) == padded
    assert graphs.beyond(tokens) == (tokens > 512)


def test_rows_end_where_one_request_more_needs_the_next_graph():
    assert Graphs((1, 2, 4, 8, 16)).last_batches(5, 64) == {1, 2}
    assert Graphs((1, 2, 4, 8, 16)).last_batches(0, 8) == {1, 2, 4, 8}


SETTINGS = st.builds(
    Setting,
    st.integers(1, 512),
    st.integers(0, 7),
    st.one_of(st.none(), st.sampled_from([400, 4000])),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(SETTINGS, st.floats(1e-4, 10)), min_size=1, max_size=15),
    st.lists(SETTINGS, min_size=1, max_size=6),
)
def test_any_windows_give_finite_times_and_a_covariance(windows, asked):
    model = StepTimes([Timed(s, t) for s, t in windows], LENGTHS, Graphs(DEFAULT_GRAPH_SIZES))
    mean, covariance = model.predict(asked)
    assert np.isfinite(mean).all()
    assert (model.seconds(asked) > 0).all()
    assert covariance == pytest.approx(covariance.T, abs=1e-9)
    assert np.linalg.eigvalsh(covariance).min() > -1e-8


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(SETTINGS, st.floats(1e-4, 10)), min_size=1, max_size=15),
    st.lists(st.integers(1, 600), min_size=2, max_size=8),
    st.integers(0, 7),
)
def test_by_the_trend_no_step_is_shorter_than_one_of_fewer_requests(windows, batches, tokens):
    model = StepTimes([Timed(s, t) for s, t in windows], LENGTHS, Graphs(DEFAULT_GRAPH_SIZES))
    trend = model.trend([Setting(b, tokens) for b in sorted(batches)])
    assert (np.diff(trend) >= -1e-9 * trend[:-1]).all()


def test_a_padded_step_that_was_slow_once_is_not_slower_than_its_full_graph_by_the_trend():
    windows = [Timed(Setting(b, 0), t) for b, t in ((8, 0.009), (9, 0.014), (16, 0.010))]
    model = StepTimes(windows, LENGTHS, Graphs(DEFAULT_GRAPH_SIZES))
    padded, full = model.trend([Setting(9, 0), Setting(16, 0)])
    assert padded <= full
