"""What the probe scheduler says about a window: that its K is in force, and which steps it ran.

The page answers on loopback of the engine's machine, so only a load process there can look. Where
it cannot, the engine's draft counters over the window must tell that its K ran.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import aiohttp

from specschedule.core.visit import FailureReason

POLL_SECONDS = 0.1


class Fault(Exception):
    """The page does not say what a window needs; the message says why."""

    reason: ClassVar[FailureReason]
    """How the visit fails."""


class NotSwitched(Fault):
    """The scheduler does not follow its requests, or there is none."""

    reason = "NotSwitched"


class Gone(Fault):
    """The page answered before and does not now: its engine has died."""

    reason = "ServerUnreachable"


class Silent(Fault):
    """The server answers the requests of the self test with errors, or not at all."""

    reason = "Stalled"


class Page:
    """The probe scheduler's page."""

    def __init__(self, url: str) -> None:
        self._base = url.rstrip("/")
        self._first = 0
        self._answered = False

    async def in_force(self, window: str, *, within: float) -> None:
        """Return once the scheduler follows a window's requests.

        Args:
            window: Name of the window.
            within: Seconds that it may take until the first of them is sent and has arrived.

        Raises:
            NotSwitched: It refuses to, or what answers is no probe scheduler.
            Gone: Its engine has died.
        """
        before = await self.facts()
        give_up = asyncio.get_running_loop().time() + within
        while (facts := await self.facts()).get("window") != window:
            finding, refused = facts.get("finding"), facts.get("refused")
            late = asyncio.get_running_loop().time() > give_up
            if finding or late or refused != before.get("refused"):
                why = finding or refused or f"no request of window {window} switched it"
                raise NotSwitched(f"{self._base}: {why}")
            await asyncio.sleep(POLL_SECONDS)
        self._first = int(facts["next"])

    async def otherwise(self, window: str, tokens: int, opened: float, closed: float) -> str | None:
        """Say what ran while a window was open that it did not plan; None if nothing.

        Args:
            window: Name of the window.
            tokens: Its K.
            opened: When it opened, in the machine's monotonic clock, which the page uses too.
            closed: When it closed.
        """
        lines = [line for line in await self.steps(self._first) if opened <= line["at"] <= closed]
        if not lines:
            return "the scheduler recorded no step in this window"
        others = sorted({str(line.get("window")) for line in lines} - {window})
        if others:
            return f"another client switched the scheduler to window {', '.join(others)}"
        planned = sorted({int(line["tokens"]) for line in lines} - {tokens})
        if planned:
            return f"K={tokens} was asked for and the scheduler planned K={planned}"
        more = sorted({int(line.get("verified", 0)) for line in lines} - {*range(tokens + 1)})
        return f"K={tokens} was planned and {more} drafts were verified" if more else None

    async def facts(self) -> Mapping[str, Any]:
        """Return what the scheduler says of itself.

        Raises:
            NotSwitched: What answers is no probe scheduler, or nobody ever answered.
            Gone: Its engine has died.
        """
        facts = json.loads(await self._get("/facts"))
        if facts.get("kind") != "probe":
            raise NotSwitched(f"{self._base} is the page of {facts.get('kind')!r}, not of a probe")
        return dict(facts)

    async def steps(self, since: int) -> list[dict[str, Any]]:
        """Return the lines of its steps from a number on."""
        found: list[dict[str, Any]] = []
        while lines := (await self._get(f"/steps?since={since}")).splitlines():
            found += [json.loads(line) for line in lines]
            since = found[-1]["step"] + 1
        return found

    async def _get(self, path: str) -> str:
        """Ask the page.

        Raises:
            NotSwitched: Nobody ever answered there.
            Gone: Nobody answers any more.
        """
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._base + path) as answer,
            ):
                answer.raise_for_status()
                text = await answer.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            fault = Gone if self._answered else NotSwitched
            raise fault(f"{self._base}{path}: {error or type(error).__name__}") from error
        self._answered = True
        return text
