"""Facts in a drafter's own files."""

import json
from collections.abc import Mapping
from typing import Any

_BLOCK_SIZE = ("block_size", "dspark_block_size")
"""Where vLLM looks for it in config.json, in this order."""


def block_in(text: str) -> int | None:
    """Return the block size that a drafter's config.json names; None where it names none.

    Args:
        text: The file.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        config = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return block_size(config) if isinstance(config, dict) else None


def block_size(config: Mapping[str, Any]) -> int | None:
    """Return the tokens that a block drafter was trained to draft; None where it does not say.

    Args:
        config: The drafter's config.json.
    """
    for key in _BLOCK_SIZE:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
