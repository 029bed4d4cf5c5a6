"""Facts of a serving Deployment."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.matrix import device_of
from specschedule.core.target import ServerFacts, TargetFacts, Unreadable
from specschedule.vllm_facts.target import target_facts


def deployment(**spec):
    template = {
        "metadata": {"labels": {"app": "chat"}},
        "spec": {
            "containers": [
                {
                    "name": "server",
                    "image": "vllm/vllm-openai:v0.32.0",
                    "args": ["--model", "m", "--speculative-config", '{"method":"ngram"}'],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }
            ]
        },
    }
    return {
        "kind": "Deployment",
        "metadata": {"name": "chat", "generation": 4, "resourceVersion": "77"},
        "spec": {"replicas": 2, "template": template, **spec},
        "status": {
            "observedGeneration": 4,
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": 2,
        },
    }


def server_of(plain):
    return plain["spec"]["template"]["spec"]["containers"][0]


def test_the_plain_facts():
    facts = target_facts(deployment())
    assert isinstance(facts.server, ServerFacts)
    assert (facts.resource_version, facts.generation, facts.replicas, facts.gpus) == ("77", 4, 2, 1)
    assert facts.owner is None
    assert facts.rollout.complete


def test_the_controlling_owner_is_named():
    owned = deployment()
    owned["metadata"]["ownerReferences"] = [
        {"kind": "ConfigMap", "name": "x"},
        {"kind": "InferenceService", "name": "chat", "controller": True},
    ]
    assert target_facts(owned).owner == "InferenceService/chat"


def changed(change):
    plain = deployment()
    change(plain)
    return target_facts(plain).template_hash


def set_args(*args):
    return lambda d: server_of(d).update(args=list(args))


SAME = {
    "another speculative config": set_args(
        "--model", "m", "--speculative-config", '{"method":"x"}'
    ),
    "no speculative config": set_args("--model", "m"),
    "a speculative config in another form": set_args("--model", "m", "--spec-method=ngram"),
    "what the API server fills in": lambda d: (
        d["spec"]["template"]["spec"].update(
            restartPolicy="Always",
            dnsPolicy="ClusterFirst",
            securityContext={},
            terminationGracePeriodSeconds=30,
            schedulerName="default-scheduler",
        ),
        d["spec"]["template"]["metadata"].update(creationTimestamp=None),
        server_of(d).update(
            terminationMessagePath="/dev/termination-log",
            terminationMessagePolicy="File",
            imagePullPolicy="IfNotPresent",
        ),
    ),
    "a restart": lambda d: d["spec"]["template"]["metadata"].update(
        annotations={"kubectl.kubernetes.io/restartedAt": "2026-11-29T10:00:00Z"}
    ),
    "the number of replicas": lambda d: d["spec"].update(replicas=7),
}

OTHER = {
    "another argument": set_args("--model", "m", "--max-num-seqs", "8"),
    "another image": lambda d: server_of(d).update(image="vllm/vllm-openai:v0.33.0"),
    "another variable": lambda d: server_of(d).update(env=[{"name": "A", "value": "b"}]),
    "another annotation": lambda d: d["spec"]["template"]["metadata"].update(
        annotations={"a": "b"}
    ),
    "a second container": lambda d: d["spec"]["template"]["spec"]["containers"].append(
        {"name": "proxy", "image": "envoy"}
    ),
    "other limits": lambda d: server_of(d).update(resources={"limits": {"nvidia.com/gpu": "2"}}),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_the_template_hash_keeps_through(change):
    assert changed(change) == changed(lambda d: None)


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER.keys())
def test_the_template_hash_changes_with(change):
    assert changed(change) != changed(lambda d: None)


def with_config_file(volume):
    plain = deployment()
    server_of(plain).update(
        args=["--config", "/etc/vllm/serve.yaml"],
        volumeMounts=[{"name": "config", "mountPath": "/etc/vllm"}],
    )
    plain["spec"]["template"]["spec"]["volumes"] = [{"name": "config", **volume}]
    return plain


TEXT = {"serve.yaml": "model: m\nmax-num-seqs: 12\n"}
VOLUMES = {
    "a ConfigMap": {"configMap": {"name": "cm"}},
    "an item of one": {
        "configMap": {"name": "cm", "items": [{"key": "serve.yaml", "path": "serve.yaml"}]}
    },
    "a projected one": {"projected": {"sources": [{"configMap": {"name": "cm"}}]}},
}


@pytest.mark.parametrize("volume", VOLUMES.values(), ids=VOLUMES.keys())
def test_a_config_file_is_found_where_it_is_mounted(volume):
    facts = target_facts(with_config_file(volume), config_maps={"cm": TEXT})
    assert facts.server.max_num_seqs == 12


def test_a_single_mounted_file_is_found_by_its_own_path():
    plain = with_config_file({"configMap": {"name": "cm"}})
    server_of(plain)["volumeMounts"] = [
        {"name": "config", "mountPath": "/etc/vllm/serve.yaml", "subPath": "serve.yaml"}
    ]
    assert target_facts(plain, config_maps={"cm": TEXT}).server.max_num_seqs == 12


def test_a_changed_config_file_is_a_changed_template():
    plain = with_config_file({"configMap": {"name": "cm"}})
    other = {"serve.yaml": TEXT["serve.yaml"] + "seed: 3\n"}
    hashes = {target_facts(plain, config_maps={"cm": data}).template_hash for data in (TEXT, other)}
    assert len(hashes) == 2


def test_without_the_config_map_the_server_is_unreadable():
    facts = target_facts(with_config_file({"configMap": {"name": "cm"}}))
    assert facts.server.reason == "UnsupportedArgumentForm"
    assert "/etc/vllm/serve.yaml" in facts.server.message


def test_variables_come_from_config_maps():
    plain = deployment()
    server_of(plain).update(
        args=["--model", "m", "--max-num-seqs", "$(SEQS)", "--port", "$(P_PORT)"],
        env=[
            {"name": "SEQS", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "seqs"}}},
        ],
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "cm"}}],
    )
    facts = target_facts(plain, config_maps={"cm": {"seqs": "12", "PORT": "9000"}})
    assert isinstance(facts.server, ServerFacts), facts.server
    assert (facts.server.max_num_seqs, facts.server.port) == (12, 9000)


ROLLS = {
    "two replicas keep one": ({"replicas": 4}, 0, None, None),
    "one replica, free GPU": ({"replicas": 1}, 1, None, None),
    "one replica, no free GPU": ({"replicas": 1}, 0, "would never finish", None),
    "one replica, cluster not asked": ({"replicas": 1}, None, None, "not looked at"),
    "one may be missing": (
        {"replicas": 1, "strategy": {"rollingUpdate": {"maxUnavailable": 1}}},
        0,
        None,
        None,
    ),
    "none may be missing": (
        {"replicas": 4, "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}},
        0,
        "would never finish",
        None,
    ),
    "no surge and none missing means one missing": (
        {"replicas": 1, "strategy": {"rollingUpdate": {"maxUnavailable": "0%", "maxSurge": 0}}},
        0,
        None,
        None,
    ),
    "recreated": ({"replicas": 1, "strategy": {"type": "Recreate"}}, 0, None, None),
}


@pytest.mark.parametrize(("spec", "free", "never", "unchecked"), ROLLS.values(), ids=ROLLS.keys())
def test_a_rollout_that_can_never_finish_is_said_before(spec, free, never, unchecked):
    facts = target_facts(deployment(**spec), free_gpus=free)
    assert (facts.can_roll is None) == (never is None)
    assert never is None or never in facts.can_roll
    assert (facts.roll_unchecked is None) == (unchecked is None)


def test_pods_without_gpus_can_always_surge():
    plain = deployment(replicas=1)
    del server_of(plain)["resources"]
    facts = target_facts(plain)
    assert (facts.gpus, facts.can_roll, facts.roll_unchecked) == (0, None, None)


def test_gpus_are_counted_over_containers_and_named_by_their_resource():
    plain = deployment()
    server_of(plain)["resources"] = {"limits": {"cpu": 4, "amd.com/gpu": 2, "memory": "8Gi"}}
    sidecar = {"name": "embedder", "image": "x", "resources": {"requests": {"amd.com/gpu": "1"}}}
    plain["spec"]["template"]["spec"]["containers"].append(sidecar)
    facts = target_facts(plain)
    assert (facts.gpus, facts.accelerator) == (3, "amd.com/gpu")
    assert target_facts(deployment()).accelerator == "nvidia.com/gpu"
    server_of(plain)["resources"] = {"limits": {"nvidia.com/gpu": 0}}
    del plain["spec"]["template"]["spec"]["containers"][1:]
    assert (target_facts(plain).gpus, target_facts(plain).accelerator) == (0, None)


def pod_spec_of(plain):
    return plain["spec"]["template"]["spec"]


def variable(name, value):
    return lambda d: server_of(d).update(env=[{"name": name, "value": value}])


SPEAK_FOR_A_GPU = {
    "vLLM's image for CUDA": lambda d: server_of(d).update(image="vllm/vllm-openai:v0.32.0"),
    "AMD's image": lambda d: server_of(d).update(image="rocm/vllm:rocm6.4_vllm_0.33.0"),
    "a mirror of AMD's": lambda d: server_of(d).update(image="m.example:5000/rocm/vllm-dev:x"),
    "a runtime": lambda d: pod_spec_of(d).update(runtimeClassName="nvidia"),
    "an annotation": lambda d: d["spec"]["template"]["metadata"].update(
        annotations={"nvidia.com/use-gputype": "H200"}
    ),
    "a node": lambda d: pod_spec_of(d).update(nodeSelector={"nvidia.com/gpu.present": "true"}),
    "a variable": variable("NVIDIA_VISIBLE_DEVICES", "all"),
    "a variable of AMD's": variable("HIP_VISIBLE_DEVICES", "0"),
}
SPEAK_FOR_NONE = {
    "nothing": lambda d: None,
    "vLLM's image for CPUs": lambda d: server_of(d).update(image="vllm/vllm-openai-cpu:v0.32.0"),
    "another runtime": lambda d: pod_spec_of(d).update(runtimeClassName="kata"),
    "a variable that hides them": variable("CUDA_VISIBLE_DEVICES", ""),
    "another that hides them": variable("NVIDIA_VISIBLE_DEVICES", "void"),
    "a variable of CPUs": variable("VLLM_CPU_OMP_THREADS_BIND", "0-7"),
}


@pytest.mark.parametrize("sign", [*SPEAK_FOR_A_GPU, *SPEAK_FOR_NONE])
def test_what_speaks_for_a_gpu_that_no_resource_asks_for_is_seen(sign):
    plain = deployment()
    server_of(plain)["image"] = "registry.example/own:1"
    server_of(plain)["command"] = ["vllm", "serve"]
    del server_of(plain)["resources"]
    {**SPEAK_FOR_A_GPU, **SPEAK_FOR_NONE}[sign](plain)
    facts = target_facts(plain)
    assert device_of(facts) == ("unknown" if sign in SPEAK_FOR_A_GPU else "cpu")
    assert (facts.server.gpus_untold is not None) == (sign in SPEAK_FOR_A_GPU)


ROLLOUTS = {
    "done": ({}, True, "2 of 2 replicas updated, 2 available"),
    "not seen yet": ({"observedGeneration": 3}, False, "has not seen"),
    "half updated": ({"updatedReplicas": 1}, False, "1 of 2"),
    "an old pod is left": ({"replicas": 3}, False, "1 old"),
    "not available": ({"availableReplicas": 1}, False, "1 available"),
}


@pytest.mark.parametrize(("status", "complete", "said"), ROLLOUTS.values(), ids=ROLLOUTS.keys())
def test_a_rollout_is_complete_only_when_all_of_it_is(status, complete, said):
    plain = deployment()
    plain["status"].update(status)
    rollout = target_facts(plain).rollout
    assert rollout.complete is complete
    assert said in rollout.message


def pod(state, **more):
    return {
        "metadata": {"name": "chat-1", **more},
        "status": {
            "containerStatuses": [{"name": "server", "state": state, "imageID": "sha256:a"}]
        },
    }


def test_a_failing_rollout_quotes_the_pod():
    plain = deployment()
    plain["status"]["updatedReplicas"] = 1
    waiting = pod({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}})
    failing = target_facts(plain, pods=[waiting]).rollout.failing
    assert failing == "pod chat-1: CrashLoopBackOff: back-off 10s"
    creating = pod({"waiting": {"reason": "ContainerCreating"}})
    assert target_facts(plain, pods=[creating]).rollout.failing is None
    going = pod(
        {"waiting": {"reason": "CrashLoopBackOff"}}, deletionTimestamp="2026-11-29T10:00:00Z"
    )
    assert target_facts(plain, pods=[going]).rollout.failing is None
    plain["status"]["conditions"] = [
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}
    ]
    assert target_facts(plain).rollout.failing == "FailedCreate: quota"


def test_boot_time_and_images_come_from_the_pods():
    ready = pod({"running": {"startedAt": "2026-11-29T10:00:00Z"}})
    ready["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T10:02:30Z"}
    ]
    later = copy.deepcopy(ready)
    later["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-29T12:00:00Z"
    facts = target_facts(deployment(), pods=[later, ready])
    assert facts.boot_seconds == 150.0
    assert facts.image_ids == ["sha256:a"]


KEYS = [
    *("metadata", "spec", "template", "containers", "args", "command", "env", "name", "image"),
    *("value", "status", "replicas", "strategy", "rollingUpdate", "maxSurge", "resources"),
    *("limits", "nvidia.com/gpu"),
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.fuzz
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), anything), anything)
def test_any_manifest_has_facts_or_is_unreadable(manifest, inner):
    facts = target_facts(manifest)
    assert isinstance(facts, TargetFacts)
    plain = deployment()
    plain["spec"]["template"]["spec"]["containers"] = [inner]
    assert isinstance(target_facts(plain).server, ServerFacts | Unreadable)


arguments = st.lists(
    st.text(max_size=12)
    | st.sampled_from(["--speculative-config", "-sc", "--config", "--", "-O3", "--x.y", "$(A)"])
    | st.text(alphabet="-=.+{}[]\":'$() \\abkM0", max_size=20),
    max_size=6,
)


@pytest.mark.fuzz
@given(arguments, st.sampled_from(["list", "script"]))
def test_any_arguments_have_facts_or_are_unreadable(texts, form):
    plain = deployment()
    script = ["sh", "-c", "vllm serve m " + " ".join(texts)]
    server_of(plain).update(args=texts)
    if form == "script":
        server_of(plain).update(command=script, args=[])
    assert isinstance(target_facts(plain).server, ServerFacts | Unreadable)
