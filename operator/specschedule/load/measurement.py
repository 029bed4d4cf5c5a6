"""One window being measured: what is counted, what the engine says, how late we were."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from specschedule.core.evidence import Cell, Outputs
from specschedule.core.visit import Visit, Window
from specschedule.load import engine_metrics
from specschedule.load.client import Client, Unanswered
from specschedule.load.records import Record, rfc3339
from specschedule.load.steadiness import Throughput
from specschedule.load.windows import Meter, Occupancy, Tally, cell, missed

SAMPLE_SECONDS = 2.0
"""How often the engine's metrics are read while a window is open."""
BEAT_SECONDS = 0.05
"""How often the load process checks that it is not held up."""

log = logging.getLogger(__name__)


async def beat(late: Callable[[float], None]) -> None:
    """Report how late a regular tick comes, every tick that was due counted.

    A process that is held up sees answers late as well as sends, and lags of sends alone would
    not show it.
    """
    clock = asyncio.get_running_loop().time
    due = clock() + BEAT_SECONDS
    while True:
        await asyncio.sleep(max(0.0, due - clock()))
        now = clock()
        while due <= now:
            late(now - due)
            due += BEAT_SECONDS


class Measurement:
    """Follows one window from the first request of its load to its cell."""

    def __init__(
        self, visit: Visit, window: Window, tally: Tally, client: Client, tasks: asyncio.TaskGroup
    ) -> None:
        self.visit, self.window = visit, window
        self.meter = Meter(visit.slo, tally)
        self.clock = asyncio.get_running_loop().time
        self.throughput = Throughput(self.clock())
        self.exactly: Callable[[], bool] = lambda: True
        """Whether the load is as planned just now; tokens that come otherwise do not count."""
        self.records: list[Record] = []
        """Requests that ended, counted or not."""
        self.notes: list[str] = []
        self._client, self._tasks = client, tasks
        self._started_at = ""
        self._occupancy: Occupancy | None = None
        self._share: float | None = None
        self._readings: list[asyncio.Task[engine_metrics.Sample | None]] = []
        self._between: list[engine_metrics.Sample] = []
        """What the engine said while the window was open."""
        self._sampler: asyncio.Task[None] | None = None

    def tokens(self, now: float, count: int) -> None:
        """Count tokens that arrived."""
        if self.meter.is_open:
            if self.exactly():
                self.meter.tokens(count)
        elif self.meter.opened is None:
            self.throughput.add(now, count)

    def ended(self, record: Record) -> None:
        """Keep a request that ended; what counts is the profile's business."""
        self.records.append(record)
        if self.meter.is_open and record.lag is not None:
            self.meter.send_lags.append(record.lag)

    def late(self, lag: float) -> None:
        """Take note of how late the load process was."""
        if self.meter.is_open:
            self.meter.loop_lags.append(lag)

    def open(self, now: float, occupancy: Occupancy | None = None) -> None:
        """Start counting.

        Args:
            now: The moment, in clock time.
            occupancy: Kept account of requests in flight, where the window wants an exact number.
        """
        self.meter.opened = now
        self._started_at = rfc3339(time.time() - (self.clock() - now))
        self._occupancy = occupancy
        if occupancy is not None:
            occupancy.change(now)
            occupancy.exact = occupancy.other = 0.0
        self._readings.append(self._tasks.create_task(self._read()))
        self._sampler = self._tasks.create_task(self._sample())

    def close(self, now: float, in_flight: Iterable[Record] = ()) -> None:
        """Stop counting.

        Args:
            now: The moment, in clock time.
            in_flight: Requests still unanswered, where stuck ones must count.
        """
        opened = self.meter.opened
        stuck = sum(
            opened is not None
            and record.scheduled <= opened
            and missed(record, self.visit.slo, now)
            for record in in_flight
        )
        self.meter.close(now, stuck)
        if self._occupancy is not None:
            self._occupancy.change(now)
            self._share = self._occupancy.share
        self._readings.append(self._tasks.create_task(self._read()))
        assert self._sampler is not None
        self._sampler.cancel()

    async def cell(
        self,
        left_out: Sequence[Record] | None = None,
        *,
        outputs: Outputs | None = None,
        void: str | None = None,
    ) -> Cell:
        """Return the cell of the closed window, with the engine's counters over it."""
        before, after = await asyncio.gather(*self._readings)
        self._note_running(before)
        self._note_running(after)
        delta = None
        if before is not None and after is not None:
            delta = engine_metrics.over([before, *self._between, after])
        else:
            self.notes.append("the engine's /metrics could not be read")
        return self._cell(engine=delta, left_out=left_out, outputs=outputs, void=void)

    def cut_off(self, now: float, why: str) -> Cell:
        """Return a void cell of a window that was still open."""
        self.meter.close(now)
        return self._cell(void=why)

    def _cell(
        self,
        *,
        engine: engine_metrics.EngineDelta | None = None,
        left_out: Sequence[Record] | None = None,
        outputs: Outputs | None = None,
        void: str | None = None,
    ) -> Cell:
        return cell(
            self.visit,
            self.window,
            self.meter,
            started_at=self._started_at,
            engine=engine,
            in_flight_exact=self._share,
            left_out=left_out,
            outputs=outputs,
            notes=self.notes,
            void=void,
        )

    async def _read(self) -> engine_metrics.Sample | None:
        try:
            return engine_metrics.read(await self._client.metrics())
        except Unanswered as error:
            log.warning("%s: %s", self.window.cell, error)
            return None

    async def _sample(self) -> None:
        await asyncio.wait(self._readings[:1])
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            sample = await self._read()
            self._note_running(sample)
            if sample is not None:
                self._between.append(sample)

    def _note_running(self, sample: engine_metrics.Sample | None) -> None:
        running = engine_metrics.running(sample) if sample else None
        if running is not None:
            self.meter.running.append(running)
