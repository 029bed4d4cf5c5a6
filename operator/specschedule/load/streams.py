"""A closed loop: a number of streams, each of which sends again the moment its answer is over."""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable

from specschedule.load.client import Client
from specschedule.load.prompts import Source
from specschedule.load.records import Prepared, Record
from specschedule.load.windows import Occupancy

FIRST_PAUSE = 0.05
"""Seconds a stream rests after a failure, twice as long after each further one."""
LONGEST_PAUSE = 1.0


class ClosedLoop:
    """Streams against one server; their number and their prompts can change at any time."""

    def __init__(
        self,
        client: Client,
        tasks: asyncio.TaskGroup,
        *,
        finished: Callable[[Record], None],
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            client: Where to send.
            tasks: Group that the streams run in.
            finished: Called at the end of every request, before its stream sends again.
        """
        self._client, self._tasks, self._finished = client, tasks, finished
        self._clock = asyncio.get_running_loop().time
        self._cell = ""
        self._source: Source | None = None
        self._streams: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._ready: deque[Prepared] = deque()
        self._resting = 0
        self.target = 0
        self.active: dict[int, Record] = {}
        """Requests handed over and not yet over, by stream."""
        self.occupancy = Occupancy(0, 0, self._clock())

    @property
    def as_planned(self) -> bool:
        """Whether exactly the planned number of streams exists and none rests after a failure."""
        return len(self._streams) == self.target and not self._resting

    @property
    def turned_over(self) -> bool:
        """Whether every request in flight is a full one of the present cell."""
        return len(self._streams) == self.target and all(
            record.cell == self._cell and not record.partial for record in self.active.values()
        )

    def hold(self, target: int, source: Source, cell: str, *, spread: bool) -> None:
        """Set the number of streams and what they send next.

        Streams too many end with their present request; missing ones start at once.

        Args:
            target: Requests to hold in flight.
            source: Prompts of the requests from now on.
            cell: Name of the cell that they belong to.
            spread: Whether new streams begin with a shorter request, so that they end evenly over
                the cycle and not all in the same engine step.
        """
        if source is not self._source:
            self._ready.clear()
        self._source, self._cell, self.target = source, cell, target
        self.occupancy.change(self._clock(), target=target)
        missing = target - len(self._streams)
        for number in range(missing):
            share = (number + 0.5) / missing if spread else 1.0
            stream = self._tasks.create_task(self._stream(source, next(self._numbers), share))
            self._streams.add(stream)

    def begin(self) -> None:
        """Let what counts begin: the next request is the first one of the window's own order."""
        assert self._source is not None
        self._ready.clear()
        self._source.begin()

    async def stop(self) -> None:
        """Give up every request and end all streams."""
        streams, self._streams = self._streams, set()
        self.target = 0
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        self.active.clear()
        self._resting = 0
        self.occupancy.change(self._clock(), in_flight=0, target=0)

    def sent(self, record: Record) -> None:
        """Take note that a request's bytes go out."""
        self.occupancy.change(self._clock(), in_flight=self.occupancy.in_flight + 1)
        asyncio.get_running_loop().call_soon(self._prepare)

    def _prepare(self) -> None:
        """Have the next request ready, so that building it costs no time between two."""
        if self._source is not None and len(self._ready) < 2:
            self._ready.append(self._source.take())

    async def _stream(self, source: Source, number: int, share: float) -> None:
        """Send one request after the other until there are streams too many."""
        failures = 0
        tokens = max(2, math.ceil(share * source.output_tokens)) if share < 1 else None
        while True:
            assert self._source is not None
            if tokens is not None or not self._ready:
                request = self._source.take(tokens)
            else:
                request = self._ready.popleft()
            record = Record(request, self._cell, self._clock(), partial=tokens is not None)
            tokens = None
            self.active[number] = record
            await self._client.send(record)
            del self.active[number]
            if record.sent is not None:
                self.occupancy.change(self._clock(), in_flight=self.occupancy.in_flight - 1)
            self._finished(record)
            failures = 0 if record.error is None else failures + 1
            if failures and len(self._streams) <= self.target:
                self._resting += 1
                await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1)))
                self._resting -= 1
            if len(self._streams) > self.target:
                # Leave at once: another stream ending in this very step must not leave as well.
                self._streams.discard(_this_stream())
                return


def _this_stream() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
