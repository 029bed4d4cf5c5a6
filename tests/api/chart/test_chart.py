"""What the chart renders: least privilege, every name valid, nothing that a user cannot see."""

import re
from typing import Any

import pytest
import yaml

from specschedule import __version__

from .conftest import CHART, NAMESPACE, Helm, Object


def named(objects: list[Object], kind: str) -> dict[str, Object]:
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


def rules_of_the_operator(objects: list[Object]) -> list[dict[str, list[str]]]:
    """Rules of every role that is bound to the operator's service account."""
    roles = {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]): o for o in objects}
    found: list[dict[str, list[str]]] = []
    for binding in objects:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert [s["kind"] for s in binding["subjects"]] == ["ServiceAccount"]
            role = (
                binding["roleRef"]["kind"],
                binding["metadata"].get("namespace"),
                binding["roleRef"]["name"],
            )
            found.extend(roles[role]["rules"])
    return found


def test_lint_finds_nothing(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_by_default_it_installs_exactly_these_objects(helm: Helm) -> None:
    assert sorted((o["kind"], o["metadata"]["name"]) for o in helm.template()) == [
        ("ClusterRole", "specschedule"),
        ("ClusterRole", "specschedule-edit"),
        ("ClusterRole", "specschedule-view"),
        ("ClusterRoleBinding", "specschedule"),
        ("CustomResourceDefinition", "specschedules.specschedule.dev"),
        ("CustomResourceDefinition", "spectrials.specschedule.dev"),
        ("Deployment", "specschedule"),
        ("PriorityClass", "specschedule-trial"),
        ("ServiceAccount", "specschedule"),
    ]


def test_the_definitions_are_those_of_crds_and_outlive_the_release(helm: Helm) -> None:
    definitions = named(helm.template(), "CustomResourceDefinition")
    for path in (CHART.parents[1] / "crds").glob("*.yaml"):
        plain = yaml.safe_load(path.read_text())
        from_chart = definitions.pop(plain["metadata"]["name"])
        assert from_chart["spec"] == plain["spec"]
        assert from_chart["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert definitions == {}


def test_the_operator_may_do_nothing_by_wildcard_and_read_no_secret(helm: Helm) -> None:
    for rule in rules_of_the_operator(helm.template()):
        assert "*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"]
        assert "secrets" not in rule["resources"]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
        assert not {"update", "deletecollection"} & set(rule["verbs"])


def test_the_operator_writes_only_what_the_design_lets_it_write(helm: Helm) -> None:
    writes = {
        (resource, verb)
        for rule in rules_of_the_operator(helm.template())
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    assert writes == {
        ("specschedules", "patch"),
        ("specschedules/status", "patch"),
        ("spectrials", "create"),
        ("spectrials", "delete"),
        ("spectrials/status", "patch"),
        ("deployments", "patch"),
        ("pods", "create"),
        ("pods", "delete"),
        ("jobs", "create"),
        ("jobs", "delete"),
        ("events", "create"),
        ("events", "patch"),
    }


def test_with_namespaces_it_has_rights_only_there(helm: Helm) -> None:
    objects = helm.template(namespaces=["llm", "123"])
    bound = [o for o in objects if o["kind"].endswith("Binding")]
    assert [(o["kind"], o["metadata"]["namespace"]) for o in bound] == [
        ("RoleBinding", "llm"),
        ("RoleBinding", "123"),
    ]
    assert {s["namespace"] for o in bound for s in o["subjects"]} == {NAMESPACE}
    resources = {r for rule in rules_of_the_operator(objects) for r in rule["resources"]}
    assert not {"nodes", "namespaces", "customresourcedefinitions"} & resources
    assert environment(objects)["SPECSCHEDULE_NAMESPACES"] == "llm 123"


def environment(objects: list[Object]) -> dict[str, str]:
    (deployment,) = named(objects, "Deployment").values()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def test_the_operator_is_told_image_prometheus_and_priority_class(helm: Helm) -> None:
    objects = helm.template(
        image={"repository": "registry/specschedule", "tag": "dev", "pullPolicy": "Never"},
        prometheus={"url": "http://prometheus.monitoring:9090"},
        env=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    )
    assert environment(objects) == {
        "SPECSCHEDULE_IMAGE": "registry/specschedule:dev",
        "SPECSCHEDULE_IMAGE_PULL_POLICY": "Never",
        "SPECSCHEDULE_INSTRUMENTS": "true",
        "SPECSCHEDULE_PRIORITY_CLASS": "specschedule-trial",
        "SPECSCHEDULE_PROMETHEUS_URL": "http://prometheus.monitoring:9090",
        "HTTPS_PROXY": "http://proxy:3128",
    }


def test_there_is_never_more_than_one_operator(helm: Helm) -> None:
    (deployment,) = named(helm.template(), "Deployment").values()
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_trial_pods_give_way_and_push_nobody_out(helm: Helm) -> None:
    (made,) = named(helm.template(), "PriorityClass").values()
    assert made["value"] < 0
    assert made["preemptionPolicy"] == "Never"
    assert made["globalDefault"] is False


def test_the_longest_release_name_gives_valid_names(helm: Helm) -> None:
    objects = helm.template("r" * 53, namespaces=[], podMonitor={"enabled": True})
    for each in objects:
        name = each["metadata"]["name"]
        assert len(name) <= 63 or each["kind"] == "CustomResourceDefinition"
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name)
        for value in (each["metadata"].get("labels") or {}).values():
            assert len(value) <= 63


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"rbac": {"create": False}}, "ClusterRoleBinding"),
        ({"serviceAccount": {"create": False, "name": "own"}}, "ServiceAccount"),
        ({"priorityClass": {"create": False}}, "PriorityClass"),
        ({"crds": {"install": False}}, "CustomResourceDefinition"),
    ],
    ids=["roles", "service account", "priority class", "definitions"],
)
def test_what_somebody_else_installs_can_be_left_out(
    helm: Helm, values: dict[str, Any], kind: str
) -> None:
    assert named(helm.template(), kind)
    assert not named(helm.template(**values), kind)


