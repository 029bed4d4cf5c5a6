"""What a launch measures: the load points, what the bar names, crossings, and its outputs."""

from collections.abc import Iterable, Sequence
from math import inf

from specschedule.core.arms import Arm
from specschedule.core.chance import shuffled
from specschedule.core.compare import INCUMBENT, Evidence, Offered, Place, places, requirements
from specschedule.core.evidence import Launch, Profile
from specschedule.core.schedule import effective
from specschedule.core.spec import Effort, Spec
from specschedule.core.visit import Window

CROSSING_SECONDS = 5.0
"""Time on each side of a boundary."""

PROMPTS_UP, PROMPTS_DOWN = 8, 4
"""Prompts whose outputs are compared in each band, at least: on the way up, and down again."""

REQUESTS_PER_STREAM = 4
"""Arrivals of the swinging open loop for every request in flight at its peak: enough that the
number in flight follows the rate up and down."""


def swings(spec: Spec, arms: Sequence[Arm]) -> bool:
    """Say whether a run measures an open loop that crosses boundaries."""
    thorough_enough = spec.experiment.effort is not Effort.QUICK
    return thorough_enough and any(_crossings(arm, spec.load.points) for arm in arms)


def swing(spec: Spec, arms: Sequence[Arm], launches: Sequence[Launch]) -> Offered | None:
    """Return the offered load whose requests in flight cross every boundary between load points.

    Held load at n in flight ends so many requests per second; as many arrivals per second put
    about n in flight. The incumbent's first launch tells the rates of the lowest and the highest
    load point, so that they are the same for all arms and rounds.

    Args:
        spec: The question.
        arms: Its arms.
        launches: Launches of earlier rounds.

    Returns:
        The rates, or None: in Quick, before the incumbent was measured, where its rate does not
        rise with the load, and where no candidate changes K between the load points.
    """
    if not swings(spec, arms):
        return None
    points = sorted(spec.load.points)
    evidence = Evidence(spec, launches)
    for launch in evidence.of(INCUMBENT)[:1]:
        rates = []
        for at in (points[0], points[-1]):
            held = evidence.at(launch, Place(evidence.rate, at))
            seconds = sum(cell.window_seconds for cell in held)
            if seconds:
                rates.append(float(f"{sum(cell.completed for cell in held) / seconds:.3g}"))
        if len(rates) == 2 and 0 < rates[0] < rates[1]:
            return Offered(*rates)
    return None


def windows(
    spec: Spec, arm: Arm, *, round: int, first: bool, swing: Offered | None = None
) -> list[Window]:
    """Return what a launch measures: the same for all arms of a round, in the same order.

    Args:
        spec: The question.
        arm: Arm; it decides the planned tokens and, in Standard and Thorough, the crossings.
        round: Round of the launch, from 1; it decides the order and the prompts.
        first: Whether it is the arm's first launch, which measures every crossing, and the first
            passes before everything else, from the lowest boundary up.
        swing: Offered load that crosses the boundaries, once it is known.
    """
    load, effort = spec.load, spec.experiment.effort
    points = shuffled(set(load.points), spec.experiment.seed, "points", round)
    asked = [place for each in requirements(spec.bar) for place in places(spec, each)]
    named = {(p.at, p.category) for p in asked if p.category is not None and p.at is not None}
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
    found.extend(_open(spec, arm, round, base, swing))
    outputs = Window(
        cell=f"r{round}-equivalence-s{spec.experiment.seed}",
        profile=Profile(kind="equivalence", steps=_staircase(spec, arm.max_num_seqs)),
        # The same in every round, so that relaunches of one arm can be compared too.
        seed=spec.experiment.seed,
    )
    if effort is Effort.QUICK or not arm.name.startswith("candidate-"):
        return [*found, outputs]
    crossings = _crossings(arm, points)
    passes = [
        [
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
        ]
        for number in (1, 2)
    ]
    if first:
        # Any other window first, and a boundary would be crossed before its first pass is measured.
        return [*passes[0], *found, *passes[1], outputs]
    later = passes[1]
    if effort is Effort.STANDARD and later:
        later = [later[round % len(later)]]
    return [*found, *later, outputs]


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


def _open(spec: Spec, arm: Arm, round: int, seed: int, swing: Offered | None) -> Iterable[Window]:
    """Yield the open-loop windows: the offered loads of the spec, and the one that swings."""
    rates = sorted(set(spec.load.requests_per_second or ()))
    tokens = None if arm.boundaries() else arm.tokens(1)
    named: dict[Offered, list[str | None]] = {Offered(rate, rate): [None] for rate in rates}
    for each in requirements(spec.bar):
        for place in places(spec, each):
            if place.offered is not None and place.category is not None:
                named[place.offered].append(place.category)
    for load, categories in named.items():
        for category in dict.fromkeys(categories):
            middle = f"open{load.low:g}" + (f"-{category}" if category else "")
            yield Window(
                cell=f"r{round}-{middle}-s{seed}",
                profile=Profile(kind="open", requests_per_second=load.low),
                category=category,
                tokens=tokens,
                seed=seed,
                requests=spec.load.requests,
            )
    if swing is not None:
        yield Window(
            cell=f"r{round}-swing-s{seed}",
            profile=Profile(
                kind="open",
                requests_per_second=swing.low,
                peak_requests_per_second=swing.peak,
            ),
            tokens=tokens,
            seed=seed,
            requests=max(spec.load.requests, REQUESTS_PER_STREAM * max(spec.load.points)),
        )


def _crossings(arm: Arm, points: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (low, boundary, high): the nearest load points on both sides of each boundary."""
    found = []
    for boundary in arm.boundaries():
        below = [at for at in points if at <= boundary]
        above = [at for at in points if at > boundary]
        if below and above:
            found.append((max(below), boundary, min(above)))
    return found
