"""The request arguments by which a client switches the probe scheduler's table.

They ride in ``vllm_xargs`` of any completion request and reach the scheduler as the request's
``sampling_params.extra_args``; values there are texts or numbers, so the rows are JSON text.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specschedule.core.schedule import EffectiveTable, ScheduleError, effective

SECRET = "specschedule_secret"
"""The secret of the launch."""
ROWS = "specschedule_rows"
"""The schedule to switch to: JSON text of three- or five-number rows."""
WINDOW = "specschedule_window"
"""Name of the window that the switch opens; every step's line carries it."""

LONGEST_WINDOW = 200


class Refused(ValueError):
    """Arguments that switch nothing; the text names the argument and the remedy."""


@dataclass(frozen=True)
class Switch:
    """A table to follow from the next step on."""

    table: EffectiveTable
    window: str


def arguments(secret: str, rows: Sequence[Sequence[int]], window: str) -> dict[str, str]:
    """Return the ``vllm_xargs`` that ask for a switch."""
    return {SECRET: secret, ROWS: json.dumps([list(row) for row in rows]), WINDOW: window}


def read(
    given: Mapping[str, object], secret: str, *, max_tokens: int, max_num_seqs: int
) -> Switch | None:
    """Return the switch that a request asks for; None when it asks for none.

    Args:
        given: The request's extra arguments.
        secret: The launch's secret.
        max_tokens: ``num_speculative_tokens`` of the server.
        max_num_seqs: ``max_num_seqs`` of the server.

    Raises:
        Refused: It asks for one that cannot be made.
    """
    if not given.keys() & {SECRET, ROWS, WINDOW}:
        return None
    if not hmac.compare_digest(str(given.get(SECRET, "")).encode(), secret.encode()):
        raise Refused(f"{SECRET} is not the secret of this launch")
    window = given.get(WINDOW)
    if not isinstance(window, str) or not 0 < len(window) <= LONGEST_WINDOW:
        raise Refused(f"{WINDOW} must name the window in 1 to {LONGEST_WINDOW} characters")
    text = given.get(ROWS)
    if not isinstance(text, str):
        raise Refused(f"{ROWS} is missing or no text: give the rows as JSON text")
    try:
        table = effective(json.loads(text), max_tokens=max_tokens, max_num_seqs=max_num_seqs)
    except ScheduleError as fault:
        raise Refused(f"{ROWS}: {fault.message}") from fault
    except (ValueError, RecursionError) as fault:
        raise Refused(f"{ROWS} is no JSON: {fault}") from fault
    return Switch(table, window)