def test_without_a_priority_class_the_operator_is_told_of_none(helm: Helm) -> None:
    assert "SPECSCHEDULE_PRIORITY_CLASS" not in environment(
        helm.template(priorityClass={"create": False})
    )


def test_the_pod_monitor_selects_only_our_pods_and_their_annotated_port(helm: Helm) -> None:
    assert not named(helm.template(), "PodMonitor")
    (monitor,) = named(helm.template(podMonitor={"enabled": True}), "PodMonitor").values()
    assert monitor["spec"]["selector"] == {
        "matchLabels": {"app.kubernetes.io/managed-by": "specschedule"}
    }
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][-1]["targetLabel"] == "__address__"


USERS = {
    "a viewer reads both kinds": ("view", "get", "specschedules", True),
    "a viewer reads the ledger": ("view", "list", "spectrials", True),
    "a viewer changes nothing": ("view", "patch", "specschedules", False),
    "an editor writes SpecSchedules": ("edit", "create", "specschedules", True),
    "an editor does not write the ledger": ("edit", "delete", "spectrials", False),
    "nobody but the operator writes a status": ("edit", "patch", "specschedules/status", False),
}


@pytest.mark.parametrize("claim", USERS)
def test_the_clusters_own_roles_cover_the_kinds(claim: str, helm: Helm) -> None:
    role, verb, resource, allowed = USERS[claim]
    label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
    rules = [
        rule
        for each in named(helm.template(), "ClusterRole").values()
        if each["metadata"]["labels"].get(label) == "true"
        for rule in each["rules"]
    ]
    granted = any(resource in rule["resources"] and verb in rule["verbs"] for rule in rules)
    assert granted is allowed


REFUSED = {
    "a value that does not exist": ({"replicas": 2}, "replicas"),
    "a misspelt value inside": ({"image": {"repo": "x", "repository": "y"}}, "repo"),
    "a URL without a scheme": ({"prometheus": {"url": "prometheus:9090"}}, "url"),
    "a priority above other pods": ({"priorityClass": {"value": 1000}}, "value"),
    "one namespace as text": ({"namespaces": "llm"}, "namespaces"),
    "a namespace that cannot be": ({"namespaces": ["My_Team"]}, "namespaces"),
    "an environment variable that the chart sets": (
        {"env": [{"name": "SPECSCHEDULE_IMAGE", "value": "x"}]},
        "env",
    ),
    "no service account at all": ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_values_that_cannot_work_are_refused_by_name(helm: Helm, fault: str) -> None:
    values, word = REFUSED[fault]
    done = helm.run("template", "r", str(CHART), "--kube-version", "1.36.3", **values)
    assert done.returncode != 0
    assert word in done.stderr
