"""What the machine offers: its packages, a cache folder, locks, and commands with clear errors."""

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class Failure(Exception):
    """What went wrong and what to do about it, for a person; printed without a traceback."""


def say(message: str) -> None:
    """Prints one line of progress to standard error, which leaves standard output to answers."""
    print(message, file=sys.stderr, flush=True)


def run(
    *command: str | Path,
    input: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs a command and returns its standard output.

    Raises:
        Failure: With the command and the end of what it said, if it cannot start or fails.
    """
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv, input=input, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise Failure(f"{argv[0]} is not installed") from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise Failure(f"{' '.join(argv)} ended with status {done.returncode}:\n{said}")
    return done.stdout


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    what: str,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    keep_open: int | None = None,
) -> float:
    """Runs a long command with its output in a log, and says every half minute that it runs.

    Args:
        command: The command.
        log: The file that its output is added to.
        what: How to name the command to a person.
        folder: Where it runs.
        environment: Its environment; this process's where None.
        keep_open: A file descriptor that the command inherits (a lock it shall hold).

    Returns:
        How long it took, in seconds.

    Raises:
        Failure: With the end of the log, if the command fails.
    """
    began = time.monotonic()
    with log.open("a") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=() if keep_open is None else (keep_open,),
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=30)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  {what}: running for {time.monotonic() - began:.0f} s")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status != 0:
        said = "\n".join(log.read_text(errors="replace").strip().splitlines()[-12:])
        raise Failure(f"{what} failed with status {status}; the end of {log}:\n{said}")
    return time.monotonic() - began


def cache_folder() -> Path:
    """The folder, outside the repository, for what is built once and used by every clone."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "specschedule"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def lock(name: str) -> Iterator[int]:
    """Holds a lock of this machine's network namespace, waiting for it if need be.

    The lock is an abstract Unix socket: it leaves no file behind and the kernel gives it back
    when its last holder ends, however it ends.

    Args:
        name: What is locked, unique on the machine.

    Yields:
        The descriptor that holds the lock; a child that inherits it holds the lock on.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        waiting = False
        while True:
            try:
                holder.bind(f"\0specschedule/{name}")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not waiting:
                    say(f"waiting for another process that holds the lock {name}")
                waiting = True
                time.sleep(0.2)
        yield holder.fileno()


def can_overlay(folder: Path) -> bool:
    """Whether overlay mounts work in an existing folder: not where it lies on one itself."""
    return run("stat", "--file-system", "--format=%T", folder).strip() != "overlayfs"


def require_root() -> None:
    """Refuses to go on without the rights that namespaces and mounts need."""
    if os.geteuid() != 0:
        raise Failure("this needs root (namespaces, mounts and links); run it as root or with sudo")


def require_packages(needed: Mapping[str, str]) -> None:
    """Installs the Debian packages that are missing.

    Args:
        needed: What to look for (a command's name, or an absolute path) and its package.

    Raises:
        Failure: Naming the packages, where this process cannot install them.
    """

    def missing() -> list[str]:
        return sorted(
            {
                package
                for probe, package in needed.items()
                if not (Path(probe).exists() if probe.startswith("/") else shutil.which(probe))
            }
        )

    packages = missing()
    if not packages:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Failure(f"these packages are missing, install them first: {' '.join(packages)}")
    say(f"installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", environment=environment)
    run(
        *("apt-get", "install", "-y", "-q", "--no-install-recommends"),
        *packages,
        environment=environment,
    )
    if packages := missing():
        raise Failure(f"apt-get did not bring what is needed from: {' '.join(packages)}")
