"""Facts in vLLM's start-up log.

Lines are matched on the text of their message, never on file and line, in whatever form they
come: plain, with a process prefix, with the opening bracket lost, coloured, or as JSON objects.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeGuard

from pydantic import ValidationError

from specschedule.core.evidence import DeviceStep, DeviceTimes, Receipt
from specschedule.core.matrix import Runner
from specschedule.core.receipts import (
    ASYNC_DISABLED,
    CAPTURE_TRUNCATED,
    COMPILED_UNDER_LOAD,
    GRAPH_MODE_OVERRIDDEN,
    RUNNER_FALLBACK,
    SCHEDULE_DISABLED,
    TUNED,
)
from specschedule.engine.settings import (
    DEVICE_LINE,
    FINDING_LINE,
    FINGERPRINT_LINE,
    TABLE_LINE,
)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d\b")
_SPEAKS = re.compile(
    r"\b(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d\b"
    r"|^\s*(?:\(?[\w -]+ pid=\d+\)\s*)?(?:INFO|WARNING|ERROR):\s"
    r'|"level(?:name)?": ?"(?:ERROR|CRITICAL)"',
    re.MULTILINE | re.IGNORECASE,
)
"""A line of a server that shows nothing below errors; the middle form is the HTTP server's own."""
_PREFIX = re.compile(
    r"^\s*(?:\(?[\w -]+ pid=\d+\)\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[?[\w./-]+:\d+\] ?)?"
)

_REQUEST = re.compile(r"(?:Received request|Request \S+ details|Generated response)\b")
"""Begins a message that quotes a user, who can write what vLLM writes."""

_COMPILED = re.compile(r"during inference: .*causes a latency spike")

NOTES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        SCHEDULE_DISABLED,
        re.compile(
            r"Disabling num_speculative_tokens_per_batch_size"
            r"|falling back to static num_speculative_tokens"
        ),
    ),
    (
        GRAPH_MODE_OVERRIDDEN,
        re.compile(
            r"(?:(?i:overrid(?:ing|den|es)\b.*\b)(?:cudagraph_mode|PIECEWISE|NONE|FULL\w*)|setting "
            r"cudagraph_mode=|Cudagraph mode \S+ (?:is not "
            r"compatible|requires piecewise)|disabling torch\.compile,? (?:and )?CUDAGraphs)"
        ),
    ),
    (RUNNER_FALLBACK, re.compile(r"using the V1 model runner instead")),
    (
        ASYNC_DISABLED,
        re.compile(r"Async scheduling (?:is not|not supported|will be disabled|is disabled)"),
    ),
    (
        CAPTURE_TRUNCATED,
        re.compile(
            r"Truncating max_cudagraph_capture_size to|cudagraph_capture_sizes specified in .* is "
            r"overridden|(?:max|maximum)\S* (?:.* )?\d+ (?:was )?(?:cut|truncated) to \d+"
        ),
    ),
    (TUNED, re.compile(r"Compiling a graph for compile range")),
    (COMPILED_UNDER_LOAD, _COMPILED),
)
"""Warnings that matter, by kind; the first pattern that is found in a message gives its kind."""

_BANNER = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)")
_STARTED = re.compile(
    r"init engine \(profile|Starting vLLM (?:API )?server|Application startup complete"
)
_GRAPH_MODE = re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)")
_TO_MODE = re.compile(
    r"(?:to|cudagraph_mode=) ?(NONE|PIECEWISE|FULL_AND_PIECEWISE|FULL_DECODE_ONLY|FULL)\b"
)
_FROM_MODE = re.compile(r"from (?:CUDAGraphMode\.)?\w+ to (?:CUDAGraphMode\.)?(\w+)")
_CAPTURED = re.compile(r"'cudagraph_capture_sizes': \[((?:[0-9]{1,9}, ?)*[0-9]{1,9}|)\]")
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_BACKEND = re.compile(r"Using (\S+) attention backend|Using (\S+_ATTN\S*|FLASHINFER\S*) backend")
_FINGERPRINT = re.compile(re.escape(FINGERPRINT_LINE) + r"(\{.*\})")
_FINDING = re.compile(re.escape(FINDING_LINE) + r"(.+)")
_DEVICE = re.compile(re.escape(DEVICE_LINE) + r"(\{.*\})")
_TABLE = re.compile(re.escape(TABLE_LINE) + r"(\[.*\])")
_COMPILE_HASH = re.compile(r"torch_compile_cache/([0-9a-f]{10})")
_COMPILE_TOOK = re.compile(r"torch\.compile took (\d{1,9}(?:\.\d{1,9})?) s in total")
_CAPTURE_TOOK = re.compile(r"^Graph capturing finished in (\d{1,9}(?:\.\d{1,9})?) secs")
_TUNING = re.compile(r"\[Autotuner\]: Autotuning process starts")
_TUNED_BEFORE = re.compile(r"\[Autotuner\]: Loaded [1-9]\d* configs from")
"""FlashInfer says that it begins to tune in every launch, and that it found the results of another
in those that have nothing left to tune."""
_AUTOTUNE_HASH = re.compile(r"flashinfer_autotune_cache/[^/]+/[^/]+/([0-9a-f]{64})")


