"""The two objects of ``specschedule.dev/v1alpha1``, as users see them.

Values of the core are named, never copied. Every field that is ever written stands here or in
them: what the CRD does not name, the API server drops without a word.
"""

from typing import Any, Literal

from specschedule.core.budget import Cost
from specschedule.core.decode import DecodeRate
from specschedule.core.gate import Gate
from specschedule.core.observed import Promotion, TrialSpec, TrialStatus
from specschedule.core.proposal import Proposals
from specschedule.core.spec import Spec
from specschedule.core.values import Value
from specschedule.core.verdict import Floor, Note, Tax, Verdict, Watched

GROUP = "specschedule.dev"
VERSION = "v1alpha1"


class Condition(Value):
    """One aspect of the present state, as metav1.Condition."""

    type: Literal["Accepted", "Progressing", "Promoted", "Degraded", "Ready"]
    """Accepted, Progressing, Promoted, Degraded or Ready."""
    status: Literal["True", "False"]
    """True or False."""
    reason: str
    """CamelCase constant: why."""
    message: str
    """The same for people."""
    last_transition_time: str
    """RFC 3339 time at which the status last changed."""
    observed_generation: int
    """metadata.generation that this was said of."""


class Progress(Value):
    """How far the run is."""

    launches_done: int
    """Launches that are over."""
    launches_planned: int
    """Launches that the plan holds; more are added when one is void."""


class PointGoodput(Value):
    """Goodput of an arm at one load point."""

    at: int
    """Requests in flight."""
    per_second: float
    """Mean good requests per second."""
    windows: int
    """Measured windows behind the mean."""


class ArmSummary(Value):
    """What was measured of an arm so far."""

    arm: str
    """Name of the arm."""
    launches: int
    """Launches that are over and count."""
    cells: int
    """Windows that count."""
    goodput: list[PointGoodput] = []
    """Goodput by load point."""
    decode: list[DecodeRate] = []
    """How fast one stream decodes, by load point and prompt category, and by depth."""
    faults: list[str] = []
    """Why its last launches failed or do not count."""


class PastRun(Value):
    """A run that is over."""

    run_id: str
    """Run id; its SpecTrials carry it in the label specschedule.dev/run."""
    outcome: str
    """Outcome of the run; Superseded when a changed spec replaced it."""
    reason: str
    """CamelCase constant: why."""
    started_at: str | None = None
    """RFC 3339 time at which it began."""
    ended_at: str | None = None
    """RFC 3339 time at which it ended."""
    recommendation: str | None = None
    """What it recommended."""
    watch: list[str] = []
    """Losses of consistent sign that failed nothing: candidate, place and numbers."""


class Status(Value):
    """What is known of the present run. Facts only; stages and conditions are derived."""

    observed_generation: int | None = None
    """metadata.generation that this status is about."""
    run_id: str | None = None
    """Id of the run: a hash of the object's UID, its frozen spec and its retry count."""
    stage: str | None = None
    """Preflight, Screening, Measuring, AwaitingApproval, Promoting or Ended; derived, for
    people."""
    started_at: str | None = None
    """RFC 3339 time at which the run began."""
    ended_at: str | None = None
    """RFC 3339 time at which it ended."""
    plan: Cost | None = None
    """What the run will launch, and what it costs."""
    progress: Progress | None = None
    """How far the run is."""
    arms: list[ArmSummary] = []
    """What was measured of each arm so far."""
    gates: list[Gate] = []
    """Checks and their answers; only Pass and NotApplicable let a run go on to promotion."""
    noise_floor: list[Floor] = []
    """What relaunches of the same arm show between each other, by metric and load point; from the
    first relaunch on."""
    verdict: list[Verdict] = []
    """Verdict on each candidate, with the numbers behind it; from the first relaunch on, as far as
    the launches so far show, with the rounds that each requirement will need."""
    tax: list[Tax] = []
    """Where the candidate's time goes, by band."""
    watch: list[Watched] = []
    """Losses of consistent sign that fail nothing."""
    notes: list[Note] = []
    """What limits the verdict."""
    outcome: str | None = None
    """Rejected, Promoted, Proposed, NotPromoted, RolledBack, Inconclusive or Aborted; absent
    while the run goes on."""
    reason: str | None = None
    """CamelCase constant: why. kubectl explain specschedule.status.conditions.reason says what each
    means."""
    message: str | None = None
    """The same for people: object, field, numbers and remedy."""
    recommendation: str | None = None
    """The control that is best, with its argument, when the candidate is not; or what serving needs
    for a candidate that no promotion can bring."""
    promotion: Promotion | None = None
    """Record of the write to the target, made before the write."""
    proposals: Proposals | None = None
    """What the screen of spec.search proposes, with predicted gains; what is tested follows from
    it."""
    conditions: list[Condition] = []
    """Accepted, Progressing, Promoted, Degraded and Ready."""
    history: list[PastRun] = []
    """Runs that are over, newest first."""


class SpecSchedule(Value):
    """A speculative-decoding schedule to be found, proven by experiment and promoted.

    It tunes one vLLM serving workload of its namespace.
    """

    api_version: Literal["specschedule.dev/v1alpha1"]
    kind: Literal["SpecSchedule"]
    metadata: dict[str, Any]
    spec: Spec
    """The question, the load it is asked under, and the bar that decides it. A change of it
    starts a new run."""
    status: Status | None = None
    """What is known of the present run."""


class SpecTrial(Value):
    """One launch of one arm of a run: a start of its server and what was measured in it.

    Written only by the operator. SpecTrials are the ledger from which a lost status of their
    SpecSchedule is rebuilt.
    """

    api_version: Literal["specschedule.dev/v1alpha1"]
    kind: Literal["SpecTrial"]
    metadata: dict[str, Any]
    spec: TrialSpec
    """The launch as planned; never changes."""
    status: TrialStatus | None = None
    """What became of the launch."""
