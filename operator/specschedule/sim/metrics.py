"""vLLM's Prometheus metrics: names, labels and buckets of 0.32, counted by the simulated engine."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from specschedule.engine.stepcounts import StepCounts
from specschedule.sim.engine import Engine, Graphs, Output, Request
from specschedule.sim.launch import Launch
from specschedule.sim.startup import cache_config

_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_FAMILIES: Mapping[str, Sequence[float]] = {
    "request_latency": _LATENCY,
    "time_to_first_token": _FIRST_TOKEN,
    "inter_token_latency": _INTER_TOKEN,
    "iteration_tokens": _ITERATION,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
}
"""Default edges by vLLM's bucket family; ``request_tokens`` depends on the model's length."""

_HISTOGRAMS = (
    ("request_prompt_tokens", "request_tokens", "Number of prefill tokens processed."),
    ("request_generation_tokens", "request_tokens", "Number of generation tokens processed."),
    (
        "iteration_tokens_total",
        "iteration_tokens",
        "Histogram of number of tokens per engine_step.",
    ),
    (
        "request_max_num_generation_tokens",
        "request_tokens",
        "Histogram of maximum number of requested generation tokens.",
    ),
    ("request_params_n", "request_params_n", "Histogram of the n request parameter."),
    (
        "request_params_max_tokens",
        "request_tokens",
        "Histogram of the max_tokens request parameter.",
    ),
    (
        "time_to_first_token_seconds",
        "time_to_first_token",
        "Histogram of time to first token in seconds.",
    ),
    (
        "inter_token_latency_seconds",
        "inter_token_latency",
        "Histogram of inter-token latency in seconds.",
    ),
    (
        "request_time_per_output_token_seconds",
        "inter_token_latency",
        "Histogram of time_per_output_token_seconds per request.",
    ),
    (
        "e2e_request_latency_seconds",
        "request_latency",
        "Histogram of e2e request latency in seconds.",
    ),
    (
        "request_queue_time_seconds",
        "request_latency",
        "Histogram of time spent in WAITING phase for request.",
    ),
    (
        "request_inference_time_seconds",
        "request_latency",
        "Histogram of time spent in RUNNING phase for request.",
    ),
    (
        "request_prefill_time_seconds",
        "request_latency",
        "Histogram of time spent in PREFILL phase for request.",
    ),
    (
        "request_decode_time_seconds",
        "request_latency",
        "Histogram of time spent in DECODE phase for request.",
    ),
    (
        "request_num_preemptions",
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
    ),
    (
        "request_prefill_kv_computed_tokens",
        "request_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
)
"""Histograms: name, bucket family, help."""

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_HIT_SOURCES = ("device", "host", "disk", "p2p", "external_unspecified")


class Histogram:
    """Counts observations between fixed edges."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(map(float, edges))
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; an edge belongs to the bucket below it."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper edge."""
        seen, out = 0, []
        for edge, count in zip((*map(str, self.edges), "+Inf"), self.counts, strict=True):
            seen += count
            out.append((edge, float(seen)))
        return out


