"""How what runs inside the engine gets into a trial pod: our image lays it into a shared volume.

The engine's image stays as it is; what is delivered is plain Python, read from PYTHONPATH.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specschedule.vllm_facts.instruments import Instruments, hidden, variables_with

FOLDER = "/opt/specschedule-engine"
"""Where the engine's container finds it."""
NAME = "specschedule-engine"
"""Name of the volume and of the init container that fills it."""

_LEAST = {"cpu": "10m", "memory": "32Mi"}
_MOST = {"cpu": "250m", "memory": "64Mi"}


class Delivery(NamedTuple):
    """What a trial pod carries of ours, and from where."""

    instruments: Instruments
    image: str
    """The operator's own image."""
    pull_policy: str
    """Its imagePullPolicy."""
    environment: Mapping[str, str]
    """Variables of the server's container that come from elsewhere, where known."""


def deliver(pod: dict[str, Any], server: dict[str, Any], delivery: Delivery) -> None:
    """Let a pod carry instruments, in place.

    Args:
        pod: Spec of the pod.
        server: Its vLLM container, part of ``pod``.
        delivery: What it carries.
    """
    server["env"] = variables_with(server, delivery.instruments, FOLDER, delivery.environment)
    command = ["python", "-m", "specschedule.engine.deliver", FOLDER]
    if (table := delivery.instruments.table) is not None:
        command += ["--table", json.dumps([list(row) for row in table])]
    mount = {"name": NAME, "mountPath": FOLDER}
    server["volumeMounts"] = [*(server.get("volumeMounts") or []), {**mount, "readOnly": True}]
    volume = {"name": NAME, "emptyDir": {"sizeLimit": "16Mi"}}
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    init: dict[str, Any] = {
        "name": NAME,
        "image": delivery.image,
        "imagePullPolicy": delivery.pull_policy,
        "command": command,
        "volumeMounts": [mount],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    others = [*(pod.get("initContainers") or []), *pod["containers"]]
    if resources := _resources([each.get("resources") or {} for each in others]):
        init["resources"] = resources
    # First, as one that another init container waits for would come too late.
    pod["initContainers"] = [init, *(pod.get("initContainers") or [])]


def clash(pod: Mapping[str, Any], container: str) -> str | None:
    """Return what of a pod template stands where the delivery goes; None when nothing does."""
    named = [*(pod.get("initContainers") or []), *pod["containers"], *(pod.get("volumes") or [])]
    if any(each["name"] == NAME for each in named):
        return f"it has a volume or container {NAME} of its own"
    server = next(each for each in pod["containers"] if each["name"] == container)
    if any(each.get("mountPath") == FOLDER for each in server.get("volumeMounts") or []):
        return f"container {container} mounts a volume of its own at {FOLDER}"
    return None


def carries(pod: Mapping[str, Any], container: str) -> bool:
    """Say whether the server of a pod would find what is delivered to it.

    Args:
        pod: Spec of the pod template.
        container: Name of its vLLM container.
    """
    server = next(each for each in pod["containers"] if each["name"] == container)
    return clash(pod, container) is None and hidden(server) is None


def _resources(others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the init container asks for beside containers that ask for ``others``.

    The pod's quality of service decides which cores the engine gets, so it stays as in serving.
    Where every container has a limit, a quota may ask for one.
    """
    asked = [{**(each.get("limits") or {}), **(each.get("requests") or {})} for each in others]
    limits = {
        name: most
        for name, most in _MOST.items()
        if all(name in (each.get("limits") or {}) for each in others)
    }
    if limits == _MOST and all(
        (each.get("limits") or {})[name] == wanted[name]
        for each, wanted in zip(others, asked, strict=True)
        for name in _MOST
    ):
        return {"requests": limits, "limits": dict(limits)}
    requests = {
        name: least for name, least in _LEAST.items() if any(name in each for each in asked)
    }
    found = {"requests": requests, "limits": limits}
    return {kind: amounts for kind, amounts in found.items() if amounts}
