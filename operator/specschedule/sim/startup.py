"""What vLLM says while it starts, and what it answers about itself afterwards.

The texts are vLLM's messages; people and gates match on them, never on file or line.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from specschedule.sim.engine import Graphs
from specschedule.sim.faults import Fault
from specschedule.sim.launch import VERSION, Launch


class Said(NamedTuple):
    """A log line, or with ``died`` the last words of a start that failed."""

    process: str
    level: str
    file: str
    message: str
    died: bool = False


GRAPH_CODES: dict[str, int | list[int]] = {
    "NONE": 0,
    "PIECEWISE": 1,
    "FULL": 2,
    "FULL_DECODE_ONLY": [2, 0],
    "FULL_AND_PIECEWISE": [2, 1],
}
"""How /server_info writes a CUDA graph mode."""

BACKEND = "FLASH_ATTN"


def before_load(launch: Launch) -> Iterator[Said]:
    """Yield what is said before the weights are loaded."""
    yield Said(
        "APIServer",
        "INFO",
        "api_utils.py:347",
        f"vLLM server version {VERSION}, serving model {launch.model}",
    )
    yield Said(
        "APIServer",
        "INFO",
        "api_utils.py:286",
        f"non-default args: {dict(launch.non_default)}",
    )
    yield Said("APIServer", "INFO", "model.py:2152", f"Using max model len {launch.max_model_len}")
    yield from _overrides(launch)
    if launch.scheduler_cls:
        yield Said(
            "EngineCore",
            "WARNING",
            "scheduler.py:168",
            f"Using custom scheduler class {launch.scheduler_cls}. This scheduler interface is "
            "not public and compatibility may not be maintained.",
        )
    yield Said(
        "EngineCore",
        "INFO",
        "core.py:133",
        f"Initializing a V1 LLM engine (v{VERSION}) with config: {_banner(launch)}",
    )
    if launch.runner == "V2":
        yield Said("Worker", "INFO", "gpu_worker.py:412", "Using V2 Model Runner")
    yield Said(
        "Worker", "INFO", "gpu_model_runner.py:4071", f"Starting to load model {launch.model}..."
    )


def after_load(launch: Launch) -> Iterator[Said]:
    """Yield what is said from the weights on; ``died`` ends the start."""
    if launch.speculative is not None:
        yield Said("Worker", "INFO", "gpu_model_runner.py:4098", "Loading drafter model...")
    yield Said(
        "Worker",
        "INFO",
        "cuda.py:371",
        f"Using {BACKEND} attention backend out of potential backends: ['{BACKEND}']",
    )
    if launch.hits(Fault.WORKER_DOWNGRADE) and launch.graphs_config.startswith("FULL"):
        yield Said(
            "Worker",
            "WARNING",
            "compilation.py:1187",
            f"CUDAGraphMode.{launch.graphs_config} is not supported with spec-decode for "
            f"attention backend {BACKEND} (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_"
            "DECODE); setting cudagraph_mode=PIECEWISE",
        )
    if not launch.eager:
        yield from _compile_cache(launch)
    if launch.hits(Fault.OOM):
        yield _died(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a "
            "total capacity of 79.11 GiB of which 1.20 GiB is free."
        )
        return
    tokens = launch.settings.kv_tokens
    yield Said(
        "EngineCore",
        "INFO",
        "kv_cache_utils.py:1316",
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for "
        f"{launch.max_model_len:,} tokens per request: {tokens / launch.max_model_len:.2f}x",
    )
    if launch.late_refusal is not None:
        yield _died(f"ValueError: {launch.late_refusal}")
        return
    if launch.settings.graphs is Graphs.NONE:
        return
    if launch.hits(Fault.CRASH_AT_CAPTURE):
        yield _died(
            "AssertionError: captured query length does not match the verified length "
            "(while capturing CUDA graphs)"
        )
        return
    for mode in ("PIECEWISE", "FULL"):
        if mode == "PIECEWISE" or launch.settings.graphs is Graphs.FULL:
            yield Said(
                "Worker", "INFO", "cudagraph_utils.py:214", f"Capturing CUDA graphs ({mode})"
            )
    yield Said(
        "Worker",
        "INFO",
        "gpu_model_runner.py:5390",
        "Graph capturing finished in 1 secs, took 0.42 GiB",
    )


def ready(launch: Launch, address: str, seconds: float) -> Iterator[Said]:
    """Yield what is said when the server starts to listen."""
    yield Said(
        "EngineCore",
        "INFO",
        "core.py:291",
        "init engine (profile, create kv cache, warmup model) took "
        f"{seconds:.2f} s (compilation: 0.00 s)",
    )
    yield Said("APIServer", "INFO", "entry.py:140", f"Starting vLLM server on {address}")


def _overrides(launch: Launch) -> Iterator[Said]:
    rows = (launch.speculative or {}).get("num_speculative_tokens_per_batch_size")
    if rows is not None and launch.data_parallel_size > 1:
        yield Said(
            "APIServer",
            "WARNING",
            "vllm.py:1021",
            "Dynamic speculative decoding is not supported with data parallelism because "
            "data-parallel ranks can select different speculative-token counts, causing DP "
            "divergence and deadlocks. Disabling num_speculative_tokens_per_batch_size and "
            f"falling back to static num_speculative_tokens={launch.settings.max_tokens}.",
        )
    if launch.eager:
        yield Said(
            "APIServer",
            "WARNING",
            "vllm.py:1703",
            "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This "
            "is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none and "
            "--kernel_config.enable_jit_warmup=False",
        )
    if launch.graphs_config != launch.graphs_asked:
        yield Said(
            "APIServer",
            "WARNING",
            "vllm.py:1056",
            "Dynamic speculative decoding changes the target verification length at runtime. "
            f"Overriding cudagraph_mode from {launch.graphs_asked} to PIECEWISE for reliability. "
            "Use VLLM_USE_V2_MODEL_RUNNER=1 if you want to use full CUDA graphs.",
        )


def _banner(launch: Launch) -> str:
    speculative = None
    if launch.speculative is not None:
        given = launch.speculative
        speculative = (
            f"SpeculativeConfig(method={given.get('method')!r}, model={given.get('model')!r}, "
            f"num_spec_tokens={launch.settings.max_tokens})"
        )
    code = GRAPH_CODES[launch.graphs_config]
    mode = tuple(code) if isinstance(code, list) else code
    return (
        f"model='{launch.model}', speculative_config={speculative}, tokenizer='{launch.model}', "
        f"revision=None, max_seq_len={launch.max_model_len}, "
        f"data_parallel_size={launch.data_parallel_size}, quantization=None, "
        f"enforce_eager={launch.eager}, device_config=cuda, "
        f"enable_prefix_caching={launch.settings.prefix_caching}, "
        f"compilation_config={{'cudagraph_mode': <CUDAGraphMode.{launch.graphs_config}: {mode}>, "
        f"'cudagraph_capture_sizes': {captured_sizes(launch)}}}"
    )


def captured_sizes(launch: Launch) -> list[int]:
    """Return the graph sizes that vLLM captures by default, in tokens."""
    if launch.graphs_config == "NONE":
        return []
    per_request = 1 + launch.settings.max_tokens
    largest = min(2 * launch.settings.max_num_seqs * per_request, 512)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    return [size for size in sizes if size <= largest]


def worker_facts(launch: Launch) -> dict[str, Any]:
    """Return what the fingerprint tells of the worker; one without a GPU has no device to tell."""
    downgraded = launch.hits(Fault.WORKER_DOWNGRADE) and launch.settings.graphs is Graphs.PIECEWISE
    sizes = captured_sizes(launch)
    facts = {
        "modelRunner": launch.runner,
        "graphMode": "PIECEWISE" if downgraded else launch.graphs_config,
        "capturedSizes": sizes,
        "attentionBackend": BACKEND,
        "asyncScheduling": True,
        "enforceEager": launch.eager,
        "graphsCaptured": len(sizes) * (2 if launch.settings.graphs is Graphs.FULL else 1),
    }
    if launch.speculative is not None:
        facts |= {
            "drafterClass": "SimulatedDrafter",
            "schedule": [list(row) for row in launch.rows or ()],
            "numSpeculativeTokens": launch.settings.max_tokens,
        }
    return facts


def config_hash(launch: Launch) -> str:
    """Return ten hex digits of the configuration; as in vLLM, the schedule is not part of it."""
    key = f"{launch.model} {launch.speculative is not None} {launch.max_model_len}"
    return hashlib.sha256(key.encode()).hexdigest()[:10]


def fingerprint(launch: Launch) -> str:
    """Return vLLM's ``system_fingerprint``."""
    parallel = f"-dp{launch.data_parallel_size}" if launch.data_parallel_size > 1 else ""
    return f"vllm-{VERSION}{parallel}-{config_hash(launch)[:8]}"


