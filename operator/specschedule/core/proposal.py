"""What a screening launch says, as values: candidates with predicted numbers and reasons."""

from collections.abc import Mapping, Sequence
from math import expm1, log, sqrt
from typing import Literal

from specschedule.core.forecast import Z95, Interval, Predicted
from specschedule.core.screen import Ask
from specschedule.core.values import Value

MOST_NOTES = 8
"""Notes kept in a run's status, the first ones."""
LARGEST = 10.0
"""Logarithm of the largest gain that is told apart: a control that serves hardly any request
well."""


class Proposed(Value):
    """One thing worth testing."""

    name: str
    """best, conservative, no-zero, largest, context, boundary-N, static-K, none or adaptive."""
    kind: Literal["schedule", "static", "none", "adaptive"]
    """How the engine is run."""
    schedule: list[list[int]] | None = None
    """num_speculative_tokens_per_batch_size."""
    max_tokens: int | None = None
    """num_speculative_tokens."""
    same_as: str | None = None
    """Candidate that the engine would treat alike; such a one is not worth testing again."""
    predicted: list[Predicted] = []
    """At each load point (and context)."""
    over_none: Interval | None = None
    """Predicted gain of goodput over no speculation, as a share, over the load points; of
    throughput where no request can meet the limits."""
    over_static: Interval | None = None
    """The same against the best static K."""
    why: str
    """What it is for, and what speaks for it."""
    warnings: list[str] = []
    """What a reader must know before testing it."""


class Choice(Value):
    """How K was chosen at one load point."""

    at: int
    """Requests in flight."""
    context: int | None = None
    """Mean context, where it varies."""
    best: int
    """K with the best prediction."""
    near: list[int]
    """Ks that cannot be told from it."""
    chosen: int
    """K of the best schedule there."""
    expected_regret: float
    """Share of the objective expected to be lost by taking the best K."""


class Length(Value):
    """Acceptance length at one K."""

    tokens: int
    """K."""
    length: float
    """Mean tokens per step and request."""
    sd: float
    """Standard deviation, as a share."""
    measured: bool
    """Whether windows of this K were measured."""


class Proposal(Value):
    """What a screening launch says."""

    lead: str
    """Name of what to test first."""
    candidates: list[Proposed]
    """The best first."""
    choices: list[Choice]
    """By load point."""
    acceptance: list[Length]
    """By K."""
    windows: int
    """Windows that counted, on the path of a schedule."""
    noise: float
    """Spread between repeated windows of one setting (standard deviation, as a share)."""
    expected_regret: float
    """Share of the objective expected to be lost by stopping here."""
    measure_next: list[Ask]
    """Windows that would help most; empty when it is enough."""
    notes: list[str]
    """What was left out, and what could not be told."""


class Proposals(Value):
    """What is kept of it: from this follows what a run tests."""

    lead: str
    """Name of what to test first, or of the control that no schedule is predicted to beat."""
    proposed: list[Proposed]
    """The best first, with single predictions of the lead only."""
    windows: int
    """Windows that counted."""
    expected_regret: float
    """Share of the objective expected to be lost by stopping here."""
    notes: list[str] = []
    """What was left out, and what could not be told."""


def kept(proposal: Proposal) -> Proposals:
    """Return what a run keeps of a proposal."""
    notes, more = proposal.notes, len(proposal.notes) - MOST_NOTES
    if more > 0:
        notes = [*notes[: MOST_NOTES - 1], f"{more + 1} more, such as: {notes[MOST_NOTES - 1]}"]
    return Proposals(
        lead=proposal.lead,
        proposed=[
            each if each.name == proposal.lead else each.model_copy(update={"predicted": []})
            for each in proposal.candidates
        ],
        windows=proposal.windows,
        expected_regret=proposal.expected_regret,
        notes=notes,
    )


def compared(
    candidate: Proposed, static: Proposed, none: Proposed, time_at: Mapping[int, float]
) -> Proposed:
    """Return a candidate with its predicted gains over the controls.

    Args:
        candidate: What is compared; may be a control itself.
        static: The best static K.
        none: No speculation.
        time_at: Share of the time spent at each number of requests in flight.
    """
    over_none = None if candidate is none else gain(candidate, none, time_at)
    over_static = None if candidate is static else gain(candidate, static, time_at)
    warnings = candidate.warnings
    if over_none is not None and over_none.low <= 0 < over_none.high:
        warnings = [*warnings, "whether it is better than no speculation cannot be told yet"]
    return candidate.model_copy(
        update={"over_none": over_none, "over_static": over_static, "warnings": warnings}
    )


def gain(candidate: Proposed, control: Proposed, time_at: Mapping[int, float]) -> Interval | None:
    """Return the gain over a control where both are predicted, as a share; None when nowhere.

    Where both run the same K on the same path nothing is gained, whatever is predicted.
    """
    theirs = {(p.at, p.context): p for p in control.predicted}
    pairs = [
        (p, theirs[p.at, p.context]) for p in candidate.predicted if (p.at, p.context) in theirs
    ]
    weights = [time_at.get(ours.at, 0.0) for ours, _ in pairs]
    if not sum(weights):
        return None
    total = variance = 0.0
    for (ours, other), weight in zip(pairs, weights, strict=True):
        if ours.tokens == other.tokens and "none" not in (candidate.kind, control.kind):
            continue
        good = ours.goodput.value > 0 and other.goodput.value > 0
        a, b = (ours.goodput, other.goodput) if good else (ours.throughput, other.throughput)
        share = weight / sum(weights)
        total += share * log(a.value / b.value)
        variance += sum((share * _sd(p)) ** 2 for p in (ours, other))
    half = Z95 * sqrt(variance)
    value, low, high = (round(expm1(min(total + x, LARGEST)), 4) for x in (0.0, -half, half))
    return Interval(value=value, low=low, high=high)


def lead(candidates: Sequence[Proposed]) -> str:
    """Return what to test first: the best schedule unless a plainer control is as good."""
    best = candidates[0]
    if best.over_none is not None and best.over_none.value <= 0:
        return "none"
    if len(best.schedule or []) == 1:
        return next(c.name for c in candidates if c.kind == "static")
    return best.name


def _sd(predicted: Predicted) -> float:
    """Return the standard deviation of the logarithm of a prediction."""
    return log(predicted.throughput.high / predicted.throughput.low) / (2 * Z95)
