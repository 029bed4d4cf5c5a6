"""What the load sends, as far as a plan must know it: prompt categories, and recorded arrivals."""

import hashlib
import json
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

from specschedule.core.gate import Gate, fails, not_applicable, passes, unknown
from specschedule.core.spec import Load, Spec
from specschedule.core.values import Value

LONGEST_TRACE_S = 1800.0
"""A trace is replayed once in every launch, so a longer one is refused."""

FEWEST_ARRIVALS = 20
"""A window in which fewer requests finish carries nothing."""

SHORTEST_ANSWER = 2
"""Tokens; fewer have no time per token."""

DIGEST = "sha256:"
"""Head of a trace's name in a window: it is the trace with this digest that must be replayed."""


class Trace(Value):
    """Recorded arrivals."""

    digest: str
    """sha256: and twelve hex digits of its text."""
    requests: int
    """Arrivals."""
    seconds: float
    """From the first arrival to one mean gap after the last."""
    longest: int
    """Tokens of its longest request, prompt and answer."""


class Workload(Value):
    """What the load sends."""

    categories: list[str] = []
    """Categories of the prompts."""
    trace: Trace | None = None
    """Arrivals to replay."""


class Recorded(NamedTuple):
    """One arrival of a trace."""

    at: float
    """Seconds since the first one."""
    prompt_tokens: int
    """Length of its prompt."""
    output_tokens: int
    """Length of its answer."""


def read_trace(text: str, name: str) -> list[Recorded]:
    """Read a trace: JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length``.

    This is the form in which request traces are published (Mooncake's). Other fields are
    ignored.

    Args:
        text: The lines.
        name: What errors call it.

    Returns:
        The arrivals in time order.

    Raises:
        ValueError: A line is not such an object, or fewer than two arrivals are there.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            at = float(entry["timestamp"]) / 1000
            prompt, answer = int(entry["input_length"]), int(entry["output_length"])
            if not isfinite(at) or prompt < 1 or answer < 1:
                raise ValueError("a time must be finite, and a length 1 at least")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(
                f"{name}:{number}: needs timestamp (ms), input_length and output_length: {error}"
            ) from error
        found.append(Recorded(at, prompt, max(SHORTEST_ANSWER, answer)))
    found.sort()
    if len(found) < 2 or found[-1].at == found[0].at:
        raise ValueError(f"{name}: needs at least two arrivals at different times")
    first = found[0].at
    return [each._replace(at=each.at - first) for each in found]


def turn_seconds(arrivals: list[Recorded]) -> float:
    """Return the length of a turn of a trace: it ends one mean gap after the last arrival."""
    span = arrivals[-1].at
    return span + span / (len(arrivals) - 1)


def digest_of_trace(text: str) -> str:
    """Return the name of a trace by what it says."""
    return DIGEST + hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=16)
def trace_facts(text: str, name: str) -> Trace:
    """Return what a plan must know of a trace; the operator asks at every look at a run.

    Args:
        text: Its lines.
        name: What errors call it.

    Raises:
        ValueError: It is none.
    """
    arrivals = read_trace(text, name)
    return Trace(
        digest=digest_of_trace(text),
        requests=len(arrivals),
        seconds=max(0.001, round(turn_seconds(arrivals), 3)),
        longest=max(each.prompt_tokens + each.output_tokens for each in arrivals),
    )


def trace_fits(spec: Spec, trace: Trace | None, max_model_len: int | None) -> Gate:
    """Say whether a trace can be replayed in every launch.

    Args:
        spec: The question.
        trace: What was read of the trace that it names; None when nothing was.
        max_model_len: Longest sequence of the server; None when unknown.
    """
    gate, asked = "trace", spec.load.trace
    if asked is None:
        return not_applicable(gate, "NoTrace", "no recorded arrivals are replayed")
    named = f"spec.load.trace: key {asked.key} of ConfigMap {asked.config_map}"
    if trace is None:
        return unknown(
            gate, "TraceNotRead", f"{named} was not read; before a run, give preflight --trace"
        )
    if trace.seconds > LONGEST_TRACE_S:
        return fails(
            gate,
            "TraceTooLong",
            f"{named} lasts {trace.seconds:.0f} s, and every launch replays it: cut it to "
            f"{LONGEST_TRACE_S:.0f} s at most",
        )
    if trace.requests < FEWEST_ARRIVALS:
        return fails(
            gate,
            "TraceTooShort",
            f"{named} holds {trace.requests} arrivals, and fewer than {FEWEST_ARRIVALS} finished "
            "requests carry nothing: record more",
        )
    if max_model_len is not None and trace.longest > max_model_len:
        return fails(
            gate,
            "BeyondModelLength",
            f"{named} holds a request of {trace.longest} tokens, prompt and answer, which is more "
            f"than max_model_len {max_model_len}: leave it out of the trace",
        )
    said = f"each launch replays {trace.requests} arrivals in {trace.seconds:.0f} s"
    return passes(gate, said)


def prompt_of(context: int, load: Load) -> int:
    """Return the length of prompts, in tokens, whose requests have a mean context."""
    return context - load.output_tokens // 2


def contexts_fit(spec: Spec, max_model_len: int | None) -> Gate | None:
    """Refuse a context of the bar that no request can have; None where each has one.

    Args:
        spec: The question.
        max_model_len: Longest sequence of the server; None when unknown.
    """
    answer = spec.load.output_tokens
    for field in ("improve", "protect"):
        for number, requirement in enumerate(getattr(spec.bar, field)):
            if requirement.context is None:
                continue
            named = f"spec.bar.{field}[{number}].context {requirement.context}"
            prompt = prompt_of(requirement.context, spec.load)
            if prompt < 1:
                return fails(
                    "load",
                    "ContextTooShort",
                    f"{named} leaves no room for a prompt: half an answer of "
                    f"spec.load.outputTokens is {answer // 2} tokens already",
                )
            if max_model_len is not None and prompt + answer > max_model_len:
                return fails(
                    "load",
                    "BeyondModelLength",
                    f"{named} needs prompts of {prompt} tokens, which with outputTokens {answer} "
                    f"are more than max_model_len {max_model_len}",
                )
    return None


def search_contexts_fit(spec: Spec, max_model_len: int | None) -> Gate | None:
    """Name contexts of the search that the server cannot have; None where there are none.

    A screen leaves them out by itself; with none left there would be nothing to measure.

    Args:
        spec: The question.
        max_model_len: Longest sequence of the server; None when unknown.
    """
    asked = spec.search.contexts if spec.search else []
    answer = spec.load.output_tokens
    beyond = [
        context
        for context in asked
        if max_model_len is not None and prompt_of(context, spec.load) + answer > max_model_len
    ]
    if not beyond:
        return None
    said = (
        f"spec.search.contexts {beyond} need prompts that with outputTokens {answer} are more than "
        f"max_model_len {max_model_len}"
    )
    if beyond == asked:
        return fails("load", "BeyondModelLength", f"{said}, and no other is asked for")
    return passes("load", f"{said}: the screen leaves them out", "ContextsLeftOut")
