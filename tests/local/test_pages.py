"""The second witness: what a load process serves, as it was last read."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from specschedule.adapters.local.pages import Pages
from specschedule.core.evidence import Profile
from specschedule.core.visit import Visit, Window
from specschedule.load.counters import Counters, Page
from tests.local.questions import spec


def visit(number: int) -> Visit:
    return Visit(
        run="7f3a",
        arm="incumbent",
        launch=3,
        round=1,
        visit=number,
        url="http://pending",
        windows=[Window(cell="r1-hold4-s0", profile=Profile(kind="hold", concurrency=4))],
        slo=spec().slo,
    )


@contextmanager
def served(counters: Counters) -> Iterator[int]:
    """The load process's own page, on a port of loopback."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    page = Page(counters)
    yield asyncio.run_coroutine_threadsafe(page.start(0, "127.0.0.1"), loop).result()
    asyncio.run_coroutine_threadsafe(page.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def counts(pages: Pages, number: int) -> object:
    return pages.final_counts("", run="7f3a", launch=3, visit=number, at=0.0)


def test_the_last_reading_of_a_visit_counts_and_visits_do_not_mix() -> None:
    pages = Pages()
    for number in (1, 2):
        counters = Counters(visit(number))
        with served(counters) as port:
            pages.read(port)
            counters.tallies["r1-hold4-s0"].good = 20 + number
            counters.tallies["r1-hold4-s0"].failed = 1
            pages.read(port)
    assert counts(pages, 1) == {"r1-hold4-s0": {"good": 21.0, "slow": 0.0, "failed": 1.0}}
    assert counts(pages, 2) == {"r1-hold4-s0": {"good": 22.0, "slow": 0.0, "failed": 1.0}}


def test_a_page_that_was_never_read_has_no_counts() -> None:
    pages = Pages()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        pages.read(probe.getsockname()[1])
    assert counts(pages, 1) == {}
