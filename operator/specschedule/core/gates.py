"""Gates before any pod: what can be known from the spec and the serving workload alone.

What vLLM's versions do with a schedule comes in as data (``MatrixRow``), so that a known engine
problem is a row and not a branch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from specschedule.core.gate import (
    Gate,
    blocking,
    fails,
    not_applicable,
    overridden,
    passes,
    refused,
)
from specschedule.core.observed import ServerFacts, TargetFacts, Unreadable
from specschedule.core.receipts import between_arms
from specschedule.core.schedule import EffectiveTable, ScheduleError, effective, parse
from specschedule.core.spec import Candidate, Mode, Spec
from specschedule.core.values import Value
from specschedule.core.versions import numbers, version_gate, version_of_image

__all__ = [
    "Gate",
    "MatrixRow",
    "before_pods",
    "between_arms",
    "blocking",
    "expected_runner",
    "refused",
]

SECOND_SOURCES = (
    "num_speculative_tokens_per_seq_len",
    "speculative_token_schedule",
    "speculative_disable_by_batch_size",
    "disable_by_batch_size",
)
"""Options, released or proposed, that choose tokens beside the schedule."""

REGISTRATION = re.compile(
    r"^(LMCACHE_(CONTROLLER|REMOTE|LOOKUP)\w*|DYN_\w+|ETCD_ENDPOINTS?|NATS_(SERVER|URL)|CONSUL_\w+"
    r"|EUREKA_\w+|MOONCAKE_(MASTER|CONFIG)\w*|ROUTER_(URL|ADDRESS)|VLLM_NIXL_SIDE_CHANNEL_HOST"
    r"|AIBRIX_\w+|KV_EVENTS_\w+)$"
)
"""Environment variables by which a server announces itself to a router, cache or discovery."""

Effect = Literal["Honours", "TruncatesOnly", "Ignores", "Disables", "Refuses", "Crashes"]


class MatrixRow(Value):
    """What some versions of vLLM do with a schedule in some surroundings.

    Empty lists and absent limits match everything; the first row that matches answers.
    """

    id: str
    """Short name of the row, such as an issue number."""
    since: str | None = None
    """First version it is about."""
    before: str | None = None
    """First version it is no longer about."""
    tested: list[str]
    """Versions that it was read or seen in."""
    methods: list[str] = []
    """Speculative methods."""
    runners: list[Literal["V1", "V2"]] = []
    """Model runners."""
    devices: list[Literal["gpu", "cpu"]] = []
    """Devices."""
    rows: Literal["any", "zero", "varying", "contexts"] = "any"
    """Schedules: any; with a K=0 row; with another K than the largest; with contexts."""
    effect: Effect
    """What the engine does."""
    symptom: str
    """What a user sees."""


def before_pods(
    spec: Spec,
    target: TargetFacts | Unreadable,
    *,
    matrix: Sequence[MatrixRow] = (),
    engine_version: str | None = None,
) -> list[Gate]:
    """Answer every gate that needs no pod.

    Args:
        spec: The question.
        target: The serving workload, or why there is none.
        matrix: Rows of ``vllm_facts.matrix``.
        engine_version: vLLM's version, where it is known otherwise than from the image's tag.
    """
    if isinstance(target, Unreadable):
        return [fails("target", target.reason, target.message)]
    server = target.server
    if isinstance(server, Unreadable):
        return overridden(spec, _unreadable(server))
    version = engine_version or version_of_image(server.image)
    tables = _tables(spec, server)
    answers = [
        passes("engine", f"container {server.container} runs vLLM"),
        passes("arguments", "the server's arguments can be read and changed exactly"),
        _version(version, server),
        _data_parallel(server),
        _schedules(spec, server),
        *_matrix_gates(spec, server, target, version, matrix, tables),
        _speculative(spec, server),
        _second_source(server),
        _owner(spec, target),
        _kv_role(server),
        _registration(server),
        _can_roll(spec, target),
        _load_fits(spec, server),
    ]
    return overridden(spec, answers)


def expected_runner(server: ServerFacts, *, gpus: int, method: str | None) -> str:
    """Return the model runner that vLLM 0.32 will use, V1 or V2."""
    forced = server.environment.get("VLLM_USE_V2_MODEL_RUNNER")
    if forced in ("0", "1"):
        return "V2" if forced == "1" else "V1"
    if not gpus or method in V2_LACKS:
        return "V1"
    return "V2"


V2_LACKS = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods that model runner V2 of vLLM 0.32 and 0.33 does not have."""


def _unreadable(server: Unreadable) -> list[Gate]:
    foreign = ("EngineNotSupported", "NoVllmContainer")
    gate = "engine" if server.reason in foreign else "arguments"
    return [fails(gate, server.reason, server.message)]


