"""What vLLM's versions do with a schedule, as data, and what that means for a run.

A known engine problem is a row and not a branch; the rows themselves stand in ``vllm_facts``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from specschedule.core.gate import Gate, fails, not_applicable, passes, unknown
from specschedule.core.schedule import EffectiveTable
from specschedule.core.target import ServerFacts, TargetFacts
from specschedule.core.values import Value
from specschedule.core.versions import numbers

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Variable that forces a model runner."""

V2_LACKS = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods that model runner V2 of vLLM 0.32 and 0.33 does not have."""

_METHODS = """
    bailing_hybrid_mtp bailing_hybrid_v3_mtp custom_class deepseek_mtp dflash dots3_note_mtp
    draft_model dspark eagle eagle3 ernie_mtp exaone4_5_mtp exaone_moe_mtp extract_hidden_states
    gemma4_mtp glm4_moe_lite_mtp glm4_moe_mtp glm5_next_mtp glm_ocr_mtp hy_v3_mtp hy_v4_mtp
    inkling_mtp kimi_k3_mtp longcat_flash_mtp medusa mimo_mtp mimo_v2_mtp minimax_m3_mtp
    mlp_speculator mtp nemotron_h_mtp ngram ngram_gpu pangu_ultra_moe_mtp qwen3_5_mtp
    qwen3_next_mtp qwen4_exp_mtp step3p5_mtp suffix
"""
METHODS = frozenset(_METHODS.split())
"""Speculative methods of vLLM 0.32.0 (``vllm/config/speculative.py``)."""

Device = Literal["cpu", "cuda", "rocm", "npu", "other", "unknown"]

DEVICES: Mapping[str, Device] = {"nvidia.com": "cuda", "amd.com": "rocm", "huawei.com": "npu"}
"""Devices by the domain of the resource that a pod asks for."""

Runner = Literal["V1", "V2"]

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
"""CUDA graph modes, as vLLM names them."""

Effect = Literal[
    "Honours",
    "TruncatesOnly",
    "MayTruncate",
    "Ignores",
    "LosesGraphs",
    "MayLoseGraphs",
    "Disables",
    "Refuses",
    "Crashes",
    "Corrupts",
]

_BY_LEVEL: Mapping[int, GraphMode] = {
    0: "NONE",
    1: "PIECEWISE",
    2: "FULL_AND_PIECEWISE",
    3: "FULL_AND_PIECEWISE",
}
"""CUDA graph mode that each optimization level of vLLM 0.32 stands for."""


_REPORTED = "reported, not tested"


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
    """Versions that it was read or seen in; empty where others reported it."""
    option: str = "num_speculative_tokens_per_batch_size"
    """The option that carries the schedule."""
    methods: list[str] = []
    """Speculative methods; ``mtp`` stands for the models' own names of it too, such as
    ``deepseek_mtp``, which vLLM replaces."""
    runners: list[Runner] = []
    """Model runners."""
    devices: list[Device] = []
    """Devices."""
    backends: list[str] = []
    """Attention backends that the server's arguments pin, as vLLM names them."""
    graph_modes: list[GraphMode] = []
    """CUDA graph modes that the server asks for, by its arguments or by vLLM's default."""
    layouts: list[Literal["data"]] = []
    """Ways in which the server is spread over GPUs."""
    rows: Literal["any", "zero", "varying", "contexts"] = "any"
    """Schedules: any; with a K=0 row; with another K than the largest; with contexts."""
    random: bool = False
    """Whether it is about sampling at a temperature above 0 only."""
    effect: Effect
    """What the engine does."""
    symptom: str
    """What a user sees."""

    @property
    def source(self) -> str:
        """Where it is from: its name, and the versions that it was read or seen in."""
        known = f"read or seen in vLLM {', '.join(self.tested)}" if self.tested else _REPORTED
        return f"{self.id}, option {self.option}, {known}"

    def covers(self, version: str | None) -> bool:
        """Say whether it was read or seen in a version, or in its release, where one is known."""
        releases = {numbers(each)[:2] for each in self.tested}
        return version is None or not releases or numbers(version)[:2] in releases

    def matches(self, where: "Surroundings", kinds: set[str]) -> bool:
        """Say whether it is about a table of these kinds in these surroundings."""
        version = None if where.version is None else numbers(where.version)
        if version is not None and self.since and version < numbers(self.since):
            return False
        if version is not None and self.before and version >= numbers(self.before):
            return False
        return (
            (not self.methods or not where.methods.isdisjoint(self.methods))
            and (not self.runners or where.runner in self.runners)
            and (not self.devices or where.device in self.devices)
            and (not self.backends or where.backend in self.backends)
            and (not self.graph_modes or where.graph_mode in self.graph_modes)
            and (not self.layouts or where.layout in self.layouts)
            and self.rows in kinds
            and (where.random or not self.random)
        )

    @property
    def on_graphs(self) -> bool:
        """Whether it tells of CUDA graphs, and not of drafting."""
        return self.effect in ("LosesGraphs", "MayLoseGraphs")


