"""A predicted interval holds what the engine does about as often as it says."""

import numpy as np

from specschedule.core.tuner import propose
from specschedule.core.view import Search
from tests.tuner.published import EAGLE3, length, search
from tests.tuner.screened import Step, screened

POINTS = (1, 4, 16, 64)
MOST = 4
WORLDS = 15


def world(seed: int) -> Step:
    """Return an engine drawn by chance: a roofline, a drafter, and each setting's own."""
    chance = np.random.default_rng([seed, 7])
    base, knee = chance.uniform(4e-3, 2e-2), chance.uniform(8, 150)
    drafter, each = chance.uniform(0.02, 0.25), chance.uniform(0.01, 0.12)
    own = {(b, k): chance.normal(0, 0.015) for b in range(1, 65) for k in range(MOST + 1)}

    def step(batch: int, tokens: int, context: int | None) -> float:
        verified = max(1.0, batch * (tokens + 1) / knee)
        drafts = drafter + each * tokens if tokens else 0.0
        return float(base * (verified + drafts) * np.exp(own[batch, tokens]))

    return step


def wanted(seed: int) -> Search:
    return search(POINTS, MOST, seed=seed)


def test_intervals_of_95_percent_hold_the_truth_nearly_that_often():
    inside = []
    for seed in range(WORLDS):
        step = world(seed)
        noise = (0.01, 0.02, 0.03)[seed % 3]
        cells, _ = screened(wanted(seed), step, noise=noise, seed=seed)
        found = propose(wanted(seed), cells)
        told = {(p.at, p.tokens): p for c in found.candidates for p in c.predicted}
        for (batch, tokens), predicted in told.items():
            truth = 1000 * step(batch, tokens, None) / length(EAGLE3, tokens)
            inside.append(predicted.tpot_ms.low <= truth <= predicted.tpot_ms.high)
    assert len(inside) > 100
    # A screen has few repeats to know its noise from, so its intervals are somewhat too narrow.
    assert 0.8 <= np.mean(inside) <= 0.98, np.mean(inside)
