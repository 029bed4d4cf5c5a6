"""Prompts: the same for every arm, in a declared relation to the prefix cache."""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.visit import Visit
from specschedule.load.prompts import Pool, PromptsMissing, Source, read_pool

SHIPPED = Path(__file__).parents[2] / "hack" / "prompts" / "chat-prompts.yaml"
POOL = Pool({"code": ["write a sort", "write a heap", "fix this"], "prose": ["a storm", "a key"]})


def visit(**changes: Any) -> Visit:
    plain: dict[str, Any] = {
        "run": "7f3a",
        "arm": "incumbent",
        "launch": 1,
        "round": 1,
        "url": "http://x",
        "windows": [{"cell": "a", "profile": {"kind": "hold", "concurrency": 4}, "seed": 7}],
        "slo": {"ttft": "1s"},
        "promptTokens": 64,
        "outputTokens": 32,
    }
    return Visit.model_validate(plain | changes)


def taken(
    made: Visit,
    count: int,
    *,
    pool: Pool | None = POOL,
    category: str | None = None,
    **options: int,
) -> list[Any]:
    window = made.windows[0].model_copy(update={"category": category})
    source = Source(made, window, pool=pool, model="m", **options)
    prompts = []
    for place in range(count):
        body = json.loads(source.request(place).body)
        prompts.append(body["prompt"] if "prompt" in body else body["messages"][0]["content"])
    return prompts


def own(prompt: str) -> str:
    """Return a prompt without its nonce."""
    return prompt.split("]\n", 1)[1]


