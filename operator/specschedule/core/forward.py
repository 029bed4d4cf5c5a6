"""Steps that ``vllm bench forward`` (vLLM 0.33 and newer) timed, beside the windows of a sweep.

It times target and drafter of one exact batch, with weights that may be dummies and every draft
accepted. Sampling and the engine's own work between two steps are not in it, so what served
windows take beyond it at the same settings is added; acceptance stays that of the windows.

The file is what its ``--output-json`` writes; fields that say nothing here are not read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Annotated

from pydantic import ConfigDict, Field

from specschedule.core.cost import Setting, Timed
from specschedule.core.evidence import Reading
from specschedule.core.sweep import SAME_CONTEXT, Sweep

LEAST_SERVED = 3
"""Settings that must be served too, to tell what a step takes beyond its forward pass."""


class Unusable(ValueError):
    """Timings that cannot stand beside these windows; the message says why and what to do."""


class _Written(Reading):
    model_config = ConfigDict(alias_generator=None)


class Request(_Written):
    """One request of a batch."""

    query_len: Annotated[int, Field(ge=1)]
    """Tokens computed in the step."""
    kv_len: Annotated[int, Field(ge=1)]
    """Tokens it reads, those of the step included."""
    num_draft_tokens: Annotated[int, Field(ge=0)] = 0
    """Drafts among the tokens of the step."""


class Drafter(_Written):
    """What the drafter did in the timed step."""

    num_draft_tokens: int
    """Tokens that it drafted: those that the engine was started with, whatever the case says."""


class Rank(_Written):
    """What one process tells."""

    timing_scope: str | None = None
    """``target_and_drafter`` or ``target_only``."""
    finite: bool = True
    """Whether the output was made of numbers."""
    drafter: Drafter | None = None
    """The drafter, where it was timed too."""


class Case(_Written):
    """One exact batch, and how long its step took."""

    case: str
    """Its name."""
    requests: Annotated[list[Request], Field(min_length=1)]
    """The requests in it."""
    median_us: Annotated[float, Field(gt=0)]
    """Microseconds of the step."""
    ranks: Annotated[list[Rank], Field(min_length=1)]
    """What each process tells."""


def beside(found: Sweep, cases: Iterable[Case], *, usual: int) -> Sweep:
    """Return a sweep with the steps of cases that no window measured.

    Args:
        found: Windows that count.
        cases: What was timed.
        usual: Mean context of the windows, in tokens, where they do not tell theirs.

    Raises:
        Unusable: Too few cases stand at settings of a window, or they take longer than serving.
    """
    notes: list[str] = []
    seconds: dict[Setting, list[float]] = {}
    for case in cases:
        timed = _timed(case, found.contexts, usual)
        if isinstance(timed, str):
            notes.append(f"forward case {case.case} is left out: {timed}")
        else:
            seconds.setdefault(timed.setting, []).append(timed.seconds)
    served: dict[Setting, list[float]] = {}
    for window in found.schedule:
        served.setdefault(window.setting, []).append(window.seconds)
    more = [fmean(served[s]) - fmean(own) for s, own in seconds.items() if s in served]
    if len(more) < LEAST_SERVED:
        left_out = f"; {notes[0]}" if notes else ""
        raise Unusable(
            f"{len(more)} of the settings timed by vllm bench forward were served too, and "
            f"{LEAST_SERVED} must be, to tell what a step takes beyond its forward pass: time "
            f"cases at the requests in flight, K and context of windows{left_out}"
        )
    overhead = median(more)
    if overhead < 0:
        raise Unusable(
            f"steps timed by vllm bench forward take {-1e3 * overhead:.2f} ms longer than served "
            "ones: they are of another engine, model or machine"
        )
    added = [Timed(s, fmean(own) + overhead) for s, own in seconds.items() if s not in served]
    notes.append(
        f"{len(added)} settings were timed by vllm bench forward and not served: their steps are "
        f"taken to last {1e3 * overhead:.2f} ms longer, as the {len(more)} do that were served too "
        f"({1e3 * min(more):.2f} to {1e3 * max(more):.2f} ms)"
    )
    return replace(found, timed=tuple(added), notes=(*found.notes, *notes))


def _timed(case: Case, contexts: Sequence[int], usual: int) -> Timed | str:
    """Return a case's setting and seconds, or why it says nothing about a schedule."""
    first, rank = case.requests[0], case.ranks[0]
    drafts = first.num_draft_tokens
    if any((r.query_len, r.num_draft_tokens) != (drafts + 1, drafts) for r in case.requests):
        return "not every request of it verifies the same number of drafts"
    if drafts == 0:
        return "with K=0 a schedule's drafter still follows the target: only a window tells"
    if not all(r.finite for r in case.ranks):
        return "its output is not made of numbers"
    if rank.timing_scope != "target_and_drafter" or rank.drafter is None:
        return "its drafter was not timed: leave --exclude-drafter away"
    if rank.drafter.num_draft_tokens != drafts:
        return (
            f"it verifies {drafts} drafts while its drafter made {rank.drafter.num_draft_tokens}: "
            f"time it in an engine with num_speculative_tokens {drafts}"
        )
    context = fmean(r.kv_len - r.query_len for r in case.requests)
    near = [c for c in contexts or (usual,) if _alike(context, c)]
    if not near:
        known = ", ".join(map(str, contexts or (usual,)))
        return f"its mean context is {context:.0f} tokens, and windows were measured at {known}"
    nearest = min(near, key=lambda c: abs(c - context)) if contexts else None
    return Timed(Setting(len(case.requests), drafts, nearest), case.median_us / 1e6)


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= SAME_CONTEXT * min(a, b)
