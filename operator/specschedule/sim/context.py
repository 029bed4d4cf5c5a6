"""The context-axis scheduler as the simulated engine has it: a table of its own chooses K.

It takes the same table and refuses the same as ``engine/context.py`` does inside vLLM.
"""

from collections.abc import Mapping

from specschedule.core.context_axis import CLASS
from specschedule.core.schedule import EffectiveTable, ScheduleError, effective
from specschedule.engine import settings
from specschedule.engine.planner import BootError, table_of
from specschedule.sim.arguments import Refused

CLASSES = (
    "specschedule.engine.context.ContextScheduler",
    "specschedule.engine.context.AsyncContextScheduler",
    CLASS,
)


def followed(
    scheduler: str | None,
    rows: object,
    environment: Mapping[str, str],
    additional: object = None,
    *,
    max_tokens: int,
    max_num_seqs: int,
) -> EffectiveTable | None:
    """Return the table that a launch's scheduler follows; None where that is vLLM's own.

    Args:
        scheduler: The class that the launch names.
        rows: The schedule in effect.
        environment: Variables of the launch.
        additional: Its ``--additional-config``.
        max_tokens: ``num_speculative_tokens``.
        max_num_seqs: ``max_num_seqs``.

    Raises:
        Refused: It lacks what the scheduler needs; the engine would end while it boots.
    """
    if scheduler not in CLASSES:
        return None
    try:
        given = settings.rows(environment, additional)
        if not rows and given is None and scheduler == CLASS:
            return None
        if not rows:
            raise Refused("the server has no schedule in effect")
        boot = effective(rows, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
        return table_of(given, boot)
    except (settings.SettingError, ScheduleError, BootError) as fault:
        raise Refused(str(fault)) from fault
