"""Which candidates the engine would treat alike: one identity, one launch."""

from collections.abc import Sequence
from contextlib import suppress

from specschedule.core.schedule import ROWS, ScheduleError, effective
from specschedule.core.spec import Candidate
from specschedule.core.target import ServerFacts


def twins(candidates: Sequence[Candidate], server: ServerFacts) -> dict[str, str | None]:
    """Return what each candidate is the same as, by name, where it is: another, or what serves.

    Batch sizes count up to the largest that the server may take, where it does not say.

    Args:
        candidates: The candidates.
        server: The target's server.

    Returns:
        Names of candidates, with that of the first one alike; None for the serving schedule.

    Raises:
        ScheduleError: A candidate's rows are no schedule.
    """
    config = server.speculative or {}
    first: dict[str, str | None] = {}
    # An engine with other rows would not serve.
    with suppress(ScheduleError):
        first[_identity(config.get(ROWS), config.get("num_speculative_tokens") or 0, server)] = None
    found = {}
    for each in candidates:
        one = first.setdefault(_identity(each.schedule, each.largest_tokens, server), each.name)
        if one != each.name:
            found[each.name] = one
    return found


def _identity(rows: object, most: int, server: ServerFacts) -> str:
    return effective(rows, max_tokens=most, max_num_seqs=server.largest_batch).identity
