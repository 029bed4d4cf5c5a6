"""The judge: from launches to a verdict on each candidate, by a bar frozen beforehand.

One value per arm and launch, compared by adjacent pair. Rule EveryPair asks every pair to meet
every requirement; rule Sequential is an anytime-valid test, so looking after every round cannot
promote by luck. Missing evidence is never a pass: what cannot be compared stays unproven.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any, Literal

from specschedule.core import controls, eprocess
from specschedule.core.bands import band_of, band_text
from specschedule.core.compare import (
    INCUMBENT,
    Evidence,
    Pair,
    Place,
    measured,
    requirements,
    to_effect,
    to_share,
)
from specschedule.core.controls import Control
from specschedule.core.evidence import Launch, Receipt
from specschedule.core.noise import Noise, controls_of_each_other, suspect
from specschedule.core.observed import ServerFacts
from specschedule.core.schedule import ScheduleError, effective
from specschedule.core.spec import Metric, Mode, Protect, Rule, Spec
from specschedule.core.tax import Tax, tax_table
from specschedule.core.values import Value

MIN_PAIRS = 2
"""Rule EveryPair needs this many; one before/after is worthless."""

GAIN_OVER_FLOOR = 5.0
"""Rule EveryPair promotes only where the gain asked for is this many times the noise floor."""

COLLAPSE = 0.5
"""A band that falls below this share of the incumbent in any pair has collapsed."""

PREFIX_HIT_STEP = 0.05
"""Prefix-cache hit shares further apart than this make arms incomparable."""

SAME_IN_ALL_ARMS = (
    "image_id",
    "engine_version",
    "engine_commit",
    "model",
    "model_revision",
    "quantization",
    "gpu",
)
"""Facts of the receipt that must not differ between an arm and its reference."""


class BarResult(Value):
    """One requirement of the bar at one place."""

    kind: Literal["improve", "protect", "elsewhere"]
    """Which part of the bar."""
    metric: Metric
    """What was compared."""
    at: int
    """Requests in flight."""
    category: str | None = None
    """Prompt category; pooled when absent."""
    context: int | None = None
    """Context class, in tokens; pooled when absent."""
    band: str | None = None
    """Batch sizes of the candidate's band here, and its K."""
    required: float
    """Change that is asked for: +0.15 gains 15 %, -0.03 loses 3 % at most."""
    answer: Literal["Met", "NotMet", "Lost", "Unproven"]
    """Met; NotMet: shown not to reach it; Lost: a loss is shown; Unproven: neither."""
    reason: str
    """CamelCase constant."""
    message: str
    """The same for people, with the numbers."""
    change: float | None = None
    """Mean change over the pairs; positive is better."""
    low: float | None = None
    """Lower end of its 95 % interval."""
    high: float | None = None
    """Upper end of its 95 % interval."""
    pairs: list[float] = []
    """Change of each pair, in order."""
    count: int = 0
    """Pairs behind it."""
    incumbent: float | None = None
    """Mean over the incumbent's launches, in the metric's unit."""
    candidate: float | None = None
    """Mean over the candidate's launches, in the metric's unit."""
    worst: float | None = None
    """The candidate's worst window, in the metric's unit."""
    floor: float | None = None
    """Noise floor here."""
    margin: float | None = None
    """Sequential: what a difference must exceed before it is called one."""
    evidence: float | None = None
    """Sequential: e-value reached."""
    evidence_needed: float | None = None
    """Sequential: e-value to reach."""
    p: float | None = None
    """Exact sign-flip p, two-sided."""


class Verdict(Value):
    """What is said of one candidate."""

    candidate: str
    """Its name."""
    verdict: Literal["Better", "NotBetter", "Worse", "Inconclusive", "Invalid"]
    """Invalid: it could not be measured as what it claims to be."""
    reason: str
    """CamelCase constant."""
    message: str
    """The same for people, with the numbers."""
    rule: Rule
    """Rule that was used."""
    pairs: int = 0
    """Pairs of launches behind it."""
    bars: list[BarResult] = []
    """Each requirement of the bar."""
    controls: list[Control] = []
    """Each control against this candidate, over the load points."""


