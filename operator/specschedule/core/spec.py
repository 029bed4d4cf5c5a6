"""What the user asks for, as frozen values: the spec of a SpecSchedule.

The CRD is generated from these types (see ``api``), so docstrings here are what
``kubectl explain`` shows. A field exists once it works.
"""

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from specschedule.core.values import Duration, Share, Value


def _above_zero(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    return seconds


Limit = Annotated[Duration, AfterValidator(_above_zero)]
"""A duration that is a limit; zero would refuse everything."""
LARGEST_K = 64
"""No launch drafts more tokens: a slip of the keyboard is refused at apply."""

Row = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=3, max_length=5)]
Rows = Annotated[list[Row], Field(min_length=1, max_length=128)]
"""At most 128 rows: the API server compares each with each, within its budget for rules."""
Rates = Annotated[
    list[Annotated[float, Field(gt=0, le=100_000)]], Field(min_length=1, max_length=4)
]
"""Offered loads, in requests per second."""
Points = Annotated[list[int], Field(min_length=1, max_length=16)]

MAX_TOKENS = 1_000_000
"""No prompt, answer or context is longer: a slip of the keyboard is refused at apply."""

BASE_ARMS = ("incumbent", "twin", "none", "zero", "adaptive")
"""Arm names that are no candidate, static or constant arm."""


class Mode(StrEnum):
    """What may happen to the target when a candidate is better."""

    APPROVE = "Approve"
    AUTO = "Auto"
    PROPOSE = "Propose"


class Effort(StrEnum):
    """How much evidence is bought (see design, section 3)."""

    QUICK = "Quick"
    STANDARD = "Standard"
    THOROUGH = "Thorough"


class Rule(StrEnum):
    """How the pairs of a candidate and its incumbent become a verdict."""

    SEQUENTIAL = "Sequential"
    EVERY_PAIR = "EveryPair"


class Metric(StrEnum):
    """What a requirement of the bar is about."""

    GOODPUT = "goodput"
    ATTAINMENT = "attainment"
    THROUGHPUT = "throughput"
    DECODE_RATE = "decodeRate"
    TTFT_P50 = "ttftP50"
    TTFT_P90 = "ttftP90"
    TTFT_P99 = "ttftP99"
    TPOT_P50 = "tpotP50"
    TPOT_P90 = "tpotP90"
    TPOT_P99 = "tpotP99"

    @property
    def smaller_is_better(self) -> bool:
        """Latencies improve downwards."""
        return self.value.startswith(("ttft", "tpot"))


class Target(Value):
    """The serving workload."""

    kind: Literal["Deployment"] = "Deployment"
    """Kind of the serving workload."""
    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the serving workload, in the namespace of this object."""
    container: str | None = None
    """Name of its vLLM container. Found by its command when left out."""


class Slo(Value):
    """A request is good when it meets every limit given here."""

    ttft: Limit | None = None
    """Longest time to first token of a good request, such as 500ms."""
    tpot: Limit | None = None
    """Longest time per output token after the first of a good request, such as 40ms."""
    e2e: Annotated[Limit | None, Field(alias="e2e")] = None
    """Longest whole duration of a good request, such as 10s."""

    @model_validator(mode="after")
    def _one_limit(self) -> "Slo":
        if self.ttft is None and self.tpot is None and self.e2e is None:
            raise ValueError("slo needs at least one of ttft, tpot and e2e")
        return self


class Candidate(Value):
    """A schedule to test."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=24)]
    """Short name, used in the names of trial pods."""
    schedule: Rows
    """Rows [first, last, tokens] by batch size, or [first, last, contextFirst, contextLast,
    tokens]; ranges are inclusive, as in vLLM's num_speculative_tokens_per_batch_size. The batch
    size is the number of requests scheduled in an engine step, prefills included. Where
    the engine takes three numbers only, rows of five are followed by a scheduler of ours; a winner
    of five is Proposed where the target does not name that scheduler itself."""
    max_tokens: Annotated[int, Field(ge=1, le=LARGEST_K)] | None = None
    """num_speculative_tokens of the launch. The largest tokens of the rows when left out."""

    @field_validator("schedule")
    @classmethod
    def _few_tokens(cls, rows: list[list[int]]) -> list[list[int]]:
        for at, row in enumerate(rows):
            if row[-1] > LARGEST_K:
                raise ValueError(f"rows[{at}] {row}: a row drafts {LARGEST_K} tokens at most")
        return rows

    @property
    def largest_tokens(self) -> int:
        """num_speculative_tokens of the launch: its own, else the largest of its rows."""
        return self.max_tokens or max(1, *(row[-1] for row in self.schedule))


