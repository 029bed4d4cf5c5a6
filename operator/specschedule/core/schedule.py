"""The schedule language of vLLM's ``num_speculative_tokens_per_batch_size``.

Rows are ``[first, last, tokens]`` by batch size or ``[first, last, contextFirst, contextLast,
tokens]`` by batch size and mean context; every range is inclusive. ``effective`` answers what the
engine does with them at each batch size, which is often not what the rows say: gaps and the tail
carry the tokens before them, tokens are cut to ``num_speculative_tokens``, and rows beyond
``max_num_seqs`` never run.

Three-number rows follow vLLM 0.32 (``vllm/v1/spec_decode/dynamic/utils.py``), five-number rows
vLLM pull request 48944. Standard library only: the engine plugins import this module too.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

ROWS = "num_speculative_tokens_per_batch_size"
"""Key of a speculative config that holds the rows."""
TABLE_KEY = "specschedule"
"""Key of vLLM's additional config that holds the table of our context-axis scheduler."""

EMPTY = "Empty"
NOT_ROWS = "NotRows"
WRONG_LENGTH = "WrongLength"
NOT_INTEGER = "NotInteger"
MIXED_LENGTHS = "MixedLengths"
NOT_POSITIVE = "NotPositive"
REVERSED = "Reversed"
NEGATIVE_TOKENS = "NegativeTokens"
OVERLAP = "Overlap"
NOT_FROM_ONE = "NotFromOne"
CONTEXT_NOT_POSITIVE = "ContextNotPositive"
CONTEXT_REVERSED = "ContextReversed"
CONTEXT_OVERLAP = "ContextOverlap"
CONTEXT_NOT_FROM_ONE = "ContextNotFromOne"
CONTEXT_GAP = "ContextGap"
DUPLICATE_CELL = "DuplicateCell"
MISSING_CELL = "MissingCell"
BAD_LIMIT = "BadLimit"

UNSORTED = "Unsorted"
CLAMPED = "Clamped"
UNREACHABLE = "Unreachable"
GAP = "Gap"
TAIL = "Tail"
ALL_ZERO = "AllZero"
SHORT_CONTEXT = "ShortContext"


