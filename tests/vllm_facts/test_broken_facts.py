"""Logs and metrics that no vLLM writes: what they say of such numbers is not known."""

import pytest

from specschedule.vllm_facts.logs import LogFacts, read_log
from specschedule.vllm_facts.metrics import read_metrics

INFO = "(EngineCore pid=7) INFO 11-29 10:00:00 [vllm.py:725] "
MANY = "9" * 5000


def log(*more: str, tokens: str = "4", sizes: str = "[1, 2, 4, 8]") -> LogFacts:
    """Read a whole start-up log.

    Args:
        more: Messages between the banner and the end of the start.
        tokens: What the banner says of num_spec_tokens.
        sizes: What it says of the captured sizes.
    """
    banner = (
        "Initializing a V1 LLM engine (v0.32.0) with config: model='m', speculative_config="
        f"SpeculativeConfig(method='eagle3', model='d', num_spec_tokens={tokens}), "
        f"device_config=cuda, compilation_config={{'cudagraph_capture_sizes': {sizes}}}"
    )
    said = [banner, *more, "init engine (profile, create kv cache, warmup model) took 9.00 s"]
    return read_log("\n".join(INFO + message for message in said))


NO_ARGUMENTS = {
    "a set": "{1}",
    "a key that cannot be one": "{[]: 1}",
    "brackets without end": "{'a': " + "[" * 3000 + "}",
    "rows longer than Python writes": "{'speculative_config': {'num_speculative_tokens_per_batch_"
    f"size': [[1, 8, 0x{'f' * 5000}]]}}}}",
}


@pytest.mark.parametrize("claim", NO_ARGUMENTS)
def test_arguments_that_are_none_tell_nothing(claim: str) -> None:
    assert log(f"non-default args: {NO_ARGUMENTS[claim]}") == log()


@pytest.mark.parametrize(
    ("written", "sizes"),
    [
        ("[]", []),
        ("[8]", [8]),
        ("[1,2]", [1, 2]),
        ("[1, 2,]", None),
        ("[, ]", None),
        (f"[1, {MANY}]", None),
    ],
)
def test_captured_sizes_are_a_list_of_numbers_or_not_told(
    written: str, sizes: list[int] | None
) -> None:
    assert log(sizes=written).captured_sizes == sizes


def test_a_number_of_tokens_longer_than_any_is_not_told() -> None:
    assert log().num_speculative_tokens == 4
    assert log(tokens=MANY).num_speculative_tokens is None


@pytest.mark.parametrize("told", ["²", MANY, "-1", "None", ""])
def test_a_cache_size_that_is_no_number_is_not_read(told: str) -> None:
    labels = f'kv_cache_size_tokens="{told}",block_size="16"'
    page = "vllm:cache_config_info{{{}}} 1.0\n"
    assert read_metrics(page.format(labels)).kv_cache_tokens is None
    assert read_metrics(page.format(f'{labels},num_gpu_blocks="10"')).kv_cache_tokens == 160
