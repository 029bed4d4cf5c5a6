"""Schedules worth testing, with what they are predicted to deliver and why.

Everything here is a prediction from a screening launch. It decides what is tested, never what is
promoted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from math import exp, expm1, sqrt

import numpy as np
from numpy.typing import NDArray

from specschedule.core.acceptance import stale_after_zero
from specschedule.core.choice import (
    FEW_TIERS_PRICE,
    gained,
    near_best,
    tokens_at,
)
from specschedule.core.cost import Setting
from specschedule.core.depth import flat
from specschedule.core.evidence import Cell
from specschedule.core.forecast import Predicted
from specschedule.core.forward import Case, beside
from specschedule.core.neighbours import VARIANTS, undecided
from specschedule.core.proposal import Choice, Length, Proposal, Proposed, compared, lead
from specschedule.core.schedule import Band, effective
from specschedule.core.screen import HOLDS_NONE, expected_regret, next_windows, places, seeds
from specschedule.core.sweep import sweep
from specschedule.core.view import Search, View, view

Floats = NDArray[np.float64]

MOST_SPLITS = 2
"""Splits of the context axis at most."""
SPLIT_PRICE = 0.003
"""What a split of the context axis must buy: a share of the objective."""
MOST_OF_A_REASON = 200
"""Characters of what an engine says about a K that it does not start with."""
LAST_CONTEXT = 1_048_576
"""End of the last context range where the longest sequence is unknown; the engine's last range
has no upper end."""


class NothingMeasured(ValueError):
    """No cell says anything about a schedule; the message gives the last reason."""


def propose(
    search: Search,
    cells: Iterable[Cell],
    *,
    adaptive: bool = False,
    forward: Sequence[Case] = (),
    told: Sequence[str] = (),
) -> Proposal:
    """Return candidate schedules with predicted numbers.

    Args:
        search: What is tuned.
        cells: Windows of a screening, in the order in which they were measured.
        adaptive: Whether the engine supports adaptive verification here.
        forward: Steps timed by ``vllm bench forward``.
        told: What the launches tell beside their windows, for the notes.

    Raises:
        NothingMeasured: No cell counts on the path of a schedule or a static K.
        Unusable: The timed steps cannot stand beside these cells.
    """
    cells = list(cells)
    found = sweep(cells, contexts=search.contexts)
    if not any(w.setting.tokens for w in found.schedule):
        if not seeds(search):
            raise NothingMeasured(HOLDS_NONE)
        raise NothingMeasured(
            found.notes[-1]
            if found.notes
            else "no window with K above 0, held requests and draft counters"
        )
    if forward:
        usual = search.prompt_tokens + search.output_tokens // 2
        found = beside(found, forward, usual=usual)
    alike = flat(found, search.zone)
    if alike is not None:
        found = found.anywhere()
    seen = view(search, found)
    stale = stale_after_zero([w.cell for w in found.schedule])
    scores = seen.pooled()
    best = seen.rows(scores)
    five, axis = _by_context(seen, scores, best)
    # What says most comes first: a run keeps the first few.
    notes = [*_unavailable(search), _weighed(search), *stale, *([alike] if alike else axis), *told]
    notes += [*_unknown(seen), *found.notes]
    variants = _variants(seen, best)
    # The likeliest neighbour is tested before what differs more, the others after it.
    likeliest, later = variants[:1], variants[1:]
    candidates = _distinct(
        search,
        [
            _schedule(seen, "best", best, _why_best(seen, scores, best)),
            *five,
            *likeliest,
            _schedule(
                seen,
                "conservative",
                seen.rows(scores, price=FEW_TIERS_PRICE, zero=False),
                "fewer tiers and none without drafts: less to go wrong at boundaries",
            ),
            _schedule(
                seen,
                "no-zero",
                seen.rows(scores, zero=False),
                "never K=0, from which drafters have come back with lost state or graphs",
            ),
            _schedule(
                seen,
                "largest",
                seen.rows(scores, largest=True),
                "the largest K of those that cannot be told apart, instead of the smallest",
            ),
            *later,
        ],
    )
    static = _static(seen, scores)
    none = _none(seen)
    time_at = {b: _weight(search, b) for b in _points(seen)}
    candidates = [_warned(c, stale) for c in candidates]
    candidates = [compared(c, static, none, time_at) for c in [*candidates, static, none]]
    if adaptive:
        candidates.append(_adaptive(search))
    more = next_windows(search, cells)
    return Proposal(
        lead=lead(candidates),
        candidates=candidates,
        choices=_choices(seen, best),
        acceptance=_lengths(seen),
        windows=len(found.schedule),
        noise=round(seen.forecast.steps.noise, 5),
        expected_regret=round(sum(w * c for w, c in _regrets(seen)), 5),
        measure_next=more.asks,
        notes=notes,
    )


def _by_context(
    seen: View, scores: Floats, best: Sequence[Band]
) -> tuple[list[Proposed], list[str]]:
    """Return a five-number schedule where it beats the best three-number one, and what to know."""
    if len(seen.contexts) < 2:
        return [], []
    contexts = [c for c in seen.contexts if c is not None]
    columns, gain = _split(seen, contexts, best)
    if gain <= seen.floor:
        return [], [
            f"K by context gains {gain:.1%} over the best K by batch size, within the noise floor "
            f"of {seen.floor:.1%}: no five-number schedule is proposed"
        ]
    lowered = [
        f"{b} in flight and context {c} (K={tokens_at(columns[c], b)} instead of "
        f"{tokens_at(best, b)})"
        for c in contexts
        for b in _points(seen)
        if seen.search.possible(Setting(b, 0, c)) and tokens_at(columns[c], b) < tokens_at(best, b)
    ]
    warnings = [
        "confirm it on batches of mixed contexts: the engine looks at their mean",
        *_unmeasured(seen),
        f"contexts below {contexts[0]} and above {contexts[-1]} were not measured: the nearest K "
        "is carried on",
    ]
    if lowered:
        warnings.append(
            "lowers K for short contexts at " + ", ".join(lowered[:3]) + ": in mixed traffic "
            "that can lose throughput; the axis is meant to raise K for long ones"
        )
    table = _five(columns, seen.search)
    proposed = Proposed(
        name="context",
        kind="schedule",
        schedule=table,
        max_tokens=max(1, *(row[-1] for row in table)),
        predicted=_predicted(seen, lambda b, c: tokens_at(columns[c or 0], b)),
        why=f"K by context gains {gain:.1%} over the best K by batch size, beyond the "
        f"noise floor of {seen.floor:.1%}; serving needs our context-axis scheduler, or an engine "
        "that takes five-number rows",
        warnings=warnings,
    )
    return [proposed], []


def _split(
    seen: View, contexts: Sequence[int], best: Sequence[Band]
) -> tuple[dict[int, list[Band]], float]:
    """Return bands by context for the split of the contexts that gains most, and its gain.

    Neighbouring contexts share bands unless telling them apart buys its price. The gain is over
    bands that ignore the context, as a share, at what the server can hold.
    """
    shares = seen.held / np.maximum(1, seen.held.sum(axis=0))
    found: list[tuple[float, float, dict[int, list[Band]]]] = []
    for splits in range(min(MOST_SPLITS, len(contexts) - 1) + 1):
        for at in combinations(range(1, len(contexts)), splits):
            columns: dict[int, list[Band]] = {}
            for first, last in pairwise((0, *at, len(contexts))):
                group = contexts[first:last]
                columns |= dict.fromkeys(group, seen.rows(seen.pooled(group)))
            changes = [
                gained(seen.grid, seen.scores(c), seen.tokens, columns[c])
                - gained(seen.grid, seen.scores(c), seen.tokens, best)
                for c in contexts
            ]
            gain = float(np.dot(seen.grid.weights, (shares * np.array(changes)).sum(axis=0)))
            found.append((gain - splits * SPLIT_PRICE, gain, columns))
    _, gain, columns = max(found, key=lambda item: item[0])
    return columns, exp(gain) - 1


def _five(columns: Mapping[int, Sequence[Band]], search: Search) -> list[list[int]]:
    """Return rectangular five-number rows from bands by context."""
    contexts = sorted(columns)
    kept = [contexts[0]]
    kept += [b for a, b in pairwise(contexts) if columns[a] != columns[b]]
    edges = [1]
    for context in kept[1:]:
        before = contexts[contexts.index(context) - 1]
        edges.append(round(sqrt(before * context)))
    ends = [e - 1 for e in edges[1:]] + [max(search.max_model_len or LAST_CONTEXT, edges[-1])]
    lasts = sorted({b.last for bands in columns.values() for b in bands[:-1]})
    firsts = [1, *(last + 1 for last in lasts)]
    return [
        [first, last, low, high, tokens_at(columns[context], first)]
        for first, last in zip(firsts, [*lasts, search.max_num_seqs], strict=True)
        for context, low, high in zip(kept, edges, ends, strict=True)
    ]


def _variants(seen: View, best: Sequence[Band]) -> list[Proposed]:
    """Return neighbours of the best rows that could be better as far as the model can tell."""
    found = undecided(best, seen.grid, seen.forecast, seen.places)[:VARIANTS]
    return [
        _schedule(
            seen,
            f"boundary-{number}",
            each.bands,
            f"{each.what}: the model cannot tell which is better, and it could gain "
            f"{expm1(each.most):.1%}",
        )
        for number, each in enumerate(found, 1)
    ]


def _schedule(seen: View, name: str, bands: Sequence[Band], why: str) -> Proposed:
    search = seen.search
    bands = [*bands[:-1], bands[-1]._replace(last=search.max_num_seqs)]
    warnings = _unmeasured(seen)
    if bands[0].tokens == 0 and len(bands) == 1:
        warnings.append("K=0 everywhere still runs the drafter: take the config away instead")
    return Proposed(
        name=name,
        kind="schedule",
        schedule=[[b.first, b.last, b.tokens] for b in bands],
        max_tokens=max(1, *(b.tokens for b in bands)),
        predicted=_predicted(seen, lambda b, _: tokens_at(bands, b)),
        why=why,
        warnings=warnings,
    )


def _unmeasured(seen: View) -> list[str]:
    """Say which batch sizes of a schedule lie outside what was measured."""
    low, high = seen.forecast.range
    most = seen.search.max_num_seqs
    warnings = []
    if high < most:
        warnings.append(
            f"batch sizes {high + 1}-{most} were not measured: the last K is carried on"
        )
    if low > 1:
        warnings.append(f"batch sizes 1-{low - 1} were not measured: the first K is carried down")
    return warnings


def _warned(candidate: Proposed, stale: Sequence[str]) -> Proposed:
    """Return a candidate with what was seen after steps without drafts, where it has such rows."""
    if not any(row[-1] == 0 for row in candidate.schedule or []):
        return candidate
    return candidate.model_copy(update={"warnings": [*candidate.warnings, *stale]})


def _static(seen: View, scores: Floats) -> Proposed:
    """Return the best fixed K."""
    drafting = [i for i, k in enumerate(seen.tokens) if k > 0]
    at = [seen.grid.batches.index(b) for b in _points(seen)]
    weights = np.array([_weight(seen.search, b) for b in _points(seen)])
    means = [float(np.dot(weights, scores[at, i])) for i in drafting]
    tokens = seen.tokens[drafting[int(np.argmax(means))]]
    return Proposed(
        name=f"static-{tokens}",
        kind="static",
        max_tokens=tokens,
        predicted=_predicted(seen, lambda _b, _c: tokens),
        why="the best single K: a schedule must beat it",
        warnings=["predicted on the path of a schedule; without one its graphs can be faster"],
    )


def _none(seen: View) -> Proposed:
    found = [
        p
        for c in seen.contexts
        for b in _points(seen)
        if seen.search.possible(Setting(b, 0, c))
        and (p := seen.forecast.without_speculation(b, c)) is not None
    ]
    return Proposed(
        name="none",
        kind="none",
        predicted=found,
        why="no speculative config at all: what every schedule must beat",
        warnings=[] if found else ["never measured: nothing is known of it"],
    )


def _adaptive(search: Search) -> Proposed:
    return Proposed(
        name="adaptive",
        kind="adaptive",
        max_tokens=search.max_tokens,
        why="vLLM's adaptive verification trims drafts step by step: the rival of any schedule",
        warnings=["not predicted; it needs full CUDA graphs and can change the attention backend"],
    )


def _distinct(search: Search, candidates: Sequence[Proposed]) -> list[Proposed]:
    """Mark candidates that the engine would treat like one before them."""
    first: dict[object, str] = {}
    out = []
    for candidate in candidates:
        table = effective(
            candidate.schedule,
            max_tokens=max(1, candidate.max_tokens or 1),
            max_num_seqs=search.max_num_seqs,
        )
        name = first.setdefault(table.canonical, candidate.name)
        same = None if name == candidate.name else name
        out.append(candidate.model_copy(update={"same_as": same}))
    return out


def _why_best(seen: View, scores: Floats, bands: Sequence[Band]) -> str:
    if len(bands) == 1:
        return f"K={bands[0].tokens} is best, or cannot be told from the best, everywhere"
    parts = []
    for a, b in pairwise(bands):
        parts.append(f"from {b.first} in flight K={b.tokens} is better than K={a.tokens} or alike")
    return f"the smallest K within {seen.zone:.1%} of the best at each batch size: " + ", ".join(
        parts
    )


def _choices(seen: View, best: Sequence[Band]) -> list[Choice]:
    out = []
    for context in seen.contexts:
        for batch in _points(seen):
            settings = _possible(seen, batch, context)
            if not settings:
                continue
            mean, covariance = seen.forecast.scores(settings)
            top = int(np.argmax(mean))
            regret, _ = expected_regret(mean, covariance, top)
            near = near_best(mean, seen.zone)
            out.append(
                Choice(
                    at=batch,
                    context=context,
                    best=settings[top].tokens,
                    near=[settings[i].tokens for i in near],
                    chosen=tokens_at(best, batch),
                    expected_regret=round(regret, 5),
                )
            )
    return out


def _regrets(seen: View) -> list[tuple[float, float]]:
    """Return (weight, expected regret) by place."""
    out = []
    for (batch, context), weight in places(seen).items():
        settings = _possible(seen, batch, context)
        mean, covariance = seen.forecast.scores(settings)
        out.append((weight, expected_regret(mean, covariance, int(np.argmax(mean)))[0]))
    return out


def _possible(seen: View, batch: int, context: int | None) -> list[Setting]:
    settings = [Setting(batch, k, context) for k in seen.tokens]
    return [s for s in settings if seen.search.possible(s)]


def _lengths(seen: View) -> list[Length]:
    found = seen.forecast.acceptance
    return [
        Length(
            tokens=k,
            length=round(float(found.lengths[k]), 4),
            sd=round(float(found.sd[k]), 5),
            measured=k == 0 or k in found.measured,
        )
        for k in range(found.largest + 1)
        if k not in seen.search.unavailable
    ]


def _unavailable(search: Search) -> list[str]:
    """Name the Ks that the engine does not start with, in one line."""
    by_reason: dict[str, list[str]] = {}
    for tokens, why in sorted(search.unavailable.items()):
        by_reason.setdefault(why[:MOST_OF_A_REASON], []).append(str(tokens))
    if not by_reason:
        return []
    each = "; ".join(f"K={', '.join(tokens)}: {why}" for why, tokens in by_reason.items())
    return [f"unavailable, so neither predicted nor proposed: {each}"]


def _weighed(search: Search) -> str:
    """Say what the load points, and contexts, count by."""
    contexts = "; contexts weigh alike" if len(search.contexts) > 1 else ""
    if search.time_told is None:
        return f"load points weigh alike: nobody tells where serving spends its time{contexts}"
    total = sum(search.time_at.values())
    each = ", ".join(f"{at}: {search.time_at[at] / total:.0%}" for at in search.points)
    return f"load points weigh by {search.time_told}: {each}{contexts}"


def _unknown(seen: View) -> list[str]:
    """Say what could not be told."""
    search = seen.search
    out = [
        f"no cell tells {limit}: goodput is predicted from the model's own mean"
        for limit in seen.forecast.missing
    ]
    if 0 not in seen.tokens:
        out.append(
            "K=0 was not measured with a schedule present: no row without drafts is proposed, "
            "since the engine without speculation is not the same thing"
        )
    beyond = [b for b in search.points if b > search.max_num_seqs]
    if beyond:
        out.append(f"load points {beyond} are above max_num_seqs {search.max_num_seqs}")
    out += [
        f"{batch} in flight"
        + (f" at context {context}" if context else "")
        + " is beyond the KV cache or the longest sequence: nothing is proposed for it"
        for batch in _points(seen)
        for context in seen.contexts
        if not search.possible(Setting(batch, 0, context))
    ]
    return out


def _points(seen: View) -> list[int]:
    return sorted({min(b, seen.search.max_num_seqs) for b in seen.search.points})


def _weight(search: Search, batch: int) -> float:
    own = sum(w for b, w in search.time_at.items() if min(b, search.max_num_seqs) == batch)
    return own / sum(search.time_at.values())


def _predicted(seen: View, tokens: Callable[[int, int | None], int]) -> list[Predicted]:
    """Return predictions at each load point (and context) that the server can hold."""
    settings = [Setting(b, tokens(b, c), c) for c in seen.contexts for b in _points(seen)]
    return [seen.forecast.predicted(s) for s in settings if seen.search.possible(s)]
