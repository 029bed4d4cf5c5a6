"""The facts of a serving Deployment, from its manifest and what the cluster says about its pods."""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specschedule.core.spec import digest_of
from specschedule.core.target import RolloutFacts, ServerFacts, TargetFacts, Unreadable
from specschedule.vllm_facts.arguments import (
    ArgumentEdit,
    edited_container,
    find_container,
    read_container,
    with_speculative,
)
from specschedule.vllm_facts.plain import items, mapping

_GPU = re.compile(r"(^|[./])(gpu|mig-.*|i915|xe|gaudi|tpu|neuron|npu|Ascend.*)(\..*)?$")
_GPU_IMAGE = re.compile(
    r"(?:^|/)(?:vllm/vllm-openai(?:-cuda|-rocm|-xpu)?|rocm/vllm(?:-[a-z]+)*)(?:[:@]|$)"
)
"""Images that are built for GPUs: vLLM's own, but for those for CPUs, and AMD's."""
_GPU_RUNTIME = re.compile(r"nvidia|cuda|rocm|gpu", re.IGNORECASE)
"""A runtimeClassName that hands GPUs to containers, whether or not a resource asks for them."""
_GPU_KEY = re.compile(r"(?:^|\.)(?:nvidia|amd|huawei)\.com/|/gke-accelerator$")
"""A key of an annotation or a node selector by which a pod gets to GPUs."""
_DEVICES = re.compile(r"_VISIBLE_DEVICES$")
_NO_DEVICES = {"", "-1", "none", "void", "NoDevFiles"}
"""Values of CUDA_VISIBLE_DEVICES and its like that leave a server no GPU."""
_WAITING_FOR_GOOD = {"ContainerCreating", "PodInitializing"}
_RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
_DEFAULTS: dict[str, object] = {
    "apiVersion": "v1",
    "creationTimestamp": None,
    "defaultMode": 420,
    "dnsPolicy": "ClusterFirst",
    "failureThreshold": 3,
    "imagePullPolicy": "IfNotPresent",
    "periodSeconds": 10,
    "protocol": "TCP",
    "restartPolicy": "Always",
    "schedulerName": "default-scheduler",
    "scheme": "HTTP",
    "successThreshold": 1,
    "terminationGracePeriodSeconds": 30,
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "timeoutSeconds": 1,
}
"""What the API server writes into a pod template where the user wrote nothing."""


def target_facts(
    deployment: Mapping[str, Any],
    *,
    pods: Sequence[Mapping[str, Any]] = (),
    config_maps: Mapping[str, Mapping[str, str]] | None = None,
    free_gpus: int | None = None,
    container: str | None = None,
) -> TargetFacts:
    """Return the facts of a serving Deployment.

    Args:
        deployment: The Deployment as plain data.
        pods: Its pods, where a cluster was asked.
        config_maps: Data of the ConfigMaps that its pod template names, by name.
        free_gpus: GPUs that no pod holds; None where the cluster was not asked.
        container: Name of the vLLM container, where the user gives one.
    """
    metadata = mapping(deployment.get("metadata"))
    spec = mapping(deployment.get("spec"))
    template = mapping(spec.get("template"))
    pod_spec = mapping(template.get("spec"))
    maps = config_maps or {}
    found = find_container(pod_spec, container)
    environment = {} if isinstance(found, Unreadable) else sourced_environment(found, maps)
    files = {} if isinstance(found, Unreadable) else _mounted_files(pod_spec, found, maps)
    server = (
        found
        if isinstance(found, Unreadable)
        else read_container(found, config_files=files, environment=environment)
    )
    replicas = _whole(spec.get("replicas"), 1)
    gpus = pod_gpus(pod_spec)
    if isinstance(server, ServerFacts):
        beside = _beside(pod_spec, mapping(found))
        server = server.model_copy(
            update={
                "gpus": gpus,
                "gpus_untold": None if gpus else _untold_gpus(template, server),
                "unread_sources": unread_sources(mapping(found), maps),
                "sidecars": {str(each.get("name")): _variables(each, maps) for each in beside},
                "sidecar_sources": [
                    f"{source} of container {each.get('name')}"
                    for each in beside
                    for source in unread_sources(each, maps)
                ],
            }
        )
    impossible, unchecked = _roll(spec, replicas, gpus, free_gpus)
    name = found.get("name") if not isinstance(found, Unreadable) else None
    return TargetFacts(
        resource_version=str(metadata.get("resourceVersion") or ""),
        generation=_whole(metadata.get("generation"), 0),
        template_hash=_template_hash(template, found, [environment, files]),
        server=server,
        owner=_owner(metadata),
        replicas=replicas,
        rollout=_rollout(deployment, replicas, pods),
        image_ids=sorted(_image_ids(pods, name)) if pods else None,
        gpus=gpus,
        accelerator=next((name for name, _ in _accelerators(pod_spec)), None),
        can_roll=impossible,
        roll_unchecked=unchecked,
        boot_seconds=_boot_seconds(pods, name),
        pods=sorted(str(mapping(pod.get("metadata")).get("name")) for pod in pods),
    )


