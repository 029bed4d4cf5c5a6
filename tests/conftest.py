"""Tiers of tests, how much input is generated, and the stage that the outer tiers share.

A test's tier is its outermost marker: e2e, cluster, vllm, else unit. What a tier needs may be
missing on a developer's machine, and then it is skipped, loudly. Where everything must be proven
(``make test``, CI) a test of a tier that does not run is a failure: missing evidence is never a
pass.
"""

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from .booted import installed

if TYPE_CHECKING:
    from hack.demo.stage import Stage

ROOT = Path(__file__).resolve().parents[1]
# hack is no part of the package; appended, so that the folder operator/ never hides a module.
sys.path.append(str(ROOT))

TIERS = ("unit", "vllm", "cluster", "e2e")
"""In the order they run: the cheapest first."""

TIMED = [
    *(ROOT / "tests" / room for room in ("load", "local", "sim")),
    ROOT / "tests/gates/test_planted_faults.py",
]
"""What holds times against a simulated server: beside its like, never beside what fills a core."""

ALL_MUST_RUN = os.environ.get("CI") == "true" or os.environ.get("SPECSCHEDULE_TIERS") == "all"

E2E_SECONDS = 1800
"""Time-out of an end-to-end test: it may wait for others that run beside it."""

GPUS = 64
"""Pretended, so that no test waits for another's."""

settings.register_profile("default", deadline=None, max_examples=50)
# A round; make fuzz runs as many as five minutes hold.
settings.register_profile("fuzz", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def tier(item: pytest.Item) -> str:
    """Return the tier of a test."""
    return next((each for each in reversed(TIERS) if item.get_closest_marker(each)), "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if tier(item) != "unit":
            item.add_marker(pytest.mark.alone)
        elif any(item.path.is_relative_to(each) for each in TIMED):
            item.add_marker(pytest.mark.timed)
        if tier(item) == "e2e" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(E2E_SECONDS))
    # The real engine in pods comes last of all: it needs the machine for itself.
    items.sort(
        key=lambda item: (TIERS.index(tier(item)), item.get_closest_marker("vllm") is not None)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for each in TIERS:
        if item.get_closest_marker(each) and (missing := _missing(each)):
            pytest.skip(missing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    report.tier = tier(item)
    if ALL_MUST_RUN and report.skipped and report.tier != "unit":
        report.outcome = "failed"
        report.longrepr = f"must run here, and was skipped: {_reason(report)}"
    return report


def _reason(report: Any) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests ran, failed and were skipped in each tier, and what is not proven."""
    worker = "PYTEST_XDIST_WORKER" in os.environ
    if worker or terminalreporter.config.option.collectonly:
        return
    found: dict[str, Counter[str]] = {each: Counter() for each in TIERS}
    seconds = dict.fromkeys(TIERS, 0.0)
    why: dict[str, set[str]] = {each: set() for each in TIERS}
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if (which := getattr(report, "tier", None)) is None:
                continue
            seconds[which] += report.duration
            if report.when == "call" or report.outcome != "passed":
                found[which][outcome] += 1
            if outcome == "skipped":
                why[which].add(_reason(report))
    _join_earlier_parts(found, seconds, why)
    terminalreporter.section("tests by tier")
    for each in TIERS:
        count = found[each]
        ran = count["passed"] + count["failed"]
        line = f"{each:<8} {ran:>5} ran, {count['failed'] + count['error']} failed, "
        line += f"{count['skipped']} skipped ({seconds[each]:.0f} s)"
        good = count["skipped"] == 0 and count["failed"] + count["error"] == 0
        terminalreporter.write_line(line, green=good and ran > 0, red=not good)
        for reason in sorted(why[each]):
            terminalreporter.write_line(f"  NOT PROVEN: {reason}", red=True)


def _join_earlier_parts(
    found: dict[str, Counter[str]], seconds: dict[str, float], why: dict[str, set[str]]
) -> None:
    """Add what earlier parts of one run counted, and keep the sum for the next part."""
    kept = os.environ.get("SPECSCHEDULE_TIER_COUNTS")
    if kept is None:
        return
    earlier = json.loads(Path(kept).read_text() or "{}")
    for each, (counts, took, reasons) in earlier.items():
        found[each].update(counts)
        seconds[each] += took
        why[each].update(reasons)
    told = {each: (found[each], seconds[each], sorted(why[each])) for each in TIERS}
    Path(kept).write_text(json.dumps(told))


_CLUSTER_READY = """
import os, sys
sys.path.insert(0, "hack/cluster")
import programs
if os.geteuid() != 0:
    sys.exit("the embedded cluster needs root")
if not all(module.folder.is_dir() for module in programs.ALL):
    sys.exit("the cluster's programs are not built: run `hack/cluster build`, or `make test`")
"""

_VLLM_READY = """
import sys
sys.path.insert(0, "hack/vllm")
import environment
try:
    environment.require()
except environment.Failure as failure:
    sys.exit(str(failure))
"""


@functools.cache
def _missing(which: str) -> str | None:
    """Say what a tier needs and this machine lacks."""
    script = {"vllm": _VLLM_READY, "cluster": _CLUSTER_READY, "e2e": _CLUSTER_READY}.get(which)
    if script is None:
        return None
    # The folders of hack are programs, not packages: each is asked as the program that it is.
    asked = [sys.executable, "-c", script]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"{which} tests: {done.stderr.strip()}" if done.returncode else None


@pytest.fixture(scope="session")
def engine() -> dict[str, Any]:
    """Where the real engine lies, as `hack/vllm where` says."""
    return installed()


@dataclass(frozen=True)
class EmbeddedCluster:
    """The cluster of this session."""

    kubeconfig: Path
    kubectl: Path


@pytest.fixture(scope="session")
def cluster() -> EmbeddedCluster:
    """The embedded cluster, up, with nothing of ours running in it.

    It stays up: ``make test`` takes it down at its end, and a developer's next run finds it.
    """
    state = os.environ.setdefault("SPECSCHEDULE_CLUSTER_STATE", str(ROOT / ".cluster-test"))
    command = [sys.executable, str(ROOT / "hack/cluster")]
    subprocess.run([*command, "up"], check=True)
    built = subprocess.run(
        [sys.executable, str(ROOT / "hack/image"), "build", "base"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    subprocess.run([*command, "load-image", built.stdout.split()[1]], check=True)
    here = EmbeddedCluster(Path(state) / "kubeconfig", Path(state) / "bin" / "kubectl")
    # An operator that an earlier session left would act on the objects of tests that want none.
    subprocess.run(
        [
            *(here.kubectl, "--kubeconfig", here.kubeconfig, "delete", "deployment", "--all"),
            *("--namespace", "specschedule-system", "--cascade=foreground"),
        ],
        check=True,
    )
    return here


@pytest.fixture(scope="session")
def stage(cluster: EmbeddedCluster) -> "Stage":
    """The same cluster with our image, our chart, a Prometheus, and an operator that is ready."""
    from hack.demo import stage as stages

    here = stages.embedded()
    subprocess.run([sys.executable, str(ROOT / "hack/cluster"), "gpus", str(GPUS)], check=True)
    here.install_prometheus()
    here.install_chart()
    here.await_ready()
    return here
