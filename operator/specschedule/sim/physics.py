"""How long one engine step takes, as plain formulas of what the step computes.

All times are seconds on the launch's full-graph path; what a lost graph costs is added by the
world. A step verifies the drafts of the step before and ends by drafting for the next one, so the
two token counts differ in the step after the schedule changes them.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Step(NamedTuple):
    """What one engine step computes."""

    decoding: int
    """Requests past prefill, each verifying ``verified`` draft tokens."""
    verified: int
    """Draft tokens verified per decoding request."""
    drafting: int
    """Requests that get drafts at the end of the step."""
    drafted: int
    """Draft tokens proposed for each of them."""
    prefill: int
    """Prompt tokens computed."""
    context: int
    """Tokens of context of all decoding requests together."""
    speculative: bool
    """Whether a drafter is loaded."""
    dynamic: bool
    """Whether the tokens follow a schedule."""

    @property
    def tokens(self) -> int:
        """Tokens that the decoding requests put through the target model."""
        return self.decoding * (1 + self.verified)


StepTime = Callable[[Step], float]
"""Seconds of a step."""


@dataclass(frozen=True)
class Linear:
    """Weights once, plus a cost per token and per token of context read."""

    base: float
    per_token: float
    per_context: float = 0.0
    per_prefill: float = 2.1e-5

    def __call__(self, step: Step) -> float:
        """Return seconds of the target model."""
        return (
            self.base
            + self.per_token * step.tokens
            + self.per_context * step.context
            + self.per_prefill * step.prefill
        )


@dataclass(frozen=True)
class Experts:
    """A mixture of experts that are fetched for every step that touches them.

    A window of n tokens of one sequence touches ``n ** alike`` times the experts of one token;
    sequences choose independently of each other.
    """

    base: float
    per_token: float
    all_experts: float
    """Seconds to fetch every expert."""
    share: float
    """Share of the experts that one token touches."""
    alike: float
    per_context: float = 0.0
    per_prefill: float = 2.1e-5

    def touched(self, sequences: int, window: int) -> float:
        """Return the share of the experts that ``sequences`` windows touch together."""
        untouched: float = (1.0 - self.share * window**self.alike) ** sequences
        return 1.0 - untouched

    def __call__(self, step: Step) -> float:
        """Return seconds of the target model."""
        return (
            self.base
            + self.per_token * step.tokens
            + self.all_experts * self.touched(step.decoding, 1 + step.verified)
            + self.per_context * step.context
            + self.per_prefill * step.prefill
        )


@dataclass(frozen=True)
class Roofline:
    """Memory-bound until compute takes over, padded to captured graph sizes, with a cliff.

    Token counts above the largest captured size run without a graph: one jump at the limit.
    """

    memory: float
    compute: float
    captured: tuple[int, ...]
    cliff: float
    per_context: float = 0.0

    def __call__(self, step: Step) -> float:
        """Return seconds of the target model."""
        tokens = step.tokens + step.prefill
        at = bisect_left(self.captured, tokens)
        beyond = at == len(self.captured)
        padded = tokens if beyond else self.captured[at]
        busy = max(self.memory, self.compute * padded) + self.per_context * step.context
        return busy + (self.cliff if beyond else 0.0)


@dataclass(frozen=True)
class Drafter:
    """A drafter that runs one pass per draft token.

    With nothing to draft it still runs a pass of ``sync`` seconds to keep its cache in step, as
    vLLM's EAGLE drafters do.
    """

    base: float = 0.0
    per_pass: float = 0.0
    per_token: float = 0.0
    per_context: float = 0.0
    sync: float = 0.0

    def __call__(self, step: Step) -> float:
        """Return seconds of the drafter, 0 where none is loaded."""
        if not step.speculative:
            return 0.0
        if not step.drafted:
            return self.sync
        passes = step.drafted
        return (
            self.base
            + passes * (self.per_pass + self.per_token * step.drafting)
            + self.per_context * step.context
        )


@dataclass(frozen=True)
class Sum:
    """A target model and its drafter, one after the other, plus a fixed overhead."""

    target: StepTime
    drafter: StepTime
    overhead: float = 0.0

    def __call__(self, step: Step) -> float:
        """Return seconds of the whole step."""
        return self.overhead + self.target(step) + self.drafter(step)


@dataclass(frozen=True)
class Table:
    """Measured whole-step times by batch size and draft tokens.

    Between the measured points and beyond the last two, straight lines. A drafter with nothing
    to draft costs ``sync`` on top of the column for 0.
    """

    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    """A row per batch size, a column per number of draft tokens."""
    sync: float = 0.0
    per_prefill: float = 2.1e-5

    def __call__(self, step: Step) -> float:
        """Return seconds of the whole step."""
        columns = [_straight(self.tokens, row, step.verified) for row in self.seconds]
        total = _straight(self.batches, columns, max(step.decoding, self.batches[0]))
        if step.speculative and not step.drafted:
            total += self.sync
        return total + self.per_prefill * step.prefill


@dataclass(frozen=True)
class ContextTable:
    """Measured step times at one batch size, by mean context and draft tokens.

    Away from the measured batch size a step costs ``fixed`` of its time whatever the batch, the
    rest in proportion. The dynamic path at 0 tokens has a column of its own.
    """

    batch: int
    contexts: tuple[int, ...]
    none: tuple[float, ...]
    """0 tokens, no drafter."""
    dynamic_zero: tuple[float, ...]
    """0 tokens chosen by a schedule."""
    most: int
    """Draft tokens of the column ``full``; columns between are straight lines."""
    full: tuple[float, ...]
    fixed_none: float
    fixed_full: float
    per_prefill: float = 2.1e-5

    def __call__(self, step: Step) -> float:
        """Return seconds of the whole step."""
        context = step.context / step.decoding if step.decoding else self.contexts[0]
        zero_column = self.dynamic_zero if step.speculative and step.dynamic else self.none
        zero = self._scaled(_straight(self.contexts, zero_column, context), self.fixed_none, step)
        if step.verified == 0:
            return zero + self.per_prefill * step.prefill
        plain = self._scaled(_straight(self.contexts, self.none, context), self.fixed_none, step)
        full = self._scaled(_straight(self.contexts, self.full, context), self.fixed_full, step)
        share = step.verified / self.most
        return plain + share * (full - plain) + self.per_prefill * step.prefill

    def _scaled(self, seconds: float, fixed: float, step: Step) -> float:
        return seconds * (fixed + (1.0 - fixed) * step.decoding / self.batch)


def _straight(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return y at x on the straight lines through the points; the end pieces go on."""
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if x <= x1 or x1 == xs[-1]:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise ValueError("a table needs at least two points")