def pod_gpus(pod_spec: Mapping[str, Any]) -> int:
    """Return the GPUs that one pod asks for, over its containers."""
    return sum(amount for _, amount in _accelerators(pod_spec))


def _untold_gpus(template: Mapping[str, Any], server: ServerFacts) -> str | None:
    """Return why pods that ask for no GPU resource may get one all the same; None without a sign.

    They get it by a claim, from their runtime, or from a plugin that does not count resources.
    """
    pod_spec = mapping(template.get("spec"))
    resources = [mapping(mapping(c).get("resources")) for c in items(pod_spec.get("containers"))]
    if pod_spec.get("resourceClaims") or any(each.get("claims") for each in resources):
        return "its devices come by resourceClaims, which do not say whether they are GPUs"
    if server.image is not None and _GPU_IMAGE.search(server.image):
        return f"it asks for no GPU, but image {server.image} runs on GPUs only"
    runtime = str(pod_spec.get("runtimeClassName") or "")
    if _GPU_RUNTIME.search(runtime):
        return f"it asks for no GPU, but runtimeClassName {runtime} gives it some"
    annotations = mapping(mapping(template.get("metadata")).get("annotations"))
    for key in map(str, [*annotations, *mapping(pod_spec.get("nodeSelector"))]):
        if _GPU_KEY.search(key):
            return f"it asks for no GPU, but its pods carry {key}"
    hidden = {name for name, value in server.environment.items() if value.strip() in _NO_DEVICES}
    named = {name for name in (*server.environment, *server.unread) if _DEVICES.search(name)}
    if told := sorted(named - hidden):
        return f"it asks for no GPU, but variable {told[0]} chooses some"
    return None


