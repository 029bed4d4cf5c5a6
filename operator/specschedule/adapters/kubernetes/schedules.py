"""What a SpecSchedule as stored says, and whose turn it is."""

import re
from collections.abc import Iterable

from pydantic import ValidationError

from specschedule.adapters.kubernetes.api import Object
from specschedule.core.observed import ScheduleFacts
from specschedule.core.spec import Spec
from specschedule.core.target import Unreadable
from specschedule.wire import names, pods

_COUNT = re.compile(r"[0-9]{1,9}")


def schedule_facts(schedule: Object) -> ScheduleFacts:
    """Read the SpecSchedule itself."""
    metadata = schedule["metadata"]
    annotations = metadata.get("annotations") or {}
    retry = annotations.get(names.RETRY, "0")
    counted = _COUNT.fullmatch(retry) is not None
    spec: Spec | Unreadable
    try:
        spec = Spec.model_validate(schedule.get("spec") or {})
    except ValidationError as error:
        spec = Unreadable(reason="InvalidSpec", message=f"spec.{first_fault(error)}")
    if not counted:
        spec = Unreadable(
            reason="InvalidRetry",
            message=f"annotation {names.RETRY}={retry[:20]!r} is no count: write 1, 2, 3",
        )
    return ScheduleFacts(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        created_at=pods.unix(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        finalizer=names.FINALIZER in (metadata.get("finalizers") or []),
        spec=spec,
        approved=annotations.get(names.APPROVE),
        retry=int(retry) if counted else 0,
        again="after a change outside this object, start again with: kubectl annotate specschedule "
        f"{metadata['name']} -n {metadata['namespace']} {names.RETRY}="
        f"{int(retry) + 1 if counted else 1} --overwrite",
        status=schedule.get("status") or {},
    )


def target_name(schedule: Object) -> str | None:
    """Return the Deployment to look at: a promotion in flight stays with the one it wrote to."""
    status = schedule.get("status") or {}
    written_to = (status.get("promotion") or {}).get("target")
    if written_to and not status.get("outcome"):
        return str(written_to)
    named = ((schedule.get("spec") or {}).get("target") or {}).get("name")
    return str(named) if named else None


def container_name(schedule: Object) -> str | None:
    """Return the container that the spec names, if it names one."""
    named = ((schedule.get("spec") or {}).get("target") or {}).get("container")
    return str(named) if named else None


def first_fault(error: ValidationError) -> str:
    """Return the first fault of a value as ``path: what is wrong``."""
    fault = error.errors()[0]
    path = ".".join(str(part) for part in fault["loc"])
    return f"{path}: {fault['msg']}" if path else fault["msg"]


def ahead(schedules: Iterable[Object], mine: Object) -> str | None:
    """Return the SpecSchedule that has the same target before this one: none, one is running.

    One that is running keeps its target; of several that wait, the oldest is next.
    """
    target = target_name(mine)
    rivals = [
        each
        for each in schedules
        if each["metadata"]["uid"] != mine["metadata"]["uid"]
        and target_name(each) == target
        and not _done(each)
        and _turn(each) < _turn(mine)
    ]
    return min(rivals, key=_turn)["metadata"]["name"] if rivals else None


def _done(schedule: Object) -> bool:
    status = schedule.get("status") or {}
    seen = status.get("observedGeneration") == schedule["metadata"]["generation"]
    return bool(status.get("outcome")) and seen


def _turn(schedule: Object) -> tuple[bool, str, str]:
    metadata, stage = schedule["metadata"], (schedule.get("status") or {}).get("stage")
    waits = stage not in ("Screening", "Measuring", "AwaitingApproval", "Promoting")
    return waits, metadata["creationTimestamp"], metadata["name"]
