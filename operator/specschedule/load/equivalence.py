"""A window that asks the same questions of every arm and keeps the answers, not the times.

Requests go up through every band of the schedules and down again. Their lengths differ, so that
they join and leave at different times, as real ones do.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence

from specschedule.core.evidence import Cell, Outputs
from specschedule.core.visit import COMPARED_TOKENS, Visit
from specschedule.load.client import Client
from specschedule.load.measurement import Measurement
from specschedule.load.prompts import Source
from specschedule.load.records import Record

LONGEST_PROMPT = 64
"""Tokens of a synthetic prompt at most, and a quarter of it at least."""


class Equivalence:
    """Sends the prompts of one window and keeps what is answered."""

    def __init__(
        self,
        measurement: Measurement,
        client: Client,
        tasks: asyncio.TaskGroup,
        source: Source,
        finished: Callable[[Record], None],
    ) -> None:
        self._measurement, self._client, self._tasks = measurement, client, tasks
        self._source, self._finished = source, finished
        self._clock = measurement.clock
        self._in_flight = 0
        self._left = asyncio.Event()

    async def run(self) -> Cell:
        """Send every prompt, wait for every answer, and return the cell."""
        measurement = self._measurement
        window, visit = measurement.window, measurement.visit
        lengths = random.Random(f"ragged/{window.seed}")
        records: list[Record] = []
        measurement.open(self._clock())
        for in_flight, prompts in window.profile.steps or []:
            for _ in range(prompts):
                await self._fewer_than(in_flight)
                request = self._source.request(
                    len(records),
                    lengths.randint(*_within(COMPARED_TOKENS, visit.output_tokens)),
                    lengths.randint(
                        *_within((LONGEST_PROMPT // 4, LONGEST_PROMPT), visit.prompt_tokens)
                    ),
                )
                records.append(Record(request, window.cell, self._clock()))
                self._in_flight += 1
                self._tasks.create_task(self._send(records[-1]))
        await self._fewer_than(1)
        measurement.close(self._clock())
        failed = next((record for record in records if record.error is not None), None)
        if failed is not None:
            why = f"request {failed.request.index + 1} has no whole answer: {failed.error}"
            return await measurement.cell(void=why)
        return await measurement.cell(outputs=outputs(records))

    async def _fewer_than(self, in_flight: int) -> None:
        while self._in_flight >= in_flight:
            self._left.clear()
            await self._left.wait()

    async def _send(self, record: Record) -> None:
        await self._client.send(record)
        self._finished(record)
        self._measurement.meter.finish(record)
        self._in_flight -= 1
        self._left.set()


def longest(visit: Visit) -> tuple[int, int]:
    """Return the tokens of the longest prompt and of the longest answer."""
    prompts = _within((LONGEST_PROMPT // 4, LONGEST_PROMPT), visit.prompt_tokens)
    return prompts[1], _within(COMPARED_TOKENS, visit.output_tokens)[1]


def outputs(records: Sequence[Record]) -> Outputs:
    """Return the answers of requests that all ended well, in the order in which they were sent."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(record.request.body)
    told = [record.token_ids or [] for record in records]
    if all(len(ids) == r.request.output_tokens for ids, r in zip(told, records, strict=True)):
        answers = [" ".join(map(str, ids)) for ids in told]
        return Outputs(prompts=digest.hexdigest()[:12], unit="token", answers=answers)
    texts = [record.text or "" for record in records]
    return Outputs(prompts=digest.hexdigest()[:12], unit="character", answers=texts)


def _within(bounds: tuple[int, int], limit: int) -> tuple[int, int]:
    """Return bounds that stay within a limit and keep their proportion as far as they can."""
    low, high = bounds
    high = min(high, limit)
    return max(1, min(low, high // 2)), high