def _accelerators(pod_spec: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Yield the resources by which a pod's containers ask for GPUs, and how many."""
    for each in items(pod_spec.get("containers")):
        resources = mapping(mapping(each).get("resources"))
        wanted = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
        for name, amount in wanted.items():
            if _GPU.search(str(name)) and (count := _whole(amount, 0)):
                yield str(name), count


def _template_hash(
    template: Mapping[str, Any], found: Mapping[str, Any] | Unreadable, sources: Sequence[Any]
) -> str:
    """Name what a pod of this template runs, apart from the speculative argument.

    Values that the API server fills in do not count, so that a manifest and its stored form are
    the same. The restart annotation does not count either: it starts the same pod again. Files
    and variables from ConfigMaps do count, as they are arguments too.
    """
    plain = dict(template)
    if not isinstance(found, Unreadable):
        edit = with_speculative(found, None, environment=sources[0])
        without = edited_container(found, edit) if isinstance(edit, ArgumentEdit) else dict(found)
        pod_spec = dict(mapping(template.get("spec")))
        pod_spec["containers"] = [
            without if each is found else each for each in items(pod_spec.get("containers"))
        ]
        plain["spec"] = pod_spec
    return digest_of([_bare(plain), list(sources)])[:16]


def _bare(value: Any) -> Any:
    """Leave out what the API server fills in, and what is empty."""
    if isinstance(value, Mapping):
        kept = {}
        for key, inner in value.items():
            bare = _bare(inner)
            if key == _RESTARTED_AT or bare in (None, {}, [], ""):
                continue
            if key in _DEFAULTS and bare == _DEFAULTS[key]:
                continue
            kept[str(key)] = bare
        return kept
    if isinstance(value, (list, tuple)):
        return [_bare(inner) for inner in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


def sourced_environment(
    container: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return the variables that come from ConfigMaps."""
    out: dict[str, str] = {}
    for source in items(container.get("envFrom")):
        reference = mapping(mapping(source).get("configMapRef"))
        prefix = str(mapping(source).get("prefix") or "")
        data = config_maps.get(str(reference.get("name"))) or {}
        out.update({prefix + key: str(value) for key, value in data.items()})
    for entry in map(mapping, items(container.get("env"))):
        name = str(entry.get("name"))
        reference = mapping(mapping(entry.get("valueFrom")).get("configMapKeyRef"))
        data = config_maps.get(str(reference.get("name"))) or {}
        key = str(reference.get("key"))
        if key in data:
            out[name] = str(data[key])
        elif "valueFrom" in entry:
            # It stands before what envFrom gives, and is not known.
            out.pop(name, None)
    return out


def unread_sources(
    container: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Name the sources of variables (``envFrom``) that were not read."""
    out = []
    for source in map(mapping, items(container.get("envFrom"))):
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            name = str(mapping(source.get(field)).get("name"))
            if field in source and (kind == "Secret" or name not in config_maps):
                out.append(f"envFrom {kind} {name}")
    return out


def _beside(pod_spec: Mapping[str, Any], found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the pod's other containers."""
    everything = [*items(pod_spec.get("initContainers")), *items(pod_spec.get("containers"))]
    return [each for each in map(mapping, everything) if each.get("name") != found.get("name")]


def _variables(
    container: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return the names of a container's variables, as far as they are read."""
    own = {str(entry.get("name")) for entry in map(mapping, items(container.get("env")))}
    return sorted(own | sourced_environment(container, config_maps).keys())


def _mounted_files(
    pod_spec: Mapping[str, Any],
    container: Mapping[str, Any],
    config_maps: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """Return the files that the container sees from ConfigMaps, by absolute path."""
    volumes = {
        str(volume.get("name")): _volume_files(volume, config_maps)
        for volume in map(mapping, items(pod_spec.get("volumes")))
    }
    out: dict[str, str] = {}
    for mount in map(mapping, items(container.get("volumeMounts"))):
        path = str(mount.get("mountPath") or "").rstrip("/")
        sub_path = str(mount.get("subPath") or "").strip("/")
        for inner, text in volumes.get(str(mount.get("name")), {}).items():
            if not sub_path:
                out[f"{path}/{inner}"] = text
            elif inner == sub_path:
                out[path] = text
            elif inner.startswith(f"{sub_path}/"):
                out[f"{path}/{inner.removeprefix(f'{sub_path}/')}"] = text
    return out


def _volume_files(
    volume: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    projected = items(mapping(volume.get("projected")).get("sources"))
    out: dict[str, str] = {}
    for source in map(mapping, [volume, *projected]):
        reference = mapping(source.get("configMap"))
        data = config_maps.get(str(reference.get("name"))) or {}
        chosen = items(reference.get("items"))
        if chosen:
            for item in map(mapping, chosen):
                key = str(item.get("key"))
                if key in data:
                    out[str(item.get("path"))] = str(data[key])
        else:
            out.update({str(key): str(value) for key, value in data.items()})
    return out


def _owner(metadata: Mapping[str, Any]) -> str | None:
    for owner in map(mapping, items(metadata.get("ownerReferences"))):
        if owner.get("controller"):
            return f"{owner.get('kind')}/{owner.get('name')}"
    return None


def _roll(
    spec: Mapping[str, Any], replicas: int, gpus: int, free_gpus: int | None
) -> tuple[str | None, str | None]:
    """Say why a rollout can never finish, or what it needs that could not be checked."""
    strategy = mapping(spec.get("strategy"))
    if strategy.get("type") == "Recreate":
        return None, None
    rolling = mapping(strategy.get("rollingUpdate"))
    unavailable = _share_of(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
    surge = _share_of(rolling.get("maxSurge", "25%"), replicas, round_up=True)
    if unavailable or not surge or not gpus or not replicas:
        # Both 0 means maxUnavailable 1 to the Deployment controller.
        return None, None
    need = f"maxUnavailable is 0, so a rollout starts a new pod of {gpus} GPUs beside the old ones"
    remedy = "free GPUs, or set spec.strategy.rollingUpdate.maxUnavailable to 1"
    if free_gpus is None:
        return None, f"{need}; whether they are free was not looked at"
    if free_gpus < gpus:
        return f"{need}, and {free_gpus} are free: it would never finish; {remedy}", None
    return None, None


def _share_of(value: object, replicas: int, *, round_up: bool) -> int:
    text = str(value)
    if not text.endswith("%"):
        return _whole(value, 0)
    hundredths = _whole(text[:-1], 0) * replicas
    return -(-hundredths // 100) if round_up else hundredths // 100


def _rollout(
    deployment: Mapping[str, Any], replicas: int, pods: Sequence[Mapping[str, Any]]
) -> RolloutFacts:
    status = mapping(deployment.get("status"))
    generation = _whole(mapping(deployment.get("metadata")).get("generation"), 0)
    seen = _whole(status.get("observedGeneration"), -1) >= generation
    updated = _whole(status.get("updatedReplicas"), 0)
    available = _whole(status.get("availableReplicas"), 0)
    present = _whole(status.get("replicas"), 0)
    message = f"{updated} of {replicas} replicas updated, {available} available"
    if present > updated:
        message += f", {present - updated} old"
    if not seen:
        message = "the Deployment controller has not seen the last change"
    complete = seen and updated == replicas == available == present
    return RolloutFacts(
        complete=complete,
        message=message,
        failing=None if complete else _failing(status, pods),
    )


def _failing(status: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> str | None:
    for pod in pods:
        if trouble := _pod_trouble(pod):
            name = mapping(pod.get("metadata")).get("name")
            return f"pod {name}: {trouble}"
    for condition in map(mapping, items(status.get("conditions"))):
        stuck = condition.get("type") == "Progressing" and condition.get("status") == "False"
        failed = condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        if stuck or failed:
            return f"{condition.get('reason')}: {condition.get('message')}"
    return None


def _pod_trouble(pod: Mapping[str, Any]) -> str | None:
    status = mapping(pod.get("status"))
    if mapping(pod.get("metadata")).get("deletionTimestamp"):
        return None
    for each in map(mapping, _container_statuses(status)):
        waiting = mapping(mapping(each.get("state")).get("waiting"))
        reason = waiting.get("reason")
        if reason and reason not in _WAITING_FOR_GOOD:
            ended = mapping(mapping(each.get("lastState")).get("terminated"))
            last = f" (last exit code {ended['exitCode']})" if "exitCode" in ended else ""
            return f"{reason}: {waiting.get('message') or 'no message'}{last}"
        ended = mapping(mapping(each.get("state")).get("terminated"))
        if ended.get("exitCode"):
            return f"{ended.get('reason') or 'Error'}: exit code {ended['exitCode']}"
    for condition in map(mapping, items(status.get("conditions"))):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    return None


def _container_statuses(status: Mapping[str, Any]) -> list[Any]:
    return [
        *items(status.get("initContainerStatuses")),
        *items(status.get("containerStatuses")),
    ]


def _image_ids(pods: Sequence[Mapping[str, Any]], name: str | None) -> set[str]:
    return {
        str(each["imageID"])
        for pod in pods
        for each in map(mapping, items(mapping(pod.get("status")).get("containerStatuses")))
        if each.get("imageID") and (name is None or each.get("name") == name)
    }


def _boot_seconds(pods: Sequence[Mapping[str, Any]], name: str | None) -> float | None:
    """Return the shortest time from container start to Ready: later ones include lost readiness."""
    return min(_boots(pods, name), default=None)


def _boots(pods: Sequence[Mapping[str, Any]], name: str | None) -> Iterable[float]:
    for pod in pods:
        status = mapping(pod.get("status"))
        ready = next(
            (
                _unix(condition.get("lastTransitionTime"))
                for condition in map(mapping, items(status.get("conditions")))
                if condition.get("type") == "Ready" and condition.get("status") == "True"
            ),
            None,
        )
        for each in map(mapping, items(status.get("containerStatuses"))):
            running = mapping(mapping(each.get("state")).get("running"))
            started = _unix(running.get("startedAt"))
            if each.get("name") == name and ready is not None and started is not None:
                yield max(0.0, ready - started)


def _unix(text: object) -> float | None:
    if isinstance(text, datetime.datetime):
        return text.timestamp()
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _whole(value: object, default: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value)
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else default
