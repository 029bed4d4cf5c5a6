"""What a live API server keeps of what the operator writes: all of it, and unchangeable plans.

Every field of every status type is written once and read back. A field that the definition does
not name would be dropped without a word, and a step of a run would vanish with it.
"""

import copy
import types
import typing
from typing import Any

import pytest
from pydantic import BaseModel

from specschedule.api.v1alpha1 import Status
from specschedule.core.observed import TrialSpec, TrialStatus

pytestmark = pytest.mark.cluster


def filled(annotation: Any) -> Any:
    """A plain value of a type in which no field is left out."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return filled(arguments[0])
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return filled(arguments[0])
    if origin is list:
        return [filled(arguments[0])]
    if origin is dict:
        if arguments[1] is Any:
            return {"free": {"deep": [1, "two", {"three": 3.5}]}}
        # A key of JSON is a string, whatever the type that reads it.
        return {str(filled(arguments[0])): filled(arguments[1])}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {
            field.alias or name: filled(field.annotation)
            for name, field in annotation.model_fields.items()
        }
    if isinstance(annotation, type) and issubclass(annotation, str) and annotation is not str:
        return next(iter(annotation)).value  # an enumeration
    return {str: "1s", int: 3, float: 0.5, bool: True}[annotation]


def written(model: type[BaseModel]) -> dict[str, Any]:
    """What the model itself writes when every field is set."""
    value = model.model_validate(filled(model))
    plain: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def trial_object(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecTrial",
        "metadata": {"name": name, "labels": {"specschedule.dev/run": "7f3a"}},
        "spec": written(TrialSpec),
    }


def test_every_field_of_a_schedules_status_survives(kubectl: Any) -> None:
    document = {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": "full"},
        "spec": {
            "target": {"name": "chat"},
            "slo": {"ttft": "500ms"},
            "candidates": [{"name": "card", "schedule": [[1, 16, 1]]}],
            "load": {"points": [1]},
            "bar": {"improve": [{"by": "15%"}]},
        },
    }
    kubectl.apply(document).check_returncode()
    status = written(Status)
    assert set(status) == {f.alias for f in Status.model_fields.values()}
    kubectl.patch_status("specschedule", "full", status)
    assert kubectl.get("specschedule", "full")["status"] == status


def test_every_field_of_a_trial_survives(kubectl: Any) -> None:
    document = trial_object("full")
    kubectl.apply(document).check_returncode()
    assert kubectl.get("spectrial", "full")["spec"] == document["spec"]
    status = written(TrialStatus)
    kubectl.patch_status("spectrial", "full", status)
    assert kubectl.get("spectrial", "full")["status"] == status


CHANGES = {
    "another number": ("launch", 9),
    "a seed of its visit": ("visit.windows.0.seed", 99),
    "a free field deep inside": ("speculative.free.deep.2.three", 4),
    "an argument of the incumbent": ("incumbentArguments.0", "--other"),
    "a row of the schedule": ("schedule.0.0", 2),
    "a field taken away": ("incumbent", ...),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_plan_of_a_launch_never_changes(kubectl: Any, change: str) -> None:
    document = trial_object("frozen")
    kubectl.apply(document).check_returncode()
    path, value = CHANGES[change]
    spec = copy.deepcopy(document["spec"])
    place: Any = spec
    *way, last = path.split(".")
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    if value is ...:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    done = kubectl.apply(document | {"spec": spec})
    assert "the spec of a launch never changes; make a new SpecTrial" in done.stderr
    assert kubectl.get("spectrial", "frozen")["spec"] == document["spec"]


def test_the_same_plan_may_be_written_again(kubectl: Any) -> None:
    for _ in range(2):
        kubectl.apply(trial_object("again")).check_returncode()


def test_the_table_of_trials_shows_run_arm_and_launch(kubectl: Any) -> None:
    kubectl.apply(trial_object("shown")).check_returncode()
    head, row = kubectl("get", "spt", "shown").splitlines()
    assert head.split() == [
        "NAME",
        "RUN",
        "ARM",
        "LAUNCH",
        "ROUND",
        "STARTED",
        "ENDED",
        "AGE",
    ]
    assert row.split()[:5] == ["shown", "1s", "1s", "3", "3"]
