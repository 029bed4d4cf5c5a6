"""The receipt of a launch, from what its server says: endpoints, metrics, log and fingerprint."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from specschedule.core.evidence import Receipt
from specschedule.core.receipts import NOT_CARRIED, SCHEDULE_DISABLED, SOURCES_DISAGREE
from specschedule.vllm_facts.logs import LogFacts, read_log
from specschedule.vllm_facts.metrics import read_metrics
from specschedule.vllm_facts.plain import items, mapping

_GRAPH_MODES: dict[object, str] = {
    0: "NONE",
    1: "PIECEWISE",
    2: "FULL",
    (2, 0): "FULL_DECODE_ONLY",
    (2, 1): "FULL_AND_PIECEWISE",
}
"""How /server_info writes a CUDA graph mode."""

_TOLD_TWICE = (
    "model_runner",
    "graph_mode",
    "attention_backend",
    "async_scheduling",
    "num_speculative_tokens",
    "schedule",
)
"""Facts that gates rest on and that worker and log both tell."""


def read_receipt(
    *,
    version: Mapping[str, Any] | None = None,
    server_info: Mapping[str, Any] | None = None,
    metrics_text: str | None = None,
    models: Mapping[str, Any] | None = None,
    log_text: str | None = None,
) -> Receipt:
    """Return the facts that a running server tells.

    Args:
        version: Body of ``GET /version``.
        server_info: Body of ``GET /server_info?config_format=json`` (development mode only).
        metrics_text: Body of ``GET /metrics``.
        models: Body of ``GET /v1/models``.
        log_text: The server's log from its beginning.

    What the worker decides (graph mode) counts before what was configured, and its own fingerprint
    before what others say of it; where those disagree, a note says so. What nothing tells stays
    absent.
    """
    log = read_log(log_text) if log_text else LogFacts()
    info = mapping(server_info)
    config = mapping(info.get("vllm_config"))
    speculative = mapping(config.get("speculative_config"))
    drafter = mapping(speculative.get("draft_model_config"))
    model = mapping(config.get("model_config"))
    environment = mapping(info.get("vllm_env"))
    commit = _text(environment.get("VLLM_BUILD_COMMIT"))
    system = mapping(info.get("system_env"))
    scrape = read_metrics(metrics_text) if metrics_text else None
    forced = {"1": "V2", "0": "V1"}.get(str(environment.get("VLLM_USE_V2_MODEL_RUNNER")))
    told_schedule = "num_speculative_tokens_per_batch_size" in speculative
    outside = Receipt(
        engine_version=_text(mapping(version).get("version")) or log.version,
        engine_commit=None if commit == "unknown" else commit,
        model=_text(model.get("model")) or log.model,
        model_revision=_text(model.get("revision")) or log.revision,
        quantization=_text(model.get("quantization")) or log.quantization,
        adapters=adapters(models),
        drafter=_text(speculative.get("model")) or _text(speculative.get("method")) or log.drafter,
        drafter_revision=_text(speculative.get("revision")) or _text(drafter.get("revision")),
        drafter_quantization=_text(speculative.get("quantization"))
        or _text(drafter.get("quantization")),
        model_runner=log.model_runner or forced,
        graph_mode=log.graph_mode or _configured_mode(config),
        captured_sizes=log.captured_sizes,
        attention_backend=log.attention_backend,
        async_scheduling=_flag(mapping(config.get("scheduler_config")).get("async_scheduling"))
        if config
        else log.async_scheduling,
        kv_cache_tokens=(scrape.kv_cache_tokens if scrape else None) or log.kv_cache_tokens,
        schedule=_rows(speculative.get("num_speculative_tokens_per_batch_size"))
        if told_schedule
        else None,
        num_speculative_tokens=_whole(speculative.get("num_speculative_tokens"))
        or log.num_speculative_tokens,
        torch_version=_text(system.get("torch_version")),
        cuda_version=_text(system.get("cuda_runtime_version")),
        driver_version=_text(system.get("nvidia_driver_version")),
        compile_hash=log.compile_hash,
        autotune_hash=log.autotune_hash,
        caches_warm=log.caches_warm,
        compile_seconds=log.compile_seconds,
        capture_seconds=log.capture_seconds,
        log_level_hides_warnings=log.level_hides_warnings,
    )
    notes = [*log.notes, *_disagreements(log.fingerprint, outside, log.by_silence)]
    receipt = _first_of(log.fingerprint or Receipt(), outside)
    if log.schedule_asked is not None and (receipt.schedule == [] or _dropped(speculative)):
        notes.append(
            f"{SCHEDULE_DISABLED}: the running configuration has no schedule although one was "
            "asked for"
        )
    if log.table is not None:
        # The rows that the engine was started with are there to prepare it for every K only.
        told = {"schedule": log.table, "scheduler": "context-axis"}
        receipt = receipt.model_copy(update=told)
    carried = [
        *(["fingerprint"] if log.fingerprint else []),
        *(["counters"] if scrape and scrape.recorder_on else []),
    ]
    return receipt.model_copy(update={"instruments": carried or None, "notes": notes or None})


def with_left_out(receipt: Receipt, left_out: str | None) -> Receipt:
    """Note which instruments the launch was made without, and why; None where with all."""
    if not left_out:
        return receipt
    notes = [*(receipt.notes or []), f"{NOT_CARRIED}: {left_out}"]
    return receipt.model_copy(update={"notes": notes})


def with_gpu_label(receipt: Receipt, label: str | None) -> Receipt:
    """Add the product that a node's label names: the device's own word counts before it.

    Args:
        receipt: What the server tells.
        label: The product as a device plugin's label spells it; None where there is no label.
    """
    if label is None:
        return receipt
    if receipt.gpu is None:
        return receipt.model_copy(update={"gpu": label})
    # A label may go on, such as -SHARED, or leave out the maker.
    one, other = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (receipt.gpu, label))
    if one in other or other in one:
        return receipt.model_copy(update={"gpu": label})
    note = f"{SOURCES_DISAGREE}: gpu is {receipt.gpu} in the worker and {label} by the node's label"
    return receipt.model_copy(update={"notes": [*(receipt.notes or []), note]})


def _first_of(inside: Receipt, outside: Receipt) -> Receipt:
    """Join two receipts, the first one's facts before the other's."""
    told = {fact: value for fact, value in inside if value is not None}
    if inside.gpu is not None:
        # As device plugins spell it in a node's labels.
        told["gpu"] = inside.gpu.replace(" ", "-")
    return outside.model_copy(update=told)


def _disagreements(
    inside: Receipt | None, outside: Receipt, by_silence: Collection[str]
) -> list[str]:
    """Note each fact that worker and log both tell, and not the same."""
    if inside is None:
        return []
    notes = []
    for fact in _TOLD_TWICE:
        ours, theirs = getattr(inside, fact), getattr(outside, fact)
        if ours is None or theirs is None or fact in by_silence or ours == theirs:
            continue
        # The log names the backend of the model, the worker all of them.
        if fact == "attention_backend" and theirs in ours.split(", "):
            continue
        said, other = json.dumps(ours), json.dumps(theirs)
        notes.append(
            f"{SOURCES_DISAGREE}: {to_camel(fact)} is {said} in the worker and {other} by what "
            "the server says outside it"
        )
    return notes


def adapters(models: Mapping[str, Any] | None) -> list[str] | None:
    """Return the adapters that a body of ``GET /v1/models`` lists; None where it lists nothing.

    An adapter's card names the model it belongs to as its parent.
    """
    cards = items(mapping(models).get("data"))
    if not cards:
        return None
    return sorted(
        str(mapping(card).get("id")) for card in cards if mapping(card).get("parent") is not None
    )


def _configured_mode(config: Mapping[str, Any]) -> str | None:
    """Return the configured graph mode where no worker can overrule it."""
    value = mapping(config.get("compilation_config")).get("cudagraph_mode")
    key = tuple(value) if isinstance(value, list) else value
    mode = _GRAPH_MODES.get(key) if isinstance(key, (int, tuple)) else None
    return mode if mode == "NONE" else None


def _dropped(speculative: Mapping[str, Any]) -> bool:
    """Say whether /server_info tells that no schedule is in effect."""
    key = "num_speculative_tokens_per_batch_size"
    return key in speculative and speculative[key] is None


def _rows(value: object) -> list[list[int]] | None:
    if not isinstance(value, list) or not all(
        isinstance(row, (list, tuple)) and all(type(number) is int for number in row)
        for row in value
    ):
        return None
    return [list(row) for row in value]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
