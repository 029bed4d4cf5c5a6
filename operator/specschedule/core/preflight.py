"""Gates before any pod: what can be known from the spec and the serving workload alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from specschedule.core.alike import twins
from specschedule.core.context_axis import Follower
from specschedule.core.gate import (
    Gate,
    fails,
    not_applicable,
    overridden,
    overrides,
    passes,
    unknown,
)
from specschedule.core.isolation import isolation
from specschedule.core.matrix import (
    MatrixRow,
    Runner,
    Surroundings,
    asked_graph_mode,
    device_of,
    expected_runner,
    graph_mode,
    method_and_schedule,
    model_runner,
    unknown_method,
)
from specschedule.core.schedule import EffectiveTable, ScheduleError, effective, parse
from specschedule.core.spec import Mode, Spec
from specschedule.core.target import LARGEST_DEFAULT, ServerFacts, TargetFacts, Unreadable
from specschedule.core.versions import is_release, numbers, version_gate, version_of_image
from specschedule.core.workload import Trace, contexts_fit, search_contexts_fit, trace_fits

BLOCK_DRAFTERS = ("dspark", "dflash")
"""Methods whose drafter was trained for blocks of one size."""

SECOND_SOURCES = (
    "num_speculative_tokens_per_seq_len",
    "speculative_token_schedule",
    "speculative_disable_by_batch_size",
    "disable_by_batch_size",
)
"""Options, released or proposed, that choose tokens beside the schedule."""

_DEFAULT_BATCH = (
    "--max-num-seqs is not given, and vLLM's default is 256 or, on GPUs of 70 GB and more that are "
    f"no A100, {LARGEST_DEFAULT}; give it"
)


def before_pods(
    spec: Spec,
    target: TargetFacts | Unreadable,
    *,
    matrix: Sequence[MatrixRow] = (),
    engine_version: str | None = None,
    runner: Runner | None = None,
    drafter_block: int | None = None,
    trace: Trace | None = None,
    delivered: bool = False,
) -> list[Gate]:
    """Answer every gate that needs no pod.

    Args:
        spec: The question.
        target: The serving workload, or why there is none.
        matrix: Rows of ``vllm_facts.matrix``.
        engine_version: vLLM's version, where it is known otherwise than from the image's tag.
        runner: Model runner of the serving engine, where its log was read.
        drafter_block: Block size in the drafter's files, where they were read beside the target.
        trace: What was read of the trace that the question names.
        delivered: Whether launches can carry a scheduler of ours.
    """
    if isinstance(target, Unreadable):
        return [fails("target", target.reason, target.message)]
    server = target.server
    if isinstance(server, Unreadable):
        return overridden(spec, _unreadable(server))
    version = engine_version or version_of_image(server.image)
    candidates = tables_of(spec, server)
    follower = Follower(server, delivered, version)
    tables = follower.booted(candidates)
    method = method_of(spec, server)
    device = device_of(target)
    where = Surroundings(
        version=version if version is not None and is_release(version) else None,
        method=method,
        runner=runner or expected_runner(server, device, method),
        device=device,
        backend=server.attention_backend and server.attention_backend.upper(),
        graph_mode=asked_graph_mode(server, device),
        layout="data" if server.data_parallel_size > 1 else None,
        random=spec.load.sampling.temperature > 0,
    )
    answers = [
        passes("engine", f"container {server.container} runs vLLM"),
        _arguments(server),
        _version(version, server),
        _data_parallel(server),
        _schedules(spec, server, follower.told(candidates)),
        _new(server, spec, candidates),
        model_runner(server, where),
        method_and_schedule(where, matrix, tables),
        graph_mode(where, matrix, tables, server, spec.policy.graph_mode),
        _speculative(spec, server, version),
        _block_size(spec, where, drafter_block or target.drafter_block),
        _token_budget(spec, server),
        _second_source(server),
        _owner(spec, target),
        *isolation(server),
        _can_roll(spec, target),
        _log_level(server),
        load_fits(spec, server, candidates),
        trace_fits(spec, trace, server.max_model_len),
        overrides(spec),
    ]
    return overridden(spec, answers)


def _unreadable(server: Unreadable) -> list[Gate]:
    foreign = ("EngineNotSupported", "NoVllmContainer")
    gate = "engine" if server.reason in foreign else "arguments"
    return [fails(gate, server.reason, server.message)]


def _arguments(server: ServerFacts) -> Gate:
    said = "the server's arguments can be read and changed exactly"
    if server.notes:
        return passes("arguments", "; ".join([said, *server.notes]), "HoldsWithNotes")
    return passes("arguments", said)


def _version(version: str | None, server: ServerFacts) -> Gate:
    if version is None:
        return unknown(
            "engineVersion",
            "ReadFromLaunch",
            f"image {server.image or '(none)'} does not say vLLM's version: the receipts of the "
            "launches decide; to know before, give preflight --engine-version or --log",
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
    # vLLM takes the variable where the flag says 1.
    name = "VLLM_DP_SIZE"
    given = server.environment.get(name, "1").strip()
    if given != "1":
        return fails(
            "dataParallel",
            "DataParallel",
            f"container {server.container} has {name}={given}: with more ranks than one vLLM "
            "switches every schedule off, as they would deadlock, and it starts with no fewer; "
            "take the variable away and serve with more replicas",
        )
    unread = server.unknown(name)
    if unread and name in server.unread:
        return unknown("dataParallel", "EnvironmentNotRead", unread)
    if unread:
        said = f"no argument asks for it; {unread}; else the draft counters of the launches decide"
        return not_applicable("dataParallel", "SeenAtLaunch", said)
    return passes("dataParallel", "data parallel size is 1")


def tables_of(spec: Spec, server: ServerFacts) -> dict[str, EffectiveTable]:
    """Return the effective tables of the candidates whose schedules are valid."""
    tables = {}
    for candidate in spec.candidates:
        try:
            tables[candidate.name] = effective(
                candidate.schedule,
                max_tokens=candidate.largest_tokens,
                max_num_seqs=server.largest_batch,
            )
        except ScheduleError:
            continue
    return tables


def _schedules(spec: Spec, server: ServerFacts, by_context: Sequence[str]) -> Gate:
    for at, candidate in enumerate(spec.candidates):
        try:
            parse(candidate.schedule)
        except ScheduleError as error:
            return fails(
                "schedule",
                f"Schedule{error.reason}",
                f"spec.candidates[{at}] {candidate.name}: {error.message}",
            )
    tables = tables_of(spec, server)
    notes = [
        f"{name}: {warned.message}" for name, table in tables.items() for warned in table.warnings
    ]
    notes += [
        f"{name}: its rows beyond batch size {server.max_num_seqs} run on some GPUs only: "
        f"{_DEFAULT_BATCH}"
        for name, table in tables.items()
        if table.starts[-1] > server.max_num_seqs
    ]
    notes += by_context
    if notes:
        return passes("schedule", "; ".join(notes), "HoldsWithNotes")
    return passes("schedule", "every candidate's schedule says what the engine will do")


def _new(server: ServerFacts, spec: Spec, tables: Mapping[str, EffectiveTable]) -> Gate:
    """Refuse a run that could only compare the serving schedule with itself."""
    gate = "newSchedule"
    same = twins([each for each in spec.candidates if each.name in tables], server)
    serving = [name for name, other in same.items() if other is None]
    if serving and len(same) == len(spec.candidates):
        return fails(
            gate,
            "AlreadyServing",
            f"container {server.container} serves the schedule of {', '.join(serving)} already; "
            "there is nothing to find out",
        )
    said = [f"{name} is the serving schedule" for name in serving]
    said += [f"{name} is the same schedule as {other}" for name, other in same.items() if other]
    if said:
        return passes(gate, f"{'; '.join(said)}: not launched twice", "HoldsWithNotes")
    return passes(gate, "no candidate is the serving schedule, or another one")


def _block_size(spec: Spec, where: Surroundings, block: int | None) -> Gate:
    gate = "blockSize"
    if where.method not in BLOCK_DRAFTERS:
        return not_applicable(gate, "NoBlocks", "the method does not draft in blocks")
    limits = f"a {where.method} drafter's block size limits num_speculative_tokens (not the rows)"
    if block is None:
        return not_applicable(
            gate,
            "LeftToEngine",
            f"{limits}; its files were not read here, so the engine itself refuses a wrong one",
        )
    beyond = [c for c in spec.candidates if c.largest_tokens > block]
    if beyond:
        return fails(
            gate,
            "BeyondBlock",
            f"{limits}, and it is {block}: candidate {beyond[0].name} has "
            f"{beyond[0].largest_tokens}; set its maxTokens to {block}",
        )
    below = [c for c in spec.candidates if c.largest_tokens < block]
    if below:
        return passes(
            gate,
            f"{limits}, and it is {block}: candidate {below[0].name} has "
            f"{below[0].largest_tokens}; where the engine wants the whole block, set its maxTokens "
            f"to {block}",
            "BelowBlock",
        )
    return passes(gate, f"the drafter's block size is {block}, and so is num_speculative_tokens")


def _token_budget(spec: Spec, server: ServerFacts) -> Gate:
    gate, budget = "tokenBudget", server.max_num_batched_tokens
    if budget is None:
        return _default_budget(spec, server)
    short = None
    for candidate in spec.candidates:
        largest = candidate.largest_tokens
        step = server.max_num_seqs * (largest + 1)
        said = (
            f"candidate {candidate.name}: K={largest} x max_num_seqs {server.max_num_seqs} needs "
            f"{step} tokens a step, max_num_batched_tokens is {budget}"
        )
        if budget <= largest or (server.enable_lora and budget < step):
            return fails(gate, "TokenBudget", f"{said}: vLLM refuses to start; raise it")
        if budget < step:
            short = short or f"{said}: a full batch cannot be verified whole"
    if short is not None:
        return passes(gate, short, "BudgetShort")
    return passes(gate, "the token budget of a step holds a full batch with its drafts")


def _default_budget(spec: Spec, server: ServerFacts) -> Gate:
    gate, smallest = "tokenBudget", 2048
    largest = max((candidate.largest_tokens for candidate in spec.candidates), default=0)
    step = server.max_num_seqs * (largest + 1)
    said = f"K={largest} x max_num_seqs {server.max_num_seqs} needs {step} tokens a step"
    if step <= smallest:
        return not_applicable(gate, "EngineDefault", f"{said}, which every default of vLLM holds")
    refuses = "; with adapters vLLM refuses to start then" if server.enable_lora else ""
    return passes(
        gate,
        f"{said}; --max-num-batched-tokens is not given, and vLLM's default is {smallest}, 8192 on "
        "GPUs of 70 GB and more that are no A100, 16384 from 160 GB: where it is smaller, a full "
        f"batch cannot be verified whole{refuses}; give it",
        "BudgetNotGiven",
    )


def method_of(spec: Spec, server: ServerFacts) -> str | None:
    """Return the speculative method; vLLM finds it from the drafter where none is named."""
    if server.speculative is None:
        return spec.speculative.method if spec.speculative else None
    method = server.speculative.get("method")
    return str(method) if method is not None else None


def _speculative(spec: Spec, server: ServerFacts, version: str | None) -> Gate:
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
    whose, refused = f"container {server.container}: its speculative config", server.refused
    if spec.speculative is not None:
        fault = unknown_method(spec.speculative.method)
        whose, refused = "spec.speculative", [fault] if fault else []
    if refused:
        said = f"{whose} has what vLLM 0.32 refuses to start with: {'; '.join(refused)}"
        if version is not None and numbers(version)[:2] == (0, 32):
            return fails("speculative", "ValueRefused", f"{said}; correct it")
        return passes("speculative", f"{said}; another version may take it", "HoldsWithNotes")
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


def _can_roll(spec: Spec, target: TargetFacts) -> Gate:
    if target.can_roll:
        if spec.mode is Mode.PROPOSE:
            return passes("rollout", f"{target.can_roll}; mode Propose rolls nothing out")
        return fails("rollout", "RolloutDeadlock", target.can_roll)
    if target.roll_unchecked:
        return not_applicable("rollout", "FreeGpusNotSeen", target.roll_unchecked)
    return passes("rollout", "a rollout of the target can finish")


def load_fits(spec: Spec, server: ServerFacts, tables: Mapping[str, EffectiveTable]) -> Gate:
    """Say whether the server can answer the requests of every load point."""
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
    beyond_context = contexts_fit(spec, limit)
    if beyond_context is not None:
        return beyond_context
    differs = [
        f"{name} at {point}"
        for name, table in tables.items()
        for point in spec.load.points
        if _at(table, min(point, server.largest_batch))
        != _at(table, min(point, server.max_num_seqs))
    ]
    if differs:
        return unknown(
            "load",
            "BatchLimitNotGiven",
            f"how many tokens candidate {', '.join(differs)} in flight drafts is not known: "
            f"{_DEFAULT_BATCH}",
        )
    if (beyond_search := search_contexts_fit(spec, limit)) is not None:
        return beyond_search
    beyond = [point for point in spec.load.points if point > server.max_num_seqs]
    if beyond:
        default = "" if server.max_num_seqs_given else f" ({_DEFAULT_BATCH})"
        return passes(
            "load",
            f"load points {beyond} are beyond max_num_seqs {server.max_num_seqs}: requests queue "
            f"there{default}",
            "QueuesBeyondBatch",
        )
    if limit is None:
        return not_applicable(
            "load",
            "ModelLengthNotGiven",
            f"whether requests of {length} tokens fit is not known before a launch, where one that "
            "does not fails: --max-model-len is not given; give it, or preflight --log",
        )
    if spec.load.prompts is not None:
        said = f"outputs fit max_model_len {limit}; how long the prompts are, the load job reads"
        return passes("load", said)
    return passes("load", f"requests of {length} tokens fit max_model_len {limit}")


def _at(table: EffectiveTable, batch: int) -> list[int]:
    """Return K at a batch size, by context range."""
    return [table.tokens(batch, context and context[0]) for context in table.contexts or [None]]


def _log_level(server: ServerFacts) -> Gate:
    gate, named = "logLevel", server.environment.get("VLLM_LOGGING_CONFIG_PATH")
    asks = f"container {server.container}:"
    if server.log_config_file or named:
        which = "VLLM_LOGGING_CONFIG_PATH" if named else "an argument"
        return unknown(
            gate,
            "LoggingConfigNotRead",
            f"{asks} {which} names a file of logging settings that is not read here: whether "
            "engine warnings will be seen, the logs of the launches decide; unset it to know "
            "before",
        )
    level = (server.log_level or server.environment.get("VLLM_LOGGING_LEVEL", "INFO")).upper()
    configured = server.configure_logging and (
        server.environment.get("VLLM_CONFIGURE_LOGGING") != "0"
    )
    if level in ("ERROR", "CRITICAL", "FATAL") or not configured:
        return unknown(
            gate,
            "LogLevelHidesWarnings",
            f"{asks} its logging settings hide engine warnings, such as a schedule switched off; "
            "set VLLM_LOGGING_LEVEL to INFO",
        )
    settings = ["VLLM_LOGGING_LEVEL", "VLLM_CONFIGURE_LOGGING"]
    # A file of settings is rare: only a reference by name speaks for one.
    settings += [name for name in ("VLLM_LOGGING_CONFIG_PATH",) if name in server.unread]
    if unread := server.unknown(*settings):
        said = f"{unread}; else the logs of the launches tell whether engine warnings are seen"
        return unknown(gate, "EnvironmentNotRead", said)
    return passes(gate, "engine warnings will be seen")
