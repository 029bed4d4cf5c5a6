"""Schedulers that execute five-number rows on an engine that knows three-number rows only.

``--scheduler-cls specschedule.engine.context.EitherContextScheduler`` makes the one that suits the
server: ``AsyncContextScheduler``, or ``ContextScheduler`` where asynchronous scheduling is off (as
with ngram, or on a CPU). The server is started with three-number rows that name every K, and the
table comes from the file that SPECSCHEDULE_TABLE names. Rows of three numbers there give what the
engine's own lookup gives.

The step that computes a lone prompt stands at context 0, so the first drafts after it are those
of the shortest contexts, as in the pull request.
"""

import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specschedule.core.schedule import EffectiveTable, ScheduleError, effective
from specschedule.engine import settings
from specschedule.engine.lines import printed
from specschedule.engine.planner import BootError, check_prepared
from specschedule.engine.scheduling import Planned, suiting


class _FromFile(Planned):
    kind = "context"

    def __init__(self, *given: Any, **named: Any) -> None:
        """Make a scheduler as vLLM does, and print the table that it follows.

        Raises:
            SettingError: There is no file with JSON in it.
            BootError: This server is nothing that K can be set in, or cannot follow the table.
        """
        super().__init__(*given, **named)
        printed(settings.TABLE_LINE, self.planner.table.ranges)

    def first_table(self) -> EffectiveTable:
        """Return the file's table.

        Raises:
            SettingError: There is no file with JSON in it.
            BootError: It holds no schedule that this server can follow.
        """
        try:
            table = effective(
                settings.rows(os.environ),
                max_tokens=self.boot.max_tokens,
                max_num_seqs=self.boot.max_num_seqs,
            )
        except ScheduleError as fault:
            raise BootError(f"{settings.TABLE}: {fault.message}") from fault
        check_prepared(table, self.boot)
        return table


class AsyncContextScheduler(_FromFile, AsyncScheduler):
    """Follows the file's table, scheduling asynchronously."""


class ContextScheduler(_FromFile, Scheduler):
    """Follows the file's table, without asynchronous scheduling."""


class EitherContextScheduler:
    """Stands for the one of the two that suits the server; what is made is that one."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Make a scheduler as vLLM does."""
        made = suiting(AsyncContextScheduler, ContextScheduler, given, named)
        return made(*given, **named)
