"""What a trial pod carries of ours is laid into it without touching what serves."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from specschedule.engine import deliver
from specschedule.vllm_facts.instruments import Instruments
from specschedule.wire import manifests
from specschedule.wire.delivery import FOLDER, NAME, Delivery, carries, clash

from .objects import deployment, plan, schedule, stored

CARRIED = Instruments(("--worker-extension-cls=x",), {"SPECSCHEDULE_SLO_TTFT_MS": "500"})
FLAGS = ("args", ["--port", "8000", "--worker-extension-cls=x"])


def pod(serving: Any = None, instruments: Instruments = CARRIED) -> Any:
    return manifests.trial_pod(
        serving or deployment(),
        stored(manifests.spec_trial(schedule(), "chat-5", plan())),
        container="vllm",
        port=8000,
        arguments=FLAGS,
        priority_class=None,
        deadline_seconds=60,
        delivery=Delivery(instruments, "specschedule:1", "Never", {}),
    )


def test_an_init_container_of_our_image_fills_a_volume_that_the_server_reads() -> None:
    spec = pod()["spec"]
    (init,) = spec["initContainers"]
    assert (init["image"], init["imagePullPolicy"]) == ("specschedule:1", "Never")
    assert init["command"] == ["python", "-m", deliver.__name__, FOLDER]
    assert init["volumeMounts"] == [{"name": NAME, "mountPath": FOLDER}]
    assert spec["volumes"] == [{"name": NAME, "emptyDir": {"sizeLimit": "16Mi"}}]
    server, sidecar = spec["containers"]
    assert server["volumeMounts"] == [{"name": NAME, "mountPath": FOLDER, "readOnly": True}]
    assert {e["name"]: e["value"] for e in server["env"]} == {
        "PYTHONPATH": FOLDER,
        "SPECSCHEDULE_SLO_TTFT_MS": "500",
    }
    assert sidecar == {"name": "sidecar", "image": "proxy:1"}


def test_it_runs_as_nobody_in_particular_on_a_root_that_it_cannot_write() -> None:
    (init,) = pod()["spec"]["initContainers"]
    assert init["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_all_else_of_the_pod_is_as_without_it() -> None:
    plain, carrying = pod(instruments=Instruments()), pod()
    spec = carrying["spec"]
    assert "initContainers" not in plain["spec"]
    for taken in (spec.pop("initContainers"), spec.pop("volumes")):
        assert len(taken) == 1
    for field in ("env", "volumeMounts"):
        spec["containers"][0].pop(field)
    assert carrying == plain


def test_the_templates_own_volumes_and_init_containers_stay_behind_ours() -> None:
    own = {"name": "fetch", "image": "fetch:1"}
    serving = deployment(initContainers=[own], volumes=[{"name": "models"}])
    serving["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "models", "mountPath": "/models"}
    ]
    before = copy.deepcopy(serving)
    spec = pod(serving)["spec"]
    assert [each["name"] for each in spec["initContainers"]] == [NAME, "fetch"]
    assert [each["name"] for each in spec["volumes"]] == ["models", NAME]
    mounts = spec["containers"][0]["volumeMounts"]
    assert [each["mountPath"] for each in mounts] == ["/models", FOLDER]
    assert serving == before


LEAST, MOST = {"cpu": "10m", "memory": "32Mi"}, {"cpu": "250m", "memory": "64Mi"}
WHOLE = {"cpu": "8", "memory": "64Gi"}
QUALITIES = {
    "a pod that asks for nothing": ({}, None),
    "a pod that asks for a GPU alone": ({"limits": {"nvidia.com/gpu": "1"}}, None),
    "a guaranteed pod": ({"limits": WHOLE}, {"requests": MOST, "limits": MOST}),
    "a guaranteed pod that says so twice": (
        {"limits": WHOLE, "requests": WHOLE},
        {"requests": MOST, "limits": MOST},
    ),
    "a burstable pod with limits": (
        {"limits": WHOLE, "requests": {"cpu": "4"}},
        {"requests": LEAST, "limits": MOST},
    ),
    "a burstable pod without": (
        {"requests": {"memory": "64Gi"}},
        {"requests": {"memory": "32Mi"}},
    ),
}


@pytest.mark.parametrize("quality", QUALITIES)
def test_the_quality_of_service_stays_as_in_serving(quality: str) -> None:
    resources, expected = QUALITIES[quality]
    serving = deployment()
    containers = serving["spec"]["template"]["spec"]["containers"]
    for each in containers:
        each["resources"] = resources
    assert pod(serving)["spec"]["initContainers"][0].get("resources") == expected
    # One container without makes no pod guaranteed.
    containers[1].pop("resources")
    alone = pod(serving)["spec"]["initContainers"][0].get("resources") or {}
    assert "limits" not in alone
    assert alone.get("requests", {}).keys() == (expected or {}).get("requests", {}).keys()


def test_what_cannot_be_carried_is_on_record() -> None:
    made = pod(instruments=Instruments(left_out=("its command sets PYTHONPATH anew",)))
    annotations = made["metadata"]["annotations"]
    assert annotations["specschedule.dev/not-carried"] == "its command sets PYTHONPATH anew"
    assert "initContainers" not in made["spec"]
    assert "specschedule.dev/not-carried" not in pod()["metadata"]["annotations"]


SERVER = {"name": "vllm"}
CLASHES = {
    "a volume of its name": {"containers": [SERVER], "volumes": [{"name": NAME}]},
    "an init container of its name": {"containers": [SERVER], "initContainers": [{"name": NAME}]},
    "a mount at its place": {
        "containers": [{**SERVER, "volumeMounts": [{"name": "a", "mountPath": FOLDER}]}]
    },
}


@pytest.mark.parametrize("standing", CLASHES)
def test_what_stands_in_its_way_is_named(standing: str) -> None:
    said = clash(CLASHES[standing], "vllm")
    assert said
    assert NAME in said
    assert not carries(CLASHES[standing], "vllm")


def test_a_plain_template_does_not_stand_in_its_way() -> None:
    spec = deployment()["spec"]["template"]["spec"]
    assert clash(spec, "vllm") is None
    assert carries(spec, "vllm")


def test_nothing_is_carried_behind_a_command_that_hides_pythonpath() -> None:
    hiding = {**SERVER, "command": ["env", "-i", "vllm", "serve", "m"]}
    assert not carries({"containers": [hiding]}, "vllm")


def test_a_table_is_laid_out_with_the_parts() -> None:
    rows = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]
    (init,) = pod(instruments=replace(CARRIED, table=rows))["spec"]["initContainers"]
    words = ["python", "-m", "specschedule.engine.deliver", FOLDER]
    assert init["command"] == [*words, "--table", json.dumps(rows)]
    (plain,) = pod()["spec"]["initContainers"]
    assert plain["command"] == words