class SearchLimits(Value):
    """Within which limits schedules are searched for."""

    max_tokens: Annotated[int, Field(ge=1, le=LARGEST_K)] = 5
    """Largest number of speculative tokens that is tried."""
    batch_sizes: (
        Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=16)]
        | None
    ) = None
    """Requests in flight at which the number of tokens is chosen. load.points when left out."""
    contexts: Annotated[list[Annotated[int, Field(ge=1, le=MAX_TOKENS)]], Field(max_length=8)] = []
    """Mean contexts of the workload, in tokens, where it may matter to the choice."""


class Speculative(Value):
    """How to speculate, for a target that serves without speculation."""

    method: str
    """vLLM's speculative method, such as eagle3, mtp, draft_model or ngram."""
    model: str | None = None
    """Drafter model, where the method needs one."""


class ConfigMapReference(Value):
    """Prompts to send."""

    config_map: Annotated[str, Field(min_length=1)]
    """Name of a ConfigMap whose keys are categories and whose values hold one prompt per line
    (plain text or JSON strings)."""


class TraceReference(Value):
    """Recorded arrivals to replay."""

    config_map: Annotated[str, Field(min_length=1)]
    """Name of a ConfigMap in the namespace of this object; another one than that of load.prompts,
    whose keys are all categories."""
    key: Annotated[str, Field(min_length=1)] = "trace.jsonl"
    """Key that holds them: JSON lines with timestamp (ms), input_length and output_length."""


class ClaimReference(Value):
    """A volume to write to."""

    persistent_volume_claim: Annotated[str, Field(min_length=1)]
    """Name of a PersistentVolumeClaim in the namespace of this object. ReadWriteMany where
    experiment.parallelism is more than 1, as each load job mounts it."""


class Sampling(Value):
    """Sampling parameters, equal in all arms."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling threshold."""


class SecretKeyReference(Value):
    """One key of a Secret in the namespace of this object."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1)] = "apiKey"
    """Key in the Secret."""


class Load(Value):
    """The load each arm is measured under, per replica."""

    points: Annotated[
        list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=16)
    ]
    """Requests held in flight, one measured window each."""
    requests_per_second: Rates | None = None
    """Arrivals offered per second whatever the server does (open loop), one measured window each:
    where the metric attainment is judged, and what the bar names of them."""
    trace: TraceReference | None = None
    """Recorded arrivals, with the lengths of their prompts and answers, replayed once in every
    launch: one more place where attainment is judged. 30 minutes long at most."""
    prompts: ConfigMapReference | None = None
    """Prompts to send. Synthetic ones of promptTokens tokens when left out."""
    prompt_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 128
    """Length of synthetic prompts, in tokens."""
    output_tokens: Annotated[int, Field(ge=2, le=MAX_TOKENS)] = 128
    """Output length of every request, in tokens."""
    ignore_eos: bool = True
    """Whether every answer goes on to outputTokens, so that windows hold the same work in every
    arm. If not, outputTokens is a limit, and answers end where the model ends them."""
    requests: Annotated[int, Field(ge=20, le=100_000)] = 20
    """Finished requests that a window needs at least; windows are set by work, not by time."""
    sampling: Sampling = Sampling()
    """Sampling parameters, equal in all arms."""
    prefix_cache: Literal["Unique", "Shared", "Warm"] = "Unique"
    """Prefix-cache regime, reached by construction and checked against the engine's counters:
    Unique prompts, one Shared prefix, or Warm repeats."""
    endpoint: Literal["completions", "chat"] = "completions"
    """Which OpenAI endpoint to send to."""
    api_key_secret_ref: SecretKeyReference | None = None
    """API key of the server, where it wants one."""
    max_send_lag: Limit = 0.005
    """A window whose sends lag more than this at the 99th percentile is void."""
    records: ClaimReference | None = None
    """Where to write what became of every request: one file of JSON lines, compressed, per load
    job. Not written when left out."""

    @property
    def request_tokens(self) -> int | None:
        """Tokens of a synthetic request at its end; None where prompts are given."""
        return None if self.prompts else self.prompt_tokens + self.output_tokens


class Where(Value):
    """Where a requirement is judged."""

    at: Points | None = None
    """Load points. All when left out, unless offered loads are named."""
    requests_per_second: Rates | None = None
    """Offered loads, some of load.requestsPerSecond, instead of load points. Attainment is judged
    there only: at all of them and at load.trace when left out."""
    category: str | None = None
    """Prompt category. Pooled over categories when left out."""
    context: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Mean context of the requests, in tokens: they are held with prompts as long as that less half
    an answer. Prompts as they are when left out."""


