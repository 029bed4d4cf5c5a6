"""Prompts as tokens and outputs as text, without a tokenizer.

A text prompt has one token per four characters. The output is a stretch of one fixed text, four
characters per token, that starts where the prompt says: it depends on the prompt alone, so every
arm says the same.
"""

import random
import zlib
from collections.abc import Sequence

from specschedule.sim.kv_cache import BLOCK

_WORDS = """
    the and for with that from this when into over have then each more only also some such than most
    very just like make time work part side line case fact form rule read note data code test step
    next last long same both here page name type list item word sort plan load rate unit task slot
    file size byte node pool lock root path edge tree hash sum map key set
"""

LENGTH = 4096
"""Tokens of the fixed text."""


def _book() -> str:
    words = [f"{word} " for word in _WORDS.split()]
    return "".join(random.Random(LENGTH).choices(words, k=2 * LENGTH))[: 4 * LENGTH]


_BOOK = _book()
_BOOK_TWICE = _BOOK + _BOOK

Prompt = str | Sequence[int]
"""A prompt as text or token ids."""


def tokens_of(prompt: Prompt) -> int:
    """Return the prompt's length in tokens, at least 1."""
    return max(1, -(-len(prompt) // 4) if isinstance(prompt, str) else len(prompt))


def ids_of(prompt: str) -> list[int]:
    """Return an id for each token of a text."""
    parts = [prompt[at : at + 4] for at in range(0, max(1, len(prompt)), 4)]
    return [zlib.crc32(part.encode("utf-8", "surrogatepass")) % LENGTH for part in parts]


def blocks_of(prompt: Prompt) -> list[int]:
    """Return a key per full block of the prompt, equal exactly for equal beginnings."""
    width = 4 * BLOCK if isinstance(prompt, str) else BLOCK
    keys, key = [], 0
    for start in range(0, len(prompt) - width + 1, width):
        part = prompt[start : start + width]
        key = hash((key, part if isinstance(part, str) else tuple(part)))
        keys.append(key)
    return keys


def seed_of(prompt: Prompt) -> int:
    """Return a number that the prompt determines, the same in every process."""
    plain = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
    return zlib.crc32(plain.encode("utf-8", "surrogatepass"))


def output_ids(seed: int, first: int, tokens: int) -> list[int]:
    """Return the ids of output tokens: their places in the fixed text."""
    return [(seed + at) % LENGTH for at in range(first, first + tokens)]


def output_text(seed: int, first: int, tokens: int) -> str:
    """Return the text of output tokens ``first`` to ``first + tokens`` of a prompt's seed.

    Only characters that JSON writes as they are.
    """
    start = 4 * ((seed + first) % LENGTH)
    end = start + 4 * tokens
    if end <= len(_BOOK_TWICE):
        return _BOOK_TWICE[start:end]
    whole = _BOOK_TWICE * (1 + end // len(_BOOK_TWICE))
    return whole[start:end]
