"""Rows by context among a server's arguments, where its scheduler is ours.

vLLM 0.32 takes three numbers a row, so such a server is started with rows that name every K, and
``--additional-config`` holds the table that the context-axis scheduler follows. Elsewhere the two
are one speculative config, whose rows are those of the table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specschedule.core import context_axis
from specschedule.core.schedule import (
    ROWS,
    TABLE_KEY,
    ScheduleError,
    additional_config,
    effective,
    table_in,
)
from specschedule.vllm_facts.flags import (
    ADDITIONAL,
    SCHEDULER,
    SPECULATIVE,
    Flag,
    FlagError,
    json_object,
    speculative_of,
)


def follows(flags: Sequence[Flag]) -> bool:
    """Say whether the server's scheduler is the context-axis scheduler."""
    named = [flag.value for flag in flags if flag.name == SCHEDULER and not flag.path]
    return named[-1:] == [context_axis.CLASS]


def config_of(flags: Sequence[Flag]) -> dict[str, Any] | None:
    """Return the speculative config that the server follows, None without one.

    Raises:
        FlagError: The arguments contradict each other or cannot be read.
    """
    config = speculative_of(flags)
    if not follows(flags) or (table := table_in(_additional(flags))) is None:
        return config
    if not config or not config.get(ROWS):
        raise FlagError(
            f"{ADDITIONAL} holds a table under {TABLE_KEY} and {SPECULATIVE} has no rows: the "
            "scheduler refuses to start so; take the table away, or give three-number rows of "
            "every K"
        )
    return {**config, ROWS: table}


def apart(config: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return what such a server takes as its speculative config, and in its additional config.

    Args:
        config: The speculative config that it is to follow; None for none.
    """
    if config is None:
        return None, {}
    rows: Any = config.get(ROWS)
    most: Any = config.get("num_speculative_tokens")
    try:
        table = effective(rows, max_tokens=most, max_num_seqs=1)
    except ScheduleError:  # vLLM is to say what is wrong with it.
        return dict(config), {}
    if table.contexts is None:
        return dict(config), {}
    # The last row goes on to the largest batch size, which need not be known here.
    every_k = context_axis.every_k(table.max_tokens, table.max_tokens + 1)
    return {**config, ROWS: every_k}, additional_config(rows)


def others_in(flags: Sequence[Flag]) -> dict[str, Any]:
    """Return what the additional config holds beside our table.

    Raises:
        FlagError: It cannot be read.
    """
    return {key: value for key, value in _additional(flags).items() if key != TABLE_KEY}


def _additional(flags: Sequence[Flag]) -> dict[str, Any]:
    for flag in flags:
        if flag.name == ADDITIONAL and flag.path:
            raise FlagError(f"{flag.written} is one key of {ADDITIONAL}: write that as one object")
    return json_object(flags, ADDITIONAL) or {}
