"""Named worlds: step times, acceptance and noise, each with the place its numbers come from.

Acceptance is given by position: ``acceptance[i]`` is the probability that a draft's token i and
all before it are accepted, so the mean tokens per step at K are 1 + sum(acceptance[:K]).
"""

import math
from dataclasses import dataclass

from specschedule.sim.physics import (
    ContextTable,
    Drafter,
    Experts,
    Linear,
    Roofline,
    StepTime,
    Sum,
    Table,
)


@dataclass(frozen=True)
class Noise:
    """What makes two measurements of the same thing differ. Standard deviations of log time."""

    step: float = 0.005
    """Step to step."""
    launch: float = 0.005
    """Launch to launch: drawn once per launch."""
    drift: float = 0.0
    """Amplitude of a slow wave of the machine itself, by absolute time."""
    drift_period: float = 3600.0
    """Seconds of that wave."""


@dataclass(frozen=True)
class Collapse:
    """A factor of at least 1, drawn per launch, on steps of the dynamic path at 0 tokens."""

    median: float
    sigma: float
    """Standard deviation of the logarithm of the factor."""
    from_batch: int
    """Smallest number of decoding requests that suffers."""


@dataclass(frozen=True)
class World:
    """Physics of one model, drafter and machine."""

    name: str
    source: str
    """Where the numbers come from."""
    step_time: StepTime
    acceptance: tuple[float, ...]
    """Survival by draft position; the last one repeats, halved, beyond the end."""
    noise: Noise = Noise()
    spread: float = 0.0
    """How much prompts differ in how well they are guessed: standard deviation of the logarithm
    of the exponent of acceptance."""
    runner: str = "V2"
    """Model runner that vLLM would choose."""
    piecewise: float = 0.0
    """Seconds that a step loses without full graphs."""
    eager: float = 0.0
    """Seconds that a step loses without any graph."""
    first_change: float = 0.0
    """Seconds that the first step at a new number of draft tokens loses, once per number."""
    change: float = 0.0
    """Seconds that every step after a change of the number of draft tokens loses."""
    collapse: Collapse | None = None
    context_schedules: bool = False
    """Whether this build takes five-number rows (vLLM pull request 48944)."""
    method: str = "eagle"
    """Speculative method measured."""
    model: str = "sim/model"
    """Name of the model served when the command names none."""
    kv_tokens: int = 400_000
    """Tokens that the KV cache holds."""
    max_num_seqs: int = 256
    max_model_len: int = 8192
    max_num_batched_tokens: int = 8192

    def survival(self, position: int) -> float:
        """Return the probability that draft position 0, 1, ... is accepted."""
        last = len(self.acceptance) - 1
        if position <= last:
            return self.acceptance[position]
        return self.acceptance[last] * 0.5 ** (position - last)

    def tokens_per_step(self, tokens: int) -> float:
        """Return the mean tokens that one request gains in a step that verifies ``tokens``."""
        return 1.0 + sum(self.survival(position) for position in range(tokens))


def _milliseconds(*rows: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(value / 1000 for value in row) for row in rows)


_PR_32374 = Table(
    # The pull request's B=4 row repeats B=1, its B=128 row is marked as made up, and B=64 K=7
    # (120.57) is an outlier: left out, the last one replaced by the line through K=4 and K=5.
    batches=(1, 16, 32, 64),
    tokens=(0, 1, 3, 4, 5, 7),
    seconds=_milliseconds(
        (6.87, 7.97, 9.41, 9.91, 10.80, 12.29),
        (7.30, 8.39, 9.95, 10.80, 11.59, 13.11),
        (7.64, 8.97, 10.78, 11.79, 12.81, 14.86),
        (8.53, 10.44, 13.16, 15.70, 17.54, 21.22),
    ),
    sync=0.0004,
)


def _throughput(batch: int, tokens_per_step: float, *rates: float) -> tuple[float, ...]:
    """Return step seconds from tokens per second at a batch size."""
    return tuple(batch * tokens_per_step / rate for rate in rates)


_CONTEXT_ACCEPTANCE = (0.75, 0.5, 0.35)


# Drafting and per-token costs chosen for a two-core machine that serves several simulated engines
# at once: steps of 10 to 130 ms, so that the cost of HTTP is small against them.
def _demo(per_token: float) -> Sum:
    return Sum(
        Linear(base=0.008, per_token=per_token, per_prefill=5e-5),
        Drafter(per_pass=0.0008, sync=0.0008),
    )