class Improve(Where):
    """A gain that the candidate must show."""

    metric: Metric = Metric.GOODPUT
    """What must improve."""
    by: Share
    """Smallest gain over the incumbent, such as 15%."""


class Protect(Where):
    """A loss that the candidate must not show."""

    metric: Metric = Metric.DECODE_RATE
    """What must not get worse."""
    within: Share | None = None
    """Largest loss, such as 3%. max(3%, 2 x noise floor) when left out."""


class Elsewhere(Value):
    """What holds where no requirement asks for more.

    That is the goodput of every load point that none names, and the attainment of the open loop
    that crosses the boundaries, and of load.trace.
    """

    max_loss: Share = 0.05
    """A larger loss, once shown, fails the bar."""


class Bar(Value):
    """The acceptance rule, frozen before the first measurement."""

    improve: Annotated[list[Improve], Field(min_length=1, max_length=16)]
    """Gains that the candidate must show, all of them."""
    protect: Annotated[list[Protect], Field(max_length=16)] = []
    """Losses that the candidate must not show."""
    elsewhere: Elsewhere = Elsewhere()
    """What holds where no requirement asks for more: for the goodput of every load point that
    none names, and for the attainment of the open loop that crosses the boundaries and of
    load.trace."""
    min_effect: Share = 0.03
    """Differences below this are never called a gain."""
    rule: Rule | None = None
    """Sequential or EveryPair. By effort when left out: EveryPair for Quick, else Sequential."""

    def digest(self) -> str:
        """Return twelve hex digits that name this bar; kept in every SpecTrial."""
        return digest_of(self.plain())[:12]


class Budget(Value):
    """What the run may cost."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    """GPU-hours that trial pods may use together. A hard limit."""


class Experiment(Value):
    """How much is measured, and within which limits."""

    effort: Effort = Effort.STANDARD
    """Quick, Standard or Thorough: how many launches and which rule."""
    static: (
        Annotated[list[Annotated[int, Field(ge=1, le=LARGEST_K)]], Field(max_length=16)] | None
    ) = None
    """Fixed numbers of speculative tokens to run as controls. By effort when left out."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of launch orders and prompts; the same seed gives the same plan."""
    parallelism: Annotated[int, Field(ge=1, le=16)] = 1
    """Arms under load at the same time. More than one needs as many free GPUs and separate
    hardware, else the arms disturb each other."""
    budget: Budget = Budget()
    """What the run may cost."""
    deadline: Limit = 8 * 3600.0
    """The run ends Inconclusive when it is not decided this long after its start."""


class Override(Value):
    """A gate that the user takes responsibility for."""

    gate: str
    """Name of the gate."""
    reason: Annotated[str, Field(min_length=1)]
    """Why; shown beside the gate's answer."""


class Policy(Value):
    """What the running arms must have in common."""

    graph_mode: Literal["Report", "Same", "RequireFull"] = "Report"
    """What a CUDA graph mode that differs between arms does: Report it, require the Same, or
    RequireFull graphs."""
    acceptance_floor: Share = 0.05
    """An arm whose drafter's accepted share of draft tokens is below this fails its gate."""
    overrides: Annotated[list[Override], Field(max_length=32)] = []
    """Gates that the user takes responsibility for."""


class Rollout(Value):
    """How a better candidate reaches the target."""

    deadline: Limit = 600.0
    """When the target is not rolled out this long after the change, the change is taken back."""


class Prometheus(Value):
    """Where the operator reads goodput."""

    url: Annotated[str, Field(pattern=r"^https?://.+")]
    """Base URL of the Prometheus server."""


