"""JSON Patches of the serving workload: one argument list, guarded by tests, nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any


def argument_patch(
    deployment: Mapping[str, Any],
    container: str,
    field: str,
    old: Sequence[str],
    new: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the patch that turns one list of a container from old into new.

    It applies only to the object as read: it tests the resourceVersion, the container's name at
    its index, and the whole old list. Elements are replaced one by one when the length stays.

    Args:
        deployment: The Deployment as read.
        container: Name of the container.
        field: ``args`` or ``command``.
        old: The list as read.
        new: The list wanted; equal to old gives an empty patch.
    """
    if list(old) == list(new):
        return []
    containers = deployment["spec"]["template"]["spec"]["containers"]
    index = next(i for i, each in enumerate(containers) if each["name"] == container)
    path = f"/spec/template/spec/containers/{index}"
    patch: list[dict[str, Any]] = [
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": deployment["metadata"]["resourceVersion"],
        },
        {"op": "test", "path": f"{path}/name", "value": container},
    ]
    if field not in containers[index]:
        return [*patch, {"op": "add", "path": f"{path}/{field}", "value": list(new)}]
    patch.append({"op": "test", "path": f"{path}/{field}", "value": list(old)})
    if len(old) != len(new):
        return [*patch, {"op": "replace", "path": f"{path}/{field}", "value": list(new)}]
    return patch + [
        {"op": "replace", "path": f"{path}/{field}/{i}", "value": after}
        for i, (before, after) in enumerate(zip(old, new, strict=True))
        if before != after
    ]


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch that turns old into new; empty when they are equal.

    Fields absent from (or null in) the new become explicit nulls, because a merge patch only
    takes away what it names.
    """
    wanted = {name: value for name, value in new.items() if value is not None}
    patch: dict[str, Any] = dict.fromkeys(old.keys() - wanted.keys())
    for name, value in wanted.items():
        before = old.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := merge_patch(before, value):
                patch[name] = inner
        elif before != (after := without_nulls(value)):
            patch[name] = after
    return {name: patch[name] for name in sorted(patch)}


def without_nulls(plain: Any) -> Any:
    """Return plain data without null fields: JSON of ours holds no null."""
    if isinstance(plain, Mapping):
        return {k: without_nulls(v) for k, v in plain.items() if v is not None}
    if isinstance(plain, list):
        return [without_nulls(v) for v in plain]
    return plain