def test_the_request_fixes_length_and_sampling_and_asks_for_counts() -> None:
    made = visit(sampling={"temperature": 0.7, "topP": 0.9})
    source = Source(made, made.windows[0], pool=POOL, model="m")
    body = json.loads(source.request(0).body)
    del body["prompt"]
    assert body == {
        "model": "m",
        "max_tokens": 32,
        "min_tokens": 32,
        "ignore_eos": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_where_the_model_ends_answers_their_length_is_a_limit_but_not_where_they_are_compared() -> (
    None
):
    made = visit(ignoreEos=False)
    request = Source(made, made.windows[0], pool=POOL, model="m").request(0)
    body = json.loads(request.body)
    assert (body["ignore_eos"], body["max_tokens"], "min_tokens" in body) == (False, 32, False)
    assert request.may_end_early
    made = visit(ignoreEos=False, windows=[{"cell": "e", "profile": {"kind": "equivalence"}}])
    request = Source(made, made.windows[0], pool=POOL, model="m").request(0)
    body = json.loads(request.body)
    assert (body["ignore_eos"], body["min_tokens"]) == (True, 32)
    assert not request.may_end_early


@given(
    st.sampled_from(["Unique", "Shared", "Warm"]),
    st.sampled_from(["completions", "chat"]),
    st.booleans(),
    st.integers(0, 100),
)
def test_every_arm_and_launch_of_a_round_gets_the_same_prompts(
    regime: str, endpoint: str, synthetic: bool, seed: int
) -> None:
    window = {"cell": "a", "profile": {"kind": "hold", "concurrency": 4}, "seed": seed}
    common = {"prefixCache": regime, "endpoint": endpoint, "windows": [window]}
    pool = None if synthetic else POOL
    first = taken(visit(**common), 20, pool=pool)
    other = common | {"arm": "candidate-x", "launch": 9, "url": "http://y"}
    other["windows"] = [window | {"cell": "named otherwise", "tokens": 5, "requests": 99}]
    assert taken(visit(**other), 20, pool=pool) == first


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("pool", [POOL, None], ids=["given", "synthetic"])
@pytest.mark.parametrize(
    ("claim", "changes", "options"),
    [
        ("another round", {"round": 2}, {}),
        ("another visit to the launch", {"visit": 2}, {}),
        ("another run", {"run": "8b2c"}, {}),
        ("the same load again in the visit", {}, {"repeat": 1}),
        ("the try-out before the first window", {}, {"repeat": -1}),
    ],
)
def test_unique_prompts_never_begin_alike(
    endpoint: str, pool: Pool | None, claim: str, changes: dict[str, Any], options: dict[str, int]
) -> None:
    made = visit(endpoint=endpoint)
    first = taken(made, 40, pool=pool)
    second = taken(visit(endpoint=endpoint, **changes), 40, pool=pool, **options)
    heads = {str(prompt[:16]) for prompt in first + second}
    assert len(heads) == 80, claim


@pytest.mark.parametrize("regime", ["Unique", "Shared", "Warm"])
def test_what_is_sent_before_a_window_is_another_request_than_all_that_count(regime: str) -> None:
    pool = Pool({"a": [f"prompt {number}" for number in range(50)]})
    made = visit(prefixCache=regime)
    source = Source(made, made.windows[0], pool=pool, model="m")
    before = [source.take() for _ in range(20)]
    source.begin()
    counted = [source.take() for _ in range(20)]
    assert [request.index for request in before] == list(range(-1, -21, -1))
    assert [request.index for request in counted] == list(range(20))
    bodies = {request.body for request in before + counted}
    # Warm repeats few prompts on purpose, and all of them are in the cache beforehand.
    assert len(bodies) == (16 if regime == "Warm" else 40)
    if regime == "Unique":
        texts = {own(json.loads(request.body)["prompt"]) for request in before + counted}
        assert len(texts) == 40, "with prompts enough, no text is heated up"


def test_the_texts_behind_the_nonce_do_not_depend_on_the_round() -> None:
    first = taken(visit(), 10)
    second = taken(visit(round=2), 10)
    assert [own(p) for p in first] == [own(p) for p in second]


def test_categories_take_turns_and_one_can_be_asked_for() -> None:
    mixed = [own(p) for p in taken(visit(), 6)]
    assert [p in POOL.categories["code"] for p in mixed] == [True, False] * 3
    only = [own(p) for p in taken(visit(), 6, category="prose")]
    assert set(only) == set(POOL.categories["prose"])
    with pytest.raises(PromptsMissing, match="'poetry'"):
        taken(visit(), 1, category="poetry")


def test_another_seed_orders_the_prompts_anew() -> None:
    pool = Pool({"a": [f"prompt {number}" for number in range(50)]})
    windows = [{"cell": "a", "profile": {"kind": "hold", "concurrency": 4}, "seed": 8}]
    first = [own(p) for p in taken(visit(), 50, pool=pool)]
    second = [own(p) for p in taken(visit(windows=windows), 50, pool=pool)]
    assert sorted(first) == sorted(second)
    assert first != second


@given(st.integers(1, 4000), st.sampled_from(["Unique", "Shared", "Warm"]))
def test_synthetic_prompts_have_exactly_the_tokens_asked_for(tokens: int, regime: str) -> None:
    (prompt,) = taken(visit(promptTokens=tokens, prefixCache=regime), 1, pool=None)
    assert len(prompt) == tokens
    assert all(4 <= token < 196 for token in prompt)


@pytest.mark.parametrize("pool", [POOL, None], ids=["given", "synthetic"])
def test_shared_prompts_have_one_beginning_and_ends_of_their_own(pool: Pool | None) -> None:
    prompts = taken(visit(prefixCache="Shared"), 20, pool=pool)
    same = len(list(takewhile(lambda items: len(set(items)) == 1, zip(*prompts, strict=False))))
    assert same >= 32
    assert len({str(prompt) for prompt in prompts}) == 20


@pytest.mark.parametrize("pool", [POOL, None], ids=["given", "synthetic"])
def test_warm_prompts_come_again_and_all_can_be_sent_beforehand(pool: Pool | None) -> None:
    made = visit(prefixCache="Warm")
    prompts = taken(made, 60, pool=pool)
    source = Source(made, made.windows[0], pool=pool, model="m")
    assert source.repeats_after is not None
    before = {
        str(json.loads(source.request(index, output_tokens=2).body)["prompt"])
        for index in range(source.repeats_after)
    }
    assert {str(prompt) for prompt in prompts} <= before


def test_warm_of_uneven_categories_is_primed_completely() -> None:
    pool = Pool({"a": ["one"], "b": [f"b{number}" for number in range(9)]})
    made = visit(prefixCache="Warm")
    source = Source(made, made.windows[0], pool=pool, model="m")
    assert source.repeats_after is not None
    before = {source.request(i).body for i in range(source.repeats_after)}
    assert {source.request(i).body for i in range(200)} == before


def test_depth_is_reached_with_given_prompts_and_with_synthetic_ones() -> None:
    windows = [{"cell": "a", "profile": {"kind": "depth", "context": 2000}}]
    (ids,) = taken(visit(windows=windows), 1, pool=None)
    assert len(ids) == 2000
    (text,) = taken(visit(windows=windows), 1)
    assert 8000 <= len(text) < 8100
    (joined,) = taken(visit(windows=windows), 1, pool=Pool({"a": [[5, 6, 7], [8]]}))
    assert len(joined) == pytest.approx(2000, abs=10)


def test_a_mounted_config_map_is_read_without_its_hidden_versions(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_29").mkdir()
    (tmp_path / "..data").symlink_to("..2026_11_29")
    (tmp_path / "..2026_11_29" / "code").write_text("write a sort\n")
    (tmp_path / "code").symlink_to("..data/code")
    (tmp_path / "mixed").write_text('plain [text]\n"two\\nlines"\n[1, 2, 3]\n["a"]\n\n[broken\n')
    assert read_pool(tmp_path).categories == {
        "code": ["write a sort"],
        "mixed": ["plain [text]", "two\nlines", [1, 2, 3], '["a"]', "[broken"],
    }


def test_the_shipped_prompts_are_of_four_categories() -> None:
    pool = read_pool(SHIPPED)
    assert set(pool.categories) == {"shell", "code", "tool-json", "prose"}
    for prompts in pool.categories.values():
        assert len(set(map(str, prompts))) == len(prompts) >= 16
        assert all(isinstance(prompt, str) for prompt in prompts)


@pytest.mark.parametrize(
    ("claim", "content", "words"),
    [
        ("nothing there", None, "No such file"),
        ("no ConfigMap", "a: b\n", "neither a folder nor a ConfigMap"),
        ("no prompts in it", "data: {code: ''}\n", "no prompts"),
        ("no YAML", "a: [\n", "prompts.yaml"),
        ("a ConfigMap that holds itself", "data: &a {code: *a}\n", "holds itself"),
        ("a date that is none", "data: {code: 2026-99-99}\n", "month"),
    ],
)
def test_missing_prompts_are_told_with_their_place(
    claim: str, content: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PromptsMissing, match=words):
        read_pool(path)


@pytest.mark.parametrize("pool", [None, POOL])
def test_contexts_that_a_window_mixes_take_turns_in_every_category(pool: Pool | None) -> None:
    profile = {"kind": "hold", "concurrency": 4, "contexts": [20, 300]}
    made = visit(windows=[{"cell": "a", "profile": profile, "seed": 7}])
    source = Source(made, made.windows[0], pool=pool, model="m")
    lengths = []
    for place in range(-4, 8):
        sent = json.loads(source.request(place).body)["prompt"]
        lengths.append(len(sent) if pool is None else len(own(sent)) // 4)
    # Two categories take turns at places, so each goes through both lengths.
    assert lengths == [20, 300] * 6 if pool is None else [20, 20, 300, 300] * 3
    longest = max(len(prompt) for prompt, _ in source.samples())
    assert longest >= (300 if pool is None else 300 * 4)
