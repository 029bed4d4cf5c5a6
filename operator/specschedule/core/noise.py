"""What relaunches of the same arm show between each other: the noise floor and the A/A check."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, expm1, isfinite, log2, sqrt

import numpy as np

from specschedule.core import eprocess
from specschedule.core.compare import (
    INCUMBENT,
    MIXED_STEP,
    TWIN,
    Evidence,
    Place,
    drafted_tokens,
    to_effect,
)
from specschedule.core.evidence import Cell, Launch
from specschedule.core.spec import Candidate, Effort
from specschedule.core.values import Value

OPENING_ROUNDS = 5
"""Rounds whose relaunches fix the floor inside a margin: the first moment of decision."""

ORDER_NEEDS = 2 * eprocess.E_NEEDED
"""e-value that shows that order or place decides: each is looked for in two ways."""

REFERENCE_ARMS = (INCUMBENT, TWIN)
"""Arms that run the incumbent's arguments."""


class Suspect(Value):
    """An effect where none can be: what disturbs the bench."""

    name: str
    """order, place, launch or drift."""
    message: str
    """What was seen."""


@dataclass
class Noise:
    """The noise of a run, by place; each answer is computed once."""

    evidence: Evidence
    _seen: dict[tuple[Place | None, bool, bool], list[float]] = field(
        init=False, default_factory=dict
    )

    def seen(
        self, place: Place | None, *, reference: bool = False, opening: bool = False
    ) -> list[float]:
        """Return absolute differences between relaunches (additive scale).

        Neighbouring launches that are controls of each other, else successive launches of the
        same arm.

        Args:
            place: Where; None for the mean over the load points.
            reference: Only the incumbent's own launches, which the candidate cannot inflate.
            opening: Only those of the first rounds.
        """
        key = (place, reference, opening)
        if key not in self._seen:
            launches = [
                launch
                for launch in self.evidence.counted
                if not opening or launch.round <= OPENING_ROUNDS
            ]
            self._seen[key] = self._between(place, launches, reference)
        return self._seen[key]

    def _between(
        self, place: Place | None, launches: Sequence[Launch], reference: bool
    ) -> list[float]:
        neighbours = [
            (a, b)
            for a, b in pairwise(launches)
            if controls_of_each_other(self.evidence, a, b, place)
        ]
        by_arm: dict[str, list[Launch]] = {}
        for launch in launches:
            by_arm.setdefault(launch.arm, []).append(launch)
        successive = [pair for own in by_arm.values() for pair in pairwise(own)]
        for relaunches in (neighbours, successive):
            found = [
                abs(value)
                for a, b in relaunches
                if not reference or {a.arm, b.arm} <= set(REFERENCE_ARMS)
                if (value := self._difference(place, b, a)) is not None and isfinite(value)
            ]
            if found:
                return found
        return []

    def _difference(self, place: Place | None, later: Launch, earlier: Launch) -> float | None:
        if place is None:
            return self.evidence.over(self.evidence.rate, later, earlier)
        return self.evidence.difference(place, later, earlier)

    def floor(self, place: Place | None, *, opening: bool = False) -> float | None:
        """Return the noise floor: the 95 % point of what relaunches show, the largest of few.

        None when no arm was launched twice.
        """
        seen = self.seen(place, opening=opening)
        return float(np.quantile(seen, 0.95, method="higher")) if seen else None

    def spread(self, place: Place) -> float:
        """Return what the incumbent's own relaunches show; 0 when it was launched once."""
        return max(self.seen(place, reference=True), default=0.0)

    def scale(self, place: Place) -> float:
        """Return the typical difference between relaunches in the opening rounds."""
        seen = self.seen(place, opening=True)
        return sqrt(sum(x * x for x in seen) / len(seen)) if seen else 0.02


