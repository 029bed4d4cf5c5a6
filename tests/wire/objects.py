"""Objects as an API server would store them, valid by default."""

from typing import Any

from specschedule.core.evidence import Profile
from specschedule.core.observed import TrialSpec
from specschedule.core.spec import Slo
from specschedule.core.visit import Visit, Window

UID = "5f0c7e9a-1111-4222-8333-444455556666"


def visit(**fields: Any) -> Visit:
    return Visit(
        **{
            "run": "7f3a91c2",
            "arm": "candidate-card",
            "launch": 5,
            "round": 3,
            "url": "http://10.0.0.7:8000",
            "windows": [Window(cell="hold8", profile=Profile(kind="hold", concurrency=8))],
            "slo": Slo(ttft="500ms"),
            **fields,
        }
    )


def plan(**fields: Any) -> TrialSpec:
    return TrialSpec(
        **{
            "run_id": "7f3a91c2",
            "arm": "candidate-card",
            "launch": 5,
            "round": 3,
            "position": 2,
            "schedule": [[1, 2, 5], [3, 16, 1]],
            "speculative": {"method": "eagle3", "num_speculative_tokens": 5},
            "visit": visit(),
            "template_hash": "abc",
            "bar_digest": "9c1e",
            **fields,
        }
    )


def schedule(name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": name, "namespace": "llm", "uid": UID},
    }


def stored(manifest: dict[str, Any], uid: str = "77777777-1111-4222-8333-444455556666") -> Any:
    metadata = {**manifest["metadata"], "uid": uid, "creationTimestamp": "2026-11-29T10:00:00Z"}
    return {**manifest, "metadata": metadata}


def deployment(**template: Any) -> dict[str, Any]:
    """A serving Deployment with everything that ties a pod to serving."""
    server = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "command": ["vllm", "serve", "m"],
        "args": ["--port", "8000", "--speculative-config", '{"method":"eagle3"}'],
        "ports": [{"containerPort": 8000, "hostPort": 18000}],
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}},
        "startupProbe": {"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 60},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "30"]}}},
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {
        "containers": [server, {"name": "sidecar", "image": "proxy:1"}],
        "priorityClassName": "production",
        "priority": 1000,
        "readinessGates": [{"conditionType": "lb/ready"}],
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "hostname": "chat-0",
        "subdomain": "chat",
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "serviceAccountName": "chat",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 300,
        **template,
    }
    return {
        "metadata": {"name": "chat", "namespace": "llm", "resourceVersion": "41"},
        "spec": {
            "template": {
                "metadata": {
                    "labels": {"app": "llm", "tier": "gpu"},
                    "annotations": {
                        "prometheus.io/port": "9999",
                        "kubectl.kubernetes.io/restartedAt": "yesterday",
                        "sidecar.istio.io/inject": "true",
                        "k8s.v1.cni.cncf.io/networks": "rdma",
                    },
                },
                "spec": pod,
            }
        },
    }
