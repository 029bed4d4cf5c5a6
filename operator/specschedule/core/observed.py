"""What is seen of one SpecSchedule and its world at one moment, and what may be done about it.

Observations are gathered once per reconcile by an adapter (pods or local processes) and are
all that ``decide`` looks at. Actions are all that it may ask for. Times are Unix seconds.
"""

from typing import Any, Literal

from pydantic import Field

from specschedule.core.evidence import Cell, DeviceTimes, Fit, Receipt
from specschedule.core.regime import ServingRegime
from specschedule.core.spec import Spec
from specschedule.core.target import TargetFacts, Unreadable
from specschedule.core.values import Value
from specschedule.core.visit import Event, Visit
from specschedule.core.workload import Workload


class TrialSpec(Value):
    """One launch, as written into SpecTrial.spec: immutable."""

    run_id: str
    """Run it belongs to."""
    arm: str
    """Arm to launch."""
    launch: int
    """Number of the launch, from 1."""
    round: int
    """Round, from 1."""
    position: int
    """Position in the round, from 1."""
    attempt: int = 1
    """Which try of its pair this is, from 1."""
    schedule: list[list[int]] | None = None
    """Schedule of the arm, if it has one."""
    context_axis: bool = False
    """True where the launch brings the context-axis scheduler, which follows the schedule; the
    engine boots with other rows."""
    speculative: dict[str, Any] | None = None
    """Speculative config of the arm; absent where it serves without one."""
    unchanged: bool = False
    """True for arms that keep the target's own arguments byte for byte."""
    graph_mode: str | None = None
    """cudagraph_mode of the arm, where it is not the target's own."""
    node: str | None = None
    """Node that the pod prefers, so that arms which run on two nodes change places."""
    visit: Visit
    """What the load process does; its url is filled in when the pod has an address."""
    template_hash: str
    """Hash of the target's pod template, less its speculative argument, when this was planned."""
    incumbent: dict[str, Any] | None = None
    """The target's own speculative config when the run began."""
    incumbent_arguments: list[str] = []
    """The target's own argument list when the run began, byte for byte."""
    bar_digest: str
    """Digest of the bar."""
    serving: ServingRegime | None = None
    """What the serving pods did when the run began, in its first launch; absent where Prometheus
    did not tell."""
    workload: Workload | None = None
    """What the load sends, as it was when the run began, in its first launch."""

    @property
    def screening(self) -> bool:
        """Whether it serves to find candidates; its windows are no evidence for or against any."""
        return self.visit.screen is not None


class TrialStatus(Value):
    """What became of a launch, as written into SpecTrial.status."""

    started_at: str | None = None
    """RFC 3339 time at which its pod was created."""
    ready_at: str | None = None
    """RFC 3339 time at which it was Ready."""
    ended_at: str | None = None
    """RFC 3339 time at which it was over; set once, then nothing changes."""
    gpu_seconds: float | None = None
    """GPUs x seconds held."""
    receipt: Receipt = Field(default_factory=Receipt)
    """Facts of the launch."""
    cells: list[Cell] = []
    """Windows measured."""
    void: str | None = None
    """Why the launch must not count, through no fault of its arm."""
    failed: str | None = None
    """Why its arm could not be measured."""
    visits: int = 0
    """Load jobs started for it."""
    warm_up_seconds: float | None = None
    """How long its last visit loaded it before the first window opened; nothing of that counts."""
    warm_up_steady: bool | None = None
    """Whether throughput was steady by then, or the time ran out first; absent where its first
    window was none of a held load."""
    fit: Fit | None = None
    """What its server had no room for; absent where nobody looked."""
    device: DeviceTimes | None = None
    """How long its steps kept the device, in a screening launch; absent where nothing was said."""
    check: str | None = None
    """What Prometheus said of the cells: Agrees, or what disagrees."""


class PodFacts(Value):
    """A trial pod (or process)."""

    phase: Literal["Pending", "Starting", "Ready", "NotReady", "Ended"]
    """Pending: not scheduled or no image yet; Starting: container runs, never Ready so far."""
    message: str = ""
    """Why it is in that phase, in the scheduler's, kubelet's or engine's own words."""
    reason: str | None = None
    """Unschedulable, ImagePull, NotDelivered, OutOfMemory, Preempted, Evicted, NodeLost, Deleted,
    Exited or None."""
    created_at: float
    """Creation."""
    ready_at: float | None = None
    """When it became Ready."""
    url: str | None = None
    """Base URL of the server, once it has an address."""
    restarts: int = 0
    """Container restarts."""
    compiled_at: list[float] | None = []
    """When its engine compiled something under load, as its log tells; looked for once a visit is
    over. None when the log cannot be read just now."""
    finding: str | None = None
    """What a scheduler of ours found its engine to do otherwise than planned, as its log tells;
    looked for once a visit is over."""
    device: DeviceTimes | None = None
    """How long its steps kept the device, as its log tells; looked for once a visit is over."""
    receipt: Receipt = Field(default_factory=Receipt)
    """Facts read from it so far."""


