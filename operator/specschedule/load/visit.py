"""A visit from its first request to its last word: one server, all windows in order."""

import asyncio
import gc
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import aiohttp

from specschedule.core import lengths
from specschedule.core.evidence import Cell, Profile
from specschedule.core.screening import next_window, not_followed
from specschedule.core.visit import (
    CellClosed,
    Event,
    FailureReason,
    Fitted,
    Visit,
    VisitEnded,
    VisitFailed,
    Warmed,
    Window,
)
from specschedule.load import probe, selftest
from specschedule.load.client import Client, Served, Unanswered
from specschedule.load.counters import Counters, Page
from specschedule.load.equivalence import Equivalence
from specschedule.load.measurement import Measurement, beat
from specschedule.load.openloop import Open, planned
from specschedule.load.profiles import Closed, Settling, swing
from specschedule.load.prompts import Pool, PromptsMissing, Source, made_to_length
from specschedule.load.records import Record, outcome, plain
from specschedule.load.room import room
from specschedule.load.streams import ClosedLoop
from specschedule.load.windows import Tally

REACH_SECONDS = 15.0
"""How long the server may refuse connections at the start."""
FAILURES_IN_A_ROW = 10
"""Failures without one success (twice the number in flight, if that is more) that end a visit."""
LONGEST_WARM_UP_FLOOR = 5.0
"""Warm-up takes at least this long, or a twelfth of the time allowed for it."""

log = logging.getLogger(__name__)


