"""The simulator agrees with what the real vLLM 0.32 was seen to say (tests/goldens)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specschedule.sim.arguments import Refused
from specschedule.sim.known_flags import TAKES_VALUE
from specschedule.sim.launch import read
from specschedule.sim.worlds import WORLDS
from specschedule.vllm_facts.flags import NO_VALUE

GOLDENS = Path(__file__).parents[1] / "goldens" / "vllm-0.32.0"

pytestmark = pytest.mark.skipif(
    not GOLDENS.exists(), reason=f"{GOLDENS} is missing: write it by python3 hack/vllm goldens"
)

FRONTEND_FAMILIES = re.compile(r"^(http_|vllm:estimated_)")
"""Families of the web framework, and estimates of the hardware's use."""


def golden(name: str) -> str:
    return (GOLDENS / name).read_text()


def events(text: str) -> list[Any]:
    """The JSON events of a stream, as vLLM or the simulator wrote it."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line.replace(":TIME", ":0")) for line in lines]


def shape(value: Any) -> Any:
    """The keys, in their order, and the types of what they hold."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def shapes(found: list[Any]) -> list[Any]:
    """Shapes in order, repetitions of neighbours once."""
    out: list[Any] = []
    for event in found:
        if not out or out[-1] != shape(event):
            out.append(shape(event))
    return out


def test_the_flags_are_vllms() -> None:
    found = json.loads(golden("arguments.json"))
    names = {name.removeprefix("--"): one["value"] for one in found for name in one["names"]}
    long = {
        name: value
        for one in found
        for name, value in ((n, one["value"]) for n in one["names"])
        if name.startswith("--")
    }
    assert {name[2:] for name, value in long.items() if value} == set(TAKES_VALUE)
    alone = {name[2:] for name, value in long.items() if not value} - {"help"}
    assert alone == NO_VALUE | {f"no-{name}" for name in NO_VALUE if f"no-{name}" in names}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("completion-stream.txt", "/v1/completions", {"prompt": "Hello", "max_tokens": 12}),
        (
            "chat-stream.txt",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6},
        ),
    ],
)
def test_streams_have_vllms_chunks_key_by_key(
    demo, name: str, path: str, body: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {**body, "temperature": 0, "ignore_eos": True, "stream_options": options}
    ours = demo.events(path, asked)
    theirs = events(golden(name))
    assert shapes(ours) == shapes(theirs)
    assert [event["object"] for event in ours[:1]] == [event["object"] for event in theirs[:1]]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("error-model.txt", {"model": "other", "prompt": "Hello"}),
        ("error-length.txt", {"prompt": "x" * 40_000}),
    ],
)
def test_refusals_are_vllms(demo, name: str, body: dict[str, Any]) -> None:
    first, _, rest = golden(name).partition("\n")
    theirs = json.loads(rest)["error"]
    status, answer = demo.post("/v1/completions", {**body, "max_tokens": 12})
    ours = answer["error"]
    assert f"HTTP {status}" == first
    assert [*ours] == [*theirs]
    assert (ours["type"], ours["param"], ours["code"]) == (
        theirs["type"],
        theirs["param"],
        theirs["code"],
    )
    served = demo.get("/v1/models")[1]["data"][0]["id"]
    assert blank(ours["message"]).replace(served, "pair") == blank(theirs["message"])


def blank(message: str) -> str:
    """A message without its numbers."""
    return re.sub(r"\d+", "N", message)


