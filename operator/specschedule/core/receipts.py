"""Receipts compared: what the running arms have in common, and what a difference means.

Speculative arms must be the same engine in everything but how many tokens are drafted. The arm
``none`` is another configuration by nature: image, version and GPU must match, the rest is
reported. A fact that no launch told is Unknown, and Unknown holds promotion.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specschedule.core.compare import NONE
from specschedule.core.evidence import Cell, Launch, Receipt
from specschedule.core.gate import Gate, fails, not_applicable, overridden, passes, unknown
from specschedule.core.observed import ServerFacts
from specschedule.core.schedule import ScheduleError, effective
from specschedule.core.spec import Spec
from specschedule.core.versions import version_gate

SCHEDULE_DISABLED = "ScheduleDisabled"
GRAPH_MODE_OVERRIDDEN = "GraphModeOverridden"
RUNNER_FALLBACK = "RunnerFallback"
CAPTURE_TRUNCATED = "CaptureTruncated"
ASYNC_DISABLED = "AsyncDisabled"
TUNED = "Tuned"
COMPILED_UNDER_LOAD = "CompiledUnderLoad"
"""Kinds of engine warnings: a note of a receipt begins with one of them and a colon."""

TOKENS_TOLERANCE = 0.25
"""How far mean draft tokens per draft may be from the plan, in tokens and as a share of it."""

HITS_UNIQUE = 0.1
"""Share of prompt tokens found in the prefix cache beyond which prompts were not unique."""

HITS_APART = 0.1
"""Arms whose prefix-cache hit shares differ by more are not comparable."""

_REQUESTS_SHORT = 2
"""A held load may be short of this many requests for a step while one ends and one begins."""


def between_arms(spec: Spec, launches: Sequence[Launch], server: ServerFacts) -> list[Gate]:
    """Answer every gate that the running arms can answer.

    Args:
        spec: The question.
        launches: Every launch of the run; void and failed ones do not count.
        server: The serving server, as it was when the run began.
    """
    counted = [each for each in launches if each.void is None and each.failed is None]
    if not counted:
        return [unknown("launches", "NoLaunch", "no launch of any arm counts")]
    drafting = [each for each in counted if each.arm != NONE]
    answers = [
        _same(counted, "imageId", "image id", lambda r: r.image_id),
        _version(counted),
        _same(counted, "gpu", "GPU", lambda r: r.gpu, absent="no arm has a GPU"),
        _same(drafting, "modelRunner", "model runner", lambda r: r.model_runner),
        _same(drafting, "attentionBackend", "attention backend", lambda r: r.attention_backend),
        _same(drafting, "asyncScheduling", "async scheduling", lambda r: r.async_scheduling),
        _graph_mode(spec, counted, drafting),
        _graph_coverage(drafting, server),
        _kv_cache(counted),
        _log_level(counted),
        _tuned(counted),
        _schedule_in_effect(drafting, server),
        _acceptance(spec, drafting),
        _prefix_cache(spec, counted),
        _preemptions(counted),
        _equivalence(counted),
    ]
    return overridden(spec, answers)


def differences(one: Receipt, other: Receipt) -> dict[str, tuple[Any, Any]]:
    """Return the facts of two receipts that both tell and that differ."""
    a, b = one.plain(), other.plain()
    return {key: (a[key], b[key]) for key in a if key in b and a[key] != b[key]}


def noted(receipt: Receipt, kind: str) -> list[str]:
    """Return the engine warnings of one kind, as the engine wrote them."""
    head = f"{kind}: "
    return [note.removeprefix(head) for note in receipt.notes or [] if note.startswith(head)]


def _told(
    launches: Sequence[Launch], fact: Callable[[Receipt], object]
) -> tuple[dict[object, list[str]], list[str]]:
    """Return the arms by value of a fact, and the arms with a launch that does not tell it."""
    by_value: dict[object, list[str]] = {}
    silent: list[str] = []
    for launch in launches:
        value = fact(launch.receipt)
        arms = silent if value is None else by_value.setdefault(value, [])
        if launch.arm not in arms:
            arms.append(launch.arm)
    return by_value, silent


def _listed(by_value: dict[object, list[str]]) -> str:
    return "; ".join(f"{value} ({', '.join(arms)})" for value, arms in by_value.items())


def _same(
    launches: Sequence[Launch],
    gate: str,
    what: str,
    fact: Callable[[Receipt], object],
    absent: str | None = None,
) -> Gate:
    """Require that a fact is told and equal everywhere.

    Args:
        launches: Launches to compare.
        gate: Name of the gate.
        what: What the fact is called.
        fact: Reads it.
        absent: What it means when no launch has it; None when that is missing evidence.
    """
    by_value, silent = _told(launches, fact)
    if len(by_value) > 1:
        return fails(gate, "Differs", f"{what} differs between arms: {_listed(by_value)}")
    if not by_value and absent:
        return not_applicable(gate, "Absent", absent)
    if silent:
        return unknown(gate, "NotRead", f"{what} could not be read from {', '.join(silent)}")
    return passes(gate, f"{what} is {next(iter(by_value))} in every arm", "Same")


def _version(counted: Sequence[Launch]) -> Gate:
    same = _same(counted, "engineVersion", "engine version", lambda r: r.engine_version)
    version = counted[0].receipt.engine_version
    return version_gate(version) if same.answer == "Pass" and version else same


def _graph_mode(spec: Spec, counted: Sequence[Launch], drafting: Sequence[Launch]) -> Gate:
    gate = "graphMode"
    by_value, silent = _told(drafting, lambda r: r.graph_mode)
    if silent:
        return unknown(
            gate, "NotRead", f"CUDA graph mode could not be read from {', '.join(silent)}"
        )
    if set(by_value) == {"NONE"}:
        return not_applicable(gate, "NoGraphs", "no arm uses CUDA graphs (CPU or enforce-eager)")
    everywhere, _ = _told(counted, lambda r: r.graph_mode)
    said = _listed(everywhere)
    said += "".join(f"; engine: {text}" for text in _quoted(drafting, GRAPH_MODE_OVERRIDDEN))
    if spec.policy.graph_mode == "RequireFull":
        without = [str(value) for value in by_value if not str(value).startswith("FULL")]
        if without:
            return fails(gate, "NotFull", f"spec.policy.graphMode is RequireFull: {said}")
    if len(by_value) == 1:
        return passes(gate, f"CUDA graph mode: {said}", "Same")
    if spec.policy.graph_mode == "Same":
        return fails(gate, "Differs", f"spec.policy.graphMode is Same: {said}")
    return passes(gate, f"CUDA graph mode differs between arms: {said}", "DiffersReported")


def _quoted(launches: Sequence[Launch], kind: str) -> list[str]:
    return sorted({text for each in launches for text in noted(each.receipt, kind)})


def _graph_coverage(drafting: Sequence[Launch], server: ServerFacts) -> Gate:
    gate = "graphCoverage"
    if {each.receipt.graph_mode for each in drafting} <= {"NONE"}:
        return not_applicable(gate, "NoGraphs", "no arm uses CUDA graphs")
    cut: set[str] = set()
    beyond: set[str] = set()
    for each in drafting:
        needed = _largest_step(each, server)
        for text in noted(each.receipt, CAPTURE_TRUNCATED):
            limit = int(re.findall(r"\d+", text)[-1]) if re.search(r"\d", text) else 0
            if needed is None or needed > limit:
                cut.add(f"{each.arm} needs a graph of {needed or 'unknown'} tokens: {text}")
        captured = max(each.receipt.captured_sizes or [0])
        if needed is not None and 0 < captured < needed:
            beyond.add(f"{each.arm} takes steps of up to {needed} tokens, captured are {captured}")
    if cut:
        return fails(
            gate,
            "NotCaptured",
            f"{'; '.join(sorted(cut))}: its largest batches run without graphs and must not be "
            "compared as if they had them",
        )
    if beyond:
        said = "; ".join(sorted(beyond))
        return passes(gate, f"{said}: larger steps run without full graphs", "BeyondCaptured")
    return passes(gate, "captured graph sizes cover the rows of every schedule, as far as told")


def _largest_step(launch: Launch, server: ServerFacts) -> int | None:
    """Return the most tokens that a decoding step of a schedule verifies: batch x (K + 1)."""
    if launch.schedule is None:
        return None
    rows = [row for row in launch.schedule if row[0] <= server.max_num_seqs]
    return max((min(row[1], server.max_num_seqs) * (row[-1] + 1) for row in rows), default=None)


def _kv_cache(counted: Sequence[Launch]) -> Gate:
    gate = "kvCache"
    by_value, silent = _told(counted, lambda r: r.kv_cache_tokens)
    if silent:
        return unknown(gate, "NotRead", f"KV cache size could not be read from {', '.join(silent)}")
    smallest = min(int(str(value)) for value in by_value)
    beyond = sorted(
        {
            f"{cell.profile.concurrency} in flight of {cell.context} tokens"
            for each in counted
            for cell in _cells(each)
            if cell.profile.concurrency
            and cell.context
            and cell.profile.concurrency * cell.context > smallest
        }
    )
    if beyond:
        return fails(
            gate,
            "BeyondKvCache",
            f"{', '.join(beyond)} do not fit the smallest KV cache, {smallest} tokens; leave "
            "those load points out",
        )
    if len(by_value) > 1:
        return passes(
            gate,
            f"KV cache in tokens: {_listed(by_value)}; the load fits the smallest",
            "DiffersReported",
        )
    return passes(gate, f"KV cache holds {smallest} tokens in every arm", "Same")


def _log_level(counted: Sequence[Launch]) -> Gate:
    by_value, silent = _told(counted, lambda r: r.log_level_hides_warnings)
    hidden = by_value.get(True, []) + silent
    if hidden:
        return unknown(
            "logLevel",
            "LogLevelHidesWarnings",
            f"the log level hides engine warnings of {', '.join(sorted(set(hidden)))}, such as a "
            "schedule switched off; set VLLM_LOGGING_LEVEL to INFO",
        )
    return passes("logLevel", "engine warnings would be seen")


def _tuned(counted: Sequence[Launch]) -> Gate:
    tuned = [
        f"{each.arm} (launch {each.launch})"
        for each in counted
        if noted(each.receipt, TUNED) and any(True for _ in _cells(each))
    ]
    warm = {each.receipt.caches_warm for each in counted} - {None}
    if tuned and len(tuned) < len(counted):
        return fails(
            "caches",
            "TunedUnderMeasurement",
            f"{', '.join(tuned)} filled compile or autotune caches that other launches found warm",
        )
    if len(warm) > 1:
        return passes(
            "caches",
            "caches were warm in some launches and cold in others, which changes boot times",
            "DiffersReported",
        )
    return passes("caches", "caches were in one state for all arms, as far as told")


def _cells(launch: Launch) -> Iterable[Cell]:
    return (cell for cell in launch.cells if cell.void is None)


def _schedule_in_effect(drafting: Sequence[Launch], server: ServerFacts) -> Gate:
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
    wrong: list[tuple[str, str]] = []
    notes: set[str] = set()
    seen: dict[str, set[int]] = {}
    for each in drafting:
        for cell in _cells(each):
            if cell.tokens is None or cell.drafts is None or cell.draft_tokens is None:
                continue
            verdict, text = _drafted(each, cell, server)
            seen.setdefault(each.arm, set()).add(cell.tokens)
            if verdict == "Near":
                notes.add(text)
            elif verdict:
                wrong.append((verdict, text))
    if wrong:
        return fails(gate, wrong[0][0], "; ".join(sorted({text for _, text in wrong})))
    unseen = sorted({each.arm for each in drafting} - set(seen))
    if unseen:
        return unknown(
            gate,
            "NoDraftCounters",
            f"no counted window of {', '.join(unseen)} has the engine's draft counters",
        )
    told = "; ".join(
        f"{arm} K={','.join(str(k) for k in sorted(ks, reverse=True))}" for arm, ks in seen.items()
    )
    said = "; ".join([f"draft tokens per draft follow the plan: {told}", *sorted(notes)])
    return passes(gate, said, "HoldsWithNotes" if notes else "Holds")


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


def _drafted(launch: Launch, cell: Cell, server: ServerFacts) -> tuple[str, str]:
    """Compare drafted tokens with the plan: a reason and a sentence, both empty when they agree.

    "Near" means that a neighbouring batch size explains the difference.
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
        if neighbours - {0}:
            return "Near", f"{where}: some steps had another batch size and drafted {tokens} tokens"
        return (
            "NotLimited",
            f"{where} should draft nothing but drafted {tokens} tokens ({per_draft:.2f} a draft)",
        )
    if not drafts:
        return (
            "SpeculationOff",
            f"{where} should draft {planned} tokens but drafted none: speculation is off",
        )
    if abs(per_draft - planned) <= max(TOKENS_TOLERANCE, TOKENS_TOLERANCE * planned / 2):
        return "", ""
    low, high = min({planned, *neighbours}), max({planned, *neighbours})
    if low - TOKENS_TOLERANCE <= per_draft <= high + TOKENS_TOLERANCE and low != high:
        return (
            "Near",
            f"{where}: {per_draft:.2f} tokens a draft where {planned} are planned, as prefills "
            "count for the batch size",
        )
    reason = "NotLimited" if per_draft > planned else "DraftsShort"
    return reason, f"{where}: {per_draft:.2f} tokens a draft where {planned} are planned"


