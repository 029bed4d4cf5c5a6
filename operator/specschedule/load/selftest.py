"""The self test of a probe launch: each K is asked for once, and seen to run, before any window.

What is looked for is the engine's part (``engine/selftest.py``). Its scheduler tells most, where
its page is in sight; everywhere else the engine's own counters tell whether each K ran.
"""

import asyncio

from specschedule.core.evidence import Profile
from specschedule.core.spec import Sampling
from specschedule.core.visit import Visit, Window
from specschedule.engine import selftest
from specschedule.load import engine_metrics
from specschedule.load.client import Client, Unanswered
from specschedule.load.probe import Gone, NotSwitched, Page, Silent
from specschedule.load.prompts import Pool, Source
from specschedule.load.records import Prepared, Record

COUNTED_SECONDS = 5.0
"""How long the engine's counters may take to hold what it has answered."""
POLL_SECONDS = 0.05


async def prove(client: Client, visit: Visit, model: str, page: Page | None) -> None:
    """Ask for every K of a screen in turn, by a short request each.

    Args:
        client: The server.
        visit: A visit with the screen of a probe.
        model: The name it serves.
        page: The scheduler's page, where it is in sight.

    Raises:
        NotSwitched: Some K did not run as it was asked for; the message is the finding.
        Gone: The server answers no more.
        Silent: It answers with errors.
    """
    assert visit.screen is not None
    ks = range(visit.screen.max_tokens + 1)
    for k in ks:
        request = _request(visit, model, k)
        before = await page.facts() if page is not None else None
        counted = await _counters(client)
        await _send(client, request, k)
        delta = await _counted(client, counted, request.output_tokens)
        if page is not None and before is not None:
            lines = await page.steps(int(before["next"]))
            if finding := selftest.otherwise(k, before, await page.facts(), lines):
                raise NotSwitched(finding)
        if delta.fault is not None:
            raise NotSwitched(delta.fault)
        if delta.drafts is not None and delta.draft_tokens is not None:
            if finding := selftest.uncounted(k, delta.drafts, delta.draft_tokens):
                raise NotSwitched(finding)
        elif page is None:
            raise NotSwitched(
                "the engine has no counters of its drafts on /metrics, and its scheduler's page is "
                "not in sight: nothing tells whether K is followed"
            )
    if page is not None and (finding := selftest.unproven(await page.facts(), ks)):
        raise NotSwitched(finding)


def _request(visit: Visit, model: str, k: int) -> Prepared:
    """Return a request that switches the server to a K, as the windows' requests do."""
    window = Window(
        cell=f"{selftest.WINDOW}{k}", profile=Profile(kind="hold", concurrency=1), tokens=k
    )
    plain = visit.model_copy(update={"sampling": Sampling()})
    pool = Pool({"self-test": [selftest.PROMPT]})
    return Source(plain, window, pool=pool, model=model).take(selftest.output_tokens(k))


async def _send(client: Client, request: Prepared, k: int) -> None:
    record = Record(request, f"{selftest.WINDOW}{k}", asyncio.get_running_loop().time())
    await client.send(record)
    if record.error is None:
        return
    words = f"the self test's request for K={k} fails: {record.error}"
    if record.kind == "connection":
        raise Gone(words)
    raise NotSwitched(words) if record.kind in ("refused", "length") else Silent(words)


async def _counters(client: Client) -> engine_metrics.Sample:
    try:
        return engine_metrics.read(await client.metrics())
    except Unanswered as error:
        raise Gone(str(error)) from error


async def _counted(
    client: Client, before: engine_metrics.Sample, tokens: int
) -> engine_metrics.EngineDelta:
    """Return what the engine counted over a request, once all of its tokens are."""
    clock = asyncio.get_running_loop().time
    give_up = clock() + COUNTED_SECONDS
    while True:
        delta = engine_metrics.difference(before, await _counters(client))
        made = delta.output_tokens
        if made is None or made >= tokens or clock() > give_up:
            return delta
        await asyncio.sleep(POLL_SECONDS)
