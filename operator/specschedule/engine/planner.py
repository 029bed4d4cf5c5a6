"""What a scheduler plans for each step, and the line that it records about it.

K is chosen when a step is scheduled, drafted at its end, and verified in the next step of the
same request. Requests are vLLM's own; only their counts of tokens are read.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from specschedule.core.schedule import EffectiveTable, ScheduleError, effective
from specschedule.engine.proof import Proof
from specschedule.engine.ring import Ring

Line = dict[str, Any]

SHAPES_KEPT = 4096
"""Batch shapes that are remembered as seen, the last ones."""


class BootError(ValueError):
    """A server that the scheduler refuses to run in; the text says why and what to change."""


def booted(
    rows: object, lookup: Sequence[int] | None, *, max_tokens: int, max_num_seqs: int
) -> EffectiveTable:
    """Return the table that the server was booted with, checked against the engine's own.

    Args:
        rows: The server's ``num_speculative_tokens_per_batch_size``.
        lookup: The engine's tokens by batch size, index 0 unused; None without a schedule.
        max_tokens: ``num_speculative_tokens`` of the server.
        max_num_seqs: ``max_num_seqs`` of the server.

    Raises:
        BootError: The engine has no schedule, or follows it differently than we read it.
    """
    if not lookup or not rows:
        raise BootError(
            "the server has no schedule in effect: start it with "
            "num_speculative_tokens_per_batch_size rows that name every K which is to run, so "
            "that the engine prepares for each"
        )
    plain = [list(row) for row in rows] if isinstance(rows, (list, tuple)) else rows
    try:
        table = effective(plain, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
    except ScheduleError as fault:
        raise BootError(f"num_speculative_tokens_per_batch_size: {fault.message}") from fault
    ours = [table.tokens(batch) for batch in range(1, max_num_seqs + 1)]
    if ours != list(lookup[1:]):
        raise BootError(
            f"this version of the engine makes {list(lookup[1:])} of its schedule by batch size, "
            f"and {ours} was expected: it is not known how it chooses K"
        )
    return table


def drafts_of(table: EffectiveTable) -> frozenset[int]:
    """Return every K of a table."""
    return frozenset(k for column in table.columns for k in column)


def check_prepared(table: EffectiveTable, boot: EffectiveTable) -> None:
    """Refuse a table with a K that the engine did not prepare for at boot.

    Raises:
        BootError: There is one.
    """
    missing = sorted(drafts_of(table) - drafts_of(boot))
    if missing:
        raise BootError(
            f"K={', '.join(map(str, missing))} is in the table and not among the K that the "
            f"server was started with, {sorted(drafts_of(boot))}: name every K in its "
            "num_speculative_tokens_per_batch_size"
        )


def table_of(rows: object, boot: EffectiveTable) -> EffectiveTable:
    """Return the table that a server follows which was booted with another.

    Args:
        rows: Its rows; None for those of the boot.
        boot: What the server was booted with.

    Raises:
        BootError: This server cannot follow them.
    """
    if rows is None:
        return boot
    limits = {"max_tokens": boot.max_tokens, "max_num_seqs": boot.max_num_seqs}
    try:
        table = effective(rows, **limits)
    except ScheduleError as fault:
        raise BootError(f"the table to follow: {fault.message}") from fault
    check_prepared(table, boot)
    return table


def past_prefill(scheduled: Iterable[str], requests: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the scheduled requests whose whole prompt had been computed before, and their tokens.

    Args:
        scheduled: Names of the scheduled requests.
        requests: vLLM's requests by name, as they stood before the step.

    Returns:
        Names, and computed tokens of all of them together.
    """
    names, tokens = [], 0
    for name in scheduled:
        request = requests[name]
        computed = request.num_computed_tokens
        if computed >= request.num_prompt_tokens:
            names.append(name)
            tokens += computed
    return names, tokens


def mean_context(
    scheduled: Collection[str], requests: Mapping[str, Any], decoding: tuple[list[str], int]
) -> int:
    """Return the mean context of the requests that are past prefill, of all if none is.

    As vLLM pull request 48944 computes it: computed tokens before the step, whole tokens. Where
    scheduling is asynchronous they include the drafts under way, of which some may be rejected.

    Args:
        scheduled: Names of the scheduled requests, at least one.
        requests: vLLM's requests by name, as they stood before the step.
        decoding: What ``past_prefill`` says of them.
    """
    names, tokens = decoding
    if names:
        return int(tokens) // len(names)
    return int(sum(requests[name].num_computed_tokens for name in scheduled)) // len(scheduled)


class Planner:
    """Follows a table, and records what came of it.

    Attributes:
        table: The table in effect from the next step on.
        window: Name that the lines carry; None for none.
        proof: Planned against observed K.
    """

    def __init__(self, table: EffectiveTable, ring: Ring | None = None) -> None:
        self.table = table
        self.window: str | None = None
        self.proof = Proof()
        self._ring = ring
        self._planned: dict[str, int] = {}
        self._shapes: OrderedDict[tuple[int, int], None] = OrderedDict()

    def plan(self, requests: Mapping[str, Any], output: Any) -> int:
        """Return the K that a scheduled step drafts for the next.

        Args:
            requests: Every request of the engine by id, as it stood before the step.
            output: vLLM's ``SchedulerOutput`` of the step, with at least one request.
        """
        scheduled: Mapping[str, int] = output.num_scheduled_tokens
        batch = len(scheduled)
        decoding = past_prefill(scheduled, requests)
        context = mean_context(scheduled, requests, decoding)
        tokens = self.table.tokens(batch, context)
        drafted = self._compare(decoding[0], output)
        for name in output.finished_req_ids:
            self._planned.pop(name, None)
        self._planned.update(dict.fromkeys(scheduled, tokens))
        if self._ring is not None:
            self._ring.append(self._line(output, batch, context, tokens, drafted))
        return tokens

    def _compare(self, decoding: Sequence[str], output: Any) -> Counter[int]:
        """Hold the drafts in this step against the plan; return how many requests had how many."""
        drafts = output.scheduled_spec_decode_tokens
        observed_of = [len(drafts.get(name, ())) for name in decoding]
        pairs = Counter(zip(map(self._planned.get, decoding), observed_of, strict=True))
        found: Counter[int] = Counter()
        for (k, observed), times in pairs.items():
            if k is None:
                continue
            self.proof.observe(k, observed, times)
            found[observed] += times
        return found

    def _line(
        self, output: Any, batch: int, context: int, tokens: int, drafted: Counter[int]
    ) -> Line:
        target = sum(output.num_scheduled_tokens.values())
        line: Line = {
            "at": round(time.monotonic(), 6),
            "window": self.window,
            "batchSize": batch,
            "context": context,
            "tokens": tokens,
            "decodes": drafted.total(),
            "verified": max(drafted, default=None),
            "targetTokens": target,
            "firstOfShape": True if self._is_new(batch, target) else None,
        }
        return {name: value for name, value in line.items() if value is not None}

    def _is_new(self, batch: int, target: int) -> bool:
        """Say whether no step of this shape is remembered, and remember it."""
        shape = (batch, target)
        new = shape not in self._shapes
        self._shapes[shape] = None
        self._shapes.move_to_end(shape)
        if len(self._shapes) > SHAPES_KEPT:
            self._shapes.popitem(last=False)
        return new
