"""The probe scheduler as the simulated engine has it: requests switch the table, steps are told.

It answers to the same request arguments (``core/inband.py``) and shows the same page on loopback
as ``engine/probe.py`` does inside vLLM.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from specschedule.core import inband
from specschedule.core.schedule import EffectiveTable, effective
from specschedule.engine import settings
from specschedule.engine.proof import Proof
from specschedule.sim.arguments import Refused

CLASSES = (
    "specschedule.engine.probe.ProbeScheduler",
    "specschedule.engine.probe.AsyncProbeScheduler",
    "specschedule.engine.probe.EitherProbeScheduler",
)
MOST_LINES = 4096


class Probe:
    """Which table is in force, and what each step planned; called for the tokens of a step.

    Args:
        boot: The table that the server was started with.
        secret: What a request must carry to switch.
        ignored: Whether the engine drafts the most, whatever is planned.
    """

    def __init__(self, boot: EffectiveTable, secret: str, *, ignored: bool = False) -> None:
        self._boot, self._secret, self._ignored = boot, secret, ignored
        self._table = boot
        self._proof = Proof()
        self.on_finding: Callable[[str], object] = lambda finding: None
        """Called once, when the engine first does otherwise than planned."""
        self._window: str | None = None
        self._switches = self._steps = 0
        self._refused: str | None = None
        self._lines: deque[dict[str, Any]] = deque(maxlen=settings.STEPS_KEPT)

    def __call__(self, batch: int, context: int) -> int:
        """Return the draft tokens of a step, and keep a line of it."""
        tokens = self._table.tokens(batch, context)
        drafted = self._boot.max_tokens if self._ignored else tokens
        before = self._proof.finding
        self._proof.observe(tokens, drafted, batch)
        if self._proof.finding is not None and before is None:
            self._table = self._boot
            self.on_finding(self._proof.finding)
        line = {
            "step": self._steps,
            "at": round(time.monotonic(), 6),
            "window": self._window,
            "batchSize": batch,
            "context": context,
            "tokens": tokens,
        }
        self._lines.append({name: value for name, value in line.items() if value is not None})
        self._steps += 1
        return drafted

    def switch(self, asked: Mapping[str, object]) -> None:
        """Follow what a request asks for, or note why not."""
        limits = {"max_tokens": self._boot.max_tokens, "max_num_seqs": self._boot.max_num_seqs}
        try:
            found = inband.read(asked, self._secret, **limits)
            if found is None:
                return
            if self._proof.finding is not None:
                raise inband.Refused(f"the self test failed: {self._proof.finding}")
            missing = sorted(_tokens(found.table) - _tokens(self._boot))
            if missing:
                raise inband.Refused(f"K={missing} is not among those it was started with")
        except inband.Refused as refused:
            self._refused = str(refused)
            return
        if (found.table, found.window) != (self._table, self._window):
            self._table, self._window = found.table, found.window
            self._switches += 1

    def page(self) -> web.Application:
        """Return the page of facts and steps."""
        app = web.Application()
        app.router.add_get("/facts", self._facts)
        app.router.add_get("/steps", self._told)
        return app

    async def _facts(self, request: web.Request) -> web.Response:
        facts = {
            "kind": "probe",
            "bootRanges": self._boot.ranges,
            "ranges": self._table.ranges,
            "window": self._window,
            "switches": self._switches,
            "refused": self._refused,
            "monotonic": time.monotonic(),
            "next": self._steps,
            **self._proof.plain(),
        }
        return web.json_response(facts)

    async def _told(self, request: web.Request) -> web.Response:
        since = int(request.query.get("since", "0"))
        lines = [line for line in self._lines if line["step"] >= since][:MOST_LINES]
        return web.Response(text="".join(json.dumps(line) + "\n" for line in lines))


def probe(
    scheduler: str | None,
    rows: object,
    environment: Mapping[str, str],
    *,
    max_tokens: int,
    max_num_seqs: int,
    ignored: bool = False,
) -> Probe | None:
    """Return the probe that a launch asks for; None when it asks for none.

    Args:
        scheduler: The class that the launch names.
        rows: The schedule in effect.
        environment: Variables of the launch.
        max_tokens: ``num_speculative_tokens``.
        max_num_seqs: ``max_num_seqs``.
        ignored: As for ``Probe``.

    Raises:
        Refused: It lacks what a probe needs; the engine would end while it boots.
    """
    if scheduler not in CLASSES:
        return None
    for name in (settings.SECRET, settings.SCHEDULER_PORT):
        if not environment.get(name):
            raise Refused(f"{name} is missing")
    if not rows:
        raise Refused("the server has no schedule in effect")
    table = effective(rows, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
    return Probe(table, environment[settings.SECRET], ignored=ignored)


def _tokens(table: EffectiveTable) -> set[int]:
    return {k for column in table.columns for k in column}
