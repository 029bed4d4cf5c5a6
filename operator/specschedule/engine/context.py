"""Schedulers that execute five-number rows on an engine that knows three-number rows only.

``--scheduler-cls specschedule.engine.context.EitherContextScheduler`` makes the one that suits the
server: ``AsyncContextScheduler``, or ``ContextScheduler`` where asynchronous scheduling is off (as
with ngram, or on a CPU). The server is started with three-number rows that name every K, and the
table comes from the file that SPECSCHEDULE_TABLE names, else from ``--additional-config
'{"specschedule": {"rows": [[1, 16, 1, 1024, 1], ...]}}'``. vLLM counts that argument among what
it compiles for, so a server compiles anew for each table. Rows of three numbers there give what
the engine's own lookup gives, and so does a server without a table.

A server without a schedule gets vLLM's own scheduler: there is no K to look up.

The step that computes a lone prompt stands at context 0, so the first drafts after it are those
of the shortest contexts, as in the pull request.
"""

import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specschedule.core.schedule import EffectiveTable
from specschedule.engine import settings
from specschedule.engine.lines import printed
from specschedule.engine.planner import table_of
from specschedule.engine.scheduling import Planned, config_of, suiting


class _Following(Planned):
    kind = "context"

    def __init__(self, *given: Any, **named: Any) -> None:
        """Make a scheduler as vLLM does, and print the table that it follows.

        Raises:
            SettingError: The file cannot be read as JSON.
            BootError: This server is nothing that K can be set in, or cannot follow the table.
        """
        super().__init__(*given, **named)
        printed(settings.TABLE_LINE, self.planner.table.ranges)

    def first_table(self) -> EffectiveTable:
        """Return the table that the server was given, else the one that it was booted with.

        Raises:
            SettingError: The file cannot be read as JSON.
            BootError: It is no schedule that this server can follow.
        """
        additional = self.vllm_config.additional_config  # type: ignore[attr-defined]
        return table_of(settings.rows(os.environ, additional), self.boot)


class AsyncContextScheduler(_Following, AsyncScheduler):
    """Follows the server's table, scheduling asynchronously."""


class ContextScheduler(_Following, Scheduler):
    """Follows the server's table, without asynchronous scheduling."""


class EitherContextScheduler:
    """Stands for the one that suits the server; what is made is that one."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Make a scheduler as vLLM does.

        Raises:
            SettingError: The file cannot be read as JSON.
            BootError: As for the scheduler that is made.
        """
        config = config_of(given, named)
        scheduled = getattr(
            config.speculative_config, "num_speculative_tokens_per_batch_size", None
        )
        if scheduled or settings.rows(os.environ, config.additional_config) is not None:
            made = suiting(AsyncContextScheduler, ContextScheduler, given, named)
        else:
            made = suiting(AsyncScheduler, Scheduler, given, named)
        return made(*given, **named)
