"""The HTTP shell: vLLM's API over a real socket, from a real process."""

import asyncio
import json
import socket
import time
from typing import Any

import aiohttp
import pytest

from specschedule.sim.engine import Engine, Settings
from specschedule.sim.worlds import WORLDS

PROMPT = "Write a haiku about a queue that is never empty."


def ask(**fields: object) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "temperature": 0, **fields}


def raw(body: dict[str, Any]) -> bytes:
    """A completion request as it goes over the wire."""
    data = json.dumps(body).encode()
    lines = ("POST /v1/completions HTTP/1.1", "Host: sim", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {len(data)}", "", ""))
    return head.encode() + data


def said(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


def test_streamed_and_whole_answers_say_the_same(demo) -> None:
    status, whole = demo.post("/v1/completions", ask())
    assert status == 200
    events = demo.events("/v1/completions", ask())
    assert said(events) == whole["choices"][0]["text"]
    assert len(said(events)) == 4 * 24
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


def test_usage_so_far_grows_by_the_tokens_of_each_chunk(demo) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = demo.events("/v1/completions", ask(stream_options=options))
    produced = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert produced[0] == 1
    assert produced == sorted(produced)
    steps = [b - a for a, b in zip([0, *produced], produced, strict=False)]
    texts = [len(chunk["choices"][0]["text"]) for chunk in chunks]
    assert texts == [4 * step for step in steps]
    assert max(steps) > 1
    assert last["choices"] == []
    assert last["system_fingerprint"].startswith("vllm-0.32.0-")
    assert last["usage"] == {"prompt_tokens": 12, "total_tokens": 36, "completion_tokens": 24}


def test_usage_is_left_out_unless_asked_for(demo) -> None:
    events = demo.events("/v1/completions", ask())
    assert not any("usage" in event for event in events)
    assert all(event["choices"] for event in events)
    marked = [event for event in events if "system_fingerprint" in event]
    assert marked == events[-1:]
    assert marked[0]["system_fingerprint"].startswith("vllm-0.32.0-")


def test_chat_begins_with_the_role(demo) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0}
    first, *rest = demo.events("/v1/chat/completions", body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in rest} == {"chat.completion.chunk"}
    text = "".join(event["choices"][0]["delta"]["content"] for event in rest)
    status, whole = demo.post("/v1/chat/completions", body)
    assert status == 200
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_prompts_as_token_ids_and_lists(demo) -> None:
    for prompt, counts in (
        ([1, 2, 3, 4, 5], 5),
        (["one", "twotwotwo"], 1 + 3),
        ([[1, 2], [3, 4, 5]], 5),
    ):
        status, answer = demo.post("/v1/completions", ask(prompt=prompt))
        assert status == 200
        assert answer["usage"]["prompt_tokens"] == counts
        assert [choice["index"] for choice in answer["choices"]] == list(
            range(len(answer["choices"]))
        )
        assert answer["usage"]["completion_tokens"] == 24 * len(answer["choices"])


def test_output_depends_on_the_prompt_alone_and_is_the_same_in_every_arm(start, demo) -> None:
    with start("--seed", "2") as none:
        ours, theirs = (
            process.post("/v1/completions", ask(max_tokens=200))[1] for process in (none, demo)
        )
        assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
        other = none.post("/v1/completions", ask(prompt="Something else."))[1]
        assert other["choices"][0]["text"] != ours["choices"][0]["text"][: 4 * 24]


def test_sampling_with_a_seed_repeats_and_without_one_does_not(demo) -> None:
    def text(**fields: object) -> str:
        answer = demo.post("/v1/completions", ask(temperature=1.0, **fields))[1]
        return str(answer["choices"][0]["text"])

    assert text(seed=5) == text(seed=5)
    assert len({text() for _ in range(4)}) > 1


def test_an_answer_may_end_by_itself_but_not_before_min_tokens(demo) -> None:
    long = demo.post("/v1/completions", ask(max_tokens=1200, ignore_eos=False))[1]
    assert long["choices"][0]["finish_reason"] == "stop"
    assert long["usage"]["completion_tokens"] < 1200
    least = long["usage"]["completion_tokens"] + 10
    later = demo.post("/v1/completions", ask(max_tokens=1200, min_tokens=least, ignore_eos=False))[
        1
    ]
    assert later["usage"]["completion_tokens"] == least


@pytest.mark.parametrize(
    ("sentence", "body", "status", "kind", "param", "words"),
    [
        (
            "no JSON",
            b"{oops",
            400,
            "Bad Request",
            "body.1",
            "1 validation error:\n  {'type': 'json_",
        ),
        (
            "another model",
            {"model": "x"},
            404,
            "NotFoundError",
            "model",
            "`x` does not exist. Valid aliases: sim/model.",
        ),
        ("no prompt", {"prompt": None}, 400, "Bad Request", "prompt", "must be provided"),
        ("an empty list", {"prompt": []}, 400, "Bad Request", "prompt", "non-empty"),
        ("two answers", {"n": 2}, 400, "BadRequestError", "n", "n=1"),
        (
            "too long a prompt",
            {"prompt": [7] * 9000},
            400,
            "BadRequestError",
            "input_tokens",
            "maximum context length is 8192 tokens. However, your prompt contains 9000 input",
        ),
        (
            "more output than the context",
            {"max_tokens": 9000},
            400,
            "BadRequestError",
            "max_tokens",
            "max_tokens=9000 cannot be greater than max_model_len=8192.",
        ),
        (
            "a prompt that leaves no room",
            {"prompt": [7] * 8192},
            400,
            "BadRequestError",
            "max_tokens",
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ),
        ("more at least than at most", {"min_tokens": 99}, 400, "BadRequestError", None, "min_tok"),
        ("no tokens", {"max_tokens": 0}, 400, "BadRequestError", "max_tokens", "at least 1"),
        ("words", {"max_tokens": "x"}, 400, "Bad Request", "body.max_tokens", "valid integer"),
        ("below zero", {"temperature": -1}, 400, "BadRequestError", "temperature", "non-negative"),
        (
            "usage of an answer given whole",
            {"stream_options": {"include_usage": True}},
            400,
            "Bad Request",
            "stream_options",
            "`stream=True`",
        ),
    ],
)
def test_bad_requests_are_refused_in_vllms_form(
    demo, sentence: str, body: object, status: int, kind: str, param: str | None, words: str
) -> None:
    sent = body if isinstance(body, bytes) else ask(**body)
    got, answer = demo.post("/v1/completions", sent)
    assert got == status, sentence
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == (kind, status, param)
    assert words in error["message"]


def test_only_json_is_taken(demo) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer = demo.post("/v1/completions", ask(), form)
    assert status == 400
    assert "Only 'application/json' is allowed" in answer["error"]["message"]


def test_output_is_cut_to_the_context_without_a_word(demo) -> None:
    answer = demo.post("/v1/completions", ask(prompt=[3] * 8180, max_tokens=100))[1]
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["choices"][0]["finish_reason"] == "length"


COUNTS = {
    "a text": ({"prompt": PROMPT}, 12),
    "a text that ends inside a token": ({"prompt": PROMPT + "!"}, 13),
    "a chat, with what its template puts around it": (
        {"messages": [{"role": "user", "content": PROMPT}]},
        14,
    ),
    "a text beyond the longest request": ({"prompt": "four" * 9000, "model": "sim/model"}, 9000),
}


@pytest.mark.parametrize("claim", COUNTS)
def test_tokens_of_a_text_are_counted_without_any_limit(claim: str, demo) -> None:
    body, tokens = COUNTS[claim]
    status, answer = demo.post("/tokenize", body)
    assert (status, answer["count"], len(answer["tokens"])) == (200, tokens, tokens)
    assert (answer["max_model_len"], answer["token_strs"]) == (8192, None)


def test_a_count_is_the_one_that_a_request_is_charged(demo) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT * 7}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT * 7}]}),
    ):
        counted = demo.post("/tokenize", body)[1]["count"]
        answer = demo.post(path, {**body, "max_tokens": 2, "temperature": 0})[1]
        assert answer["usage"]["prompt_tokens"] == counted