class Surroundings(Value):
    """What a schedule would run in, as far as it can be known before a launch."""

    version: str | None
    """vLLM's version."""
    method: str | None
    """Speculative method; None when vLLM finds it from the drafter."""
    runner: Runner | None
    """Model runner that is seen in the serving engine, or expected; None when a variable that was
    not read chooses it."""
    device: Device
    """Device."""
    backend: str | None = None
    """Attention backend that the arguments pin; None where vLLM chooses it at launch."""
    graph_mode: GraphMode | None = None
    """CUDA graph mode that the server asks for; None where vLLM does not know what is asked for."""
    layout: Literal["data"] | None = None
    """How the server is spread over GPUs, where that matters."""
    random: bool = False
    """Whether the load samples at a temperature above 0."""

    @property
    def methods(self) -> frozenset[str]:
        """Names that rows know the method by."""
        named = self.method or ""
        return frozenset({named, "mtp"} if named.endswith("_mtp") else {named})

    def __str__(self) -> str:
        method = self.method or "(found from the drafter)"
        pinned = f", attention backend {self.backend}" if self.backend else ""
        return f"method {method}, model runner {self.runner or 'V1 or V2'}, {self.device}{pinned}"


def unknown_method(method: object) -> str | None:
    """Say that vLLM 0.32 has no such speculative method; None where it has."""
    if isinstance(method, str) and method in METHODS:
        return None
    return f"method {json.dumps(method)} is not one of vLLM 0.32"


def device_of(target: TargetFacts) -> Device:
    """Return the device that a pod of the target runs on."""
    if not target.gpus:
        untold = isinstance(target.server, ServerFacts) and target.server.gpus_untold
        return "unknown" if untold else "cpu"
    domain = (target.accelerator or "nvidia.com/gpu").partition("/")[0]
    return DEVICES.get(domain, "other")


def expected_runner(server: ServerFacts, device: Device, method: str | None) -> Runner | None:
    """Return the model runner that vLLM 0.32 will use; None where that is not known."""
    if (forced := _forced(server)) is not None:
        return forced
    if device == "cpu" or _lacked_by_v2(server, method):
        return "V1"
    return None if device == "unknown" or server.unknown(RUNNER_VARIABLE) else "V2"


def asked_graph_mode(server: ServerFacts, device: Device) -> GraphMode | None:
    """Return the CUDA graph mode that vLLM 0.32 starts from, before it looks at the model.

    Source: vLLM 0.32.0, ``config/vllm.py``: what each optimization level stands for.
    """
    if server.enforce_eager or device == "cpu":
        return "NONE"
    if server.graph_mode is not None:
        named = server.graph_mode.upper()
        return next((mode for mode in get_args(GraphMode) if mode == named), None)
    level = server.optimization_level
    return None if level is None else _BY_LEVEL.get(level)


