"""The judge: from launches to a verdict on each candidate, by a bar frozen beforehand.

One value per arm and launch, compared by adjacent pair. Rule EveryPair asks every pair to meet
every requirement; rule Sequential is an anytime-valid test, so looking after every round cannot
promote by luck. Missing evidence is never a pass: what cannot be compared stays unproven.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specschedule.core import capacity, controls, eprocess
from specschedule.core.bar import MIN_PAIRS, Applied, floor_share
from specschedule.core.compare import (
    INCUMBENT,
    Evidence,
    Pair,
    Place,
    acceptance_length,
    places,
    requirements,
    to_effect,
    to_share,
)
from specschedule.core.context_axis import serving_needs
from specschedule.core.decode import decode_rates
from specschedule.core.evidence import Launch, Receipt
from specschedule.core.noise import Noise, suspect
from specschedule.core.notes import limits, notes
from specschedule.core.regime import ServingRegime
from specschedule.core.schedule import ScheduleError, effective
from specschedule.core.spec import Metric, Mode, Rule, Spec
from specschedule.core.target import ServerFacts
from specschedule.core.tax import tax_table
from specschedule.core.verdict import (
    ArmFacts,
    BarResult,
    Control,
    Floor,
    Judgement,
    Verdict,
    Watched,
)

__all__ = ["Judgement", "Verdict", "judge", "settled"]

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


def _nothing_launched(launches: Sequence[Launch]) -> str:
    """Say that no candidate was launched, and what befell the launches before."""
    faults = [(each.arm, each.failed or each.void) for each in launches]
    last = next((f"{arm}: {why}" for arm, why in reversed(faults) if why), None)
    return "no candidate was launched" + (f" ({last})" if last else "")


_Kind = Literal["Better", "NotBetter", "Worse", "Inconclusive", "Invalid"]


def judge(
    spec: Spec,
    launches: Sequence[Launch],
    *,
    server: ServerFacts | None = None,
    serving: ServingRegime | None = None,
) -> Judgement:
    """Judge every candidate that was launched.

    Args:
        spec: The question and its bar.
        launches: All launches of the run, void and failed ones too.
        server: The incumbent's server, whose speculative config a recommendation changes;
            without it the recommendation names the tokens only.
        serving: What the serving pods do, to be compared with the workload.
    """
    spec, launches = capacity.narrowed(spec, launches)
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
            message=_nothing_launched(launches),
            arms=_arms(evidence),
            notes=limits(evidence),
        )
    verdicts = [_Candidate(evidence, noise, name, len(tried)).verdict() for name in tried]
    outcome, said = _outcome(spec, verdicts)
    advice = controls.recommendation(said.controls, evidence, server)
    message = said.message
    if said.verdict == "Better":
        advice = serving_needs(spec, said.candidate, launches)
        if advice:
            outcome, message = "Proposed", f"{message}; proposed only: see the recommendation"
    tax = [
        row
        for candidate in spec.candidates
        if candidate.name in tried
        for row in tax_table(evidence, candidate)
    ]
    return Judgement(
        outcome=outcome,
        reason=said.reason,
        message=message,
        recommendation=advice,
        noise_floor=_floors(noise),
        verdicts=verdicts,
        tax=tax,
        watch=[item for verdict in verdicts for item in _watch(evidence, noise, verdict)],
        arms=_arms(evidence),
        notes=notes(evidence, verdicts, tax, serving),
    )


def settled(judgement: Judgement, candidate: str) -> str | None:
    """Return a candidate's verdict when more rounds cannot change it; None while it is open."""
    for verdict in judgement.verdicts:
        if verdict.candidate == candidate and verdict.verdict != "Inconclusive":
            return verdict.verdict
    return None


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
class _Candidate:
    """The judging of one candidate."""

    evidence: Evidence
    noise: Noise
    name: str
    tried: int

    def __post_init__(self) -> None:
        self.arm = f"candidate-{self.name}"
        self.rows = next(c.schedule for c in self.evidence.spec.candidates if c.name == self.name)
        self.pairs: list[Pair] = self.evidence.pairs(self.arm)

    def verdict(self) -> Verdict:
        """Decide: what cannot be judged, then losses, then controls, then the bar."""
        broken = self._invalid() or self._incomparable()
        if broken is not None:
            return broken
        needed = eprocess.E_NEEDED * self.tried
        bars = Applied(self.evidence, self.noise, self.rows, self.pairs, needed).results()
        found = controls.compare(self.evidence, self.noise, self.arm)
        kind, reason, message = self._conclude(bars, found)
        return self._say(kind, reason, message, bars=bars, controls=found)

    def _say(self, kind: _Kind, reason: str, message: str, **more: Any) -> Verdict:
        return Verdict(
            candidate=self.name,
            verdict=kind,
            reason=reason,
            message=f"{self.name}: {message}",
            rule=self.evidence.spec.rule,
            pairs=len(self.pairs),
            **more,
        )

    def _invalid(self) -> Verdict | None:
        """Say when the candidate could not be measured as what it claims to be."""
        own = [launch for launch in self.evidence.launches if launch.arm == self.arm]
        for launch in own:
            if launch.failed is not None:
                return self._say(
                    "Invalid",
                    "CandidateFailed",
                    f"launch {launch.launch} could not be measured: {launch.failed}",
                )
            served = launch.receipt.schedule
            if launch.void is None and served is not None and not _alike(served, self.rows):
                return self._say(
                    "Invalid",
                    "ScheduleNotInEffect",
                    f"launch {launch.launch} ran the schedule {served}, not {self.rows}",
                )
        return None

    def _incomparable(self) -> Verdict | None:
        """Say why the candidate and the incumbent cannot be compared at all."""
        for launch in self.evidence.launches:
            if launch.arm == INCUMBENT and launch.failed is not None:
                return self._say(
                    "Inconclusive",
                    "IncumbentFailed",
                    f"launch {launch.launch} of the incumbent could not be measured: "
                    f"{launch.failed}",
                )
        if not self.pairs:
            reasons = [f"launch {x.launch} ({x.arm}): {why}" for x, why in self.evidence.dropped]
            said = "no pair of launches with the incumbent counts"
            return self._say("Inconclusive", "TooFewPairs", "; ".join([said, *reasons]))
        apart = [_receipts_differ(p.arm.receipt, p.reference.receipt) for p in self.pairs]
        message = next((said for said in apart if said), None) or self._prefix_hits_differ()
        if message is not None:
            return self._say("Inconclusive", "ArmsNotComparable", f"arms not comparable {message}")
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
        for at in self.evidence.spec.load.points:
            ours = self._hit_share([pair.arm for pair in self.pairs], at)
            theirs = self._hit_share([pair.reference for pair in self.pairs], at)
            if ours is not None and theirs is not None and abs(ours - theirs) > PREFIX_HIT_STEP:
                return (
                    f"(prefix cache): at {at} in flight the candidate found {ours:.0%} of its "
                    f"prompt tokens cached, the incumbent {theirs:.0%}"
                )
        return None

    def _hit_share(self, launches: Sequence[Launch], at: int) -> float | None:
        counters = [
            cell.prefix_cache
            for launch in launches
            for cell in self.evidence.at(launch, Place(self.evidence.rate, at))
            if cell.prefix_cache is not None
        ]
        queries = sum(counter.queries for counter in counters)
        return sum(counter.hits for counter in counters) / queries if queries else None

    def _conclude(
        self, bars: Sequence[BarResult], found: Sequence[Control]
    ) -> tuple[_Kind, str, str]:
        lost = [bar for bar in bars if bar.answer == "Lost"]
        if lost:
            lost.sort(key=lambda bar: (bar.reason != "BandCollapsed", bar.change or 0.0))
            return "Worse", lost[0].reason, "; ".join(bar.message for bar in lost)
        best = controls.best(found)
        if best is not None:
            return "NotBetter", "ControlBeatsCandidate", best.message
        for answer, kind in (("NotMet", "NotBetter"), ("Unproven", "Inconclusive")):
            short = [bar for bar in bars if bar.answer == answer]
            if short:
                said = "; ".join(bar.message for bar in short)
                return (
                    ("NotBetter" if kind == "NotBetter" else "Inconclusive"),
                    short[0].reason,
                    said,
                )
        open_ = controls.incomparable(found)
        if open_ is not None:
            return "Inconclusive", "ControlIncomparable", open_.message
        gains = "; ".join(bar.message for bar in bars if bar.kind == "improve")
        every_pair = self.evidence.spec.rule is Rule.EVERY_PAIR
        return "Better", "EveryPairMeetsBar" if every_pair else "BarShown", gains