class Spec(Value):
    """The question, the load it is asked under, and the bar that decides it."""

    target: Target
    """The serving workload whose speculative argument is tuned."""
    mode: Mode = Mode.APPROVE
    """Auto changes the target when a candidate is better, Approve waits for the annotation
    specschedule.dev/approve=<run id>, Propose never writes the target."""
    slo: Slo
    """A request is good when it meets every limit given here."""
    candidates: Annotated[list[Candidate], Field(max_length=8)] = []
    """Schedules to test, best guess first. Exactly one of candidates and search is given."""
    search: SearchLimits | None = None
    """Find the schedules to test, by a screen: one launch that switches the number of tokens
    between short windows and one without speculation, or one launch for each number of tokens
    where that cannot be. What it finds is tested like candidates."""
    speculative: Speculative | None = None
    """How to speculate. Only for a target that serves without speculation."""
    load: Load
    """The load each arm is measured under, per replica."""
    bar: Bar
    """The acceptance rule."""
    experiment: Experiment = Experiment()
    """How much is measured, and within which limits."""
    policy: Policy = Policy()
    """What the running arms must have in common."""
    rollout: Rollout = Rollout()
    """How a better candidate reaches the target."""
    history_limit: Annotated[int, Field(ge=0, le=20)] = 5
    """Ended runs kept in status.history."""
    prometheus: Prometheus | None = None
    """Where the operator reads goodput. The operator's own default when left out."""

    @model_validator(mode="after")
    def _consistent(self) -> "Spec":
        if bool(self.candidates) == (self.search is not None):
            raise ValueError("exactly one of candidates and search is needed")
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) != len(names):
            raise ValueError("candidates: names must differ")
        if len(set(self.load.points)) != len(self.load.points):
            raise ValueError("load.points: each point stands once")
        trace, prompts = self.load.trace, self.load.prompts
        if trace is not None and prompts is not None and trace.config_map == prompts.config_map:
            raise ValueError(
                "load.trace: its ConfigMap holds load.prompts, and every key there is a category; "
                "name another"
            )
        for field, requirements in (("improve", self.bar.improve), ("protect", self.bar.protect)):
            for requirement in requirements:
                if requirement.metric is Metric.ATTAINMENT or requirement.requests_per_second:
                    self._check_offered(field, requirement)
                unknown = set(requirement.at or []) - set(self.load.points)
                if unknown:
                    raise ValueError(
                        f"bar.{field}: at names {sorted(unknown)}, which load.points lacks"
                    )
        return self

    def _check_offered(self, field: str, requirement: Improve | Protect) -> None:
        metric, rates = requirement.metric.value, requirement.requests_per_second
        where = f"bar.{field}: {metric} is judged at " + (
            "requestsPerSecond" if rates else "every load.requestsPerSecond"
        )
        if requirement.metric is Metric.DECODE_RATE:
            raise ValueError(
                f"bar.{field}: decodeRate is of one request at a time; name it at load points"
            )
        if requirement.context is not None:
            raise ValueError(f"{where}, at the contexts of its own prompts; leave context out")
        if requirement.at is not None:
            raise ValueError(f"{where}, not at requests held in flight; leave at out")
        if self.load.requests_per_second is None and (rates or self.load.trace is None):
            raise ValueError(
                f"bar.{field}: {metric} is judged at an offered load; set load.requestsPerSecond"
                + ("" if rates else " or load.trace")
            )
        unknown = set(rates or []) - set(self.load.requests_per_second or [])
        if unknown:
            raise ValueError(
                f"bar.{field}: requestsPerSecond names {sorted(unknown)}, which "
                "load.requestsPerSecond lacks"
            )

    @property
    def searched(self) -> list[int]:
        """Requests in flight at which a search chooses K; none where candidates are given."""
        return (self.search.batch_sizes or self.load.points) if self.search else []

    def testing(self, candidates: list[Candidate]) -> "Spec":
        """Return the question with what a search found as its candidates."""
        return self.model_copy(update={"candidates": candidates, "search": None})

    @property
    def rule(self) -> Rule:
        """The rule in force: the bar's own, else the effort's."""
        if self.bar.rule is not None:
            return self.bar.rule
        return Rule.EVERY_PAIR if self.experiment.effort is Effort.QUICK else Rule.SEQUENTIAL


def digest_of(plain: object) -> str:
    """Return the hex SHA-256 of plain data in canonical JSON."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def run_id(uid: str, spec: Spec, retry: int) -> str:
    """Return the run's id: eight hex digits of (uid, frozen spec, retry count).

    Fields that change nothing in the experiment (``mode``, ``rollout``, ``historyLimit``) do not
    count, so that approving or widening a deadline never throws evidence away.
    """
    frozen = spec.plain()
    for field in ("mode", "rollout", "historyLimit"):
        frozen.pop(field, None)
    return digest_of([uid, frozen, retry])[:8]
