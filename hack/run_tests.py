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
    step("vLLM on CPU and its model pair", "hack/vllm", "setup")
    try:
        return tests(sys.argv[1:])
    finally:
        step("cluster down", "hack/cluster", "down")


def tests(asked: list[str]) -> int:
    """Run pytest; what failed is run once more, alone, and either way it is said.

    What holds no time against anything runs on both cores, then the rest by itself. The outer tiers
    measure on whatever machine they get: a neighbour's burst can spoil a window that no fault of
    ours spoilt. A test that passes only the second time is named as such.
    """
    parts = {"both cores": ["-n", "2", "-m", "not alone"], "one at a time": ["-m", "alone"]}
    codes = []
    with tempfile.NamedTemporaryFile() as counts:
        os.environ["SPECSCHEDULE_TIER_COUNTS"] = counts.name
        for what, words in parts.items():
            began = time.monotonic()
            cache = ["-o", f"cache_dir=.pytest_cache/{what.replace(' ', '-')}"]
            codes.append(pytest("--durations=15", *words, *cache, *asked))
            print(f"== {what}: {time.monotonic() - began:.0f} s", flush=True)
        del os.environ["SPECSCHEDULE_TIER_COUNTS"]
    once_more = [0 if code == NOTHING_CHOSEN and asked else code for code in codes]
    for at, what in enumerate(parts):
        if codes[at] == SOME_FAILED:
            print("== SOME TESTS FAILED; once more, alone, only those", flush=True)
            cache = ["-o", f"cache_dir=.pytest_cache/{what.replace(' ', '-')}"]
            once_more[at] = pytest("--last-failed", "--last-failed-no-failures=none", *cache)
    if SOME_FAILED in codes and not any(once_more):
        print("== the tests above passed only when run alone: look at them", flush=True)
    return max(once_more)


def pytest(*words: str) -> int:
    """Run pytest in this repository."""
    command = [sys.executable, "-m", "pytest", "-q", *words]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
