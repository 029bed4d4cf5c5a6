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
    token_ids: bool
    """Whether every chunk carries the ids of its tokens."""
    extra: Mapping[str, object]
    """Arguments of ours or of others, which reach the scheduler (``vllm_xargs``)."""
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


def read(
    body: bytes, content_type: str, *, chat: bool, served: Sequence[str], max_model_len: int
) -> Asked:
    """Return the request in a body.

    Raises:
        ApiError: vLLM would refuse it.
    """
    plain = _mapping(body, content_type)
    model = _model(plain, served)
    if plain.get("n") not in (None, 1):
        raise ApiError(400, "this server answers n=1 only", param="n")
    options = plain.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _mistyped("body.stream_options", "Input should be a valid dictionary", options)
    if options and not plain.get("stream"):
        raise _malformed("stream_options", "Stream options can only be defined when `stream=True`.")
    prompts = (_chat_prompt(plain),) if chat else _prompts(plain)
    longest = max(prompts, key=text.tokens_of)
    max_tokens = _max_tokens(plain, chat, longest, max_model_len)
    min_tokens = _count(plain, "min_tokens") or 0
    if min_tokens < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
        )
    return Asked(
        chat=chat,
        model=model,
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(plain.get("ignore_eos")),
        stream=bool(plain.get("stream")),
        usage=bool(options.get("include_usage")),
        running_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        timestamps=bool(plain.get("sim_timestamps")),
        token_ids=bool(plain.get("return_token_ids")),
        extra=_extra(plain),
        seed=_seed(plain),
    )


def counted(body: bytes, content_type: str, *, served: Sequence[str]) -> list[int]:
    """Return the ids of the prompt, or the chat, in the body of a /tokenize request.

    Raises:
        ApiError: vLLM would refuse it.
    """
    plain = _mapping(body, content_type)
    _model(plain, served)
    prompt = plain.get("prompt")
    if "messages" in plain:
        prompt = _chat_prompt(plain)
    elif not isinstance(prompt, str):
        raise _mistyped(
            "body.TokenizeCompletionRequest.prompt", "Input should be a valid string", prompt
        )
    return text.ids_of(prompt)


def _model(plain: Mapping[str, Any], served: Sequence[str]) -> str:
    model = plain.get("model") or served[0]
    if model not in served:
        raise ApiError(
            404,
            f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}.",
            kind="NotFoundError",
            param="model",
        )
    return str(model)


def _mapping(body: bytes, content_type: str) -> dict[str, Any]:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise _unvalidated("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        plain = json.loads(body)
    except json.JSONDecodeError as error:
        detail = {
            "type": "json_invalid",
            "loc": f"body.{error.pos}",
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise _unvalidated(str(detail), f"body.{error.pos}") from error
    except UnicodeDecodeError as error:
        raise ApiError(400, "There was an error parsing the body", kind="Bad Request") from error
    if not isinstance(plain, dict):
        raise _mistyped("body", "Input should be a valid dictionary", plain)
    return plain


def _unvalidated(detail: str, param: str | None) -> ApiError:
    """Return the refusal of a body that vLLM's request model does not accept."""
    message = f"1 validation error:\n  {detail}"
    return ApiError(400, message, kind="Bad Request", param=param)


def _mistyped(where: str, message: str, value: object) -> ApiError:
    kind = message.removeprefix("Input should be a valid ").replace("integer", "int") + "_type"
    detail = {"type": kind, "loc": where, "msg": message, "input": value}
    return _unvalidated(str(detail), where)


def _malformed(param: str, message: str) -> ApiError:
    detail = {"type": "value_error", "loc": "body", "msg": f"Value error, {message}"}
    return _unvalidated(str(detail), param)


def _beyond(message: str, param: str, value: int) -> ApiError:
    """Return the refusal of a value that the model or the sampler cannot serve."""
    return ApiError(400, f"{message} (parameter={param}, value={value})", param=param)


def _max_tokens(plain: Mapping[str, Any], chat: bool, longest: Prompt, max_model_len: int) -> int:
    """Return the output limit in effect; vLLM cuts it to what the context has room for."""
    name = "max_completion_tokens" if chat and "max_completion_tokens" in plain else "max_tokens"
    asked = _count(plain, name)
    if asked is not None and asked > max_model_len:
        raise _beyond(
            f"{name}={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            name,
            asked,
        )
    prompt = text.tokens_of(longest)
    if prompt > max_model_len:
        if isinstance(longest, str):
            prompt = max_model_len + 1  # vLLM stops to count a text there
        least = "at least " if prompt == max_model_len + 1 else ""
        raise _beyond(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {least}{prompt} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            prompt,
        )
    if asked is None:
        asked = max_model_len if chat else 16
    limit = min(asked, max_model_len - prompt)
    if limit < 1:
        raise _beyond(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    return limit


def _seed(plain: Mapping[str, Any]) -> int | None:
    temperature = plain.get("temperature")
    if temperature is not None and not isinstance(temperature, (int, float)):
        raise _mistyped("body.temperature", "Input should be a valid float", temperature)
    if temperature is not None and temperature < 0:
        raise ApiError(
            400,
            f"temperature must be non-negative, got {float(temperature)}. "
            f"(parameter=temperature, value={float(temperature)})",
            param="temperature",
        )
    if temperature == 0:
        return None
    seed = _count(plain, "seed")
    return secrets.randbits(32) if seed is None else seed


def _extra(plain: Mapping[str, Any]) -> Mapping[str, object]:
    given = plain.get("vllm_xargs")
    if given is not None and not isinstance(given, dict):
        raise _mistyped("body.vllm_xargs", "Input should be a valid dictionary", given)
    return given or {}


def _count(plain: Mapping[str, Any], name: str) -> int | None:
    value = plain.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise _mistyped(f"body.{name}", "Input should be a valid integer", value)
    return value


def _prompts(plain: Mapping[str, Any]) -> tuple[Prompt, ...]:
    prompt = plain.get("prompt")
    if isinstance(prompt, str) and prompt:
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if all(_is_token(item) for item in prompt):
            return (prompt,)
        if all(isinstance(item, str) for item in prompt):
            return tuple(prompt)
        if all(isinstance(item, list) and item and all(map(_is_token, item)) for item in prompt):
            return tuple(prompt)
    if prompt in (None, "", []):
        raise _malformed("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
    raise _mistyped("body.prompt", "Input should be a valid list", type(prompt).__name__)


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _chat_prompt(plain: Mapping[str, Any]) -> str:
    messages = plain.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _mistyped("body.messages", "Input should be a valid list", messages)
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(text for text in texts if isinstance(text, str))
        if not isinstance(content, str):
            raise _mistyped("body.messages.content", "Input should be a valid string", content)
        parts.append(f"{message.get('role')}: {content}\n")
    return "".join(parts)
