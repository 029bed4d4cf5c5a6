"""When requests of an open loop are due: drawn beforehand, or read from a recorded trace.

A plan is a cycle: the window is one whole turn, the time before it is the end of the turn
before, and sending goes on with the next turn until the last counted request is over. So the
server never sees a ramp at the start or a drain at the end.
"""

import bisect
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specschedule.core import workload
from specschedule.core.workload import digest_of_trace, turn_seconds


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


def read_trace(path: Path, digest: str | None = None) -> Turn:
    """Read the trace in a file, as one turn.

    Args:
        path: The file.
        digest: What it must say; anything else is refused.

    Raises:
        ValueError: It is no trace, or another one.
    """
    # Not read_text: it changes the ends of lines, and with them the digest.
    text = path.read_bytes().decode()
    if digest is not None and (found := digest_of_trace(text)) != digest:
        raise ValueError(
            f"{path}: is {found}, and {digest} was to be replayed: put the trace back as it was "
            "when the run began"
        )
    recorded = workload.read_trace(text, str(path))
    arrivals = tuple(Arrival(each.at, each.prompt_tokens, each.output_tokens) for each in recorded)
    return Turn(turn_seconds(recorded), arrivals)
