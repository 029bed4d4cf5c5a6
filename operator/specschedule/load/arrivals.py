"""When requests of an open loop are due: drawn beforehand, or read from a recorded trace.

A plan is a cycle: the window is one whole turn, the time before it is the end of the turn
before, and sending goes on with the next turn until the last counted request is over. So the
server never sees a ramp at the start or a drain at the end.
"""

import bisect
import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come."""

    at: float
    """Seconds since the start of the turn."""
    prompt_tokens: int | None = None
    """Prompt length, where the trace gives one."""
    output_tokens: int | None = None
    """Output length, where the trace gives one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the cycle."""

    seconds: float
    """Length of a turn."""
    arrivals: tuple[Arrival, ...]
    """In time order, all within [0, seconds)."""

    def stream(self, lead: float) -> Iterator[tuple[float, int, Arrival]]:
        """Yield (due, place, arrival) for ever, from ``lead`` seconds before the window.

        Due times are seconds since the window opens. Places number the arrivals from the first one
        of the turn that starts at 0, whatever the lead; that turn holds the counted ones.
        """
        times = [arrival.at for arrival in self.arrivals]
        turn = -math.ceil(lead / self.seconds)
        skip = bisect.bisect_left(times, -lead - turn * self.seconds)
        for number in itertools.count(turn):
            for place in range(skip, len(times)):
                due = number * self.seconds + times[place]
                yield due, number * len(times) + place, self.arrivals[place]
            skip = 0


def draw(rate: float, requests: int, seed: int, *, peak: float | None = None) -> Turn:
    """Draw a turn of exactly ``requests`` arrivals of a Poisson process, given their number.

    Given how many there are, arrivals of a Poisson process are independent and uniform, so
    every seed offers exactly the rate asked for.

    Args:
        rate: Requests per second (the lowest ones, with ``peak``).
        requests: Arrivals in the turn.
        seed: Equal seeds give equal arrivals.
        peak: Rate half-way; the rate rises evenly to it and falls back.
    """
    random_numbers = random.Random(f"arrivals/{seed}")
    top = rate if peak is None else peak
    seconds = requests / ((rate + top) / 2)
    times = sorted(
        seconds * _triangle_quantile(random_numbers.random(), rate, top) for _ in range(requests)
    )
    return Turn(seconds, tuple(Arrival(at) for at in times))


def _triangle_quantile(u: float, base: float, top: float) -> float:
    """Return the time in [0, 1] by which a share u of arrivals has come.

    The rate goes from base at 0 to top at 1/2 and back.
    """
    if u > 0.5:
        return 1.0 - _triangle_quantile(1.0 - u, base, top)
    # Solve base*t + (top-base)*t^2 = u * (base+top)/2 for t in [0, 1/2].
    mass = u * (base + top) / 2
    return 2 * mass / (base + math.sqrt(base * base + 4 * (top - base) * mass))


def read_trace(path: Path) -> Turn:
    """Read a trace: JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length``.

    This is the form in which request traces are published (Mooncake's). Other fields are
    ignored. The turn ends one mean gap after the last arrival.

    Raises:
        ValueError: A line is not such an object, or fewer than two arrivals are there.
    """
    arrivals = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            arrivals.append(
                Arrival(
                    float(entry["timestamp"]) / 1000,
                    int(entry["input_length"]),
                    max(2, int(entry["output_length"])),
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number}: needs timestamp (ms), input_length and output_length: {error}"
            ) from error
    arrivals.sort(key=lambda arrival: arrival.at)
    if len(arrivals) < 2 or arrivals[-1].at == arrivals[0].at:
        raise ValueError(f"{path}: needs at least two arrivals at different times")
    first = arrivals[0].at
    span = arrivals[-1].at - first
    shifted = tuple(Arrival(a.at - first, a.prompt_tokens, a.output_tokens) for a in arrivals)
    return Turn(span + span / (len(shifted) - 1), shifted)
