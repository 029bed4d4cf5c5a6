"""What the cells of a sweep say about steps and acceptance, and which of them say nothing.

A window counts when a fixed number of requests was held in flight at one K and the engine's own
counters agree with that. Everything else is left out with its reason: a window that drafted
something else than planned would otherwise be believed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt

from specschedule.core.compare import NONE
from specschedule.core.cost import Setting, Timed
from specschedule.core.evidence import Cell

HELD = 0.1
"""Share by which the mean batch size may exceed the requests held in flight."""
AWAY = 0.15
"""Share of the time that a request may be away: in the engine's gauge it runs from the end of its
first step on, and an answer of 32 tokens is some 35 steps with its prefill and the pause before."""
VERIFIED = 0.05
"""Share by which the draft tokens per draft may miss K before that is told."""
SAME_CONTEXT = 1.25
"""Contexts within this factor of each other are one context of the sweep."""
MOST_TOKENS = 64
"""Largest K that is believed, as in a candidate."""
STATIC_PATH = ("static-", "incumbent", "twin")


@dataclass(frozen=True)
class Window:
    """A cell that counts, as the sweep sees it."""

    cell: Cell
    setting: Setting
    seconds: float
    """Seconds of the mean engine step, the prefill of other requests included, as if every step
    drafted: batch size times acceptance length over these seconds is the measured rate."""

    @property
    def timed(self) -> Timed:
        """The window as the step-time model takes it."""
        return Timed(self.setting, self.seconds)


@dataclass(frozen=True)
class Sweep:
    """The windows of a sweep, by launch path."""

    schedule: tuple[Window, ...]
    """On the path that a schedule takes (probe, constant, zero and candidate arms); without any,
    those of arms with a static K."""
    none: tuple[Window, ...]
    """Without a speculative config."""
    notes: tuple[str, ...]
    """What to know of them; then what was left out, and why, a note for each."""
    timed: tuple[Timed, ...] = ()
    """Steps on the schedule's path that were timed without a server (``forward.py``)."""

    @property
    def contexts(self) -> tuple[int, ...]:
        """Contexts measured on the schedule's path, rising; empty when no cell tells one."""
        return tuple(
            sorted({w.setting.context for w in self.schedule if w.setting.context is not None})
        )

    def anywhere(self, context: int | None = None) -> "Sweep":
        """Return the same windows with their contexts taken as alike, all as at ``context``."""

        def moved(window: Window) -> Window:
            return replace(window, setting=window.setting._replace(context=context))

        return replace(
            self,
            schedule=tuple(map(moved, self.schedule)),
            none=tuple(map(moved, self.none)),
            timed=tuple(
                t._replace(setting=t.setting._replace(context=context)) for t in self.timed
            ),
        )


def sweep(cells: Iterable[Cell], *, contexts: Sequence[int] = ()) -> Sweep:
    """Sort the windows that count by launch path.

    Args:
        cells: Windows of any arms.
        contexts: Contexts that were planned; a window near one of them is taken as at it.
    """
    cells = list(cells)
    notes, left_out, counted = [], [], []
    for cell in cells:
        window = _window(cell)
        if isinstance(window, str):
            left_out.append(f"cell {cell.cell} of arm {cell.arm} is left out: {window}")
        else:
            counted.append(window)
    counted = _contexts_joined(counted, contexts)
    none = tuple(w for w in counted if w.cell.arm == NONE)
    static = tuple(w for w in counted if w.cell.arm.startswith(STATIC_PATH))
    schedule = tuple(w for w in counted if w not in none and w not in static)
    if static and not schedule:
        schedule = static
        notes.append(
            "no window was measured with a schedule present: a schedule's own code path may cost "
            "more than these static ones"
        )
    elif static:
        notes.append(
            f"{len(static)} windows of arms with a static K are left out: they took another "
            "code path than a schedule does"
        )
    short = [w for w in schedule if _drafted(w.cell) < w.setting.tokens * (1 - VERIFIED)]
    if short:
        first = short[0]
        notes.append(
            f"{len(short)} windows drafted fewer tokens than their K, as a drafter does that finds "
            f"nothing to go on: {_drafted(first.cell):.2f} at K={first.setting.tokens} in cell "
            f"{first.cell.cell}"
        )
    return Sweep(schedule, none, (*notes, *left_out))


