"""What a server's environment decides, wherever it is set, and what is said if it was not read."""

import json

import pytest

from specschedule.core.preflight import before_pods
from specschedule.core.spec import Spec
from specschedule.vllm_facts import matrix
from specschedule.vllm_facts.target import target_facts

from .manifests import STATIC, deployment, specschedule

SPEC = Spec.model_validate(specschedule([[1, 4, 4], [5, 16, 0]])["spec"])
SERVE = f"vllm serve m --max-num-seqs 16 --speculative-config '{json.dumps(STATIC)}'"
UNREAD = "was not read"


def gates(target, maps=None):
    facts = target_facts(target, config_maps=maps)
    return {gate.gate: gate for gate in before_pods(SPEC, facts, matrix=matrix.ROWS)}


def given(name, value):
    return deployment(env=[{"name": name, "value": value}])


def from_elsewhere(name, kind="secretKeyRef", **more):
    entry = {"name": name, "valueFrom": {kind: {"name": "tokens", "key": "k"}}}
    return deployment(env=[entry], **more)


def from_all_of(kind):
    return deployment(envFrom=[{kind: {"name": "tokens"}}])


def script(text, **more):
    return deployment(speculative=None, command=["sh", "-c"], args=[text], **more)


def words(*command):
    carried = ["--max-num-seqs", "16", "--speculative-config", json.dumps(STATIC)]
    return deployment(speculative=None, command=[*command, "vllm", "serve", "m"], args=carried)


def beside(**sidecar):
    target = deployment()
    pod = target["spec"]["template"]["spec"]
    pod["containers"].append({"name": "router", "image": "own/router:1", **sidecar})
    return target


def transfer(**config):
    return deployment("--kv-transfer-config", json.dumps(config))


def events(**config):
    return deployment("--kv-events-config", json.dumps({"enable_kv_cache_events": True, **config}))


LACKS_A_SCHEDULE = {**STATIC, "method": "ngram_gpu"}