class Floor(Value):
    """The noise floor of one metric at one load point."""

    metric: Metric
    """Metric."""
    at: int
    """Requests in flight."""
    category: str | None = None
    """Prompt category; pooled when absent."""
    floor: float
    """Change that relaunches of the same arm show (95 % point, the largest of few)."""
    count: int
    """Relaunches behind it."""


class Watched(Value):
    """A loss of consistent sign that fails no requirement: watch it."""

    candidate: str
    """Candidate."""
    metric: Metric
    """Metric."""
    at: int
    """Requests in flight."""
    category: str | None = None
    """Prompt category; pooled when absent."""
    change: float
    """Mean change; negative is worse."""
    pairs: list[float]
    """Change of each pair."""
    spread: float
    """What the incumbent's own relaunches show here."""
    message: str
    """The same for people."""


class Note(Value):
    """Something the reader must know to trust the verdict as far as it goes."""

    reason: str
    """CamelCase constant."""
    message: str
    """The same for people."""


class Judgement(Value):
    """Everything that can be said of a run's launches."""

    outcome: Literal["Promoted", "Proposed", "NotPromoted", "Inconclusive"]
    """What follows by the spec's mode, once approved where that is asked for."""
    reason: str
    """CamelCase constant."""
    message: str
    """The same for people, with the numbers."""
    recommendation: str = ""
    """Control that is better than everything else, with its argument; empty otherwise."""
    noise_floor: list[Floor] = []
    """By metric and load point of the bar."""
    verdicts: list[Verdict] = []
    """Candidates that were tried, in the spec's order."""
    tax: list[Tax] = []
    """Where the candidate's time goes, by band."""
    watch: list[Watched] = []
    """Losses of consistent sign that fail nothing."""
    notes: list[Note] = []
    """What limits the verdict."""


def judge(
    spec: Spec, launches: Sequence[Launch], *, server: ServerFacts | None = None
) -> Judgement:
    """Judge every candidate that was launched.

    Args:
        spec: The question and its bar.
        launches: All launches of the run, void and failed ones too.
        server: The incumbent's server, for the arguments of a recommendation; without it the
            speculative method is left out of them.
    """
    evidence = Evidence(spec, launches)
    noise = Noise(evidence)
    tried = [
        candidate.name
        for candidate in spec.candidates
        if any(launch.arm == f"candidate-{candidate.name}" for launch in launches)
    ]
    if not tried:
        return Judgement(
            outcome="Inconclusive",
            reason="NothingMeasured",
            message="no candidate was launched",
            notes=_notes(evidence),
        )
    verdicts = [_Candidate(evidence, noise, name, len(tried)).verdict() for name in tried]
    outcome, said = _outcome(spec, verdicts)
    watch = [
        item
        for verdict in verdicts
        if verdict.verdict in ("Better", "Inconclusive")
        for item in _watch(evidence, noise, verdict)
    ]
    return Judgement(
        outcome=outcome,
        reason=said.reason,
        message=said.message,
        recommendation=controls.recommendation(verdicts_controls(verdicts, said), evidence, server),
        noise_floor=_floors(spec, noise),
        verdicts=verdicts,
        tax=[row for name in tried for row in tax_table(evidence, noise, f"candidate-{name}")],
        watch=watch,
        notes=_notes(evidence),
    )


def verdicts_controls(verdicts: Sequence[Verdict], said: Verdict) -> list[Control]:
    """Return the controls of the verdict that decides; none where a candidate is better."""
    return [] if said.verdict == "Better" else said.controls


def settled(judgement: Judgement, candidate: str) -> bool:
    """Say whether more rounds cannot change a candidate's verdict."""
    return any(
        verdict.candidate == candidate and verdict.verdict != "Inconclusive"
        for verdict in judgement.verdicts
    )


def _outcome(
    spec: Spec, verdicts: Sequence[Verdict]
) -> tuple[Literal["Promoted", "Proposed", "NotPromoted", "Inconclusive"], Verdict]:
    """Return the outcome and the verdict that decides it: Better, else open, else the last."""
    for verdict in verdicts:
        if verdict.verdict == "Better":
            return ("Proposed" if spec.mode is Mode.PROPOSE else "Promoted"), verdict
    for verdict in verdicts:
        if verdict.verdict == "Inconclusive":
            return "Inconclusive", verdict
    return "NotPromoted", verdicts[-1]