def _window(cell: Cell) -> Window | str:
    """Return the window of a cell, or why it does not count."""
    profile = cell.profile
    batch = 1 if profile.kind == "depth" else profile.concurrency
    none = cell.arm == NONE
    tokens = 0 if none else cell.tokens
    output = cell.engine_output_tokens or cell.output_tokens or 0
    drafts, accepted = cell.drafts or 0, cell.accepted_tokens or 0
    if cell.void is not None:
        return f"void: {cell.void}"
    if profile.kind not in ("hold", "depth") or batch is None or batch < 1:
        return f"no fixed number of requests was held ({profile.kind})"
    if tokens is None:
        return "K varied in it"
    if not 0 <= tokens <= MOST_TOKENS:
        return f"tokens is {tokens}; it must be 0 to {MOST_TOKENS}"
    if output <= 0:
        return "no output tokens"
    if cell.failed:
        return f"{cell.failed} requests failed"
    if cell.preemptions:
        return f"{cell.preemptions} preemptions: the KV cache does not hold this many requests"
    ran = cell.batch_size_mean
    if ran is not None and _others(ran / batch, samples=cell.window_seconds):
        return f"{batch} requests were to be held and {ran:.1f} ran"
    if cell.not_held is not None:
        return cell.not_held
    if tokens == 0:
        if drafts > 0 and accepted > 0:
            return f"planned without drafts and {drafts} were verified"
        return Window(cell, Setting(batch, 0, _context(cell)), cell.window_seconds * batch / output)
    if drafts <= 0 or cell.accepted_tokens is None:
        return f"K={tokens} and no draft counters: its acceptance is unknown"
    # A drafter may find fewer tokens than K; only a server that does not follow finds more.
    if cell.draft_tokens is not None and (drafted := _drafted(cell)) > tokens * (1 + VERIFIED):
        return f"K={tokens} was planned and {drafted:.2f} draft tokens were verified per step"
    if not 0 <= accepted <= drafts * tokens:
        return f"{accepted} accepted of at most {drafts * tokens} draft tokens"
    # By output, not by drafts: the first token of an answer comes without a draft, and so does all
    # that a drafter finds nothing for.
    seconds = cell.window_seconds * batch * (1 + accepted / drafts) / output
    return Window(cell, Setting(batch, tokens, _context(cell)), seconds)


def _others(share: float, *, samples: float) -> bool:
    """Say whether other than the held requests ran: samples, one a second, told this mean share.

    Streams that began together are away together: of all there are then as few samples as of one.
    """
    away = AWAY + 2 * sqrt(AWAY * (1 - AWAY) / max(samples, 1.0))
    return not 1 - away <= share <= 1 + HELD


def _drafted(cell: Cell) -> float:
    """Return the draft tokens of a draft; K where nothing was drafted or nobody tells."""
    if not cell.drafts or cell.draft_tokens is None:
        return float(cell.tokens or 0)
    return cell.draft_tokens / cell.drafts


def _context(cell: Cell) -> int | None:
    found = cell.profile.context if cell.profile.kind == "depth" else cell.context
    return found if found is not None and found > 0 else None


def _contexts_joined(windows: Sequence[Window], planned: Sequence[int]) -> list[Window]:
    """Give windows of nearly the same context one context: the planned one or the group's middle.

    Where only some windows tell their context, none of them can be told apart by it.
    """
    told = sorted({w.setting.context for w in windows if w.setting.context is not None})
    if len(told) < 2 or any(w.setting.context is None for w in windows):
        return [_anywhere(w) for w in windows]
    groups = [[told[0]]]
    for before, context in pairwise(told):
        if context <= before * SAME_CONTEXT:
            groups[-1].append(context)
        else:
            groups.append([context])
    if len(groups) == 1:
        return [_anywhere(w) for w in windows]
    middle = {c: _name(group, planned) for group in groups for c in group}
    return [
        Window(w.cell, w.setting._replace(context=middle[w.setting.context or 0]), w.seconds)
        for w in windows
    ]


def _name(group: Sequence[int], planned: Sequence[int]) -> int:
    middle = sqrt(group[0] * group[-1])
    near = [p for p in planned if max(p / middle, middle / p) <= SAME_CONTEXT]
    return min(near, key=lambda p: abs(p - middle)) if near else round(middle)


def _anywhere(window: Window) -> Window:
    return Window(window.cell, window.setting._replace(context=None), window.seconds)
