"""Schedulers for screening: a client switches the table between two steps, by a request.

``--scheduler-cls specschedule.engine.probe.EitherProbeScheduler`` makes the one that suits the
server: ``AsyncProbeScheduler``, or ``ProbeScheduler`` where asynchronous scheduling is off (as
with ngram, or on a CPU). The server is started with rows that name every K to be screened. A
request that carries the launch's secret (``core/inband.py``) changes the table for the next step
on. Every K is held against what the engine then does; on a mismatch the scheduler goes back to
the rows it was started with, and refuses every further switch with the finding.
"""

import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specschedule.core import inband
from specschedule.core.schedule import EffectiveTable
from specschedule.engine import settings
from specschedule.engine.planner import BootError, check_prepared
from specschedule.engine.scheduling import Planned, log, suiting


class _InBand(Planned):
    kind = "probe"

    def __init__(self, *given: Any, **named: Any) -> None:
        """Make a scheduler as vLLM does.

        Raises:
            SettingError: There is no secret, or no port to tell a finding on.
            BootError: This server is nothing that K can be set in.
        """
        self.secret = settings.secret(os.environ)
        if settings.port(os.environ, settings.SCHEDULER_PORT) is None:
            raise settings.SettingError(
                f"{settings.SCHEDULER_PORT} is missing: the probe scheduler tells its steps there"
            )
        self.switches = 0
        self.refused: str | None = None
        super().__init__(*given, **named)

    def first_table(self) -> EffectiveTable:
        """Return the table the server was started with."""
        return self.boot

    def add_request(self, request: Any, *given: Any, **named: Any) -> None:
        """Take a request, and the switch that it may carry."""
        sampling = getattr(request, "sampling_params", None)
        asked = getattr(sampling, "extra_args", None)
        if asked:
            self._switch(asked)
        super().add_request(request, *given, **named)  # type: ignore[misc]

    def facts(self) -> dict[str, Any]:
        """Return JSON-ready data for the page."""
        return {
            **super().facts(),
            "window": self.planner.window,
            "switches": self.switches,
            "refused": self.refused,
        }

    def _switch(self, asked: dict[str, Any]) -> None:
        limits = {"max_tokens": self.boot.max_tokens, "max_num_seqs": self.boot.max_num_seqs}
        try:
            switch = inband.read(asked, self.secret, **limits)
            if switch is None:
                return
            if self.planner.proof.finding:
                raise inband.Refused(f"the self test failed: {self.planner.proof.finding}")
            check_prepared(switch.table, self.boot)
        except (inband.Refused, BootError) as fault:
            self.refused = str(fault)
            log.warning("A switch was refused: %s", fault)
            return
        if (switch.table, switch.window) != (self.planner.table, self.planner.window):
            self.planner.table, self.planner.window = switch.table, switch.window
            self.switches += 1

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        if self.planner.proof.finding:
            self.planner.table = self.boot


class AsyncProbeScheduler(_InBand, AsyncScheduler):
    """Follows the table switched to, scheduling asynchronously."""


class ProbeScheduler(_InBand, Scheduler):
    """Follows the table switched to, without asynchronous scheduling."""


class EitherProbeScheduler:
    """Stands for the one of the two that suits the server; what is made is that one."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Make a scheduler as vLLM does."""
        made = suiting(AsyncProbeScheduler, ProbeScheduler, given, named)
        return made(*given, **named)
