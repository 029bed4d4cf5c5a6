"""Prompts: where they come from, in which order they are sent, and what the cache sees of them.

Every arm of a round gets the same prompts in the same order, given the seed. The order has places:
those from 0 on belong to the window, and negative ones are sent before it. A faster arm sends more
of those, and still counts the same prompts. The prefix-cache regime is reached by construction:

- ``Unique``: a nonce leads every prompt, so that no launch sees a beginning twice. It depends on
  the run, the round, the visit, the window's load and the place in the order, never on the arm.
- ``Shared``: one common beginning, then the nonce and the prompt.
- ``Warm``: a few prompts again and again.

A window whose outputs are compared gets the same prompts in every launch of the run.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specschedule.core import inband
from specschedule.core.visit import Visit, Window
from specschedule.load.records import Prepared
from specschedule.vllm_facts.plain import mapping, read_yaml

TOKEN_IDS = range(4, 196)
"""Ids of synthetic prompts: past the special tokens, inside every vocabulary of 196 or more."""
WARM_PROMPTS = 16
"""Prompts per category that Warm repeats."""
NONCE_TOKENS = 8
NONCE_DIGITS = 12
CHARACTERS_PER_TOKEN = 4
_WORDS = (
    "the of and to in is that for it was on are as with they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how "
    "up out them then she many some so these would other into has more her two like him see time "
    "could no make than first been its who now people my made over did down only way find use may"
)
_BYTE_TO_ID = bytes(TOKEN_IDS[byte % len(TOKEN_IDS)] for byte in range(256))

Text = str | list[int]
"""A prompt: text, or token ids."""


class PromptsMissing(Exception):
    """There are no prompts where they should be."""


@dataclass(frozen=True)
class Pool:
    """Prompts by category, in the order of their source."""

    categories: Mapping[str, Sequence[Text]]

    def without(self, unfit: Mapping[str, Collection[int]]) -> "Pool":
        """Return the prompts but for some, by category and place; an empty category goes."""
        left = {
            name: [prompt for at, prompt in enumerate(prompts) if at not in unfit.get(name, ())]
            for name, prompts in self.categories.items()
        }
        return Pool({name: prompts for name, prompts in left.items() if prompts})

    def select(self, category: str | None) -> list[tuple[str, Sequence[Text]]]:
        """Return the categories to send from.

        Raises:
            PromptsMissing: There is no such category.
        """
        if category is None:
            return sorted(self.categories.items())
        if category not in self.categories:
            raise PromptsMissing(
                f"no prompts of category {category!r}; there are {sorted(self.categories)}"
            )
        return [(category, self.categories[category])]


def read_pool(path: Path) -> Pool:
    """Read prompts from a folder (a file per category) or a ConfigMap written as YAML.

    A line is one prompt: plain text, a JSON string, or a JSON list of token ids.

    Raises:
        PromptsMissing: Nothing usable is there; the message names the place.
    """
    try:
        if path.is_dir():
            texts = {
                file.name: file.read_text()
                for file in sorted(path.iterdir())
                # A mounted ConfigMap keeps its versions in entries that start with two dots.
                if file.is_file() and not file.name.startswith(".")
            }
        else:
            documents = read_yaml(path.read_text())
            data = mapping(documents[0]).get("data") if len(documents) == 1 else None
            if not isinstance(data, dict):
                raise PromptsMissing(f"{path}: neither a folder nor a ConfigMap with data")
            texts = {str(key): str(value) for key, value in data.items()}
    except (OSError, ValueError) as error:
        raise PromptsMissing(f"{path}: {error}") from error
    categories = {
        name: prompts
        for name, text in texts.items()
        if (prompts := [_line(line) for line in text.splitlines() if line.strip()])
    }
    if not categories:
        raise PromptsMissing(f"{path}: no prompts; each key holds one prompt per line")
    return Pool(categories)


def _line(line: str) -> Text:
    """Read one line of a category."""
    line = line.strip()
    if line[0] in '"[':
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return value
    return line


def made_to_length(window: Window) -> bool:
    """Say whether prompts are joined and cut to a length that the window tells, or sent whole."""
    profile = window.profile
    made = not profile.as_they_are or profile.trace is not None
    return made or profile.kind == "equivalence"


class Source:
    """The endless, ordered prompts of one window."""

    def __init__(
        self, visit: Visit, window: Window, *, pool: Pool | None, model: str, repeat: int = 0
    ) -> None:
        """Prepare the order.

        Args:
            visit: Lengths, sampling, regime and endpoint.
            window: Category, seed and load.
            pool: The user's prompts; synthetic ones when None.
            model: Model name that the server answers to.
            repeat: How many windows of the same load and seed came before in this visit.

        Raises:
            PromptsMissing: The pool lacks the window's category.
        """
        self._visit, self._window, self._pool = visit, window, pool
        self._places = itertools.count(-1, -1)
        self._order = f"{window.seed}/{window.category}"
        load = json.dumps(window.profile.plain(), sort_keys=True)
        self._nonce = f"{visit.run}/{visit.round}/{visit.visit}/{self._order}/{load}/{repeat}"
        self._lines = self._arrange(pool) if pool else None
        self._lengths: list[int] = []
        """Lengths that prompts are made to in turn; none where they are sent whole."""
        if made_to_length(window):
            profile = window.profile
            self._lengths = profile.contexts or [profile.context or visit.prompt_tokens]
        self._shared, self._shared_ids = "", list[int]()
        if visit.prefix_cache == "Shared":
            self._shared = self._words("shared", max(64, visit.prompt_tokens // 2))
            self._shared_ids = self._ids("shared", max(1, visit.prompt_tokens // 2))
        self._whole = visit.ignore_eos or window.profile.kind == "equivalence"
        self._common: dict[str, Any] = {
            "model": model,
            "temperature": visit.sampling.temperature,
            "top_p": visit.sampling.top_p,
            "ignore_eos": self._whole,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        screen = visit.screen
        if screen is not None and screen.secret is not None:
            rows = [[1, screen.max_num_seqs, window.tokens or 0]]
            self._common["vllm_xargs"] = inband.arguments(screen.secret, rows, window.cell)
        if window.profile.kind == "equivalence":
            self._nonce = f"{visit.run}/{self._order}/{load}"
            self._common |= {"temperature": 0.0, "top_p": 1.0, "return_token_ids": True}

    def take(self, output_tokens: int | None = None) -> Prepared:
        """Return the next request: places -1, -2 and so on; once begun, places 0, 1 and so on.

        Args:
            output_tokens: Output length; the visit's when left out.
        """
        return self.request(next(self._places), output_tokens)

    def begin(self) -> None:
        """Let ``take`` go on with place 0."""
        self._places = itertools.count()

    def request(
        self, index: int, output_tokens: int | None = None, prompt_tokens: int | None = None
    ) -> Prepared:
        """Return the request at a place in the order.

        Args:
            index: The place; negative ones are for what is sent before the window.
            output_tokens: Output length; the visit's when left out.
            prompt_tokens: Length of a prompt that is made to one; the window's when left out.
        """
        length = output_tokens or self._visit.output_tokens
        category, prompt = self._prompt(index, prompt_tokens)
        body = self._common | {"max_tokens": length}
        if self._whole:
            body["min_tokens"] = length
        if self._visit.endpoint == "chat":
            body["messages"] = messages(prompt)
        else:
            body["prompt"] = prompt
        return Prepared(index, category, json.dumps(body).encode(), length, not self._whole)

    def sized(self, prompt: Text) -> tuple[Text, int]:
        """Return a prompt as it is sent but for its nonce, and the most tokens of a nonce.

        How many a nonce really has hangs on chance, and what fits a server must not.
        """
        if self._visit.prefix_cache == "Warm":
            return prompt, 0
        if isinstance(prompt, list):
            return self._shared_ids + prompt, NONCE_TOKENS
        return f"{self._beginning}{prompt}", len("[]\n") + NONCE_DIGITS

    def samples(self, prompt_tokens: int | None = None) -> list[tuple[Text, int]]:
        """Return one prompt of each category made to a length, as ``sized`` does."""
        length = prompt_tokens or max(self._lengths, default=None)
        if self._lines is None:
            return [(self._synthetic(0, length), 0)]
        return [self.sized(self._given(at, length)[1]) for at in range(len(self._lines))]

    @property
    def output_tokens(self) -> int:
        """Output length of a full request."""
        return self._visit.output_tokens

    @property
    def repeats_after(self) -> int | None:
        """Requests after which Warm has sent every prompt once; None where none is repeated."""
        if self._visit.prefix_cache != "Warm":
            return None
        if self._lines is None:
            return WARM_PROMPTS
        return len(self._lines) * max(len(prompts) for _, prompts in self._lines)

    def _arrange(self, pool: Pool) -> list[tuple[str, list[Text]]]:
        """Shuffle each category by the seed."""
        arranged = []
        for name, prompts in pool.select(self._window.category):
            shuffled = list(prompts)
            random.Random(f"order/{self._window.seed}/{name}").shuffle(shuffled)
            if self._visit.prefix_cache == "Warm":
                shuffled = shuffled[:WARM_PROMPTS]
            arranged.append((name, shuffled))
        return arranged

    def _prompt(self, index: int, prompt_tokens: int | None) -> tuple[str | None, Text]:
        """Return category and prompt of a place in the order; categories take turns."""
        length = prompt_tokens or self._length(index)
        if self._lines is None:
            return self._window.category, self._synthetic(index, length)
        name, prompt = self._given(index, length)
        return name, self._regime(prompt, index)

    def _length(self, index: int) -> int | None:
        """Return the length that the prompt at a place is made to; None where it is sent whole.

        Every category goes through all lengths.
        """
        if not self._lengths:
            return None
        turn = index // (len(self._lines) if self._lines else 1)
        return self._lengths[turn % len(self._lengths)]

    def _given(self, index: int, length: int | None) -> tuple[str, Text]:
        """Return category and prompt of a place as they were given, or made to a length."""
        assert self._lines is not None
        name, prompts = self._lines[index % len(self._lines)]
        place = index // len(self._lines)
        if length is not None:
            return name, _deepen(prompts, place, length)
        return name, prompts[place % len(prompts)]

    def _regime(self, prompt: Text, index: int) -> Text:
        """Put the beginning that the regime wants before a prompt."""
        if self._visit.prefix_cache == "Warm":
            return prompt
        if isinstance(prompt, list):
            return self._shared_ids + self._ids(f"{self._nonce}/{index}", NONCE_TOKENS) + prompt
        nonce = hashlib.sha256(f"{self._nonce}/{index}".encode()).hexdigest()[:NONCE_DIGITS]
        return f"{self._beginning}[{nonce}]\n{prompt}"

    @property
    def _beginning(self) -> str:
        """What all texts begin with."""
        return f"{self._shared}\n\n" if self._shared else ""

    def _synthetic(self, index: int, prompt_tokens: int | None) -> Text:
        """Return a random prompt of a given length: token ids, or words for chat."""
        length = prompt_tokens or self._visit.prompt_tokens
        regime = self._visit.prefix_cache
        key = f"{self._nonce}/{index}"
        if regime == "Warm":
            key = f"warm/{self._order}/{index % WARM_PROMPTS}"
        if self._visit.endpoint == "chat":
            lead = f"{self._shared} " if self._shared else ""
            return lead + self._words(key, length)
        shared = self._shared_ids[: length // 2]
        return shared + self._ids(key, length - len(shared))

    def _ids(self, key: str, count: int) -> list[int]:
        return list(_noise(f"ids/{key}", count).translate(_BYTE_TO_ID))

    def _words(self, key: str, count: int) -> str:
        words = _WORDS.split()
        return " ".join(words[byte % len(words)] for byte in _noise(f"words/{key}", count))


def _noise(key: str, count: int) -> bytes:
    """Return bytes that look random and depend on the key alone."""
    return hashlib.shake_256(key.encode()).digest(count)


def _deepen(prompts: Sequence[Text], place: int, tokens: int) -> Text:
    """Join prompts, from a place on, to about the number of tokens asked for."""
    if all(isinstance(prompt, list) for prompt in prompts):
        ids: list[int] = []
        while len(ids) < tokens:
            ids.extend(prompts[place % len(prompts)])  # type: ignore[arg-type]
            place += 1
        return ids[:tokens]
    text = ""
    while len(text) < tokens * CHARACTERS_PER_TOKEN:
        prompt = prompts[place % len(prompts)]
        text += f"{prompt}\n\n" if isinstance(prompt, str) else ""
        place += 1
    return text[: tokens * CHARACTERS_PER_TOKEN]


def messages(prompt: object) -> list[dict[str, object]]:
    """Return a chat of one prompt."""
    return [{"role": "user", "content": prompt}]