def _compile_cache(launch: Launch) -> Iterator[Said]:
    """Yield that the compile cache was warm."""
    yield Said(
        "Worker",
        "INFO",
        "backends.py:870",
        f"Using cache directory: /cache/vllm/torch_compile_cache/{config_hash(launch)}/rank_0_0/"
        "backbone for vLLM's torch.compile",
    )
    yield Said(
        "Worker",
        "INFO",
        "backends.py:211",
        "Directly load the compiled graph(s) for compile range "
        f"(1, {launch.settings.max_num_batched_tokens}) from the cache, took 0.412 s",
    )


def _died(message: str) -> Said:
    return Said("EngineCore", "ERROR", "core.py:1108", message, died=True)


def server_info(launch: Launch) -> dict[str, Any]:
    """Return the answer of ``/server_info?config_format=json``."""
    speculative = None
    if launch.speculative is not None:
        speculative = {
            **launch.speculative,
            "num_speculative_tokens": launch.settings.max_tokens,
            "num_speculative_tokens_per_batch_size": (
                None if launch.rows is None else [list(row) for row in launch.rows]
            ),
        }
    environment = {k: v for k, v in launch.environment.items() if k.startswith("VLLM_")}
    return {
        "vllm_config": {
            "model_config": {
                "model": launch.model,
                "max_model_len": launch.max_model_len,
                "enforce_eager": launch.eager,
                "quantization": None,
                "revision": None,
            },
            "cache_config": cache_config(launch),
            "parallel_config": {"data_parallel_size": launch.data_parallel_size},
            "scheduler_config": {
                "max_num_seqs": launch.settings.max_num_seqs,
                "max_num_batched_tokens": launch.settings.max_num_batched_tokens,
                "async_scheduling": True,
                "scheduler_cls": launch.scheduler_cls,
            },
            "speculative_config": speculative,
            "compilation_config": {
                "cudagraph_mode": GRAPH_CODES[launch.graphs_config],
                "cudagraph_capture_sizes": captured_sizes(launch),
            },
        },
        "vllm_env": {k: v for k, v in environment.items() if "KEY" not in k},
        "system_env": {"cuda_runtime_version": None, "torch_version": None},
    }


def cache_config(launch: Launch) -> dict[str, Any]:
    """Return the cache configuration, as /server_info and the metric's labels give it."""
    tokens = launch.settings.kv_tokens
    return {
        "block_size": 16,
        "cache_dtype": "auto",
        "enable_prefix_caching": launch.settings.prefix_caching,
        "gpu_memory_utilization": 0.92,
        "kv_cache_max_concurrency": round(tokens / launch.max_model_len, 4),
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": tokens // 16,
    }
