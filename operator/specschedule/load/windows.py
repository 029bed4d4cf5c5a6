"""What a window counts, and the cell it becomes.

A window of a closed loop counts the requests that *end* in it. Because the load is the same
before it opens and after it closes, that has no bias to short or long requests; counting only
those that also started inside would favour short ones. It opens half a mean gap after the end
of a request and its length is fixed, from the throughput seen before, at the moment it opens:
a window that closes at the n-th end overstates the rate, and the more so the more the requests
of an arm differ in duration, which is what speculation changes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specschedule.core.evidence import Cell, Outputs, PrefixCache, Quantiles
from specschedule.core.spec import Slo
from specschedule.core.visit import Visit, Window
from specschedule.load.engine_metrics import EngineDelta
from specschedule.load.records import Outcome, Record, outcome

UNIQUE_HITS_AT_MOST = 0.25
"""Share of prompt tokens found in the cache by which Unique prompts are disproved. Not 0: a
chat template puts the same tokens before every prompt."""
SHARED_HITS_AT_LEAST = 0.05
"""Shared prompts share a third or more of their tokens, cut down to whole blocks of the cache."""
WARM_HITS_AT_LEAST = 0.3
"""A repeated prompt is found up to its last whole block, but for its last token."""


@dataclass(slots=True)
class Tally:
    """Counters of one cell; what Prometheus sees and what the cell says are this one thing."""

    good: int = 0
    slow: int = 0
    failed: int = 0
    output_tokens: int = 0

    def count(self, result: Outcome) -> None:
        """Count one request."""
        setattr(self, result, getattr(self, result) + 1)

    @property
    def offered(self) -> int:
        """Requests counted."""
        return self.good + self.slow + self.failed


@dataclass(slots=True)
class Occupancy:
    """How long exactly the planned number of requests was in flight."""

    target: int
    in_flight: int
    since: float
    exact: float = 0.0
    other: float = 0.0

    def change(
        self, now: float, *, in_flight: int | None = None, target: int | None = None
    ) -> None:
        """Book the time since the last change, then change."""
        if self.in_flight == self.target:
            self.exact += now - self.since
        else:
            self.other += now - self.since
        self.since = now
        self.in_flight = self.in_flight if in_flight is None else in_flight
        self.target = self.target if target is None else target

    @property
    def share(self) -> float | None:
        """Share of the booked time; None before any was booked."""
        total = self.exact + self.other
        return self.exact / total if total > 0 else None


@dataclass(slots=True)
class Meter:
    """One window, from before it opens until it is closed."""

    slo: Slo
    tally: Tally = field(default_factory=Tally)
    opened: float | None = None
    closed: float | None = None
    counted: list[Record] = field(default_factory=list)
    send_lags: list[float] = field(default_factory=list)
    loop_lags: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether time is running."""
        return self.opened is not None and self.closed is None

    def finish(self, record: Record) -> None:
        """Count a request that ended."""
        self.counted.append(record)
        self.tally.count(outcome(record, self.slo))

    def tokens(self, count: int) -> None:
        """Count tokens received while the load was as planned."""
        self.tally.output_tokens += count

    def close(self, now: float, stuck: int = 0) -> None:
        """End the window.

        Args:
            now: The end.
            stuck: Requests that were in flight all the window long and have missed a limit by now;
                they count as slow.
        """
        if self.opened is None:
            raise ValueError("a window that never opened cannot be closed")
        for _ in range(stuck):
            self.tally.count("slow")
        self.closed = now


def missed(record: Record, slo: Slo, now: float) -> bool:
    """Say whether a request in flight can no longer become good."""
    waited = now - record.scheduled
    if slo.e2e is not None and waited > slo.e2e:
        return True
    if slo.ttft is not None and (waited if record.ttft is None else record.ttft) > slo.ttft:
        return True
    if slo.tpot is None or not record.chunks:
        return False
    first, tokens = record.chunks[0]
    return now - first > slo.tpot * (record.request.output_tokens - tokens)


def length(gap: float, requests: int, concurrency: int) -> float:
    """Return how long a window of a held load must be, in seconds.

    Whole turns of all streams, so that their phases weigh nothing; a tenth more requests than
    asked for, so that chance seldom leaves too few.

    Args:
        gap: Mean seconds between the ends of two requests.
        requests: Requests that must end in the window at least.
        concurrency: Requests in flight.
    """
    return gap * concurrency * math.ceil((1.1 * requests + 1) / concurrency)


