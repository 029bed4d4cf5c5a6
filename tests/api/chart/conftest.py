"""Helm, and what the chart renders with given values."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).resolve().parents[3] / "charts" / "specschedule"
KUBERNETES = "1.36.3"
NAMESPACE = "specschedule-system"

Object = dict[str, Any]


class Helm:
    """The helm command; values are given as one JSON object."""

    def __init__(self, path: str) -> None:
        self._path = path

    def run(self, *words: str, **values: Any) -> subprocess.CompletedProcess[str]:
        given = ["--values", "-"] if values else []
        return subprocess.run(
            [self._path, *words, *given],
            input=json.dumps(values) if values else None,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def __call__(self, *words: str, **values: Any) -> str:
        done = self.run(*words, **values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def template(self, release: str = "specschedule", **values: Any) -> list[Object]:
        text = self(
            *("template", release, str(CHART), "--namespace", NAMESPACE),
            *("--kube-version", KUBERNETES),
            **values,
        )
        return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="session")
def helm(program: Callable[[str], str]) -> Helm:
    return Helm(program("helm"))