def test_what_is_no_text_is_not_counted(demo) -> None:
    assert demo.post("/tokenize", {"prompt": PROMPT, "model": "other"})[0] == 404
    for body in ({"prompt": [1, 2, 3]}, {}, {"messages": []}, b"{"):
        assert demo.post("/tokenize", body)[0] == 400


def test_models_version_health_and_development_endpoints(demo) -> None:
    assert demo.get("/health") == (200, "")
    assert demo.get("/version") == (200, {"version": "0.32.0"})
    status, models = demo.get("/v1/models")
    assert (status, models["data"][0]["id"]) == (200, "sim/model")
    assert models["data"][0]["max_model_len"] == 8192
    status, info = demo.get("/server_info?config_format=json")
    speculative = info["vllm_config"]["speculative_config"]
    assert speculative["num_speculative_tokens_per_batch_size"] == [[1, 2, 5], [3, 16, 1]]
    assert info["vllm_config"]["compilation_config"]["cudagraph_mode"] == [2, 1]
    assert info["vllm_env"]["VLLM_SERVER_DEV_MODE"] == "1"
    assert isinstance(demo.get("/server_info")[1]["vllm_config"], str)
    assert demo.post("/reset_prefix_cache", b"") == (200, {"success": True})


def test_development_endpoints_are_off_unless_asked_for_and_keys_guard_v1(start) -> None:
    with start("--api-key", "secret", "--served-model-name", "chat") as process:
        assert process.get("/server_info")[0] == 404
        assert process.post("/reset_prefix_cache", b"")[0] == 404
        assert process.get("/v1/models") == (401, {"error": "Unauthorized"})
        assert process.post("/v1/completions", ask())[0] == 401
        assert process.get("/health")[0] == process.get("/metrics")[0] == 200
        wrong = {"Authorization": "Bearer other"}
        assert process.get("/v1/models", wrong)[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert process.get("/v1/models", right)[1]["data"][0]["id"] == "chat"
        assert process.post("/v1/completions", ask(model="chat"), right)[0] == 200


def test_metrics_count_exactly_what_was_served(demo) -> None:
    before = demo.metrics()
    outputs = [
        demo.post("/v1/completions", ask(prompt=[number] * 40, max_tokens=30 + number))[1]
        for number in range(1, 5)
    ]
    after = demo.metrics()
    grown = {name: after[name] - before[name] for name in after if not name.endswith("_created")}
    produced = sum(output["usage"]["completion_tokens"] for output in outputs)
    assert produced == 30 * 4 + 1 + 2 + 3 + 4
    assert grown["vllm:generation_tokens_total"] == produced
    assert grown["vllm:prompt_tokens_total"] == 160
    assert grown["vllm:request_success_total"] == 4
    assert grown["vllm:prefix_cache_queries_total"] == 160
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_time_per_output_token_seconds",
    ):
        assert grown[f"vllm:{name}_count"] == 4
    drafts = grown["vllm:spec_decode_num_drafts_total"]
    accepted = grown["vllm:spec_decode_num_accepted_tokens_total"]
    # One at a time: the first band's five drafts, verified in every step but the prefill.
    assert grown["vllm:spec_decode_num_draft_tokens_total"] == 5 * drafts
    assert grown["vllm:spec_decode_num_accepted_tokens_per_pos_total"] == accepted
    # The last step of a request may accept more than the request still wants.
    assert produced <= 4 + drafts + accepted < produced + 4 * 5
    assert grown["vllm:inter_token_latency_seconds_count"] == drafts


