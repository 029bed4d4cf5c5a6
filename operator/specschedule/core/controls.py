"""Controls against a candidate: an arm that is simpler and better must win.

Compared over all load points together (geometric mean of goodput): a control has no schedule,
so it cannot win at one point by losing at another that the candidate keeps.
"""

import json
from collections.abc import Sequence
from math import inf, isfinite

from specschedule.core import eprocess
from specschedule.core.arms import ADAPTIVE, adaptive_config, static_config
from specschedule.core.compare import INCUMBENT, NONE, Evidence, to_share
from specschedule.core.context_axis import left_behind
from specschedule.core.noise import Noise
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.core.verdict import Control


def is_control(arm: str) -> bool:
    """Say whether an arm is a control that could be served instead of a schedule."""
    return arm in (NONE, ADAPTIVE) or arm.startswith("static-")


def compare(evidence: Evidence, noise: Noise, candidate: str) -> list[Control]:
    """Compare every control with a candidate."""
    arms = sorted({launch.arm for launch in evidence.counted if is_control(launch.arm)})
    return [_compare(evidence, noise.floor(None), arm, candidate) for arm in arms]


def incomparable(found: Sequence[Control]) -> Control | None:
    """Return a control that was measured and cannot be compared with the candidate."""
    return next((c for c in found if c.change is None and not c.beats), None)


def _compare(evidence: Evidence, floor: float | None, arm: str, candidate: str) -> Control:
    differences = _differences(evidence, arm, candidate)
    if not differences:
        count = len(evidence.of(arm))
        return Control(
            arm=arm,
            count=count,
            beats=False,
            message=f"{arm} cannot be compared with {candidate} in {evidence.rate.value} over the "
            f"load points (n = {count}): each has good requests only where the other has none, or "
            "they share no load point",
        )
    mean = sum(differences) / len(differences)
    bounds = eprocess.interval(differences, seed=evidence.spec.experiment.seed)
    against = _differences(evidence, arm, INCUMBENT)
    change = _share(evidence, mean)
    launches = len(evidence.of(arm))
    noise = f"{to_share(evidence.rate, floor):.1%}" if floor is not None else "unknown"
    ahead = (
        f"{change:+.1%} against {candidate}"
        if change is not None
        else f"measured where {candidate} has no good request"
    )
    return Control(
        arm=arm,
        change=change,
        against_incumbent=_share(evidence, sum(against) / len(against)) if against else None,
        ahead_of_incumbent=bool(against) and sum(against) > 0,
        low=to_share(evidence.rate, bounds[0]) if bounds else None,
        high=to_share(evidence.rate, bounds[1]) if bounds else None,
        count=launches,
        beats=mean > max(floor or 0.0, 1e-9) or (len(differences) > 1 and _shown(differences)),
        message=f"{arm} is {ahead} in {evidence.rate.value} over the load points "
        f"(n = {launches}, noise floor {noise})",
    )


def _share(evidence: Evidence, mean: float) -> float | None:
    return None if mean == inf else to_share(evidence.rate, mean)


def best(found: Sequence[Control]) -> Control | None:
    """Return the control that beats the candidate by most; None when none does."""
    beating = [control for control in found if control.beats]
    return max(beating, key=_lead, default=None)


def _lead(control: Control) -> float:
    return inf if control.change is None else control.change


def _differences(evidence: Evidence, arm: str, reference: str) -> list[float]:
    return evidence.apart(arm, reference, lambda a, b: evidence.over(evidence.rate, a, b))


def _shown(differences: Sequence[float]) -> bool:
    finite = sorted(abs(d) for d in differences if isfinite(d))
    scale = finite[len(finite) // 2] if finite else 0.0
    return eprocess.evidence(differences, scale=scale) >= eprocess.E_NEEDED


def recommendation(found: Sequence[Control], evidence: Evidence, server: ServerFacts | None) -> str:
    """Name the best control that beats both the candidate and the incumbent, with its argument.

    Empty when there is none: then what serves now is best.
    """
    chosen = best([control for control in found if control.ahead_of_incumbent])
    if chosen is None:
        return ""
    change = chosen.against_incumbent
    ahead = f"{change:+.1%} against" if change is not None else "measured where no good request of"
    return (
        f"{chosen.arm}: {argument(chosen.arm, evidence.spec, server)} ({chosen.message}, "
        f"{ahead} the incumbent)"
    )


def argument(arm: str, spec: Spec, server: ServerFacts | None) -> str:
    """Return the change of the server's arguments that makes it run a control."""
    more = left_behind(server) if server else ""
    if arm == NONE:
        return f"remove --speculative-config{more}"
    base = dict(server.speculative or {}) if server else {}
    if not base and spec.speculative is not None:
        base = spec.speculative.plain()
    if arm == ADAPTIVE:
        config = adaptive_config(base, spec.candidates)
    else:
        config = static_config(base, int(arm.removeprefix("static-")))
    return f"--speculative-config '{json.dumps(config)}'{more}"


def standing(evidence: Evidence, arms: Sequence[str]) -> dict[str, float]:
    """Return how far each arm is behind the best of them over the load points (0.05: 5 %).

    Means over all launches; arms that were not measured are left out.
    """
    levels = {}
    for arm in arms:
        found = _differences(evidence, arm, INCUMBENT) if arm != INCUMBENT else [0.0]
        if found:
            levels[arm] = sum(found) / len(found)
    lead = max(levels.values(), default=0.0)
    if not isfinite(lead):
        return {}
    return {arm: -to_share(evidence.rate, level - lead) for arm, level in levels.items()}
