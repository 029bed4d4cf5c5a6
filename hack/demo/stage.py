"""The stage that the demo and the end-to-end tests share: our image, chart and a Prometheus."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = Path(__file__).resolve().parent / "manifests"
SYSTEM = "specschedule-system"
MONITORING = "specschedule-monitoring"
PROMETHEUS_URL = f"http://prometheus.{MONITORING}:9090"
GPUS = 8
"""Two scenarios with two serving pods each, a surge pod, a trial pod, and some to spare."""


class StageError(Exception):
    """A step failed; the message says which and what to do."""


@dataclass(frozen=True)
class Stage:
    """A cluster to act on."""

    kubeconfig: str
    kubectl_path: str
    helm_path: str
    image: str
    embedded: bool
    contents: str = ""

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        """Run kubectl; return its standard output."""
        return self._run([self.kubectl_path, *words], given, check)

    def helm(self, *words: str) -> str:
        """Run helm; return its standard output."""
        return self._run([self.helm_path, *words], None, True)

    def _run(self, command: list[str], given: str | None, check: bool) -> str:
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig}
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, env=environment, check=False
        )
        if check and done.returncode != 0:
            raise StageError(f"{' '.join(command[:6])} ...: {done.stderr.strip()}")
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        """Return an object as JSON; empty when there is none."""
        found = self.kubectl("get", *words, "-o", "json", "--ignore-not-found")
        answer: dict[str, Any] = json.loads(found) if found.strip() else {}
        return answer

    def apply(self, template: str, **values: Any) -> None:
        """Apply one of the demo's manifests, filled in."""
        self.kubectl("apply", "-f", "-", given=manifest(template, image=self.image, **values))

    def install_prometheus(self) -> None:
        """Install a Prometheus that scrapes annotated pods every second."""
        image = "localhost/prometheus:1" if self.embedded else "prom/prometheus:v3.5.0"
        discover = (Path(__file__).resolve().parent / "discover.py").read_text()
        self.apply(
            "prometheus.yaml", namespace=MONITORING, prometheus_image=image, discover=discover
        )

    def install_chart(self) -> None:
        """Install or upgrade the operator's chart; another image of the same tag restarts it."""
        repository, _, tag = self.image.rpartition(":")
        self.helm(
            "upgrade", "--install", "specschedule", str(ROOT / "charts/specschedule"),
            "--namespace", SYSTEM, "--create-namespace",
            "--set", f"image.repository={repository}",
            "--set", f"image.tag={tag}",
            "--set", f"image.pullPolicy={'Never' if self.embedded else 'IfNotPresent'}",
            "--set", f"prometheus.url={PROMETHEUS_URL}",
            "--set-string", f"podAnnotations.specschedule\\.dev/image={self.contents}",
            "--take-ownership",
        )  # fmt: skip

    def await_ready(self) -> None:
        """Wait until the operator and Prometheus run."""
        for namespace in (SYSTEM, MONITORING):
            self.kubectl("rollout", "status", "deployment", "-n", namespace, "--timeout", "180s")

    def await_deployment(self, namespace: str, name: str, timeout_s: int) -> None:
        """Wait until a Deployment is rolled out."""
        self.kubectl(
            "rollout", "status", f"deployment/{name}", "-n", namespace, f"--timeout={timeout_s}s"
        )

    def arguments(self, namespace: str, deployment: str) -> list[list[str]]:
        """Return the argument lists of the serving pods that run."""
        pods = self.get("pods", "-n", namespace, "-l", f"app={deployment}").get("items", [])
        return [
            pod["spec"]["containers"][0].get("args") or []
            for pod in pods
            if not pod["metadata"].get("deletionTimestamp")
        ]


def manifest(template: str, **values: Any) -> str:
    """Return a demo manifest with its values filled in.

    Values are written as JSON, which is YAML, so that quoting is never a matter of luck.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(MANIFESTS), undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    text = environment.get_template(template).render(**values)
    list(yaml.safe_load_all(text))
    return text


def embedded() -> Stage:
    """Bring the embedded cluster up, with our images and pretend GPUs on its node."""
    cluster = [sys.executable, str(ROOT / "hack/cluster")]
    subprocess.run([*cluster, "up"], check=True)
    contents = load_images()
    subprocess.run([*cluster, "gpus", str(GPUS)], check=True)
    kubectl, helm = _programs()
    return Stage(
        kubeconfig=_say([*cluster, "kubeconfig"]),
        kubectl_path=kubectl,
        helm_path=helm,
        image=IMAGE,
        embedded=True,
        contents=contents,
    )


IMAGE = "localhost/specschedule:dev"


def load_images() -> str:
    """Build the images from the Dockerfile, and give them to the node.

    Returns:
        A name for what is in the project's image; another content has another name.
    """
    archives = _say([sys.executable, str(ROOT / "hack/image"), "build"]).splitlines()
    for archive in archives:
        subprocess.run(
            [sys.executable, str(ROOT / "hack/cluster"), "load-image", archive.split()[-1]],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return next(Path(a.split()[-1]).name for a in archives if a.startswith(IMAGE))


def current() -> Stage:
    """Use the cluster that KUBECONFIG points at.

    Raises:
        StageError: KUBECONFIG or IMAGE is not set.
    """
    kubeconfig = os.environ.get("KUBECONFIG", str(Path.home() / ".kube/config"))
    image = os.environ.get("IMAGE")
    if not image:
        raise StageError(
            "CLUSTER=current needs IMAGE: build the Dockerfile, give the image to the cluster's "
            "registry (or `kind load docker-image`), and say IMAGE=registry/specschedule:tag"
        )
    return Stage(
        kubeconfig=kubeconfig, kubectl_path="kubectl", helm_path="helm", image=image,
        embedded=False,
    )  # fmt: skip


def _programs() -> tuple[str, str]:
    kubectl, helm = _say([sys.executable, str(ROOT / "hack/cluster"), "build"]).splitlines()[-2:]
    return kubectl, helm


def _say(command: list[str]) -> str:
    """Return a command's standard output; its progress goes to our standard error."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Steps:
    """Numbered steps that say how long each took."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._began = time.monotonic()
        self._step = self._began

    def start(self, what: str) -> None:
        """Say what begins."""
        self._number += 1
        self._step = time.monotonic()
        print(f"[{self._number}/{self._total}] {what}", flush=True)

    def done(self) -> None:
        """Say how long it took."""
        now = time.monotonic()
        print(f"      {now - self._step:.0f} s (in all {now - self._began:.0f} s)", flush=True)
