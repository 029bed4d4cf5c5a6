"""A cluster for these tests alone, apart from one that a demo may have up."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = "localhost/specschedule-base:1"


@dataclass(frozen=True)
class Clusters:
    """The command `hack/cluster` for the cluster of one state folder."""

    state: Path

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, str(REPOSITORY / "hack" / "cluster"), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SPECSCHEDULE_CLUSTER_STATE": str(self.state)}

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def __call__(self, *arguments: str) -> str:
        done = self.call(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        kubectl = [self.state / "bin" / "kubectl", f"--kubeconfig={self.state / 'kubeconfig'}"]
        done = subprocess.run(
            [*map(str, kubectl), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: object) -> None:
        for item in objects:
            self.kubectl("apply", "-f", "-", stdin=json.dumps(item))

    @property
    def init(self) -> int:
        return int(json.loads((self.state / "init.json").read_text())["pid"])


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def base_archive() -> str:
    built = subprocess.run(
        [sys.executable, REPOSITORY / "hack" / "image", "build", "base"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    name, archive = built.stdout.split()
    assert name == IMAGE
    return archive


@pytest.fixture(scope="session")
def cluster(base_archive: str) -> Iterator[Clusters]:
    here = Clusters(REPOSITORY / ".work" / "tests-cluster")
    here("down")
    here("up")
    here("load-image", base_archive)
    yield here
    here("down")


@pytest.fixture
def other() -> Iterator[Clusters]:
    """A second clone's cluster, not yet up."""
    here = Clusters(REPOSITORY / ".work" / "tests-cluster-other")
    here("down")
    yield here
    here("down")
