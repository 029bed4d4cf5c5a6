"""How long a step keeps the device: with the target's forward pass, and with the drafter's.

In screening launches only. vLLM 0.32 has a collector of such times in one of its model runners,
but only dummy runs fill it (``StepTimingCollector``), so the two calls that either runner makes in
a step are timed around: ``execute_model`` of the runner and ``propose`` of its drafter. On a GPU by
events in the stream, for which nobody waits; what passes between two of them is the work queued
there and, where the host is slower, the stream's waiting for it. A CPU computes within the call.
Sampling is in neither.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from specschedule.engine import settings
from specschedule.engine.lines import printed

SAY_SECONDS = 10.0
"""Between two lines of the log: the last one that is read stands for the whole launch."""
MOST_SHAPES = 256
"""Shapes of steps that are told apart; steps of a further one are not counted."""
_MOST_WAITING = 1024

Shape = tuple[int, int]
"""Requests of a step, and draft tokens that it verifies."""


class Clock(Protocol):
    """What marks moments of a device's work."""

    name: str

    def mark(self) -> Any:
        """Return a mark of this moment."""

    def passed(self, mark: Any) -> bool:
        """Say whether the device has come by a mark."""

    def milliseconds(self, first: Any, then: Any) -> float:
        """Return the time between two marks that it has come by."""


class HostClock:
    """For a device that computes within the call."""

    name = "host"

    def mark(self) -> float:
        """Return seconds."""
        return time.perf_counter()

    def passed(self, _: float) -> bool:
        """Say yes."""
        return True

    def milliseconds(self, first: float, then: float) -> float:
        """Return the time between."""
        return (then - first) * 1000.0


class StreamClock:
    """For a GPU, which works off what the host queues in a stream.

    Args:
        torch: The module.
    """

    name = "stream"

    def __init__(self, torch: Any) -> None:
        self._event = torch.cuda.Event

    def mark(self) -> Any:
        """Queue an event in the current stream."""
        event = self._event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        """Say whether the event has happened, without waiting for it."""
        return bool(mark.query())

    def milliseconds(self, first: Any, then: Any) -> float:
        """Return the time between two events."""
        return float(first.elapsed_time(then))


@dataclass
class _Step:
    shape: Shape
    target: tuple[Any, Any]
    drafter: tuple[Any, Any] | None = None


@dataclass
class _Sum:
    steps: int = 0
    target: float = 0.0
    drafter: float = 0.0


class DeviceTimes:
    """Sums by the shape of a step, without prefills.

    A fault in here never reaches the engine: it ends the timing, and is told.

    Args:
        clock: Of the device.
        say: Takes what is to be told, as plain data.
        now: Seconds, for how often that is.
    """

    def __init__(
        self,
        clock: Clock,
        say: Callable[[Mapping[str, Any]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._say, self._now = clock, say, now
        self._step: _Step | None = None
        self._waiting: deque[_Step] = deque(maxlen=_MOST_WAITING)
        self._sums: dict[Shape, _Sum] = {}
        self._said_at = now()
        self._off = False

    def of_target(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``execute_model`` of a runner with its time taken."""

        def timed(scheduled: Any, *given: Any, **named: Any) -> Any:
            shape = None if named.get("dummy_run") else self._safely(_shape, scheduled)
            self._safely(self._close)
            first = self._safely(self._clock.mark) if shape else None
            done = call(scheduled, *given, **named)
            if shape and not self._off:
                then = self._safely(self._clock.mark)
                self._step = _Step(shape, (first, then))
            return done

        return timed

    def of_drafter(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``propose`` of a drafter with its time taken."""

        def timed(*given: Any, **named: Any) -> Any:
            step = self._step
            first = self._safely(self._clock.mark) if step else None
            done = call(*given, **named)
            if step and not self._off:
                step.drafter = (first, self._safely(self._clock.mark))
            return done

        return timed

    def plain(self) -> dict[str, Any]:
        """Return the means: requests, draft tokens, steps, target (ms), drafter (ms)."""
        rows = [
            [*shape, s.steps, round(s.target / s.steps, 3), round(s.drafter / s.steps, 3)]
            for shape, s in sorted(self._sums.items())
        ]
        return {"clock": self._clock.name, "steps": rows}

    def _close(self) -> None:
        """Take the step before, and count those that the device is done with."""
        if self._step is not None:
            self._waiting.append(self._step)
            self._step = None
        while self._waiting and self._clock.passed(_last(self._waiting[0])):
            self._count(self._waiting.popleft())
        if self._sums and self._now() - self._said_at >= SAY_SECONDS:
            self._said_at = self._now()
            self._say(self.plain())

    def _count(self, step: _Step) -> None:
        if step.shape not in self._sums and len(self._sums) >= MOST_SHAPES:
            return
        into = self._sums.setdefault(step.shape, _Sum())
        into.steps += 1
        into.target += self._clock.milliseconds(*step.target)
        if step.drafter is not None:
            into.drafter += self._clock.milliseconds(*step.drafter)

    def _safely(self, call: Callable[..., Any], *given: Any) -> Any:
        if self._off:
            return None
        try:
            return call(*given)
        except Exception as fault:
            self._off = True
            self._step = None
            self._say(absent(f"the timing failed: {fault}"))
            return None


def absent(why: str) -> dict[str, str]:
    """Return what is told where there are no times."""
    return {"absent": why}


def watch(worker: Any, torch: Any) -> None:
    """Time the steps of a worker from now on: once it has warmed up, as capture allows no events.

    Args:
        worker: vLLM's worker; any of its attributes may be missing.
        torch: The module.
    """
    runner: Any = getattr(worker, "model_runner", None)
    if not callable(getattr(runner, "execute_model", None)):
        return _tell(absent("this worker has no model runner whose steps could be timed"))
    kind = str(getattr(getattr(worker, "device", None), "type", "unknown"))
    clock: Clock
    if kind == "cuda":
        clock = StreamClock(torch)
    elif kind == "cpu":
        clock = HostClock()
    else:
        return _tell(absent(f"there is no clock for a device of type {kind}"))
    times = DeviceTimes(clock, _tell)
    runner.execute_model = times.of_target(runner.execute_model)
    drafter: Any = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    if callable(getattr(drafter, "propose", None)):
        drafter.propose = times.of_drafter(drafter.propose)
    return None


def _tell(told: Mapping[str, Any]) -> None:
    printed(settings.DEVICE_LINE, told)


def _last(step: _Step) -> Any:
    return (step.drafter or step.target)[1]


def _shape(scheduled: Any) -> Shape | None:
    """Return the shape of a step; None where it prefills, or does nothing.

    A request's part of a step that only decodes is its last token and the drafts it verifies.
    """
    tokens = scheduled.num_scheduled_tokens
    drafts = scheduled.scheduled_spec_decode_tokens
    drafted = {request: len(found) for request, found in drafts.items()}
    if not tokens or any(n > 1 + drafted.get(request, 0) for request, n in tokens.items()):
        return None
    return len(tokens), sum(drafted.values())
