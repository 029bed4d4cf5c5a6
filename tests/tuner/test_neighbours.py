"""Neighbours of a schedule: which there are, which are measured, and which are worth a test."""

import pytest

from specschedule.core.choice import grid
from specschedule.core.cost import DEFAULT_GRAPH_SIZES, Graphs, Setting
from specschedule.core.neighbours import neighbours, undecided
from specschedule.core.schedule import Band
from specschedule.core.screen import next_windows
from specschedule.core.sweep import sweep
from specschedule.core.tuner import propose
from specschedule.core.view import view
from tests.tuner.published import cell, length, search
from tests.tuner.screened import screened

POINTS = (1, 2, 3, 4, 8, 16)
SURVIVAL = (0.80, 0.62, 0.50, 0.40, 0.33)
ONE_LINE = [Band(1, 2, 5), Band(3, 16, 1)]
KS = range(6)


def where(sizes=DEFAULT_GRAPH_SIZES):
    return grid(dict.fromkeys(POINTS, 1.0), tokens=tuple(KS), max_num_seqs=16, graphs=Graphs(sizes))


def rows(bands):
    return [[b.first, b.last, b.tokens] for b in bands]


def of(best, **more):
    return [rows(bands) for bands, _ in neighbours(best, where(**more), tuple(KS))]


def test_the_switch_of_the_one_line_at_three_against_four_and_a_middle_row():
    found = of(ONE_LINE)
    assert [[1, 3, 5], [4, 16, 1]] in found
    assert [[1, 1, 5], [2, 16, 1]] in found
    assert [[1, 2, 5], [3, 4, 3], [5, 16, 1]] in found
    assert ONE_LINE not in found


def test_beyond_few_requests_rows_end_on_graphs_only():
    found = of([Band(1, 12, 3), Band(13, 16, 0)], sizes=(16, 32, 48, 64))
    ends = {row[1] for each in found for row in each[:-1] if row[1] > 8}
    assert ends <= {size // (k + 1) for size in (16, 32, 48, 64) for k in KS}


@pytest.mark.parametrize("best", [[Band(1, 16, 2)], [Band(1, 4, 1), Band(5, 16, 0)]])
def test_only_a_gap_between_two_ks_has_a_middle_row(best):
    assert all(len(each) == len(best) for each in of(best))


def engine(batch, tokens, context=None):
    """K=5 pays up to three in flight, or four: the two are nearly alike there."""
    length_of_one = length(SURVIVAL, tokens)
    worth = {1: 0.0, 2: 0.10, 3: 0.005, 4: -0.03}.get(batch, -0.25) * (tokens - 1) / 4
    return 0.01 * length_of_one * (1.4 if tokens == 0 else 1.0 - worth)


def seen(cells):
    return view(search(POINTS, 5), sweep(cells))


def measured(repeats, *more):
    settings = [(b, k) for b in POINTS for k in (0, 1, 2, 5)]
    return [cell(b, k, engine(b, k), SURVIVAL) for b, k in settings for _ in range(repeats)] + [
        cell(b, k, engine(b, k), SURVIVAL) for b, k in more
    ]


def compared(cells, best):
    model = seen(cells)
    return {e.what: e for e in undecided(best, model.grid, model.forecast, model.places)}


def test_what_the_windows_decide_is_not_worth_a_test():
    best = [Band(1, 3, 5), Band(4, 16, 1)]
    middle = "K=3 at 3 to 4, between K=5 and K=1"
    before = compared(measured(1), best)
    assert middle in before, "K=3 was never measured"
    after = compared(measured(4, *[(b, k) for b in (3, 4) for k in (3, 4)] * 4), best)
    assert after.keys() < before.keys()
    assert middle not in after


def test_what_could_not_matter_is_not_worth_a_test():
    best = [Band(1, 3, 5), Band(4, 16, 1)]
    # As little is known of K=5 at 4 as of K=5 at 3, and it is sure to lose.
    assert "K=5 up to 4, not 3" not in compared(measured(1), best)


def test_what_decides_is_measured_in_the_probe_launch():
    wanted = search((1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32), 5)
    cells, _ = screened(wanted, engine, survival=SURVIVAL)
    asked = [
        (at, ask)
        for at in range(10, len(cells))
        for ask in next_windows(wanted, cells[:at]).asks
        if ask.why.startswith("decides whether K=")
    ]
    assert asked
    measured_later = {
        (c.profile.concurrency, c.tokens) for at, _ in asked for c in cells[at : at + 3]
    }
    assert any((ask.concurrency, ask.tokens) in measured_later for _, ask in asked)


def test_an_undecided_neighbour_stands_right_after_the_best():
    found = propose(search(POINTS, 5), measured(1))
    names = [each.name for each in found.candidates]
    assert names[:2] == ["best", "boundary-1"]
    assert "the model cannot tell which is better" in found.candidates[1].why
    assert found.candidates[1].schedule != found.candidates[0].schedule


def test_where_nothing_is_left_to_decide_there_is_none():
    cells = [
        cell(b, k, 0.01 * (1 if b < 4 else 1 + 0.5 * k) * (2 - k / 5 if b < 4 else 1), SURVIVAL)
        for b in range(1, 17)
        for k in KS
        for _ in range(3)
    ]
    assert not [each for each in propose(search(POINTS, 5), cells).candidates
                if each.name.startswith("boundary")]  # fmt: skip


def test_the_settings_that_decide_are_both_ks_where_the_rows_differ():
    few = seen(measured(1))
    found = undecided(ONE_LINE, few.grid, few.forecast, few.places)
    assert found
    for each in found:
        ours, theirs = each.decides
        assert ours.batch == theirs.batch
        assert isinstance(ours, Setting)
        assert ours.tokens != theirs.tokens


def test_a_context_that_the_cache_cannot_hold_counts_for_nothing():
    cells = [
        cell(b, k, engine(b, k) * (1 if context == 400 else 3), SURVIVAL, context=context)
        for b in POINTS
        for k in (0, 1, 2, 5)
        for context in (400, 4000)
        if b * context <= 40_000
    ]
    roomy = view(search(POINTS, 5, contexts=(400, 4000)), sweep(cells))
    tight = view(search(POINTS, 5, contexts=(400, 4000), kv_cache_tokens=40_000), sweep(cells))
    largest = tight.grid.batches.index(max(POINTS))
    assert [float(tight.places[c][largest]) for c in (400, 4000)] == [1.0, 0.0]
    assert [float(roomy.places[c][largest]) for c in (400, 4000)] == [0.5, 0.5]
    found = undecided(ONE_LINE, tight.grid, tight.forecast, tight.places)
    for each in found:
        for setting in each.decides:
            assert setting.batch * (setting.context or 0) <= 40_000