_DEVICE_STEP = ("requests", "draft_tokens", "steps", "target_ms", "drafter_ms")
"""Columns of a row of it."""


@dataclass
class LogFacts:
    """What a start-up log tells; None where it does not."""

    version: str | None = None
    model: str | None = None
    revision: str | None = None
    quantization: str | None = None
    device: str | None = None
    drafter: str | None = None
    num_speculative_tokens: int | None = None
    schedule_asked: list[list[int]] | None = None
    """The schedule among the arguments; asked for, not necessarily in effect."""
    model_runner: Runner | None = None
    graph_mode: str | None = None
    captured_sizes: list[int] | None = None
    attention_backend: str | None = None
    async_scheduling: bool | None = None
    kv_cache_tokens: int | None = None
    compile_hash: str | None = None
    autotune_hash: str | None = None
    caches_warm: bool | None = None
    compile_seconds: float | None = None
    capture_seconds: float | None = None
    max_model_len: int | None = None
    level_hides_warnings: bool | None = None
    notes: list[str] = field(default_factory=list)
    by_silence: set[str] = field(default_factory=set)
    """Which of these no line tells: vLLM would have said otherwise."""
    fingerprint: Receipt | None = None
    """What the worker itself printed, where the launch carries the fingerprint."""
    table: list[list[int]] | None = None
    """What the context-axis scheduler said that it follows, where the launch carries it."""


def messages(text: str) -> Iterable[str]:
    """Return the messages of a log, one a line, without prefixes and colours.

    What quotes a user's request or its answer is left out.
    """
    for line in text.splitlines():
        bare = _COLOUR.sub("", line).strip()
        said = _json_message(bare) if bare.startswith("{") else None
        lines = [_PREFIX.sub("", bare, count=1)] if said is None else said.splitlines()
        if bare and lines and not _REQUEST.match(lines[0]):
            yield from lines


def without_times(text: str) -> str:
    """Return a log without the time that stands before each line."""
    return "".join(line.partition(" ")[2] for line in text.splitlines(keepends=True))


def compiled_at(text: str) -> list[float]:
    """Return when the engine compiled something while it served, in Unix seconds.

    Args:
        text: A log whose lines begin with RFC 3339 times, as Kubernetes gives it when asked to.
    """
    found = []
    for line in text.splitlines():
        time, _, said = line.partition(" ")
        if any(_COMPILED.search(message) for message in messages(said)):
            # With nanoseconds, in the time zone of the node.
            found.append(datetime.fromisoformat(time).timestamp())
    return found


def scheduler_finding(text: str) -> str | None:
    """Return what a scheduler of ours found its engine to do otherwise; None where nothing.

    Args:
        text: A log whose lines begin with times, as for ``compiled_at``.
    """
    said = messages(without_times(text))
    return next((match[1] for line in said if (match := _FINDING.search(line))), None)


def device_times(text: str) -> DeviceTimes | None:
    """Return how long steps kept the device, as a worker said last; None where it said nothing.

    Args:
        text: A log whose lines begin with times, as for ``compiled_at``.
    """
    said = [m[1] for line in messages(without_times(text)) if (m := _DEVICE.search(line))]
    try:
        told = json.loads(said[-1])
        rows = told.get("steps", [])
        steps = [DeviceStep(**dict(zip(_DEVICE_STEP, row, strict=True))) for row in rows]
        return DeviceTimes(clock=told.get("clock"), steps=steps, absent=told.get("absent"))
    except (IndexError, ValueError, TypeError):
        return None


