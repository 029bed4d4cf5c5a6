"""Our parts with their own time taken, inside a running engine: ``make bench-engine`` loads them.

Each prints the seconds that it has taken so far and in how many steps, after every 32 of them.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from specschedule.engine.context import ContextScheduler
from specschedule.engine.recorder import StepRecorder

EVERY = 32
LINE = "specschedule.bench.timed: "


def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that sums up its time."""
    taken, steps = 0.0, 0

    def then(*given: Any, **named: Any) -> Any:
        nonlocal taken, steps
        began = time.perf_counter()
        done = call(*given, **named)
        taken += time.perf_counter() - began
        steps += 1
        if steps % EVERY == 0:
            told = {"part": part, "seconds": taken, "steps": steps}
            sys.stdout.write(f"{LINE}{json.dumps(told)}\n")
            sys.stdout.flush()
        return done

    return then


class TimedRecorder(StepRecorder):
    """The recorder."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._recording.record = timed("recorder", self._recording.record)  # type: ignore[method-assign]


class TimedScheduler(ContextScheduler):
    """The context-axis scheduler: what it does beside vLLM's own."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.planner.plan = timed("scheduler", self.planner.plan)  # type: ignore[method-assign]