def _version(version: str | None, server: ServerFacts) -> Gate:
    if version is None:
        return not_applicable(
            "engineVersion",
            "ReadFromLaunch",
            f"image {server.image} does not say vLLM's version; the first launch does, and nothing "
            "counts before",
        )
    return version_gate(version)


def _data_parallel(server: ServerFacts) -> Gate:
    if server.data_parallel_size > 1:
        return fails(
            "dataParallel",
            "DataParallel",
            f"container {server.container} has data parallel size {server.data_parallel_size}: "
            "vLLM switches every schedule off then, as its ranks would deadlock; serve with data "
            "parallel size 1 and more replicas",
        )
    return passes("dataParallel", "data parallel size is 1")


def _tables(spec: Spec, server: ServerFacts) -> dict[str, EffectiveTable]:
    """Return the effective tables of the candidates whose schedules are valid."""
    tables = {}
    for candidate in spec.candidates:
        try:
            tables[candidate.name] = effective(
                candidate.schedule,
                max_tokens=largest_tokens(candidate),
                max_num_seqs=server.max_num_seqs,
            )
        except ScheduleError:
            continue
    return tables


def largest_tokens(candidate: Candidate) -> int:
    """Return num_speculative_tokens of a candidate: its own, else the largest of its rows."""
    return candidate.max_tokens or max(1, *(row[-1] for row in candidate.schedule))


def _schedules(spec: Spec, server: ServerFacts) -> Gate:
    for at, candidate in enumerate(spec.candidates):
        try:
            parse(candidate.schedule)
        except ScheduleError as error:
            return fails(
                "schedule",
                f"Schedule{error.reason}",
                f"spec.candidates[{at}] {candidate.name}: {error.message}",
            )
    notes = [
        f"{name}: {warned.message}"
        for name, table in _tables(spec, server).items()
        for warned in table.warnings
    ]
    if notes:
        return passes("schedule", "; ".join(notes), "HoldsWithNotes")
    return passes("schedule", "every candidate's schedule says what the engine will do")


def _matrix_gates(
    spec: Spec,
    server: ServerFacts,
    target: TargetFacts,
    version: str | None,
    matrix: Sequence[MatrixRow],
    tables: Mapping[str, EffectiveTable],
) -> Iterable[Gate]:
    method = method_of(spec, server)
    runner = expected_runner(server, gpus=target.gpus, method=method)
    lacks = server.environment.get("VLLM_USE_V2_MODEL_RUNNER") == "1" and method in V2_LACKS
    if lacks:
        yield fails(
            "modelRunner",
            "RunnerLacksMethod",
            f"VLLM_USE_V2_MODEL_RUNNER is 1 but model runner V2 has no method {method}: vLLM "
            "refuses to start; unset the variable",
        )
        return
    device = "gpu" if target.gpus else "cpu"
    surroundings = f"method {method}, model runner {runner}, {device}"
    found: dict[str, MatrixRow] = {}
    for name, table in tables.items():
        rows = kinds_of(table)
        row = next((r for r in matrix if _matches(r, version, method, runner, device, rows)), None)
        if row:
            found[name] = row
    order: tuple[Effect, ...] = ("Refuses", "Crashes", "Disables", "Ignores", "TruncatesOnly")
    worst = [
        (effect, n, row) for effect in order for n, row in found.items() if row.effect == effect
    ]
    if worst and worst[0][0] in ("Refuses", "Crashes", "Disables"):
        effect, name, row = worst[0]
        yield fails(
            "methodAndSchedule",
            f"Engine{effect}Schedule",
            f"candidate {name} with {surroundings}: {row.symptom} ({row.id})",
        )
    elif worst:
        effect, name, row = worst[0]
        yield passes(
            "methodAndSchedule",
            f"with {surroundings}: {row.symptom}; the cost of drafting stays ({row.id})",
            "DraftingCostStays",
        )
    elif len(found) == len(tables):
        yield passes("methodAndSchedule", f"with {surroundings} drafting follows the schedule")
    else:
        yield not_applicable(
            "methodAndSchedule",
            "NotTested",
            f"a schedule with {surroundings} has not been tested on vLLM {version or '(unknown)'}; "
            "the counters of the running arms decide",
        )


def kinds_of(table: EffectiveTable) -> set[str]:
    """Return which kinds of matrix rows a table belongs to."""
    bands = {band.tokens for band in table.bands()}
    kinds = {"any"}
    if 0 in bands:
        kinds.add("zero")
    if bands != {table.max_tokens}:
        kinds.add("varying")
    if table.contexts is not None:
        kinds.add("contexts")
    return kinds