def _alike(served: Sequence[Sequence[int]], asked: Sequence[Sequence[int]]) -> bool:
    """Say whether two schedules give the same table up to the last batch size either names."""
    both = [[list(row) for row in rows] for rows in (served, asked)]
    limit = max((row[1] for rows in both for row in rows if len(row) > 1), default=1)
    tokens = max((row[-1] for rows in both for row in rows if row), default=1)
    try:
        tables = [effective(rows, max_tokens=max(1, tokens), max_num_seqs=limit) for rows in both]
    except ScheduleError:
        return False
    return tables[0].canonical == tables[1].canonical


def _receipts_differ(ours: Receipt, theirs: Receipt) -> str | None:
    for fact in SAME_IN_ALL_ARMS:
        a, b = getattr(ours, fact), getattr(theirs, fact)
        if a is not None and b is not None and a != b:
            return f"({fact.replace('_', ' ')}): the candidate ran {a}, the incumbent {b}"
    return None


def _places(evidence: Evidence) -> list[Place]:
    """Return every place that is looked at: whole-arm rates, then what the bar names."""
    points = sorted(set(evidence.spec.load.points))
    found = {Place(evidence.rate, at): None for at in points}
    for requirement in requirements(evidence.spec.bar):
        found |= dict.fromkeys(places(evidence.spec, requirement))
    return list(found)


