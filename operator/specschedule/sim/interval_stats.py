"""The lines that vLLM logs every ten seconds."""

from collections.abc import Iterator
from copy import deepcopy

from specschedule.sim.engine import Engine


class IntervalStats:
    """Differences of the engine's counters between two looks, in vLLM's words.

    Args:
        engine: What is looked at.
        now: Time of the first look, in seconds.
    """

    def __init__(self, engine: Engine, now: float) -> None:
        self._engine, self._at = engine, now
        self._before = deepcopy(engine.counts)

    def lines(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield (file, message) of the interval that ends now; nothing when it was idle."""
        engine, before = self._engine, self._before
        counts = engine.counts
        seconds, self._at = now - self._at, now
        self._before = deepcopy(counts)
        if counts.steps == before.steps and not engine.waiting:
            return
        hit_rate = counts.prefix_hits / counts.prefix_queries if counts.prefix_queries else 0.0
        yield (
            "loggers.py:335",
            "Engine 000: "
            f"Avg prompt throughput: {(counts.prompt_tokens - before.prompt_tokens) / seconds:.1f} "
            "tokens/s, Avg generation throughput: "
            f"{(counts.generated - before.generated) / seconds:.1f} tokens/s, "
            f"Running: {len(engine.running)} reqs, Waiting: {len(engine.waiting)} reqs, "
            f"GPU KV cache usage: {100 * engine.cache.usage:.1f}%, "
            f"Prefix cache hit rate: {100 * hit_rate:.1f}%",
        )
        drafts = counts.drafts - before.drafts
        if not drafts:
            return
        drafted = counts.draft_tokens - before.draft_tokens
        accepted = counts.accepted - before.accepted
        by_position = ", ".join(
            f"{(after - was) / drafts:.3f}"
            for after, was in zip(counts.accepted_at, before.accepted_at, strict=True)
        )
        yield (
            "metrics.py:120",
            f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
            f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
            f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
            f"Per-position acceptance rate: {by_position}, "
            f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
        )
