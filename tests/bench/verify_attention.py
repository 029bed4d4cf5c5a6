"""Times vLLM's own attention of verify steps, with contexts of our choice, in a worker of vLLM's.

Run by vLLM's own Python, by ``bench_attention.py``, which also puts this folder on PYTHONPATH: an
engine boots with a small model of random weights, so that backend, KV cache and metadata builder
are what this machine's engine would use. Its attention layers are then called as a step calls
them, one after another, with a batch whose contexts are given. Arguments: what is asked, as JSON,
and the file that the answer goes to, since standard output is the engine's log.
"""

import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 32, 8, 128, 4
"""Heads of an 8B model; the layers take turns, so that one's keys do not stay in a cache."""
SAMPLE_SECONDS = 0.05
"""A sample is as many passes over the layers as take about this long."""
SEED = 7
RANDOM = 0.5
"""Standard deviation of keys and queries: no position takes nearly all of the attention."""


class VerifyAttention:
    """Mixed into vLLM's worker by ``worker_extension_cls``."""

    def verify_attention(
        self, query: int, batches: Sequence[Sequence[int]], rounds: int
    ) -> dict[str, Any]:
        """Time the attention of one layer for each batch, every batch once a round.

        Args:
            query: Tokens that each request has in the step: its drafts and one more.
            batches: The context of each request after the step, by batch.
            rounds: How often; the order within a round is drawn.

        Returns:
            The backend's name, seconds by batch and round, and the largest difference from
            attention written out in 32-bit floats, relative to the largest output.
        """
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        group = runner.attn_groups[0][0]
        chance = random.Random(SEED)
        steps = [Step(self, group, query, contexts, chance) for contexts in batches]
        with torch.inference_mode():
            apart = [step.difference() for step in steps]
            passes = math.ceil(SAMPLE_SECONDS / max(1e-6, steps[0].seconds(1)))
            seconds: list[list[float]] = [[] for _ in steps]
            for _ in range(rounds):
                order = list(range(len(steps)))
                chance.shuffle(order)
                for at in order:
                    seconds[at].append(steps[at].seconds(passes) / LAYERS)
        return {
            "backend": group.backend.get_name(),
            "device": str(runner.device),
            "dtype": str(steps[0].queries.dtype),
            "threads": torch.get_num_threads(),
            "passes": passes,
            "seconds": seconds,
            "difference": max(apart),
        }


