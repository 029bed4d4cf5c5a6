"""A server process with children of its own, such as vLLM's: started, waited for, ended whole."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BOOT_SECONDS = 300.0
"""vLLM on two idle cores takes about half a minute."""
END_SECONDS = 20.0

ROOT = Path(__file__).resolve().parents[1]


def end_with_servers() -> None:
    """Let a program that is asked to end (SIGTERM) leave its blocks, and so end its servers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed() -> dict[str, Any]:
    """Return where the real engine lies, as ``hack/vllm where`` says."""
    command = [sys.executable, "hack/vllm", "where"]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT))
    return found


@contextmanager
def booted(
    command: Sequence[str], port: int, log: Path, variables: Mapping[str, str]
) -> Iterator[str]:
    """Run a server in the repository's root until the block ends; yield its URL once healthy.

    Args:
        command: Its command line; it must listen on ``port`` of loopback and answer /health.
        port: That port.
        log: Where it writes.
        variables: Its environment, beyond this process's.

    Raises:
        AssertionError: It ended or was not healthy in time; the text tells its last words.
    """
    with running(command, port, log, variables):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, variables: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Do the same, and yield the process, which leads a group with its children in it."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(f"http://127.0.0.1:{port}", process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=END_SECONDS)
        finally:
            # Its children too, which may outlive it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    said = log.read_text(errors="replace").splitlines()
    told = [line for line in said if "Error" in line] + said[-10:]
    raise AssertionError("the server did not start:\n" + "\n".join(told))
