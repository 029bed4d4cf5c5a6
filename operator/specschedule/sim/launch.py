"""Reading vLLM's command line and environment: what an engine launched so would do.

vLLM refuses faults at two moments. The command line and the config objects are checked at once
(``Refused``); a schedule's rows only once the scheduler is built, after the weights are loaded
(``Launch.late_refusal``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from specschedule.core import schedule as schedules
from specschedule.engine import settings
from specschedule.sim import context
from specschedule.sim.arguments import Arguments, Refused
from specschedule.sim.engine import Graphs, Settings, TokensFor
from specschedule.sim.faults import Fault, Planted
from specschedule.sim.probe import Probe, probe
from specschedule.sim.worlds import World
from specschedule.vllm_facts import flags
from specschedule.vllm_facts.instruments import FINGERPRINT, STEP_FLAGS

VERSION = "0.32.0"
"""vLLM version that the simulated engine answers for."""

SERVED_GRAPHS = "FULL_AND_PIECEWISE"
"""vLLM's default CUDA graph mode."""

_GRAPHS = {
    "NONE": Graphs.NONE,
    "PIECEWISE": Graphs.PIECEWISE,
    "FULL": Graphs.FULL,
    "FULL_DECODE_ONLY": Graphs.FULL,
    "FULL_AND_PIECEWISE": Graphs.FULL,
}

_LATE = {
    schedules.NOT_POSITIVE: "Batch-size range ({0}, {1}) must be positive.",
    schedules.REVERSED: "Batch-size range start must be <= end for ({0}, {1}, {2}).",
    schedules.NEGATIVE_TOKENS: "num_speculative_tokens_per_batch_size values must be >= 0.",
    schedules.OVERLAP: "Batch-size ranges must be non-overlapping and sorted.",
    schedules.NOT_FROM_ONE: "The first batch-size range must start at 1 so every runtime batch "
    "size has a defined schedule.",
    schedules.EMPTY: "num_speculative_tokens_per_batch_size must not be empty.",
}


_CARRIES_ITS_MODEL = ("mtp", "dspark", "ngram", "[ngram]", "suffix", "extract_hidden_states")
_DRAFTS_IN_FULL = ("draft_model", "dflash", "dspark", "ngram", "ngram_gpu")
"""Methods whose drafter ignores the tokens chosen on model runner V2: the surplus is cut."""

_ASSERTS_FULL = ("ngram_gpu", "suffix", "medusa", "extract_hidden_states")
"""Methods that die on model runner V1 when fewer tokens than the most are chosen."""


@checked(config=ConfigDict(extra="forbid"))
class SpeculativeConfig:
    """The keys of ``--speculative-config`` in vLLM 0.32, of which few matter here."""

    num_speculative_tokens: int | None = Field(default=None, gt=0)
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None = None
    method: str | None = None
    model: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)
    enforce_eager: bool | None = None
    attention_backend: Any = None
    code_revision: Any = None
    disable_eagle_block_drop: bool = False
    disable_padded_drafter_batch: bool = False
    draft_load_config: Any = None
    draft_sample_method: str = "greedy"
    draft_tensor_parallel_size: int | None = None
    dspark_draft_topk: int | None = None
    enable_adaptive_verification: bool = False
    index_share_for_mtp_iteration: bool | None = None
    kv_cache_dtype: Any = None
    moe_backend: Any = None
    parallel_drafting: bool = False
    quantization: Any = None
    rejection_sample_method: str = "standard"
    revision: Any = None
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_min_token_prob: float = 0.1
    synthetic_acceptance_length: float | None = None
    synthetic_acceptance_rates: list[float] | None = None
    tensor_parallel_size: int | None = None
    use_heterogeneous_vocab: bool = False
    use_local_argmax_reduction: bool = False


_CONTEXT_ROWS: TypeAdapter[list[tuple[int, int, int]] | list[tuple[int, int, int, int, int]]] = (
    TypeAdapter(list[tuple[int, int, int]] | list[tuple[int, int, int, int, int]])
)


