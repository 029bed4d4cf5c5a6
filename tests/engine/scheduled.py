"""Drives vLLM's asynchronous scheduler with ours on top, two steps in flight, without a model.

Run by vLLM's own Python: MODEL, DRAFTER and the additional config with the table as arguments.
The engine on a CPU schedules one step at a time, so this is where the other way is tried. Out:
one JSON line per step, with what the scheduler stood at before it, read from vLLM's requests.
The last line also tells what is made of servers that have no schedule.
"""

import json
import random
import sys
from collections import deque
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from specschedule.engine.context import EitherContextScheduler

BLOCKS, BLOCK_SIZE = 2000, 16
EVERY_K = [[1, 4, 4], [5, 8, 3], [9, 12, 2], [13, 14, 1], [15, 16, 0]]


def made(
    kind: type,
    model: str,
    drafter: str,
    *,
    asynchronous: bool = True,
    rows: list[list[int]] | None = EVERY_K,
    speculates: bool = True,
    **more: Any,
) -> Any:
    """Return a scheduler of a kind, as vLLM's engine would make it."""
    speculative: dict[str, Any] = {
        "method": "draft_model",
        "model": drafter,
        "num_speculative_tokens": 4,
    }
    if rows is not None:
        speculative["num_speculative_tokens_per_batch_size"] = rows
    arguments = EngineArgs(
        model=model,
        speculative_config=speculative if speculates else None,
        max_model_len=1024,
        max_num_seqs=16,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        **more,
    )
    config = arguments.create_engine_config()
    # The CPU platform turns it off; nothing of the platform is used here.
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def without(model: str, drafter: str, table: dict[str, Any]) -> dict[str, str]:
    """Say what is made of servers without a schedule, and with no table of their own."""

    def name(**server: Any) -> str:
        try:
            kind = type(made(EitherContextScheduler, model, drafter, **server))
        except ValueError as refused:
            return str(refused)
        return f"{kind.__module__}.{kind.__qualname__}"

    return {
        "fixed": name(rows=None),
        "none": name(speculates=False, asynchronous=False),
        "table": name(rows=None, additional_config=table),
        "rows": name(additional_config={"theirs": 1}),
    }


def main() -> None:
    chance = random.Random(7)
    model, drafter, additional = sys.argv[1:]
    table = json.loads(additional)
    scheduler = made(EitherContextScheduler, model, drafter, additional_config=table)
    for at, length in enumerate((20, 400, 24, 600, 30, 700)):
        sampling = SamplingParams(max_tokens=20 + 12 * at, ignore_eos=True)
        scheduler.add_request(Request(str(at), [5] * length, sampling, None))
    flying: deque[tuple[object, ModelRunnerOutput]] = deque()
    while scheduler.has_unfinished_requests() or flying:
        before = {
            name: (each.num_computed_tokens, each.num_prompt_tokens)
            for name, each in scheduler.requests.items()
        }
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        drafts = {n: len(output.scheduled_spec_decode_tokens.get(n, ())) for n in names}
        if names:
            line = {
                "before": {name: before[name] for name in names},
                "drafts": drafts,
                "tokens": output.num_spec_tokens_to_schedule,
            }
            sys.stdout.write(json.dumps(line) + "\n")
        # A decoding request yields one token and as many drafts as chance accepts.
        done = {n: before[n][0] + output.num_scheduled_tokens[n] >= before[n][1] for n in names}
        sampled = [[9] * (1 + chance.randint(0, drafts[n])) if done[n] else [] for n in names]
        result = ModelRunnerOutput(names, {n: at for at, n in enumerate(names)}, sampled)
        if names:
            flying.append((output, result))
        if flying and (len(flying) == 2 or not names):
            scheduler.update_from_output(*flying.popleft())
    end = {"proof": scheduler.planner.proof.plain(), "kind": type(scheduler).__name__}
    sys.stdout.write(json.dumps({**end, "without": without(model, drafter, table)}) + "\n")


if __name__ == "__main__":
    main()