def while_serving(text: str) -> dict[str, Any]:
    """Return what a log tells of a server under load, as fields of ``PodFacts``.

    Args:
        text: A log whose lines begin with times, as for ``compiled_at``.
    """
    return {
        "compiled_at": compiled_at(text),
        "finding": scheduler_finding(text),
        "device": device_times(text),
    }


def read_log(text: str) -> LogFacts:
    """Return the facts of a start-up log.

    What is told by silence (model runner V1, asynchronous scheduling) is only taken from a log
    that shows vLLM's information lines through the end of the start.
    """
    facts = LogFacts()
    readers: dict[re.Pattern[str], Callable[[LogFacts, re.Match[str]], None]] = {
        _BANNER: _banner,
        _ARGUMENTS: _arguments,
        _KV_TOKENS: _kv_tokens,
        _BACKEND: _backend,
        _COMPILE_HASH: _compile_hash,
        _AUTOTUNE_HASH: _autotune_hash,
        _COMPILE_TOOK: _compile_took,
        _CAPTURE_TOOK: _capture_took,
        _FINGERPRINT: _fingerprint,
        _TABLE: _table,
    }
    overrides: list[str] = []
    informs = started = warns = warm = tuned_before = False
    tuning: str | None = None
    for message in messages(text):
        for pattern, read in readers.items():
            if match := pattern.search(message):
                read(facts, match)
        informs = informs or _BANNER.search(message) is not None
        started = started or _STARTED.search(message) is not None
        if "Using V2 Model Runner" in message:
            facts.model_runner = "V2"
        if re.search(r"Directly load (?:the compiled graph|AOT compilation)", message):
            warm = True
        tuned_before = tuned_before or _TUNED_BEFORE.search(message) is not None
        if tuning is None and _TUNING.search(message):
            tuning = message
        kind = next((kind for kind, pattern in NOTES if pattern.search(message)), None)
        if kind:
            warns = True
            note = f"{kind}: {message[:500]}"
            if note not in facts.notes:
                facts.notes.append(note)
        if kind == GRAPH_MODE_OVERRIDDEN:
            overrides.append(message)
    if tuning is not None and not tuned_before:
        facts.notes.append(f"{TUNED}: {tuning[:500]}")
    _conclude(facts, informs=informs, started=started, overrides=overrides, warm=warm)
    if informs or warns or _shows_levels(text):
        facts.level_hides_warnings = False
    elif started or _SPEAKS.search(_COLOUR.sub("", text[:1_000_000])):
        facts.level_hides_warnings = True
    return facts


def _conclude(
    facts: LogFacts, *, informs: bool, started: bool, overrides: list[str], warm: bool
) -> None:
    kinds = {note.split(":", 1)[0] for note in facts.notes}
    if facts.model_runner is None and RUNNER_FALLBACK in kinds:
        facts.model_runner = "V1"
    elif facts.model_runner is None and informs and started:
        facts.model_runner = "V1"
        facts.by_silence.add("model_runner")
    if ASYNC_DISABLED in kinds:
        facts.async_scheduling = False
    elif facts.async_scheduling is None and informs and started:
        # vLLM switches it off on CPUs and does not say so.
        facts.async_scheduling = facts.device != "cpu"
        facts.by_silence.add("async_scheduling")
    for message in overrides:
        # Later lines come from the worker, whose word is the last one.
        if (mode := _overridden_to(message)) and facts.graph_mode != "NONE":
            facts.graph_mode = mode
    if not started and not overrides:
        # A worker may still overrule the configured mode.
        facts.graph_mode = None
    if TUNED in kinds:
        facts.caches_warm = False
    elif warm:
        facts.caches_warm = True
    if facts.device == "cpu" and facts.attention_backend is None:
        # vLLM has one backend for CPUs and does not name it.
        facts.attention_backend = "CPU_ATTN"
        facts.by_silence.add("attention_backend")


def _overridden_to(message: str) -> str | None:
    if match := _FROM_MODE.search(message):
        return match.group(1)
    found = _TO_MODE.findall(message)
    return found[-1] if found else None


