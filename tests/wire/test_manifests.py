"""What the operator creates: pods that cannot be mistaken for serving, jobs without rights."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.observed import TrialSpec
from specschedule.core.spec import SecretKeyReference, TraceReference
from specschedule.core.visit import Visit
from specschedule.wire import manifests, names

from .objects import UID, deployment, plan, schedule, stored, visit

LABELS = {
    "app.kubernetes.io/managed-by": "specschedule",
    "specschedule.dev/schedule": "chat",
    "specschedule.dev/schedule-uid": UID,
    "specschedule.dev/run": "7f3a91c2",
    "specschedule.dev/arm": "candidate-card",
    "specschedule.dev/launch": "5",
}


def trial(name: str = "chat-7f3a91c2-candidate-card-5", **fields: Any) -> Any:
    return stored(manifests.spec_trial(schedule(), name, plan(**fields)))


def pod(serving: Any = None, **options: Any) -> Any:
    chosen = {
        "container": "vllm",
        "port": 8000,
        "arguments": ("args", ["--port", "8000"]),
        "priority_class": "specschedule-trial",
        "deadline_seconds": 3600,
        **options,
    }
    planned = chosen.pop("trial", None) or trial()
    return manifests.trial_pod(serving or deployment(), planned, **chosen)


def job(**options: Any) -> Any:
    chosen = {
        "image": "specschedule:1",
        "pull_policy": "Never",
        "prompts": None,
        "trace": None,
        "records": None,
        "api_key": None,
        "priority_class": None,
        "deadline_seconds": 600,
        **options,
    }
    return manifests.visit_job(trial(), chosen.pop("visit", visit()), **chosen)


def test_a_trial_is_owned_by_its_schedule_and_says_what_was_planned() -> None:
    made = manifests.spec_trial(schedule(), "chat-7f3a91c2-none-2", plan())
    assert made["metadata"]["labels"] == LABELS
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "specschedule.dev/v1alpha1",
            "kind": "SpecSchedule",
            "name": "chat",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    assert TrialSpec.model_validate(made["spec"]) == plan()
    assert "null" not in json.dumps(made)


def test_a_trial_says_how_its_answers_were_sampled() -> None:
    asked = plan(visit=visit(sampling={"temperature": 0.7, "topP": 0.9}))
    made = manifests.spec_trial(schedule(), "chat-7f3a91c2-none-2", asked)
    assert made["spec"]["visit"]["sampling"] == {"temperature": 0.7, "topP": 0.9}
    assert TrialSpec.model_validate(made["spec"]) == asked


def test_a_trial_pod_carries_no_label_of_the_serving_template() -> None:
    assert pod()["metadata"]["labels"] == {
        **LABELS,
        "specschedule.dev/trial": "chat-7f3a91c2-candidate-card-5",
        "specschedule.dev/role": "trial",
    }


def test_labels_that_others_put_on_a_trial_do_not_reach_its_pod() -> None:
    labelled = trial()
    labelled["metadata"]["labels"]["app"] = "llm"
    made = manifests.trial_pod(
        deployment(),
        labelled,
        container="vllm",
        port=8000,
        arguments=None,
        priority_class=None,
        deadline_seconds=60,
    )
    assert "app" not in made["metadata"]["labels"]


def test_a_trial_pod_is_owned_by_its_trial() -> None:
    (owner,) = pod()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("SpecTrial", trial()["metadata"]["uid"])
    assert owner["controller"] is True


def test_a_trial_pod_runs_like_serving_but_never_restarts_and_yields_to_anything() -> None:
    made = pod()
    spec = made["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 10
    assert spec["activeDeadlineSeconds"] == 3600
    assert spec["priorityClassName"] == "specschedule-trial"
    assert spec["nodeSelector"] == {"gpu": "h200"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert spec["serviceAccountName"] == "chat"
    for gone in ("priority", "readinessGates", "topologySpreadConstraints", "hostname"):
        assert gone not in spec
    server, sidecar = spec["containers"]
    assert "livenessProbe" not in server
    assert server["startupProbe"]["failureThreshold"] == 60
    assert server["lifecycle"] == {}
    assert server["ports"] == [{"containerPort": 8000}]
    assert server["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert server["image"] == "vllm/vllm-openai:v0.32.0"
    assert sidecar["name"] == "sidecar"


def test_what_was_left_out_is_on_record() -> None:
    dropped = pod()["metadata"]["annotations"]["specschedule.dev/dropped"].split(", ")
    assert {"vllm.livenessProbe", "vllm.lifecycle.preStop", "vllm.ports.8000.hostPort"} <= set(
        dropped
    )
    assert {"priorityClassName", "readinessGates", "topologySpreadConstraints"} <= set(dropped)


def test_without_a_priority_class_the_templates_own_is_still_dropped() -> None:
    assert "priorityClassName" not in pod(priority_class=None)["spec"]


def test_annotations_keep_what_plugins_read_and_drop_what_enrols_the_pod_elsewhere() -> None:
    annotations = pod()["metadata"]["annotations"]
    assert annotations["k8s.v1.cni.cncf.io/networks"] == "rdma"
    assert annotations["prometheus.io/port"] == "8000"
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["sidecar.istio.io/inject"] == "false"
    assert "kubectl.kubernetes.io/restartedAt" not in annotations


def test_a_readiness_probe_is_kept_and_one_is_added_only_where_there_is_none() -> None:
    assert pod()["spec"]["containers"][0]["readinessProbe"]["httpGet"] == {
        "path": "/health",
        "port": 8000,
    }
    own = deployment()
    probe = {"exec": {"command": ["true"]}}
    own["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = probe
    assert pod(own)["spec"]["containers"][0]["readinessProbe"] == probe


def test_an_unchanged_arm_keeps_the_arguments_byte_for_byte() -> None:
    serving = deployment()
    server = serving["spec"]["template"]["spec"]["containers"][0]
    made = pod(serving, arguments=None)["spec"]["containers"][0]
    assert (made["command"], made["args"]) == (server["command"], server["args"])


def test_an_edited_arm_changes_one_list_of_one_container() -> None:
    plain, edited = pod(arguments=None), pod(arguments=("args", ["--x"]))
    assert edited["spec"]["containers"][0].pop("args") == ["--x"]
    plain["spec"]["containers"][0].pop("args")
    assert edited == plain


def test_building_a_pod_leaves_the_deployment_as_it_was() -> None:
    serving = deployment()
    before = copy.deepcopy(serving)
    pod(serving)
    assert serving == before


def test_a_place_is_preferred_beside_the_templates_own_affinity_and_never_required() -> None:
    assert "affinity" not in pod()["spec"]
    wish = {"weight": 1, "preference": {"matchExpressions": []}}
    required = {"nodeSelectorTerms": [{"matchExpressions": []}]}
    own = {
        "preferredDuringSchedulingIgnoredDuringExecution": [wish],
        "requiredDuringSchedulingIgnoredDuringExecution": required,
    }
    made = pod(deployment(affinity={"nodeAffinity": own}), trial=trial(node="gpu-2"))
    affinity = made["spec"]["affinity"]["nodeAffinity"]
    assert affinity["requiredDuringSchedulingIgnoredDuringExecution"] == required
    assert affinity["preferredDuringSchedulingIgnoredDuringExecution"] == [
        wish,
        {
            "weight": 100,
            "preference": {
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-2"]}]
            },
        },
    ]
    alone = pod(trial=trial(node="gpu-2"))["spec"]["affinity"]
    assert list(alone["nodeAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_a_load_job_runs_once_without_any_right() -> None:
    made = job()
    spec, inner = made["spec"], made["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["parallelism"], spec["completions"]) == (0, 1, 1)
    assert spec["activeDeadlineSeconds"] == 600
    assert "ttlSecondsAfterFinished" not in spec
    assert inner["automountServiceAccountToken"] is False
    assert inner["restartPolicy"] == "Never"
    assert inner["securityContext"]["runAsNonRoot"] is True
    (load,) = inner["containers"]
    assert load["securityContext"]["readOnlyRootFilesystem"] is True
    assert load["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (load["image"], load["imagePullPolicy"], load["args"]) == (
        "specschedule:1",
        "Never",
        ["load"],
    )
    assert "gpu" not in json.dumps(load["resources"])
    assert "cpu" not in load["resources"]["limits"]


def test_a_load_job_gets_its_visit_whole() -> None:
    (load,) = job()["spec"]["template"]["spec"]["containers"]
    given_plan = {each["name"]: each["value"] for each in load["env"]}["SPECSCHEDULE_VISIT"]
    assert Visit.model_validate_json(given_plan) == visit()


def test_prompts_are_mounted_and_the_key_is_passed_by_reference() -> None:
    inner = job(prompts="chat-prompts", api_key=SecretKeyReference(name="key"))["spec"]["template"][
        "spec"
    ]
    assert inner["volumes"] == [{"name": "prompts", "configMap": {"name": "chat-prompts"}}]
    (load,) = inner["containers"]
    assert load["volumeMounts"] == [{"name": "prompts", "mountPath": "/prompts", "readOnly": True}]
    environment = {each["name"]: each for each in load["env"]}
    assert environment["SPECSCHEDULE_PROMPTS"]["value"] == "/prompts"
    assert environment["SPECSCHEDULE_API_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "key", "key": "apiKey"}
    }


def test_recorded_arrivals_are_mounted_under_one_name_whatever_their_key() -> None:
    made = job(trace=TraceReference(config_map="recorded", key="monday.jsonl"))
    inner = made["spec"]["template"]["spec"]
    items = [{"key": "monday.jsonl", "path": "trace.jsonl"}]
    assert inner["volumes"] == [
        {"name": "trace", "configMap": {"name": "recorded", "items": items}}
    ]
    (load,) = inner["containers"]
    assert load["volumeMounts"] == [{"name": "trace", "mountPath": "/trace", "readOnly": True}]
    environment = {each["name"]: each["value"] for each in load["env"]}
    assert environment["SPECSCHEDULE_TRACE"] == "/trace/trace.jsonl"
    assert "SPECSCHEDULE_TRACE" not in str(job())


def test_records_go_to_a_file_of_their_own_on_the_volume() -> None:
    first, second = (job(records="kept", visit=visit(visit=number)) for number in (1, 2))
    files = []
    for made in (first, second):
        inner = made["spec"]["template"]["spec"]
        assert inner["volumes"] == [
            {"name": "records", "persistentVolumeClaim": {"claimName": "kept"}}
        ]
        (load,) = inner["containers"]
        assert load["volumeMounts"] == [{"name": "records", "mountPath": "/records"}]
        # What is not root may write there only as the volume's group.
        assert inner["securityContext"]["fsGroup"] == inner["securityContext"]["runAsUser"]
        environment = {each["name"]: each["value"] for each in load["env"]}
        files.append(environment["SPECSCHEDULE_RECORDS"])
        assert files[-1] == f"/records/{made['metadata']['name']}.jsonl.gz"
    assert files[0] != files[1]
    assert "SPECSCHEDULE_RECORDS" not in str(job())


def test_load_pods_are_scraped_and_found_by_our_labels_only() -> None:
    metadata = job()["spec"]["template"]["metadata"]
    assert metadata["annotations"]["prometheus.io/port"] == "9100"
    assert metadata["labels"] == {
        **LABELS,
        "specschedule.dev/trial": "chat-7f3a91c2-candidate-card-5",
        "specschedule.dev/role": "load",
        "specschedule.dev/visit": "1",
    }


def test_a_second_visit_is_another_job() -> None:
    assert job()["metadata"]["name"] != job(visit=visit(visit=2))["metadata"]["name"]


@given(st.text("abc-.", min_size=1, max_size=120).filter(lambda s: s[0].isalpha()))
def test_derived_names_fit_and_stay_apart(text: str) -> None:
    name = names.job_name(text, 1)
    assert len(name) <= 63
    assert name == names.job_name(text, 1)
    assert name != names.job_name(text, 2)
    assert name != names.job_name(text + "x", 1)


def test_a_service_that_selects_trial_pods_is_found() -> None:
    services = [
        {"metadata": {"name": "chat"}, "spec": {"selector": {"app": "llm"}}},
        {"metadata": {"name": "none"}, "spec": {}},
        {"metadata": {"name": "empty"}, "spec": {"selector": {}}},
        {
            "metadata": {"name": "wide"},
            "spec": {"selector": {"app.kubernetes.io/managed-by": "specschedule"}},
        },
    ]
    assert names.selecting(services, pod()["metadata"]["labels"]) == ["wide"]