def test_draft_counters_exist_only_with_a_speculative_config(start) -> None:
    buckets = '{"time_to_first_token":[0.05,0.1]}'
    with start("--custom-histogram-buckets", buckets) as none:
        none.post("/v1/completions", ask())
        _, text = none.get("/metrics")
    assert "spec_decode" not in text
    assert "vllm:cache_config_info{" in text
    edges = [line for line in text.splitlines() if "time_to_first_token_seconds_bucket" in line]
    assert [line.split('le="')[1].split('"')[0] for line in edges] == ["0.05", "0.1", "+Inf"]


def test_counters_follow_the_schedule_in_effect_at_each_load(demo) -> None:
    async def hold(requests: int) -> None:
        async with aiohttp.ClientSession() as session:

            async def one(number: int) -> None:
                body = ask(prompt=[requests, number] * 8, max_tokens=96)
                async with session.post(demo.url + "/v1/completions", json=body) as answer:
                    await answer.read()

            await asyncio.gather(*(one(number) for number in range(requests)))

    for requests, tokens in ((2, 5.0), (8, 1.0)):
        before = demo.metrics()
        asyncio.run(hold(requests))
        after = demo.metrics()
        drafts, drafted = (
            after[name] - before[name]
            for name in (
                "vllm:spec_decode_num_drafts_total",
                "vllm:spec_decode_num_draft_tokens_total",
            )
        )
        assert drafted / drafts == pytest.approx(tokens, rel=0.15)


