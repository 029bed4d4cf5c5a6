"""The bar applied: one requirement at one place, by rule EveryPair or rule Sequential.

A margin that depends on the noise floor takes it from the opening relaunches, so that it is
fixed before any difference between arms is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Any, Literal, NamedTuple

from specschedule.core import eprocess
from specschedule.core.bands import band_of, band_text
from specschedule.core.budget import rounds
from specschedule.core.compare import (
    MIN_REQUESTS,
    TRACE,
    Evidence,
    Pair,
    Place,
    measured,
    offered,
    places,
    to_effect,
    to_share,
)
from specschedule.core.context_axis import by_context
from specschedule.core.noise import Noise, controls_of_each_other, planned_tokens
from specschedule.core.spec import Metric, Protect, Rule
from specschedule.core.verdict import Answer, BarResult

MIN_PAIRS = 2
"""Rule EveryPair needs this many; one before/after is worthless."""

GAIN_OVER_FLOOR = 5.0
"""Rule EveryPair promotes only where the gain asked for is this many times the noise floor."""

COLLAPSE = 0.5
"""A band that falls below this share of the incumbent in any pair has collapsed."""

MISSING_ALLOWED = 0.2
"""Rule Sequential: share of pairs that may lack a value at a place; EveryPair: none."""

PROTECT_WITHIN = 0.03
"""Loss that protect allows where it names none: this or twice the noise floor."""

_ROUNDING = 1e-9
"""Slack for numbers that are written in decimals, such as exactly 15 %."""


@dataclass(frozen=True)
class Requirement:
    """One requirement at one place."""

    kind: Literal["improve", "protect", "elsewhere"]
    place: Place
    share: float
    """Change that is asked for, negative for losses that are allowed."""
    why: str = ""
    """Where the change asked for comes from, when it is not the requirement's own."""


class _Said(NamedTuple):
    answer: Answer
    reason: str
    message: str
    numbers: dict[str, Any] = {}


