"""A namespace of a real cluster with a serving Deployment in it, and what a person does there."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from hack.demo.stage import MONITORING, ROOT, SYSTEM, Stage, StageError, manifest

from specschedule.adapters.kubernetes.api import Api, connect

Object = dict[str, Any]

LABEL = "specschedule.dev/e2e"
"""On the namespaces of these tests, so that leftovers can be found."""

OPERATOR = f"system:serviceaccount:{SYSTEM}:specschedule"
NAME = "chat"

INCUMBENT = {"method": "eagle3", "model": "demo/drafter", "num_speculative_tokens": 12}
"""Far too many at 8 requests in flight, so that the gain of a good schedule is far above the
noise of short windows on a small machine."""
CANDIDATE = [[1, 2, 5], [3, 16, 1]]
MEASURED = "50m"
"""CPU that an engine asks for whose windows count. The scenes that play at once, with a load job
each, must fit two cores beside the serving pods of all others."""
QUESTION: Object = {
    "target": {"name": NAME},
    "mode": "Auto",
    "slo": {"ttft": "2s", "tpot": "250ms"},
    "candidates": [{"name": "card", "schedule": CANDIDATE}],
    "load": {
        "points": [8],
        "requests": 40,
        "outputTokens": 24,
        "promptTokens": 32,
        "maxSendLag": "50ms",
    },
    "bar": {"improve": [{"metric": "goodput", "at": [8], "by": "70%"}]},
    "experiment": {"effort": "Quick", "seed": 7, "deadline": "25m"},
}


class Watch:
    """Every event of one kind in a namespace, from before its first until it is stopped."""

    def __init__(self, command: list[str], record: Path) -> None:
        self._record = record
        with record.open("w") as into:
            self._process = subprocess.Popen(command, stdout=into, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def objects(self) -> list[Object]:
        """Each state that was seen, oldest first, deletions too."""
        decoder, text, at, found = json.JSONDecoder(), self._record.read_text(), 0, []
        while (at := text.find("{", at)) >= 0:
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:  # The last one, cut off by the stop.
                break
            found.append(event["object"])
        return found


class Place:
    """One namespace."""

    def __init__(
        self, stage: Stage, namespace: str, folder: Path, closing: threading.Event
    ) -> None:
        """Make the namespace.

        Args:
            stage: The cluster.
            namespace: Name.
            folder: Where watches write.
            closing: Set when nobody waits for this place any more.
        """
        self.stage = stage
        self.namespace = namespace
        self._folder = folder
        self._closing = closing
        self.api = Api(connect(stage.kubeconfig))
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": namespace, "labels": {LABEL: "true"}},
            }
        )

    def kubectl(self, *words: str, given: str | None = None) -> str:
        return self.stage.kubectl("-n", self.namespace, *words, given=given)

    def apply(self, *documents: Object) -> None:
        text = yaml.safe_dump_all(documents)
        self.stage.kubectl("-n", self.namespace, "apply", "-f", "-", given=text)

    def serve(
        self,
        *,
        world: str = "demo",
        speculative: Object | None = INCUMBENT,
        replicas: int = 1,
        wait: bool = True,
        cpu: str = "10m",
        change: Callable[[Object], None] = lambda pod: None,
        **values: Any,
    ) -> None:
        """Deploy the simulated engine and its Service.

        Args:
            world: Physics of the engine.
            speculative: Its speculative config.
            replicas: Serving pods.
            wait: Whether to wait until they are ready.
            cpu: What each asks for; engines that are measured need ``MEASURED``.
            change: Edits the pod template's spec.
            values: More values of the demo's manifest.
        """
        text = manifest(
            "serving-sim.yaml",
            image=self.stage.image,
            namespace=self.namespace,
            name=NAME,
            world=world,
            speculative=speculative,
            replicas=replicas,
            **values,
        )
        _, deployment, service = yaml.safe_load_all(text)
        pod = deployment["spec"]["template"]["spec"]
        (server,) = pod["containers"]
        server["resources"]["requests"]["cpu"] = cpu
        # A probe that waits for a core of a busy machine must not look like serving that dips.
        server["readinessProbe"]["timeoutSeconds"] = 10
        change(pod)
        self.apply(deployment, service)
        if wait:
            self.stage.await_deployment(self.namespace, NAME, 300)

    def ask(self, name: str = NAME, **changes: Any) -> None:
        """Apply a SpecSchedule: the usual question, with whole fields of its spec replaced."""
        self.apply(question(name, **changes))

    # What is there.

    def get(self, resource: str, name: str) -> Object | None:
        return self.api.get(resource, self.namespace, name)

    def schedule(self, name: str = NAME) -> Object:
        return self.get("specschedules", name) or {}

    def status(self, name: str = NAME) -> Object:
        status: Object = self.schedule(name).get("status") or {}
        return status

    def deployment(self) -> Object:
        found = self.get("deployments", NAME)
        assert found is not None, f"Deployment {self.namespace}/{NAME} is gone"
        return found

    def arguments(self) -> list[str]:
        containers = self.deployment()["spec"]["template"]["spec"]["containers"]
        return list(containers[0]["args"])

    def trials(self) -> list[Object]:
        """SpecTrials in the order of their launches."""
        found = self.api.list("spectrials", self.namespace)
        return sorted(found, key=lambda trial: trial["spec"]["launch"])

    def ours(self, resource: str = "pods") -> list[Object]:
        """Objects that the operator made here."""
        return self.api.list(
            resource, self.namespace, labels="app.kubernetes.io/managed-by=specschedule"
        )

    def serving_pods(self) -> list[Object]:
        pods = self.api.list("pods", self.namespace, labels=f"app={NAME}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def template_hashes(self) -> set[str]:
        """Which pod templates the serving pods were made from, as their ReplicaSets label them."""
        return {pod["metadata"]["labels"]["pod-template-hash"] for pod in self.serving_pods()}

    def events(self, reason: str) -> list[Object]:
        fields = f"reason={reason},involvedObject.kind=SpecSchedule"
        return self.api.list("events", self.namespace, fields=fields)

    # Waiting, always for something and never for ever.

    def until(self, what: str, true: Callable[[], Any], seconds: float = 600) -> Any:
        """Wait for a claim and return what makes it true."""
        deadline = time.monotonic() + seconds
        while not (found := true()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.describe()}")
            if self._closing.wait(0.5):
                raise AssertionError(f"nobody waits any more until {what}")
        return found

    def outcome(self, name: str = NAME, seconds: float = 1500) -> Object:
        """Wait for the end of the run and return the status."""
        self.until("the run ends", lambda: self.status(name).get("outcome"), seconds)
        return self.status(name)

    def reason(self, wanted: str, name: str = NAME, seconds: float = 120) -> Object:
        """Wait until the run says this reason and return the status."""
        self.until(f"reason {wanted}", lambda: self.status(name).get("reason") == wanted, seconds)
        return self.status(name)

    def under_load(self, launch: int = 1) -> Object:
        """Wait until a launch is being measured; return its trial pod."""

        def running() -> Object | None:
            # The load of the launch before may still run while this one's pod waits for its place.
            own = {
                _label(pod, "role"): pod
                for pod in self.ours()
                if _label(pod, "launch") == str(launch) and pod["status"].get("phase") == "Running"
            }
            return own["trial"] if own.keys() >= {"trial", "load"} else None

        found: Object = self.until(f"launch {launch} is under load", running)
        return found

    @contextlib.contextmanager
    def watching(self, resource: str) -> Iterator[Watch]:
        """Record every event of a kind in this namespace."""
        command = [
            *(self.stage.kubectl_path, "--kubeconfig", self.stage.kubeconfig),
            *("-n", self.namespace, "get", resource, "-o", "json"),
            *("--watch", "--output-watch-events"),
        ]
        watch = Watch(command, self._folder / f"{self.namespace}-{resource}.json")
        try:
            yield watch
        finally:
            watch.stop()

    def counted(self, run: str) -> dict[tuple[str, str, str, str], float]:
        """Ask Prometheus for every final request counter of a run.

        Returns:
            Requests by launch, visit, cell and outcome.
        """
        query = f'max_over_time(specschedule_requests_total{{run="{run}"}}[1h])'
        service = f"/api/v1/namespaces/{MONITORING}/services/prometheus:9090/proxy"
        answer = self.kubectl("get", "--raw", f"{service}/api/v1/query?query={quote(query)}")
        found: dict[tuple[str, str, str, str], float] = {}
        for series in json.loads(answer)["data"]["result"]:
            labels = series["metric"]
            key = (labels["launch"], labels["visit"], labels["cell"], labels["outcome"])
            found[key] = max(found.get(key, 0.0), float(series["value"][1]))
        return found

    def describe(self) -> str:
        """What a person would look at first when this namespace surprises them."""
        with contextlib.suppress(StageError):
            return "\n".join(
                (
                    self.kubectl("get", "specschedules,spectrials,pods,jobs,deployments"),
                    self.kubectl("get", "specschedules", "-o", "yaml")[-6000:],
                    self.kubectl("get", "events", "--sort-by=.lastTimestamp")[-3000:],
                )
            )
        return "nothing can be read"


def question(name: str = NAME, **changes: Any) -> Object:
    """A SpecSchedule that asks the usual question, with whole fields of its spec replaced."""
    spec = {field: value for field, value in {**QUESTION, **changes}.items() if value is not None}
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": name},
        "spec": spec,
    }


def soon(seconds: int, **more: Any) -> Object:
    """An experiment that must be decided within so many seconds."""
    return {**QUESTION["experiment"], "deadline": f"{seconds}s", **more}


def conditions(status: Object) -> dict[str, str]:
    """The status of each condition, by type."""
    return {each["type"]: each["status"] for each in status["conditions"]}


def untouched(before: Object, place: Place, deployments: Watch) -> None:
    """Serving was left alone: not written, and never with fewer pods."""
    after = place.deployment()
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"] == before["spec"]
    available = [each["status"].get("availableReplicas", 0) for each in deployments.objects()]
    assert available, "the watch saw nothing"
    assert set(available) == {before["spec"]["replicas"]}


def audit(*words: str) -> list[Object]:
    """What the API server answered, oldest first; words as ``hack/cluster audit`` takes them."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack/cluster"), "audit", *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def writes_of_the_operator(place: Place, since: str) -> list[Object]:
    """The operator's writes in a namespace that the API server took."""
    return [
        event
        for event in audit("--since", since)
        if (event["user"], event["namespace"]) == (OPERATOR, place.namespace)
        and event["code"] < 300
    ]


def _label(labelled: Object, name: str) -> str | None:
    labels = labelled["metadata"].get("labels") or {}
    value: str | None = labels.get(f"specschedule.dev/{name}")
    return value
