"""An operator that meets older definitions finds out which of its fields would be dropped."""

import json
from typing import Any

import pytest

from specschedule.api.served import OPENAPI_PATH, missing_fields

pytestmark = pytest.mark.cluster


@pytest.fixture
def openapi(kubectl: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(kubectl("get", "--raw", OPENAPI_PATH))
    return answer


def schema(openapi: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each
        for each in openapi["components"]["schemas"].values()
        if each.get("x-kubernetes-group-version-kind", [{}])[0].get("kind") == kind
    )
    return found["properties"]


def test_the_definitions_of_this_version_lack_nothing(openapi: dict[str, Any]) -> None:
    assert missing_fields(openapi) == []


def test_a_limit_that_the_server_does_not_know_is_named(openapi: dict[str, Any]) -> None:
    del schema(openapi, "SpecSchedule")["spec"]["properties"]["experiment"]["properties"]["budget"]
    assert missing_fields(openapi) == ["SpecSchedule.spec.experiment.budget"]


def test_a_fact_inside_a_list_is_named(openapi: dict[str, Any]) -> None:
    cells = schema(openapi, "SpecTrial")["status"]["properties"]["cells"]
    del cells["items"]["properties"]["void"]
    assert missing_fields(openapi) == ["SpecTrial.status.cells.void"]


def test_a_server_without_the_kinds_lacks_both() -> None:
    assert missing_fields({}) == ["SpecSchedule", "SpecTrial"]
