"""A visit: one load job against one launch, and the lines it says on standard output.

The plan goes to the load process as one JSON value; the process answers with one JSON line per
event. Both sides of the port share these types.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from specschedule.core.evidence import Cell, Profile, Reading
from specschedule.core.spec import Sampling, Slo
from specschedule.core.values import Duration, Value

COMPARED_TOKENS = (8, 32)
"""Shortest and longest answer of a window that compares outputs: requests must join and leave."""


def waves(steps: Sequence[Sequence[int]]) -> int:
    """Return how many requests follow each other in a window that compares outputs, at most."""
    return sum(-(-prompts // in_flight) for in_flight, prompts in steps)


class Window(Value):
    """A cell to measure."""

    cell: str
    """Name of the cell, unique in its launch."""
    profile: Profile
    """Load to hold."""
    category: str | None = None
    """Prompt category; all categories mixed when absent."""
    tokens: int | None = None
    """Speculative tokens that the arm's table plans here, where they do not vary."""
    seed: int = 0
    """Seed of the prompts; equal for all arms of a round."""
    requests: Annotated[int, Field(ge=1)] = 20
    """Finished requests that the window needs at least."""


class Visit(Value):
    """Everything a load process needs to know."""

    run: str
    """Run id."""
    arm: str
    """Arm under load."""
    launch: int
    """Launch under load."""
    round: int
    """Round of the launch."""
    visit: int = 1
    """Number of this visit to the launch."""
    url: str
    """Base URL of the server, such as http://10.0.0.7:8000."""
    windows: list[Window]
    """Cells in order."""
    slo: Slo
    """Limits of a good request."""
    prompt_tokens: int = 128
    """Length of synthetic prompts."""
    output_tokens: int = 128
    """Output length of every request."""
    sampling: Sampling = Field(default_factory=Sampling)
    """Sampling parameters."""
    prefix_cache: Literal["Unique", "Shared", "Warm"] = "Unique"
    """Prefix-cache regime."""
    endpoint: Literal["completions", "chat"] = "completions"
    """Which endpoint to send to."""
    max_send_lag: Duration = 0.005
    """Windows whose send lag p99 is larger are void."""
    request_timeout: Duration = 120.0
    """A request that takes longer is failed."""
    scrapes: Annotated[int, Field(ge=0)] = 3
    """Scrapes of the counters to wait for after the last cell, and one before the first; 0 when
    no Prometheus looks."""
    scrape_timeout: Duration = 90.0
    """How long to wait for those scrapes."""
    warm_up_timeout: Duration = 60.0
    """How long throughput may take to become steady."""


class Warmed(Reading):
    """Throughput is steady; nothing before this counts."""

    event: Literal["warmed"] = "warmed"
    seconds: float
    """Duration of the warm-up."""
    steady: bool
    """False when the time ran out first."""


class CellClosed(Reading):
    """A window is over."""

    event: Literal["cell"] = "cell"
    cell: Cell
    """What was measured."""


class VisitEnded(Reading):
    """All windows are over, and the counters were scraped as asked."""

    event: Literal["ended"] = "ended"
    scraped_at: list[float] = []
    """Unix times of the scrapes after the last cell closed."""


class VisitFailed(Reading):
    """The visit could not be carried out."""

    event: Literal["failed"] = "failed"
    reason: Literal["ServerUnreachable", "NotScraped", "BadPlan", "PromptsMissing", "Stalled"]
    """Kind of failure."""
    message: str
    """What happened, for people."""


VisitEvent = Annotated[Warmed | CellClosed | VisitEnded | VisitFailed, Field(discriminator="event")]

visit_event: TypeAdapter[Warmed | CellClosed | VisitEnded | VisitFailed] = TypeAdapter(
    VisitEvent, config=ConfigDict(defer_build=True)
)
"""Reads one line of a load process; raises pydantic.ValidationError on anything else."""
