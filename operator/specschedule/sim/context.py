"""The context-axis scheduler as the simulated engine has it: a table from a file chooses K.

It takes the same file and refuses the same as ``engine/context.py`` does inside vLLM.
"""

from collections.abc import Mapping

from specschedule.core.schedule import EffectiveTable, ScheduleError, effective
from specschedule.engine import settings
from specschedule.engine.planner import BootError, check_prepared
from specschedule.sim.arguments import Refused

CLASSES = (
    "specschedule.engine.context.ContextScheduler",
    "specschedule.engine.context.AsyncContextScheduler",
    "specschedule.engine.context.EitherContextScheduler",
)


def followed(
    scheduler: str | None,
    rows: object,
    environment: Mapping[str, str],
    *,
    max_tokens: int,
    max_num_seqs: int,
) -> EffectiveTable | None:
    """Return the table that a launch's scheduler follows; None where it asks for no such one.

    Args:
        scheduler: The class that the launch names.
        rows: The schedule in effect.
        environment: Variables of the launch.
        max_tokens: ``num_speculative_tokens``.
        max_num_seqs: ``max_num_seqs``.

    Raises:
        Refused: It lacks what the scheduler needs; the engine would end while it boots.
    """
    if scheduler not in CLASSES:
        return None
    if not rows:
        raise Refused("the server has no schedule in effect")
    try:
        boot, table = (
            effective(each, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
            for each in (rows, settings.rows(environment))
        )
        check_prepared(table, boot)
    except (settings.SettingError, ScheduleError, BootError) as fault:
        raise Refused(str(fault)) from fault
    return table
