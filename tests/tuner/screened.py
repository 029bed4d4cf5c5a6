"""A screen carried out in no time, on an engine that is a function."""

from collections.abc import Callable, Sequence

import numpy as np

from specschedule.core.evidence import Cell
from specschedule.core.screen import Next, allowance, next_windows
from specschedule.core.view import Search
from tests.tuner.published import EAGLE3, cell

Step = Callable[[int, int, int | None], float]
"""Seconds of a step, by requests in flight, K and context."""


def screened(
    wanted: Search,
    step: Step,
    *,
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
    survival: Sequence[float] = EAGLE3,
) -> tuple[list[Cell], Next]:
    """Return the windows that a probe measures, in order, and why it stopped.

    Args:
        wanted: What is tuned.
        step: The engine.
        noise: Standard deviation of the logarithm of each window's step time.
        drift: Share by which the machine has become slower once the budget is spent.
        seed: Of the noise.
        survival: Acceptance by draft position.
    """
    chance = np.random.default_rng(seed)
    cells: list[Cell] = []
    while asks := (found := next_windows(wanted, cells)).asks:
        for ask in asks:
            seconds = step(*ask.setting) * float(np.exp(chance.normal(0, noise)))
            seconds *= 1 + drift * len(cells) / allowance(wanted)
            cells.append(cell(ask.concurrency, ask.tokens, seconds, survival, context=ask.context))
        assert len(cells) < 200
    return cells, found
