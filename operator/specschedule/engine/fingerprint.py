"""What a worker really runs.

``--worker-extension-cls specschedule.engine.fingerprint.Fingerprint``. The facts are read where
they are decided, in the worker's process, from attributes that are no public interface: one that
this version does not have is left out, never guessed. Their names are those of a receipt.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from specschedule.engine import devicetimes, page, settings
from specschedule.engine.lines import printed

_log = logging.getLogger("vllm.specschedule.fingerprint")

_WARM_UP = "compile_or_warm_up_model"
"""What vLLM calls last of a worker's start; graphs are captured in it."""

_ROWS = "num_speculative_tokens_per_batch_size"


class Fingerprint:
    """Mixed into vLLM's worker; ``collective_rpc("specschedule_fingerprint")`` calls it.

    As the environment tells it to, the first worker also answers on a port from its start on, and
    once it has warmed up it prints its facts and times its device.
    """

    def __new__(cls, *_: Any, **named: Any) -> "Fingerprint":
        """Make the worker; vLLM gives an extension no other moment at boot."""
        worker = super().__new__(cls)
        if not named.get("rank"):
            _serve(worker.specschedule_fingerprint)
            _once_warm(worker, settings.FINGERPRINT_LOG, _print)
            _once_warm(worker, settings.DEVICE_TIMES, _time)
        return worker

    def specschedule_fingerprint(self) -> dict[str, Any]:
        """Return the facts as they stand; complete once the server is healthy."""
        import torch

        return {**worker_facts(self), **device_facts(torch)}


def _serve(facts: Callable[[], Mapping[str, Any]]) -> None:
    try:
        port = settings.port(os.environ, settings.FINGERPRINT_PORT)
        if port is not None:
            page.serve(port, facts)
    except (ValueError, OSError) as fault:
        _log.warning("The fingerprint is not served: %s", fault)


def _once_warm(worker: Any, switch: str, then: Callable[[Any], None]) -> None:
    """Do something at the end of a worker's start, before the server is healthy."""
    warm_up = getattr(worker, _WARM_UP, None)
    try:
        if not settings.told(os.environ, switch) or warm_up is None:
            return
    except ValueError as fault:
        _log.warning("It stays off: %s", fault)
        return

    def and_then(*given: Any, **named: Any) -> Any:
        done = warm_up(*given, **named)
        try:
            then(worker)
        except Exception as fault:
            _log.warning("%s has no effect: %s", switch, fault)
        return done

    setattr(worker, _WARM_UP, and_then)


def _print(worker: Any) -> None:
    printed(settings.FINGERPRINT_LINE, worker.specschedule_fingerprint())


def _time(worker: Any) -> None:
    import torch

    devicetimes.watch(worker, torch)


def worker_facts(worker: Any) -> dict[str, Any]:
    """Return what a worker of vLLM tells of itself.

    Args:
        worker: The worker; any of its attributes may be missing.
    """
    runner = _at(worker, "model_runner")
    config = _at(worker, "vllm_config")
    dispatcher = _at(runner, "cudagraph_dispatcher")
    manager = _at(runner, "cudagraph_manager")
    drafter = _at(runner, "drafter") or _at(runner, "speculator")
    facts = {
        "modelRunner": _runner(runner),
        "graphMode": _graph_mode(dispatcher, manager, config),
        "capturedSizes": _captured(dispatcher, manager),
        "attentionBackend": _backends(runner),
        "engineCommit": _commit(),
        "drafterRevision": _text(config, "speculative_config.draft_model_config.revision"),
        "drafterQuantization": _text(config, "speculative_config.draft_model_config.quantization"),
        "drafterClass": type(drafter).__name__ if drafter is not None else None,
        "asyncScheduling": _at(config, "scheduler_config.async_scheduling"),
        "schedule": _schedule(_at(config, "speculative_config")),
        "numSpeculativeTokens": _at(config, "speculative_config.num_speculative_tokens"),
        "enforceEager": _at(config, "model_config.enforce_eager"),
        "graphsCaptured": _counted(),
    }
    return {name: value for name, value in facts.items() if value is not None}


def device_facts(torch: Any) -> dict[str, Any]:
    """Return what torch tells of itself and of the first device.

    Args:
        torch: The module.
    """
    facts: dict[str, Any] = {"torchVersion": str(torch.__version__)}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "cudaVersion": _at(torch, "version.cuda"),
            "gpu": str(properties.name),
            "gpuMemoryBytes": int(properties.total_memory),
            "gpuCapability": f"{properties.major}.{properties.minor}",
        }
    return {name: value for name, value in facts.items() if value is not None}


def _at(value: Any, path: str) -> Any:
    """Follow attributes; None where one is missing."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _text(value: Any, path: str) -> str | None:
    found = _at(value, path)
    return found if isinstance(found, str) and found else None


def _commit() -> str | None:
    """Return the commit that this vLLM was built from; releases tell none, images may."""
    try:
        from vllm import _version, envs
    except ImportError:
        return None
    told = _text(_version, "__commit_id__") or _text(envs, "VLLM_BUILD_COMMIT")
    return None if told == "unknown" else told


def _runner(runner: Any) -> str | None:
    """Tell vLLM's two model runners apart by where the class, or one it extends, lies."""
    modules = [each.__module__ for each in type(runner).__mro__]
    if any(name.startswith("vllm.v1.worker.gpu.") for name in modules):
        return "V2"
    return "V1" if "vllm.v1.worker.gpu_model_runner" in modules else None


def _graph_mode(dispatcher: Any, manager: Any, config: Any) -> str | None:
    """Return the mode that the runner resolved; the configured one only where it has none.

    The dispatcher of the first runner says NONE until its keys are made.
    """
    if manager is not None:
        mode = _at(manager, "cudagraph_mode")
    elif _at(dispatcher, "keys_initialized"):
        mode = _at(dispatcher, "cudagraph_mode")
    else:
        mode = _at(config, "compilation_config.cudagraph_mode")
    return getattr(mode, "name", None)


def _schedule(speculative: Any) -> list[list[int]] | None:
    """Return the rows in effect; none of them where the worker knows of no schedule."""
    if speculative is None or not hasattr(speculative, _ROWS):
        return None
    return [list(row) for row in getattr(speculative, _ROWS) or []]


def _captured(dispatcher: Any, manager: Any) -> list[int] | None:
    """Return the sizes, in tokens, that graphs exist for."""
    counts = _at(manager, "captured_token_counts")
    if counts is not None:
        return [int(each) for each in counts()]
    keys = _at(dispatcher, "cudagraph_keys")
    if not isinstance(keys, dict) or not _at(dispatcher, "keys_initialized"):
        return None
    return sorted({int(each.num_tokens) for described in keys.values() for each in described})


def _backends(runner: Any) -> str | None:
    names = {
        _at(group, "backend").get_name()
        for groups in _at(runner, "attn_groups") or []
        for group in groups
        if _at(group, "backend.get_name") is not None
    }
    return ", ".join(sorted(names)) or None


def _counted() -> int | None:
    """Return how many graphs this process has captured."""
    try:
        from vllm.compilation.counter import compilation_counter
    except ImportError:
        return None
    count = getattr(compilation_counter, "num_cudagraph_captured", None)
    return count if isinstance(count, int) else None