def controls_of_each_other(evidence: Evidence, a: Launch, b: Launch, place: Place | None) -> bool:
    """Say whether two launches ran the same thing at a place, so that they differ by noise only.

    The same arm always does; so do the incumbent and its twin. Other arms do where the tokens
    planned and drafted, the code path (a schedule or none), the graph mode and the captured sizes
    agree as far as they are known.
    """
    if a.arm == b.arm or {a.arm, b.arm} <= set(REFERENCE_ARMS):
        return True
    if place is None:
        return False
    tokens = planned_tokens(evidence.at(a, place))
    if tokens is None or tokens != planned_tokens(evidence.at(b, place)):
        return False
    if _code_path(a, tokens) != _code_path(b, tokens):
        return False
    drafted = [_drafted(evidence.at(each, place), tokens) for each in (a, b)]
    if abs(drafted[0] - drafted[1]) > MIXED_STEP * max(1, tokens):
        return False
    ours, theirs = a.receipt, b.receipt
    return not (
        _known_apart(ours.graph_mode, theirs.graph_mode)
        or _known_apart(ours.captured_sizes, theirs.captured_sizes)
        or _known_apart(ours.model_runner, theirs.model_runner)
    )


def _code_path(launch: Launch, tokens: int) -> str:
    """Return how the engine comes by its tokens: dynamic (a schedule), static or none."""
    dynamic = launch.arm.startswith(("candidate-", "constant-")) or launch.arm == "zero"
    if dynamic or launch.schedule is not None:
        return "dynamic"
    return "static" if tokens else "none"


def _drafted(cells: Collection[Cell], planned: int) -> float:
    """Return the K that the engine's counters show in some windows; without them the planned."""
    told = [drafted for cell in cells if (drafted := drafted_tokens(cell)) is not None]
    return sum(told) / len(told) if told else planned


def _known_apart(a: object, b: object) -> bool:
    return a is not None and b is not None and a != b


def planned_tokens(cells: Collection[Cell]) -> int | None:
    """Return the one K of some windows; None when it varies or is unknown: they are mixed."""
    found = {cell.tokens for cell in cells}
    return found.pop() if len(found) == 1 else None


def suspect(evidence: Evidence) -> Suspect | None:
    """Return what disturbs the bench, when A/A comparisons show an effect that cannot be real.

    Asks of whole arms (mean over the load points): does the twin differ from the incumbent, does
    the order of launches decide, and does their place. An effect below half of minEffect disturbs
    nothing.
    """
    return _twin_differs(evidence) or _order_decides(evidence) or _place_decides(evidence)


def untested(evidence: Evidence) -> str | None:
    """Say that the A/A comparisons are too few to show anything yet; None when they could.

    Each comparison can double the evidence at most, so a disturbed bench shows itself only after
    some: a run that ends before has its noise measured, and its bench not tested.
    """
    needed = ceil(log2(ORDER_NEEDS))
    found = len(_between_neighbours(evidence))
    for candidate in evidence.spec.candidates:
        found = max(found, len(_within_pairs(evidence, candidate)))
    twin = len(_over(evidence, [(pair.arm, pair.reference) for pair in evidence.pairs(TWIN)]))
    if found >= needed or twin >= ceil(log2(eprocess.E_NEEDED)):
        return None
    text = (
        f"that order, place or drift disturb the bench can be shown by {needed} comparisons of "
        f"relaunches at least, and there are {found}: relaunches show how large the noise is, and "
        "not that it has no direction"
    )
    if evidence.spec.experiment.effort is Effort.QUICK:
        return f"{text}; effort Quick never has so many, Standard after about 7 rounds"
    return text


def _twin_differs(evidence: Evidence) -> Suspect | None:
    pairs = evidence.pairs(TWIN)
    differences = _over(evidence, [(pair.arm, pair.reference) for pair in pairs])
    if not _shown(evidence, differences, eprocess.E_NEEDED):
        return None
    sides = [{(x.receipt.node, x.receipt.gpu) for x in evidence.of(arm)} for arm in REFERENCE_ARMS]
    name = "launch"
    if sides[0].isdisjoint(sides[1]):
        name = "place"
    elif len({pair.arm_first for pair in pairs}) == 1:
        name = "order"
    return Suspect(
        name=name,
        message=f"the twin of the incumbent differs from it by {_mean_share(differences)} over "
        f"{len(differences)} rounds, and both run the same arguments",
    )


