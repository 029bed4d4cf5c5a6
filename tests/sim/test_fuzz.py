"""Whatever is asked or launched, the answer is vLLM's or a refusal in its form."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from specschedule.sim import api
from specschedule.sim.arguments import Refused
from specschedule.sim.launch import Launch, read
from specschedule.sim.worlds import WORLDS

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 9000) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        *["model", "prompt", "messages", "n", "max_tokens", "max_completion_tokens", "seed"],
        *["min_tokens", "ignore_eos", "stream", "stream_options", "temperature"],
    ]
)
bodies = st.dictionaries(fields, anything, max_size=6)
messages = st.lists(
    st.fixed_dictionaries({"role": anything, "content": anything}) | anything, max_size=3
)


def asked_of(data: bytes, *, chat: bool = False) -> api.Asked | api.ApiError:
    try:
        return api.read(data, "application/json", chat=chat, served=("m",), max_model_len=4096)
    except api.ApiError as error:
        return error


@settings(max_examples=400, deadline=None)
@given(body=bodies | bodies.flatmap(lambda b: messages.map(lambda m: {**b, "messages": m})))
def test_any_request_is_read_or_refused_with_an_error_object(body: dict[str, object]) -> None:
    for chat in (False, True):
        asked = asked_of(json.dumps(body).encode(), chat=chat)
        if isinstance(asked, api.ApiError):
            assert asked.status in (400, 404)
            assert json.loads(json.dumps(asked.body)).keys() == {"error"}
            continue
        for prompt in asked.prompts:
            length, reason = asked.length(prompt)
            assert 1 <= length <= asked.max_tokens <= 4096
            assert reason in ("length", "stop")


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes_are_refused(data: bytes) -> None:
    asked = asked_of(data)
    assert isinstance(asked, api.ApiError)
    assert asked.status == 400


speculative = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(["eagle", "ngram", "mtp", "suffix", "nonsense", 3]),
        "model": st.sampled_from(["d", None]),
        "num_speculative_tokens": st.integers(-1, 9) | anything,
        "num_speculative_tokens_per_batch_size": st.lists(
            st.lists(st.integers(-1, 20), max_size=6), max_size=4
        )
        | anything,
    },
)
words = st.sampled_from(
    [
        *["--max-num-seqs", "--max-model-len=64", "8", "-dp", "2", "--port", "x", "serve", "m"],
        *["--enforce-eager", "--no-enable-prefix-caching", "-sc", "{}", "--speculative-config"],
        *["--speculative-config.method", "ngram", "-cc.cudagraph_mode", "NONE", "--what", "-1"],
    ]
)


def launch_of(argv: list[str], environment: dict[str, str], world: str) -> Launch | Refused:
    try:
        return read(argv, environment, WORLDS[world])
    except Refused as refused:
        return refused


@settings(max_examples=300, deadline=None)
@given(
    config=speculative,
    rest=st.lists(words, max_size=5),
    world=st.sampled_from(["demo", "context-axis"]),
    runner=st.sampled_from([{}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}]),
)
def test_any_command_line_is_read_or_refused(
    config: dict[str, object], rest: list[str], world: str, runner: dict[str, str]
) -> None:
    launch = launch_of(["--speculative-config", json.dumps(config), *rest], runner, world)
    if isinstance(launch, Refused):
        assert launch.status in (1, 2)
        assert launch.message
        return
    table = launch.settings.tokens_for
    for batch in range(1, launch.settings.max_num_seqs + 1 if table else 1):
        assert table is not None
        assert 0 <= table(batch, 100) <= launch.settings.max_tokens
