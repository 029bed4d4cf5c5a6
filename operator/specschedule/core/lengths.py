"""Requests that a server has no room for (``max_model_len``): left out of every arm, and named.

The load process leaves them out before it sends anything; here its word is held against that of
the other launches, and against the bar.
"""

from collections.abc import Sequence

from specschedule.core.compare import requirements
from specschedule.core.counters import counted_cells
from specschedule.core.evidence import Fit, Launch
from specschedule.core.gate import Gate, fails, passes, unknown
from specschedule.core.spec import Spec

GATE = "load"


def described(fit: Fit) -> str:
    """Say what a server had no room for."""
    if fit.not_counted is not None:
        return f"how long prompts are is not known, so none is left out: {fit.not_counted}"
    said = [
        f"{each.left_out} of {each.of} prompts of category {each.category} (requests of up to "
        f"{each.longest} tokens)"
        for each in fit.prompts
    ]
    said += [f"window {each.cell} (requests of up to {each.longest})" for each in fit.windows]
    if not said:
        return f"every request fits max_model_len {fit.max_model_len}"
    words = f"max_model_len {fit.max_model_len} has no room for {', '.join(said)}: left out"
    if not fit.nothing_left:
        return words
    remedy = "ask for shorter answers (load.outputTokens) or give shorter prompts"
    return f"{words}, and nothing is left to measure; {remedy}"


def told(launches: Sequence[Launch]) -> dict[str, list[str]]:
    """Return what servers had no room for, and the launches that say so.

    Windows differ from round to round; those whose prompts are all left out need no other word.
    """
    found: dict[str, list[str]] = {}
    for each in launches:
        if each.fit is not None:
            brief = each.fit.model_copy(update={"windows": []} if each.fit.prompts else {})
            found.setdefault(described(brief), []).append(f"{each.arm} launch {each.launch}")
    return found


def nothing_left(launches: Sequence[Launch]) -> Gate | None:
    """Say that a launch had nothing to measure, void as it is; None where none says so."""
    for each in launches:
        if each.fit is not None and each.fit.nothing_left:
            return fails(GATE, "BeyondModelLength", described(each.fit))
    return None


def answer(spec: Spec, launches: Sequence[Launch], before: Gate) -> Gate | None:
    """Say whether every arm sent the same prompts, and those that the bar needs.

    Args:
        spec: The question.
        launches: Launches that count.
        before: What was answered before any pod.

    Returns:
        None where that still stands: it holds the run anyway, or launches have nothing to tell.
    """
    counted = [each for each in launches if each.fit and not each.fit.not_counted]
    if before.holds or not (counted or spec.load.prompts):
        return None
    words = told(counted)
    fits = [each.fit for each in counted if each.fit]
    if len(set(map(_left_out, fits))) > 1:
        return fails(
            GATE,
            "ArmsNotComparable",
            "arms did not send the same prompts; give every arm the same --max-model-len: "
            + "; ".join(f"{said} ({', '.join(where)})" for said, where in words.items()),
        )
    said = "; ".join(words)
    empty = {each.category for fit in fits for each in fit.prompts if each.left_out == each.of}
    needed = sorted({each.category for each in requirements(spec.bar) if each.category} & empty)
    if needed:
        return fails(
            GATE,
            "BeyondModelLength",
            f"the bar names category {', '.join(needed)}, of which no prompt is left: {said}",
        )
    shorter = any(fit.prompts for fit in fits)
    if spec.load.prompts and (lacking := _not_told(launches, shorter=shorter)):
        return lacking
    if not fits:
        return None
    note = f"; {before.message}" if before.reason == "QueuesBeyondBatch" else ""
    reason = "PromptsLeftOut" if shorter else before.reason if note else "Holds"
    return passes(GATE, said + note, reason)


def _left_out(fit: Fit) -> frozenset[tuple[str, int, int]]:
    """Return what tells two choices of prompts apart.

    Of prompts of the same lengths a smaller limit leaves out more, so numbers tell which.
    """
    return frozenset((each.category, each.left_out, each.of) for each in fit.prompts)


def _not_told(launches: Sequence[Launch], *, shorter: bool) -> Gate | None:
    """Answer for launches that do not tell how long prompts are, where it may matter."""
    silent = [each for each in launches if each.fit is None or each.fit.not_counted]
    failed = sum(cell.failed for each in silent for cell in counted_cells(each))
    if not silent or not (shorter or failed):
        return None
    where = ", ".join(f"{each.arm} launch {each.launch}" for each in silent)
    why = next((each.fit.not_counted for each in silent if each.fit), None) or "nobody looked"
    also = "others left prompts out" if shorter else f"{failed} of their requests failed"
    return unknown(
        GATE,
        "PromptsNotCounted",
        f"{where}: how long prompts are is not known ({why}), and {also}",
    )
