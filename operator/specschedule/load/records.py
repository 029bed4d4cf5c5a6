"""One request and what became of it: times, tokens per chunk, and whether it was good.

Times are seconds of one monotonic clock, the load process's own.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from specschedule.core.spec import Slo

Outcome = Literal["good", "slow", "failed"]

OUTCOMES: tuple[Outcome, ...] = ("good", "slow", "failed")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be sent."""

    index: int
    """Place in the order of its cell, from 0; negative for what is sent before the window."""
    category: str | None
    """Category of its prompt."""
    body: bytes
    """JSON body."""
    output_tokens: int
    """Tokens the answer must have."""
    may_end_early: bool = False
    """Whether it may have fewer."""


@dataclass(slots=True)
class Record:
    """What became of one request."""

    request: Prepared
    cell: str
    """Cell during which it was sent."""
    scheduled: float
    """When it was due; latencies count from here."""
    partial: bool = False
    """Shortened to spread the streams over their cycle; never counted."""
    sent: float | None = None
    """When its bytes went out."""
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """(time, tokens) of every chunk that carried tokens."""
    ended: float | None = None
    """When its response was over, or given up."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens answered from the prefix cache, where the server says so."""
    text: str | None = None
    """The answer, kept only where it is looked at."""
    token_ids: list[int] | None = None
    """Its token ids, where they were asked for and told."""
    counts_estimated: bool = False
    """The server did not say how many tokens each chunk held."""
    error: str | None = None
    """Why it failed."""
    kind: Literal["connection", "timeout", "refused", "length", "response"] | None = None
    """Kind of the failure: no connection, too slow, HTTP 4xx, wrong length, other bad answers."""

    @property
    def tokens(self) -> int:
        """Tokens received."""
        return sum(count for _, count in self.chunks)

    @property
    def ttft(self) -> float | None:
        """Seconds from when it was due to its first token."""
        return self.chunks[0][0] - self.scheduled if self.chunks else None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first chunk; None when one chunk held everything."""
        if not self.chunks:
            return None
        later = self.tokens - self.chunks[0][1]
        return (self.chunks[-1][0] - self.chunks[0][0]) / later if later > 0 else None

    @property
    def e2e(self) -> float | None:
        """Seconds from when it was due to its last token."""
        return self.chunks[-1][0] - self.scheduled if self.chunks else None

    @property
    def lag(self) -> float | None:
        """Seconds from when it was due to when its bytes went out."""
        return None if self.sent is None else self.sent - self.scheduled


def outcome(record: Record, slo: Slo) -> Outcome:
    """Say whether a request met every limit given.

    An answer that came in one chunk has no time per output token, so that limit cannot be
    missed by it.
    """
    if record.error is not None or not record.chunks:
        return "failed"
    measured = ((record.ttft, slo.ttft), (record.tpot, slo.tpot), (record.e2e, slo.e2e))
    if any(v is not None and limit is not None and v > limit for v, limit in measured):
        return "slow"
    return "good"


def spread(times: Sequence[float], tokens: int) -> list[tuple[float, int]]:
    """Share tokens out over chunks as evenly as whole numbers allow; empty chunks are left out."""
    marks = [round(tokens * i / len(times)) for i in range(len(times) + 1)] if times else []
    return [(at, b - a) for at, (a, b) in zip(times, pairwise(marks), strict=True) if b > a]


def plain(
    record: Record, result: Outcome, *, cell: str, counted: bool, epoch: float
) -> dict[str, Any]:
    """Return a record as JSON-ready data; absent values are left out.

    Args:
        record: The request.
        result: Its outcome.
        cell: The cell during which it ended.
        counted: Whether it counts in that cell.
        epoch: Unix time at which the monotonic clock was 0.
    """
    ms = 1000.0
    base = record.scheduled
    values: dict[str, Any] = {
        "cell": cell,
        "index": record.request.index,
        "category": record.request.category,
        "counted": counted,
        "outcome": result,
        "scheduledAt": round(epoch + base, 6),
        "sendLagMs": None if record.lag is None else round(record.lag * ms, 3),
        "ttftMs": None if record.ttft is None else round(record.ttft * ms, 3),
        "tpotMs": None if record.tpot is None else round(record.tpot * ms, 4),
        "e2eMs": None if record.e2e is None else round(record.e2e * ms, 3),
        "promptTokens": record.prompt_tokens,
        "cachedTokens": record.cached_tokens,
        "outputTokens": record.tokens,
        "chunks": [[round((t - base) * ms, 3), n] for t, n in record.chunks],
        "countsEstimated": True if record.counts_estimated else None,
        "error": record.error,
    }
    return {name: value for name, value in values.items() if value is not None}


def rfc3339(at: float) -> str:
    """Write a Unix time down."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def open_records(path: Path) -> TextIO:
    """Open a file for records, compressed when its name ends in ``.gz``."""
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "wt", encoding="utf-8"))
    return path.open("w", encoding="utf-8")
