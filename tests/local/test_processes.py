"""Processes of a run: none runs unrecorded, none outlives its run, and no other is touched."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specschedule.adapters.local import processes

STUBBORN = 'trap "" TERM; sleep 300 & echo $!; wait'
"""A server whose child does not end when it does."""


def environment(owner: str = "run-1") -> dict[str, str]:
    return {**os.environ, processes.OWNER: owner}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "processes"
    folder.mkdir()
    return folder


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(claim: Callable[[], object]) -> None:
    for _ in range(500):
        if claim():
            return
        time.sleep(0.02)
    pytest.fail("not within 10 s")


@contextmanager
def other(*argv: str, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of somebody else, in a session of its own."""
    with subprocess.Popen(argv, start_new_session=True, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def shell(records: Path, script: str) -> processes.Process:
    log = records.parent / "log"
    argv = ["sh", "-c", script]
    return processes.start(records, "it", argv, environment=environment(), log=log)


def test_it_is_on_record_by_number_and_start_before_its_program_runs(records: Path) -> None:
    process = shell(records, f"cat {records}/it.json; echo; cut -d' ' -f22 /proc/$$/stat")
    until(lambda: process.exit_code() is not None)
    told, start = (line.partition(" ")[2] for line in process.said().splitlines())
    assert json.loads(told)["start"] == int(start)
    assert json.loads(told)["owner"] == "run-1"
    process.stop()
    assert list(records.iterdir()) == []


def test_a_program_that_cannot_be_put_on_record_never_runs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        shell(tmp_path / "gone", f"touch {tmp_path}/ran")
    time.sleep(0.1)
    assert not (tmp_path / "ran").exists()


def test_lines_stand_behind_their_times_as_kubernetes_writes_them(records: Path) -> None:
    process = shell(records, "echo one; echo two >&2")
    until(lambda: process.exit_code() is not None)
    lines = process.said().splitlines()
    assert [line.partition("Z ")[2] for line in lines] == ["one", "two"]
    assert all(line[10] == "T" for line in lines)
    process.stop()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("nonsense-x", 127)]
)
def test_its_end_is_told_as_a_shell_would(records: Path, script: str, code: int) -> None:
    process = shell(records, script)
    until(lambda: process.exit_code() is not None)
    assert process.exit_code() == code
    process.stop()
    assert process.exit_code() == code


def test_stopping_it_ends_children_that_would_stay(records: Path) -> None:
    process = shell(records, STUBBORN)
    until(lambda: process.said())
    child = int(process.said().split()[1])
    assert lives(child)
    process.stop(grace=0.1)
    assert not lives(child)
    assert process.exit_code() == 137


LEAVES = """
import os, signal, sys, time
from pathlib import Path
from specschedule.adapters.local import processes
records = Path(sys.argv[1])
os.environ[processes.OWNER] = "run-1"
process = processes.start(
    records, "server", ["sh", "-c", sys.argv[2]], environment=os.environ, log=records.parent / "log"
)
while not process.said():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave(records: Path, script: str) -> int:
    """Start a process and be killed; return the number of the child that it tells."""
    done = subprocess.run([sys.executable, "-c", LEAVES, records, script], check=False)
    assert done.returncode == -signal.SIGKILL
    return int((records.parent / "log").read_text().split()[1])


def test_what_a_killed_run_left_is_ended_with_its_children(records: Path) -> None:
    child = leave(records, STUBBORN)
    assert lives(child)
    assert processes.end_leftovers(records) == ["server"]
    assert not lives(child)
    assert list(records.iterdir()) == []
    assert processes.end_leftovers(records) == []


def test_children_are_recognised_when_their_leader_is_gone(records: Path) -> None:
    child = leave(records, "sleep 300 & echo $!; sleep 0.2; exit 1")
    leader = json.loads((records / "server.json").read_text())["pid"]
    until(lambda: not lives(leader))
    assert lives(child)
    assert processes.end_leftovers(records) == ["server"]
    assert not lives(child)


@pytest.mark.parametrize("changed", [{"start": 1}, {"boot": "another"}])
def test_another_process_with_the_same_number_is_not_touched(
    records: Path, changed: dict[str, object]
) -> None:
    with other("sleep", "300") as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        told = {"pid": process.pid, "start": int(stat[19]), "boot": boot, "owner": "run-1"}
        (records / "server.json").write_text(json.dumps({**told, **changed}))
        assert processes.end_leftovers(records) == []
        assert lives(process.pid)
        # With nothing changed it would have been taken for ours: the difference decides.
        (records / "server.json").write_text(json.dumps(told))
        assert processes.end_leftovers(records) == ["server"]
        assert process.wait(5) == -signal.SIGKILL


def test_a_session_without_its_leader_is_ours_only_by_our_mark(records: Path) -> None:
    script = "sleep 300 & echo $!; exit 0"
    with other("sh", "-c", script, stdout=subprocess.PIPE, env=environment("run-2")) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.wait(5)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        told = {"pid": process.pid, "start": 1, "boot": boot, "owner": "run-1"}
        (records / "server.json").write_text(json.dumps(told))
        assert processes.end_leftovers(records) == []
        assert lives(child)
        os.kill(child, signal.SIGKILL)
