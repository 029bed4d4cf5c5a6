"""vLLM's completion requests, read and refused as vLLM reads and refuses them."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specschedule.sim import text
from specschedule.sim.text import Prompt


class ApiError(Exception):
    """A request that is refused.

    Attributes:
        status: HTTP status.
        body: vLLM's error object.
    """

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": kind, "param": param, "code": status},
        }


@dataclass(frozen=True)
class Asked:
    """One completion or chat request."""

    chat: bool
    model: str
    prompts: tuple[Prompt, ...]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    usage: bool
    """Whether a last chunk with the usage is wanted."""
    running_usage: bool
    """Whether every chunk carries the usage so far."""
    timestamps: bool
    """Whether the answer says when the tokens were written (field ``sim_timestamps``)."""
    seed: int | None
    """Added to the prompt's seed; None where the output depends on the prompt alone."""

    def prompt_seed(self, prompt: Prompt) -> int:
        """Return the seed of a prompt's output."""
        own = text.seed_of(prompt)
        return own if self.seed is None else own ^ (self.seed * 0x9E3779B1 & 0xFFFFFFFF)

    def length(self, prompt: Prompt) -> tuple[int, str]:
        """Return how many tokens a prompt's output has and why it ends."""
        if self.ignore_eos:
            return self.max_tokens, "length"
        natural = max(self.min_tokens, 64 + self.prompt_seed(prompt) % 1024)
        return (natural, "stop") if natural < self.max_tokens else (self.max_tokens, "length")


def read(body: bytes, *, chat: bool, served: Sequence[str], max_model_len: int) -> Asked:
    """Return the request in a body.

    Raises:
        ApiError: vLLM would refuse it.
    """
    try:
        plain = json.loads(body)
    except ValueError as error:
        raise ApiError(
            400,
            f"[{{'type': 'json_invalid', 'msg': 'JSON decode error: {error}'}}]",
            kind="Bad Request",
        ) from error
    if not isinstance(plain, dict):
        raise ApiError(400, "Input should be a valid dictionary", kind="Bad Request")
    model = plain.get("model") or served[0]
    if model not in served:
        raise ApiError(
            404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model"
        )
    if plain.get("n") not in (None, 1):
        raise ApiError(400, "n must be 1 in this server", param="n")
    prompts = (_chat_prompt(plain),) if chat else _prompts(plain)
    longest = max(map(text.tokens_of, prompts))
    if longest >= max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {longest} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    default = max_model_len - longest if chat else 16
    max_tokens = _count(plain, "max_completion_tokens", None) if chat else None
    if max_tokens is None:
        max_tokens = _count(plain, "max_tokens", default)
    assert max_tokens is not None
    if longest + max_tokens > max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {max_tokens} output tokens and your prompt contains {longest} input "
            f"tokens, for a total of {longest + max_tokens} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    min_tokens = _count(plain, "min_tokens", 0) or 0
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
        )
    options = plain.get("stream_options") or {}
    if options and not plain.get("stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.")
    return Asked(
        chat=chat,
        model=model,
        prompts=prompts,
        max_tokens=max(1, max_tokens),
        min_tokens=min_tokens,
        ignore_eos=bool(plain.get("ignore_eos")),
        stream=bool(plain.get("stream")),
        usage=bool(options.get("include_usage")),
        running_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        timestamps=bool(plain.get("sim_timestamps")),
        seed=_seed(plain),
    )


def _seed(plain: Mapping[str, Any]) -> int | None:
    temperature = plain.get("temperature")
    if temperature is not None and not isinstance(temperature, (int, float)):
        raise ApiError(400, "temperature: Input should be a valid number", kind="Bad Request")
    if temperature is not None and temperature < 0:
        raise ApiError(
            400,
            f"temperature must be non-negative, got {float(temperature)}.",
            param="temperature",
        )
    if temperature == 0:
        return None
    seed = plain.get("seed")
    return seed if isinstance(seed, int) else secrets.randbits(32)


def _count(plain: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = plain.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"{name}: Input should be a valid integer", kind="Bad Request")
    if value < 0 or (value == 0 and name != "min_tokens"):
        raise ApiError(400, f"{name} must be at least 1, got {value}.", param=name)
    return value


def _prompts(plain: Mapping[str, Any]) -> tuple[Prompt, ...]:
    prompt = plain.get("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if all(_is_token(item) for item in prompt):
            return (prompt,)
        if all(isinstance(item, str) for item in prompt):
            return tuple(prompt)
        if all(isinstance(item, list) and item and all(map(_is_token, item)) for item in prompt):
            return tuple(prompt)
    raise ApiError(
        400,
        "prompt: a string, a list of strings, of token ids, or of lists of token ids is needed",
        param="prompt",
    )


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _chat_prompt(plain: Mapping[str, Any]) -> str:
    messages = plain.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages: Field required", param="messages", kind="Bad Request")
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        if not isinstance(content, str):
            raise ApiError(400, "messages: content must be text", param="messages")
        parts.append(f"{message.get('role')}: {content}\n")
    return "".join(parts)