def _order_decides(evidence: Evidence) -> Suspect | None:
    """Ask whether later launches differ from earlier ones, whichever arm they are.

    Within pairs: the mean over two pairs in opposite orders holds the effect of the order and
    not the arm's. Between pairs: neighbouring relaunches of one arm. Drift moves both the same
    way; a bench whose second launch suffers jumps back before the next pair.
    """
    between = _between_neighbours(evidence)
    for candidate in evidence.spec.candidates:
        within = _within_pairs(evidence, candidate)
        for differences in (within, between):
            if _shown(evidence, differences, ORDER_NEEDS):
                return Suspect(
                    name="drift" if sum(within) * sum(between) > 0 else "order",
                    message=f"the later of two launches differs from the earlier by "
                    f"{_mean_share(differences)}, whichever arm they are "
                    f"({len(differences)} comparisons)",
                )
    return None


def _between_neighbours(evidence: Evidence) -> list[float]:
    neighbours = [(b, a) for a, b in pairwise(evidence.counted) if a.arm == b.arm]
    return _over(evidence, neighbours)


def _within_pairs(evidence: Evidence, candidate: Candidate) -> list[float]:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for pair in evidence.pairs(f"candidate-{candidate.name}"):
        order = (pair.arm, pair.reference)
        first, second = order if pair.arm_first else order[::-1]
        seconds[pair.arm_first].extend(_over(evidence, [(second, first)]))
    return [(a + b) / 2 for a, b in zip(seconds[True], seconds[False], strict=False)]


def _place_decides(evidence: Evidence) -> Suspect | None:
    """Ask whether launches on one node differ from those on another, whichever arm they are.

    The mean over two pairs that have changed places holds the effect of the place and not the
    arm's.
    """
    for candidate in evidence.spec.candidates:
        by_place: dict[tuple[str, str], dict[bool, list[float]]] = {}
        for pair in evidence.pairs(f"candidate-{candidate.name}"):
            ours, theirs = pair.arm.receipt.node, pair.reference.receipt.node
            if ours is None or theirs is None or ours == theirs:
                continue
            at_home = ours < theirs
            order = (pair.arm, pair.reference) if at_home else (pair.reference, pair.arm)
            nodes = (ours, theirs) if at_home else (theirs, ours)
            sides = by_place.setdefault(nodes, {True: [], False: []})
            sides[at_home].extend(_over(evidence, [order]))
        for (one, other), sides in by_place.items():
            differences = [(a + b) / 2 for a, b in zip(sides[True], sides[False], strict=False)]
            if _shown(evidence, differences, ORDER_NEEDS):
                return Suspect(
                    name="place",
                    message=f"launches on {one} differ from those on {other} by "
                    f"{_mean_share(differences)}, whichever arm they are "
                    f"({len(differences)} changes of place)",
                )
    return None


def _mean_share(differences: Sequence[float]) -> str:
    return f"{expm1(sum(differences) / len(differences)):+.1%}"


def _over(evidence: Evidence, launches: Sequence[tuple[Launch, Launch]]) -> list[float]:
    found = [evidence.over(evidence.rate, a, b) for a, b in launches]
    return [value for value in found if value is not None and isfinite(value)]


def _shown(evidence: Evidence, differences: Sequence[float], needed: float) -> bool:
    """Say whether differences lie on one side of zero, by enough to matter.

    The bets are scaled by the sizes of the differences alone, never by their signs.
    """
    least = to_effect(evidence.rate, evidence.spec.bar.min_effect) / 2
    if not differences or abs(sum(differences) / len(differences)) < least:
        return False
    scale = float(np.median(np.abs(differences)))
    return any(
        eprocess.evidence([sign * value for value in differences], scale=scale) >= needed
        for sign in (1, -1)
    )
