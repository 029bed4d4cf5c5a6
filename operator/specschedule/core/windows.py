"""What a launch measures: the load points, what the bar names, crossings, and its outputs."""

from collections.abc import Sequence
from math import inf

from specschedule.core.arms import Arm
from specschedule.core.chance import shuffled
from specschedule.core.compare import requirements
from specschedule.core.evidence import Profile
from specschedule.core.schedule import effective
from specschedule.core.spec import Effort, Spec
from specschedule.core.visit import Window

CROSSING_SECONDS = 5.0
"""Time on each side of a boundary."""

PROMPTS_UP, PROMPTS_DOWN = 8, 4
"""Prompts whose outputs are compared in each band, at least: on the way up, and down again."""


def windows(spec: Spec, arm: Arm, *, round: int, first: bool) -> list[Window]:
    """Return what a launch measures: the same for all arms of a round, in the same order.

    Args:
        spec: The question.
        arm: Arm; it decides the planned tokens and, in Standard and Thorough, the crossings.
        round: Round of the launch, from 1; it decides the order and the prompts.
        first: Whether it is the arm's first launch, which measures every crossing.
    """
    load, effort = spec.load, spec.experiment.effort
    points = shuffled(set(load.points), spec.experiment.seed, "points", round)
    named = {
        (at, requirement.category)
        for requirement in requirements(spec.bar)
        for at in requirement.at or points
        if requirement.category is not None
    }
    contexts = None
    if load.prompts is None:
        contexts = (load.prompt_tokens, load.prompt_tokens + load.output_tokens)
    seeds = 2 if effort is Effort.THOROUGH else 1
    base = 1000 * spec.experiment.seed + 10 * round
    found = []
    for at in points:
        for category in (None, *sorted(c for a, c in named if a == at and c is not None)):
            for seed in range(base, base + seeds):
                middle = f"hold{at}" + (f"-{category}" if category else "")
                found.append(
                    Window(
                        cell=f"r{round}-{middle}-s{seed}",
                        profile=Profile(kind="hold", concurrency=at),
                        category=category,
                        tokens=arm.tokens(at, contexts),
                        seed=seed,
                        requests=load.requests,
                    )
                )
    outputs = Window(
        cell=f"r{round}-equivalence-s{spec.experiment.seed}",
        profile=Profile(kind="equivalence", steps=_staircase(spec, arm.max_num_seqs)),
        # The same in every round, so that relaunches of one arm can be compared too.
        seed=spec.experiment.seed,
    )
    if effort is Effort.QUICK or not arm.name.startswith("candidate-"):
        return [*found, outputs]
    crossings = _crossings(arm, points)
    if not first and effort is Effort.STANDARD and crossings:
        crossings = [crossings[round % len(crossings)]]
    found.extend(
        Window(
            cell=f"r{round}-cross{boundary}-p{number}-s{base}",
            profile=Profile(
                kind="crossing",
                low=low,
                high=high,
                boundary=boundary,
                period_seconds=CROSSING_SECONDS,
                pass_=number,
            ),
            seed=base,
            requests=load.requests,
        )
        for low, boundary, high in crossings
        for number in (1, 2)
    )
    return [*found, outputs]


def _staircase(spec: Spec, max_num_seqs: int) -> list[list[int]]:
    """Return [requests in flight, prompts] up through every band of the candidates and down again.

    A band is entered at its largest load point, else where it begins. Half as many prompts again
    as a step up needs join while others leave.
    """
    tables = [
        effective(c.schedule, max_tokens=c.largest_tokens, max_num_seqs=max_num_seqs)
        for c in spec.candidates
    ]
    ends = sorted({band.last for table in tables for band in table.bands()})
    levels = [
        max([first, *(min(at, max_num_seqs) for at in spec.load.points if first <= at <= last)])
        for first, last in zip([1, *(end + 1 for end in ends)], [*ends[:-1], inf], strict=False)
    ]
    up = [
        [level, max(PROMPTS_UP, (level - before) * 3 // 2)]
        for before, level in zip([0, *levels], levels, strict=False)
    ]
    return up + [[level, PROMPTS_DOWN] for level in reversed(levels[:-1])]


def _crossings(arm: Arm, points: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (low, boundary, high): the nearest load points on both sides of each boundary."""
    found = []
    for boundary in arm.boundaries():
        below = [at for at in points if at <= boundary]
        above = [at for at in points if at > boundary]
        if below and above:
            found.append((max(below), boundary, min(above)))
    return found