@dataclass
class Applied:
    """The bar applied to one candidate's pairs."""

    evidence: Evidence
    noise: Noise
    rows: Sequence[Sequence[int]]
    """The candidate's schedule, for the names of its bands."""
    pairs: Sequence[Pair]
    needed: float
    """e-value that shows something: 20 times the candidates tried."""

    def results(self) -> list[BarResult]:
        """Answer every requirement of the bar, gains first."""
        return [self._result(requirement) for requirement in self._requirements()]

    def _requirements(self) -> list[Requirement]:
        spec, points = self.evidence.spec, sorted(set(self.evidence.spec.load.points))
        found: list[Requirement] = []
        for improve in spec.bar.improve:
            asked, why = improve.by, ""
            if asked < spec.bar.min_effect:
                asked, why = spec.bar.min_effect, f" (bar.minEffect; by is {improve.by:.1%})"
            found.extend(Requirement("improve", p, asked, why) for p in places(spec, improve))
        for protect in spec.bar.protect:
            found.extend(
                Requirement("protect", place, -self._within(protect, place))
                for place in places(spec, protect)
            )
        named = {requirement.place for requirement in found}
        loss = -spec.bar.elsewhere.max_loss
        for at in points:
            parts = self.evidence.split(Place(self.evidence.rate, at))
            found.extend(Requirement("elsewhere", p, loss) for p in parts if p not in named)
        launches = [launch for pair in self.pairs for launch in (pair.arm, pair.reference)]
        loads = self.evidence.swings(launches)
        if spec.load.trace is not None:
            loads.append(TRACE)
        for load in loads:
            place = Place(Metric.ATTAINMENT, None, offered=load)
            if place not in named:
                found.append(Requirement("elsewhere", place, loss))
        return found

    def _within(self, protect: Protect, place: Place) -> float:
        """Return the loss allowed; the incumbent's own noise, which no candidate can inflate."""
        if protect.within is not None:
            return protect.within
        floor = max(self.noise.seen(place, reference=True, opening=True), default=0.0)
        return max(PROTECT_WITHIN, abs(to_share(place.metric, -2 * floor)))

    def _result(self, requirement: Requirement) -> BarResult:
        place = requirement.place
        values = [self.evidence.difference(place, p.arm, p.reference) for p in self._planned(place)]
        differences = [value for value in values if value is not None and value != inf]
        said = self._collapsed(place)
        if said is None and not differences:
            said = _Said("Unproven", self._why_missing(values), "nothing can be compared here")
        if said is None:
            rule = self._sequential
            if self.evidence.spec.rule is Rule.EVERY_PAIR:
                rule = self._every_pair
            said = rule(requirement, differences)
        if said.answer != "Lost" and (same := self._same(requirement)) is not None:
            said = _Said("NotMet", "SameConfiguration", same, said.numbers)
        if said.answer == "Met":
            said = self._doubt(requirement, values, differences) or said
        return self._write(requirement, differences, said)

    def _planned(self, place: Place) -> Sequence[Pair]:
        """Return the pairs whose plan has a place: rates that swing are known after one round."""
        if place.offered is None or place.offered.low == place.offered.peak:
            return self.pairs
        return [
            pair
            for pair in self.pairs
            if any(
                offered(cell.profile) == place.offered
                for launch in (pair.arm, pair.reference)
                for cell in launch.cells
            )
        ]

    def _why_missing(self, values: Sequence[float | None]) -> str:
        return "ReferenceIsZero" if inf in values else "MetricMissing"

    def _collapsed(self, place: Place) -> _Said | None:
        """Name a band that fell apart in any pair; no other band's gain makes up for it.

        Attainment is compared as a share of the incumbent's too: a loss of minEffect at least, for
        one good request of a hundred is chance.
        """
        if place.metric.smaller_is_better:
            return None
        least = -to_effect(place.metric, -self.evidence.spec.bar.min_effect)
        beyond, falls = max(least, self.noise.spread(place)), []
        for pair in self._planned(place):
            lost = self.evidence.difference(place, pair.arm, pair.reference)
            ratio = self.evidence.log_ratio(place, pair.arm, pair.reference)
            if lost is not None and ratio is not None and lost < -beyond:
                falls.append(exp(ratio))
        worst = min(falls, default=1.0)
        if worst >= COLLAPSE:
            return None
        what = "the band" if place.offered is None else "the share of good requests"
        return _Said("Lost", "BandCollapsed", f"{what} collapsed to {worst:.2f} of the incumbent")

    def _doubt(
        self,
        requirement: Requirement,
        values: Sequence[float | None],
        differences: Sequence[float],
    ) -> _Said | None:
        """Take back a pass that the windows cannot carry."""
        place = requirement.place
        missing = len(values) - len(differences)
        allowed = MISSING_ALLOWED if self.evidence.spec.rule is Rule.SEQUENTIAL else 0.0
        if missing > allowed * len(values):
            return _Said(
                "Unproven",
                self._why_missing(values),
                f"{missing} of {len(values)} pairs cannot be compared here",
            )
        if requirement.kind == "elsewhere":
            return None
        launches = [launch for pair in self.pairs for launch in (pair.arm, pair.reference)]
        if requirement.kind == "improve" and self.evidence.crosses_rows(place, launches):
            text = (
                "the context of a request crosses an edge of the rows while it is answered, so no "
                "one K was held: ask at a context that stays on one side"
            )
            return _Said("Unproven", "ContextCrossesRows", text)
        if self.evidence.thin(place, launches):
            few = f"a window holds fewer than {MIN_REQUESTS} finished requests"
            return _Said("Unproven", "TooFewRequests", few)
        return None

    def _same(self, requirement: Requirement) -> str | None:
        """Say why a gain that is asked for may not be claimed: both arms do the same there."""
        place = requirement.place
        if requirement.kind != "improve":
            return None
        if all(
            controls_of_each_other(self.evidence, p.arm, p.reference, place) for p in self.pairs
        ):
            return (
                "both arms run the same tokens on the same code path here: their difference is "
                "noise, and no gain may be claimed from it"
            )
        launches = [launch for pair in self.pairs for launch in (pair.arm, pair.reference)]
        tokens = {planned_tokens(self.evidence.at(launch, place)) for launch in launches}
        if by_context(self.rows) and len(tokens) == 1 and None not in tokens:
            return (
                f"both arms select K={tokens.pop()} here: rows by context change nothing, and no "
                "gain may be claimed for them"
            )
        return None

    def _every_pair(self, requirement: Requirement, differences: Sequence[float]) -> _Said:
        place, share = requirement.place, requirement.share
        asked = to_effect(place.metric, share)
        spread = self.noise.spread(place)
        if len(differences) < MIN_PAIRS:
            few = f"{len(differences)} pair compares; rule EveryPair needs {MIN_PAIRS}"
            return _Said("Unproven", "TooFewPairs", few)
        loss = -share if requirement.kind != "improve" else self.evidence.spec.bar.min_effect
        lost = max(-to_effect(place.metric, -loss), spread) + _ROUNDING
        if all(d < -lost for d in differences):
            text = f"every pair loses more than {abs(to_share(place.metric, -lost)):.1%}"
            return _Said("Lost", "LossShown", text)
        if requirement.kind == "elsewhere":
            return _Said("Met", "NoLossShown", "no loss beyond it and the spread in every pair")
        met = all(d >= asked - _ROUNDING for d in differences)
        if requirement.kind == "protect":
            if met:
                return _Said("Met", "EveryPairWithin", "every pair stays within it")
            return _Said("Unproven", "PairsDisagree", "not every pair stays within it")
        floor = self.noise.floor(place)
        if met and floor is not None:
            return self._far_from_noise(share, floor)
        if met:
            return _Said("Unproven", "NoNoiseFloor", "no arm was launched twice")
        if all(d < asked - max(floor or 0.0, spread) for d in differences):
            return _Said("NotMet", "GainNotReached", "no pair comes near it")
        text = "the pairs do not agree, or lie within the noise of it"
        return _Said("Unproven", "PairsDisagree", text)

    def _far_from_noise(self, share: float, floor: float) -> _Said:
        limit = GAIN_OVER_FLOOR * floor_share(floor)
        if share >= limit - _ROUNDING:
            return _Said("Met", "EveryPairReachesIt", "every pair reaches it")
        return _Said(
            "Unproven",
            "BelowNoiseFloor",
            f"every pair reaches it, but rule EveryPair may promote only a gain of at least "
            f"{GAIN_OVER_FLOOR:g} x the noise floor, {limit:.1%} here: ask for more, or use "
            "effort Standard",
        )

    def _sequential(self, requirement: Requirement, differences: Sequence[float]) -> _Said:
        place = requirement.place
        asked = to_effect(place.metric, requirement.share)
        scale = self.noise.scale(place)

        def shown(values: Sequence[float]) -> float:
            return eprocess.evidence(values, scale=scale)

        if requirement.kind == "elsewhere":
            allowed = max(-asked, self.noise.spread(place))
            lost = shown([-d - allowed for d in differences])
            numbers = {"margin": abs(to_share(place.metric, -allowed)), "evidence": lost}
            if lost >= eprocess.E_NEEDED:
                return _Said("Lost", "LossShown", "a larger loss is shown", numbers)
            return _Said("Met", "NoLossShown", "no loss beyond it and the spread shown", numbers)
        if requirement.kind == "protect":
            kept = shown([d - asked for d in differences])
            numbers = self._numbers(place, -asked, kept, gain=0.0, margin=asked)
            if shown([asked - d for d in differences]) >= eprocess.E_NEEDED:
                return _Said("Lost", "LossShown", "a larger loss is shown", numbers)
            if kept >= self.needed:
                return _Said("Met", "Within", "any loss is shown to be smaller", numbers)
            return _Said("Unproven", "NotShown", self._still_open(numbers), numbers)
        floor = self.noise.floor(place, opening=True)
        margin = max(to_effect(place.metric, self.evidence.spec.bar.min_effect), floor or 0.0)
        gained = shown([d - margin for d in differences])
        hoped = max(asked, 2 * margin)
        numbers = self._numbers(place, margin, gained, gain=hoped, margin=margin)
        if shown([-d - margin for d in differences]) >= eprocess.E_NEEDED:
            return _Said("Lost", "LossShown", "a loss is shown", numbers)
        mean = sum(differences) / len(differences)
        if gained >= self.needed and floor is not None and mean >= asked - _ROUNDING:
            return _Said("Met", "GainShown", "the gain is shown and reaches it", numbers)
        if shown([asked - d for d in differences]) >= eprocess.E_NEEDED:
            return _Said("NotMet", "GainNotReached", "the gain is shown to be smaller", numbers)
        return _Said("Unproven", "NotShown", self._still_open(numbers), numbers)

    def _numbers(
        self, place: Place, shown: float, evidence: float, *, gain: float, margin: float
    ) -> dict[str, Any]:
        """Return the numbers of a sequential answer, with a forecast at the noise seen."""
        return {
            "margin": abs(to_share(place.metric, shown)),
            "evidence": evidence,
            "evidence_needed": self.needed,
            "rounds_needed": eprocess.rounds_needed(
                gain, margin=margin, sd=self.noise.scale(place), needed=self.needed
            ),
            "rounds_needed_for": to_share(place.metric, gain),
        }

    def _still_open(self, numbers: dict[str, Any]) -> str:
        text = f"evidence {numbers['evidence']:.1f} of {numbers['evidence_needed']:g}"
        needed, (_, most) = numbers["rounds_needed"], rounds(self.evidence.spec)
        needs = f"needs about {needed} rounds" if needed else "is not shown by any number of rounds"
        if needed and needed > most:
            needs += f", and effort {self.evidence.spec.experiment.effort.value} ends after {most}"
        return f"{text}; at the noise seen a true {numbers['rounds_needed_for']:+.1%} {needs}"

    def _write(
        self, requirement: Requirement, differences: Sequence[float], said: _Said
    ) -> BarResult:
        place = requirement.place
        numbers = dict(said.numbers)
        if differences:
            mean = sum(differences) / len(differences)
            numbers["change"] = to_share(place.metric, mean)
            bounds = eprocess.interval(differences, seed=self.evidence.spec.experiment.seed)
            if bounds is not None:
                numbers["low"], numbers["high"] = (to_share(place.metric, b) for b in bounds)
            numbers["p"] = eprocess.sign_flip_p(differences)
        floor = self.noise.floor(place)
        if floor is not None:
            numbers["floor"] = floor if place.metric is Metric.ATTAINMENT else floor_share(floor)
        band = None if place.at is None else band_of(self.rows, place.at, place.context)
        load = place.offered
        result = BarResult(
            kind=requirement.kind,
            metric=place.metric,
            **place.load,
            peak_requests_per_second=load.peak if load and load.peak > load.low else None,
            band=band_text(band) if band else None,
            required=requirement.share,
            answer=said.answer,
            reason=said.reason,
            message="",
            pairs=[to_share(place.metric, d) for d in differences],
            count=len(differences),
            **self._levels(place),
            **numbers,
        )
        return result.model_copy(update={"message": _sentence(result, requirement, said.message)})

    def _levels(self, place: Place) -> dict[str, float]:
        """Return both arms' mean levels and the candidate's worst window."""
        found = {}
        for name, launches in (
            ("candidate", [pair.arm for pair in self.pairs]),
            ("incumbent", [pair.reference for pair in self.pairs]),
        ):
            parts = [self.evidence.parts(launch, place) for launch in launches]
            means = [sum(p.values()) / len(p) for p in parts if p]
            if means:
                found[name] = sum(means) / len(means)
        windows = [
            value
            for pair in self.pairs
            for cell in self.evidence.at(pair.arm, place)
            if (value := measured(cell, place.metric)) is not None
        ]
        if windows:
            found["worst"] = max(windows) if place.metric.smaller_is_better else min(windows)
        return found


def floor_share(floor: float) -> float:
    """Return a noise floor on the log scale as a share."""
    return to_share(Metric.THROUGHPUT, floor)


def _sentence(bar: BarResult, requirement: Requirement, said: str) -> str:
    """Write one requirement as a sentence with its numbers."""
    where = str(requirement.place) + (f" (band {bar.band})" if bar.band else "")
    asked = f"{bar.kind} {bar.required:+.1%}{requirement.why}"
    if bar.change is None:
        return f"{where}: {asked}: {said}"
    pairs = ", ".join(f"{pair:+.1%}" for pair in bar.pairs)
    numbers = f"{bar.change:+.1%} over {bar.count} pairs ({pairs})"
    if bar.answer == "Lost" and bar.worst is not None and bar.incumbent:
        ratio = (bar.candidate or 0.0) / bar.incumbent
        numbers += (
            f", worst window {bar.worst:.4g} against {bar.incumbent:.4g} on average "
            f"(ratio of the averages {ratio:.2f})"
        )
    return f"{where}: {asked}: {said}; {numbers}"
