"""Manifests of what the operator creates: SpecTrials, trial pods and load jobs.

A trial pod is the serving pod without what ties it to serving. It keeps what decides how the
engine runs (containers, resources, volumes, node placement, service account, annotations that
device, network and storage plugins read) and drops what would let others act on it: labels,
readiness gates, host ports, liveness probes (a restart would hide a death), preStop hooks, spread
constraints meant for replicas, sidecar injection and foreign scrape settings.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from specschedule.api.v1alpha1 import GROUP
from specschedule.core.observed import TrialSpec
from specschedule.core.spec import SecretKeyReference, TraceReference
from specschedule.core.visit import Visit
from specschedule.wire import names
from specschedule.wire.delivery import Delivery, deliver

LOAD_PORT = 9100
"""Port of the load process's own counters."""
LOAD_USER = 65532
"""User and group of the load process; a volume for its records must let it write."""
TRACE_FOLDER, TRACE_FILE = "/trace", "trace.jsonl"
"""Where the load process finds recorded arrivals, whatever their key is named."""
TRIAL_GRACE_SECONDS = 10
LOAD_GRACE_SECONDS = 5

_ENROLLING = (
    "prometheus.io/",
    "kubectl.kubernetes.io/",
    "sidecar.istio.io/",
    "linkerd.io/",
    "config.linkerd.io/",
    "consul.hashicorp.com/",
    "dapr.io/",
    "kuma.io/",
    f"{GROUP}/",
)
"""Prefixes of template annotations that enrol a pod with others, or keep their books."""

_NOT_IN_MESH = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
"""Load is measured between two pods; a namespace-wide mesh must not stand in between."""

_SERVING_ONLY = (
    "activeDeadlineSeconds",
    "hostname",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "schedulingGates",
    "setHostnameAsFQDN",
    "subdomain",
    "topologySpreadConstraints",
)
"""Pod fields that are about being a replica, or being important."""