class Step:
    """One batch of a verify step: its keys in the engine's KV cache, and vLLM's metadata for it."""

    def __init__(
        self, worker: Any, group: Any, query: int, contexts: Sequence[int], chance: random.Random
    ) -> None:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        config, device = worker.vllm_config, worker.model_runner.device
        known = config.compilation_config.static_forward_context
        self.layers = [known[name] for name in group.layer_names]
        assert len(self.layers) == LAYERS, "all layers of the model share a group"
        builder = group.get_metadata_builder()
        size = builder.kv_cache_spec.block_size
        dtype = config.model_config.dtype
        self.query, self.contexts = query, list(contexts)
        # Blocks lie anywhere, as in an engine that has served for a while; 0 is vLLM's own.
        need = [math.ceil(each / size) for each in contexts]
        free = list(range(1, 1 + sum(need)))
        chance.shuffle(free)
        table = torch.zeros((len(contexts), max(need)), dtype=torch.int32)
        for row, count in enumerate(need):
            table[row, :count] = torch.tensor(free[:count], dtype=torch.int32)
            free = free[count:]
        slots = []
        for row, length in enumerate(contexts):
            position = torch.arange(length)
            slots.append(table[row, position // size].long() * size + position % size)
        self.slots = [each.to(device) for each in slots]
        starts = torch.arange(0, query * len(contexts) + 1, query, dtype=torch.int32)
        lengths = torch.tensor(self.contexts, dtype=torch.int32)
        self.metadata = builder.build(
            0,
            CommonAttentionMetadata(
                query_start_loc=starts.to(device),
                query_start_loc_cpu=starts,
                seq_lens=lengths.to(device),
                seq_lens_cpu_upper_bound=lengths,
                num_reqs=len(contexts),
                num_actual_tokens=query * len(contexts),
                max_query_len=query,
                max_seq_len=max(contexts),
                block_table_tensor=table.to(device),
                slot_mapping=torch.cat([each[-query:] for each in self.slots]),
                is_prefilling=torch.zeros(len(contexts), dtype=torch.bool),
            ),
        )

        def made(heads: int, tokens: int, seed: int) -> torch.Tensor:
            source = torch.Generator().manual_seed(seed)
            given = torch.randn((tokens, heads, HEAD_SIZE), generator=source) * RANDOM
            return given.to(device=device, dtype=dtype)

        self.queries = made(HEADS, query * len(contexts), SEED)
        self.fresh = [made(KV_HEADS, max(contexts), SEED + 1 + at) for at in range(2)]
        self.output = torch.empty_like(self.queries)

    def fill(self) -> None:
        """Write every request's keys and values through the backend's own way in."""
        for layer in self.layers:
            for slots in self.slots:
                keys, values = (each[: len(slots)] for each in self.fresh)
                layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots)

    def forward(self, layer: Any) -> None:
        """Call a layer's attention as a step does; its keys are in the cache already."""
        tokens = len(self.queries)
        keys, values = (each[:tokens] for each in self.fresh)
        layer.impl.forward(
            layer, self.queries, keys, values, layer.kv_cache, self.metadata, output=self.output
        )

    def seconds(self, passes: int) -> float:
        """Return the time of a pass over the layers, after one that does not count."""
        for layer in self.layers:
            self.forward(layer)
        settled = torch.cuda.synchronize if self.queries.is_cuda else _at_once
        settled()
        began = time.perf_counter()
        for _ in range(passes):
            for layer in self.layers:
                self.forward(layer)
        settled()
        return (time.perf_counter() - began) / passes

    def difference(self) -> float:
        """Return how far the backend's output is from attention written out."""
        self.fill()
        self.forward(self.layers[-1])
        worst = largest = 0.0
        for row, length in enumerate(self.contexts):
            here = slice(row * self.query, (row + 1) * self.query)
            keys, values = (each[:length].float() for each in self.fresh)
            # Neighbouring heads of the queries share a head of the keys.
            grouped = self.queries[here].float().unflatten(1, (KV_HEADS, HEADS // KV_HEADS))
            scores = torch.einsum("qhgd,khd->hgqk", grouped, keys)
            last = length - self.query + torch.arange(self.query, device=scores.device)
            hidden = torch.arange(length, device=scores.device) > last[:, None]
            weights = (scores / HEAD_SIZE**0.5).masked_fill(hidden, -math.inf).softmax(-1)
            right = torch.einsum("hgqk,khd->qhgd", weights, values).flatten(1, 2)
            worst = max(worst, float((self.output[here].float() - right).abs().max()))
            largest = max(largest, float(right.abs().max()))
        return worst / largest


def _at_once() -> None:
    """Nothing to wait for: a CPU's kernel has ended when it returns."""


def main() -> None:
    """Boot an engine, let its worker measure, write down what it found."""
    from vllm import LLM, __version__

    asked = json.loads(sys.argv[1])
    tokens = max(sum(batch) for batch in asked["batches"])
    requests = max(len(batch) for batch in asked["batches"])
    longest = max(max(batch) for batch in asked["batches"])
    engine = LLM(
        model=asked["model"],
        hf_overrides={
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_SIZE,
            "max_position_embeddings": 2 * longest,
        },
        load_format="dummy",
        dtype=asked["dtype"],
        enforce_eager=True,
        max_model_len=longest,
        max_num_seqs=requests,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=_kv_bytes(tokens + longest, requests, asked["dtype"]),
        worker_extension_cls="verify_attention.VerifyAttention",
    )
    measured = {
        str(k): engine.collective_rpc(
            "verify_attention", args=(k + 1, asked["batches"], asked["rounds"])
        )[0]
        for k in asked["ks"]
    }
    Path(sys.argv[2]).write_text(json.dumps({"vllm": __version__, "byK": measured}))


def _kv_bytes(tokens: int, requests: int, dtype: str) -> int:
    """Return what holds so many tokens, and a block more for each request."""
    width = torch.finfo(getattr(torch, dtype)).bits // 8
    return (tokens + 512 * (requests + 1)) * LAYERS * 2 * KV_HEADS * HEAD_SIZE * width


if __name__ == "__main__":
    main()