@dataclass
class _Requirement:
    """One requirement at one place."""

    kind: Literal["improve", "protect", "elsewhere"]
    place: Place
    required: float
    """Share, negative for losses."""


class _Candidate:
    """The judging of one candidate."""

    def __init__(self, evidence: Evidence, noise: Noise, name: str, tried: int) -> None:
        self.evidence = evidence
        self.spec = evidence.spec
        self.noise = noise
        self.name = name
        self.arm = f"candidate-{name}"
        self.needed = eprocess.E_NEEDED * tried
        self.pairs = evidence.pairs(self.arm)
        self.rows = next(c.schedule for c in self.spec.candidates if c.name == name)

    def verdict(self) -> Verdict:
        """Decide; losses first, then what cannot be compared, then controls, then the bar."""
        broken = self._invalid() or self._incomparable()
        if broken is not None:
            return broken
        bars = [self._answer(requirement) for requirement in self._requirements()]
        found = controls.compare(self.evidence, self.noise, self.arm)
        kind, reason, message = self._conclude(bars, found)
        return self._say(kind, reason, message, bars=bars, controls=found)

    def _say(
        self,
        kind: Literal["Better", "NotBetter", "Worse", "Inconclusive", "Invalid"],
        reason: str,
        message: str,
        **more: Any,
    ) -> Verdict:
        return Verdict(
            candidate=self.name,
            verdict=kind,
            reason=reason,
            message=f"{self.name}: {message}",
            rule=self.spec.rule,
            pairs=len(self.pairs),
            **more,
        )

    def _invalid(self) -> Verdict | None:
        own = [launch for launch in self.evidence.launches if launch.arm == self.arm]
        failed = [launch for launch in own if launch.failed is not None]
        if failed:
            return self._say(
                "Invalid",
                "CandidateFailed",
                f"launch {failed[0].launch} could not be measured: {failed[0].failed}",
            )
        for launch in own:
            served = launch.receipt.schedule
            if launch.void is None and served is not None and not _alike(served, self.rows):
                return self._say(
                    "Invalid",
                    "ScheduleNotInEffect",
                    f"launch {launch.launch} ran the schedule {served}, not {self.rows}",
                )
        return None

    def _incomparable(self) -> Verdict | None:
        failed = [x for x in self.evidence.launches if x.arm == INCUMBENT and x.failed is not None]
        if failed:
            return self._say(
                "Inconclusive",
                "IncumbentFailed",
                f"launch {failed[0].launch} of the incumbent could not be measured: "
                f"{failed[0].failed}",
            )
        if not self.pairs:
            reasons = "; ".join(
                f"launch {x.launch} ({x.arm}): {why}" for x, why in self.evidence.dropped
            )
            return self._say(
                "Inconclusive",
                "TooFewPairs",
                "no pair of launches with the incumbent counts"
                + (f": {reasons}" if reasons else ""),
            )
        for pair in self.pairs:
            message = _receipts_differ(pair.arm.receipt, pair.reference.receipt)
            if message is not None:
                return self._say("Inconclusive", "ArmsNotComparable", message)
        message = self._prefix_hits_differ()
        if message is not None:
            return self._say("Inconclusive", "ArmsNotComparable", message)
        disturbed = suspect(self.evidence)
        if disturbed is not None:
            return self._say(
                "Inconclusive",
                "BenchBroken",
                f"the bench shows an effect where none can be (suspect: {disturbed.name}): "
                f"{disturbed.message}",
            )
        return None

    def _prefix_hits_differ(self) -> str | None:
        for at in self.spec.load.points:
            ours = self._hit_share([p.arm for p in self.pairs], at)
            theirs = self._hit_share([p.reference for p in self.pairs], at)
            if ours is not None and theirs is not None and abs(ours - theirs) > PREFIX_HIT_STEP:
                return (
                    f"arms not comparable (prefix cache): at {at} in flight the candidate found "
                    f"{ours:.0%} of its prompt tokens cached, the incumbent {theirs:.0%}"
                )
        return None

    def _hit_share(self, launches: Sequence[Launch], at: int) -> float | None:
        counters = [
            cell.prefix_cache
            for launch in launches
            for cell in self.evidence.at(launch, Place(self.evidence.rate, at))
            if cell.prefix_cache is not None
        ]
        queries = sum(c.queries for c in counters)
        return sum(c.hits for c in counters) / queries if queries else None

    def _requirements(self) -> list[_Requirement]:
        spec, points = self.spec, sorted(set(self.spec.load.points))
        found = []
        for improve in spec.bar.improve:
            for at in sorted(set(improve.at or points)):
                place = Place(improve.metric, at, improve.category)
                found.append(_Requirement("improve", place, improve.by))
        for protect in spec.bar.protect:
            for at in sorted(set(protect.at or points)):
                place = Place(protect.metric, at, protect.category)
                found.append(_Requirement("protect", place, -self._within(protect, place)))
        named = {requirement.place.at for requirement in found}
        for at in points:
            places = self.evidence.split(Place(self.evidence.rate, at))
            if at in named and len(places) == 1:
                continue
            loss = -spec.bar.elsewhere.max_loss
            found.extend(_Requirement("elsewhere", place, loss) for place in places)
        return found

    def _within(self, protect: Protect, place: Place) -> float:
        if protect.within is not None:
            return protect.within
        floor = max(self.noise.seen(place, reference=True, opening=True), default=0.0)
        return max(0.03, abs(to_share(place.metric, 2 * floor)))

    def _answer(self, requirement: _Requirement) -> BarResult:
        place = requirement.place
        differences: list[float] = []
        missing: list[Pair] = []
        for pair in self.pairs:
            value = self.evidence.difference(place, pair.arm, pair.reference)
            if value is None:
                missing.append(pair)
            else:
                differences.append(value)
        rule = self._every_pair if self.spec.rule is Rule.EVERY_PAIR else self._sequential
        answer, reason, message, more = rule(requirement, differences)
        if missing and answer == "Met" and not (requirement.kind == "elsewhere" and differences):
            answer, reason = "Unproven", self._why_missing(place, missing)
            message = f"{len(missing)} of {len(self.pairs)} pairs cannot be compared"
        elif missing and not differences:
            answer, reason = "Unproven", self._why_missing(place, missing)
            message = "nothing to compare"
        if answer == "Met" and requirement.kind != "elsewhere":
            answer, reason, message = self._doubt(requirement, answer, reason, message)
        return self._result(requirement, differences, answer, reason, message, more)

    def _why_missing(self, place: Place, missing: Sequence[Pair]) -> str:
        zero = any(
            value == 0
            for pair in missing
            for value in self.evidence.parts(pair.reference, place).values()
        )
        return "ReferenceIsZero" if zero else "MetricMissing"

    def _doubt(
        self,
        requirement: _Requirement,
        answer: Literal["Met", "NotMet", "Lost", "Unproven"],
        reason: str,
        message: str,
    ) -> tuple[Literal["Met", "NotMet", "Lost", "Unproven"], str, str]:
        """Take back a pass that the windows cannot carry."""
        both = [launch for pair in self.pairs for launch in (pair.arm, pair.reference)]
        if self.evidence.thin(requirement.place, both):
            return "Unproven", "TooFewRequests", "a window holds fewer than 20 requests"
        if requirement.kind == "improve" and all(
            controls_of_each_other(self.evidence, p.arm, p.reference, requirement.place)
            for p in self.pairs
        ):
            return (
                "NotMet",
                "SameConfiguration",
                "both arms run the same tokens on the same code path here: their difference is "
                "noise and no gain may be claimed from it",
            )
        return answer, reason, message

    def _every_pair(
        self, requirement: _Requirement, differences: Sequence[float]
    ) -> tuple[Literal["Met", "NotMet", "Lost", "Unproven"], str, str, dict[str, Any]]:
        place, share = requirement.place, requirement.required
        asked = to_effect(place.metric, share) - 1e-9
        spread = self.noise.spread(place)
        floor = self.noise.floor(place)
        collapsed = self._collapsed(place, differences)
        if collapsed is not None:
            return "Lost", "BandCollapsed", collapsed, {}
        if len(differences) < MIN_PAIRS:
            few = f"{len(differences)} pair(s) compare; rule EveryPair needs {MIN_PAIRS}"
            return "Unproven", "TooFewPairs", few, {}
        loss = self.spec.bar.min_effect if requirement.kind == "improve" else -share
        allowed = max(-to_effect(place.metric, -loss), spread) + 1e-9
        if all(d < -allowed for d in differences):
            shown = f"every pair loses more than {abs(to_share(place.metric, -allowed)):.1%}"
            return "Lost", "LossShown", shown, {}
        if requirement.kind == "elsewhere":
            return "Met", "NoLossShown", "no loss beyond the limit and the spread in every pair", {}
        if requirement.kind == "protect":
            if all(d >= asked for d in differences):
                return "Met", "Within", "every pair stays within it", {}
            return "Unproven", "PairsDisagree", "not every pair stays within it", {}
        if all(d >= asked for d in differences):
            if floor is None:
                return "Unproven", "NoNoiseFloor", "no arm was launched twice", {}
            limit = GAIN_OVER_FLOOR * to_share(Metric.THROUGHPUT, floor)
            if share < limit:
                below = (
                    f"every pair reaches it, but rule EveryPair may promote only a gain of "
                    f"{GAIN_OVER_FLOOR:g} x the noise floor ({limit:.1%}); ask for more, or use "
                    "effort Standard"
                )
                return "Unproven", "BelowNoiseFloor", below, {}
            return "Met", "EveryPairReachesIt", "every pair reaches it", {}
        if all(d < asked - max(floor or 0.0, spread) for d in differences):
            return "NotMet", "GainNotReached", "no pair comes near it", {}
        return "Unproven", "PairsDisagree", "the pairs do not agree, or lie within the noise", {}

    def _sequential(
        self, requirement: _Requirement, differences: Sequence[float]
    ) -> tuple[Literal["Met", "NotMet", "Lost", "Unproven"], str, str, dict[str, Any]]:
        place, share = requirement.place, requirement.required
        asked = to_effect(place.metric, share)
        scale = self.noise.scale(place)
        collapsed = self._collapsed(place, differences)
        if collapsed is not None:
            return "Lost", "BandCollapsed", collapsed, {}

        def shown(values: Sequence[float]) -> float:
            return eprocess.evidence(values, scale=scale)

        if requirement.kind == "improve":
            floor = self.noise.floor(place, opening=True)
            margin = max(to_effect(place.metric, self.spec.bar.min_effect), floor or 0.0)
            gain = shown([d - margin for d in differences])
            more = {
                "margin": to_share(place.metric, margin),
                "evidence": gain,
                "evidence_needed": self.needed,
            }
            if shown([-d - margin for d in differences]) >= eprocess.E_NEEDED:
                return "Lost", "LossShown", "a loss is shown", more
            mean = sum(differences) / len(differences) if differences else -inf
            if gain >= self.needed and floor is not None and mean >= asked - 1e-9:
                return "Met", "GainShown", "the gain is shown and reaches it", more
            if shown([asked - d for d in differences]) >= eprocess.E_NEEDED:
                return "NotMet", "GainNotReached", "the gain is shown to be smaller", more
            return "Unproven", "NotShown", self._still_open(gain), more
        if requirement.kind == "protect":
            kept = shown([d - asked for d in differences])
            more = {"margin": -share, "evidence": kept, "evidence_needed": self.needed}
            if shown([asked - d for d in differences]) >= eprocess.E_NEEDED:
                return "Lost", "LossShown", "a larger loss is shown", more
            if kept >= self.needed:
                return "Met", "Within", "any loss is shown to be smaller", more
            return "Unproven", "NotShown", self._still_open(kept), more
        allowed = max(-asked, self.noise.spread(place))
        lost = shown([-d - allowed for d in differences])
        more = {"margin": abs(to_share(place.metric, -allowed)), "evidence": lost}
        if lost >= eprocess.E_NEEDED:
            return "Lost", "LossShown", "a larger loss is shown", more
        return "Met", "NoLossShown", "no loss beyond the limit and the spread is shown", more

    def _still_open(self, evidence: float) -> str:
        return f"evidence {evidence:.1f} of {self.needed:g}; more rounds may show it"

    def _collapsed(self, place: Place, differences: Sequence[float]) -> str | None:
        """Name a band that fell apart in any pair; no other band's gain makes up for it."""
        if place.metric not in (Metric.GOODPUT, Metric.THROUGHPUT, Metric.DECODE_RATE):
            return None
        worst = min(differences, default=0.0)
        if worst >= -max(-log(COLLAPSE), self.noise.spread(place)):
            return None
        return f"the band collapsed: {1 + to_share(place.metric, worst):.2f} of the incumbent"

    def _result(
        self,
        requirement: _Requirement,
        differences: Sequence[float],
        answer: Literal["Met", "NotMet", "Lost", "Unproven"],
        reason: str,
        message: str,
        more: Mapping[str, Any],
    ) -> BarResult:
        place = requirement.place
        ours = self._levels(place, lambda pair: pair.arm)
        theirs = self._levels(place, lambda pair: pair.reference)
        windows = [
            value
            for pair in self.pairs
            for cell in self.evidence.at(pair.arm, place)
            if (value := measured(cell, place.metric)) is not None
        ]
        worst_of = max if place.metric.smaller_is_better else min
        band = band_of(self.rows, place.at, place.context)
        numbers: dict[str, Any] = {}
        if differences:
            mean = sum(differences) / len(differences)
            numbers["change"] = to_share(place.metric, mean)
            bounds = eprocess.interval(differences, seed=self.spec.experiment.seed)
            if bounds is not None:
                numbers["low"], numbers["high"] = (to_share(place.metric, b) for b in bounds)
            numbers["p"] = eprocess.sign_flip_p(differences)
        floor = self.noise.floor(place)
        result = BarResult(
            kind=requirement.kind,
            metric=place.metric,
            at=place.at,
            category=place.category,
            context=place.context,
            band=band_text(band) if band else None,
            required=requirement.required,
            answer=answer,
            reason=reason,
            message="",
            pairs=[to_share(place.metric, d) for d in differences],
            count=len(differences),
            incumbent=sum(theirs) / len(theirs) if theirs else None,
            candidate=sum(ours) / len(ours) if ours else None,
            worst=worst_of(windows) if windows else None,
            floor=to_share(Metric.THROUGHPUT, floor) if floor is not None else None,
            **numbers,
            **more,
        )
        return result.model_copy(update={"message": _bar_message(result, place, message)})

    def _levels(self, place: Place, side: Callable[[Pair], Launch]) -> list[float]:
        found = []
        for pair in self.pairs:
            parts = self.evidence.parts(side(pair), place)
            if parts:
                found.append(sum(parts.values()) / len(parts))
        return found

    def _conclude(
        self, bars: Sequence[BarResult], found: Sequence[Control]
    ) -> tuple[Literal["Better", "NotBetter", "Worse", "Inconclusive"], str, str]:
        lost = [bar for bar in bars if bar.answer == "Lost"]
        if lost:
            lost.sort(key=lambda bar: (bar.reason != "BandCollapsed", bar.change or 0.0))
            return "Worse", lost[0].reason, "; ".join(bar.message for bar in lost)
        beating = [control for control in found if control.beats]
        if beating:
            best = max(beating, key=lambda control: control.change)
            return "NotBetter", "ControlBeatsCandidate", best.message
        missed = [bar for bar in bars if bar.answer == "NotMet"]
        if missed:
            return "NotBetter", missed[0].reason, "; ".join(bar.message for bar in missed)
        unproven = [bar for bar in bars if bar.answer == "Unproven"]
        if unproven:
            return "Inconclusive", unproven[0].reason, "; ".join(b.message for b in unproven)
        gains = "; ".join(bar.message for bar in bars if bar.kind == "improve")
        reason = "EveryPairMeetsBar" if self.spec.rule is Rule.EVERY_PAIR else "BarShown"
        return "Better", reason, gains


