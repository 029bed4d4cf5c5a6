"""Controls against a candidate: an arm that is simpler and better must win.

Compared over all load points together (geometric mean of goodput): a control has no schedule,
so it cannot win at one point by losing at another that the candidate keeps.
"""

import json
from collections.abc import Sequence
from math import isfinite

from specschedule.core import eprocess
from specschedule.core.compare import INCUMBENT, NONE, Evidence, to_share
from specschedule.core.noise import Noise
from specschedule.core.observed import ServerFacts
from specschedule.core.schedule import speculative_config
from specschedule.core.values import Value


class Control(Value):
    """A control against a candidate, over the load points."""

    arm: str
    """none or static-K."""
    change: float
    """How much better the control is than the candidate; negative: the candidate is better."""
    against_incumbent: float | None = None
    """How much better the control is than the incumbent."""
    low: float | None = None
    """Lower end of the 95 % interval of change; absent for an arm launched once."""
    high: float | None = None
    """Upper end."""
    count: int
    """Launches of the control behind it."""
    beats: bool
    """Whether the control is better than the candidate by more than the noise floor."""
    message: str
    """The same for people."""


def is_control(arm: str) -> bool:
    """Say whether an arm is a control that could be served instead of a schedule."""
    return arm == NONE or arm.startswith("static-")


def compare(evidence: Evidence, noise: Noise, candidate: str) -> list[Control]:
    """Compare every control with a candidate."""
    found = []
    floor = noise.floor(None)
    for arm in sorted({launch.arm for launch in evidence.counted if is_control(launch.arm)}):
        differences = _differences(evidence, arm, candidate)
        if not differences:
            continue
        mean = sum(differences) / len(differences)
        bounds = eprocess.interval(differences, seed=evidence.spec.experiment.seed)
        against = _differences(evidence, arm, INCUMBENT)
        beats = mean > 1e-9 and (floor is None or mean > floor or _shown(differences))
        change = to_share(evidence.rate, mean)
        found.append(
            Control(
                arm=arm,
                change=change,
                against_incumbent=to_share(evidence.rate, sum(against) / len(against))
                if against
                else None,
                low=to_share(evidence.rate, bounds[0]) if bounds else None,
                high=to_share(evidence.rate, bounds[1]) if bounds else None,
                count=len(evidence.of(arm)),
                beats=beats,
                message=f"{arm} is {change:+.1%} against {candidate} in {evidence.rate.value} "
                f"over the load points (n = {len(evidence.of(arm))}, noise floor "
                + (f"{to_share(evidence.rate, floor):.1%})" if floor is not None else "unknown)"),
            )
        )
    return found


def _differences(evidence: Evidence, arm: str, reference: str) -> list[float]:
    """Return one difference per shared round; where they share fewer than two, one in all."""
    pairs = evidence.pairs(arm, reference)
    by_round = [evidence.over(evidence.rate, p.arm, p.reference) for p in pairs]
    known = [d for d in by_round if d is not None]
    if len(known) >= 2:
        return known
    every = [
        value
        for ours in evidence.of(arm)
        for theirs in evidence.of(reference)
        if (value := evidence.over(evidence.rate, ours, theirs)) is not None
    ]
    return [sum(every) / len(every)] if every else []


def _shown(differences: Sequence[float]) -> bool:
    finite = sorted(abs(d) for d in differences if isfinite(d))
    scale = finite[len(finite) // 2] if finite else 0.0
    return eprocess.evidence(differences, scale=scale) >= eprocess.E_NEEDED


def recommendation(found: Sequence[Control], evidence: Evidence, server: ServerFacts | None) -> str:
    """Name the best control that beats both the candidate and the incumbent, with its argument.

    Empty when there is none.
    """
    beating = [c for c in found if c.beats and (c.against_incumbent or 0.0) > 0]
    if not beating:
        return ""
    best = max(beating, key=lambda control: control.change)
    incumbent = f", {best.against_incumbent:+.1%} against the incumbent"
    return f"{best.arm}: {argument(best.arm, evidence, server)} ({best.message}{incumbent})"


def argument(arm: str, evidence: Evidence, server: ServerFacts | None) -> str:
    """Return the change of the server's arguments that makes it run a control."""
    if arm == NONE:
        return "remove --speculative-config"
    base = dict(server.speculative or {}) if server else {}
    if not base and evidence.spec.speculative is not None:
        base = evidence.spec.speculative.plain()
    config = speculative_config(base, max_tokens=int(arm.removeprefix("static-")), rows=None)
    return f"--speculative-config '{json.dumps(config)}'"


def standing(evidence: Evidence, arms: Sequence[str]) -> dict[str, float]:
    """Return how far each arm is behind the best of them over the load points (0.05: 5 %).

    Means over all launches; arms that were not measured are left out.
    """
    levels = {}
    for arm in arms:
        found = _differences(evidence, arm, INCUMBENT) if arm != INCUMBENT else [0.0]
        if found:
            levels[arm] = sum(found) / len(found)
    best = max(levels.values(), default=0.0)
    return {arm: -to_share(evidence.rate, level - best) for arm, level in levels.items()}
