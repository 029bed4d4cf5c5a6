"""Evidence: what a launch is, what was measured in it, and what is known to be missing.

Cells and receipts are read from users' files too, so unknown fields are ignored there; a value
that was not measured is absent, never zero or null.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator

from specschedule.core.values import Value

HELD_AT_LEAST = 0.9
"""Share of a held window in which exactly the planned number of requests must be in flight.

A stream is away between two requests, 0.04 to 0.3 ms each on real vLLM: the share is 99.9 % at 12
in flight and 97 % at 512 with answers of a second. Such pauses are the same for every arm, so they
make a difference smaller and never larger; a load that is away for longer is not the one declared.
"""

FINDS_DRAFTS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft what they find in the text so far, which is often less than K."""


class Reading(Value):
    """A value read from outside; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Profile(Reading):
    """The load of one cell."""

    kind: Literal["hold", "crossing", "burst", "open", "depth", "equivalence"]
    """hold, crossing, burst, open, depth or equivalence."""
    concurrency: int | None = None
    """hold: requests in flight; 1 is the single stream."""
    low: int | None = None
    """crossing: requests in flight below the boundary."""
    high: int | None = None
    """crossing: requests in flight above the boundary."""
    period_seconds: float | None = None
    """crossing: seconds on each side."""
    boundary: int | None = None
    """crossing: the last batch size of the lower band."""
    peak: int | None = None
    """burst: requests in flight when full."""
    floor: int | None = None
    """burst: requests in flight when drained."""
    pass_: Annotated[int | None, Field(alias="pass")] = None
    """crossing and burst: which pass, from 1; the first pays first-use costs."""
    requests_per_second: float | None = None
    """open: offered arrivals; of a trace, on average."""
    peak_requests_per_second: float | None = None
    """open: the rate half-way, when it rises evenly to a peak and falls back."""
    trace: str | None = None
    """open: recorded arrivals to replay instead of drawn ones: a file, or the digest of the one
    that the load process is given."""
    context: int | None = None
    """depth, and hold where a context is wanted: prompt tokens."""
    contexts: list[int] | None = None
    """hold: prompt tokens that requests take in turn, where contexts are mixed."""
    steps: list[list[int]] | None = None
    """equivalence: [requests in flight, prompts] of each step, in order; a prompt is sent as soon
    as fewer than that many are in flight."""

    @property
    def as_they_are(self) -> bool:
        """Whether prompts are sent as they are: none is made to a length for its context."""
        return self.context is None and self.contexts is None

    @property
    def mean_rate(self) -> float | None:
        """Mean arrivals per second of an open loop: a rate rises evenly to its peak and falls."""
        low = self.requests_per_second
        if self.kind != "open" or low is None:
            return None
        return (low + (self.peak_requests_per_second or low)) / 2


class Quantiles(Reading):
    """Quantiles in milliseconds."""

    p50: float | None = None
    """Median."""
    p90: float | None = None
    """90th percentile."""
    p99: float | None = None
    """99th percentile."""


class PrefixCache(Reading):
    """The engine's prefix-cache counters over the window."""

    queries: int
    """Tokens looked up."""
    hits: int
    """Tokens found."""


class StepTimes(Reading):
    """Engine steps alike."""

    count: int
    """How many."""
    mean_ms: float
    """Mean time of one, in milliseconds."""


class Steps(Reading):
    """The engine steps of a window that verified one planned K, as counted inside the engine."""

    tokens: int
    """K."""
    count: int
    """How many; a step that followed none at once does not tell its time and is not counted."""
    mean_ms: float
    """Mean time of one, in milliseconds."""
    p99_at_most_ms: float | None = None
    """Upper edge of the bucket that holds the 99th percentile; absent beyond the last edge."""
    graph_modes: dict[str, int] | None = None
    """How many by CUDA graph mode of the target's pass; absent where it was not told."""
    stable: StepTimes | None = None
    """Those that computed no prompt and are no part of a change of K."""
    change: StepTimes | None = None
    """Those that computed no prompt and are part of a change of K."""


class Outputs(Reading):
    """Answers at temperature 0, by prompt, in the order in which the prompts were sent."""

    prompts: str
    """Digest of the requests; outputs are comparable only where it is the same."""
    unit: Literal["token", "character"]
    """What an answer is made of: token ids with a space between them, or plain text where the
    server tells no ids."""
    answers: list[str]
    """One answer per prompt."""

    def units(self, prompt: int) -> list[str]:
        """Return the tokens (or characters) of one answer."""
        answer = self.answers[prompt]
        return answer.split() if self.unit == "token" else list(answer)