def spec_trial(schedule: Mapping[str, Any], name: str, spec: TrialSpec) -> dict[str, Any]:
    """Return the SpecTrial of a launch, owned by the SpecSchedule."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "SpecTrial",
        "metadata": {
            "name": name,
            "namespace": schedule["metadata"]["namespace"],
            "labels": {
                names.MANAGED_BY: names.MANAGER,
                names.SCHEDULE: names.fitted(schedule["metadata"]["name"]),
                names.OWNER_UID: schedule["metadata"]["uid"],
                names.RUN: spec.run_id,
                names.ARM: spec.arm,
                names.LAUNCH: str(spec.launch),
            },
            "ownerReferences": [names.owner_reference(schedule)],
        },
        "spec": spec.plain(),
    }


def trial_pod(
    deployment: Mapping[str, Any],
    trial: Mapping[str, Any],
    *,
    container: str,
    port: int,
    arguments: tuple[str, Sequence[str]] | None,
    priority_class: str | None,
    deadline_seconds: int,
    delivery: Delivery | None = None,
) -> dict[str, Any]:
    """Return the pod of a launch, owned by its SpecTrial.

    Args:
        deployment: The serving Deployment.
        trial: The SpecTrial as stored.
        container: Name of the vLLM container.
        port: Port of its OpenAI API.
        arguments: Field (``args`` or ``command``) and whole list to launch with; None keeps the
            template's own, byte for byte.
        priority_class: Class of pods that anything may preempt; None leaves the default.
        deadline_seconds: The pod ends by itself after this long, so that a GPU is given back even
            when no operator is alive.
        delivery: What runs inside the engine besides; None for nothing.
    """
    template = deployment["spec"]["template"]
    pod = copy.deepcopy(template["spec"])
    dropped = [field for field in _SERVING_ONLY if pod.pop(field, None)]
    for each in [*(pod.get("initContainers") or []), *pod["containers"]]:
        dropped += _stripped(each)
    server = next(each for each in pod["containers"] if each["name"] == container)
    if arguments is not None:
        field, whole = arguments
        server[field] = list(whole)
    if delivery is not None and delivery.instruments.carried:
        deliver(pod, server, delivery)
    if "readinessProbe" not in server:
        server["readinessProbe"] = {
            "httpGet": {"path": "/health", "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
        }
    pod |= {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": TRIAL_GRACE_SECONDS,
        "activeDeadlineSeconds": deadline_seconds,
    }
    if priority_class:
        pod["priorityClassName"] = priority_class
    if node := trial["spec"].get("node"):
        _prefer(pod, node)
    template_annotations = (template.get("metadata") or {}).get("annotations") or {}
    annotations = {
        **{k: v for k, v in template_annotations.items() if not k.startswith(_ENROLLING)},
        **_NOT_IN_MESH,
        **_scraped(port),
        names.CONTAINER: container,
        names.PORT: str(port),
    }
    if dropped:
        annotations[names.DROPPED] = ", ".join(dropped)
    if delivery is not None and delivery.instruments.left_out:
        annotations[names.NOT_CARRIED] = "; ".join(delivery.instruments.left_out)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _child_metadata(trial, trial["metadata"]["name"], "trial", annotations),
        "spec": pod,
    }


def visit_variables(visit: Visit, *, port: int) -> dict[str, str]:
    """Return the environment by which a load process learns its visit, in a pod and outside.

    Args:
        visit: What it does, with the address of the server.
        port: Port of its own counters.
    """
    return {
        "SPECSCHEDULE_VISIT": json.dumps(visit.plain(), separators=(",", ":")),
        "SPECSCHEDULE_METRICS_PORT": str(port),
    }


def visit_job(
    trial: Mapping[str, Any],
    visit: Visit,
    *,
    image: str,
    pull_policy: str,
    prompts: str | None,
    trace: TraceReference | None,
    records: str | None,
    api_key: SecretKeyReference | None,
    priority_class: str | None,
    deadline_seconds: int,
) -> dict[str, Any]:
    """Return the load Job of one visit, owned by its SpecTrial.

    Args:
        trial: The SpecTrial as stored.
        visit: What the load process does, with the address of the server.
        image: Image of the load process.
        pull_policy: Its imagePullPolicy.
        prompts: Name of the ConfigMap with the prompts; None for synthetic ones.
        trace: Where the recorded arrivals are; None for none.
        records: Name of the PersistentVolumeClaim for what became of every request; None to write
            nothing.
        api_key: Where the kubelet finds the server's API key; the operator never reads it.
        priority_class: Priority class of the pod; None leaves the default.
        deadline_seconds: The Job fails after this long.
    """
    variables = visit_variables(visit, port=LOAD_PORT)
    environment: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in variables.items()
    ]
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if prompts is not None:
        environment.append({"name": "SPECSCHEDULE_PROMPTS", "value": "/prompts"})
        volumes.append({"name": "prompts", "configMap": {"name": prompts}})
        mounts.append({"name": "prompts", "mountPath": "/prompts", "readOnly": True})
    if trace is not None:
        file = f"{TRACE_FOLDER}/{TRACE_FILE}"
        environment.append({"name": "SPECSCHEDULE_TRACE", "value": file})
        items = [{"key": trace.key, "path": TRACE_FILE}]
        volumes.append({"name": "trace", "configMap": {"name": trace.config_map, "items": items}})
        mounts.append({"name": "trace", "mountPath": TRACE_FOLDER, "readOnly": True})
    name = names.job_name(trial["metadata"]["name"], visit.visit)
    if records is not None:
        path = f"/records/{name}.jsonl.gz"
        environment.append({"name": "SPECSCHEDULE_RECORDS", "value": path})
        volumes.append({"name": "records", "persistentVolumeClaim": {"claimName": records}})
        mounts.append({"name": "records", "mountPath": "/records"})
    if api_key is not None:
        reference = {"secretKeyRef": {"name": api_key.name, "key": api_key.key}}
        environment.append({"name": "SPECSCHEDULE_API_KEY", "valueFrom": reference})
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": LOAD_GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": LOAD_USER,
            "fsGroup": LOAD_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "load",
                "image": image,
                "imagePullPolicy": pull_policy,
                "args": ["load"],
                "env": environment,
                "ports": [{"name": "metrics", "containerPort": LOAD_PORT}],
                "volumeMounts": mounts,
                # A generator that waits for a core sends late and voids its windows: a share of one
                # is asked for, and no limit throttles it.
                "resources": {
                    "requests": {"cpu": "500m", "memory": "128Mi"},
                    "limits": {"memory": "1Gi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": volumes,
    }
    if priority_class:
        pod["priorityClassName"] = priority_class
    metadata = _child_metadata(trial, name, "load", {})
    metadata["labels"][names.VISIT] = str(visit.visit)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_seconds,
            "template": {
                "metadata": {
                    "labels": dict(metadata["labels"]),
                    "annotations": {**_NOT_IN_MESH, **_scraped(LOAD_PORT)},
                },
                "spec": pod,
            },
        },
    }


def _prefer(pod: dict[str, Any], node: str) -> None:
    """Ask for a node above all preferences that the template has, and insist on nothing."""
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    wishes = affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    wishes.append({"weight": 100, "preference": {"matchFields": [named]}})


def _child_metadata(
    trial: Mapping[str, Any], name: str, role: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": trial["metadata"]["namespace"],
        "labels": {
            **names.own(trial["metadata"]["labels"]),
            names.TRIAL: names.fitted(trial["metadata"]["name"]),
            names.ROLE: role,
        },
        "annotations": dict(annotations),
        "ownerReferences": [names.owner_reference(trial)],
    }


def _scraped(port: int) -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }


def _stripped(container: dict[str, Any]) -> list[str]:
    """Take serving-only fields off a container in place; return what was taken."""
    name = container["name"]
    taken = []
    if container.pop("livenessProbe", None):
        taken.append(f"{name}.livenessProbe")
    if (container.get("lifecycle") or {}).pop("preStop", None):
        taken.append(f"{name}.lifecycle.preStop")
    taken += [
        f"{name}.ports.{port['containerPort']}.hostPort"
        for port in container.get("ports") or []
        if port.pop("hostPort", None)
    ]
    return taken
