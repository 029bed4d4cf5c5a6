"""The load profiles of a closed loop: hold, depth, crossing, burst."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from specschedule.core.evidence import Cell, Profile
from specschedule.load.measurement import Measurement
from specschedule.load.prompts import Source
from specschedule.load.records import Record
from specschedule.load.streams import ClosedLoop
from specschedule.load.windows import length

DEGENERATE_BELOW = 0.15
"""An answer that compresses below this share of its length repeats itself."""


@dataclass
class Settling:
    """What has to be true before a window opens."""

    shortest: float
    """Seconds of load that must have passed at least."""
    longest: float
    """Seconds after which unsteady throughput no longer holds the window up."""
    allowed: Callable[[], bool]
    """Anything else, such as that the counters were scraped."""
    opened: Callable[[float, bool], None]
    """Told how many seconds it took, and whether throughput had become steady."""


class Closed:
    """Measures one window with a closed loop."""

    def __init__(
        self, measurement: Measurement, streams: ClosedLoop, source: Source, settling: Settling
    ) -> None:
        self._measurement, self._streams, self._source = measurement, streams, source
        self._settling = settling
        self._profile = measurement.window.profile
        self._clock = measurement.clock
        self._opened = asyncio.Event()
        self._moved = asyncio.Event()
        self._to_end: int | None = None
        """Requests that end before the window opens; None until the load is ready for it."""
        self._gap = 0.0
        """Mean seconds between the ends of two requests, as seen before the window."""
        self._steady = True

    async def run(self, *, continued: bool = False) -> Cell:
        """Measure the window.

        Args:
            continued: The window before it left the same oscillation running.
        """
        if self._profile.kind in ("hold", "depth"):
            return await self._hold(self._profile.concurrency or 1)
        low, high = swing(self._profile)
        await self._settle(low, continued=continued)
        if self._profile.kind == "crossing":
            await self._repeat(self._cross, low, high)
        else:
            await self._repeat(self._burst, low, high)
        return await self._measurement.cell()

    def finished(self, record: Record) -> None:
        """Take note of a request that ended."""
        meter = self._measurement.meter
        assert record.ended is not None
        if meter.is_open:
            meter.finish(record)
            self._moved.set()
        elif meter.opened is None:
            self._lead(record.ended)

    def _lead(self, ended: float) -> None:
        """Open the window when every stream sends what counts.

        A window counts the requests that end in it, so those in flight when it opens must be of its
        own order already: as many as there are streams are sent first. An arm that answers sooner
        then counts the same prompts as one that warms up with fewer requests.
        """
        if self._to_end is None:
            if not self._ready(ended):
                return
            self._gap = self._tokens() / self._measurement.throughput.rate(ended)
            self._to_end = self._streams.target
            self._streams.begin()
        self._to_end -= 1
        if self._to_end == 0:
            asyncio.get_running_loop().call_at(ended + self._gap / 2, self._open)

    async def _hold(self, concurrency: int) -> Cell:
        measurement = self._measurement
        meter, requests = measurement.meter, measurement.window.requests
        measurement.exactly = lambda: self._streams.as_planned
        await self._settle(concurrency)
        seconds = length(self._gap, requests, concurrency)
        await asyncio.sleep(seconds)
        while meter.tally.offered < requests:
            await asyncio.sleep(seconds / 8)
        measurement.close(self._clock(), self._streams.active.values())
        if self._profile.kind == "hold":
            return await measurement.cell()
        return await measurement.cell([record for record in meter.counted if unfit(record)])

    async def _settle(self, target: int, *, continued: bool = False) -> None:
        """Bring the load to a number of streams and wait until the window is open."""
        self._streams.hold(target, self._source, self._measurement.window.cell, spread=True)
        if continued:
            self._streams.begin()
            self._open()
        await self._opened.wait()

    def _ready(self, now: float) -> bool:
        """Say whether the window may open at the end of a request."""
        settling, throughput = self._settling, self._measurement.throughput
        elapsed = throughput.elapsed(now)
        if elapsed < settling.shortest or not self._streams.turned_over or not settling.allowed():
            return False
        self._steady = throughput.steady(now) and self._streams.as_planned
        return self._steady or (elapsed > settling.longest and throughput.rate(now) > 0)

    def _tokens(self) -> float:
        """Return the mean length of answers: shorter than asked for where the model ends them."""
        whole = [r.tokens for r in self._measurement.records if r.error is None and not r.partial]
        return sum(whole) / len(whole) if whole else self._source.output_tokens

    def _open(self) -> None:
        measurement, now = self._measurement, self._clock()
        seconds = measurement.throughput.elapsed(now)
        if not self._steady:
            measurement.notes.append(
                f"throughput was not steady after {seconds:.0f} s at this load"
            )
        exact = self._profile.kind in ("hold", "depth")
        measurement.open(now, self._streams.occupancy if exact else None)
        self._opened.set()
        self._settling.opened(seconds, self._steady)

    async def _repeat(
        self, one_pass: Callable[[int, int], Awaitable[None]], low: int, high: int
    ) -> None:
        """Make the pass asked for: the first alone, later ones until there is enough work."""
        measurement = self._measurement
        first = self._profile.pass_ == 1
        while True:
            await one_pass(low, high)
            if first or measurement.meter.tally.offered >= measurement.window.requests:
                break
        measurement.close(self._clock())

    async def _cross(self, low: int, high: int) -> None:
        """Half a period below, one above, half a period below: both crossings once."""
        period = self._profile.period_seconds or 0.0
        await asyncio.sleep(period / 2)
        self._turn(high)
        await asyncio.sleep(period)
        self._turn(low)
        await asyncio.sleep(period / 2)

    async def _burst(self, low: int, high: int) -> None:
        """Fill to the peak at once, then let it drain to the floor."""
        self._turn(high)
        self._turn(low)
        while not self._streams.as_planned:
            self._moved.clear()
            await self._moved.wait()
            # A stream leaves the loop right after its end is told.
            await asyncio.sleep(0)

    def _turn(self, target: int) -> None:
        self._streams.hold(target, self._source, self._measurement.window.cell, spread=False)


def swing(profile: Profile) -> tuple[int, int]:
    """Return the lower and the higher number of requests in flight of a changing load.

    Raises:
        ValueError: The profile lacks them, or they are no swing.
    """
    names = ("low", "high") if profile.kind == "crossing" else ("floor", "peak")
    low, high = (getattr(profile, name) for name in names)
    if low is None or high is None or not 1 <= low < high:
        raise ValueError(f"{profile.kind}: needs 1 <= {names[0]} < {names[1]}")
    return low, high


def unfit(record: Record) -> bool:
    """Say whether a request of a depth sweep must not enter rates.

    Repetitive output is accepted far more often than real text, and a cached prompt has not
    the cost of its depth; the few cached tokens of a chat template excuse no repetition.
    """
    cached, prompt = record.cached_tokens, record.prompt_tokens
    if cached and prompt and cached > prompt / 4:
        return True
    text = (record.text or "").encode()
    return len(text) >= 200 and len(zlib.compress(text, 9)) < DEGENERATE_BELOW * len(text)
