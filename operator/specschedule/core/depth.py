"""Whether steps depend on the context at all: what a depth sweep says.

Settings that were measured at two contexts tell, beyond what chance explains: on a noisy machine
single windows differ though nothing depends on anything.
"""

from itertools import combinations
from math import expm1, log, sqrt

import numpy as np
from scipy.special import stdtrit

from specschedule.core.cost import noise
from specschedule.core.sweep import Sweep

CHANCE = 0.05
"""Chance that decode which is flat is said to depend on the context, over all comparisons."""


def flat(found: Sweep, zone: float) -> str | None:
    """Say why contexts are not told apart; None where steps depend on them, or one context is.

    Args:
        found: Windows, with their contexts.
        zone: Share by which steps may change and are still alike.
    """
    contexts = found.contexts
    if len(contexts) < 2:
        return None
    logs: dict[tuple[int, int], dict[int, list[float]]] = {}
    for window in found.schedule:
        batch, tokens, context = window.setting
        by_context = logs.setdefault((batch, tokens), {})
        by_context.setdefault(context or 0, []).append(log(window.seconds))
    pairs = [
        (setting, one, other)
        for setting, by_context in logs.items()
        for one, other in combinations(by_context.values(), 2)
    ]
    if not pairs:
        return (
            "no setting was measured at two contexts: the context axis cannot be told from the "
            "batch size, and no five-number schedule is proposed"
        )
    sd, freedom = noise([window.timed for window in found.schedule])
    # Few repeats tell the noise, so Student's distribution is the one that chance has.
    chance = sd * -float(stdtrit(freedom, CHANCE / (2 * len(pairs))))
    changes = []
    for setting, one, other in pairs:
        change = abs(float(np.mean(one) - np.mean(other)))
        allowed = max(log(1 + zone), chance * sqrt(1 / len(one) + 1 / len(other)))
        changes.append((change - allowed, expm1(change), expm1(allowed), setting))
    beyond, most, allowed, (batch, tokens) = max(changes)
    if beyond > 0:
        return None
    return (
        f"decode is flat with context: steps change by at most {most:.1%} between contexts "
        f"{contexts[0]} and {contexts[-1]} (at {batch} in flight, K={tokens}), within "
        f"{allowed:.1%}, which is indifferent or noise: no five-number schedule is proposed"
    )
