"""A SpecSchedule and its serving Deployment on a live API server, in a namespace per test.

Pods of these tests ask for a scheduler that does not exist, so that a test can say of them what a
scheduler and a kubelet would.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from specschedule.adapters.kubernetes import KubernetesWorld
from specschedule.adapters.kubernetes.api import Api, connect
from specschedule.core.observed import MetricsFacts, Observed, TrialSpec
from specschedule.core.regime import ServingRegime
from specschedule.core.target import TargetFacts
from specschedule.core.visit import Visit
from specschedule.ports import Conflict, Key, Unavailable

ROOT = Path(__file__).resolve().parents[2]
GROUP, VERSION = "specschedule.dev", "v1alpha1"
NOW = 1_800_000_000.0
"""Later than anything that these tests create."""


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


class Counters:
    """A Prometheus that is there and has what the test put into it."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, float]] | None = {}
        self.asked: list[tuple[str, int, int, float]] = []
        self.regime: ServingRegime | None = None
        self.looked_at: list[tuple[str, list[str]]] = []

    def check(self, url: str | None) -> MetricsFacts:
        return MetricsFacts(url=url, available=url is not None)

    def final_counts(
        self, url: str, *, run: str, launch: int, visit: int, at: float
    ) -> dict[str, dict[str, float]] | None:
        self.asked.append((run, launch, visit, at))
        return self.counts

    def unseen(self, url: str, *, run: str, launch: int, visit: int, at: float) -> str:
        return "query returned no series"

    def serving(
        self, url: str, *, namespace: str, pods: Sequence[str], points: Sequence[int]
    ) -> ServingRegime | None:
        self.looked_at.append((namespace, list(pods)))
        return self.regime


class Line(Api):
    """The line to the API server, on which calls are noted and answers can be disturbed."""

    calls: list[str] = []
    kubelets_reachable = True

    def _call(self, method: str, path: str, *rest: Any) -> tuple[int, bytes]:
        self.calls.append(f"{method} {path}")
        if path.endswith("/log") and not self.kubelets_reachable:
            return 500, b'{"message": "dial tcp 10.0.0.9:10250: connect: no route to host"}'
        return super()._call(method, path, *rest)


def serving(name: str = "chat", *arguments: str) -> dict[str, Any]:
    labels = {"app": "llm", "tier": "gpu"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "schedulerName": "nobody",
                    "containers": [
                        {
                            "name": "server",
                            "image": "example.test/vllm:0.32.0",
                            "command": ["vllm", "serve", "model"],
                            "args": [
                                *("--max-num-seqs", "16", "--speculative-config"),
                                '{"method": "eagle3", "model": "d", "num_speculative_tokens": 5}',
                                *("--seed", "0", *arguments),
                            ],
                            "ports": [{"containerPort": 8000}],
                            "resources": {"requests": {"cpu": "10m"}},
                        }
                    ],
                },
            },
        },
    }


def wanted(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "SpecSchedule",
        "metadata": {"name": name},
        "spec": {
            "target": {"kind": "Deployment", "name": "chat"},
            "slo": {"ttft": "500ms"},
            "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
            "load": {"points": [1, 8]},
            "bar": {"improve": [{"metric": "goodput", "at": [8], "by": "15%"}]},
            "prometheus": {"url": "http://prometheus.test:9090"},
            **spec,
        },
    }


