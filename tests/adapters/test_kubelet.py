"""With a real scheduler and kubelet: what ends a pod is seen as what it was.

The server is a small program under the name vllm, so that its container reads like vLLM's.
"""

import urllib.request
from typing import Any

import pytest

from specschedule.core.observed import (
    CreateTrial,
    PodFacts,
    RecordTrial,
    StartLaunch,
    StartVisit,
    StopVisit,
    TrialFacts,
    TrialStatus,
    VisitFacts,
)

from .conftest import Place, serving, until, wanted

pytestmark = pytest.mark.cluster

IMAGE = "localhost/specschedule-base:1"
TRIAL = "chat-7f3a91c2-candidate-card-1"

VLLM = """#!/usr/bin/env python3
import http.server, json, os, signal, sys
print("Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=x", flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("RuntimeError: The size of tensor a (5) must match", flush=True)
            os._exit(1)
        answers = {"/health": "", "/version": json.dumps({"version": "0.32.0"}), "/metrics": ""}
        answer = answers.get(self.path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write((answer or "").encode())
    def log_message(self, *arguments):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


@pytest.fixture
def served(empty: Place) -> Place:
    """A target that would really run, with no replica of its own."""
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "vllm"}}
    empty.apply({**script, "data": {"vllm": VLLM}})
    deployment = serving()
    deployment["spec"]["replicas"] = 0
    pod = deployment["spec"]["template"]["spec"]
    del pod["schedulerName"]
    pod["volumes"] = [{"name": "bin", "configMap": {"name": "vllm", "defaultMode": 0o755}}]
    (server,) = pod["containers"]
    server |= {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "volumeMounts": [{"name": "bin", "mountPath": "/usr/local/bin/vllm", "subPath": "vllm"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
    }
    empty.apply(deployment)
    empty.apply(wanted())
    return empty


def trial(place: Place) -> TrialFacts:
    (only,) = place.observe().trials
    return only


def pod(place: Place) -> PodFacts:
    seen = trial(place).pod
    assert seen is not None
    return seen


def visit(place: Place) -> VisitFacts:
    seen = trial(place).visit
    assert seen is not None
    return seen


def started(place: Place) -> None:
    place.world.perform(place.key, CreateTrial(name=TRIAL, spec=place.plan()))
    place.world.perform(place.key, StartLaunch(trial=TRIAL))


def ready(place: Place) -> PodFacts:
    started(place)
    until(lambda: pod(place).phase == "Ready")
    record = TrialStatus(started_at="2026-11-29T10:00:00Z")
    place.world.perform(place.key, RecordTrial(trial=TRIAL, status=record))
    return pod(place)


def ended(place: Place) -> PodFacts:
    until(lambda: pod(place).phase == "Ended")
    return pod(place)


def test_a_launch_becomes_ready_with_an_address_and_a_receipt(served: Place) -> None:
    seen = ready(served)
    assert seen.url is not None
    assert seen.url.endswith(":8000")
    receipt = seen.receipt
    assert receipt.engine_version == "0.32.0"
    assert receipt.model == "m", "from the log's head"
    assert receipt.node == "node"
    assert receipt.image_id
    assert receipt.boot_seconds is not None
    assert 0 <= receipt.boot_seconds < 60


def test_a_server_that_dies_is_quoted(served: Place) -> None:
    started(served)
    until(lambda: pod(served).phase == "Ready")
    with (
        pytest.raises(ConnectionError),
        urllib.request.urlopen(f"{pod(served).url}/die", timeout=10),
    ):
        pass
    seen = ended(served)
    assert seen.reason == "Exited"
    assert seen.message == (
        "container server exited with 1: RuntimeError: The size of tensor a (5) must match"
    )


def test_an_evicted_launch_is_evicted_not_failed(served: Place) -> None:
    ready(served)
    # Held, so that the look is not a race with the end of the pod.
    held: dict[str, Any] = {"metadata": {"finalizers": ["specschedule.dev/test"]}}
    served.core.patch_namespaced_pod(TRIAL, served.namespace, held)
    eviction = {"metadata": {"name": TRIAL, "namespace": served.namespace}}
    served.core.create_namespaced_pod_eviction(TRIAL, served.namespace, eviction)
    assert ended(served).reason == "Evicted"
    held["metadata"]["finalizers"] = None
    served.core.patch_namespaced_pod(TRIAL, served.namespace, held)


def test_a_deleted_pod_is_deleted_not_failed_while_it_goes_and_when_it_is_gone(
    served: Place,
) -> None:
    ready(served)
    served.core.delete_namespaced_pod(TRIAL, served.namespace)
    assert ended(served).reason == "Deleted"
    until(lambda: served.missing("pods", TRIAL))
    assert ended(served).reason == "Deleted"


def test_an_image_that_is_not_there_is_named(served: Place) -> None:
    missing = "localhost/no-such-image:1"
    containers = [{"name": "server", "image": missing}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    served.apps.patch_namespaced_deployment("chat", served.namespace, patch)
    started(served)
    until(lambda: pod(served).reason == "ImagePull")
    assert missing in pod(served).message
    assert pod(served).phase == "Pending"


def test_a_gpu_that_is_not_free_is_said_in_the_schedulers_words(served: Place) -> None:
    limits = {"limits": {"nvidia.com/gpu": "999"}}
    containers = [{"name": "server", "resources": limits}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    served.apps.patch_namespaced_deployment("chat", served.namespace, patch)
    started(served)
    until(lambda: pod(served).reason == "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in pod(served).message


def test_a_load_job_that_cannot_start_says_why(served: Place) -> None:
    ready(served)
    plan = served.plan().visit.model_copy(update={"url": "http://10.0.0.7:8000"})
    served.world.perform(served.key, StartVisit(trial=TRIAL, visit=plan))
    until(lambda: "ErrImage" in visit(served).message or "ImagePull" in visit(served).message)
    assert visit(served).phase == "Running"
    served.world.perform(served.key, StopVisit(trial=TRIAL))
    assert trial(served).visit is None


def test_a_log_is_read_from_its_beginning_and_a_missing_one_is_none(empty: Place) -> None:
    body: dict[str, Any] = empty.pod("talker")
    del body["spec"]["schedulerName"]
    body["spec"]["containers"][0] |= {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "echo first; echo second; sleep 600"],
    }
    body["spec"]["terminationGracePeriodSeconds"] = 0
    empty.apply(body)
    until(lambda: empty.api.log(empty.namespace, "talker", "c") == "first\nsecond\n")
    assert empty.api.log(empty.namespace, "talker", "c", tail_lines=1) == "second\n"
    assert empty.api.log(empty.namespace, "talker", "other") is None
    assert empty.api.log(empty.namespace, "nobody", "c") is None