# Target; then the gate, its answer, and what its message says.
TOLD = {
    "more ranks by a variable alone": (given("VLLM_DP_SIZE", "2"), "dataParallel", "Fail", "=2"),
    "one rank by a variable": (given("VLLM_DP_SIZE", "1"), "dataParallel", "Pass", "size is 1"),
    "ranks from a Secret": (
        from_elsewhere("VLLM_DP_SIZE"),
        "dataParallel",
        "Unknown",
        "variable VLLM_DP_SIZE comes from elsewhere and was not read; write the value in env",
    ),
    "whatever a Secret holds, draft counters show lost schedules": (
        from_all_of("secretRef"),
        "dataParallel",
        "NotApplicable",
        "draft counters of the launches decide",
    ),
    "a log level from a Secret": (
        from_elsewhere("VLLM_LOGGING_LEVEL"),
        "logLevel",
        "Unknown",
        UNREAD,
    ),
    "a log level that refers to a Secret": (
        deployment(
            env=[
                {"name": "LEVEL", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "k"}}},
                {"name": "VLLM_LOGGING_LEVEL", "value": "$(LEVEL)"},
            ]
        ),
        "logLevel",
        "Unknown",
        UNREAD,
    ),
    "a log level from a ConfigMap that nobody gave": (
        from_elsewhere("VLLM_LOGGING_LEVEL", "configMapKeyRef"),
        "logLevel",
        "Unknown",
        "--config-map",
    ),
    "all of a Secret may hide warnings": (
        from_all_of("secretRef"),
        "logLevel",
        "Unknown",
        "envFrom Secret tokens was not read and may set VLLM_LOGGING_LEVEL",
    ),
    "all of a ConfigMap that nobody gave may hide warnings": (
        from_all_of("configMapRef"),
        "logLevel",
        "Unknown",
        "envFrom ConfigMap tokens",
    ),
    "a level of its own stands before what a Secret holds": (
        deployment(
            env=[
                {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"},
                {"name": "VLLM_CONFIGURE_LOGGING", "value": "1"},
            ],
            envFrom=[{"secretRef": {"name": "tokens"}}],
        ),
        "logLevel",
        "Pass",
        "will be seen",
    ),
    "the name alone registers, whatever its value": (
        from_elsewhere("DYN_NAMESPACE"),
        "registration",
        "Fail",
        "DYN_NAMESPACE",
    ),
    "a pod's own address registers": (
        from_elsewhere("VLLM_NIXL_SIDE_CHANNEL_HOST", "fieldRef"),
        "registration",
        "Fail",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
    ),
    "all of a Secret may register": (
        from_all_of("secretRef"),
        "registration",
        "Unknown",
        "override gate registration",
    ),
    "a model runner from a Secret": (
        from_elsewhere("VLLM_USE_V2_MODEL_RUNNER"),
        "modelRunner",
        "Unknown",
        UNREAD,
    ),
    "a model runner from a Secret does not matter to eagle": (
        from_elsewhere("VLLM_USE_V2_MODEL_RUNNER"),
        "methodAndSchedule",
        "Pass",
        "follows",
    ),
    "a model runner from a Secret matters where only one takes schedules": (
        from_elsewhere("VLLM_USE_V2_MODEL_RUNNER", speculative=LACKS_A_SCHEDULE),
        "methodAndSchedule",
        "Unknown",
        "VLLM_USE_V2_MODEL_RUNNER was not read",
    ),
    "a sidecar that registers the pod": (
        beside(env=[{"name": "ETCD_ENDPOINTS", "value": "x"}]),
        "registration",
        "Fail",
        "container router: ETCD_ENDPOINTS",
    ),
    "all of a Secret may register the pod by a sidecar": (
        beside(envFrom=[{"secretRef": {"name": "tokens"}}]),
        "registration",
        "Unknown",
        "envFrom Secret tokens of container router was not read",
    ),
    "a sidecar that does not": (
        beside(env=[{"name": "LOG_LEVEL", "value": "x"}]),
        "registration",
        "Pass",
        "no variable",
    ),
    "KV cache events sent to a router": (
        events(endpoint="tcp://router:5557"),
        "registration",
        "Fail",
        "--kv-events-config (tcp://router:5557)",
    ),
    "KV cache events that others come for": (
        events(endpoint="tcp://*:5557"),
        "registration",
        "Pass",
        "no variable",
    ),
    "KV cache events to nobody": (
        events(publisher="null", endpoint="tcp://router:5557"),
        "registration",
        "Pass",
        "no variable",
    ),
    "a cache's file that was not read": (
        given("LMCACHE_CONFIG_FILE", "/etc/lmcache.yaml"),
        "registration",
        "Unknown",
        "LMCACHE_CONFIG_FILE was not read",
    ),
    "a connector between servers": (
        transfer(kv_connector="NixlConnector", kv_role="kv_both"),
        "prefillDecodeSplit",
        "Unknown",
        "override gate prefillDecodeSplit",
    ),
    "a connector between servers among several": (
        transfer(
            kv_connector="MultiConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "connectors": [
                    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
                    {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
                ]
            },
        ),
        "prefillDecodeSplit",
        "Unknown",
        "has kv_connector NixlConnector,",
    ),
    "a connector to memory of the node": (
        transfer(kv_connector="OffloadingConnector", kv_role="kv_both"),
        "prefillDecodeSplit",
        "Pass",
        "share one server",
    ),
    "exported in a script": (
        script(f"export VLLM_LOGGING_LEVEL=ERROR; {SERVE}"),
        "logLevel",
        "Unknown",
        "hide engine warnings",
    ),
    "in front of the program": (
        script(f"VLLM_DP_SIZE=2 exec {SERVE}"),
        "dataParallel",
        "Fail",
        "VLLM_DP_SIZE=2",
    ),
    "by env in a script": (
        script(f"env VLLM_LOGGING_LEVEL=ERROR {SERVE}"),
        "logLevel",
        "Unknown",
        "hide engine warnings",
    ),
    "by env in the command": (
        words("env", "VLLM_DP_SIZE=2"),
        "dataParallel",
        "Fail",
        "VLLM_DP_SIZE=2",
    ),
    "by env in front of a shell": (
        deployment(speculative=None, command=["env", "DYN_NAMESPACE=x", "sh", "-c"], args=[SERVE]),
        "registration",
        "Fail",
        "DYN_NAMESPACE",
    ),
    "exported before a chain of commands": (
        script(f"cd /m && export DYN_NAMESPACE=x && exec {SERVE}"),
        "registration",
        "Fail",
        "DYN_NAMESPACE",
    ),
    "exported model runner": (
        script(f"export VLLM_USE_V2_MODEL_RUNNER=0\n{SERVE}"),
        "modelRunner",
        "NotApplicable",
        "V1 is expected",
    ),
    "exported from something not known": (
        script(f'export VLLM_LOGGING_LEVEL="$(cat /level)"; {SERVE}'),
        "logLevel",
        "Unknown",
        UNREAD,
    ),
    "exported only sometimes": (
        script(f"[ -n x ] && export VLLM_LOGGING_LEVEL=DEBUG; {SERVE}"),
        "logLevel",
        "Unknown",
        UNREAD,
    ),
    "taken away": (
        script(
            f"unset VLLM_LOGGING_LEVEL; {SERVE}",
            env=[{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}],
        ),
        "logLevel",
        "Unknown",
        UNREAD,
    ),
    "a shell variable that is not exported reaches nobody": (
        script(f"VLLM_DP_SIZE=2; {SERVE}"),
        "dataParallel",
        "Pass",
        "size is 1",
    ),
    "for another program": (
        script(f"VLLM_DP_SIZE=2 warm-up; {SERVE}"),
        "dataParallel",
        "Pass",
        "size is 1",
    ),
}


@pytest.mark.parametrize(("target", "gate", "verdict", "said"), TOLD.values(), ids=TOLD.keys())
def test_a_variable_counts_wherever_it_is_set(target, gate, verdict, said):
    found = gates(target)[gate]
    assert found.answer == verdict, found
    assert said in found.message


def test_what_a_given_config_map_holds_is_known():
    maps = {"tokens": {"VLLM_LOGGING_LEVEL": "ERROR", "k": "DEBUG"}}
    assert gates(from_all_of("configMapRef"), maps)["logLevel"].reason == "LogLevelHidesWarnings"
    assert gates(from_all_of("configMapRef"), maps)["registration"].answer == "Pass"
    one = from_elsewhere("VLLM_LOGGING_LEVEL", "configMapKeyRef")
    assert gates(one, maps)["logLevel"].answer == "Pass"
    # The container's own entry stands before all of a ConfigMap, even when it was not read.
    both = from_elsewhere("VLLM_LOGGING_LEVEL", envFrom=[{"configMapRef": {"name": "tokens"}}])
    assert gates(both, maps)["logLevel"].reason == "EnvironmentNotRead"