def _bar_message(bar: BarResult, place: Place, said: str) -> str:
    """Write one requirement as a sentence with its numbers."""
    where = str(place) + (f" (band {bar.band})" if bar.band else "")
    asked = f"{bar.kind} {bar.required:+.1%}"
    if bar.change is None:
        return f"{where}: {asked}: {said}"
    pairs = ", ".join(f"{pair:+.1%}" for pair in bar.pairs)
    numbers = f"{bar.change:+.1%} over {bar.count} pairs ({pairs})"
    if bar.answer == "Lost" and bar.worst is not None and bar.incumbent:
        numbers += (
            f", worst window {bar.worst:g} against {bar.incumbent:.4g} "
            f"(ratio {(bar.candidate or 0.0) / bar.incumbent:.2f})"
        )
    return f"{where}: {asked}: {said}; {numbers}"


def _alike(served: Sequence[Sequence[int]], asked: Sequence[Sequence[int]]) -> bool:
    limit = max(row[1] for row in [*served, *asked])
    tokens = max(1, *(row[-1] for row in [*served, *asked]))
    try:
        tables = [
            effective([list(row) for row in rows], max_tokens=tokens, max_num_seqs=limit).canonical
            for rows in (served, asked)
        ]
    except ScheduleError:
        return False
    return tables[0] == tables[1]


