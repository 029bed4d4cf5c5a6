"""Receipts compared: what the running arms have in common, and what a difference means.

Speculative arms must be the same engine in everything but how many tokens are drafted. The arm
``none`` is another configuration by nature: image, version and GPU must match, the rest is
reported. A fact that no launch told is Unknown, and Unknown holds promotion.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from pydantic.alias_generators import to_camel

from specschedule.core import capacity
from specschedule.core.arms import ADAPTIVE, PIECEWISE
from specschedule.core.context_axis import has_own, scheduled_by_ours
from specschedule.core.evidence import Launch, Receipt
from specschedule.core.gate import Gate, fails, not_applicable, passes, unknown
from specschedule.core.schedule import ScheduleError, effective, parse
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.core.values import Value
from specschedule.core.versions import version_gate

SCHEDULE_DISABLED = "ScheduleDisabled"
GRAPH_MODE_OVERRIDDEN = "GraphModeOverridden"
RUNNER_FALLBACK = "RunnerFallback"
CAPTURE_TRUNCATED = "CaptureTruncated"
ASYNC_DISABLED = "AsyncDisabled"
SOURCES_DISAGREE = "SourcesDisagree"
NOT_CARRIED = "NotCarried"
TUNED = "Tuned"
COMPILED_UNDER_LOAD = "CompiledUnderLoad"
"""Kinds of findings and engine warnings: a note of a receipt begins with one and a colon."""


SAME_EVERYWHERE = {"image_id": "image id", "engine_version": "engine version", "gpu": "GPU"}
"""Facts that all launches must have in common, and what they are called."""

SAME_WHERE_DRAFTING = {
    "model_runner": "model runner",
    "attention_backend": "attention backend",
    "async_scheduling": "async scheduling",
}
"""Facts that all launches which draft must have in common."""

DIFFERENT_BY_DESIGN = (
    "arguments",
    "boot_seconds",
    "capture_seconds",
    "captured_sizes",
    "compile_hash",
    "compile_seconds",
    "drafter",
    "drafter_class",
    "graphs_captured",
    "node",
    "notes",
    "num_speculative_tokens",
    "schedule",
    "scheduler",
)
"""Facts that arms, or launches of one arm, differ in without a word."""


class Differing(Value):
    """A fact in which launches of a run differ."""

    fact: str
    """Name of the fact in a receipt."""
    values: dict[str, list[str]]
    """Arms by value, as JSON."""
    forbidden: str | None = None
    """Why the difference withholds promotion; None where it is only reported."""


class Untold(Value):
    """A fact that launches of a run must have in common and that some of them do not tell."""

    fact: str
    """Name of the fact in a receipt."""
    arms: list[str]
    """Arms with a launch that does not tell it."""
    reason: str = "NotRead"
    """Whether it differs is not known, and Unknown withholds promotion."""


def comparable(drafting: Sequence[Launch]) -> tuple[list[Launch], list[Launch]]:
    """Return the launches that must be the same engine, and those of them with the same graphs.

    Adaptive verification runs on model runner V2 with full graphs only, whatever the others do.
    """
    alike = [each for each in drafting if each.arm != ADAPTIVE]
    return alike, [each for each in alike if not each.arm.startswith(PIECEWISE)]


def compared(spec: Spec, launches: Sequence[Launch], silent: Collection[str]) -> list[Differing]:
    """Return the facts in which launches differ, forbidden differences first.

    Args:
        spec: The question, with its policy.
        launches: Launches to compare.
        silent: Arms that run without speculation.
    """
    alike, in_own_mode = comparable([each for each in launches if each.arm not in silent])
    found = []
    for fact in Receipt.model_fields:
        everywhere = _values(launches, fact)
        if fact in DIFFERENT_BY_DESIGN or len(everywhere) < 2:
            continue
        forbidden = None
        if fact in SAME_EVERYWHERE:
            forbidden = "all launches must agree"
        elif fact == "instruments":
            forbidden = "every arm must carry the same"
        elif fact in SAME_WHERE_DRAFTING and len(_values(alike, fact)) > 1:
            forbidden = "all launches that draft must agree"
        elif fact == "graph_mode" and graph_mode(spec, launches, in_own_mode).answer == "Fail":
            forbidden = f"spec.policy.graphMode is {spec.policy.graph_mode}"
        found.append(Differing(fact=to_camel(fact), values=everywhere, forbidden=forbidden))
    return sorted(found, key=lambda each: each.forbidden is None)


def untold(launches: Sequence[Launch], silent: Collection[str]) -> list[Untold]:
    """Return the facts that launches must have in common and that not all of them tell.

    Args:
        launches: Launches to compare.
        silent: Arms that run without speculation.
    """
    alike, in_own_mode = comparable([each for each in launches if each.arm not in silent])
    asked: dict[str, Sequence[Launch]] = {
        **dict.fromkeys(SAME_EVERYWHERE, launches),
        **dict.fromkeys(SAME_WHERE_DRAFTING, alike),
        "graph_mode": in_own_mode,
    }
    found = {fact: _told(of, attrgetter(fact))[1] for fact, of in asked.items()}
    return [Untold(fact=to_camel(fact), arms=arms) for fact, arms in found.items() if arms]


def _values(launches: Sequence[Launch], fact: str) -> dict[str, list[str]]:
    """Return arms by the value of a fact, as JSON; launches that do not tell it are left out."""
    found, _ = _told(launches, lambda receipt: json.dumps(receipt.plain().get(to_camel(fact))))
    return {str(value): arms for value, arms in found.items() if value != "null"}


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


def same(launches: Sequence[Launch], fact: str, beside: Sequence[Launch] = ()) -> Gate:
    """Require that every launch tells a fact, and the same; the gate has the fact's name.

    Args:
        launches: Launches that must agree.
        fact: Name of the fact in a receipt.
        beside: Launches that may differ, which is told.
    """
    gate, what = to_camel(fact), (SAME_EVERYWHERE | SAME_WHERE_DRAFTING)[fact]
    by_value, silent = _told(launches, lambda receipt: getattr(receipt, fact))
    if len(by_value) > 1:
        return fails(gate, "Differs", f"{what} differs between arms: {_listed(by_value)}")
    if silent:
        return unknown(gate, "NotRead", f"{what} could not be read from {', '.join(silent)}")
    ours = next(iter(by_value))
    theirs, _ = _told(beside, lambda receipt: getattr(receipt, fact))
    others = {value: arms for value, arms in theirs.items() if value != ours}
    if others:
        said = f"{what} is {ours} in every arm that must agree, and differs as declared"
        return passes(gate, f"{said}: {_listed(others)}", "DiffersReported")
    return passes(gate, f"{what} is {ours} in every arm", "Same")


def image_id(counted: Sequence[Launch], serving: Sequence[str] | None) -> Gate:
    """Require one image in every arm, and that it is what serves: a tag may have moved since.

    Args:
        counted: Launches of every arm.
        serving: Image ids of the serving pods; None where there is none to ask.
    """
    gate = same(counted, "image_id")
    if gate.answer != "Pass" or serving is None:
        return gate
    ours = str(counted[0].receipt.image_id)
    if not serving:
        return unknown(gate.gate, "ServingNotRead", "no serving pod tells the id of its image")
    if set(serving) == {ours}:
        return passes(gate.gate, f"image id is {ours} in every arm and in serving", "Same")
    return fails(
        gate.gate,
        "NotTheServingImage",
        f"serving pods run image {', '.join(serving)}, every arm was launched with {ours}: the tag "
        "has moved; name the image by its digest, or roll the target out anew",
    )


def gpu(counted: Sequence[Launch], server: ServerFacts) -> Gate:
    """Require one GPU product; launches on one node have it without a word."""
    gate = same(counted, "gpu")
    if gate.answer != "Unknown":
        return gate
    if not server.gpus and server.gpus_untold is None:
        return not_applicable("gpu", "NoGpu", "the server asks for no GPU")
    nodes, silent = _told(counted, lambda r: r.node)
    if len(nodes) == 1 and not silent:
        return passes("gpu", f"every arm ran on node {next(iter(nodes))}", "SameNode")
    return gate


def version(counted: Sequence[Launch]) -> Gate:
    """Require one version, and one that can be tuned."""
    gate = same(counted, "engine_version")
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
    """Say whether captured graphs cover the steps that each launch takes."""
    gate = "graphCoverage"
    with_graphs = [each for each in drafting if each.receipt.graph_mode != "NONE"]
    if not with_graphs:
        return not_applicable(gate, "NoGraphs", "no arm uses CUDA graphs")
    cut: set[str] = set()
    beyond: set[str] = set()
    silent: list[str] = []
    for each in with_graphs:
        needed = _largest_step(each, server)
        captured = _largest_captured(each.receipt)
        for text in noted(each.receipt, CAPTURE_TRUNCATED):
            limit = _last_number(text)
            if needed is None or limit is None or needed > limit:
                cut.add(f"{each.arm} needs a graph of {needed or 'unknown'} tokens: {text}")
        if needed is None or captured is None:
            silent.append(each.arm)
        elif captured < needed:
            beyond.add(f"{each.arm} takes steps of up to {needed} tokens, captured are {captured}")
    if cut:
        return fails(
            gate,
            "NotCaptured",
            f"{'; '.join(sorted(cut))}: its largest batches run without graphs and must not be "
            "compared as if they had them",
        )
    if silent:
        return unknown(
            gate,
            "NotRead",
            "captured graph sizes or the number of draft tokens could not be read from "
            f"{', '.join(dict.fromkeys(silent))}; vLLM names both as it starts: set "
            "VLLM_LOGGING_LEVEL to INFO and keep the log from its beginning",
        )
    if beyond:
        said = "; ".join(sorted(beyond))
        return passes(gate, f"{said}: larger steps run without full graphs", "BeyondCaptured")
    return passes(gate, "captured graph sizes cover every step of every schedule")


def _largest_step(launch: Launch, server: ServerFacts) -> int | None:
    """Return the most tokens that a decoding step verifies, batch x (K + 1); None when not told."""
    told = launch.receipt.num_speculative_tokens
    rows = launch.schedule
    if rows is None:
        return None if told is None else server.max_num_seqs * (told + 1)
    try:
        largest = parse(rows).largest if told is None else told
        table = effective(rows, max_tokens=max(1, largest), max_num_seqs=server.max_num_seqs)
    except ScheduleError:
        return None
    return max(band.last * (band.tokens + 1) for band in table.bands())


def _largest_captured(receipt: Receipt) -> int | None:
    """Return the most tokens that a captured graph takes; None when not told."""
    if receipt.captured_sizes is not None:
        return max(receipt.captured_sizes, default=0)
    limits = map(_last_number, noted(receipt, CAPTURE_TRUNCATED))
    return min((limit for limit in limits if limit is not None), default=None)


def _last_number(text: str) -> int | None:
    found = re.findall(r"\d+", text)
    return int(found[-1]) if found else None


def kv_cache(spec: Spec, counted: Sequence[Launch]) -> Gate:
    """Report KV cache sizes; the load points that the smallest cannot hold are left out."""
    gate = capacity.GATE
    by_value, silent = _told(counted, lambda r: r.kv_cache_tokens)
    if silent:
        return unknown(gate, "NotRead", f"KV cache size could not be read from {', '.join(silent)}")
    size = capacity.smallest(counted)
    beyond = capacity.beyond(spec, size, counted)
    if size is not None and beyond:
        return capacity.answer(spec, beyond, size)
    if len(by_value) > 1:
        return passes(
            gate,
            f"KV cache in tokens: {_listed(by_value)}; the load fits the smallest",
            "DiffersReported",
        )
    return passes(gate, f"KV cache holds {size} tokens in every arm", "Same")


def adapters(counted: Sequence[Launch], server: ServerFacts) -> Gate:
    """Require that every launch serves the adapters that the serving pods do."""
    gate = "adapters"
    if not server.enable_lora:
        return not_applicable(gate, "NoAdapters", "the server serves no adapters")
    if server.adapters is None:
        return unknown(gate, "NotRead", "no serving pod lists its adapters at /v1/models")
    silent = sorted({each.arm for each in counted if each.receipt.adapters is None})
    if silent:
        return unknown(
            gate, "NotRead", f"adapters could not be read from {', '.join(silent)} (/v1/models)"
        )
    serving = set(server.adapters)
    apart = {
        f"{each.arm} lacks {', '.join(sorted(serving - served)) or 'none'} and has "
        f"{', '.join(sorted(served - serving)) or 'none'} besides"
        for each in counted
        if (served := set(each.receipt.adapters or [])) != serving
    }
    if apart:
        return fails(
            gate,
            "AdaptersDiffer",
            f"adapters are not as in serving: {'; '.join(sorted(apart))}; name them in the "
            "server's arguments (--lora-modules), not at run time",
        )
    said = ", ".join(server.adapters) or "none"
    return passes(gate, f"adapters are as in serving: {said}", "Same")


def sources(counted: Sequence[Launch]) -> Gate:
    """Require that what tells the same fact twice tells it alike."""
    apart = {
        f"{each.arm}: {text}" for each in counted for text in noted(each.receipt, SOURCES_DISAGREE)
    }
    if apart:
        return unknown(
            "sources",
            "SourcesDisagree",
            f"{'; '.join(sorted(apart))}: which of them is right is not known; compare the log "
            "with the receipt, and name the gate in spec.policy.overrides once you know",
        )
    return passes("sources", "what is told twice is told alike, as far as told")


def instruments(counted: Sequence[Launch], server: ServerFacts) -> Gate:
    """Require that every launch carries the same of ours: it takes time in every step.

    The context-axis scheduler is part of the arm that it was launched with, and must show itself;
    so must the server's own.
    """
    gate = "instruments"
    by_value, silent = _told(
        counted,
        lambda receipt: None if receipt.instruments is None else ", ".join(receipt.instruments),
    )
    left_out = {text for each in counted for text in noted(each.receipt, NOT_CARRIED)}
    why = "".join(f"; {text}" for text in sorted(left_out))
    followed = [each for each in counted if scheduled_by_ours(each, server)]
    if unseen := sorted({each.arm for each in followed if each.receipt.scheduler is None}):
        said = f"the log of {', '.join(unseen)} does not tell the context-axis scheduler's table"
        return unknown(gate, "NotRead", f"{said}{why}")
    if not by_value:
        return not_applicable(gate, "NoInstruments", f"no launch carries any{why}")
    if len(by_value) > 1:
        return fails(gate, "Differs", f"instruments differ between arms: {_listed(by_value)}{why}")
    if silent:
        return unknown(gate, "NotRead", f"instruments were not seen in {', '.join(silent)}{why}")
    if followed:
        named = ", ".join(sorted({each.arm for each in followed}))
        how = "as the server names it" if has_own(server) else "as launched"
        why = f"; {named} the context-axis scheduler too, {how}{why}"
    return passes(gate, f"every arm carries {next(iter(by_value))}{why}", "Same")


def log_level(counted: Sequence[Launch]) -> Gate:
    """Require that engine warnings would be seen."""
    by_value, silent = _told(counted, lambda r: r.log_level_hides_warnings)
    if silent:
        return unknown(
            "logLevel",
            "LogNotRead",
            f"the log of {', '.join(silent)} is empty, cut, or not the engine's, so whether "
            "warnings would be seen is not known; give the engine's log from its beginning",
        )
    if hidden := by_value.get(True, []):
        return unknown(
            "logLevel",
            "LogLevelHidesWarnings",
            f"the log level hides engine warnings of {', '.join(sorted(hidden))}, such as a "
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