def test_a_client_that_leaves_frees_its_place(demo) -> None:
    before = demo.metrics()
    address = demo.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as client:
        client.sendall(raw(ask(max_tokens=5000, stream=True)))
        while b"data: " not in client.recv(65536):
            pass
        assert demo.metrics()["vllm:num_requests_running"] == 1
    deadline = time.monotonic() + 10
    while demo.metrics()["vllm:num_requests_running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    after = demo.metrics()
    assert after["vllm:num_requests_running"] == 0
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:request_success_total"] == before["vllm:request_success_total"] + 1


def test_the_server_tells_when_it_wrote_the_tokens(demo) -> None:
    options = {"include_usage": True}
    began = time.monotonic()
    events = demo.events(
        "/v1/completions", ask(max_tokens=40, sim_timestamps=True, stream_options=options)
    )
    ended = time.monotonic()
    (told,) = events[-1]["sim"]
    assert (
        began < told["arrived"] < told["first_token_written"] < told["last_token_written"] < ended
    )
    assert told["tokens_in_first_chunk"] == 1
    assert "sim" not in demo.events("/v1/completions", ask(stream_options=options))[-1]


def test_steps_take_the_time_of_the_world(start) -> None:
    with start("--world", "steady") as process:
        events = process.events("/v1/completions", ask(max_tokens=21, sim_timestamps=True))
        (told,) = events[-1]["sim"]
        assert process.get("/sim")[1]["steps"] == 21
    # A step may be seen late on a busy machine, but none ends before its 50 ms are over.
    assert told["last_token_written"] - told["arrived"] >= 21 * 0.05


def test_each_launch_draws_its_own_seed_and_prints_it(start) -> None:
    seeds = set()
    for _ in range(2):
        with start() as process:
            about = process.get("/sim")[1]
            assert f"seed {about['seed']}" in process.log[0]
            seeds.add(about["seed"])
            again = Engine(WORLDS["demo"], Settings(), launch_seed=about["seed"])
            assert again.launch_factor == about["launchFactor"]
    assert len(seeds) == 2


def test_sigterm_ends_it_at_once_and_well(start) -> None:
    with start() as process:
        address = process.url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1]))) as client:
            client.sendall(raw(ask(max_tokens=5000, stream=True)))
            client.recv(100)
            assert process.end() == 0
    assert "[shutdown] API server: shutdown triggered" in process.text


def test_a_taken_port_is_one_clear_line(start) -> None:
    with start() as first:
        port = first.url.rsplit(":", 1)[1]
        with start("--port", port) as second:
            assert second.wait() == 2
    assert second.url == ""
    assert f"Error: --port {port}:" in second.text


async def _streams(url: str, count: int, seconds: float, watch: Any) -> int:
    """Hold streams open and return how many chunks arrived in the time watched."""
    arrived = 0
    host, port = url.removeprefix("http://").split(":")

    async def one(number: int) -> None:
        nonlocal arrived
        reader, writer = await asyncio.open_connection(host, int(port))
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = ask(prompt=[number] * 32, max_tokens=4000, stream=True, stream_options=options)
        writer.write(raw(body))
        try:
            while chunk := await reader.read(65536):
                arrived += chunk.count(b"data: ")
        finally:
            writer.close()

    tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
    await asyncio.sleep(1.0)
    watch(True)
    before = arrived
    await asyncio.sleep(seconds)
    watch(False)
    done = arrived - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


def test_a_chunk_costs_so_little_that_64_streams_need_a_fifth_of_a_core_at_most(start) -> None:
    used: list[float] = []
    with start("--world", "steady") as process:
        chunks = asyncio.run(
            _streams(process.url, 64, 3.0, lambda _: used.append(process.cpu_seconds()))
        )
    assert chunks > 1000
    per_chunk = (used[1] - used[0]) / chunks
    assert per_chunk * 64 * 20 < 0.2
