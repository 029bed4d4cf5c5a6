"""A visit: one load job against one launch, and the lines it says on standard output.

The plan goes to the load process as one JSON value; the process answers with one JSON line per
event. Both sides of the port share these types.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from specschedule.core.evidence import Cell, Fit, Profile, Reading, Receipt
from specschedule.core.spec import Load, Sampling, Slo
from specschedule.core.values import Duration, Value

FailureReason = Literal[
    "ServerUnreachable", "NotScraped", "BadPlan", "PromptsMissing", "Stalled", "NotSwitched"
]
"""Why a visit could not be carried out; NotSwitched: a probe did not follow its requests."""

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
    context: Annotated[int, Field(ge=1)] | None = None
    """Mean context that the window stands for, in tokens; its prompts are made that long."""
    seed: int = 0
    """Seed of the prompts; equal for all arms of a round."""
    requests: Annotated[int, Field(ge=1)] = 20
    """Finished requests that the window needs at least."""


class Screen(Value):
    """A screen: windows are chosen one by one, each from the cells before it.

    One launch is a probe, whose K requests switch in band; a launch with one fixed K and a launch
    without speculation measure their own settings only.
    """

    batch_sizes: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    """Requests in flight at which K is to be chosen."""
    weights: list[Annotated[float, Field(ge=0)]] = []
    """Share of the time that serving spends near each of them, in their order; empty where nobody
    tells."""
    contexts: list[Annotated[int, Field(ge=1)]] = []
    """Mean contexts, in tokens; empty where they do not matter."""
    max_tokens: Annotated[int, Field(ge=1)]
    """Largest K that may be tried."""
    max_num_seqs: Annotated[int, Field(ge=1)]
    """Largest batch size of the server."""
    max_model_len: int | None = None
    """Longest sequence of the server; absent when unknown."""
    kv_cache_tokens: int | None = None
    """Tokens that the server's KV cache holds; absent when unknown."""
    graph_sizes: list[int] | None = None
    """Batch shapes for which the server has CUDA graphs; vLLM's usual ones when absent."""
    tokens: int | None = None
    """K that the launch is fixed to; absent for a probe and without speculation."""
    secret: str | None = None
    """Secret of a probe launch; requests that carry it switch K. Absent for other launches."""
    page: str | None = None
    """Base URL of the probe scheduler's page, where the load process can reach it."""
    seed: int = 0
    """Decides the order of windows."""
    done: list[Cell] = []
    """Cells of the run's earlier screening visits; what they tell is not measured again."""

    def within(self, receipt: Receipt) -> "Screen":
        """Return the screen within what a launch tells: its KV cache, and its own graphs.

        Args:
            receipt: Of a launch; of several caches the smallest counts, of graphs the last told.
        """
        caches = (self.kv_cache_tokens, receipt.kv_cache_tokens)
        told = [] if receipt.graph_mode == "NONE" else receipt.captured_sizes
        return self.model_copy(
            update={
                "kv_cache_tokens": min(filter(None, caches), default=None),
                "graph_sizes": self.graph_sizes if told is None else sorted(told),
            }
        )


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
    windows: list[Window] = []
    """Cells in order."""
    screen: Screen | None = None
    """What to screen, instead of cells in order."""
    slo: Slo
    """Limits of a good request."""
    prompt_tokens: int = 128
    """Length of synthetic prompts."""
    output_tokens: int = 128
    """Output length of every request."""
    ignore_eos: bool = True
    """Whether answers go on to that length; else it is a limit."""
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


def as_asked(slo: Slo, load: Load) -> dict[str, Any]:
    """Return the fields of a visit that are the same in every visit of a question."""
    return {
        "slo": slo,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "ignore_eos": load.ignore_eos,
        "sampling": load.sampling,
        "prefix_cache": load.prefix_cache,
        "endpoint": load.endpoint,
        "max_send_lag": load.max_send_lag,
    }


class Fitted(Reading):
    """What the server has no room for is known; nothing was sent so far."""

    event: Literal["fitted"] = "fitted"
    fit: Fit
    """What is left out."""


class Warmed(Reading):
    """The warm-up is over; nothing before this counts."""

    event: Literal["warmed"] = "warmed"
    seconds: float
    """Duration of the warm-up."""
    steady: bool | None = None
    """Whether throughput was steady by then, or the time ran out first; None where nobody looked:
    an open loop and answers that are compared have a lead of fixed length."""


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
    reason: FailureReason
    """Kind of failure."""
    message: str
    """What happened, for people."""


Event = Fitted | Warmed | CellClosed | VisitEnded | VisitFailed
"""Anything that a load process says."""

visit_event: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="event")], config=ConfigDict(defer_build=True)
)
"""Reads one line of a load process; raises pydantic.ValidationError on anything else."""
