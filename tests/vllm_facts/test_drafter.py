"""What a drafter's own files say."""

import pytest

from specschedule.vllm_facts.drafter import block_size

CONFIGS = {
    "the size by its common name": ({"block_size": 7}, 7),
    "the size by dspark's name": ({"dspark_block_size": 5}, 5),
    "the common name counts first": ({"dspark_block_size": 5, "block_size": 7}, 7),
    "no size": ({"architectures": ["LlamaForCausalLM"]}, None),
    "a size that is none": ({"block_size": True, "dspark_block_size": 0}, None),
}


@pytest.mark.parametrize("claim", CONFIGS)
def test_the_block_size_is_read_as_vllm_reads_it(claim):
    config, expected = CONFIGS[claim]
    assert block_size(config) == expected