class Place:
    """One namespace, and what a person or a kubelet does in it."""

    def __init__(self, api_client: client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self.core = client.CoreV1Api(api_client)
        self.apps = client.AppsV1Api(api_client)
        self.batch = client.BatchV1Api(api_client)
        self.custom = client.CustomObjectsApi(api_client)
        self.metrics = Counters()
        self.api = Line(api_client)
        self.world = KubernetesWorld(
            metrics=self.metrics,
            image="specschedule:test",
            image_pull_policy="Never",
            api=self.api,
            clock=lambda: NOW,
        )
        self.key = Key(namespace, "chat")

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        create = {
            "SpecSchedule": lambda: self.custom.create_namespaced_custom_object(
                GROUP, VERSION, self.namespace, "specschedules", body
            ),
            "SpecTrial": lambda: self.custom.create_namespaced_custom_object(
                GROUP, VERSION, self.namespace, "spectrials", body
            ),
            "Deployment": lambda: self.apps.create_namespaced_deployment(self.namespace, body),
            "Pod": lambda: self.core.create_namespaced_pod(self.namespace, body),
            "Service": lambda: self.core.create_namespaced_service(self.namespace, body),
            "ConfigMap": lambda: self.core.create_namespaced_config_map(self.namespace, body),
            "PersistentVolumeClaim": lambda: self.core.create_namespaced_persistent_volume_claim(
                self.namespace, body
            ),
            "ResourceQuota": lambda: self.core.create_namespaced_resource_quota(
                self.namespace, body
            ),
        }
        made: dict[str, Any] = create[body["kind"]]()
        return made

    def get(self, resource: str, name: str) -> dict[str, Any]:
        found = self.api.get(resource, self.namespace, name)
        assert found is not None, f"{resource}/{name} is not there"
        return found

    def missing(self, resource: str, name: str) -> bool:
        return self.api.get(resource, self.namespace, name) is None

    def names(self, resource: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.api.list(resource, self.namespace)]

    def observe(self) -> Observed:
        observed = self.world.observe(self.key)
        assert observed is not None
        return observed

    def target(self) -> TargetFacts:
        target = self.observe().target
        assert isinstance(target, TargetFacts), target
        return target

    def plan(self, arm: str = "candidate-card", launch: int = 1, **fields: Any) -> TrialSpec:
        target = self.target()
        visit = {
            "run": "7f3a91c2",
            "arm": arm,
            "launch": launch,
            "round": 1,
            "url": "http://pending",
            "windows": [{"cell": "hold8", "profile": {"kind": "hold", "concurrency": 8}}],
            "slo": {"ttft": "500ms"},
        }
        return TrialSpec.model_validate(
            {
                "run_id": "7f3a91c2",
                "arm": arm,
                "launch": launch,
                "round": 1,
                "position": 1,
                "speculative": {"method": "eagle3", "model": "d", "num_speculative_tokens": 2},
                "visit": Visit.model_validate(visit),
                "template_hash": target.template_hash,
                "incumbent": target.server.speculative,
                "incumbent_arguments": target.server.arguments,
                "bar_digest": "9c1e",
                **fields,
            }
        )

    def accounts(self) -> list[Any]:
        return list(self.core.list_namespaced_service_account(self.namespace).items)

    def pod_status(self, name: str, status: dict[str, Any]) -> None:
        """Say of a pod what a kubelet would."""
        self.core.patch_namespaced_pod_status(name, self.namespace, {"status": status})

    def pod(self, name: str, **metadata: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {
                "schedulerName": "nobody",
                "containers": [{"name": "c", "image": "example.test/x:1"}],
            },
        }


@pytest.fixture(scope="module")
def connection(cluster: Any) -> Iterator[client.ApiClient]:
    api_client = connect(str(cluster.kubeconfig))
    kinds = client.ApiextensionsV1Api(api_client)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        name = body["metadata"]["name"]
        try:
            stored = kinds.read_custom_resource_definition(name)
            body["metadata"]["resourceVersion"] = stored.metadata.resource_version
            kinds.replace_custom_resource_definition(name, body)
        except client.ApiException as error:
            if error.status != 404:
                raise
            kinds.create_custom_resource_definition(body)
    until(lambda: _served(Api(api_client)))
    yield api_client
    api_client.close()


def _served(api: Api) -> bool:
    """Say whether the kinds answer: a server makes their storage anew after a replacement."""
    try:
        for resource in ("specschedules", "spectrials"):
            api.list(resource, "default")
    except Unavailable:
        return False
    return True


@pytest.fixture
def empty(connection: client.ApiClient) -> Iterator[Place]:
    """A namespace with nothing in it."""
    place = Place(connection, f"adapters-{uuid.uuid4().hex[:8]}")
    place.core.create_namespace({"metadata": {"name": place.namespace}})
    # Pods are refused until the controller manager has made the namespace's service account.
    until(lambda: "default" in {each.metadata.name for each in place.accounts()})
    yield place
    place.core.delete_namespace(place.namespace)
    # What a failed test left held would keep the namespace for ever.
    for resource in ("pods", "specschedules"):
        for name in place.names(resource):
            free = {"metadata": {"finalizers": None}}
            with contextlib.suppress(Conflict):
                place.api.patch(resource, place.namespace, name, free)


@pytest.fixture
def place(empty: Place) -> Place:
    """A namespace with a serving Deployment and a SpecSchedule that targets it."""
    empty.apply(serving())
    empty.apply(wanted())
    return empty