def _lacked_by_v2(server: ServerFacts, method: str | None) -> str | None:
    """Name what the server asks for and model runner V2 of vLLM 0.32 does not have."""
    config = server.speculative or {}
    if method in V2_LACKS:
        return f"method {method}"
    if config.get("parallel_drafting") and method not in ("dflash", "dspark"):
        return f"parallel drafting by method {method}"
    if config.get("use_heterogeneous_vocab"):
        return "drafter with another vocabulary (use_heterogeneous_vocab)"
    return "dual batch overlap (--enable-dbo) with drafting" if server.enable_dbo else None


def _lacked_by_v1(server: ServerFacts, method: str | None) -> str | None:
    """Name what the server asks for and model runner V1 of vLLM 0.32 does not have."""
    if method == "dspark":
        return f"method {method}"
    adapts = (server.speculative or {}).get("enable_adaptive_verification")
    return "adaptive verification" if adapts else None


def _forced(server: ServerFacts) -> Runner | None:
    """Return the model runner that the variable forces, which vLLM reads as a whole number."""
    value = server.environment.get(RUNNER_VARIABLE, "").strip()
    if not re.fullmatch(r"[+-]?\d+", value):
        return None
    return "V2" if int(value) else "V1"


def model_runner(server: ServerFacts, where: Surroundings) -> Gate:
    """Say whether the model runner that is forced can draft by this method."""
    value = server.environment.get(RUNNER_VARIABLE)
    if value is not None and _forced(server) is None:
        return fails(
            "modelRunner",
            "ValueRefused",
            f"{RUNNER_VARIABLE} is {value!r}: vLLM refuses to start with it; write 0 or 1, or "
            "unset it",
        )
    if _forced(server) == "V2" and (lacked := _lacked_by_v2(server, where.method)):
        return fails(
            "modelRunner",
            "RunnerLacksMethod",
            f"{RUNNER_VARIABLE} is {value} but model runner V2 has no {lacked}: "
            "vLLM refuses to start; unset the variable",
        )
    if where.runner == "V1" and (lacked := _lacked_by_v1(server, where.method)):
        why = f"{RUNNER_VARIABLE} is {value}" if value else "vLLM takes model runner V1 here"
        return fails(
            "modelRunner",
            "RunnerLacksMethod",
            f"{why}, which has no {lacked}: vLLM refuses to start; let it take model runner V2, "
            "or draft otherwise",
        )
    if where.runner is None and (unread := server.unknown(RUNNER_VARIABLE)):
        said = f"{unread}; else the launches tell the model runner"
        return unknown("modelRunner", "EnvironmentNotRead", said)
    if where.runner is None:
        said = f"container {server.container}: {server.gpus_untold}; launches tell the model runner"
        return unknown("modelRunner", "GpuNotNamed", said)
    return not_applicable(
        "modelRunner", "SeenAtLaunch", f"model runner {where.runner} is expected; launches tell"
    )