def late(lags: Sequence[float]) -> float | None:
    """Return the 99th percentile of lags; with fewer than 200, the second largest.

    One late send among a few is chance; two are a client that cannot keep up.
    """
    if not lags:
        return None
    ordered = sorted(lags)
    return ordered[-1 - min(len(ordered) - 1, max(1, len(ordered) // 100))]


def held_up(lags: Sequence[float]) -> float | None:
    """Return how late the load process ran on average: what its time stamps may be wrong by."""
    return float(np.mean(np.asarray(lags))) if lags else None


def quantiles(seconds: Sequence[float]) -> Quantiles | None:
    """Return quantiles in milliseconds; None without values."""
    if not seconds:
        return None
    p50, p90, p99 = (float(v) for v in np.quantile(np.asarray(seconds) * 1000, [0.5, 0.9, 0.99]))
    return Quantiles(p50=round(p50, 3), p90=round(p90, 3), p99=round(p99, 3))


def cell(
    visit: Visit,
    window: Window,
    meter: Meter,
    *,
    started_at: str | None = None,
    engine: EngineDelta | None = None,
    in_flight_exact: float | None = None,
    left_out: Sequence[Record] | None = None,
    outputs: Outputs | None = None,
    notes: Sequence[str] = (),
    void: str | None = None,
) -> Cell:
    """Write a closed window down.

    Args:
        visit: The visit it belongs to.
        window: What was planned.
        meter: What was counted.
        started_at: RFC 3339 time at which the window opened, where it is known.
        engine: The engine's own counters over the window, where it has them.
        in_flight_exact: Share of the time in which the planned number was in flight.
        left_out: Finished requests that must not enter rates and latencies (depth only).
        outputs: What was answered (equivalence only); a window that has them counts whatever its
            times were.
        notes: What a reader should know.
        void: Why the window must not count, if that is known already.
    """
    if meter.opened is None or meter.closed is None:
        raise ValueError("only a closed window becomes a cell")
    skip = {id(record) for record in left_out or ()}
    done = [r for r in meter.counted if r.error is None]
    kept = [r for r in done if id(r) not in skip]
    tpot = [r.tpot for r in kept if r.tpot is not None]
    lag = late(meter.send_lags)
    notes = list(notes)
    if any(r.counts_estimated for r in kept):
        notes.append("the server does not say how many tokens each chunk holds; spread evenly")
    if outputs is None:
        void = void or _void(visit, meter, engine)
    return Cell(
        cell=window.cell,
        arm=visit.arm,
        launch=visit.launch,
        round=visit.round,
        visit=visit.visit,
        profile=window.profile,
        category=window.category,
        context=window.context or window.profile.context,
        tokens=window.tokens,
        seed=window.seed,
        window_seconds=round(meter.closed - meter.opened, 6),
        offered=meter.tally.offered,
        completed=len(done),
        failed=meter.tally.failed,
        good=meter.tally.good,
        output_tokens=meter.tally.output_tokens,
        request_tokens=_request_tokens(done),
        ttft_ms=quantiles([r.ttft for r in kept if r.ttft is not None]),
        tpot_ms=quantiles(tpot),
        decode_rate=round(1 / float(np.median(tpot)), 4) if tpot and min(tpot) > 0 else None,
        drafts=engine.drafts if engine else None,
        draft_tokens=engine.draft_tokens if engine else None,
        accepted_tokens=engine.accepted_tokens if engine else None,
        accepted_by_position=engine.accepted_by_position if engine else None,
        engine_output_tokens=engine.output_tokens if engine else None,
        preemptions=engine.preemptions if engine else None,
        batch_size_mean=round(float(np.mean(meter.running)), 3) if meter.running else None,
        prefix_cache=_prefix_cache(engine),
        steps=engine.steps if engine else None,
        send_lag_ms_p99=None if lag is None else round(lag * 1000, 3),
        in_flight_exact=None if in_flight_exact is None else round(in_flight_exact, 6),
        left_out=None if left_out is None else len(skip),
        outputs=outputs,
        started_at=started_at,
        notes=notes or None,
        void=void,
    )


def _prefix_cache(engine: EngineDelta | None) -> PrefixCache | None:
    if engine is None or engine.prefix_queries is None or engine.prefix_hits is None:
        return None
    return PrefixCache(queries=engine.prefix_queries, hits=engine.prefix_hits)


def _request_tokens(done: Sequence[Record]) -> int | None:
    """Return the mean length of requests at their end; None where the server does not say."""
    told = [r.prompt_tokens + r.tokens for r in done if r.prompt_tokens is not None]
    return round(sum(told) / len(told)) if told else None


def _void(visit: Visit, meter: Meter, engine: EngineDelta | None) -> str | None:
    """Say why a window must not count, or None."""
    limit = visit.max_send_lag
    sends, loop = late(meter.send_lags), held_up(meter.loop_lags)
    if sends is not None and sends > limit:
        return (
            f"send lag p99 {sends * 1000:.1f} ms is over load.maxSendLag {limit * 1000:g} ms: "
            "the load generator could not keep up; give it more CPU"
        )
    if loop is not None and loop > limit:
        return (
            f"the load generator itself ran {loop * 1000:.1f} ms late on average "
            f"(load.maxSendLag {limit * 1000:g} ms): give it more CPU"
        )
    if engine is None:
        return None
    if (engine.aborted or 0) > meter.tally.failed:
        return (
            f"the engine aborted {engine.aborted} requests, of which {meter.tally.failed} were "
            "sent here: something else uses the server, or it gives requests up"
        )
    return engine.fault or _regime_broken(visit.prefix_cache, _prefix_cache(engine))


def _regime_broken(declared: str, seen: PrefixCache | None) -> str | None:
    """Compare the declared prefix-cache regime with the engine's counters."""
    if seen is None or seen.queries == 0:
        return None
    share = seen.hits / seen.queries
    expected = {
        "Unique": (share <= UNIQUE_HITS_AT_MOST, f"at most {UNIQUE_HITS_AT_MOST:.0%}"),
        "Shared": (share >= SHARED_HITS_AT_LEAST, f"at least {SHARED_HITS_AT_LEAST:.0%}"),
        "Warm": (share >= WARM_HITS_AT_LEAST, f"at least {WARM_HITS_AT_LEAST:.0%}"),
    }
    fits, bound = expected[declared]
    if fits:
        return None
    remedy = (
        "send each prompt once only, to a freshly started engine"
        if declared == "Unique"
        else "switch prefix caching on, and send prompts longer than the cache's blocks (16 tokens "
        "on GPUs, 128 on CPUs)"
    )
    return (
        f"load.prefixCache {declared} does not hold: the engine found {share:.0%} of prompt tokens "
        f"in its prefix cache, {bound} fits that regime; {remedy}"
    )
