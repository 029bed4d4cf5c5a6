"""Gates on the engine's own counters: did it draft what the schedule says, and was the work fair.

Counters alone cannot show what a step with K=0 costs: the drafter may still run there. Such a
band is judged against the arm ``none``, so a run without one leaves it Unknown.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from specschedule.core.compare import NONE, places, requirements, unfit
from specschedule.core.context_axis import by_context
from specschedule.core.evidence import FINDS_DRAFTS, Cell, Launch
from specschedule.core.gate import Gate, fails, not_applicable, passes, unknown
from specschedule.core.receipts import SCHEDULE_DISABLED, noted
from specschedule.core.schedule import ScheduleError, effective
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

TOKENS_TOLERANCE = 0.25
"""How far mean draft tokens per draft may be from the plan, in tokens and as a share of it."""

MOSTLY = 0.5
"""Share of drafts from which on another K than the planned one is in effect."""

HITS_UNIQUE = 0.1
"""Share of prompt tokens found in the prefix cache beyond which prompts were not unique."""

HITS_APART = 0.1
"""Arms whose prefix-cache hit shares differ by more are not comparable."""

OUTPUT_TOLERANCE = 0.05
"""How far the tokens received may be from the tokens the engine says it generated."""

_REQUESTS_SHORT = 2
"""A held load may be short of this many requests for a step while one ends and one begins."""

STATE_LOST = 0.5
"""Acceptance that falls below this share of itself after steps with K=0 is drafter state lost."""


def counted_cells(launch: Launch) -> Iterable[Cell]:
    """Return the windows whose rates and counters count."""
    return (
        cell for cell in launch.cells if cell.timed and cell.void is None and unfit(cell) is None
    )


def held(launches: Sequence[Launch], points: Collection[int]) -> Iterator[tuple[Launch, Cell, str]]:
    """Yield the counted windows that hold one of some load points, and where each was measured."""
    for each in launches:
        for cell in counted_cells(each):
            at = cell.profile.concurrency
            if cell.profile.kind == "hold" and at in points:
                yield each, cell, f"{each.arm} launch {each.launch} at {at} in flight"


def none_measured(launches: Sequence[Launch], without: Sequence[Launch]) -> Gate:
    """Require the control without speculation.

    Args:
        launches: Every launch of the run.
        without: Launches that count and run without speculation.
    """
    gate = "noneMeasured"
    windows = sum(1 for each in without for _ in counted_cells(each))
    if windows:
        return passes(gate, f"{windows} windows without speculation count")
    faults = [each.failed or each.void for each in launches if each.arm == NONE]
    why = "; ".join(fault for fault in faults if fault) or "it was not measured"
    return unknown(
        gate,
        "NoneNotMeasured",
        f"no launch of {NONE} counts ({why}): whether speculation pays at all is not known",
    )


def schedule_in_effect(
    spec: Spec, drafting: Sequence[Launch], server: ServerFacts, *, has_none: bool
) -> Gate:
    """Hold drafted tokens against the plan at every load that was measured.

    Every counted window at a load point that the bar names must have draft counters.
    """
    gate = "scheduleInEffect"
    disabled = [
        f"{each.arm}: {text}"
        for each in drafting
        for text in noted(each.receipt, SCHEDULE_DISABLED)
    ]
    if disabled:
        return fails(gate, "SwitchedOff", "; ".join(sorted(set(disabled))))
    changed = [each.arm for each in drafting if _other_schedule(each, server)]
    if changed:
        return fails(
            gate,
            "OtherScheduleInEffect",
            f"the engine reports another schedule than the one launched: "
            f"{', '.join(sorted(set(changed)))}",
        )
    finder = _finder(spec, server)
    wrong: list[tuple[str, str]] = []
    notes: set[str] = set()
    seen: dict[str, set[int]] = {}
    for each in drafting:
        for cell in counted_cells(each):
            at = cell.profile.concurrency
            if cell.drafts is None or cell.draft_tokens is None:
                continue
            if cell.tokens is not None:
                verdict, text = _drafted(each, cell, server, finder)
                seen.setdefault(each.arm, set()).add(cell.tokens)
            elif by_context(each.schedule) and cell.profile.kind == "hold":
                verdict, text = _recorded(each, cell, server, finder)
                seen.setdefault(each.arm, set()).update(_neighbours(each, at, server))
            else:
                continue
            if verdict == "Near":
                notes.add(text)
            elif verdict:
                wrong.append((verdict, text))
    if wrong:
        return fails(gate, wrong[0][0], "; ".join(sorted({text for _, text in wrong})))
    zero = sorted(arm for arm, planned in seen.items() if 0 in planned)
    if zero and not has_none:
        return unknown(
            gate,
            "NoControlForZero",
            f"{', '.join(zero)} plan K=0, where counters do not show whether the drafter still "
            f"runs; no launch of {NONE} counts to compare with",
        )
    unseen = sorted({each.arm for each in drafting} - set(seen))
    if unseen:
        return unknown(
            gate,
            "NoDraftCounters",
            f"no counted window of {', '.join(unseen)} has the engine's draft counters",
        )
    varying: set[str] = set()
    for each, cell, where in held(drafting, _named_points(spec)):
        if cell.drafts is None or cell.draft_tokens is None:
            lacking = "has no draft counters"
        elif cell.tokens is not None:
            continue
        elif by_context(each.schedule):
            varying.add(f"{each.arm} at {cell.profile.concurrency} in flight: K varies by context")
            continue
        else:
            lacking = "does not say how many tokens were planned"
        return unknown(gate, "NoDraftCounters", f"a counted window of {where} {lacking}")
    notes |= varying
    told = "; ".join(
        f"{arm} K={','.join(str(k) for k in sorted(ks, reverse=True))}" for arm, ks in seen.items()
    )
    said = "; ".join([f"draft tokens per draft follow the plan: {told}", *sorted(notes)])
    return passes(gate, said, "HoldsWithNotes" if notes else "Holds")


def _named_points(spec: Spec) -> set[int]:
    """Return the load points that the bar names, or all where it names offered loads only."""
    named = {place.at for asked in requirements(spec.bar) for place in places(spec, asked)}
    return {at for at in named if at is not None} or set(spec.load.points)


def _other_schedule(launch: Launch, server: ServerFacts) -> bool:
    """Whether the engine itself names a schedule that acts differently from the launched one."""
    told = launch.receipt.schedule
    if told is None or launch.schedule is None:
        return False
    largest = launch.receipt.num_speculative_tokens or max(row[-1] for row in launch.schedule)
    try:
        one, other = (
            effective(rows, max_tokens=max(1, largest), max_num_seqs=server.max_num_seqs)
            for rows in (told, launch.schedule)
        )
    except ScheduleError:
        return True
    return one.canonical != other.canonical


def _drafted(
    launch: Launch, cell: Cell, server: ServerFacts, finder: str | None
) -> tuple[str, str]:
    """Compare drafted tokens with the plan: a reason and a sentence, both empty when they agree.

    "Near" means that a neighbouring batch size explains the difference, with fewer than half of
    the drafts: otherwise it is the neighbour's K that is in effect here. Of a finder's drafts only
    the most can be held against the plan.
    """
    planned, drafts, tokens = cell.tokens or 0, cell.drafts or 0, cell.draft_tokens or 0
    at = cell.profile.concurrency
    where = f"{launch.arm} at {at} in flight" if at else f"{launch.arm}, cell {cell.cell}"
    per_draft = tokens / drafts if drafts else 0.0
    neighbours = _neighbours(launch, at, server)
    if planned == 0:
        # Steps with K=0 count no draft, so what was drafted at all is compared with the output.
        output = cell.engine_output_tokens or cell.output_tokens or 0
        if not tokens or (output and tokens / output <= TOKENS_TOLERANCE):
            return "", ""
        # A step without a draft gives one token, so this is the share of steps that drafted.
        without_accepted = output - (cell.accepted_tokens or 0)
        if neighbours - {0} and drafts < MOSTLY * without_accepted:
            return "Near", f"{where}: some steps had another batch size and drafted {tokens} tokens"
        return (
            "NotLimited",
            f"{where} should draft nothing but drafted {tokens} tokens ({per_draft:.2f} a draft)",
        )
    if not drafts:
        return (
            "SpeculationOff",
            f"{where} should draft {planned} tokens but drafted none: speculation is off"
            + (f", or {finder} finds nothing in these texts" if finder else ""),
        )
    if abs(per_draft - planned) <= max(TOKENS_TOLERANCE, TOKENS_TOLERANCE * planned / 2):
        return "", ""
    if finder and per_draft < planned:
        said = f"{where}: {per_draft:.2f} tokens a draft of at most {planned}"
        return "Near", f"{said}, as {finder} drafts what it finds"
    beside = [k for k in neighbours if (k > planned) == (per_draft > planned) and k != planned]
    nearest = min(beside, key=lambda k: abs(k - planned), default=planned)
    if abs(per_draft - planned) < MOSTLY * abs(nearest - planned):
        return (
            "Near",
            f"{where}: {per_draft:.2f} tokens a draft where {planned} are planned, as prefills "
            "count for the batch size",
        )
    reason = "NotLimited" if per_draft > planned else "DraftsShort"
    return reason, f"{where}: {per_draft:.2f} tokens a draft where {planned} are planned"


def _recorded(
    launch: Launch, cell: Cell, server: ServerFacts, finder: str | None
) -> tuple[str, str]:
    """Hold the K of each step against those that a table has at a load point, at any context.

    A step without a draft may be right at any K: its drafter found nothing. Without steps, the
    mean is held against the smallest and the largest of them. Answers as ``_drafted`` does.
    """
    planned = sorted(_neighbours(launch, cell.profile.concurrency, server))
    where = f"{launch.arm} at {cell.profile.concurrency} in flight"
    said = f"where its table has K={', '.join(map(str, planned))}"
    drafts, tokens = cell.drafts or 0, cell.draft_tokens or 0
    if not drafts:
        return ("", "") if 0 in planned else ("SpeculationOff", f"{where} drafted nothing {said}")
    mean = tokens / drafts
    least = 0 if finder else min((k for k in planned if k), default=0)
    for reason, beyond in (
        ("NotLimited", mean - planned[-1]),
        ("DraftsShort", least - mean),
    ):
        if beyond > TOKENS_TOLERANCE:
            return reason, f"{where}: {mean:.2f} tokens a draft {said}"
    steps = {each.tokens: each.count for each in cell.steps or [] if each.tokens}
    allowed = range(planned[-1] + 1) if finder else planned
    other = {k: count for k, count in steps.items() if k not in allowed}
    if sum(other.values()) > TOKENS_TOLERANCE * sum(steps.values()):
        named = ", ".join(map(str, sorted(other)))
        return "OtherScheduleInEffect", f"{where}: steps verified K={named} {said}"
    return "", ""


def _finder(spec: Spec, server: ServerFacts) -> str | None:
    """Return the method if its drafts may be shorter than K; None if it drafts K always."""
    own = spec.speculative.method if spec.speculative else None
    method = (server.speculative or {}).get("method", own)
    return method if method in FINDS_DRAFTS else None


def _neighbours(launch: Launch, at: int | None, server: ServerFacts) -> set[int]:
    """Return K at batch sizes that a held load passes through while requests come and go."""
    if at is None or launch.schedule is None:
        return set()
    largest = max(1, *(row[-1] for row in launch.schedule))
    table = effective(launch.schedule, max_tokens=largest, max_num_seqs=server.max_num_seqs)
    batch = min(at, server.max_num_seqs)
    first, last = batch - _REQUESTS_SHORT, batch + _REQUESTS_SHORT
    return {band.tokens for band in table.bands() if band.first <= last and band.last >= first}


def acceptance(spec: Spec, drafting: Sequence[Launch]) -> Gate:
    """Require that drafters are accepted at all."""
    gate = "acceptance"
    floor = spec.policy.acceptance_floor
    drafted: dict[str, int] = {}
    accepted: dict[str, int] = {}
    for each in drafting:
        for cell in counted_cells(each):
            if cell.draft_tokens is not None and cell.accepted_tokens is not None:
                drafted[each.arm] = drafted.get(each.arm, 0) + cell.draft_tokens
                accepted[each.arm] = accepted.get(each.arm, 0) + cell.accepted_tokens
    silent = sorted({each.arm for each in drafting} - set(drafted))
    if silent:
        return unknown(
            gate, "NoDraftCounters", f"{', '.join(silent)} have no counted acceptance counters"
        )
    shares = {arm: accepted[arm] / n for arm, n in drafted.items() if n}
    low = [
        f"{arm} accepts {shares[arm]:.1%} of {drafted[arm]} draft tokens"
        for arm in shares
        if shares[arm] < floor
    ]
    if low:
        return fails(
            gate,
            "AcceptanceBelowFloor",
            f"{'; '.join(low)}; the floor is {floor:.1%}: the drafter does not fit the model or "
            "the traffic; serve without speculation",
        )
    said = [f"{arm} {share:.1%} (n = {drafted[arm]})" for arm, share in shares.items()]
    said += [f"{arm} n/a" for arm, n in drafted.items() if not n]
    return passes(gate, f"accepted share of draft tokens: {', '.join(said)}")


def drafter_state(drafting: Sequence[Launch]) -> Gate:
    """Require that drafts are accepted after steps with K=0 as before them."""
    gate = "drafterState"
    lost: list[str] = []
    compared = 0
    for each in drafting:
        before: list[Cell] = []
        after: list[Cell] = []
        spell = False
        for cell in counted_cells(each):
            if not cell.draft_tokens or cell.accepted_tokens is None:
                spell = spell or cell.tokens == 0
            elif not cell.plain_load:
                continue  # Other texts are accepted otherwise.
            elif cell.tokens is None or spell:
                after.append(cell)
            else:
                before.append(cell)
        if before and after and each.schedule and any(row[-1] == 0 for row in each.schedule):
            compared += 1
            then, now = _share(before), _share(after)
            if now < STATE_LOST * then:
                lost.append(f"{each.arm} launch {each.launch}: {then:.0%} before, {now:.0%} after")
    if lost:
        return fails(
            gate,
            "DrafterStateLost",
            f"acceptance falls after steps with K=0 ({'; '.join(lost)}): the drafter loses its "
            "state there; try a schedule without K=0",
        )
    if not compared:
        return not_applicable(gate, "NoZeroSpell", "no launch drafted before and after a K=0 spell")
    return passes(gate, f"acceptance is kept over K=0 spells in {compared} launches")


def _share(cells: Sequence[Cell]) -> float:
    drafted = sum(cell.draft_tokens or 0 for cell in cells)
    return sum(cell.accepted_tokens or 0 for cell in cells) / drafted


def prefix_cache(spec: Spec, counted: Sequence[Launch]) -> Gate:
    """Require the declared prefix-cache regime, the same in all arms."""
    gate = "prefixCache"
    shares: dict[str, float] = {}
    silent = []
    for each in counted:
        # Not every launch holds categories and depths apart, and they share beginnings otherwise.
        cells = [cell for cell in counted_cells(each) if cell.plain_load]
        read = [cell.prefix_cache for cell in cells if cell.prefix_cache is not None]
        if not read:
            silent.append(each.arm)
            continue
        queries, hits = sum(r.queries for r in read), sum(r.hits for r in read)
        share = hits / queries if queries else 0.0
        shares[each.arm] = max(share, shares.get(each.arm, 0.0))
    if silent:
        return unknown(
            gate,
            "NoPrefixCounters",
            f"no counted window of {', '.join(sorted(set(silent)))} has prefix-cache counters",
        )
    for _, cell, where in held(counted, spec.load.points):
        if cell.prefix_cache is None:
            return unknown(
                gate,
                "NoPrefixCounters",
                f"a counted window of {where} has no prefix-cache counters",
            )
    said = ", ".join(f"{arm} {share:.0%}" for arm, share in shares.items())
    if max(shares.values()) - min(shares.values()) > HITS_APART:
        return fails(
            gate,
            "ArmsNotComparable",
            f"prefix-cache hits differ between arms ({said}): they did not do the same work",
        )
    if spec.load.prefix_cache == "Unique" and max(shares.values()) > HITS_UNIQUE:
        return fails(
            gate,
            "PromptsNotUnique",
            f"spec.load.prefixCache is Unique but prompts were found in the cache ({said})",
        )
    if spec.load.prefix_cache != "Unique" and min(shares.values()) <= HITS_UNIQUE:
        return fails(
            gate,
            "PrefixCacheCold",
            f"spec.load.prefixCache is {spec.load.prefix_cache} but the cache was cold ({said})",
        )
    return passes(gate, f"prefix-cache hits as declared: {said}")


def preemptions(counted: Sequence[Launch]) -> Gate:
    """Require that no window that counts had a preemption."""
    gate = "preemptions"
    cells = [(each.arm, cell) for each in counted for cell in counted_cells(each)]
    hit = sorted(
        {f"{arm} cell {cell.cell}: {cell.preemptions}" for arm, cell in cells if cell.preemptions}
    )
    if hit:
        return fails(
            gate,
            "Preempted",
            f"requests were preempted in windows that count ({', '.join(hit)}): the KV cache is "
            "too small for the load point",
        )
    silent = sorted({arm for arm, cell in cells if cell.preemptions is None})
    if silent or not cells:
        return unknown(
            gate, "NotRead", f"preemptions of {', '.join(silent) or 'every arm'} were not read"
        )
    return passes(gate, f"no request was preempted in {len(cells)} windows")


def engine_counters(spec: Spec, counted: Sequence[Launch]) -> Gate:
    """Hold the tokens that were received against those that the engine says it generated."""
    gate = "engineCounters"
    seen: set[str] = set()
    windows = 0
    apart: list[str] = []
    for each, cell, where in held(counted, spec.load.points):
        received, generated = cell.output_tokens, cell.engine_output_tokens
        if received is None or generated is None:
            continue
        seen.add(each.arm)
        windows += 1
        at = cell.profile.concurrency or 0
        planned = cell.tokens if cell.tokens is not None else _largest(each)
        in_flight = at * (planned + 1) + at
        # Tokens are received while the load is as planned; the engine counts all the time.
        not_exact = 0.0 if cell.in_flight_exact is None else 1.0 - cell.in_flight_exact
        allowed = max(OUTPUT_TOLERANCE, not_exact) * generated
        if abs(received - generated) > max(allowed, in_flight):
            apart.append(
                f"{where}, cell {cell.cell}: {received} tokens were received, the engine counts "
                f"{generated}"
            )
    if apart:
        return fails(
            gate,
            "EngineCountersDisagree",
            f"{'; '.join(apart)}: something else used the server, or answers were lost",
        )
    silent = sorted({each.arm for each in counted} - seen)
    if silent:
        return unknown(
            gate,
            "NoEngineCounters",
            f"no counted window of {', '.join(silent)} has both the tokens received and the "
            "engine's own count",
        )
    return passes(gate, f"tokens received are those the engine generated in {windows} windows")


def _largest(launch: Launch) -> int:
    """Return the most tokens that a launch drafts, as far as it is known."""
    rows = [row[-1] for row in launch.schedule or []]
    return max([launch.receipt.num_speculative_tokens or 0, *rows])