def _matches(
    row: MatrixRow,
    version: str | None,
    method: str | None,
    runner: str,
    device: str,
    kinds: set[str],
) -> bool:
    if version is not None and row.since and numbers(version) < numbers(row.since):
        return False
    if version is not None and row.before and numbers(version) >= numbers(row.before):
        return False
    return (
        (not row.methods or method in row.methods)
        and (not row.runners or runner in row.runners)
        and (not row.devices or device in row.devices)
        and row.rows in kinds
    )


def method_of(spec: Spec, server: ServerFacts) -> str | None:
    """Return the speculative method; vLLM finds it from the drafter where none is named."""
    if server.speculative is None:
        return spec.speculative.method if spec.speculative else None
    method = server.speculative.get("method")
    return str(method) if method is not None else None


def _speculative(spec: Spec, server: ServerFacts) -> Gate:
    if server.speculative is None and spec.speculative is None:
        return fails(
            "speculative",
            "NoSpeculativeMethod",
            f"container {server.container} serves without speculation; say how to draft in "
            "spec.speculative",
        )
    if server.speculative is not None and spec.speculative is not None:
        return fails(
            "speculative",
            "TwoSpeculativeMethods",
            f"container {server.container} has a speculative config already; take "
            "spec.speculative away",
        )
    return passes(
        "speculative", f"drafts come from method {method_of(spec, server) or '(default)'}"
    )


def _second_source(server: ServerFacts) -> Gate:
    config: Mapping[str, Any] = server.speculative or {}
    second = [key for key in SECOND_SOURCES if config.get(key) is not None]
    if second:
        return fails(
            "tokenSource",
            "SecondTokenSource",
            f"container {server.container}: {', '.join(second)} in its speculative config chooses "
            "tokens too; take it away, or do not tune this server",
        )
    return passes("tokenSource", "nothing but the schedule chooses how many tokens are drafted")


def _owner(spec: Spec, target: TargetFacts) -> Gate:
    if target.owner is None:
        return passes("owner", "no other controller owns the target")
    if spec.mode is Mode.PROPOSE:
        return passes(
            "owner",
            f"{target.owner} owns the target; mode Propose never writes it",
            "ProposesOnly",
        )
    return fails(
        "owner",
        "ControlledByAnother",
        f"{target.owner} owns the target and would undo any change; set spec.mode: Propose and "
        f"change {target.owner} yourself",
    )


def _kv_role(server: ServerFacts) -> Gate:
    if server.kv_role in (None, "kv_both"):
        return passes("prefillDecodeSplit", "prefill and decode share one server")
    return fails(
        "prefillDecodeSplit",
        "PrefillDecodeSplit",
        f"container {server.container} has kv_role {server.kv_role}: a clone of it serves only "
        "half of a request, and would join the serving ones",
    )


def _registration(server: ServerFacts) -> Gate:
    names = sorted(name for name in server.environment if REGISTRATION.match(name))
    if names:
        return fails(
            "registration",
            "RegistersItself",
            f"container {server.container}: {', '.join(names)} may let a trial pod join a router, "
            "cache or discovery service and get production traffic; override gate registration "
            "if it does not",
        )
    return passes("registration", "no variable by which a trial pod would register itself")


def _can_roll(spec: Spec, target: TargetFacts) -> Gate:
    if target.can_roll:
        if spec.mode is Mode.PROPOSE:
            return passes("rollout", f"{target.can_roll}; mode Propose rolls nothing out")
        return fails("rollout", "RolloutDeadlock", target.can_roll)
    if target.roll_unchecked:
        return not_applicable("rollout", "FreeGpusNotSeen", target.roll_unchecked)
    return passes("rollout", "a rollout of the target can finish")


def _load_fits(spec: Spec, server: ServerFacts) -> Gate:
    length = spec.load.prompt_tokens + spec.load.output_tokens
    limit = server.max_model_len
    if limit is not None and spec.load.prompts is None and length > limit:
        return fails(
            "load",
            "BeyondModelLength",
            f"spec.load: promptTokens {spec.load.prompt_tokens} and outputTokens "
            f"{spec.load.output_tokens} are more than max_model_len {limit}",
        )
    if limit is not None and spec.load.output_tokens >= limit:
        return fails(
            "load",
            "BeyondModelLength",
            f"spec.load.outputTokens {spec.load.output_tokens} leaves no room for a prompt in "
            f"max_model_len {limit}",
        )
    beyond = [point for point in spec.load.points if point > server.max_num_seqs]
    if beyond:
        return passes(
            "load",
            f"load points {beyond} are beyond max_num_seqs {server.max_num_seqs}: requests queue "
            "there",
            "QueuesBeyondBatch",
        )
    return passes("load", "the load fits the server")
