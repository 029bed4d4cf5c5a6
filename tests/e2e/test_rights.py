"""What the operator did in all scenes together, against what the chart lets it do."""

import pytest
import yaml
from hack.demo.stage import SYSTEM

from . import test_bad_input, test_disturbances, test_promotion
from .place import OPERATOR, audit
from .scenes import Company, Scene, of

pytestmark = pytest.mark.e2e

ALL = [
    each
    for module in (test_promotion, test_disturbances, test_bad_input)
    for each in vars(module).values()
    if isinstance(each, Scene)
]

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

NOT_USED = {
    ("", "persistentvolumeclaims", "get"): "asked only where spec.load.records names one",
    ("batch", "jobs", "get"): "asked only for a load job whose name is taken already",
}
"""Rights that the chart grants and that a scene need not use, and why they are granted."""


@pytest.fixture(scope="session")
def used(company: Company) -> set[Right]:
    for scene in ALL:
        company.facts[scene].exception()
    events = audit("--reads", "--since", company.since)
    return {
        (
            event["group"],
            "/".join(part for part in (event["resource"], event["subresource"]) if part),
            event["verb"],
        )
        for event in events
        if event["user"] == OPERATOR and event["resource"]
    }


@pytest.fixture(scope="session")
def granted(company: Company) -> set[Right]:
    installed = company.stage.helm("get", "manifest", "specschedule", "--namespace", SYSTEM)
    (role,) = [
        each
        for each in yaml.safe_load_all(installed)
        if each and each["kind"] == "ClusterRole" and each["metadata"]["name"] == "specschedule"
    ]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@of(*ALL)
def test_the_operator_asks_for_nothing_that_its_role_does_not_grant(
    used: set[Right], granted: set[Right]
) -> None:
    assert used - granted == set()


@of(*ALL)
def test_the_role_grants_nothing_that_the_operator_does_not_use(
    used: set[Right], granted: set[Right]
) -> None:
    assert granted - used <= set(NOT_USED)
    assert set(NOT_USED) <= granted


@of(*ALL)
def test_nobody_but_its_owner_writes_the_number_of_replicas(
    company: Company, used: set[Right]
) -> None:
    """The scale subresource is never asked for; what a patch owns, the promotion's test shows."""
    assert not {right for right in used if "scale" in right[1]}
    writes = audit("--since", company.since)
    patched = [e for e in writes if e["user"] == OPERATOR and e["resource"] == "deployments"]
    assert {event["verb"] for event in patched} == {"patch"}