class Cell(Reading):
    """One measured window of a visit: load profile x category x context x seed."""

    cell: str
    """Name, unique in its launch."""
    arm: str
    """Arm measured."""
    launch: int
    """Launch measured."""
    round: int = 1
    """Round of the launch."""
    visit: int = 1
    """Visit of the launch."""
    profile: Profile
    """Load of the window."""
    category: str | None = None
    """Prompt category; absent when mixed."""
    context: int | None = None
    """Mean context of the requests, in tokens."""
    tokens: int | None = None
    """Speculative tokens the arm's table plans here; absent where they vary."""
    seed: int | None = None
    """Seed of the prompts."""
    window_seconds: Annotated[float, Field(gt=0)]
    """Length of the window."""
    offered: Annotated[int, Field(ge=0)]
    """Requests that count for the window, errors and unfinished ones too."""
    completed: Annotated[int, Field(ge=0)]
    """Requests that finished well."""
    failed: Annotated[int, Field(ge=0)] = 0
    """Requests that ended in an error or a time-out; all of them are bad."""
    good: Annotated[int, Field(ge=0)] | None = None
    """Requests that met every limit of the SLO."""
    output_tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens received in the window."""
    request_tokens: Annotated[int, Field(ge=0)] | None = None
    """Mean tokens of a request at its end, prompt and output, as the server counted them."""
    ttft_ms: Quantiles | None = None
    """Time to first token."""
    tpot_ms: Quantiles | None = None
    """Time per output token after the first chunk, from token counts."""
    decode_rate: float | None = None
    """Median over requests of tokens per second of one stream, first to last token."""
    drafts: int | None = None
    """Engine counter: sequences verified with drafts."""
    draft_tokens: int | None = None
    """Engine counter: draft tokens verified."""
    accepted_tokens: int | None = None
    """Engine counter: draft tokens accepted."""
    accepted_by_position: list[Annotated[int, Field(ge=0)]] | None = None
    """Engine counter: accepted tokens by draft position, from the first."""
    engine_output_tokens: int | None = None
    """Engine counter: tokens generated over the window."""
    preemptions: int | None = None
    """Engine counter: requests preempted in the window."""
    batch_size_mean: float | None = None
    """Mean requests running."""
    prefix_cache: PrefixCache | None = None
    """Engine counter: prefix cache."""
    steps: list[Steps] | None = None
    """Engine steps by K, where the engine carries the recorder."""
    send_lag_ms_p99: float | None = None
    """How late sends were, 99th percentile."""
    in_flight_exact: float | None = None
    """Share of samples in which exactly the planned number of requests was in flight."""
    outputs: Outputs | None = None
    """equivalence: what the server answered."""
    started_at: str | None = None
    """RFC 3339 time at which the window opened."""
    left_out: int | None = None
    """depth: finished requests left out of the rates, because their output degenerated or their
    prompt was cached."""
    notes: list[str] | None = None
    """What a reader of the numbers should know, such as throughput that had not become steady."""
    void: str | None = None
    """Why the window must not count."""

    @property
    def timed(self) -> bool:
        """Whether its rates and times are evidence; a window that compares outputs has none."""
        return self.profile.kind != "equivalence"

    @property
    def plain_load(self) -> bool:
        """Whether it sends the workload as it is: all categories, prompts of their own length."""
        return self.category is None and self.profile.as_they_are

    @property
    def not_held(self) -> str | None:
        """Say that a held window did not hold its load; streams that rest after failures may."""
        share, at = self.in_flight_exact, self.profile.concurrency or 1
        held = share is None or share >= HELD_AT_LEAST or self.failed > 0
        if self.profile.kind not in ("hold", "depth") or held:
            return None
        return (
            f"{at} requests were in flight only {share:.0%} of the time, not {HELD_AT_LEAST:.0%}: "
            "give the load generator more CPU, or ask for longer answers (load.outputTokens)"
        )

    @field_validator("cell", "arm")
    @classmethod
    def _named(cls, text: str) -> str:
        if not text:
            raise ValueError("must not be empty")
        return text


class Receipt(Reading):
    """The facts of a launch, as far as they could be read."""

    image_id: str | None = None
    """Digest of the running image."""
    node: str | None = None
    """Node of the pod."""
    gpu: str | None = None
    """GPU product."""
    gpu_memory_bytes: int | None = None
    """Its memory."""
    gpu_capability: str | None = None
    """Its compute capability."""
    engine_version: str | None = None
    """vLLM's version."""
    engine_commit: str | None = None
    """vLLM's commit."""
    model: str | None = None
    """Model served."""
    model_revision: str | None = None
    """Its revision."""
    drafter: str | None = None
    """Drafter model, or the method where it has none."""
    drafter_revision: str | None = None
    """Its revision."""
    drafter_quantization: str | None = None
    """Its quantisation."""
    drafter_class: str | None = None
    """Class that drafts, in the worker."""
    adapters: list[str] | None = None
    """Adapters served beside the model."""
    quantization: str | None = None
    """Quantisation."""
    arguments: list[str] | None = None
    """Server arguments as launched."""
    model_runner: str | None = None
    """V1 or V2."""
    graph_mode: str | None = None
    """Resolved CUDA graph mode."""
    captured_sizes: list[int] | None = None
    """Graph sizes captured."""
    graphs_captured: int | None = None
    """How many graphs the worker captured."""
    attention_backend: str | None = None
    """Attention backend of the target model."""
    async_scheduling: bool | None = None
    """Whether scheduling is asynchronous."""
    kv_cache_tokens: int | None = None
    """KV cache size, in tokens."""
    schedule: list[list[int]] | None = None
    """num_speculative_tokens_per_batch_size as the engine reports it; without rows where its worker
    knows of none. The table of the context-axis scheduler, where that says what it follows."""
    scheduler: str | None = None
    """context-axis where that scheduler of ours said what it follows."""
    num_speculative_tokens: int | None = None
    """num_speculative_tokens as the engine reports it."""
    torch_version: str | None = None
    """torch's version."""
    cuda_version: str | None = None
    """CUDA's version."""
    driver_version: str | None = None
    """GPU driver's version."""
    compile_hash: str | None = None
    """torch.compile cache entry."""
    autotune_hash: str | None = None
    """FlashInfer autotune cache entry."""
    caches_warm: bool | None = None
    """Whether compile and autotune caches were warm; a launch that tuned does not count."""
    boot_seconds: float | None = None
    """Seconds from container start to Ready."""
    compile_seconds: float | None = None
    """Seconds of the longest torch.compile that the log tells, of the model's or the drafter's."""
    capture_seconds: float | None = None
    """Seconds that capturing CUDA graphs took."""
    log_level_hides_warnings: bool | None = None
    """Whether the log level hides the engine's warnings."""
    instruments: list[str] | None = None
    """What of ours runs in the engine: fingerprint, counters."""
    notes: list[str] | None = None
    """Engine warnings that matter here, quoted."""


