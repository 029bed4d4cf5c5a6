"""vLLM's Prometheus metrics: names, labels and buckets of 0.32, counted by the simulated engine."""

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from specschedule.sim.engine import Engine, Output, Request
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
_ITERATION = tuple(float(edge) for edge in (1, *(2**power for power in range(3, 15))))

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts observations between fixed edges."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; an edge belongs to the bucket below it."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper edge."""
        seen, out = 0, []
        for edge, count in zip(
            (*map(str, map(float, self.edges)), "+Inf"), self.counts, strict=True
        ):
            seen += count
            out.append((edge, float(seen)))
        return out


class EngineMetrics:
    """Everything that /metrics says about one engine."""

    def __init__(self, launch: Launch, engine: Engine) -> None:
        self._launch, self._engine = launch, engine
        self._labels = {"model_name": launch.served[0], "engine": "0"}
        edges = launch.buckets
        latency = edges.get("request_latency", _LATENCY)
        inter_token = edges.get("inter_token_latency", _INTER_TOKEN)
        tokens = edges.get("request_tokens", _token_edges(launch.max_model_len))
        self.first_token = Histogram(edges.get("time_to_first_token", _FIRST_TOKEN))
        self.inter_token = Histogram(inter_token)
        self.per_token = Histogram(inter_token)
        self.end_to_end = Histogram(latency)
        self.queue = Histogram(latency)
        self.prefill = Histogram(latency)
        self.decode = Histogram(latency)
        self.inference = Histogram(latency)
        self.iteration = Histogram(edges.get("iteration_tokens", _ITERATION))
        self.prompt_tokens = Histogram(tokens)
        self.generation_tokens = Histogram(tokens)
        self.max_tokens = Histogram(tokens)
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._started = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def step(self, outputs: Sequence[Output], now: float) -> None:
        """Count the outputs of a step that ended now."""
        produced = 0
        for output in outputs:
            request = output.request
            produced += output.tokens
            if math.isnan(output.before):
                self.first_token.observe(now - request.arrived)
                produced += request.prompt_tokens - request.cached
            else:
                self.inter_token.observe(now - output.before)
        if outputs:
            self.iteration.observe(produced)

    def end(self, request: Request, reason: str, now: float, *, max_tokens: int) -> None:
        """Count a request that ended for a reason of ``FINISHED_REASONS``."""
        self.finished[reason] += 1
        self.end_to_end.observe(now - request.arrived)
        self.prompt_tokens.observe(request.prompt_tokens)
        self.generation_tokens.observe(request.produced)
        self.max_tokens.observe(max_tokens)
        if request.produced:
            decode = request.last_token_at - request.first_token_at
            self.decode.observe(decode)
            self.per_token.observe(decode / (request.produced - 1) if request.produced > 1 else 0)
            self.prefill.observe(request.first_token_at - request.scheduled_at)
            self.queue.observe(request.scheduled_at - request.arrived)
            self.inference.observe(request.last_token_at - request.scheduled_at)

    def text(self) -> bytes:
        """Return the Prometheus text form."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, for the registry."""
        engine, counts = self._engine, self._engine.counts
        yield self._gauge(
            "num_requests_running",
            "Number of requests in model execution batches.",
            len(engine.running),
        )
        yield self._gauge(
            "num_requests_waiting",
            "Number of requests waiting to be processed.",
            len(engine.waiting),
        )
        yield self._labelled(
            GaugeMetricFamily,
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            "reason",
            {"capacity": len(engine.waiting), "deferred": 0},
        )
        yield self._labelled(
            GaugeMetricFamily,
            "engine_sleep_state",
            "Engine sleep state.",
            "sleep_state",
            {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
        )
        yield self._gauge(
            "kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            engine.cache.usage,
        )
        yield from self._counters()
        if engine.settings.speculative:
            yield self._counter(
                "spec_decode_num_drafts", "Number of spec decoding drafts.", counts.drafts
            )
            yield self._counter(
                "spec_decode_num_draft_tokens", "Number of draft tokens.", counts.draft_tokens
            )
            yield self._counter(
                "spec_decode_num_accepted_tokens", "Number of accepted tokens.", counts.accepted
            )
            yield self._labelled(
                CounterMetricFamily,
                "spec_decode_num_accepted_tokens_per_pos",
                "Accepted tokens per draft position.",
                "position",
                {str(at): count for at, count in enumerate(counts.accepted_at)},
            )
        yield from self._histograms()
        config = {"engine": "0", **{k: str(v) for k, v in cache_config(self._launch).items()}}
        yield self._info(config)

    def _counters(self) -> Iterator[Metric]:
        counts = self._engine.counts
        computed = counts.prompt_tokens - counts.prefix_hits
        for name, text, value in (
            (
                "prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                counts.prefix_queries,
            ),
            (
                "prefix_cache_hits",
                "Prefix cache hits, in terms of number of cached tokens.",
                counts.prefix_hits,
            ),
            (
                "num_preemptions",
                "Cumulative number of preemption from the engine.",
                counts.preemptions,
            ),
            ("prompt_tokens", "Number of prefill tokens processed.", counts.prompt_tokens),
            (
                "prompt_tokens_cached",
                "Number of cached prompt tokens (local + external).",
                counts.prefix_hits,
            ),
            ("generation_tokens", "Number of generation tokens processed.", counts.generated),
        ):
            yield self._counter(name, text, value)
        yield self._labelled(
            CounterMetricFamily,
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            "source",
            {"local_compute": max(0, computed), "local_cache_hit": counts.prefix_hits},
        )
        yield self._labelled(
            CounterMetricFamily,
            "request_success",
            "Count of successfully processed requests.",
            "finished_reason",
            self.finished,
        )

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            ("request_prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens),
            (
                "request_generation_tokens",
                "Number of generation tokens processed.",
                self.generation_tokens,
            ),
            (
                "iteration_tokens_total",
                "Histogram of number of tokens per engine_step.",
                self.iteration,
            ),
            (
                "request_params_max_tokens",
                "Histogram of the max_tokens request parameter.",
                self.max_tokens,
            ),
            (
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                self.first_token,
            ),
            (
                "inter_token_latency_seconds",
                "Histogram of inter-token latency in seconds.",
                self.inter_token,
            ),
            (
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                self.per_token,
            ),
            (
                "e2e_request_latency_seconds",
                "Histogram of e2e request latency in seconds.",
                self.end_to_end,
            ),
            (
                "request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
                self.queue,
            ),
            (
                "request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
                self.inference,
            ),
            (
                "request_prefill_time_seconds",
                "Histogram of time spent in PREFILL phase for request.",
                self.prefill,
            ),
            (
                "request_decode_time_seconds",
                "Histogram of time spent in DECODE phase for request.",
                self.decode,
            ),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.total)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value, created=self._started)
        return family

    def _labelled(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        label: str,
        values: Mapping[str, float],
    ) -> Metric:
        family = kind(f"vllm:{name}", text, labels=[*self._labels, label])
        for key, value in values.items():
            labels = [*self._labels.values(), key]
            if isinstance(family, CounterMetricFamily):
                family.add_metric(labels, value, created=self._started)
            else:
                family.add_metric(labels, value)
        return family

    def _info(self, config: Mapping[str, str]) -> Metric:
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(config),
        )
        family.add_metric(list(config.values()), 1)
        return family


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
