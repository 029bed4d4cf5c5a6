"""Why a server did not start or died, from its log: a reason and what to do about it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specschedule.vllm_facts.logs import messages


@dataclass(frozen=True)
class Failure:
    """Why a server ended.

    ``line`` is the engine's own last error line; ``retry`` says whether another start could go
    otherwise.
    """

    reason: str
    message: str
    line: str
    retry: bool


@dataclass(frozen=True)
class _Known:
    reason: str
    pattern: re.Pattern[str]
    message: str
    """May name groups of the pattern."""


_KNOWN: tuple[_Known, ...] = (
    _Known(
        "InstrumentsNotFound",
        re.compile(r"No module named 'specschedule\b|unrecognized arguments: .*--worker-extension"),
        "vLLM does not find, or does not know, what was delivered to it: write a PYTHONPATH that "
        "the image or a script sets into the server's own variables instead, or run without "
        "instruments (--no-instruments)",
    ),
    _Known(
        "TokenBudget",
        re.compile(
            r"max_num_scheduled_tokens is set to (?P<n>-\d+|0)\b"
            r"|scheduled.token limit.* (?P<m>-\d+)"
        ),
        "the token budget of a step is {n}: the draft slots of num_speculative_tokens x "
        "max_num_seqs exceed max_num_batched_tokens; lower K or max_num_seqs, or raise "
        "max_num_batched_tokens",
    ),
    _Known(
        "OutOfMemory",
        re.compile(
            r"OutOfMemoryError|(?:CUDA|HIP|XPU) out of memory|No available memory for the cache"
        ),
        "out of memory; drafter and verification buffers need room too",
    ),
    _Known(
        "BlockSize",
        re.compile(r"num_speculative_tokens.*block.?size.*?\((?P<n>\d+)\)|below its block size"),
        "the drafter's block size does not allow this num_speculative_tokens",
    ),
    _Known(
        "GraphSizes",
        re.compile(r"No valid cudagraph sizes after rounding to multiple of (?P<n>\d+)"),
        "no CUDA graph size is a multiple of num_speculative_tokens + 1 = {n} here",
    ),
    _Known(
        "BadSchedule",
        re.compile(
            r"num_speculative_tokens_per_batch_size (?:must|values|entry|is required)"
            r"|Each num_speculative_tokens_per_batch_size|[Bb]atch-size range"
            r"|^num_speculative_tokens_per_batch_size\.\d"
        ),
        "the engine refuses the schedule",
    ),
    _Known(
        "RunnerLacksMethod",
        re.compile(r"Model Runner V2 does not yet support: (?P<n>.+)|Model Runner V2 requires"),
        "model runner V2 is forced but lacks something; unset VLLM_USE_V2_MODEL_RUNNER",
    ),
    _Known(
        "DrafterAssumesFullLength",
        re.compile(r"assert num_speculative_tokens == self\.(?:k|num_speculative_tokens)"),
        "the drafter cannot draft fewer tokens than num_speculative_tokens",
    ),
)

_ERROR = re.compile(
    r"^(?:[\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::|$)|^[\w. -]+: error: "
)
_NOT_THE_CAUSE = re.compile(r"initialization failed|See root cause|EngineDeadError")
_REFUSED_OPTION = re.compile(
    r"unexpected keyword argument '(\w+)'"
    r"|^[\w. -]+: error: (?:unrecognized arguments: (--?[^\s=]+)|argument (--?[^\s:/]+))"
)
_CAPTURING = re.compile(r"[Cc]apturing (?:\w+ )*CUDA graphs|Capturing model for speculator")
_CAPTURED = re.compile(r"Graph capturing finished")


def start_failure(log_text: str, *, exit_code: int | None = None) -> Failure:
    """Return why a server that ended did so.

    Args:
        log_text: Its log, the end of it at least.
        exit_code: Its exit code, where known.
    """
    lines = list(messages(log_text))
    last = _last_error(lines)
    for known in _KNOWN:
        for line in reversed(lines):
            if match := known.pattern.search(line):
                number = next((g for g in match.groups() if g), "")
                return Failure(known.reason, known.message.format(n=number), line, False)
    if option := _refused_option(lines):
        return Failure(
            "OptionRefused",
            f"engine refuses option {option}: this vLLM has no such option or value",
            last,
            False,
        )
    if exit_code == 137:
        return Failure("OutOfMemory", "the container was killed (137), as for memory", last, False)
    if _while_capturing(lines) and last:
        return Failure("FailedDuringCapture", "failed during graph capture", last, False)
    return Failure("EngineExited", last or "the log shows no error", last, True)


def last_words(log_text: str, exit_code: int | None) -> str | None:
    """Return why a server ended, from the end of its log: the known cause, else its last line."""
    failure = start_failure(log_text, exit_code=exit_code)
    if failure.line:
        known = failure.line in failure.message
        return failure.message if known else f"{failure.message} ({failure.line})"
    lines = log_text.strip().splitlines()
    return lines[-1].strip()[:500] if lines else None


def _while_capturing(lines: Sequence[str]) -> bool:
    begun = any(_CAPTURING.search(line) for line in lines)
    return begun and not any(_CAPTURED.search(line) for line in lines)


def _refused_option(lines: Sequence[str]) -> str | None:
    for before, line in zip(["", *lines], lines, strict=False):
        if match := _REFUSED_OPTION.search(line):
            return next(group for group in match.groups() if group)
        if "Unexpected keyword argument" in line and re.fullmatch(r"[\w.]+", before.strip()):
            return before.strip()
    return None


def _last_error(lines: Sequence[str]) -> str:
    """Return the last exception that is not just the report of an earlier one."""
    errors = [line.strip() for line in lines if _ERROR.match(line.strip())]
    causes = [line for line in errors if not _NOT_THE_CAUSE.search(line)]
    return (causes or errors or [""])[-1]