class TooLong(Reading):
    """Prompts of one category that are too long for a server."""

    category: str
    """Category."""
    left_out: Annotated[int, Field(ge=1)]
    """Prompts left out."""
    of: Annotated[int, Field(ge=1)]
    """Prompts that it has."""
    longest: Annotated[int, Field(ge=1)]
    """Tokens of the longest request left out, at most: what leads the prompt and the answer too."""


class WindowLeftOut(Reading):
    """A window whose requests are too long for a server."""

    cell: str
    """Name of the cell that there is none of."""
    longest: Annotated[int, Field(ge=1)]
    """Tokens of its longest request, at most."""


class Fit(Reading):
    """Which requests of a visit its server has no room for: they are never sent."""

    max_model_len: int | None = None
    """Longest request, in tokens, as the server tells it."""
    prompts: list[TooLong] = []
    """Prompts left out, by category."""
    windows: list[WindowLeftOut] = []
    """Windows left out."""
    nothing_left: bool = False
    """Whether that is all that would have been measured."""
    not_counted: str | None = None
    """Why nobody knows how long the prompts are; then nothing is left out."""


class DeviceStep(Reading):
    """Steps of one shape, without prefills: means."""

    requests: int
    """Requests of the step."""
    draft_tokens: int
    """Draft tokens that it verifies, of all requests."""
    steps: int
    """How many there were."""
    target_ms: float
    """Milliseconds in which the device was in the target's forward pass."""
    drafter_ms: float
    """Milliseconds in which it was with the drafter."""


class DeviceTimes(Reading):
    """How long the steps of a screening launch kept its device, as the first worker tells."""

    clock: Literal["stream", "host"] | None = None
    """stream: by events in the GPU's stream; host: by the clock, where a call computes (CPU)."""
    steps: list[DeviceStep] = []
    """By shape."""
    absent: str | None = None
    """Why there are none."""


class Launch(Value):
    """One start of an arm's server, with what was measured in it."""

    arm: str
    """Arm launched."""
    launch: int
    """Number of the launch in the run, from 1, in time order."""
    round: int
    """Round it belongs to, from 1."""
    position: int = 1
    """Position in its round, from 1."""
    attempt: int = 1
    """Which try of its pair this is, from 1; only the last try of a round counts."""
    schedule: list[list[int]] | None = None
    """Schedule of the arm, if it has one."""
    context_axis: bool = False
    """True where the launch brings the context-axis scheduler, which follows the schedule; the
    engine boots with other rows."""
    started_at: str | None = None
    """RFC 3339 start time."""
    receipt: Receipt = Field(default_factory=Receipt)
    """Facts of the launch."""
    warm_up_seconds: float | None = None
    """How long it was loaded before its first window opened."""
    fit: Fit | None = None
    """What its server had no room for; absent where nobody looked."""
    device: DeviceTimes | None = None
    """How long its steps kept the device; absent where nobody asked, or nothing was said."""
    cells: list[Cell] = []
    """Windows measured."""
    void: str | None = None
    """Why the launch must not count (preempted, died, template changed)."""
    failed: str | None = None
    """Why the arm could not be measured (start-up failed, died under load): the arm's own fault."""

    @property
    def finds_drafts(self) -> bool:
        """Whether its drafts may be shorter than K, as they are found and not made."""
        return self.receipt.drafter in FINDS_DRAFTS
