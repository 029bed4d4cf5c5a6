"""Install and uninstall on a live API server."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import CHART, Helm

pytestmark = pytest.mark.cluster

SCHEDULE = {
    "apiVersion": "specschedule.dev/v1alpha1",
    "kind": "SpecSchedule",
    "metadata": {"name": "kept"},
    "spec": {
        "target": {"name": "chat"},
        "slo": {"ttft": "500ms"},
        "candidates": [{"name": "card", "schedule": [[1, 16, 1]]}],
        "load": {"points": [1]},
        "bar": {"improve": [{"by": "15%"}]},
    },
}


@pytest.fixture
def release(helm: Helm, kubectl: Any, cluster: Any) -> Iterator[Any]:
    """A release of its own in the namespace of this module; gone again afterwards."""
    name = f"r{uuid.uuid4().hex[:6]}"
    flags = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", kubectl.namespace)

    def do(verb: str, *words: str, **values: Any) -> str:
        return helm(verb, name, *words, *flags, **values)

    do.name = name  # type: ignore[attr-defined]
    yield do
    helm.run("uninstall", name, "--ignore-not-found", *flags)


def everything(kubectl: Any, release: str) -> set[str]:
    """Objects that carry the release's label, cluster-wide ones too."""
    kinds = "deployments,serviceaccounts,clusterroles,clusterrolebindings,priorityclasses,crds"
    listed = kubectl(*("get", kinds, "-l", f"app.kubernetes.io/instance={release}", "-o", "name"))
    return set(listed.split())


def test_uninstall_leaves_the_definitions_and_the_users_objects_and_nothing_else(
    release: Any, kubectl: Any
) -> None:
    notes = release("install", str(CHART), "--take-ownership", namespaces=[])
    assert "every SpecSchedule must set spec.prometheus.url" in notes
    assert len(everything(kubectl, release.name)) == 9
    kubectl.apply(SCHEDULE).check_returncode()

    release("uninstall")
    kept = {
        "customresourcedefinition.apiextensions.k8s.io/specschedules.specschedule.dev",
        "customresourcedefinition.apiextensions.k8s.io/spectrials.specschedule.dev",
    }
    assert everything(kubectl, release.name) == kept
    assert kubectl.get("specschedule", "kept")["spec"]["target"]["name"] == "chat"

    release("install", str(CHART), prometheus={"url": "http://prometheus:9090"})
    assert kubectl.get("specschedule", "kept")["spec"]["target"]["name"] == "chat"


def test_the_operators_pod_is_allowed_where_only_restricted_pods_are(
    helm: Helm, kubectl: Any
) -> None:
    (deployment,) = (o for o in helm.template() if o["kind"] == "Deployment")
    kubectl(
        "label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted"
    )
    template = deployment["spec"]["template"]
    template["spec"]["serviceAccountName"] = "default"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