@dataclass(frozen=True)
class Launch:
    """One start of the engine, as vLLM would resolve it."""

    world: World
    settings: Settings
    model: str
    served: tuple[str, ...]
    host: str | None
    port: int
    api_keys: tuple[str, ...]
    speculative: Mapping[str, Any] | None
    """The speculative config as given."""
    rows: tuple[tuple[int, ...], ...] | None
    """The schedule in effect; None after it was dropped."""
    runner: str
    """V1 or V2."""
    graphs_asked: str
    """CUDA graph mode before any override."""
    graphs_config: str
    """CUDA graph mode of the API server's config."""
    eager: bool
    data_parallel_size: int
    max_model_len: int
    environment: Mapping[str, str]
    planted: Planted
    non_default: Mapping[str, Any]
    """Arguments given, by vLLM's names."""
    scheduler_cls: str | None = None
    additional: Mapping[str, Any] | None = None
    """What ``--additional-config`` holds."""
    probe: Probe | None = None
    """The probe scheduler, where it is asked for."""
    followed: schedules.EffectiveTable | None = None
    """What the context-axis scheduler follows, where it is asked for."""
    late_refusal: str | None = None
    """Why the scheduler cannot be built, in vLLM's words."""
    buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tells_graphs: bool = False
    """Whether the recorder is told the graph mode of each step."""
    json_logs: bool = False
    worker_says: frozenset[str] = frozenset()
    """Variables that let the fingerprint print something, where the launch carries it."""
    counts_steps: bool = False
    """Whether the launch carries the recorder, lets it count steps, and is told their batches."""

    @property
    def development(self) -> bool:
        """Whether development endpoints are on."""
        return self.environment.get("VLLM_SERVER_DEV_MODE") == "1"

    @property
    def log_level(self) -> str:
        """Lowest level that is logged."""
        if self.hits(Fault.HIDDEN_WARNING):
            return "ERROR"
        return str(
            self.non_default.get("log_level") or self.environment.get("VLLM_LOGGING_LEVEL", "INFO")
        ).upper()

    @property
    def dies_of_fewer_tokens(self) -> bool:
        """Whether the drafter insists on proposing the most tokens."""
        method = (self.speculative or {}).get("method")
        return self.runner == "V1" and method in _ASSERTS_FULL

    def hits(self, fault: Fault) -> bool:
        """Say whether a fault is planted and concerns this launch."""
        asked = self.speculative or {}
        return self.planted.hits(
            fault,
            speculative=self.speculative is not None,
            schedule=asked.get("num_speculative_tokens_per_batch_size") is not None,
        )


