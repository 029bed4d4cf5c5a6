"""What is read of a server: its facts, its config file, and which container it is."""

import pytest

from specschedule.core.target import ServerFacts, Unreadable
from specschedule.vllm_facts.arguments import find_container, read_container
from tests.vllm_facts.containers import NEW, container, script, vllm

FACTS = {
    "defaults": (vllm(), {"port": 8000, "max_num_seqs": 256, "max_num_seqs_given": False}),
    "short flags": (
        vllm("-dp", "2", "-tp=4", "-pp", "2"),
        {"data_parallel_size": 2, "tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    ),
    "underscores": (vllm("--max_num_seqs=64"), {"max_num_seqs": 64, "max_num_seqs_given": True}),
    "the last one counts": (vllm("--port", "1", "--port", "2"), {"port": 2}),
    "optimization by default": (vllm(), {"optimization_level": 2}),
    "optimization by its whole name": (
        vllm("--optimization-level", "1"),
        {"optimization_level": 1},
    ),
    "optimization, joined": (vllm("-O0", "--port", "9"), {"optimization_level": 0, "port": 9}),
    "optimization, joined by an equals sign": (vllm("-O=3"), {"optimization_level": 3}),
    "optimization apart": (vllm("-O", "1", "--port", "9"), {"optimization_level": 1, "port": 9}),
    "an optimization level that is none": (vllm("-Ofast"), {"optimization_level": None}),
    "logging by its whole config": (
        vllm("--logging-config", '{"log_level": "ERROR", "configure_logging": false}'),
        {"log_level": "ERROR", "configure_logging": False, "log_config_file": None},
    ),
    "logging by parts": (
        vllm("--logging-config.pylogging_config_file", "/l.json", "--log-level=DEBUG"),
        {"log_level": "DEBUG", "configure_logging": True, "log_config_file": "/l.json"},
    ),
    "logging by its own flags": (
        vllm("--log-config-file", "/l.json"),
        {"log_level": None, "log_config_file": "/l.json"},
    ),
    "human sizes": (
        vllm("--max-model-len", "8k", "--max-num-batched-tokens", "8K"),
        {"max_model_len": 8000, "max_num_batched_tokens": 8192},
    ),
    "automatic length": (vllm("--max-model-len", "auto"), {"max_model_len": None}),
    "a certificate": (
        vllm("--ssl-keyfile", "/tls/key", "--ssl-certfile=/tls/crt"),
        {"tls": "--ssl-certfile"},
    ),
    "no certificate": (vllm(), {"tls": None}),
    "a probe by HTTPS of the port by its name": (
        {
            **vllm("--port", "9"),
            "ports": [{"name": "api", "containerPort": 9}],
            "readinessProbe": {"httpGet": {"port": "api", "path": "/health", "scheme": "HTTPS"}},
        },
        {"tls": "readinessProbe.httpGet.scheme"},
    ),
    "a probe by HTTPS of another port": (
        {**vllm(), "livenessProbe": {"httpGet": {"port": 9443, "scheme": "HTTPS"}}},
        {"tls": None},
    ),
    "switches": (
        vllm("--enforce-eager", "--no-async-scheduling", "--enable-lora"),
        {"enforce_eager": True, "async_scheduling": False, "enable_lora": True},
    ),
    "a switch taken back": (
        vllm("--enforce-eager", "--no-enforce-eager"),
        {"enforce_eager": False},
    ),
    "a prefill server": (
        vllm("--kv-transfer-config", '{"kv_role": "kv_producer"}'),
        {"kv_role": "kv_producer"},
    ),
    "a dotted prefill server": (
        vllm("--kv-transfer-config.kv_role", "kv_consumer"),
        {"kv_role": "kv_consumer"},
    ),
    "graph mode": (vllm("-cc.cudagraph_mode", "PIECEWISE"), {"graph_mode": "PIECEWISE"}),
    "backend": (vllm("--attention-backend", "FLASHINFER"), {"attention_backend": "FLASHINFER"}),
    "the model": (vllm(), {"model": "org/model"}),
    "split batches": (vllm("--enable-dbo"), {"enable_dbo": True}),
    "batches split into more": (vllm("--ubatch-size", "2"), {"enable_dbo": True}),
    "whole batches": (vllm("--ubatch-size", "0", "--no-enable-dbo"), {"enable_dbo": False}),
    "the model as a flag": (
        container(command=["python", "-m", "vllm.entrypoints.openai.api_server", "--model=m"]),
        {"model": "m"},
    ),
    "the model in a script": (
        script("exec vllm serve m --port 1234"),
        {"model": "m", "port": 1234},
    ),
    "speculative keys with dashes": (
        vllm("--speculative-config", '{"method":"ngram","num-speculative-tokens":2}'),
        {"speculative": {"method": "ngram", "num_speculative_tokens": 2}},
    ),
    "unknown keys are kept": (
        vllm("--speculative-config", '{"method":"ngram","new_thing":[1]}'),
        {"speculative": {"method": "ngram", "new_thing": [1]}},
    ),
    "none is none": (vllm("--speculative-config", "None"), {"speculative": None}),
    "environment": (
        {**vllm(), "env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "1"}]},
        {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
    ),
    "an unknown variable that decides nothing": (
        {
            **vllm("--hf-token", "$(TOKEN)", "--port", "9"),
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        },
        {"port": 9},
    ),
}


@pytest.mark.parametrize(("given_", "told"), FACTS.values(), ids=FACTS.keys())
def test_facts_of_the_server(given_, told):
    facts = read_container(given_)
    assert isinstance(facts, ServerFacts), facts
    assert {name: getattr(facts, name) for name in told} == told


def test_what_vllm_refuses_in_a_speculative_config_is_told():
    facts = read_container(
        vllm("--speculative-config", '{"method":"m","adaptive_verification":true}')
    )
    assert facts.refused == [
        "key adaptive_verification is not one of vLLM 0.32; it is enable_adaptive_verification "
        "there",
        'method "m" is not one of vLLM 0.32',
    ]
    assert read_container(vllm("--speculative-config", NEW)).refused == []


def test_a_certificate_in_the_config_file_is_seen():
    facts = read_container(
        vllm("--config", "/etc/vllm.yaml"), config_files={"/etc/vllm.yaml": "ssl-certfile: /crt\n"}
    )
    assert facts.tls == "--ssl-certfile"


CONFIG = {"/etc/vllm.yaml": "port: 9000\ndata_parallel_size: 2\nenforce-eager: true\n"}


def test_a_config_file_is_read_and_the_command_line_wins():
    facts = read_container(vllm("--config", "/etc/vllm.yaml", "--port", "1"), config_files=CONFIG)
    assert (facts.port, facts.data_parallel_size, facts.enforce_eager) == (1, 2, True)


def test_a_speculative_config_in_the_file_is_refused_because_it_cannot_be_taken_away():
    files = {"/c.yml": "speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"}
    answer = read_container(vllm("--config", "/c.yml"), config_files=files)
    assert answer.reason == "SpeculativeConfigInFile"


def test_config_with_an_equals_sign_is_not_read_by_vllm_and_that_is_said():
    facts = read_container(vllm("--config=/etc/vllm.yaml"), config_files=CONFIG)
    assert facts.port == 8000
    assert "not read by vLLM" in facts.notes[0]


def test_a_config_file_that_is_no_mapping_is_refused():
    answer = read_container(vllm("--config", "/c.yml"), config_files={"/c.yml": "- a\n- b"})
    assert "not a YAML mapping" in answer.message


HUGE = {
    "400 digits and a small unit": f"{'9' * 400}k",
    "400 digits behind the point": f"1.{'9' * 400}k",
    "5000 digits and a large unit": f"{'9' * 5000}K",
    "5000 digits": "9" * 5000,
}


@pytest.mark.parametrize("size", HUGE.values(), ids=HUGE)
def test_a_size_of_hundreds_of_digits_is_no_number(size):
    answer = read_container(vllm("--max-model-len", size))
    assert isinstance(answer, Unreadable)
    assert "not a whole number" in answer.message
    assert isinstance(read_container(vllm("-cc.level", size)), ServerFacts)


FILES = {
    "an alias that holds itself": ("a: &a [*a]", "holds itself"),
    "a number longer than Python writes": (f"seed: 0x{'f' * 5000}", "no argument"),
    "a key that JSON has not": ("hf-overrides: {2026-01-01: 1}", "no argument"),
    "two documents": ("port: 1\n---\nport: 2", "not a YAML mapping"),
}


@pytest.mark.parametrize(("text", "said"), FILES.values(), ids=FILES)
def test_a_config_file_that_cannot_be_arguments_is_refused(text, said):
    answer = read_container(vllm("--config", "/c.yml"), config_files={"/c.yml": text})
    assert said in answer.message


def test_the_vllm_container_is_found_by_its_command():
    sidecar = container(name="proxy", command=["envoy"])
    server = {**vllm(), "name": "engine"}
    assert find_container({"containers": [sidecar, server]}) is server
    assert find_container({"containers": [sidecar, server]}, "proxy") is sidecar
    assert find_container({"containers": [server]}, "x").reason == "ContainerNotFound"
    assert find_container({"containers": [server, vllm()]}).reason == "SeveralVllmContainers"
    assert find_container({"containers": [sidecar, sidecar]}).reason == "NoVllmContainer"
    assert find_container({"containers": []}).reason == "NoVllmContainer"
    other = container(image="lmsysorg/sglang:v1")
    assert find_container({"containers": [sidecar, other]}).reason == "EngineNotSupported"


ALONE = {
    "a program that is no server": (
        container(image="busybox:1", command=["sleep", "infinity"]), "NoVllmContainer", "sleep",
    ),
    "a script that may start vLLM": (
        container(image="example/llm:1", command=["/entrypoint.sh"]), "EntryScript", "vllm serve",
    ),
    "a Python program that may start vLLM": (
        container(image="example/llm:1", command=["python3", "serve.py"]), "EntryScript", "python3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", ALONE)
def test_the_only_container_is_refused_for_what_it_is(claim):
    only, reason, said = ALONE[claim]
    found = find_container({"containers": [only]})
    assert found.reason == reason
    assert said in found.message


def test_an_image_of_vllm_may_start_it_by_any_program():
    only = container(image="vllm/vllm-openai:v0.32.0", command=["start-llm"])
    found = find_container({"containers": [only]})
    assert found is only
    assert read_container(found).reason == "EntryScript"
