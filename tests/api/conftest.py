"""A client of the live API server, in a namespace of the test module's own."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """kubectl or helm, as the embedded cluster builds them."""
    built = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "cluster"), "build"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    return {Path(path).name: path for path in built}.__getitem__


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, path: str, kubeconfig: str, namespace: str, cache: Path) -> None:
        self.namespace = namespace
        self._command = [
            *(path, "--kubeconfig", kubeconfig),
            *("--namespace", namespace, "--cache-dir", str(cache)),
        ]

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments], input=stdin, capture_output=True, text=True, timeout=60
        )

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(self("get", kind, name, "-o", "json"))
        return stored

    def apply(self, document: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
        return self.run("apply", "-f", "-", *more, stdin=json.dumps(document))

    def patch_status(self, kind: str, name: str, status: dict[str, Any], **more: Any) -> None:
        body = json.dumps({"status": status, **more})
        self("patch", kind, name, "--subresource=status", "--type=merge", "-p", body)


@pytest.fixture(scope="module")
def kubectl(
    cluster: Any, program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    # A cache of its own: one filled before the definitions exist would not know the kinds.
    cache = tmp_path_factory.mktemp("kubectl")
    namespace = f"api-{uuid.uuid4().hex[:8]}"
    client = Kubectl(program("kubectl"), str(cluster.kubeconfig), namespace, cache)
    client("apply", "-f", str(ROOT / "crds"))
    client("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=30s")
    client("create", "namespace", client.namespace)
    yield client
    client("delete", "namespace", client.namespace, "--wait=false")