def read(
    argv: Sequence[str],
    environment: Mapping[str, str],
    world: World,
    *,
    planted: Planted = Planted(),
    read_file: Callable[[str], str] | None = None,
) -> Launch:
    """Return the launch that a command line describes.

    Args:
        argv: vLLM's arguments, with or without ``serve MODEL`` before them.
        environment: Environment variables.
        world: Physics, and the defaults that depend on the machine.
        planted: Faults.
        read_file: Reads the file of ``--config``.

    Raises:
        Refused: vLLM would exit at once.
    """
    arguments = Arguments(argv, read_file)
    numbers = {
        name: arguments.number(f"--{name}", default)
        for name, default in (
            ("max-num-seqs", world.max_num_seqs),
            ("max-model-len", world.max_model_len),
            ("max-num-batched-tokens", world.max_num_batched_tokens),
            ("data-parallel-size", 1),
            ("port", 8000),
        )
    }
    for name, value in numbers.items():
        if value < 1 and not (name == "port" and value == 0):
            raise Refused(f"ValueError: {name.replace('-', '_')} ({value}) must be greater than 0.")
    speculative = arguments.json(flags.SPECULATIVE)
    for flag, key in flags.SPECULATIVE_PARTS.items():
        if (given := arguments.text(flag)) is not None:
            speculative = {
                **(speculative or {}),
                key: arguments.number(flag, 0) if "tokens" in key else given,
            }
    config = _checked(speculative, world)
    runner = _runner(world, config, environment)
    compilation = arguments.json("--compilation-config") or {}
    eager = arguments.switch("--enforce-eager", default=False)
    asked = "NONE" if eager else str(compilation.get("cudagraph_mode") or SERVED_GRAPHS).upper()
    if asked not in _GRAPHS:
        raise Refused(f"Invalid cudagraph_mode: {asked}. Valid modes are: {', '.join(_GRAPHS)}.")
    model = arguments.text("--model") or arguments.positional or world.model
    launch = Launch(
        world=world,
        settings=Settings(
            max_num_seqs=numbers["max-num-seqs"],
            max_num_batched_tokens=numbers["max-num-batched-tokens"],
            kv_tokens=16 * arguments.number("--num-gpu-blocks-override", world.kv_tokens // 16),
            prefix_caching=arguments.switch("--enable-prefix-caching", default=True),
        ),
        model=model,
        served=arguments.texts("--served-model-name") or (model,),
        host=arguments.text("--host"),
        port=numbers["port"],
        api_keys=arguments.texts("--api-key") or _listed(environment.get("VLLM_API_KEY")),
        speculative=speculative,
        rows=None,
        runner=runner,
        graphs_asked=asked,
        graphs_config=asked,
        eager=eager,
        data_parallel_size=numbers["data-parallel-size"],
        max_model_len=numbers["max-model-len"],
        environment=environment,
        planted=planted,
        non_default=arguments.non_default,
        scheduler_cls=arguments.text(flags.SCHEDULER),
        additional=arguments.json(flags.ADDITIONAL),
        buckets={
            family: tuple(float(edge) for edge in edges)
            for family, edges in (arguments.json("--custom-histogram-buckets") or {}).items()
        },
        worker_says=_worker_says(arguments.text("--worker-extension-cls"), environment, read_file),
        counts_steps=environment.get(settings.STEPS) == "1"
        and arguments.switch(STEP_FLAGS[0], default=False)
        and _delivered(environment, read_file),
        tells_graphs=arguments.switch(STEP_FLAGS[1], default=False),
        json_logs=(arguments.json("--logging-config") or {}).get("formatter") == "json",
    )
    launch = replace(launch, json_logs=launch.json_logs or launch.hits(Fault.JSON_LOGS))
    if launch.settings.kv_tokens < launch.max_model_len:
        raise Refused(
            "ValueError: To serve at least one request with the models's max seq len "
            f"({launch.max_model_len}), more KV cache is needed than the available "
            f"{launch.settings.kv_tokens} tokens. Try increasing `gpu_memory_utilization` or "
            "decreasing `max_model_len` when initializing the engine."
        )
    return _resolved(launch, config)


def _resolved(launch: Launch, config: SpeculativeConfig | None) -> Launch:
    """Work out the schedule and graph mode in effect, as vLLM's config does after parsing."""
    if config is None:
        return replace(
            launch, settings=replace(launch.settings, graphs=_GRAPHS[launch.graphs_asked])
        )
    max_tokens = config.num_speculative_tokens
    assert max_tokens is not None, "checked before"
    rows = _rows(config)
    if launch.data_parallel_size > 1 or launch.hits(Fault.SILENT_DISABLE):
        rows = None
    graphs = launch.graphs_asked
    if rows is not None and launch.runner == "V1" and graphs not in ("NONE", "PIECEWISE"):
        graphs = "PIECEWISE"
    in_effect = _GRAPHS[graphs]
    if launch.hits(Fault.WORKER_DOWNGRADE) and in_effect is Graphs.FULL:
        in_effect = Graphs.PIECEWISE
    table, late = None, None
    # vLLM's scheduler takes an empty schedule for none; its V2 graph manager refuses it.
    if rows or (rows is not None and launch.runner == "V2"):
        table, late = _table(rows, max_tokens, launch.settings.max_num_seqs)
    switched, followed = None, None
    try:
        if not late:
            plain = None if rows is None else [list(row) for row in rows]
            limits = {"max_tokens": max_tokens, "max_num_seqs": launch.settings.max_num_seqs}
            switched = probe(
                launch.scheduler_cls,
                plain,
                launch.environment,
                ignored=launch.hits(Fault.IGNORES_K),
                **limits,
            )
            followed = context.followed(
                launch.scheduler_cls, plain, launch.environment, launch.additional, **limits
            )
    except Refused as refused:
        late = refused.message
    return replace(
        launch,
        rows=rows,
        graphs_config=graphs,
        late_refusal=late,
        probe=switched,
        followed=followed,
        settings=replace(
            launch.settings,
            max_tokens=max_tokens,
            tokens_for=switched or (followed.tokens if followed else table),
            graphs=in_effect,
            drafter_ignores_tokens=launch.hits(Fault.DRAFTER_IGNORES_K)
            or (launch.runner == "V2" and config.method in _DRAFTS_IN_FULL),
        ),
    )


def _rows(config: SpeculativeConfig) -> tuple[tuple[int, ...], ...] | None:
    given = config.num_speculative_tokens_per_batch_size
    return None if given is None else tuple(tuple(row) for row in given)


def _table(
    rows: Sequence[Sequence[int]], max_tokens: int, max_num_seqs: int
) -> tuple[TokensFor | None, str | None]:
    """Return the lookup, or why there is none."""
    plain = [list(row) for row in rows]
    try:
        return schedules.effective(
            plain, max_tokens=max_tokens, max_num_seqs=max_num_seqs
        ).tokens, None
    except schedules.ScheduleError as error:
        row = plain[error.row_index] if error.row_index is not None else ()
        return None, _LATE.get(error.reason, error.message).format(*row)


def _checked(speculative: Mapping[str, Any] | None, world: World) -> SpeculativeConfig | None:
    """Check the config object as pydantic does in vLLM.

    Raises:
        Refused: A key or value is wrong.
    """
    if speculative is None:
        return None
    given = dict(speculative)
    key = "num_speculative_tokens_per_batch_size"
    rows = given.get(key)
    first = rows[0] if isinstance(rows, list) and rows else None
    five = world.context_schedules and isinstance(first, list) and len(first) == 5
    try:
        if five:
            rows = _CONTEXT_ROWS.validate_python(given.pop(key))
        config = SpeculativeConfig(**given)
        if five:
            config.num_speculative_tokens_per_batch_size = rows
    except ValidationError as error:
        raise Refused(f"pydantic_core._pydantic_core.ValidationError: {error}") from error
    if config.num_speculative_tokens is None:
        raise Refused(
            "ValueError: num_speculative_tokens must be provided with speculative_config unless "
            "the draft model config contains an n_predict parameter."
        )
    method = config.method or ""
    if config.model is None and not method.startswith(_CARRIES_ITS_MODEL) and "mtp" not in method:
        raise Refused(
            "ValueError: num_speculative_tokens was provided but without speculative model."
        )
    return config


def _runner(world: World, config: SpeculativeConfig | None, environment: Mapping[str, str]) -> str:
    """Return the model runner vLLM 0.32 would choose.

    Raises:
        Refused: V2 is forced for a method that it lacks.
    """
    forced = environment.get("VLLM_USE_V2_MODEL_RUNNER")
    lacking = config is not None and config.method in (
        "suffix",
        "medusa",
        "mlp_speculator",
        "custom_class",
    )
    if forced == "1" and lacking:
        assert config is not None
        raise Refused(
            "ValueError: Model Runner V2 does not yet support: speculative method "
            f"'{config.method}'"
        )
    if forced in ("0", "1"):
        return "V2" if forced == "1" else "V1"
    return "V1" if lacking else world.runner


def _worker_says(
    extension: str | None,
    environment: Mapping[str, str],
    read_file: Callable[[str], str] | None,
) -> frozenset[str]:
    """Return what is turned on of the fingerprint; nothing where the extension is another.

    Raises:
        Refused: No folder of PYTHONPATH holds it, so that vLLM's worker could not load it.
    """
    if extension != FINGERPRINT:
        return frozenset()
    if not _delivered(environment, read_file):
        raise Refused("ModuleNotFoundError: No module named 'specschedule'")
    switches = (settings.FINGERPRINT_LOG, settings.DEVICE_TIMES)
    return frozenset(name for name in switches if environment.get(name) == "1")


def _delivered(environment: Mapping[str, str], read_file: Callable[[str], str] | None) -> bool:
    """Say whether a folder of PYTHONPATH holds what runs inside the engine."""
    return read_file is None or any(
        _readable(f"{folder}/specschedule/engine/fingerprint.py", read_file)
        for folder in environment.get("PYTHONPATH", "").split(":")
    )


def _readable(path: str, read_file: Callable[[str], str]) -> bool:
    try:
        return bool(read_file(path))
    except OSError:
        return False


def _listed(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()
