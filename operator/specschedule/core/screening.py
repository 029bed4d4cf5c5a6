"""A screen as a load process carries it out: which window comes next, from the cells so far.

Nothing is remembered but the cells, so a screen that was cut off anywhere goes on where it was.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from specschedule.core.arms import ZERO
from specschedule.core.chance import shuffled
from specschedule.core.compare import NONE
from specschedule.core.cost import DEFAULT_GRAPH_SIZES, Graphs, Setting
from specschedule.core.evidence import Cell, Profile
from specschedule.core.screen import (
    REPEATS,
    TRIES,
    allowance,
    given_up,
    next_windows,
    none_settings,
    planned,
)
from specschedule.core.spec import Slo
from specschedule.core.sweep import sweep
from specschedule.core.view import Search
from specschedule.core.visit import Screen, Visit, Window

PROBE = "probe"
"""Arm whose K requests switch in band."""
_CONSTANT = "constant-"
REQUESTS = 10
"""Finished requests that a window needs at least: fewer than evidence needs, since the choice
rests on all windows together."""
SLACK = 0.05
"""Share of steps that may belong to the window before."""


def fixed_arm(tokens: int) -> str:
    """Return the arm of one fixed K on the path of a schedule."""
    return f"{_CONSTANT}{tokens}" if tokens else ZERO


def fixed_tokens(arm: str) -> int | None:
    """Return the K of such an arm; None for any other."""
    if arm == ZERO:
        return 0
    return int(arm.removeprefix(_CONSTANT)) if arm.startswith(_CONSTANT) else None


def search(screen: Screen, *, slo: Slo, output_tokens: int, prompt_tokens: int) -> Search:
    """Return what a screen tunes.

    Args:
        screen: The screen.
        slo: Limits of a good request.
        output_tokens: Output length of a request.
        prompt_tokens: Prompt length of a request, where contexts are not given.
    """
    return Search(
        slo=slo,
        time_at=dict(
            zip(screen.batch_sizes, screen.weights or [1.0] * len(screen.batch_sizes), strict=True)
        ),
        time_told="the time that serving pods spent nearest to each" if screen.weights else None,
        max_tokens=screen.max_tokens,
        max_num_seqs=screen.max_num_seqs,
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        contexts=tuple(sorted(screen.contexts)),
        graphs=Graphs(
            DEFAULT_GRAPH_SIZES if screen.graph_sizes is None else tuple(screen.graph_sizes)
        ),
        kv_cache_tokens=screen.kv_cache_tokens,
        max_model_len=screen.max_model_len,
        seed=screen.seed,
    )


def most_windows(screen: Screen) -> int:
    """Return how many windows a screen's visit may take, those that do not count included."""
    settings = len(screen.batch_sizes) * max(1, len(screen.contexts)) * (screen.max_tokens + 1)
    return settings * TRIES


def launch_windows(wanted: Search, arm: str) -> int:
    """Return how many windows an arm's launch takes, if all count; a probe's at most.

    Args:
        wanted: What is tuned.
        arm: A probe, the arm without speculation, or one of a fixed K.
    """
    tokens = fixed_tokens(arm)
    if arm != NONE and tokens is None:
        return allowance(wanted)
    settings = none_settings(wanted) if tokens is None else _fixed(wanted, tokens)
    return REPEATS * len(settings)


def next_window(visit: Visit, cells: Sequence[Cell]) -> Window | None:
    """Return the window to measure now; None when it is enough.

    Args:
        visit: A visit with a screen.
        cells: Cells of this visit so far.
    """
    screen = visit.screen
    assert screen is not None
    wanted = search(
        screen,
        slo=visit.slo,
        output_tokens=visit.output_tokens,
        prompt_tokens=visit.prompt_tokens,
    )
    known = [*screen.done, *cells]
    if visit.arm == NONE:
        settings = _unfinished(visit.arm, none_settings(wanted), wanted, known)
    elif screen.tokens is not None:
        settings = _unfinished(visit.arm, _fixed(wanted, screen.tokens), wanted, known)
    else:
        settings = [ask.setting for ask in next_windows(wanted, known).asks]
    if not settings:
        return None
    own = [cell for cell in known if cell.arm == visit.arm]
    return _window(_apart(settings, own), own, visit)


def not_followed(cell: Cell) -> str | None:
    """Say that the engine drafted more than a window asked for; None where it did not.

    Fewer drafts can be right, as where a drafter found nothing. More never are: requests do not
    switch this server.
    """
    drafts, drafted, tokens = cell.drafts or 0, cell.draft_tokens or 0, cell.tokens or 0
    made = cell.engine_output_tokens or cell.output_tokens or 0
    if drafts <= SLACK * made or drafted <= (1 + SLACK) * tokens * drafts:
        return None
    return f"window {cell.cell} asked for K={tokens} and the engine drafted {drafted / drafts:.2f}"


def _fixed(wanted: Search, tokens: int) -> list[Setting]:
    contexts = wanted.contexts or (None,)
    found = [Setting(b, tokens, c) for b in wanted.points for c in contexts]
    return [setting for setting in found if wanted.possible(setting)]


def _unfinished(
    arm: str, settings: Iterable[Setting], wanted: Search, cells: Sequence[Cell]
) -> list[Setting]:
    """Return the settings of a launch with a fixed K that need a window, in this pass's order.

    Every setting is measured once before any is measured again: drift hits all alike.
    """
    own = [cell for cell in cells if cell.arm == arm]
    found = sweep(own, contexts=wanted.contexts)
    # By plan: windows do not tell their context apart until there are some of another one.
    times = Counter(planned(window.cell) for window in (*found.schedule, *found.none))
    lost = given_up(own, found)
    left = [s for s in settings if s not in lost and times[s] < REPEATS]
    least = min((times[s] for s in left), default=0)
    return shuffled([s for s in left if times[s] == least], wanted.seed, arm, least)


def _apart(settings: Sequence[Setting], own: Sequence[Cell]) -> Setting:
    """Return the first setting that is not the one measured just before, where there is one."""
    last = own[-1] if own else None
    others = [
        s
        for s in settings
        if last is None or (s.batch, s.tokens) != (last.profile.concurrency, last.tokens)
    ]
    return (others or list(settings))[0]


def _window(setting: Setting, own: Sequence[Cell], visit: Visit) -> Window:
    batch, tokens, context = setting
    depth = f"-c{context}" if context is not None else ""
    prompt = None if context is None else max(1, context - visit.output_tokens // 2)
    before = sum((cell.profile.concurrency, cell.tokens, cell.context) == setting for cell in own)
    return Window(
        cell=f"{visit.arm}-{len(own) + 1}-b{batch}-k{tokens}{depth}",
        profile=Profile(kind="hold", concurrency=batch, context=prompt),
        tokens=tokens,
        context=context,
        # Every setting gets the same prompts in its first window, others in its second.
        seed=1000 * (visit.screen.seed if visit.screen else 0) + before,
        requests=REQUESTS,
    )