class EngineMetrics:
    """Everything that /metrics says about one engine."""

    def __init__(self, launch: Launch, engine: Engine) -> None:
        self._launch, self._engine = launch, engine
        self._labels = {"model_name": launch.served[0], "engine": "0"}
        tokens = {"request_tokens": _token_edges(launch.max_model_len)}
        edges = {**_FAMILIES, **tokens, **launch.buckets}
        self._histograms = {name: Histogram(edges[family]) for name, family, _ in _HISTOGRAMS}
        self._finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._started = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._steps: StepCounts | None = None
        self._drafts = (0, 0)
        """Draft tokens verified and accepted before the step."""
        if launch.counts_steps:
            on = Gauge("specschedule_engine_recorder_on", "As in vLLM.", registry=self._registry)
            on.set(1)
            name = self._labels["model_name"]
            self._steps = StepCounts(lambda _: engine.drafted, name, self._registry)

    def step(self, outputs: Sequence[Output], now: float) -> None:
        """Count a step that ended now, and its outputs."""
        if self._steps is not None:
            self._steps.count(self._line(outputs, now), 0)
        if not outputs:
            return
        first = self._histograms["time_to_first_token_seconds"]
        later = self._histograms["inter_token_latency_seconds"]
        tokens = 0
        for output in outputs:
            request = output.request
            tokens += output.tokens
            if math.isnan(output.before):
                first.observe(now - request.arrived)
                tokens += request.prompt_tokens - request.cached
            else:
                later.observe(now - output.before)
        self._histograms["iteration_tokens_total"].observe(tokens)

    def _line(self, outputs: Sequence[Output], now: float) -> dict[str, object]:
        """Return what vLLM would tell the recorder about the step."""
        step, counts, (verified, accepted) = self._engine.step, self._engine.counts, self._drafts
        assert step is not None, "a step has ended"
        self._drafts = counts.draft_tokens, counts.accepted
        graphs = self._engine.settings.graphs
        waited = [now - output.before for output in outputs if not math.isnan(output.before)]
        line: dict[str, object] = {
            "batchSize": step.decoding + (step.prefill > 0),
            "prefills": int(step.prefill > 0),
            "draftTokens": counts.draft_tokens - verified,
            "acceptedTokens": counts.accepted - accepted,
            "stepMs": min(waited) * 1e3 if waited else None,
        }
        if self._launch.tells_graphs:
            mixed = step.prefill > 0 and graphs is Graphs.FULL
            line["graphMode"] = Graphs.PIECEWISE.value if mixed else graphs.value
        return {name: value for name, value in line.items() if value is not None}

    def end(self, request: Request, reason: str, now: float, *, max_tokens: int) -> None:
        """Count a request that ended for a reason of ``FINISHED_REASONS``."""
        self._finished[reason] += 1
        seen = {
            "e2e_request_latency_seconds": now - request.arrived,
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.produced,
            "request_max_num_generation_tokens": request.produced,
            "request_params_n": 1,
            "request_params_max_tokens": max_tokens,
            "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - request.cached,
        }
        if request.produced:
            decode = request.last_token_at - request.first_token_at
            seen |= {
                "request_decode_time_seconds": decode,
                "request_time_per_output_token_seconds": decode / max(1, request.produced - 1),
                "request_prefill_time_seconds": request.first_token_at - request.scheduled_at,
                "request_queue_time_seconds": request.scheduled_at - request.arrived,
                "request_inference_time_seconds": request.last_token_at - request.scheduled_at,
            }
        for name, value in seen.items():
            self._histograms[name].observe(value)

    def text(self) -> bytes:
        """Return the Prometheus text form."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, for the registry."""
        yield from self._gauges()
        yield from self._counters()
        if self._engine.settings.speculative:
            yield from self._speculative()
        for name, _, text in _HISTOGRAMS:
            histogram = self._histograms[name]
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.total)
            family.add_sample(f"vllm:{name}_created", self._labels, self._started)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        running, waiting = len(engine.running), len(engine.waiting)
        yield self._gauge(
            "num_requests_running", "Number of requests in model execution batches.", running
        )
        yield self._gauge(
            "num_requests_waiting", "Number of requests waiting to be processed.", waiting
        )
        yield self._gauge(
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            {"capacity": waiting, "deferred": 0},
            "reason",
        )
        yield self._gauge(
            "engine_sleep_state",
            "Engine sleep state.",
            {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
            "sleep_state",
        )
        yield self._gauge(
            "kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            engine.cache.usage,
        )
        config = {"engine": "0", **{k: str(v) for k, v in cache_config(self._launch).items()}}
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(config),
        )
        family.add_metric(list(config.values()), 1)
        yield family

    def _counters(self) -> Iterator[Metric]:
        counts = self._engine.counts
        hits, queries = counts.prefix_hits, counts.prefix_queries
        nowhere = dict.fromkeys(_HIT_SOURCES[1:], 0)
        sources = {
            "local_compute": max(0, counts.prompt_tokens - hits),
            "local_cache_hit": hits,
            "external_kv_transfer": 0,
        }
        tokens = "in terms of number of"
        for name, text, value, label in (
            (
                "prefix_cache_queries",
                f"Prefix cache queries, {tokens} queried tokens.",
                queries,
                "",
            ),
            ("prefix_cache_hits", f"Prefix cache hits, {tokens} cached tokens.", hits, ""),
            ("external_prefix_cache_queries", "External prefix cache queries.", 0, ""),
            ("external_prefix_cache_hits", "External prefix cache hits.", 0, ""),
            ("mm_cache_queries", f"Multi-modal cache queries, {tokens} queried items.", 0, ""),
            ("mm_cache_hits", f"Multi-modal cache hits, {tokens} cached items.", 0, ""),
            (
                "num_preemptions",
                "Cumulative number of preemption from the engine.",
                counts.preemptions,
                "",
            ),
            ("prompt_tokens", "Number of prefill tokens processed.", counts.prompt_tokens, ""),
            ("prompt_tokens_by_source", "Number of prompt tokens by source.", sources, "source"),
            (
                "prompt_tokens_cached",
                "Number of cached prompt tokens (local + external).",
                hits,
                "",
            ),
            (
                "prompt_tokens_cached_by_source",
                "Prefix-cache hit tokens by the cache tier that supplied them.",
                {"device": hits, **nowhere},
                "source",
            ),
            ("generation_tokens", "Number of generation tokens processed.", counts.generated, ""),
            (
                "request_success",
                "Count of successfully processed requests.",
                self._finished,
                "finished_reason",
            ),
        ):
            yield self._counter(name, text, value, label)
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            labels=["model_name", "reason"],
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.add_metric([self._labels["model_name"], reason], 0, created=self._started)
        yield rejections

    def _speculative(self) -> Iterator[Metric]:
        counts = self._engine.counts
        yield self._counter(
            "spec_decode_num_drafts", "Number of spec decoding drafts.", counts.drafts
        )
        yield self._counter(
            "spec_decode_num_draft_tokens", "Number of draft tokens.", counts.draft_tokens
        )
        yield self._counter(
            "spec_decode_num_accepted_tokens", "Number of accepted tokens.", counts.accepted
        )
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens per draft position.",
            {str(at): count for at, count in enumerate(counts.accepted_at)},
            "position",
        )

    def _gauge(
        self, name: str, text: str, value: float | Mapping[str, float], label: str = ""
    ) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=self._names(label))
        for labels, one in self._samples(value):
            family.add_metric(labels, one)
        return family

    def _counter(
        self, name: str, text: str, value: float | Mapping[str, float], label: str = ""
    ) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=self._names(label))
        for labels, one in self._samples(value):
            family.add_metric(labels, one, created=self._started)
        return family

    def _names(self, label: str) -> list[str]:
        return [*self._labels, label] if label else list(self._labels)

    def _samples(self, value: float | Mapping[str, float]) -> Iterator[tuple[list[str], float]]:
        """Yield the label values and value of each sample; a mapping has one more label."""
        if isinstance(value, Mapping):
            for key, one in value.items():
                yield [*self._labels.values(), key], one
        else:
            yield list(self._labels.values()), value


def _token_edges(largest: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, ... up to the model's length."""
    edges: list[float] = []
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > largest:
                return tuple(edges)
            edges.append(float(factor * power))
        power *= 10