def _shows_levels(text: str) -> bool:
    """Whether any line of level WARNING or below is shown."""
    if _LEVEL.search(_COLOUR.sub("", text[:1_000_000])):
        return True
    pattern = r'"level(?:name)?": ?"(?:DEBUG|INFO|WARNING)"'
    return re.search(pattern, text, re.IGNORECASE) is not None


def _json_message(line: str) -> str | None:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict):
        return None
    said = plain.get("message", plain.get("msg"))
    return said if isinstance(said, str) else None


def _banner(facts: LogFacts, match: re.Match[str]) -> None:
    facts.version, config = match.groups()

    def told(pattern: str) -> str | None:
        found = re.search(pattern, config)
        return found.group(1) if found and found.group(1) != "None" else None

    facts.model = told(r"^model='([^']*)'")
    facts.revision = told(r"\brevision=([^,]+)")
    facts.quantization = told(r"\bquantization=([^,]+)")
    length = told(r"\bmax_seq_len=(\d{1,12})\b")
    facts.max_model_len = int(length) if length else None
    facts.device = told(r"\bdevice_config=(\w+)")
    method = told(r"SpeculativeConfig\(method='([^']*)'")
    drafter = told(r"SpeculativeConfig\(method=[^)]*model='([^']*)'")
    facts.drafter = drafter or method
    tokens = told(r"SpeculativeConfig\([^)]*num_spec_tokens=(\d{1,9})\b")
    facts.num_speculative_tokens = int(tokens) if tokens else None
    mode = _GRAPH_MODE.search(config)
    facts.graph_mode = mode.group(1) if mode else None
    sizes = _CAPTURED.search(config)
    if sizes:
        facts.captured_sizes = [int(size) for size in sizes.group(1).split(",") if size]


def _arguments(facts: LogFacts, match: re.Match[str]) -> None:
    try:
        arguments = ast.literal_eval(match.group(1))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return
    if not isinstance(arguments, dict):
        # Braces make a set too.
        return
    if arguments.get("async_scheduling") is False:
        facts.async_scheduling = False
    speculative = arguments.get("speculative_config")
    if isinstance(speculative, dict):
        rows = speculative.get("num_speculative_tokens_per_batch_size")
        facts.schedule_asked = [list(row) for row in rows] if _are_rows(rows) else None


def _are_rows(rows: object) -> TypeGuard[list[list[int]]]:
    """Whether these are rows of whole numbers, none longer than one can print."""
    return isinstance(rows, (list, tuple)) and all(
        isinstance(row, (list, tuple))
        and all(type(number) is int and abs(number) < 10**18 for number in row)
        for row in rows
    )


def _kv_tokens(facts: LogFacts, match: re.Match[str]) -> None:
    if digits := match.group(1).replace(",", ""):
        facts.kv_cache_tokens = int(digits[:18])


def _backend(facts: LogFacts, match: re.Match[str]) -> None:
    # The target's backend is chosen first, the drafter's after it.
    facts.attention_backend = facts.attention_backend or match.group(1) or match.group(2)


def _fingerprint(facts: LogFacts, match: re.Match[str]) -> None:
    if facts.fingerprint is not None:
        return
    try:
        facts.fingerprint = Receipt.model_validate_json(match.group(1))
    except ValidationError:  # It is cut off, or another version of ours wrote it.
        return


def _table(facts: LogFacts, match: re.Match[str]) -> None:
    try:
        rows = json.loads(match.group(1))
    except (ValueError, RecursionError):
        return
    if facts.table is None and _are_rows(rows):
        facts.table = rows


def _compile_hash(facts: LogFacts, match: re.Match[str]) -> None:
    facts.compile_hash = match.group(1)


def _compile_took(facts: LogFacts, match: re.Match[str]) -> None:
    facts.compile_seconds = max(float(match.group(1)), facts.compile_seconds or 0.0)


def _capture_took(facts: LogFacts, match: re.Match[str]) -> None:
    # Each worker of a parallel server says it.
    facts.capture_seconds = max(float(match.group(1)), facts.capture_seconds or 0.0)


def _autotune_hash(facts: LogFacts, match: re.Match[str]) -> None:
    facts.autotune_hash = match.group(1)
