"""The load process's own Prometheus page, and the knowledge of when it was read."""

import time
from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from specschedule.core.visit import Visit
from specschedule.load.records import OUTCOMES
from specschedule.load.windows import Tally

LABELS = ("run", "arm", "launch", "visit", "cell")


class Counters(Collector):
    """Counters of every planned cell of a visit, all there from the start at 0.

    They read the tallies that the cells are written from, so the two cannot differ.
    """

    def __init__(self, visit: Visit) -> None:
        self.tallies: dict[str, Tally] = {window.cell: Tally() for window in visit.windows}
        self._base = (visit.run, visit.arm, str(visit.launch), str(visit.visit))

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the families as they stand."""
        requests = CounterMetricFamily(
            "specschedule_requests",
            "Requests that count for a cell, by outcome.",
            labels=(*LABELS, "outcome"),
        )
        tokens = CounterMetricFamily(
            "specschedule_output_tokens",
            "Output tokens received in the window of a cell.",
            labels=LABELS,
        )
        for cell, tally in self.tallies.items():
            for outcome in OUTCOMES:
                requests.add_metric((*self._base, cell, outcome), getattr(tally, outcome))
            tokens.add_metric((*self._base, cell), tally.output_tokens)
        return [requests, tokens]


class Page:
    """Serves ``/metrics`` and remembers when it was scraped."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._runner: web.AppRunner | None = None
        self.scrapes: list[float] = []
        """Unix times of the scrapes so far."""

    async def start(self, port: int, host: str | None = None) -> int:
        """Listen on one address, or on all; return the port (a free one when 0 was given).

        Raises:
            OSError: The port is taken.
        """
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        self.scrapes.append(time.time())
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )
