"""Histograms give bounds at real bucket edges, and nothing between."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.histogram import BetweenEdges, Bounds, attained, joint, quantile

ALL_FAST = {0.3: 1000.0, 0.5: 1000.0, inf: 1000.0}
SOME_STUCK = {0.3: 10.0, 0.5: 70.0, inf: 100.0}


def test_all_requests_in_the_first_bucket_are_below_its_edge_and_no_number() -> None:
    """vLLM 48175: interpolation read 297 ms out of a bucket that ends at 300 ms."""
    assert str(quantile(ALL_FAST, 0.99)) == "< 0.3 s"


def test_the_top_bucket_has_no_number_either() -> None:
    assert str(quantile(SOME_STUCK, 0.99)) == "> 0.5 s"
    assert str(quantile(SOME_STUCK, 0.5)) == "0.3-0.5 s"


def test_two_arms_inside_one_bucket_are_a_tie() -> None:
    assert quantile(ALL_FAST, 0.99) == quantile({0.3: 7.0, 0.5: 7.0, inf: 7.0}, 0.99)


def test_a_limit_at_an_edge_is_exact_and_one_between_is_refused() -> None:
    assert attained(SOME_STUCK, 0.5) == Bounds(0.7, 0.7)
    with pytest.raises(BetweenEdges, match=r"0\.4 s lies between the bucket edges 0\.3 and 0\.5"):
        attained(SOME_STUCK, 0.4)
    assert attained(SOME_STUCK, 0.4, bounds_accepted=True) == Bounds(0.1, 0.7)
    assert attained(SOME_STUCK, 0.1, bounds_accepted=True) == Bounds(0.0, 0.1)
    assert attained(SOME_STUCK, 9.0, bounds_accepted=True) == Bounds(0.7, 1.0)


@pytest.mark.parametrize("buckets", [{}, {0.3: 0.0, inf: 0.0}, {0.3: 5.0}])
def test_no_requests_are_no_quantile(buckets: dict[float, float]) -> None:
    with pytest.raises(ValueError, match="no requests"):
        quantile(buckets, 0.5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=50))
def test_the_true_joint_share_lies_within_the_bounds(requests: list[tuple[float, float]]) -> None:
    edges = (0.25, 0.5, 1.0, inf)
    n = len(requests)
    shares = [
        attained({edge: float(sum(r[at] <= edge for r in requests)) for edge in edges}, limit)
        for at, limit in ((0, 0.5), (1, 1.0))
    ]
    bounds = joint(shares)
    both = sum(r[0] <= 0.5 and r[1] <= 1.0 for r in requests) / n
    assert bounds.low - 1e-9 <= both <= bounds.high + 1e-9
