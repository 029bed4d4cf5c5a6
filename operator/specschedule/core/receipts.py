"""Receipts compared: what the running arms have in common, and what a difference means.

Speculative arms must be the same engine in everything but how many tokens are drafted. The arm
``none`` is another configuration by nature: image, version and GPU must match, the rest is
reported. A fact that no launch told is Unknown, and Unknown holds promotion.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from specschedule.core.evidence import Launch, Receipt
from specschedule.core.gate import Gate, fails, not_applicable, passes, unknown
from specschedule.core.observed import ServerFacts
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


def same(
    launches: Sequence[Launch], gate: str, what: str, fact: Callable[[Receipt], object]
) -> Gate:
    """Require that every launch tells a fact, and the same.

    Args:
        launches: Launches to compare.
        gate: Name of the gate.
        what: What the fact is called.
        fact: Reads it.
    """
    by_value, silent = _told(launches, fact)
    if len(by_value) > 1:
        return fails(gate, "Differs", f"{what} differs between arms: {_listed(by_value)}")
    if silent:
        return unknown(gate, "NotRead", f"{what} could not be read from {', '.join(silent)}")
    return passes(gate, f"{what} is {next(iter(by_value))} in every arm", "Same")


def gpu(counted: Sequence[Launch], server: ServerFacts) -> Gate:
    """Require one GPU product; launches on one node have it without a word."""
    gate = same(counted, "gpu", "GPU", lambda r: r.gpu)
    if gate.answer != "Unknown":
        return gate
    if not server.gpus:
        return not_applicable("gpu", "NoGpu", "the server asks for no GPU")
    nodes, silent = _told(counted, lambda r: r.node)
    if len(nodes) == 1 and not silent:
        return passes("gpu", f"every arm ran on node {next(iter(nodes))}", "SameNode")
    return gate


def version(counted: Sequence[Launch]) -> Gate:
    """Require one version, and one that can be tuned."""
    gate = same(counted, "engineVersion", "engine version", lambda r: r.engine_version)
    told = counted[0].receipt.engine_version
    return version_gate(told) if gate.answer == "Pass" and told else gate


def graph_mode(spec: Spec, counted: Sequence[Launch], drafting: Sequence[Launch]) -> Gate:
    """Hold the resolved CUDA graph modes against ``policy.graphMode``."""
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
        reason = "DowngradeReported" if _quoted(drafting, GRAPH_MODE_OVERRIDDEN) else "Same"
        return passes(gate, f"CUDA graph mode: {said}", reason)
    if spec.policy.graph_mode == "Same":
        return fails(gate, "Differs", f"spec.policy.graphMode is Same: {said}")
    return passes(gate, f"CUDA graph mode differs between arms: {said}", "DiffersReported")


def _quoted(launches: Sequence[Launch], kind: str) -> list[str]:
    return sorted({text for each in launches for text in noted(each.receipt, kind)})


def graph_coverage(drafting: Sequence[Launch], server: ServerFacts) -> Gate:
    """Say whether captured graphs cover the steps that each schedule takes."""
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


def kv_cache(counted: Sequence[Launch]) -> Gate:
    """Report KV cache sizes, and require that the measured load fits the smallest."""
    gate = "kvCache"
    by_value, silent = _told(counted, lambda r: r.kv_cache_tokens)
    if silent:
        return unknown(gate, "NotRead", f"KV cache size could not be read from {', '.join(silent)}")
    smallest = min(int(str(value)) for value in by_value)
    beyond = sorted(
        {
            f"{cell.profile.concurrency} in flight of {cell.context} tokens"
            for each in counted
            for cell in each.cells
            if cell.void is None
            and cell.profile.concurrency
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


def log_level(counted: Sequence[Launch]) -> Gate:
    """Require that engine warnings would be seen."""
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


def caches(counted: Sequence[Launch]) -> Gate:
    """Require that no launch filled caches which others found warm."""
    tuned = [
        f"{each.arm} (launch {each.launch})"
        for each in counted
        if noted(each.receipt, TUNED) and any(cell.void is None for cell in each.cells)
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
