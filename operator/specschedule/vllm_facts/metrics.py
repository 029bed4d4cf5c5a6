"""vLLM's metrics: the names that this product reads, and facts in one scrape.

A renamed metric returns nothing and raises nothing, so names stand here only and a golden of each
release says which of them exist.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

CACHE_CONFIG = "vllm:cache_config_info"
DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens"
ACCEPTED_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
OUTPUT_TOKENS = "vllm:generation_tokens"
PREEMPTIONS = "vllm:num_preemptions"
PREFIX_QUERIES = "vllm:prefix_cache_queries"
PREFIX_HITS = "vllm:prefix_cache_hits"
ENDED = "vllm:request_success"
"""Requests that ended, by ``finished_reason``; the name notwithstanding, aborted ones too."""
PROMPT_LENGTHS = "vllm:request_prompt_tokens"
OUTPUT_LENGTHS = "vllm:request_generation_tokens"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"

TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
RECORDER_ON = "specschedule_engine_recorder_on"
"""Our own, in an engine that carries the recorder: 0 once it has switched itself off."""
STEPS = "specschedule_engine_steps"
"""Our own: steps by ``tokens`` (K), ``graph_mode`` and ``part`` (prompt, change or stable)."""
STEP_SECONDS = "specschedule_engine_step_seconds"
"""Our own: their seconds, by the same labels."""
STEP_DURATIONS = "specschedule_engine_step_duration_seconds"
"""Our own: histogram of their seconds by ``tokens``."""

HISTOGRAMS = {"ttft": TTFT, "tpot": TPOT, "e2e": E2E}
"""Histogram of one value per request, in seconds, by the limit of the SLO that it answers."""

_SCALARS = (
    CACHE_CONFIG,
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_BY_POSITION,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    ENDED,
    RUNNING,
    WAITING,
)
FAMILIES = (*_SCALARS, *HISTOGRAMS.values(), PROMPT_LENGTHS, OUTPUT_LENGTHS)
"""Families as they stand in a ``# TYPE`` line; counters end in ``_total`` in their samples."""


@dataclass(frozen=True)
class Scrape:
    """Facts in one scrape of a server, summed over its engines; None where a family is absent."""

    kv_cache_tokens: int | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    preemptions: float | None = None
    requests_by_engine: tuple[tuple[str, float | None, float | None], ...] = ()
    """(engine, requests running, requests waiting); None where one is not told."""
    recorder_on: bool | None = None
    """Whether the recorder counts, where the engine carries one."""
    drafts_by_engine: tuple[tuple[str, float, float], ...] = ()
    """(engine, drafts, accepted tokens)."""

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens a draft yields, 1 + accepted / drafts; None when nothing was drafted."""
        if not self.drafts or self.accepted_tokens is None:
            return None
        return 1 + self.accepted_tokens / self.drafts

    @property
    def engines_disagree(self) -> bool:
        """Whether one engine accepts drafts and another drafts in vain."""
        shares = [accepted / drafts for _, drafts, accepted in self.drafts_by_engine if drafts]
        return len(shares) > 1 and min(shares) == 0 < max(shares)


Samples = dict[str, list[tuple[dict[str, str], float]]]


def read_metrics(text: str) -> Scrape:
    """Return the facts of a scrape; text that is no Prometheus text has none."""
    samples = _samples(text)

    def total(name: str) -> float | None:
        values = [value for _, value in samples.get(name, []) if isfinite(value)]
        return sum(values) if values else None

    recorder = [value for _, value in samples.get(RECORDER_ON, [])]
    return Scrape(
        kv_cache_tokens=_kv_cache_tokens(labels for labels, _ in samples.get(CACHE_CONFIG, [])),
        drafts=total(DRAFTS),
        draft_tokens=total(DRAFT_TOKENS),
        accepted_tokens=total(ACCEPTED_TOKENS),
        preemptions=total(PREEMPTIONS),
        requests_by_engine=_requests_by_engine(samples),
        recorder_on=min(recorder) == 1.0 if recorder else None,
        drafts_by_engine=_by_engine(samples),
    )


def read_histogram(text: str, family: str) -> dict[float, float]:
    """Return cumulative counts by upper edge, summed over engines; empty where there are none."""
    counts: dict[float, float] = {}
    name = f"{family}_bucket"
    for labels, value in _samples(text, (name,)).get(name, []):
        edge = float(labels["le"])
        counts[edge] = counts.get(edge, 0.0) + value
    return counts


def histograms_in(text: str) -> list[str]:
    """Return the names of vLLM's histograms in a scrape."""
    pattern = r"^# TYPE (vllm:\S+) histogram$"
    return re.findall(pattern, text, re.MULTILINE)


def _samples(text: str, wanted: tuple[str, ...] = (*_SCALARS, RECORDER_ON)) -> Samples:
    """Return the samples of some families; a page's other families cost time only."""
    lines = [
        line
        for line in text.splitlines()
        if line.startswith(wanted) or (line.startswith("# TYPE ") and line[7:].startswith(wanted))
    ]
    # Imported here because it takes a third of the time of commands that never read metrics.
    from prometheus_client.parser import text_string_to_metric_families

    found: Samples = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if not sample.name.endswith("_created") and name in wanted:
                    found.setdefault(name, []).append((dict(sample.labels), float(sample.value)))
    except (ValueError, KeyError, IndexError):
        return {}
    return found


def _kv_cache_tokens(all_labels: Iterable[dict[str, str]]) -> int | None:
    """Return the KV cache in tokens, as the engine says or from its blocks."""
    sizes = []
    for labels in all_labels:
        told, blocks, size = (
            _whole(labels.get(name, ""))
            for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
        )
        if told is not None:
            sizes.append(told)
        elif blocks is not None and size is not None:
            sizes.append(blocks * size)
    return min(sizes, default=None)


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _requests_by_engine(samples: Samples) -> tuple[tuple[str, float | None, float | None], ...]:
    running, waiting = (
        {labels.get("engine", ""): n for labels, n in samples.get(name, []) if isfinite(n)}
        for name in (RUNNING, WAITING)
    )
    named = {
        labels.get("engine", "")
        for name in (RUNNING, WAITING)
        for labels, _ in samples.get(name, [])
    }
    return tuple((engine, running.get(engine), waiting.get(engine)) for engine in sorted(named))


def _by_engine(samples: Samples) -> tuple[tuple[str, float, float], ...]:
    accepted = {labels.get("engine", ""): n for labels, n in samples.get(ACCEPTED_TOKENS, [])}
    return tuple(
        (engine, n, accepted.get(engine, 0.0))
        for engine, n in ((labels.get("engine", ""), n) for labels, n in samples.get(DRAFTS, []))
    )
