"""From scores to rows."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.core.choice import Grid, grid, near_best, rows, tokens_at
from specschedule.core.cost import DEFAULT_GRAPH_SIZES, Graphs
from specschedule.core.schedule import Band

BATCHES = (1, 2, 4, 8, 16)
KS = (0, 1, 2)


def where(batches=BATCHES, ends=None, weights=None) -> Grid:
    ends = ends or {k: frozenset(batches) for k in KS}
    weights = np.full(len(batches), 1 / len(batches)) if weights is None else weights
    return Grid(tuple(batches), weights, 1 / len(batches), ends)


def scores(*lost_by_batch):
    """Return scores from what each K loses at each batch size, in percent."""
    return np.log(1 - np.array(lost_by_batch) / 100)


def chosen(table, **more):
    found = rows(where(**more.pop("grid", {})), table, KS, zone=more.pop("zone", 0.02), **more)
    return [list(band[:3]) for band in found]


CASES = {
    "one K is best everywhere: one row": ([(9, 0, 9)] * 5, [[1, 16, 1]]),
    "the best K changes: a boundary between": (
        [(30, 9, 0), (30, 9, 0), (30, 0, 9), (30, 0, 9), (0, 9, 30)],
        [[1, 2, 2], [3, 8, 1], [9, 16, 0]],
    ),
    "of those alike, the smallest": ([(1.5, 1, 0)] * 5, [[1, 16, 0]]),
    "beyond the zone of indifference, the better one": ([(2.5, 1, 0)] * 5, [[1, 16, 1]]),
    "the boundary leaves the crossover to the smaller K": (
        [(9, 9, 0), (9, 3, 0), (9, 1, 0), (9, 0, 1), (9, 0, 9)],
        [[1, 2, 2], [3, 16, 1]],
    ),
}


@pytest.mark.parametrize(("lost", "expected"), CASES.values(), ids=CASES)
def test_rows(lost, expected):
    assert chosen(scores(*lost)) == expected


@pytest.mark.parametrize(("price", "drawn"), [(0.01, 3), (0.02, 1)])
def test_a_boundary_that_buys_less_than_it_costs_is_not_drawn(price, drawn):
    lost = [(9, 0, 9), (9, 0, 9), (9, 2.4, 0), (9, 0, 9), (9, 0, 9)]
    assert len(chosen(scores(*lost), price=price)) == drawn


def test_the_largest_of_those_alike_is_a_variant():
    assert chosen(scores(*[(1.5, 1, 0)] * 5), largest=True) == [[1, 16, 2]]


def test_a_dearer_boundary_means_fewer_tiers():
    lost = [(30, 9, 0), (30, 4, 0), (30, 0, 4), (9, 0, 9), (4, 0, 9)]
    assert len(chosen(scores(*lost))) == 2
    assert len(chosen(scores(*lost), price=0.5)) == 1


def test_a_row_ends_only_where_its_graph_is_full():
    ends = {0: frozenset({4}), 1: frozenset({4}), 2: frozenset({8})}
    lost = [(30, 9, 0), (30, 9, 0), (30, 0, 4), (30, 0, 4), (30, 0, 9)]
    assert chosen(scores(*lost), grid={"ends": ends}) == [[1, 8, 2], [9, 16, 1]]


@pytest.mark.parametrize(("batch", "expected"), [(1, 2), (3, 2), (4, 1), (16, 1), (99, 1)])
def test_the_last_band_goes_on(batch, expected):
    assert tokens_at([Band(1, 3, 2), Band(4, 16, 1)], batch) == expected


@pytest.mark.parametrize(
    ("lost", "near"), [((0, 1, 3), [0, 1]), ((3, 1, 0), [1, 2]), ((9, 0, 9), [1])]
)
def test_near_the_best(lost, near):
    assert near_best(scores(lost)[0], 0.02) == near


def test_a_one_line_boundary_is_possible_on_graph_sizes():
    found = grid(
        {1: 1.0, 2: 1.0, 16: 1.0},
        tokens=(0, 1, 5),
        max_num_seqs=16,
        graphs=Graphs(DEFAULT_GRAPH_SIZES),
    )
    assert 2 in found.ends[5]
    assert found.batches[-1] == 16
    assert found.weights.sum() == pytest.approx(1.0)


def test_time_weighs_most_at_the_load_points():
    found = grid({4: 3.0, 64: 1.0}, tokens=(0, 3), max_num_seqs=256, graphs=Graphs(()))
    weight = dict(zip(found.batches, found.weights, strict=True))
    assert sum(w for b, w in weight.items() if b <= 8) == pytest.approx(0.73, abs=0.04)
    assert weight[4] > 10 * weight[1]
    assert max(found.batches) == 64


def cost(table, weights, bands, zone, price, point):
    """The loss that rows() minimises, written anew."""
    total = price * point * (len(bands) - 1)
    for batch, row, weight in zip(BATCHES, table, weights, strict=True):
        k = tokens_at(bands, batch)
        alike = [i for i in range(len(KS)) if row[i] >= max(row) + np.log(1 - zone)]
        lost = 0.0 if k in alike else max(row) - row[k]
        total += weight * (lost + 5e-4 * abs(k - alike[0]))
    return total


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(*[st.floats(0, 40)] * 3), min_size=5, max_size=5),
    st.floats(0, 0.3),
)
def test_no_other_rows_lose_less(lost, price):
    table = scores(*lost)
    weights = np.full(5, 0.2)
    ours = rows(where(), table, KS, zone=0.02, price=price)
    best = min(
        cost(table, weights, bands, 0.02, price, 0.2)
        for count in range(5)
        for cut in combinations(BATCHES[:-1], count)
        for ks in product(KS, repeat=count + 1)
        if all(a != b for a, b in pairwise(ks))
        for bands in [
            [
                Band(first, last, k)
                for first, last, k in zip((1, *(c + 1 for c in cut)), (*cut, 16), ks, strict=True)
            ]
        ]
    )
    assert cost(table, weights, ours, 0.02, price, 0.2) == pytest.approx(best, abs=1e-9)
