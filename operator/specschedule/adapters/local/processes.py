"""Processes in sessions of their own: started on record, ended whole, recognised afterwards.

A process is on record, by its number and the time of its start, before its program runs. So a
run that was killed can be followed by one that ends what is left of it, and nothing else.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO

from specschedule.adapters.local.files import write

OWNER = "SPECSCHEDULE_LOCAL_RUN"
"""Variable by which the members of a session whose leader is gone are recognised."""

GRACE_SECONDS = 10.0
"""Between asking a process to end and ending it; as of a trial pod."""

GONE_SECONDS = 20.0
"""How long ended processes may take to be gone, with the memory that they held."""

LAST_LINES_SECONDS = 1.0
"""How long the last lines of an ended process may take to be in its log."""

_WAITS_FOR_ITS_RECORD = 'read -r go && exec "$@"'
_PROC = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """A process that no other is mistaken for: numbers are given again, with a later start."""

    pid: int
    start: int
    """Start, in clock ticks since the machine booted."""
    boot: str
    """Id of the machine's boot."""


class Process:
    """A process that was started here, with its session."""

    def __init__(
        self, child: "subprocess.Popen[bytes]", record: Path, log: Path, pump: threading.Thread
    ) -> None:
        self.created_at = time.time()
        """Unix seconds."""
        self._child, self._record, self._log, self._pump = child, record, log, pump

    def exit_code(self) -> int | None:
        """Return how it ended (128 and the signal's number, when by a signal); None while it runs.

        It stays unreaped, so that its number is nobody else's before its session is ended.
        """
        reaped = self._child.returncode
        if reaped is not None:
            return reaped if reaped >= 0 else 128 - reaped
        found = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else 128 + found.si_status

    def said(self) -> str:
        """Return what it and its children wrote, each line behind its time in RFC 3339."""
        if self.exit_code() is not None:
            self._pump.join(LAST_LINES_SECONDS)
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def written(self) -> int:
        """Return how many bytes there are of that."""
        return self._log.stat().st_size if self._log.exists() else 0

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Ask it to end, then end its whole session; return when all of it is gone."""
        if self._child.returncode is not None:
            return
        if self.exit_code() is None:
            os.kill(self._child.pid, signal.SIGTERM)
        until = time.monotonic() + grace
        while self.exit_code() is None and time.monotonic() < until:
            time.sleep(0.02)
        _end(partial(_members, self._child.pid))
        self._child.wait()
        self._pump.join(GONE_SECONDS)
        self._record.unlink(missing_ok=True)


def start(
    records: Path, name: str, argv: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Process:
    """Start a program in a session of its own.

    Args:
        records: Folder in which it is on record while it may live.
        name: Its name there.
        argv: Program and arguments.
        environment: All its variables; one of them is ``OWNER``.
        log: File for what it writes, each line behind its time, as Kubernetes gives the log of a
            container when asked to.
    """
    child = subprocess.Popen(
        ["/bin/sh", "-c", _WAITS_FOR_ITS_RECORD, "sh", *argv],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    record = records / f"{name}.json"
    identity = Identity(child.pid, _start(child.pid) or 0, _boot())
    try:
        write(record, json.dumps({**asdict(identity), "owner": environment[OWNER]}))
    except BaseException:
        # Without a word on its standard input the program never runs.
        with child:
            raise
    pump = threading.Thread(target=_stamp, args=(child.stdout, log), name=name, daemon=True)
    pump.start()
    with contextlib.suppress(BrokenPipeError), child.stdin as stdin:
        stdin.write(b"go\n")
    return Process(child, record, log, pump)


def end_leftovers(records: Path) -> list[str]:
    """End what an earlier run left, its own only; return the names of what still lived."""
    found = []
    for record in sorted(records.glob("*.json")):
        told = json.loads(record.read_text())
        owner = told.pop("owner")
        identity = Identity(**told)
        if _end(partial(_leftovers, identity, owner)):
            found.append(record.stem)
        record.unlink()
    return found


def _leftovers(identity: Identity, owner: str) -> list[int]:
    """Return the living members of a recorded session.

    With its leader alive and the same, all of them; else those that carry the owner's mark, as
    another session may have the number by now. A member that has renamed itself, as vLLM's do,
    has overwritten the beginning of its variables.
    """
    if identity.boot != _boot():
        return []
    members = list(_members(identity.pid))
    started = _start(identity.pid)
    if started is not None:
        return members if started == identity.start else []
    mark = f"{OWNER}={owner}".encode()
    return [
        pid
        for pid in members
        if (variables := _variables(pid)) is not None
        and (mark in variables.split(b"\0") or variables.startswith(b"\0"))
    ]


def _end(living: Callable[[], Iterable[int]]) -> bool:
    """Kill what lives until nothing does; return whether anything did."""
    any_lived = False
    until = time.monotonic() + GONE_SECONDS
    while pids := list(living()):
        any_lived = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"processes {pids} do not end, even when killed")
        time.sleep(0.02)
    return any_lived


def _members(session: int) -> Iterator[int]:
    """Yield the processes of a session that are not over."""
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))) is not None:
            state, of = stat[0], int(stat[3])
            if of == session and state not in "ZX":
                yield int(folder.name)


def _start(pid: int) -> int | None:
    """Return a process' start, in clock ticks since the boot; None when it is over."""
    stat = _stat(pid)
    return int(stat[19]) if stat is not None and stat[0] not in "ZX" else None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process behind its name: state, parent, group, session, ..."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _variables(pid: int) -> bytes | None:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _stamp(lines: IO[bytes], log: Path) -> None:
    """Copy lines to a file, each behind the time at which it came."""
    with lines, log.open("wb", buffering=0) as out:
        for line in lines:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            out.write(now.encode() + b" " + line)