def _receipts_differ(ours: Receipt, theirs: Receipt) -> str | None:
    for fact in SAME_IN_ALL_ARMS:
        a, b = getattr(ours, fact), getattr(theirs, fact)
        if a is not None and b is not None and a != b:
            name = fact.replace("_", " ")
            return f"arms not comparable ({name}): the candidate ran {a}, the incumbent {b}"
    return None


def _floors(spec: Spec, noise: Noise) -> list[Floor]:
    places = {Place(noise.evidence.rate, at): None for at in sorted(set(spec.load.points))}
    for requirement in requirements(spec.bar):
        for at in sorted(set(requirement.at or spec.load.points)):
            places[Place(requirement.metric, at, requirement.category)] = None
    found = []
    for place in places:
        floor = noise.floor(place)
        if floor is not None:
            found.append(
                Floor(
                    metric=place.metric,
                    at=place.at,
                    category=place.category,
                    floor=floor
                    if place.metric is Metric.ATTAINMENT
                    else to_share(Metric.THROUGHPUT, floor),
                    count=len(noise.seen(place)),
                )
            )
    return found


def _watch(evidence: Evidence, noise: Noise, verdict: Verdict) -> list[Watched]:
    """List losses of consistent sign, at least minEffect, that fail no requirement."""
    pairs = evidence.pairs(f"candidate-{verdict.candidate}")
    metrics = {evidence.rate: None, Metric.DECODE_RATE: None}
    for requirement in requirements(evidence.spec.bar):
        metrics[requirement.metric] = None
    categories = {
        cell.category for pair in pairs for cell in evidence.cells(pair.arm) if cell.category
    }
    failed = {(bar.metric, bar.at, bar.category) for bar in verdict.bars if bar.answer == "Lost"}
    found = []
    for metric in metrics:
        for at in sorted(set(evidence.spec.load.points)):
            for category in (None, *sorted(categories)):
                place = Place(metric, at, category)
                differences = [
                    d for p in pairs if (d := evidence.difference(place, *p[1:])) is not None
                ]
                if len(differences) < MIN_PAIRS or (metric, at, category) in failed:
                    continue
                mean = sum(differences) / len(differences)
                if any(d >= 0 for d in differences):
                    continue
                if mean > to_effect(metric, -evidence.spec.bar.min_effect):
                    continue
                spread = to_share(Metric.THROUGHPUT, noise.spread(place))
                changes = [to_share(metric, d) for d in differences]
                change = to_share(metric, mean)
                found.append(
                    Watched(
                        candidate=verdict.candidate,
                        metric=metric,
                        at=at,
                        category=category,
                        change=change,
                        pairs=changes,
                        spread=spread,
                        message=f"{place}: {change:+.1%} in every pair; relaunches of the "
                        f"incumbent spread {spread:.1%} here",
                    )
                )
    return found


def _notes(evidence: Evidence) -> list[Note]:
    notes = [
        Note(reason="LaunchNotCounted", message=f"launch {launch.launch} ({launch.arm}): {why}")
        for launch, why in evidence.dropped
    ]
    for candidate in evidence.spec.candidates:
        pairs = evidence.pairs(f"candidate-{candidate.name}")
        if len(pairs) >= MIN_PAIRS and len({pair.arm_first for pair in pairs}) == 1:
            order = "before" if pairs[0].arm_first else "after"
            notes.append(
                Note(
                    reason="OrderNotBalanced",
                    message=f"order not balanced: {candidate.name} was launched {order} the "
                    f"incumbent in all {len(pairs)} pairs, so an effect of the order is part of "
                    "the difference",
                )
            )
    return notes
