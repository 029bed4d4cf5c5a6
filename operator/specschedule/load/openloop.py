"""An open loop: requests are sent when they are due, whatever the server does."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from specschedule.core.evidence import Cell, Profile
from specschedule.core.workload import DIGEST
from specschedule.load.arrivals import Arrival, Turn, draw, read_trace
from specschedule.load.client import Client
from specschedule.load.measurement import Measurement
from specschedule.load.prompts import Source
from specschedule.load.records import Record

MOST_IN_FLIGHT = 4096
"""Requests due beyond this many in flight are not sent; they count as failed."""


class Open:
    """Measures one window at an offered load.

    Requests that are due in the window count, all of them, however long they take. The load goes
    on until the last of them is over.
    """

    def __init__(
        self,
        measurement: Measurement,
        client: Client,
        tasks: asyncio.TaskGroup,
        source: Source,
        finished: Callable[[Record], None],
        *,
        lead: float,
        trace: Path | None,
    ) -> None:
        self._measurement, self._client, self._tasks = measurement, client, tasks
        self._source, self._finished, self._lead = source, finished, lead
        self._trace = trace
        self._clock = measurement.clock
        self._in_flight: set[asyncio.Task[None]] = set()
        self._outstanding = 0
        self._last = asyncio.Event()

    async def run(self) -> Cell:
        """Measure the window."""
        measurement = self._measurement
        window = measurement.window
        turn = planned(window.profile, window.requests, window.seed, self._trace)
        opens = self._clock() + self._lead
        self._outstanding = len(turn.arrivals)
        sending = self._tasks.create_task(self._send_all(turn, opens))
        await asyncio.sleep(opens - self._clock())
        measurement.open(opens)
        await asyncio.sleep(opens + turn.seconds - self._clock())
        measurement.close(opens + turn.seconds)
        await self._last.wait()
        sending.cancel()
        for task in self._in_flight:
            task.cancel()
        return await measurement.cell()

    async def _send_all(self, turn: Turn, opens: float) -> None:
        for due, place, arrival in turn.stream(self._lead):
            await asyncio.sleep(max(0.0, opens + due - self._clock()))
            counted = 0 <= place < len(turn.arrivals)
            task = self._tasks.create_task(self._send(opens + due, place, counted, arrival))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _send(self, due: float, place: int, counted: bool, arrival: Arrival) -> None:
        request = self._source.request(place, arrival.output_tokens, arrival.prompt_tokens)
        record = Record(request, self._measurement.window.cell, due)
        if len(self._in_flight) > MOST_IN_FLIGHT:
            record.error = f"not sent: {MOST_IN_FLIGHT} requests are in flight already"
            record.ended = self._clock()
        else:
            await self._client.send(record)
        self._finished(record)
        if counted:
            self._measurement.meter.finish(record)
            self._outstanding -= 1
            if not self._outstanding:
                self._last.set()


def planned(profile: Profile, requests: int, seed: int, trace: Path | None = None) -> Turn:
    """Return the arrivals of an open profile.

    Args:
        profile: The profile.
        requests: Arrivals to draw.
        seed: Decides those drawn.
        trace: The recorded arrivals that the process was given.

    Raises:
        ValueError: Neither a rate nor a readable trace is given, or another trace than planned.
        OSError: The trace cannot be read.
    """
    if profile.trace is not None and profile.trace.startswith(DIGEST):
        if trace is None:
            raise ValueError(f"open: trace {profile.trace} must be given in SPECSCHEDULE_TRACE")
        return read_trace(trace, profile.trace)
    if profile.trace is not None:
        return read_trace(Path(profile.trace))
    rate, peak = profile.requests_per_second, profile.peak_requests_per_second
    if rate is None or rate <= 0 or (peak is not None and peak < rate):
        raise ValueError("open: needs requestsPerSecond > 0 (and a peak not below it), or a trace")
    return draw(rate, requests, seed, peak=peak)
