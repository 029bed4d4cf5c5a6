"""What the recorder does with each step, and how it keeps its own faults from the engine."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from specschedule.engine import page, settings
from specschedule.engine.goodput import OUTCOMES, outcome
from specschedule.engine.ring import Ring
from specschedule.engine.stepcounts import StepCounts, planned
from specschedule.engine.steps import step_line

# Under vLLM's own logger, so that it is written where and how the engine's lines are.
_log = logging.getLogger("vllm.specschedule.recorder")

VLLM_LOG = "vllm.v1.metrics.loggers"
"""vLLM's logger that writes a line for each step, and a table of graph modes now and then."""
_STEP_LINES = ("%sIteration(", "**CUDAGraph ")
"""How they begin. A busy engine writes megabytes of them a minute, and a kubelet then drops the
log's beginning: evidence would be lost to what the counters tell as well."""


class Recording:
    """Keeps steps and counts good requests, as far as the environment turns each on.

    Nothing here ever raises: the first fault switches it off, is logged once, is told by
    ``/facts``, and sets ``specschedule_engine_recorder_on`` to 0, so that counters which no
    longer move are not read as traffic that stopped.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        vllm_config: Any,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.finding: str | None = None
        """Why it switched itself off."""
        self._ring: Ring | None = None
        self._goodput: Goodput | None = None
        self._counts: StepCounts | None = None
        self._on: Gauge | None = None
        self._last: dict[int, float] = {}
        try:
            self._start(environment, vllm_config, registry)
        except Exception as fault:
            self._off(fault)

    @property
    def on(self) -> bool:
        """Whether anything is recorded."""
        parts = (self._ring, self._goodput, self._counts)
        return self.finding is None and any(part is not None for part in parts)

    def record(self, *given: Any, **named: Any) -> None:
        """Take what vLLM hands to a statistics logger for one step."""
        if not self.on:
            return
        try:
            self._record(*given, **named)
        except Exception as fault:
            self._off(fault)

    def _start(
        self, environment: Mapping[str, str], vllm_config: Any, registry: CollectorRegistry
    ) -> None:
        port = settings.port(environment, settings.RECORDER_PORT)
        limits = settings.limits(environment)
        counted = settings.told(environment, settings.STEPS)
        if port is None and not limits.given and not counted:
            return
        self._on = Gauge(
            "specschedule_engine_recorder_on",
            "1 while the recorder counts, 0 once it has switched itself off.",
            registry=registry,
            multiprocess_mode="min",
        )
        self._on.set(1)
        if limits.given:
            self._goodput = Goodput(limits, _model(vllm_config), registry)
        if counted and (why := _torn(vllm_config)) is not None:
            _log.warning("Steps are not counted: %s", why)
        elif counted:
            self._counts = StepCounts(planned(vllm_config), _model(vllm_config), registry)
            logging.getLogger(VLLM_LOG).addFilter(_no_step_line)
        if port is not None:
            ring = Ring(settings.steps_kept(environment))
            page.serve(port, self._facts, ring)
            self._ring = ring

    def _record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
        **_: Any,
    ) -> None:
        if self._goodput is not None and iteration_stats is not None:
            self._goodput.count(iteration_stats, engine_idx)
        if self._ring is None and self._counts is None:
            return
        if scheduler_stats is None and iteration_stats is None:
            return
        told = step_line(scheduler_stats, iteration_stats)
        if self._counts is not None:
            self._counts.count(told, engine_idx)
        if self._ring is not None:
            now = time.monotonic()
            line = {"at": round(now, 6), "engine": engine_idx}
            if engine_idx in self._last:
                line["sinceLastMs"] = round((now - self._last[engine_idx]) * 1000.0, 3)
            self._last[engine_idx] = now
            self._ring.append({**line, **told})

    def _facts(self) -> dict[str, Any]:
        return {"kind": "recorder", "on": self.on, "finding": self.finding}

    def _off(self, fault: Exception) -> None:
        self.finding = f"{type(fault).__name__}: {fault}"
        _log.warning("The recorder has switched itself off: %s", self.finding)
        if self._on is not None:
            self._on.set(0)


def _model(config: Any) -> str:
    return str(config.model_config.served_model_name)


def _torn(config: Any) -> str | None:
    """Return why the steps seen here would not be a sequence; None where they are."""
    if getattr(config.parallel_config, "_api_process_count", 1) > 1:
        return "each API server sees some of them (--api-server-count)"
    if config.parallel_config.pipeline_parallel_size > 1:
        return "several are under way at once (--pipeline-parallel-size)"
    return None


def _no_step_line(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_STEP_LINES)


class Goodput:
    """Counters of good requests, every limit at once, beside the engine's own metrics.

    A request that its client gave up never reaches the engine's statistics: it is in no outcome,
    and in ``first_tokens`` if it had got that far.
    """

    def __init__(self, limits: settings.Limits, model: str, registry: CollectorRegistry) -> None:
        self._limits = limits
        self._model = model
        self._requests = Counter(
            "specschedule_engine_requests",
            "Finished requests by outcome: good meets every limit of the SLO at once.",
            ("model_name", "engine", "outcome"),
            registry=registry,
        )
        self._first_tokens = Counter(
            "specschedule_engine_first_tokens",
            "Requests that got their first token.",
            ("model_name", "engine"),
            registry=registry,
        )
        slo = Gauge(
            "specschedule_engine_slo_seconds",
            "The limits that good requests met.",
            ("limit",),
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        for name, value in limits.given.items():
            slo.labels(name).set(value)
        self._start(0)

    def _start(self, engine: int) -> None:
        """Let every series of an engine stand at 0, so that an absent one means no recorder."""
        for name in OUTCOMES:
            self._requests.labels(self._model, str(engine), name)
        self._first_tokens.labels(self._model, str(engine))

    def count(self, iteration: Any, engine: int) -> None:
        """Count what a step finished.

        Args:
            iteration: vLLM's ``IterationStats``.
            engine: Index of the engine.
        """
        started = len(iteration.time_to_first_tokens_iter)
        if started:
            self._first_tokens.labels(self._model, str(engine)).inc(started)
        for finished in iteration.finished_requests:
            result = outcome(finished, self._limits)
            self._requests.labels(self._model, str(engine), result).inc()
