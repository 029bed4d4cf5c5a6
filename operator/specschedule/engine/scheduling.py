"""What our schedulers share: the one place in vLLM's scheduler where K is set.

vLLM looks K up at the end of ``schedule()`` and hands the step to ``_update_after_schedule``,
which counts computed tokens up and, where scheduling is asynchronous, makes room for K drafts.
Set between the two, K is what the drafter and the next step follow.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from specschedule.core.schedule import EffectiveTable
from specschedule.engine import page, settings
from specschedule.engine.planner import BootError, Planner, booted
from specschedule.engine.ring import Ring

log = logging.getLogger("vllm.specschedule.scheduler")


class Planned:
    """Mixed into a scheduler of vLLM's, before it; a subclass says which table is followed."""

    kind: str

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.boot = _check(self)
        port = settings.port(os.environ, settings.SCHEDULER_PORT)
        ring = None if port is None else Ring(settings.steps_kept(os.environ))
        self.planner = Planner(self.first_table(), ring)
        if port is not None:
            page.serve(port, self.facts, ring)
        log.info("Scheduler %s follows %s", self.kind, self.planner.table.ranges)

    def first_table(self) -> EffectiveTable:
        """Return the table to begin with."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return JSON-ready data for the page."""
        return {
            "kind": self.kind,
            "bootRanges": self.boot.ranges,
            "maxTokens": self.boot.max_tokens,
            "maxNumSeqs": self.boot.max_num_seqs,
            "ranges": self.planner.table.ranges,
            **self.planner.proof.plain(),
        }

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        before = self.planner.proof.finding
        if scheduler_output.num_scheduled_tokens:
            scheduler_output.num_spec_tokens_to_schedule = self.planner.plan(
                self.requests,  # type: ignore[attr-defined]
                scheduler_output,
            )
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        if self.planner.proof.finding != before:
            log.error("%s%s", settings.FINDING_LINE, self.planner.proof.finding)


def suiting(
    asynchronous: type, plain: type, given: Sequence[Any], named: Mapping[str, Any]
) -> type:
    """Return which of two schedulers suits a server, from what vLLM makes one with."""
    scheduling = config_of(given, named).scheduler_config
    return asynchronous if scheduling.async_scheduling else plain


def config_of(given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return a server's configuration, from what vLLM makes a scheduler with."""
    return named["vllm_config"] if "vllm_config" in named else given[0]


def _check(scheduler: Any) -> EffectiveTable:
    """Return the table that the engine was booted with.

    Raises:
        BootError: This engine, or how it was started, is nothing that K can be set in.
    """
    for there, name in (
        (dir(Scheduler), "_update_after_schedule"),
        (SchedulerOutput.__dataclass_fields__, "num_spec_tokens_to_schedule"),
        (vars(scheduler), "dynamic_sd_lookup"),
    ):
        if name not in there:
            raise BootError(f"this version of vLLM has no {name}: K cannot be set in its scheduler")
    config = scheduler.scheduler_config
    if bool(config.async_scheduling) != isinstance(scheduler, AsyncScheduler):
        name, path = type(scheduler).__name__, type(scheduler).__module__
        other = name.removeprefix("Async") if name.startswith("Async") else f"Async{name}"
        said = "on" if config.async_scheduling else "off"
        raise BootError(
            f"asynchronous scheduling is {said} in this server: give --scheduler-cls {path}.{other}"
        )
    speculative = scheduler.vllm_config.speculative_config
    return booted(
        getattr(speculative, "num_speculative_tokens_per_batch_size", None),
        scheduler.dynamic_sd_lookup,
        max_tokens=scheduler.num_spec_tokens,
        max_num_seqs=config.max_num_seqs,
    )
