"""What a launch measures: the load points, what the bar names, crossings, and its outputs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from specschedule.core.arms import Arm
from specschedule.core.chance import shuffled
from specschedule.core.compare import (
    INCUMBENT,
    TRACE,
    TWIN,
    Evidence,
    Offered,
    Place,
    places,
    requirements,
)
from specschedule.core.evidence import Launch, Profile
from specschedule.core.schedule import effective
from specschedule.core.spec import Effort, Load, Spec
from specschedule.core.visit import Window
from specschedule.core.workload import Trace, prompt_of

CROSSING_SECONDS = 5.0
"""Time on each side of a boundary."""

PROMPTS_UP, PROMPTS_DOWN = 8, 4
"""Prompts whose outputs are compared in each band, at least: on the way up, and down again."""

REQUESTS_PER_STREAM = 4
"""Arrivals of the swinging open loop for every request in flight at its peak: enough that the
number in flight follows the rate up and down."""


DEPTHS = (4, 16)
"""Depths of a sweep, in declared prompt lengths: one is held anyway."""

MOST_CATEGORIES = 4
"""Prompt categories that a first launch holds apart, at most: each takes two windows of it."""

Apart = Collection[tuple[int, str]]
"""(load point, prompt category): windows of one category, beside those that mix them."""

Contexts = Mapping[int, Sequence[int]]
"""Mean contexts by load point, in tokens: held apart and mixed where rows by context are tested."""


def apart(spec: Spec, arm: str, categories: Sequence[str]) -> list[tuple[int, str]]:
    """Return what an arm's first launch holds by category: the lowest and the highest load point.

    In Quick only the pair does. The first categories by name, where there are many.

    Args:
        spec: The question.
        arm: Name of the arm.
        categories: Categories of its prompts.
    """
    paired = arm in (INCUMBENT, TWIN) or arm.startswith("candidate-")
    if not paired and spec.experiment.effort is Effort.QUICK:
        return []
    points = sorted({min(spec.load.points), max(spec.load.points)})
    return [(at, name) for at in points for name in sorted(categories)[:MOST_CATEGORIES]]


def depths(spec: Spec, arm: Arm) -> tuple[list[int], str]:
    """Return the prompt lengths of a first launch's depth sweep, and what of it is left out, why.

    Args:
        spec: The question.
        arm: Any of its arms.
    """
    if spec.experiment.effort is Effort.QUICK:
        return [], ""
    load, limit = spec.load, arm.max_model_len
    asked = [load.prompt_tokens * factor for factor in DEPTHS]
    named = f"depths {' and '.join(map(str, asked))}"
    if load.prompts is not None:
        return [], f"{named}: prompts are given, and not made to a length"
    if load.prefix_cache != "Unique":
        return [], f"{named}: with load.prefixCache {load.prefix_cache} a deep prompt is cached"
    if limit is None:
        return [], f"{named}: --max-model-len is not given, so whether they fit is not known"
    fitting = [depth for depth in asked if depth + load.output_tokens <= limit]
    beyond = " and ".join(str(depth) for depth in asked if depth not in fitting)
    return fitting, f"depths {beyond}: beyond max_model_len {limit}" if beyond else ""


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
            return Offered(rates[0], rates[1])
    return None


def windows(
    spec: Spec,
    arm: Arm,
    *,
    round: int,
    first: bool,
    apart: Apart = (),
    contexts: Contexts | None = None,
    swing: Offered | None = None,
    trace: Trace | None = None,
) -> list[Window]:
    """Return what a launch measures: in the same order for all arms of a round.

    Args:
        spec: The question.
        arm: Arm; it decides the planned tokens and, in Standard and Thorough, the crossings.
        round: Round of the launch, from 1; it decides the order and the prompts.
        first: Whether it is the arm's first launch, which measures every crossing, and the first
            passes before everything else, from the lowest boundary up.
        apart: What is held by category, beside what the bar names.
        contexts: What is held by context, beside what the bar names; several of a load point are
            also mixed, as the engine looks at their mean.
        swing: Offered load that crosses the boundaries, once it is known.
        trace: Recorded arrivals to replay.
    """
    load, effort = spec.load, spec.experiment.effort
    points = shuffled(set(load.points), spec.experiment.seed, "points", round)
    asked = [place for each in requirements(spec.bar) for place in places(spec, each)]
    named = {(p.at, p.category, p.context) for p in asked if p.at is not None}
    named.update((at, category, None) for at, category in apart)
    held = contexts or {}
    named.update((at, None, context) for at in points for context in held.get(at, ()))
    seeds = 2 if effort is Effort.THOROUGH else 1
    base = 1000 * spec.experiment.seed + 10 * round
    found = []
    for at in points:
        beside = sorted(
            ((category, context) for point, category, context in named if point == at),
            key=lambda each: (each[0] or "", each[1] or 0),
        )
        for category, context in dict.fromkeys([(None, None), *beside]):
            prompt = None if context is None else max(1, prompt_of(context, load))
            for seed in range(base, base + seeds):
                middle = f"hold{at}" + (f"-{category}" if category else "")
                middle += f"-c{context}" if context else ""
                found.append(
                    Window(
                        cell=f"r{round}-{middle}-s{seed}",
                        profile=Profile(kind="hold", concurrency=at, context=prompt),
                        category=category,
                        tokens=arm.tokens(at, _contexts(load, prompt)),
                        context=context,
                        seed=seed,
                        requests=load.requests,
                    )
                )
        if len(held.get(at, ())) > 1:
            found.extend(_mixed(load, arm, round, at, held[at], range(base, base + seeds)))
    if first:
        found.extend(
            Window(
                cell=f"r{round}-depth{depth}-s{base}",
                profile=Profile(kind="depth", concurrency=1, context=depth),
                tokens=arm.tokens(1, _contexts(load, depth)),
                seed=base,
                requests=load.requests,
            )
            for depth in depths(spec, arm)[0]
        )
    found.extend(_open(spec, arm, round, base, swing, trace))
    if first or effort is Effort.THOROUGH:
        found.extend(_bursts(spec, arm, round, base))
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


def _mixed(
    load: Load, arm: Arm, round: int, at: int, contexts: Sequence[int], seeds: Iterable[int]
) -> Iterable[Window]:
    """Yield windows of a load point whose requests have several contexts, in turn."""
    prompts = [max(1, prompt_of(context, load)) for context in sorted(contexts)]
    named = "+".join(map(str, sorted(contexts)))
    for seed in seeds:
        yield Window(
            cell=f"r{round}-hold{at}-c{named}-s{seed}",
            profile=Profile(kind="hold", concurrency=at, contexts=prompts),
            tokens=arm.tokens(at, (prompts[0], prompts[-1] + load.output_tokens)),
            context=sum(contexts) // len(contexts),
            seed=seed,
            requests=load.requests,
        )


def _contexts(load: Load, prompt: int | None) -> tuple[int, int] | None:
    """Return between which mean contexts a request goes; None where its prompt is not known."""
    if prompt is None and load.prompts is not None:
        return None
    length = load.prompt_tokens if prompt is None else prompt
    return (length, length + load.output_tokens)


def _staircase(spec: Spec, max_num_seqs: int) -> list[list[int]]:
    """Return [requests in flight, prompts] up through every band of the candidates and down again.

    A band is entered at its largest load point, else where it begins. Half as many prompts again
    as a step up needs join while others leave.
    """
    ends = _ends(spec, max_num_seqs)
    levels = [
        max([first, *(min(at, max_num_seqs) for at in spec.load.points if first <= at <= last)])
        for first, last in zip([1, *(end + 1 for end in ends)], [*ends[:-1], inf], strict=False)
    ]
    up = [
        [level, max(PROMPTS_UP, (level - before) * 3 // 2)]
        for before, level in zip([0, *levels], levels, strict=False)
    ]
    return up + [[level, PROMPTS_DOWN] for level in reversed(levels[:-1])]


def _ends(spec: Spec, max_num_seqs: int) -> list[int]:
    """Return where the bands of the candidates end, by batch size, rising."""
    tables = [
        effective(c.schedule, max_tokens=c.largest_tokens, max_num_seqs=max_num_seqs)
        for c in spec.candidates
    ]
    return sorted({band.last for table in tables for band in table.bands()})


def _bursts(spec: Spec, arm: Arm, round: int, seed: int) -> Iterable[Window]:
    """Yield bursts through every boundary that lies between the load points: the first, and more.

    Every arm has them, so that what a schedule loses while a batch fills and drains is told from
    what any arm does.
    """
    floor, peak = min(spec.load.points), max(spec.load.points)
    crossed = any(floor <= end < peak for end in _ends(spec, arm.max_num_seqs))
    if spec.experiment.effort is Effort.QUICK or not crossed:
        return
    for number in (1, 2):
        yield Window(
            cell=f"r{round}-burst{peak}-p{number}-s{seed}",
            profile=Profile(kind="burst", floor=floor, peak=peak, pass_=number),
            tokens=None if arm.boundaries() else arm.tokens(1),
            seed=seed,
            requests=spec.load.requests,
        )


def _open(
    spec: Spec, arm: Arm, round: int, seed: int, swing: Offered | None, trace: Trace | None
) -> Iterable[Window]:
    """Yield the open-loop windows: the offered loads of the spec, and the one that swings."""
    rates = sorted(set(spec.load.requests_per_second or ()))
    tokens = None if arm.boundaries() else arm.tokens(1)
    named: dict[Offered, list[str | None]] = {Offered(rate, rate): [None] for rate in rates}
    if trace is not None:
        named[TRACE] = [None]
    for each in requirements(spec.bar):
        for place in places(spec, each):
            load = place.offered
            if load is not None and load in named and place.category is not None:
                named[load].append(place.category)
    for load, categories in named.items():
        name, requests = f"open{load.low:g}", spec.load.requests
        profile = Profile(kind="open", requests_per_second=load.low)
        if trace is not None and load == TRACE:
            name, requests = "trace", trace.requests
            rate = float(f"{trace.requests / trace.seconds:.4g}")
            profile = Profile(kind="open", requests_per_second=rate, trace=trace.digest)
        for category in dict.fromkeys(categories):
            middle = name + (f"-{category}" if category else "")
            yield Window(
                cell=f"r{round}-{middle}-s{seed}",
                profile=profile,
                category=category,
                tokens=tokens,
                seed=seed,
                requests=requests,
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