_ALL = (
    World(
        name="demo",
        source="made up for the demonstration: drafts pay when alone and cost at load",
        step_time=_demo(0.0012),
        acceptance=(0.80, 0.48, 0.27, 0.15, 0.08),
        max_num_seqs=16,
    ),
    World(
        name="demo-loses",
        source="made up for the demonstration: drafts are guessed badly and never pay",
        step_time=_demo(0.0009),
        acceptance=(0.22, 0.08, 0.03, 0.02, 0.01),
        max_num_seqs=16,
    ),
    World(
        name="steady",
        source="made up for load generators: every step takes 50 ms, without noise",
        step_time=Linear(base=0.05, per_token=0.0, per_prefill=0.0),
        acceptance=(1.0, 1.0, 1.0, 1.0),
        noise=Noise(step=0.0, launch=0.0),
        max_num_seqs=1024,
        kv_tokens=4_000_000,
        max_num_batched_tokens=65536,
    ),
    World(
        name="pr32374-eagle",
        source="vLLM pull request 32374, profile of Llama-3.1-8B with EAGLE",
        step_time=_PR_32374,
        acceptance=(0.68, 0.39, 0.20, 0.10, 0.06, 0.03, 0.02),
    ),
    World(
        name="pr32374-eagle3",
        source="vLLM pull request 32374, profile of Llama-3.1-8B with EAGLE3",
        step_time=_PR_32374,
        acceptance=(0.76, 0.54, 0.39, 0.28, 0.21, 0.15, 0.12),
        method="eagle3",
    ),
    World(
        name="specdecode-bench",
        source="SpecDecode-Bench (arXiv 2601.11580), fits for Llama-3.1-8B and EAGLE on H100; "
        "acceptance: vLLM pull request 32374",
        step_time=Sum(
            Linear(base=5.886e-3, per_token=2.101e-5, per_context=3.926e-8, per_prefill=2.101e-5),
            # The draft fit counts all draft tokens of a step, so its constant is paid once.
            Drafter(base=2.135e-3, per_token=8.414e-7, per_context=2.378e-9, sync=2.135e-3),
            overhead=1.207e-3,
        ),
        acceptance=(0.68, 0.39, 0.20, 0.10, 0.06, 0.03, 0.02),
        spread=0.15,
    ),
    World(
        name="context-axis",
        source="vLLM pull request 48944 and issue 49986: gemma-4-31B on H100 at 256 requests",
        step_time=ContextTable(
            batch=256,
            contexts=(400, 900, 1900, 4000),
            none=_throughput(256, 1.0, 2711.7, 1987.1, 1815.2, 1535.9),
            dynamic_zero=_throughput(256, 1.0, 1875.6, 1453.5, 1416.6, 1232.8),
            most=3,
            full=_throughput(256, 1.0 + sum(_CONTEXT_ACCEPTANCE), 2139.8, 1838.9, 1822.4, 1692.8),
            # Puts the crossover to no speculation near 128 requests at short context, where the
            # request for comments (issue 48627) saw it.
            fixed_none=0.5,
            fixed_full=0.184,
            # The benchmark's prompts share one prefix: almost all of it is cached.
            per_prefill=0.0,
        ),
        acceptance=_CONTEXT_ACCEPTANCE,
        noise=Noise(step=0.01, launch=0.008),
        runner="V1",
        context_schedules=True,
        method="draft_model",
        kv_tokens=1_600_000,
        max_num_seqs=512,
    ),
    World(
        name="collapse",
        source="vLLM issue 49548: Qwen3.5-122B with MTP; static K=2 gives 232 tok/s at 8 requests "
        "and 59.6 alone, a schedule 24 to 157 and 50.0",
        step_time=Sum(
            Linear(base=26.035e-3, per_token=2.150e-3),
            Drafter(per_pass=5.15e-3, sync=5.15e-3),
        ),
        acceptance=(0.85, 0.70),
        runner="V1",
        piecewise=8.215e-3,
        collapse=Collapse(median=2.2, sigma=0.55, from_batch=5),
        method="mtp",
        max_num_seqs=512,
    ),
    World(
        name="experts",
        source="'One Line, Thirty-Five Percent': DeepSeek-V4.1-Flash with DSpark; a window of five "
        "tokens touches 3.7 times the experts of one; 16 requests: 317.6 tok/s at K=5, 430.8 at 1",
        step_time=Sum(
            Experts(
                base=13.6e-3,
                per_token=0.83e-3,
                all_experts=46.6e-3,
                share=6 / 256,
                alike=math.log(3.7) / math.log(5),
                per_context=2e-9,
            ),
            Drafter(base=0.4e-3, sync=0.4e-3),
        ),
        acceptance=(0.70, 0.40, 0.24, 0.16, 0.10),
        noise=Noise(step=0.01, launch=0.01, drift=0.02, drift_period=86400.0),
        method="dspark",
        kv_tokens=1_200_000,
        max_num_seqs=16,
        max_model_len=1_048_576,
    ),
    World(
        name="roofline",
        source="made up: memory-bound to 256 tokens, a staircase of graph sizes, a cliff above 512",
        step_time=Sum(
            Roofline(
                memory=8e-3,
                compute=3.1e-5,
                captured=(1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)),
                cliff=6e-3,
                per_context=4e-8,
            ),
            Drafter(base=3e-4, per_pass=5e-4, per_token=8e-7, per_context=2.4e-9, sync=8e-4),
            overhead=1e-3,
        ),
        acceptance=(0.76, 0.54, 0.39, 0.28, 0.21, 0.15, 0.12),
        piecewise=1e-3,
        eager=6e-3,
        first_change=0.3,
        change=2e-4,
    ),
)

WORLDS: dict[str, World] = {world.name: world for world in _ALL}
"""Worlds by name."""