class Failure(Exception):
    """The visit cannot go on."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.event = VisitFailed(reason=reason, message=message)


class VisitRun:
    """Carries one visit out."""

    def __init__(
        self,
        visit: Visit,
        *,
        pool: Pool | None,
        say: Callable[[Event], None],
        api_key: str | None = None,
        port: int | None = None,
        host: str | None = None,
        records: TextIO | None = None,
        trace: Path | None = None,
    ) -> None:
        """Prepare.

        Args:
            visit: What to do.
            pool: Prompts; synthetic ones when None.
            say: Takes the events.
            api_key: Key of the server, where it wants one.
            port: Where to offer counters; none are offered when None.
            host: On which address; on all when None.
            records: Where to write what became of every request.
            trace: Recorded arrivals, for windows that replay them by their digest.
        """
        self._visit, self._pool, self._say = visit, pool, say
        self._whole = pool
        """Prompts that the server has room for as they are."""
        self._api_key, self._port, self._host, self._records = api_key, port, host, records
        self._trace = trace
        self._counters = Counters(visit)
        self._page = Page(self._counters)
        screen = visit.screen
        self._probe = probe.Page(screen.page) if screen is not None and screen.page else None
        self._switches = screen is not None and screen.secret is not None
        self._in_force = True
        self._lost: str | None = None
        """Why records are no longer written."""
        self._cells: list[Cell] = []
        self._clock = asyncio.get_running_loop().time
        self._measurement: Measurement | None = None
        self._closed: Closed | None = None
        self._streams: ClosedLoop | None = None
        self._warm = False
        self._e2e = 0.0
        self._failures = 0
        self._last_words = ""
        self._last_token = 0.0
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> bool:
        """Carry the visit out and say what happens; return whether it ended well."""
        try:
            self._check_plan()
            if self._port is not None:
                try:
                    await self._page.start(self._port, self._host)
                except OSError as error:
                    raise Failure("BadPlan", f"counters on port {self._port}: {error}") from error
            await self._measure_all()
            self._say(VisitEnded(scraped_at=await self._linger()))
        except Failure as failure:
            self._say(failure.event)
            return False
        finally:
            await self._page.stop()
        return True

    def _check_plan(self) -> None:
        """Refuse what cannot work before anything is sent."""
        repeated = [n for n, c in Counter(w.cell for w in self._visit.windows).items() if c > 1]
        if repeated or not (self._visit.windows or self._visit.screen):
            raise Failure("BadPlan", f"windows: cell names must be there and differ: {repeated}")
        try:
            for window in self._visit.windows:
                check_profile(window, self._trace)
                if self._pool is not None:
                    self._pool.select(window.category)
        except PromptsMissing as error:
            raise Failure("PromptsMissing", str(error)) from error
        except (ValueError, OSError) as error:
            raise Failure("BadPlan", f"{window.cell}: {error}") from error

    async def _measure_all(self) -> None:
        """Measure every window; a window that is open when the visit fails becomes a void cell."""
        visit = self._visit
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            async with Client(
                visit.url,
                endpoint=visit.endpoint,
                timeout=visit.request_timeout,
                api_key=self._api_key,
            ) as client:
                served = await self._reach(client)
                await self._leave_out(client, served)
                model = served.name
                if self._switches:
                    await self._self_test(client, model)
                first = await self._next(0)
                if first is None:
                    return
                await self._try_out(client, model, first)
                async with asyncio.TaskGroup() as tasks:
                    background = [
                        tasks.create_task(task)
                        for task in (beat(self._late), self._watch(), self._expect_scrape())
                    ]
                    await self._windows(client, model, tasks, first)
                    for task in background:
                        task.cancel()
        except BaseExceptionGroup as group:
            failures, rest = group.split(Failure)
            if failures is None or rest is not None:
                raise
            failure = next(e for e in failures.exceptions if isinstance(e, Failure))
            measurement = self._measurement
            if measurement is not None and measurement.meter.is_open:
                why = f"the visit failed in this window: {failure}"
                self._close(measurement, measurement.cut_off(self._clock(), why))
            raise failure from None
        finally:
            gc.enable()
            gc.unfreeze()

    async def _reach(self, client: Client) -> Served:
        """Wait for the server and return the model that it offers."""
        give_up = self._clock() + REACH_SECONDS
        while True:
            try:
                return await client.model()
            except Unanswered as error:
                if "HTTP 401" in str(error) or "HTTP 403" in str(error):
                    remedy = "the server wants an API key: set load.apiKeySecretRef"
                    raise Failure("BadPlan", f"{error}; {remedy}") from error
                hopeless = isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError)
                if hopeless or self._clock() > give_up:
                    raise Failure("ServerUnreachable", str(error)) from error
            await asyncio.sleep(0.5)

    async def _leave_out(self, client: Client, served: Served) -> None:
        """Leave out what the server has no room for, and say it."""
        visit = self._visit
        try:
            found = await room(client, served, visit, self._pool, self._trace)
        except Unanswered as error:
            raise Failure("ServerUnreachable", str(error)) from error
        if found.fit is not None:
            self._say(Fitted(fit=found.fit))
            if found.fit.nothing_left:
                raise Failure("BadPlan", lengths.described(found.fit))
        self._whole = found.whole
        if visit.screen is None:
            update: dict[str, object] = {"windows": found.windows}
        else:
            limits = filter(None, (visit.screen.max_model_len, served.max_model_len))
            within = {
                "max_model_len": min(limits, default=None),
                "contexts": [w.context for w in found.windows if w.context is not None],
            }
            update = {"screen": visit.screen.model_copy(update=within)}
        self._visit = visit.model_copy(update=update)

    def _source(self, window: Window, model: str, repeat: int) -> Source:
        """Return the prompts of a window."""
        pool = self._pool if made_to_length(window) else self._whole
        return Source(self._visit, window, pool=pool, model=model, repeat=repeat)

    async def _next(self, at: int) -> Window | None:
        """Return the window at a place in the order; a screen chooses it from the cells so far."""
        if self._visit.screen is None:
            return self._visit.windows[at] if at < len(self._visit.windows) else None
        return await asyncio.to_thread(next_window, self._visit, self._cells)

    async def _self_test(self, client: Client, model: str) -> None:
        """See every K run before one is measured."""
        try:
            await selftest.prove(client, self._visit, model, self._probe)
        except probe.Fault as fault:
            raise Failure(fault.reason, str(fault)) from fault

    async def _try_out(self, client: Client, model: str, window: Window) -> None:
        """Send one full request, so that a plan the server refuses ends here with its words."""
        source = self._source(window, model, -1)
        record = Record(source.take(), window.cell, self._clock())
        await client.send(record)
        if record.error is None:
            self._e2e = record.e2e or 0.0
        elif record.kind in ("refused", "length"):
            raise Failure("BadPlan", f"the server refuses a request of this plan: {record.error}")
        else:
            raise self._failure(record)

    async def _windows(
        self, client: Client, model: str, tasks: asyncio.TaskGroup, window: Window | None
    ) -> None:
        """Measure the windows in order, from the first on."""
        client.on_tokens = self._tokens
        streams = self._streams = ClosedLoop(client, tasks, finished=self._finished)
        seen: Counter[str] = Counter()
        previous: Profile | None = None
        while window is not None:
            load = f"{window.profile.plain()}/{window.category}/{window.seed}"
            source = self._source(window, model, seen[load])
            seen[load] += 1
            for index in range(source.repeats_after or 0):
                primer = source.request(index, output_tokens=2)
                record = Record(primer, window.cell, self._clock())
                await client.send(record)
                if record.error is not None:
                    log.warning("%s: filling the cache: %s", window.cell, record.error)
            client.keep_answers = window.profile.kind in ("depth", "equivalence")
            tally = self._counters.tallies.setdefault(window.cell, Tally())
            measurement = Measurement(self._visit, window, tally, client, tasks)
            self._measurement = measurement
            if window.profile.kind in ("open", "equivalence"):
                cell = await self._alone(measurement, client, tasks, streams, source)
            else:
                client.on_sent = streams.sent
                self._closed = Closed(measurement, streams, source, self._settling())
                if self._probe is not None:
                    self._in_force = False
                    tasks.create_task(self._await_switch(self._probe, window))
                cell = await self._closed.run(continued=_continues(previous, window.profile))
                if self._probe is not None:
                    cell = await self._checked(self._probe, measurement, cell)
            self._close(measurement, cell)
            if self._switches and (wrong := not_followed(cell)) is not None:
                raise Failure("NotSwitched", wrong)
            previous = window.profile
            gc.collect()
            window = await self._next(len(self._cells))
        await streams.stop()

    async def _alone(
        self,
        measurement: Measurement,
        client: Client,
        tasks: asyncio.TaskGroup,
        streams: ClosedLoop,
        source: Source,
    ) -> Cell:
        """Measure a window that sends requests of its own, after the closed loop has ended."""
        await streams.stop()
        client.on_sent = lambda record: None
        self._closed = None
        while not self._scraped():
            await asyncio.sleep(0.1)
        if measurement.window.profile.kind == "equivalence":
            self._opened_after(0.0, steady=None)
            return await Equivalence(measurement, client, tasks, source, self._finished).run()
        lead = max(3 * self._e2e, 0.0 if self._warm else self._shortest_warm_up())
        self._opened_after(lead, steady=None)
        return await Open(
            measurement, client, tasks, source, self._finished, lead=lead, trace=self._trace
        ).run()

    async def _await_switch(self, page: probe.Page, window: Window) -> None:
        """Keep a window shut until the scheduler follows its requests."""
        try:
            await page.in_force(window.cell, within=self._visit.request_timeout)
        except probe.Fault as fault:
            raise Failure(fault.reason, str(fault)) from fault
        self._in_force = True

    async def _checked(self, page: probe.Page, measurement: Measurement, cell: Cell) -> Cell:
        """Return a cell, void if the scheduler recorded other steps in it than planned."""
        meter = measurement.meter
        assert meter.opened is not None
        assert meter.closed is not None
        try:
            wrong = await page.otherwise(cell.cell, cell.tokens or 0, meter.opened, meter.closed)
        except probe.Fault as fault:
            raise Failure(fault.reason, str(fault)) from fault
        if cell.void is not None or wrong is None:
            return cell
        return cell.model_copy(update={"void": wrong})

    def _settling(self) -> Settling:
        return Settling(
            shortest=0.0 if self._warm else self._shortest_warm_up(),
            longest=self._visit.warm_up_timeout,
            allowed=lambda: self._scraped() and self._in_force,
            opened=self._opened_after,
        )

    def _shortest_warm_up(self) -> float:
        return min(LONGEST_WARM_UP_FLOOR, self._visit.warm_up_timeout / 12)

    def _opened_after(self, seconds: float, steady: bool | None) -> None:
        """Say that the warm-up is over, the first time a window opens."""
        assert self._measurement is not None
        log.info("%s: settled in %.1f s", self._measurement.window.cell, seconds)
        if not self._warm:
            self._warm = True
            self._say(Warmed(seconds=round(seconds, 3), steady=steady))

    def _close(self, measurement: Measurement, cell: Cell) -> None:
        """Write the requests of a cell down, and say it."""
        self._measurement = None
        if self._records is not None and self._lost is None:
            try:
                self._write(measurement, cell, self._records)
            except OSError as error:
                self._lost = f"its requests could not be written down: {error.strerror}"
                log.warning("%s: %s", cell.cell, self._lost)
        if self._lost is not None:
            cell = cell.model_copy(update={"notes": [*(cell.notes or []), self._lost]})
        self._cells.append(cell)
        self._say(CellClosed(cell=cell))

    def _write(self, measurement: Measurement, cell: Cell, records: TextIO) -> None:
        """Write down what became of the requests that ended while a window was measured."""
        counted = {id(record) for record in measurement.meter.counted}
        epoch = time.time() - self._clock()
        for record in measurement.records:
            line = plain(
                record,
                outcome(record, self._visit.slo),
                cell=cell.cell,
                counted=id(record) in counted,
                epoch=epoch,
            )
            records.write(json.dumps(line, separators=(",", ":")) + "\n")
        records.flush()

    def _tokens(self, now: float, count: int) -> None:
        self._last_token = now
        if self._measurement is not None:
            self._measurement.tokens(now, count)

    def _late(self, lag: float) -> None:
        if self._measurement is not None:
            self._measurement.late(lag)

    def _finished(self, record: Record) -> None:
        """Take note of a request that ended, in whichever loop."""
        if record.error is None:
            self._failures = 0
        else:
            self._failures += 1
            self._last_words = record.error
            log.warning("%s: request %d: %s", record.cell, record.request.index, record.error)
            in_flight = self._streams.target if self._streams is not None else 0
            if self._failures >= max(FAILURES_IN_A_ROW, 2 * in_flight) and not self._broken.done():
                self._broken.set_exception(self._failure(record))
        if self._measurement is not None:
            self._measurement.ended(record)
            if self._closed is not None:
                self._closed.finished(record)

    def _failure(self, record: Record) -> Failure:
        """Return what a server that answers nothing well means."""
        reason: FailureReason = "ServerUnreachable" if record.kind == "connection" else "Stalled"
        return Failure(reason, f"every request fails; the last one: {record.error}")

    async def _watch(self) -> None:
        """End the visit when every request fails, or when no token comes any more."""
        limit = self._visit.request_timeout
        started = self._clock()
        while True:
            silent = self._clock() - max(self._last_token, started)
            if self._closed is not None and self._measurement is not None and silent > limit:
                words = f"; the last failure: {self._last_words}" if self._last_words else ""
                raise Failure("Stalled", f"no token from the server for {silent:.0f} s{words}")
            await asyncio.wait([self._broken], timeout=1.0)
            if self._broken.done():
                self._broken.result()

    def _scraped(self) -> bool:
        return not self._visit.scrapes or self._port is None or bool(self._page.scrapes)

    async def _expect_scrape(self) -> None:
        """End the visit when nobody has read the counters in time."""
        await asyncio.sleep(self._visit.scrape_timeout)
        if not self._scraped():
            raise Failure(
                "NotScraped",
                f"nobody read /metrics on port {self._port} within "
                f"{self._visit.scrape_timeout:g} s: let Prometheus scrape pods that carry the "
                "prometheus.io annotations",
            )

    async def _linger(self) -> list[float]:
        """Wait for the scrapes after the last cell and return their Unix times."""
        if self._port is None:
            return []
        closed = time.time()
        last = self._clock()
        scrapes: list[float] = []
        while len(scrapes) < self._visit.scrapes:
            await asyncio.sleep(0.05)
            now_seen = [at for at in self._page.scrapes if at >= closed]
            if len(now_seen) > len(scrapes):
                scrapes, last = now_seen, self._clock()
            elif self._clock() - last > self._visit.scrape_timeout:
                break
        if self._visit.scrapes and not scrapes:
            raise Failure(
                "NotScraped",
                f"nobody read /metrics on port {self._port} after the last cell, within "
                f"{self._visit.scrape_timeout:g} s",
            )
        return scrapes


def check_profile(window: Window, trace: Path | None = None) -> None:
    """Refuse a profile that lacks what its kind needs.

    Args:
        window: The window.
        trace: Recorded arrivals that the process was given.

    Raises:
        ValueError: Says what is missing.
        OSError: A trace cannot be read.
    """
    profile = window.profile
    if profile.kind == "hold" and (profile.concurrency or 0) < 1:
        raise ValueError("hold: needs concurrency of at least 1")
    if profile.kind == "depth" and (profile.context or 0) < 1:
        raise ValueError("depth: needs context, in tokens")
    if profile.kind in ("crossing", "burst"):
        swing(profile)
    if profile.kind == "crossing" and (profile.period_seconds or 0) <= 0:
        raise ValueError("crossing: needs periodSeconds > 0")
    if profile.kind == "equivalence" and not (
        profile.steps and all(len(step) == 2 and min(step) >= 1 for step in profile.steps)
    ):
        raise ValueError("equivalence: needs steps, each [requests in flight, prompts]")
    if profile.kind == "open":
        planned(profile, window.requests, window.seed, trace)


def _continues(previous: Profile | None, profile: Profile) -> bool:
    """Whether a window is a later pass of the oscillation before it."""
    if previous is None or profile.kind not in ("crossing", "burst"):
        return False
    return previous.model_copy(update={"pass_": profile.pass_}) == profile