def _floors(noise: Noise) -> list[Floor]:
    found = []
    for place in _places(noise.evidence):
        floor = noise.floor(place)
        if floor is not None:
            found.append(
                Floor(
                    metric=place.metric,
                    **place.load,
                    floor=floor if place.metric is Metric.ATTAINMENT else floor_share(floor),
                    count=len(noise.seen(place)),
                )
            )
    return found


def losing(spec: Spec, launches: Sequence[Launch], candidate: str) -> list[Place]:
    """Return the places where a candidate loses at least minEffect, and gains in no pair so far.

    Args:
        spec: The question.
        launches: Launches of earlier rounds.
        candidate: Name of the candidate.
    """
    evidence = Evidence(*capacity.narrowed(spec, launches))
    return list(_losing(evidence, candidate))


def _losing(evidence: Evidence, candidate: str) -> dict[Place, list[float]]:
    """Return the differences by pair at each place where a candidate has only losses."""
    pairs = evidence.pairs(f"candidate-{candidate}")
    asked = requirements(evidence.spec.bar)
    metrics = dict.fromkeys([evidence.rate, Metric.DECODE_RATE, *(each.metric for each in asked)])
    categories = {
        cell.category for pair in pairs for cell in evidence.cells(pair.arm) if cell.category
    }
    looked_at = [
        Place(metric, at, category)
        for metric in metrics
        if metric is not Metric.ATTAINMENT
        for at in sorted(set(evidence.spec.load.points))
        for category in (None, *sorted(categories))
    ]
    for each in asked:
        looked_at.extend(places(evidence.spec, each))
    found = {}
    for place in dict.fromkeys(looked_at):
        values = [evidence.difference(place, p.arm, p.reference) for p in pairs]
        known = [value for value in values if value is not None]
        least = to_effect(place.metric, -evidence.spec.bar.min_effect)
        if known and all(d < 0 for d in known) and sum(known) / len(known) <= least:
            found[place] = known
    return found


def _watch(evidence: Evidence, noise: Noise, verdict: Verdict) -> list[Watched]:
    """List losses of consistent sign, at least minEffect, that fail no requirement."""
    if verdict.verdict not in ("Better", "Inconclusive"):
        return []
    return [
        _watched(place, differences, noise, verdict)
        for place, differences in _losing(evidence, verdict.candidate).items()
        if len(differences) >= MIN_PAIRS
    ]


def _watched(place: Place, differences: Sequence[float], noise: Noise, verdict: Verdict) -> Watched:
    mean = sum(differences) / len(differences)
    spread = floor_share(noise.spread(place))
    change = to_share(place.metric, mean)
    pairs = [to_share(place.metric, d) for d in differences]
    each = ", ".join(f"{pair:+.1%}" for pair in pairs)
    return Watched(
        candidate=verdict.candidate,
        metric=place.metric,
        **place.load,
        change=change,
        pairs=pairs,
        spread=spread,
        message=f"{place}: {change:+.1%} ({each}), the same sign in every pair; relaunches of "
        f"the incumbent spread {spread:.1%} here",
    )


def _arms(evidence: Evidence) -> list[ArmFacts]:
    """Return launches, pooled acceptance length and decode rates by arm, as first launched."""
    found = []
    for arm in dict.fromkeys(launch.arm for launch in evidence.counted):
        launches = evidence.of(arm)
        cells = [cell for launch in launches for cell in evidence.cells(launch)]
        found.append(
            ArmFacts(
                arm=arm,
                launches=len(launches),
                acceptance_length=acceptance_length(cells),
                decode=decode_rates(cell for launch in launches for cell in launch.cells),
            )
        )
    return found
