"""The recorder as vLLM loads it: entry point group ``vllm.stat_logger_plugins``.

It runs in the API server's process, once per engine step. vLLM computes its statistics for any
logger of this group, also under ``--disable-log-stats``; put it on every arm or on none.
"""

import os
from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from specschedule.engine.recording import Recording


class StepRecorder(AggregateStatLoggerBase):
    """One recorder for all engines of a server; off unless the environment turns it on."""

    def __init__(self, vllm_config: Any, *_: Any, **__: Any) -> None:
        self._recording = Recording(os.environ, vllm_config)

    def record(self, *given: Any, **named: Any) -> None:
        """Record a step; whatever a version of vLLM passes, nothing is raised."""
        self._recording.record(*given, **named)

    def log_engine_initialized(self) -> None:
        """Say nothing: the engine's log is evidence."""
