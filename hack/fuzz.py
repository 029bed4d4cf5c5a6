"""Runs the tests marked fuzz round after round, with new examples, until five minutes are over.

At the end it says how many rounds that were and how long they took. Every round has a seed of its
own, so that the examples of one that failed can be had again.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300.0
"""Until then another round begins."""


def main() -> int:
    """Fuzz for five minutes, or until something falls over."""
    return rounds(pytest, first=int(time.time()), clock=time.monotonic)


def rounds(run: Callable[[int], int], *, first: int, clock: Callable[[], float]) -> int:
    """Run rounds until the time is over or one fails, and say so.

    Args:
        run: Runs a round with a seed and returns its exit code.
        first: Seed of the first round; each next one has the next number.
        clock: Seconds from some moment on.

    Returns:
        The exit code of the last round.
    """
    began, seed = clock(), first
    while (code := run(seed)) == 0 and clock() - began < SECONDS:
        seed += 1
    done = f"fuzz: {seed - first + 1} rounds in {clock() - began:.0f} s"
    print(f"{done}, seeds {first} to {seed}: " + ("no fault" if code == 0 else f"{seed} failed"))
    return code


def pytest(seed: int) -> int:
    """Run one round."""
    words = ["-q", "-m", "fuzz", f"--hypothesis-seed={seed}", "tests"]
    command = [sys.executable, "-m", "pytest", *words]
    environment = os.environ | {"HYPOTHESIS_PROFILE": "fuzz"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
