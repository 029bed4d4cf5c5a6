"""Runs every tier of the tests and says at the end how many ran in each.

What the real tiers need is prepared first, outside any test's time-out: the cluster's programs,
the images, and vLLM's virtual environment. A tier that cannot be prepared fails the run: missing
evidence is never a pass.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOME_FAILED, NOTHING_CHOSEN = 1, 5
"""Exit codes of pytest."""


def step(what: str, *command: str) -> None:
    """Run a command of this repository and say how long it took."""
    print(f"== {what}", flush=True)
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
    print(f"== {what}: {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        sys.exit(f"{what} failed with {done.returncode}")


def main() -> int:
    """Prepare, test, clean up."""
    os.environ.setdefault("SPECSCHEDULE_CLUSTER_STATE", str(ROOT / ".cluster-test"))
    os.environ["SPECSCHEDULE_TIERS"] = "all"
    step("what an interrupted run left", "hack/cluster", "down")
    step("cluster programs", "hack/cluster", "build")
    step("images", "hack/image", "build")
    step("Prometheus", "hack/image", "program")
    step("vLLM on CPU and its model pair", "hack/vllm", "setup")
    try:
        return tests(sys.argv[1:])
    finally:
        step("cluster down", "hack/cluster", "down")


def tests(asked: list[str]) -> int:
    """Run pytest; what failed is run once more, alone, and either way it is said.

    What holds no time against anything runs on both cores, then so what waits for simulated
    servers, then the rest by itself. The outer tiers measure on whatever machine they get: a
    neighbour's burst can spoil a window that no fault of ours spoilt. A test that passes only the
    second time is named as such.
    """
    parts = {
        "both-cores": ["-n", "2", "-m", "not alone and not timed"],
        "timed": ["-n", "2", "-m", "timed"],
        "one-at-a-time": ["-m", "alone"],
    }
    codes = {}
    with tempfile.NamedTemporaryFile() as counts:
        for part, words in parts.items():
            began = time.monotonic()
            codes[part] = pytest(part, "--durations=15", *words, *asked, counts=counts.name)
            print(f"== {part}: {time.monotonic() - began:.0f} s", flush=True)
    failed = [part for part, code in codes.items() if code == SOME_FAILED]
    for part in failed:
        print("== SOME TESTS FAILED; once more, alone, only those", flush=True)
        codes[part] = pytest(part, "--last-failed", "--last-failed-no-failures=none")
    if failed and not any(codes.values()):
        print("== the tests above passed only when run alone: look at them", flush=True)
    if asked and set(codes.values()) == {0, NOTHING_CHOSEN}:
        return 0  # All that was asked for is of one part.
    return max(codes.values())


def pytest(part: str, *words: str, counts: str = "") -> int:
    """Run pytest in this repository; what failed is remembered by part."""
    cache = ["-o", f"cache_dir=.pytest_cache/{part}"]
    command = [sys.executable, "-m", "pytest", "-q", *words, *cache]
    environment = os.environ | ({"SPECSCHEDULE_TIER_COUNTS": counts} if counts else {})
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