class VisitFacts(Value):
    """A load job (or process)."""

    phase: Literal["Running", "Succeeded", "Failed"]
    """Failed covers pods that could not run at all."""
    message: str = ""
    """Why, in the cluster's own words."""
    created_at: float
    """Creation."""
    events: list[Event] = []
    """Lines said so far, in order."""


class TrialFacts(Value):
    """One launch: what was planned, what is recorded, what runs."""

    name: str
    """Name of the SpecTrial."""
    spec: TrialSpec
    """What was planned."""
    status: TrialStatus
    """What is recorded."""
    pod: PodFacts | None = None
    """Its pod, if one exists."""
    visit: VisitFacts | None = None
    """Its load job, if one exists."""
    scraped: dict[str, dict[str, float]] | None = None
    """Final counters by cell and outcome as Prometheus has them, once the visit ended; None when
    Prometheus could not be asked."""
    unseen: str = ""
    """Where Prometheus has none of them: what was asked, and what it has instead."""


class Promotion(Value):
    """The record of a write to the target, kept in the SpecSchedule's status before the write."""

    candidate: str
    """Candidate promoted."""
    target: str | None = None
    """Name of the Deployment written to: spec.target may change while the write is in flight."""
    speculative: dict[str, Any] | None = None
    """Speculative config of the candidate."""
    previous: dict[str, Any] | None = None
    """Speculative config before."""
    previous_arguments: list[str] | None = None
    """The argument list before, byte for byte; what a rollback puts back."""
    field: Literal["args", "command"] = "args"
    """Which list of the container it is."""
    template_hash: str | None = None
    """TargetFacts.template_hash that the evidence holds for."""
    written: int = 0
    """Times that the change was written; more than once means that somebody changed it back."""
    started_at: float
    """When the record was written."""
    reverting: str | None = None
    """Why the previous arguments are being put back; absent while going forward."""


class ScheduleFacts(Value):
    """The SpecSchedule itself."""

    namespace: str
    """Namespace."""
    name: str
    """Name."""
    uid: str
    """UID."""
    generation: int
    """metadata.generation."""
    created_at: float
    """Creation."""
    deleting: bool = False
    """Whether it is being deleted."""
    finalizer: bool = False
    """Whether our finalizer stands on it."""
    spec: Spec | Unreadable
    """The spec, or why it is none."""
    approved: str | None = None
    """Run id in the annotation specschedule.dev/approve."""
    retry: int = 0
    """Count in the annotation specschedule.dev/retry."""
    again: str = ""
    """How a person asks once more after a change outside this object."""
    status: dict[str, Any] = {}
    """Status as stored; facts in it are re-derived where they can be."""


class MetricsFacts(Value):
    """Whether Prometheus answers."""

    url: str | None
    """Which server; None when none is configured."""
    available: bool
    """Whether it answered just now."""
    message: str = ""
    """Why not."""


class Observed(Value):
    """Everything ``decide`` looks at."""

    schedule: ScheduleFacts
    """The object."""
    target: TargetFacts | Unreadable
    """Its target; Unreadable(TargetNotFound) when there is none."""
    trials: list[TrialFacts] = []
    """Launches of this object, of every run."""
    metrics: MetricsFacts
    """Prometheus."""
    load: Unreadable | None = None
    """Which prompts or volume of spec.load is not there; None when all is."""
    workload: Workload = Workload()
    """What the load sends, as far as it could be read."""
    serving: ServingRegime | None = None
    """What the serving pods do, while a run begins; None where Prometheus does not tell."""
    probes: bool = True
    """Whether launches can carry a scheduler of ours, which a probe needs."""
    other_run: str | None = None
    """Name of another SpecSchedule that is running on the same target, and came first."""


class CreateTrial(Value):
    """Write a SpecTrial; no pod yet."""

    name: str
    """Derived name."""
    spec: TrialSpec
    """What to launch."""


class StartLaunch(Value):
    """Create the pod of a trial."""

    trial: str


class StartVisit(Value):
    """Create the load job of a trial."""

    trial: str
    visit: Visit


class StopVisit(Value):
    """Delete the load job of a trial."""

    trial: str


class StopLaunch(Value):
    """Delete the pod of a trial."""

    trial: str


class RecordTrial(Value):
    """Store a trial's status."""

    trial: str
    status: TrialStatus


class DeleteTrial(Value):
    """Delete a SpecTrial and all it owns."""

    trial: str


class SetSpeculative(Value):
    """Change the one speculative argument of the target, if nothing else changed meanwhile."""

    speculative: dict[str, Any] | None
    """The config to serve with; None takes the argument away."""
    resource_version: str
    """Precondition."""


class RestoreArguments(Value):
    """Put the target's argument list back as it was."""

    field: Literal["args", "command"]
    arguments: list[str]
    expected: dict[str, Any] | None
    """Speculative config that must be in force now; anything else is a foreign edit."""
    resource_version: str
    """Precondition."""


class SetFinalizer(Value):
    """Put our finalizer on the SpecSchedule, or take it off."""

    present: bool


Action = (
    CreateTrial
    | StartLaunch
    | StartVisit
    | StopVisit
    | StopLaunch
    | RecordTrial
    | DeleteTrial
    | SetSpeculative
    | RestoreArguments
    | SetFinalizer
)