def method_and_schedule(
    where: Surroundings, matrix: Sequence[MatrixRow], tables: Mapping[str, EffectiveTable]
) -> Gate:
    """Say what the engine does with the candidates, by the worst row that matches one.

    Args:
        where: What they would run in.
        matrix: Rows, exceptions before rules.
        tables: Effective tables by candidate.
    """
    gate = "methodAndSchedule"
    if where.runner is None:
        return _on_either_runner(where, matrix, tables)
    found: dict[str, MatrixRow] = {}
    for name, table in tables.items():
        kinds = kinds_of(table)
        row = next((row for row in matrix if not row.on_graphs and row.matches(where, kinds)), None)
        if row:
            found[name] = row
    by_effect = {row.effect: (name, row) for name, row in reversed(found.items())}
    for effect in ("Refuses", "Crashes", "Corrupts", "Disables"):
        if effect in by_effect:
            name, row = by_effect[effect]
            return fails(
                gate,
                f"Engine{effect}Schedule",
                f"candidate {name} with {where}: {row.symptom} ({row.source})",
            )
    untested = [row for row in found.values() if not row.covers(where.version)]
    if len(found) < len(tables) or not tables or untested:
        elsewhere = f" ({untested[0].symptom}: {untested[0].source})" if untested else ""
        return not_applicable(
            gate,
            "NotTested",
            f"a schedule with {where} has not been tested on vLLM {where.version or '(unknown)'}"
            f"{elsewhere}; the counters of the running arms decide",
        )
    for effect in ("Ignores", "TruncatesOnly"):
        if effect in by_effect:
            _, row = by_effect[effect]
            return passes(
                gate,
                f"with {where}: {row.symptom}; the cost of drafting stays ({row.source})",
                "DraftingCostStays",
            )
    if "MayTruncate" in by_effect:
        _, row = by_effect["MayTruncate"]
        return passes(gate, f"with {where}: {row.symptom} ({row.source})", "DraftingCostMayStay")
    sources = dict.fromkeys(row.source for row in found.values())
    return passes(gate, f"with {where} drafting follows the schedule ({'; '.join(sources)})")


def _on_either_runner(
    where: Surroundings, matrix: Sequence[MatrixRow], tables: Mapping[str, EffectiveTable]
) -> Gate:
    """Answer where the model runner is not known: both must let the run go on."""
    v1, v2 = (
        method_and_schedule(where.model_copy(update={"runner": runner}), matrix, tables)
        for runner in ("V1", "V2")
    )
    if v1.holds == v2.holds:
        return v1 if v1.reason != "Holds" else v2
    reason, why = "EnvironmentNotRead", f"variable {RUNNER_VARIABLE} was not read"
    if where.device == "unknown":
        reason, why = "GpuNotNamed", "no GPU is named, so either model runner may be taken"
    return unknown(
        v1.gate,
        reason,
        f"{why}, and what the engine does hangs on it: {v1.message}; {v2.message}; write the "
        f"value of {RUNNER_VARIABLE} in env",
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


def graph_mode(
    where: Surroundings,
    matrix: Sequence[MatrixRow],
    tables: Mapping[str, EffectiveTable],
    server: ServerFacts,
    policy: Literal["Report", "Same", "RequireFull"],
) -> Gate:
    """Say what a schedule costs in CUDA graphs, by the first row on graphs that matches one.

    Args:
        where: What the candidates would run in.
        matrix: Rows, exceptions before rules.
        tables: Effective tables by candidate.
        server: The server, for what to say of it.
        policy: What a downgrade does.
    """
    gate = "graphMode"
    if where.graph_mode == "NONE":
        why = "enforce-eager is set" if server.enforce_eager else "there is no GPU or mode is NONE"
        return not_applicable(gate, "NoGraphs", f"no CUDA graphs: {why}")
    if where.device == "unknown":
        return unknown(
            gate,
            "GpuNotNamed",
            f"container {server.container}: {server.gpus_untold}; whether CUDA graphs are used, "
            "the launches decide; to know before, ask for the GPU in resources.limits",
        )
    kinds = [kinds_of(table) for table in tables.values()]
    losing = (
        row for row in matrix if row.on_graphs and any(row.matches(where, each) for each in kinds)
    )
    row = next(losing, None)
    if row is None or not row.covers(where.version):
        return not_applicable(gate, "SeenAtLaunch", "launches tell the resolved CUDA graph mode")
    said = f"{row.symptom} ({row.source})"
    if row.effect == "MayLoseGraphs":
        return passes(gate, f"{said}; launches tell", "DowngradePossible")
    if policy == "Report":
        return passes(gate, f"{said}; the verdict is by goodput", "DowngradeExpected")
    return fails(
        gate,
        "GraphsLostToSchedule",
        f"{said}, which spec.policy.graphMode {policy} forbids; use model runner V2, or Report",
    )
