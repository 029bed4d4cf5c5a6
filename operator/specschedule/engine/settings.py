"""The environment variables that turn the parts inside the engine on.

A part whose variables are absent stays off. A value that cannot be read is refused by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specschedule.core.schedule import table_in

RECORDER_PORT = "SPECSCHEDULE_RECORDER_PORT"
"""Port on loopback for the recorder's steps; the API server's process listens there."""
SCHEDULER_PORT = "SPECSCHEDULE_SCHEDULER_PORT"
"""Port on loopback for the scheduler's steps; the engine core's process listens there."""
STEPS = "SPECSCHEDULE_STEP_COUNTERS"
"""``1`` lets the recorder count steps beside the engine's own metrics, and keeps vLLM from
writing a line of its log for each."""
FINGERPRINT_PORT = "SPECSCHEDULE_FINGERPRINT_PORT"
"""Port on loopback for the worker's facts; the first worker's process listens there."""
FINGERPRINT_LOG = "SPECSCHEDULE_FINGERPRINT_LOG"
"""``1`` lets the first worker print its facts once it has warmed up, in one line."""
DEVICE_TIMES = "SPECSCHEDULE_DEVICE_TIMES"
"""``1`` lets the first worker time target and drafter in each step; in screening launches."""
TTFT = "SPECSCHEDULE_SLO_TTFT_MS"
"""Limit of the time to first token, in milliseconds."""
TPOT = "SPECSCHEDULE_SLO_TPOT_MS"
"""Limit of the time per output token, in milliseconds."""
E2E = "SPECSCHEDULE_SLO_E2E_MS"
"""Limit of the time of a whole request, in milliseconds."""
RING = "SPECSCHEDULE_RING"
"""How many steps are kept."""
TABLE = "SPECSCHEDULE_TABLE"
"""File with the rows of a schedule, as JSON, for the context-axis scheduler; it comes before what
``--additional-config`` gives."""
SECRET = "SPECSCHEDULE_PROBE_SECRET"
"""What a request must carry to switch the probe scheduler's table."""

FINGERPRINT_LINE = "specschedule.engine.fingerprint: "
"""Begins the line that the first worker prints; one JSON object follows."""

FINDING_LINE = "specschedule.engine.scheduler: "
"""Begins the line in which a scheduler of ours says that its engine did otherwise than planned."""

DEVICE_LINE = "specschedule.engine.device: "
"""Begins the line in which the first worker says how long steps kept its device; a JSON object."""

TABLE_LINE = "specschedule.engine.table: "
"""Begins the line in which the context-axis scheduler says what it follows, as JSON rows."""

STEPS_KEPT = 65_536
"""Steps kept where nothing is said: some minutes of a busy engine, about 30 MB."""

Environment = Mapping[str, str]


class SettingError(ValueError):
    """A variable that is missing or cannot be read; the text names it and the remedy."""


@dataclass(frozen=True)
class Limits:
    """The limits of an SLO, in seconds; None where none is given."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """The limits that are given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


def limits(environment: Environment) -> Limits:
    """Read the SLO.

    Raises:
        SettingError: A limit is not a number of milliseconds above 0.
    """
    return Limits(*(_seconds(environment, name) for name in (TTFT, TPOT, E2E)))


def port(environment: Environment, name: str) -> int | None:
    """Read a port; None where the variable is absent.

    Raises:
        SettingError: It is not a port.
    """
    if name not in environment:
        return None
    return _whole(environment, name, 1, 65_535, "a port")


def told(environment: Environment, name: str) -> bool:
    """Read a switch; off where the variable is absent.

    Raises:
        SettingError: It is neither 0 nor 1.
    """
    return bool(_whole({name: "0", **environment}, name, 0, 1, "a switch"))


def steps_kept(environment: Environment) -> int:
    """Read how many steps are kept.

    Raises:
        SettingError: It is not a number above 0.
    """
    if RING not in environment:
        return STEPS_KEPT
    return _whole(environment, RING, 1, 1 << 24, "a number of steps")


def secret(environment: Environment) -> str:
    """Read the secret of the probe scheduler.

    Raises:
        SettingError: It is missing or empty.
    """
    given = environment.get(SECRET, "")
    if not given:
        raise SettingError(
            f"{SECRET} is missing: the probe scheduler changes how requests are served, so it "
            "obeys only requests that carry a secret"
        )
    return given


def rows(environment: Environment, additional: object = None) -> object:
    """Read the rows of the context-axis scheduler, as plain data; None where none are given.

    Args:
        environment: The variables.
        additional: vLLM's ``additional_config``, which counts where no file is named.

    Raises:
        SettingError: The file is not there, or it holds no JSON.
    """
    name = environment.get(TABLE, "")
    if not name:
        return table_in(additional)
    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise SettingError(f"{TABLE}: {name} cannot be read as JSON: {fault}") from fault
    # A file that says nothing is no schedule, which is not the same as no file.
    return [] if found is None else found


def _seconds(environment: Environment, name: str) -> float | None:
    if name not in environment:
        return None
    try:
        value = float(environment[name])
    except ValueError:
        value = -1.0
    if not 0.0 < value < float("inf"):
        raise SettingError(f"{name} is {environment[name]!r}: give milliseconds above 0")
    return value / 1000.0


def _whole(environment: Environment, name: str, first: int, last: int, what: str) -> int:
    given = environment[name]
    value = int(given) if given.isascii() and given.isdigit() else -1
    if not first <= value <= last:
        raise SettingError(f"{name} is {given!r}: give {what} from {first} to {last}")
    return value