class ScheduleError(ValueError):
    """Rows that no engine can follow.

    Attributes:
        reason: One of this module's constants.
        row_index: Index of the row at fault, from 0; None when no single row is.
        message: The row and what is wrong with it.
    """

    def __init__(self, reason: str, row_index: int | None, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.row_index = row_index
        self.message = message


class Warned(NamedTuple):
    """Something the engine does that the rows do not say."""

    reason: str
    row: int | None
    message: str

    def plain(self) -> dict[str, str | int | None]:
        """Return JSON-ready data."""
        return {"reason": self.reason, "row": self.row, "message": self.message}


class Band(NamedTuple):
    """A maximal range of batch sizes with one K (in one context range)."""

    first: int
    last: int
    tokens: int
    context: tuple[int, int] | None = None
    """First and last context; the last range of a table has no upper end in the engine."""


class _Row(NamedTuple):
    at: int
    batch: tuple[int, int]
    context: tuple[int, int] | None
    tokens: int
    text: str


@dataclass(frozen=True)
class Schedule:
    """Valid rows, in the order in which the engine reads them.

    ``contexts`` is None for three-number rows. ``grid`` holds for each batch range its tokens,
    one per context range (one in all without contexts).
    """

    rows: tuple[_Row, ...]
    contexts: tuple[tuple[int, int], ...] | None
    grid: tuple[tuple[tuple[int, int], tuple[int, ...]], ...]
    warnings: tuple[Warned, ...]

    @property
    def largest(self) -> int:
        """The largest tokens of any row."""
        return max(row.tokens for row in self.rows)


@dataclass(frozen=True)
class EffectiveTable:
    """What the engine does at batch sizes 1 to ``max_num_seqs``.

    ``starts`` holds the first batch size of each band and ``columns`` its tokens, one per
    context range.
    """

    max_tokens: int
    max_num_seqs: int
    contexts: tuple[tuple[int, int], ...] | None
    starts: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    warnings: tuple[Warned, ...]

    @property
    def ranges(self) -> list[list[int]]:
        """Merged rows that cover 1 to ``max_num_seqs``, in the form the schedule was given."""
        out = []
        for first, last, column in self._spans():
            if self.contexts is None:
                out.append([first, last, column[0]])
            else:
                out.extend(
                    [first, last, *context, tokens]
                    for context, tokens in zip(self.contexts, column, strict=True)
                )
        return out

    def tokens(self, batch: int, context: int | None = None) -> int:
        """Return K at a batch size, and at a mean context where the table has contexts.

        Raises:
            IndexError: The batch size is not between 1 and ``max_num_seqs``.
            ValueError: The table has contexts and none is given.
        """
        if not 1 <= batch <= self.max_num_seqs:
            raise IndexError(f"batch size {batch} is not between 1 and {self.max_num_seqs}")
        column = self.columns[bisect_right(self.starts, batch) - 1]
        if self.contexts is None:
            return column[0]
        if context is None:
            raise ValueError("this table depends on the context: give one")
        firsts = [first for first, _ in self.contexts]
        return column[max(0, bisect_right(firsts, context) - 1)]

    def bands(self) -> list[Band]:
        """Return the bands, by context range first and batch size second."""
        contexts: Sequence[tuple[int, int] | None] = self.contexts or [None]
        out: list[Band] = []
        for at, context in enumerate(contexts):
            for first, last, column in self._spans():
                before = out[-1] if out else None
                if before and before.context == context and before.tokens == column[at]:
                    out[-1] = before._replace(last=last)
                else:
                    out.append(Band(first, last, column[at], context))
        return out

    @property
    def canonical(self) -> tuple[tuple[int, ...], ...]:
        """Equal for two schedules exactly when the engine treats them alike.

        Rows (first batch, last batch, first context, tokens); context ranges that never differ
        are one, and a table that ignores the context equals its three-number form.
        """
        firsts = [first for first, _ in self.contexts or ((1, 0),)]
        kept = [
            at
            for at in range(len(firsts))
            if at == 0 or any(column[at] != column[at - 1] for column in self.columns)
        ]
        return tuple(
            (first, last, firsts[at], column[at])
            for first, last, column in self._spans()
            for at in kept
        )

    @property
    def identity(self) -> str:
        """Ten hex digits that name what a launch runs: the table, and how many tokens at most.

        The largest K counts where no batch size reaches it too: drafters that ignore K draft as
        many, and the engine keeps room and captures graphs for them.
        """
        named = json.dumps([self.max_tokens, *self.canonical])
        return hashlib.sha256(named.encode()).hexdigest()[:10]

    def _spans(self) -> Iterable[tuple[int, int, tuple[int, ...]]]:
        ends = [start - 1 for start in self.starts[1:]] + [self.max_num_seqs]
        return zip(self.starts, ends, self.columns, strict=True)


def parse(rows: object) -> Schedule:
    """Return the schedule that rows of plain data describe.

    Unsorted rows are accepted, as vLLM sorts them, with a warning.

    Raises:
        ScheduleError: The rows are not a schedule, each fault with its own reason.
    """
    read = _read(rows)
    batches = _separate(
        {row.batch: row for row in read}, "batch", OVERLAP, "batch sizes must not overlap"
    )
    if batches[0][0] != 1:
        first = min(read, key=lambda row: row.batch)
        raise ScheduleError(
            NOT_FROM_ONE,
            first.at,
            f"{first.text}: the first row starts at batch size {batches[0][0]}; it must start at 1",
        )
    contexts = None if read[0].context is None else _contexts(read)
    cells = _cells(read, batches, contexts)
    grid = tuple(
        (batch, tuple(cells[batch, context].tokens for context in contexts or (None,)))
        for batch in batches
    )
    ordered = tuple(sorted(read, key=lambda row: (row.batch, row.context or (0, 0))))
    warnings = [
        Warned(UNSORTED, b.at, f"{b.text} is written after {a.text}; the engine sorts the rows")
        for a, b in pairwise(read)
        if b.batch < a.batch
    ]
    return Schedule(ordered, contexts, grid, tuple(warnings[:1]))


def effective(rows: object, *, max_tokens: int, max_num_seqs: int) -> EffectiveTable:
    """Return what the engine does with rows.

    Args:
        rows: The schedule as plain data.
        max_tokens: ``num_speculative_tokens`` of the server.
        max_num_seqs: ``max_num_seqs`` of the server.

    Raises:
        ScheduleError: The rows are not a schedule, or a limit is below 1.
    """
    for name, limit in (("max_tokens", max_tokens), ("max_num_seqs", max_num_seqs)):
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ScheduleError(BAD_LIMIT, None, f"{name} is {limit!r}; it must be at least 1")
    schedule = parse(rows)
    starts: list[int] = []
    columns: list[tuple[int, ...]] = []
    for (first, _), tokens in schedule.grid:
        if first > max_num_seqs:
            break
        column = tuple(min(max_tokens, k) for k in tokens)
        if not columns or columns[-1] != column:
            starts.append(first)
            columns.append(column)
    return EffectiveTable(
        max_tokens,
        max_num_seqs,
        schedule.contexts,
        tuple(starts),
        tuple(columns),
        tuple(_warnings(schedule, columns, max_tokens, max_num_seqs)),
    )


def speculative_config(
    base: Mapping[str, Any] | None, *, max_tokens: int, rows: Sequence[Sequence[int]] | None
) -> dict[str, Any]:
    """Return a speculative config that differs from ``base`` in how many tokens are drafted only.

    Args:
        base: The config to start from; every other key keeps its value and its place.
        max_tokens: ``num_speculative_tokens`` to set.
        rows: The schedule to set; None takes a schedule away.
    """
    config = dict(base or {})
    config["num_speculative_tokens"] = max_tokens
    if rows is None:
        config.pop(ROWS, None)
    else:
        config[ROWS] = [list(row) for row in rows]
    return config


def additional_config(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return what in vLLM's additional config gives our context-axis scheduler its table."""
    return {TABLE_KEY: {"rows": [list(row) for row in rows]}}


def table_in(additional: object) -> object:
    """Return the rows that an additional config gives our context-axis scheduler, unchecked.

    None where it gives none; what stands in their place without being rows is never None.
    """
    if not isinstance(additional, Mapping) or TABLE_KEY not in additional:
        return None
    ours = additional[TABLE_KEY]
    rows = ours.get("rows") if isinstance(ours, Mapping) else ours
    return [] if rows is None else rows


def _read(rows: object) -> list[_Row]:
    if not isinstance(rows, (list, tuple)):
        raise ScheduleError(
            NOT_ROWS,
            None,
            f"a schedule is a list of rows [first, last, tokens], not {_kind(rows)}: "
            "write [[1, 8, 3], [9, 16, 1]]",
        )
    if not rows:
        raise ScheduleError(
            EMPTY,
            None,
            "a schedule needs at least one row: an empty one turns the dynamic code path on and "
            "the schedule off",
        )
    shaped = [_shape(index, row) for index, row in enumerate(rows)]
    for index, numbers in enumerate(shaped):
        if len(numbers) != len(shaped[0]):
            raise ScheduleError(
                MIXED_LENGTHS,
                index,
                f"{_text(index, numbers)} has {len(numbers)} numbers and rows[0] has "
                f"{len(shaped[0])}: three- and five-number rows cannot be mixed",
            )
    return [_valued(index, numbers) for index, numbers in enumerate(shaped)]


def _shape(index: int, row: object) -> list[int]:
    if not isinstance(row, (list, tuple)):
        raise ScheduleError(
            NOT_ROWS, index, f"rows[{index}] is {_kind(row)}, not a row [first, last, tokens]"
        )
    if len(row) not in (3, 5):
        raise ScheduleError(
            WRONG_LENGTH,
            index,
            f"{_text(index, row)} has {len(row)} numbers; a row has 3 [first, last, tokens] or 5 "
            "[first, last, contextFirst, contextLast, tokens]",
        )
    for number in row:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ScheduleError(
                NOT_INTEGER,
                index,
                f"{_text(index, row)}: {number!r} is {_kind(number)}, not a whole number",
            )
    return list(row)


def _valued(index: int, numbers: Sequence[int]) -> _Row:
    first, last, tokens = numbers[0], numbers[1], numbers[-1]
    text = _text(index, numbers)
    context = (numbers[2], numbers[3]) if len(numbers) == 5 else None
    if first < 1 or last < 1:
        raise ScheduleError(NOT_POSITIVE, index, f"{text}: batch sizes start at 1")
    if first > last:
        raise ScheduleError(
            REVERSED, index, f"{text}: first batch size {first} is past the last, {last}"
        )
    if context and min(context) < 1:
        raise ScheduleError(CONTEXT_NOT_POSITIVE, index, f"{text}: contexts start at 1")
    if context and context[0] > context[1]:
        raise ScheduleError(
            CONTEXT_REVERSED,
            index,
            f"{text}: first context {context[0]} is past the last, {context[1]}",
        )
    if tokens < 0:
        raise ScheduleError(NEGATIVE_TOKENS, index, f"{text}: tokens {tokens} must be 0 or more")
    return _Row(index, (first, last), context, tokens, text)


def _separate(
    ranges: Mapping[tuple[int, int], _Row], what: str, reason: str, rule: str
) -> list[tuple[int, int]]:
    """Return distinct ranges in order, or refuse the first two that overlap."""
    ordered = sorted(ranges)
    for a, b in pairwise(ordered):
        if b[0] <= a[1]:
            raise ScheduleError(
                reason,
                max(ranges[a].at, ranges[b].at),
                f"{ranges[a].text} and {ranges[b].text}: {what} ranges {a[0]}-{a[1]} and "
                f"{b[0]}-{b[1]} overlap; {rule}",
            )
    return ordered


def _contexts(read: Sequence[_Row]) -> tuple[tuple[int, int], ...]:
    by_context = {row.context: row for row in read if row.context}
    contexts = _separate(
        by_context, "context", CONTEXT_OVERLAP, "every batch range needs the same context ranges"
    )
    if contexts[0][0] != 1:
        row = by_context[contexts[0]]
        raise ScheduleError(
            CONTEXT_NOT_FROM_ONE,
            row.at,
            f"{row.text}: the first context range starts at {contexts[0][0]}; it must start at 1",
        )
    for a, b in pairwise(contexts):
        if b[0] != a[1] + 1:
            row = by_context[b]
            raise ScheduleError(
                CONTEXT_GAP,
                row.at,
                f"{row.text}: contexts {a[1] + 1}-{b[0] - 1} belong to no range; context ranges "
                "leave no gap",
            )
    return tuple(contexts)


def _cells(
    read: Sequence[_Row],
    batches: Sequence[tuple[int, int]],
    contexts: Sequence[tuple[int, int]] | None,
) -> dict[tuple[tuple[int, int], tuple[int, int] | None], _Row]:
    """Return the grid's cells, each given exactly once."""
    cells: dict[tuple[tuple[int, int], tuple[int, int] | None], _Row] = {}
    for row in read:
        key = (row.batch, row.context)
        if key in cells and contexts is None:
            raise ScheduleError(
                OVERLAP,
                row.at,
                f"{cells[key].text} and {row.text}: batch sizes must not overlap",
            )
        if key in cells:
            raise ScheduleError(
                DUPLICATE_CELL, row.at, f"{cells[key].text} and {row.text} are the same cell"
            )
        cells[key] = row
    wanted = [(batch, context) for batch in batches for context in contexts or (None,)]
    missing = [f"[{b[0]}, {b[1]}, {c[0]}, {c[1]}]" for b, c in wanted if c and (b, c) not in cells]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ScheduleError(
            MISSING_CELL,
            None,
            f"{len(cells)} of {len(wanted)} cells given: every batch range needs every context "
            f"range; missing {', '.join(missing[:3])}{more}",
        )
    return cells


def _warnings(
    schedule: Schedule, columns: Sequence[tuple[int, ...]], max_tokens: int, max_num_seqs: int
) -> Iterable[Warned]:
    yield from schedule.warnings
    by_batch: dict[tuple[int, int], _Row] = {}
    for row in schedule.rows:
        by_batch.setdefault(row.batch, row)
        if row.batch[0] > max_num_seqs:
            yield Warned(
                UNREACHABLE, row.at, f"{row.text} never runs: max_num_seqs is {max_num_seqs}"
            )
        elif row.tokens > max_tokens:
            yield Warned(
                CLAMPED,
                row.at,
                f"{row.text}: {row.tokens} tokens are cut to num_speculative_tokens, {max_tokens}",
            )
    ends = [(first, last) for (first, last), _ in schedule.grid] + [(max_num_seqs + 1, 0)]
    for (first, last), (following, after) in pairwise(ends):
        until = min(following - 1, max_num_seqs)
        if last >= until:
            continue
        row = by_batch[first, last]
        reason, name = (GAP, "between rows") if after else (TAIL, "after the last row")
        carried = "" if row.context else f" with K={min(row.tokens, max_tokens)}"
        yield Warned(
            reason,
            row.at,
            f"batch sizes {last + 1}-{until} {name} are in no row: {row.text} is carried "
            f"on{carried}",
        )
    if all(k == 0 for column in columns for k in column):
        yield Warned(
            ALL_ZERO,
            None,
            "0 tokens at every batch size still runs the drafter: to serve without speculation, "
            "take the speculative config away",
        )
    for (first, last), tokens in schedule.grid:
        if first <= max_num_seqs and any(a < b for a, b in pairwise(tokens)):
            yield Warned(
                SHORT_CONTEXT,
                by_batch[first, last].at,
                f"batch sizes {first}-{last} draft fewer tokens for short contexts than for long "
                "ones: sound where long contexts were raised, but short ones that were lowered "
                "can lose throughput in mixed traffic",
            )


def _text(index: int, row: Sequence[object]) -> str:
    return f"rows[{index}] {list(row)}"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        str: "a string",
        float: "a fraction",
        dict: "an object",
        list: "a list",
    }
    return names.get(type(value), f"a {type(value).__name__}")
