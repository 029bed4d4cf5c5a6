"""The schedule language: refusals, the effective table, the canonical form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.schedule import (
    ScheduleError,
    effective,
    parse,
    speculative_config,
)

REFUSALS = {
    "a map of text ranges is the draft form of the feature": (
        {"1-8": 3, "9-16": 1},
        "NotRows",
        None,
    ),
    "no rows": ([], "Empty", None),
    "nothing": (None, "NotRows", None),
    "a number instead of a row": ([[1, 4, 2], 7], "NotRows", 1),
    "two numbers": ([[1, 8]], "WrongLength", 0),
    "four numbers": ([[1, 8, 2], [9, 16, 1, 4]], "WrongLength", 1),
    "a fraction": ([[1, 8, 2.5]], "NotInteger", 0),
    "a boolean is no number": ([[1, 8, True]], "NotInteger", 0),
    "a string is no number": ([[1, 8, "2"]], "NotInteger", 0),
    "NaN": ([[1, 8, float("nan")]], "NotInteger", 0),
    "three and five numbers mixed": ([[1, 16, 3], [17, 64, 1, 4096, 1]], "MixedLengths", 1),
    "batch size zero": ([[0, 8, 2]], "NotPositive", 0),
    "start past end": ([[8, 1, 3]], "Reversed", 0),
    "negative tokens": ([[1, 8, -1]], "NegativeTokens", 0),
    "overlap": ([[1, 8, 3], [8, 16, 1]], "Overlap", 1),
    "overlap hidden by order": ([[9, 16, 1], [1, 9, 3]], "Overlap", 1),
    "the same range twice": ([[1, 8, 3], [1, 8, 1]], "Overlap", 1),
    "not from one": ([[2, 8, 3]], "NotFromOne", 0),
    "not from one, unsorted": ([[9, 16, 1], [2, 8, 3]], "NotFromOne", 1),
    "context zero": ([[1, 8, 0, 4096, 1]], "ContextNotPositive", 0),
    "context reversed": ([[1, 8, 4096, 1, 1]], "ContextReversed", 0),
    "three of the four cells of a grid": (
        [[1, 16, 1, 4096, 3], [1, 16, 4097, 131072, 5], [17, 64, 1, 4096, 1]],
        "MissingCell",
        None,
    ),
    "the same cell twice": (
        [[1, 16, 1, 4096, 3], [1, 16, 1, 4096, 2]],
        "DuplicateCell",
        1,
    ),
    "contexts with a gap": (
        [[1, 16, 1, 4096, 3], [1, 16, 5000, 131072, 5]],
        "ContextGap",
        1,
    ),
    "contexts that overlap": (
        [[1, 16, 1, 4096, 3], [1, 16, 4000, 131072, 5]],
        "ContextOverlap",
        1,
    ),
    "contexts not from one": ([[1, 16, 100, 4096, 3]], "ContextNotFromOne", 0),
}


@pytest.mark.parametrize(("rows", "reason", "index"), REFUSALS.values(), ids=REFUSALS.keys())
def test_each_fault_has_its_own_reason_and_names_its_row(rows, reason, index):
    with pytest.raises(ScheduleError) as caught:
        parse(rows)
    assert (caught.value.reason, caught.value.row_index) == (reason, index)
    if index is not None:
        assert f"rows[{index}]" in caught.value.message


def test_a_context_gap_and_missing_cells_are_named():
    with pytest.raises(ScheduleError, match="4097-4999"):
        parse([[1, 16, 1, 4096, 3], [1, 16, 5000, 131072, 5]])
    with pytest.raises(ScheduleError, match=r"3 of 4 cells .*\[17, 64, 4097, 131072\]"):
        parse([[1, 16, 1, 4096, 3], [1, 16, 4097, 131072, 5], [17, 64, 1, 4096, 1]])


def test_of_many_missing_cells_three_are_named_and_the_rest_counted():
    rows = [[n, n, 10 * n - 9, 10 * n, 1] for n in range(1, 129)]
    with pytest.raises(ScheduleError) as caught:
        parse(rows)
    assert caught.value.message == (
        "128 of 16384 cells given: every batch range needs every context range; missing "
        "[1, 1, 11, 20], [1, 1, 21, 30], [1, 1, 31, 40] and 16253 more"
    )


@pytest.mark.parametrize("limits", [(0, 8), (4, 0), (True, 8), (4, -1)])
def test_limits_below_one_are_refused(limits):
    with pytest.raises(ScheduleError, match="at least 1"):
        effective([[1, 8, 3]], max_tokens=limits[0], max_num_seqs=limits[1])


TABLES = {
    "gaps and the tail carry the tokens before them": (
        [[1, 16, 3], [32, 64, 1]], 3, 128, [[1, 31, 3], [32, 128, 1]], {"Gap": 0, "Tail": 1},
    ),
    "tokens are cut to num_speculative_tokens, which may merge bands": (
        [[1, 4, 5], [5, 8, 3], [9, 16, 0]], 3, 16, [[1, 8, 3], [9, 16, 0]], {"Clamped": 0},
    ),
    "rows past max_num_seqs never run": (
        [[1, 8, 3], [9, 64, 1], [65, 512, 0]], 3, 32, [[1, 8, 3], [9, 32, 1]], {"Unreachable": 2},
    ),
    "a gap that max_num_seqs cuts off is the tail": (
        [[1, 8, 3], [64, 128, 1]], 3, 32, [[1, 32, 3]], {"Gap": 0, "Unreachable": 1},
    ),
    "unsorted rows are sorted": (
        [[9, 16, 1], [1, 8, 3]], 3, 16, [[1, 8, 3], [9, 16, 1]], {"Unsorted": 1},
    ),
    "zero everywhere is not the control without speculation": (
        [[1, 16, 0]], 3, 16, [[1, 16, 0]], {"AllZero": None},
    ),
    "zero within reach only": (
        [[1, 16, 0], [17, 32, 2]], 3, 16, [[1, 16, 0]], {"AllZero": None, "Unreachable": 1},
    ),
    "one batch size": ([[1, 1, 2]], 4, 1, [[1, 1, 2]], {}),
    "contexts": (
        [[1, 8, 1, 100, 2], [1, 8, 101, 200, 1], [16, 32, 1, 100, 1], [16, 32, 101, 200, 1]],
        4,
        64,
        [[1, 15, 1, 100, 2], [1, 15, 101, 200, 1], [16, 64, 1, 100, 1], [16, 64, 101, 200, 1]],
        {"Gap": 0, "Tail": 2},
    ),
    "long contexts raised": (
        [[1, 8, 1, 768, 0], [1, 8, 769, 32768, 3]],
        3,
        8,
        [[1, 8, 1, 768, 0], [1, 8, 769, 32768, 3]],
        {"ShortContext": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "max_tokens", "max_num_seqs", "ranges", "warnings"), TABLES.values(), ids=TABLES.keys()
)
def test_the_effective_table_says_what_runs(rows, max_tokens, max_num_seqs, ranges, warnings):
    table = effective(rows, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
    assert table.ranges == ranges
    assert {warned.reason: warned.row for warned in table.warnings} == warnings


def test_the_last_context_range_is_open_ended():
    rows = [[1, 8, 1, 100, 1], [1, 8, 101, 200, 2]]
    table = effective(rows, max_tokens=4, max_num_seqs=8)
    assert [table.tokens(3, context) for context in (0, 1, 100, 101, 200, 10**9)] == [
        1, 1, 1, 2, 2, 2,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="context"):
        table.tokens(3)
    with pytest.raises(IndexError):
        table.tokens(9, 1)
    with pytest.raises(IndexError):
        table.tokens(0, 1)


def test_bands_are_maximal_in_each_context():
    rows = [[1, 4, 1, 9, 2], [1, 4, 10, 99, 1], [5, 8, 1, 9, 0], [5, 8, 10, 99, 1]]
    bands = effective(rows, max_tokens=4, max_num_seqs=8).bands()
    assert bands == [(1, 4, 2, (1, 9)), (5, 8, 0, (1, 9)), (1, 8, 1, (10, 99))]
    assert effective([[1, 2, 5], [3, 16, 1]], max_tokens=5, max_num_seqs=16).bands() == [
        (1, 2, 5, None),
        (3, 16, 1, None),
    ]


SAME = {
    "a split row": ([[1, 8, 3]], [[1, 4, 3], [5, 8, 3]]),
    "a gap": ([[1, 8, 3], [9, 16, 1]], [[1, 2, 3], [9, 9, 1]]),
    "a row beyond reach": ([[1, 16, 3]], [[1, 16, 3], [17, 32, 0]]),
    "tokens beyond the cap": ([[1, 16, 4]], [[1, 16, 9]]),
    "contexts without effect": ([[1, 16, 2]], [[1, 16, 1, 99, 2], [1, 16, 100, 200, 2]]),
    "another open end": (
        [[1, 9, 1, 9, 1], [1, 9, 10, 99, 2]],
        [[1, 9, 1, 9, 1], [1, 9, 10, 10, 2]],
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_schedules_with_the_same_table_are_the_same_candidate(one, other):
    a, b = (effective(rows, max_tokens=4, max_num_seqs=16) for rows in (one, other))
    assert a.canonical == b.canonical
    assert a.identity == b.identity


def test_schedules_with_different_tables_are_different_candidates():
    tables = [
        effective(rows, max_tokens=4, max_num_seqs=16)
        for rows in (
            [[1, 16, 3]],
            [[1, 15, 3], [16, 16, 2]],
            [[1, 16, 1, 9, 3], [1, 16, 10, 20, 2]],
            [[1, 16, 1, 10, 3], [1, 16, 11, 20, 2]],
        )
    ]
    assert len({table.identity for table in tables}) == 4


def test_a_speculative_config_changes_only_how_many_tokens_are_drafted():
    base = {
        "model": "d",
        "num_speculative_tokens": 5,
        "custom": {"x": 1},
        "num_speculative_tokens_per_batch_size": [[1, 8, 2]],
        "method": "eagle3",
    }
    new = speculative_config(base, max_tokens=3, rows=[(1, 4, 3), (5, 16, 0)])
    assert list(new) == list(base)
    assert new == base | {
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 16, 0]],
    }
    static = speculative_config(base, max_tokens=3, rows=None)
    assert static == {
        "model": "d",
        "num_speculative_tokens": 3,
        "custom": {"x": 1},
        "method": "eagle3",
    }
    assert speculative_config(None, max_tokens=1, rows=None) == {"num_speculative_tokens": 1}
    assert base["num_speculative_tokens"] == 5


@st.composite
def three_number_rows(draw):
    edges = sorted(draw(st.sets(st.integers(2, 80), max_size=8)))
    rows, first = [], 1
    for edge in [*edges, draw(st.integers(81, 120))]:
        rows.append([first, draw(st.integers(first, edge - 1)), draw(st.integers(0, 8))])
        first = edge
    return draw(st.permutations(rows))


@given(three_number_rows(), st.integers(1, 8), st.integers(1, 130))
def test_every_batch_size_gets_the_tokens_of_the_last_row_that_has_begun(rows, cap, max_num_seqs):
    table = effective(rows, max_tokens=cap, max_num_seqs=max_num_seqs)
    for batch in range(1, max_num_seqs + 1):
        begun = max((row for row in rows if row[0] <= batch), key=lambda row: row[0])
        assert table.tokens(batch) == min(cap, begun[2])
    covered = [b for first, last, _ in table.ranges for b in range(first, last + 1)]
    assert covered == list(range(1, max_num_seqs + 1))
    assert all(a[2] != b[2] for a, b in zip(table.ranges, table.ranges[1:], strict=False))
    again = effective(table.ranges, max_tokens=cap, max_num_seqs=max_num_seqs)
    assert again.identity == table.identity
    assert [w for w in again.warnings if w.reason != "AllZero"] == []


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=30,
)
rowlike = st.lists(st.lists(st.integers(-2, 20), min_size=2, max_size=6), max_size=8)


@pytest.mark.fuzz
@given(anything | rowlike, st.integers(-1, 10), st.integers(-1, 40))
def test_any_input_is_a_table_or_a_refusal_with_a_reason(rows, cap, max_num_seqs):
    try:
        refused = None
        table = effective(rows, max_tokens=cap, max_num_seqs=max_num_seqs)
    except ScheduleError as error:
        refused = error
    if refused:
        assert refused.reason
        assert refused.message
    else:
        assert table.ranges[0][0] == 1