@pytest.mark.parametrize("arm", ["none", "schedule"])
def test_metric_families_are_vllms(start, dynamic, arm: str) -> None:
    theirs = {
        name: family
        for name, family in json.loads(golden(f"metrics-{arm}.json")).items()
        if not FRONTEND_FAMILIES.match(name)
    }
    with start("--max-model-len", "512", *(dynamic if arm == "schedule" else [])) as process:
        process.post("/v1/completions", {"prompt": "Hello", "max_tokens": 12})
        _, text = process.get("/metrics")
    ours = families(text)
    for name, family in theirs.items():
        assert name in ours, name
        assert ours[name]["type"] == family["type"], name
        if name != "vllm:cache_config_info":
            assert ours[name]["labels"] == family["labels"], name
        else:
            assert set(ours[name]["labels"]) <= set(family["labels"])
        if "buckets" in family and "tokens" not in name:
            assert ours[name]["buckets"] == family["buckets"], name
    surplus = {name for name in ours if not FRONTEND_FAMILIES.match(name)} - set(theirs)
    assert surplus == set()


def families(text: str) -> dict[str, dict[str, Any]]:
    """Type, label names and buckets by family, as the goldens hold them."""
    out: dict[str, dict[str, Any]] = {}
    kinds = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in kinds else sample.name.rsplit("_", 1)[0]
            one = out.setdefault(name, {"type": kinds[name], "labels": []})
            one["labels"] = sorted({*one["labels"], *sample.labels} - {"le"})
            if "le" in sample.labels:
                edges = one.setdefault("buckets", [])
                if sample.labels["le"] not in edges:
                    edges.append(sample.labels["le"])
    return out


def test_bad_schedules_are_refused_in_vllms_words() -> None:
    for case in json.loads(golden("refusals.json")):
        config = {"method": "ngram", "num_speculative_tokens": 4}
        config["num_speculative_tokens_per_batch_size"] = case["rows"]
        if case["rows"] is None or case["refusal"] is None:
            continue
        ours = refusal(config)
        assert ours is not None, case
        assert case["refusal"] in ours


def refusal(config: dict[str, Any]) -> str | None:
    try:
        launch = read(["--speculative-config", json.dumps(config)], {}, WORLDS["demo"])
    except Refused as refused:
        return refused.message
    return launch.late_refusal


def test_the_log_has_vllms_form_and_texts(start, dynamic) -> None:
    theirs = golden("startup-schedule.log")
    form = re.compile(r"^\((APIServer|EngineCore|Worker) pid=\w+\) [A-Z]+ \S+ \S+ \[[\w.]+:\d+\] ")
    with start(*dynamic) as process:
        ours = [line for line in process.log if line.startswith("(")]
    assert all(form.match(line) for line in ours)
    assert any(form.match(line) for line in theirs.splitlines())
    for message in (
        "non-default args: {",
        "Initializing a V1 LLM engine (v0.32.0) with config: model='",
        "speculative_config=SpeculativeConfig(method='",
        "Using max model len ",
        "Loading drafter model...",
        "KV cache size: ",
        " tokens, Maximum concurrency for ",
        "init engine (profile, create kv cache, warmup model) took ",
        "Starting vLLM server on http://",
    ):
        assert message in theirs, message
        assert any(message in line for line in ours), message


def test_data_parallelism_is_warned_about_in_vllms_words(start, dynamic) -> None:
    (line,) = [
        line
        for line in golden("startup-data-parallel.log").splitlines()[-1:]
        if "Disabling num_speculative_tokens_per_batch_size" in line
    ]
    with start(*dynamic, "-dp", "2") as process:
        found = [line for line in process.log if "Disabling num_speculative" in line]
    assert len(found) == 1
    assert blank(found[0].split("] ", 1)[1]) == blank(line.split("] ", 1)[1])


def test_version_and_server_info(demo) -> None:
    assert demo.get("/version")[1] == json.loads(golden("version.json"))
    theirs = json.loads(golden("server-info.json"))
    _, ours = demo.get("/server_info?config_format=json")
    assert set(ours) == set(theirs["keys"])
    assert set(ours["vllm_config"]) <= set(theirs["keys"]["vllm_config"])
    key = "num_speculative_tokens_per_batch_size"
    assert type(theirs["speculative_config"][key]) is type(
        ours["vllm_config"]["speculative_config"][key]
    )
