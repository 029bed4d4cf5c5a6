"""What the judge says: values that go into the status, the CLI's JSON and the report."""

from typing import Literal

from specschedule.core.decode import DecodeRate
from specschedule.core.spec import Metric, Rule
from specschedule.core.values import Value

Answer = Literal["Met", "NotMet", "Lost", "Unproven"]
"""Met; NotMet: shown not to reach it; Lost: a loss is shown; Unproven: neither."""


class BarResult(Value):
    """One requirement of the bar at one place."""

    kind: Literal["improve", "protect", "elsewhere"]
    """Which part of the bar."""
    metric: Metric
    """What was compared."""
    at: int | None = None
    """Requests in flight; absent in an open loop."""
    requests_per_second: float | None = None
    """Offered load of an open loop; its lowest rate, where it swings."""
    peak_requests_per_second: float | None = None
    """Rate half-way, where it rises evenly to a peak and falls back."""
    trace: bool | None = None
    """True for the recorded arrivals of load.trace."""
    category: str | None = None
    """Prompt category; pooled when absent."""
    context: int | None = None
    """Context class, in tokens; pooled when absent."""
    band: str | None = None
    """Batch sizes of the candidate's band here, and its K."""
    required: float
    """Change that is asked for: +0.15 gains 15 %, -0.03 loses 3 % at most."""
    answer: Answer
    """Met, NotMet, Lost (a loss is shown) or Unproven."""
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
    rounds_needed: int | None = None
    """Sequential: rounds that a true change of roundsNeededFor takes at the noise seen."""
    rounds_needed_for: float | None = None
    """Sequential: the change that the forecast is for."""
    p: float | None = None
    """Exact sign-flip p, two-sided."""


class Control(Value):
    """A control against a candidate, over the load points."""

    arm: str
    """none, static-K or adaptive."""
    change: float | None = None
    """How much better the control is than the candidate; negative: the candidate is better.
    Absent where the candidate has no good request at all, and where the two cannot be compared:
    then beats is false."""
    ahead_of_incumbent: bool = False
    """Whether it is better than the incumbent; the incumbent may have no good request at all."""
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
    at: int | None = None
    """Requests in flight; absent in an open loop."""
    requests_per_second: float | None = None
    """Offered load of an open loop."""
    trace: bool | None = None
    """True for the recorded arrivals of load.trace."""
    category: str | None = None
    """Prompt category; pooled when absent."""
    context: int | None = None
    """Mean context, in tokens, where the bar names one."""
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
    at: int | None = None
    """Requests in flight; absent in an open loop."""
    requests_per_second: float | None = None
    """Offered load of an open loop."""
    trace: bool | None = None
    """True for the recorded arrivals of load.trace."""
    category: str | None = None
    """Prompt category; pooled when absent."""
    context: int | None = None
    """Mean context, in tokens, where the bar names one."""
    change: float
    """Mean change; negative is worse."""
    pairs: list[float]
    """Change of each pair."""
    spread: float
    """What the incumbent's own relaunches show here."""
    message: str
    """The same for people."""

    @property
    def inside_spread(self) -> bool:
        """Whether chance alone could show it; more pairs can tell."""
        return abs(self.change) <= self.spread


class Note(Value):
    """Something the reader must know to trust the verdict as far as it goes."""

    reason: str
    """CamelCase constant."""
    message: str
    """The same for people."""


class Tax(Value):
    """One cost of one band."""

    candidate: str
    """Candidate's arm."""
    band: str
    """Batch sizes, as 3-16."""
    tokens: int
    """K of the band."""
    at: int
    """Load point that was compared."""
    what: str
    """fromNone: the candidate against none; dynamicPath: constant against static, and where graph
    modes differ its two parts, graphMode (static in piecewise graphs against static in its own)
    and pathAlone (constant against static in piecewise graphs); zeroTokens:
    zero against none; freeZero: none against the candidate, what a free K=0 would return;
    crossing and firstPass: windows across the boundary against the mean of both sides; firstPass is
    the first time that the launch went above it; crossingSteps: engine steps at a change of K
    against stable ones of the same K, where the engine carries the recorder; burst: the candidate
    against the incumbent while the batch fills to the highest load point and drains to the
    lowest, later passes only."""
    metric: Metric | None = None
    """What was compared: throughput, where tokens were counted. Absent where steps were compared
    (crossingSteps), and in older records, which compared goodput."""
    change: float
    """Change; negative is a cost."""
    low: float | None = None
    """Lower end of the 95 % interval; absent below two pairs, and where something stood still."""
    high: float | None = None
    """Upper end."""
    count: int
    """Pairs behind it."""
    message: str
    """The same for people."""


class ArmFacts(Value):
    """One arm at a glance."""

    arm: str
    """Arm."""
    launches: int
    """Launches that count."""
    acceptance_length: float | None = None
    """Tokens per verification, pooled over all its windows; absent where nothing was drafted."""
    decode: list[DecodeRate] = []
    """How fast one stream decodes, by load point and prompt category, and by depth."""


class Judgement(Value):
    """Everything that can be said of a run's launches."""

    outcome: Literal["Promoted", "Proposed", "NotPromoted", "Inconclusive"]
    """What follows by the spec's mode, once approved where that is asked for."""
    reason: str
    """CamelCase constant."""
    message: str
    """The same for people, with the numbers."""
    recommendation: str = ""
    """Control that is better than everything else, with its argument, or what serving needs for a
    winner that no promotion can bring; empty otherwise."""
    noise_floor: list[Floor] = []
    """By metric and load point of the bar."""
    verdicts: list[Verdict] = []
    """Candidates that were tried, in the spec's order."""
    tax: list[Tax] = []
    """Where the candidate's time goes, by band."""
    watch: list[Watched] = []
    """Losses of consistent sign that fail nothing."""
    arms: list[ArmFacts] = []
    """Arms that were measured."""
    notes: list[Note] = []
    """What limits the verdict."""