def _neighbours(launch: Launch, at: int | None, server: ServerFacts) -> set[int]:
    """Return K at batch sizes that a held load passes through while requests come and go."""
    if at is None or launch.schedule is None:
        return set()
    largest = max(1, *(row[-1] for row in launch.schedule))
    table = effective(launch.schedule, max_tokens=largest, max_num_seqs=server.max_num_seqs)
    first = max(1, at - _REQUESTS_SHORT)
    last = min(at + _REQUESTS_SHORT, server.max_num_seqs)
    return {band.tokens for band in table.bands() if band.first <= last and band.last >= first}


def _acceptance(spec: Spec, drafting: Sequence[Launch]) -> Gate:
    gate = "acceptance"
    floor = spec.policy.acceptance_floor
    drafted: dict[str, int] = {}
    accepted: dict[str, int] = {}
    for each in drafting:
        for cell in _cells(each):
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


def _prefix_cache(spec: Spec, counted: Sequence[Launch]) -> Gate:
    gate = "prefixCache"
    shares: dict[str, float] = {}
    silent = []
    for each in counted:
        read = [cell.prefix_cache for cell in _cells(each) if cell.prefix_cache is not None]
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


def _preemptions(counted: Sequence[Launch]) -> Gate:
    gate = "preemptions"
    cells = [(each.arm, cell) for each in counted for cell in _cells(each)]
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


def _equivalence(counted: Sequence[Launch]) -> Gate:
    gate = "outputEquivalence"
    read = [
        (each.arm, cell.first_token_differences, cell.completed)
        for each in counted
        for cell in _cells(each)
        if cell.first_token_differences is not None
    ]
    if not read:
        return not_applicable(gate, "NotChecked", "output was not compared between arms")
    relaunch = max((d for arm, d, _ in read if arm == NONE), default=0)
    wrong = [f"{arm}: {d} of {n} prompts" for arm, d, n in read if arm != NONE and d > relaunch]
    if wrong:
        return fails(
            gate,
            "OutputDiffers",
            f"output differs from {NONE} at temperature 0 ({'; '.join(wrong)}); two launches of "
            f"{NONE} differ in {relaunch}",
        )
    return passes(gate, f"output equals that of {NONE} on {len(read)} comparisons")
