"""Published measurements as cells: what a screening launch would have seen."""

from collections.abc import Mapping, Sequence

from specschedule.core.evidence import Cell, Profile, Quantiles
from specschedule.core.spec import Slo
from specschedule.core.view import Search

PR_32374_MS = {
    1: {0: 6.87, 1: 7.97, 3: 9.41, 4: 9.91, 5: 10.80, 7: 12.29},
    16: {0: 7.30, 1: 8.39, 3: 9.95, 4: 10.80, 5: 11.59, 7: 13.11},
    32: {0: 7.64, 1: 8.97, 3: 10.78, 4: 11.79, 5: 12.81, 7: 14.86},
    64: {0: 8.53, 1: 10.44, 3: 13.16, 4: 15.70, 5: 17.54},
}
"""Step milliseconds by batch size and K: vLLM pull request 32374, Llama-3.1-8B. The B=4 row (a
copy of B=1), the B=128 row (marked fake) and the outlier at B=64, K=7 are left out."""

EAGLE = (0.68, 0.39, 0.20, 0.10, 0.06, 0.03, 0.02)
EAGLE3 = (0.76, 0.54, 0.39, 0.28, 0.21, 0.15, 0.12)
LOW = (0.17, 0.15, 0.12, 0.01, 0.01, 0.01, 0.01)
"""Survival by draft position, same source."""

SGLANG_BATCHES = (1, 2, 4, 8, 16, 32, 64)
QWEN3_235B = {
    1: (162, 289, 528, 823, 1268, 2143, 3353),
    2: (188, 332, 568, 903, 1451, 2297, 3693),
    3: (195, 332, 572, 896, 1531, 2352, 3555),
    4: (199, 333, 572, 911, 1537, 2348, 3400),
    5: (199, 331, 569, 905, 1464, 2316, 3222),
    6: (188, 311, 549, 883, 1413, 2239, 3054),
}
GLM_4_7 = {
    1: (130, 236, 469, 795, 1265, 2090, 3391),
    2: (167, 286, 581, 972, 1540, 2497, 3836),
    3: (195, 350, 648, 1075, 1766, 2761, 4106),
    4: (204, 371, 709, 1113, 1704, 2707, 3954),
}
"""Tokens per second by K and batch size, means of three runs: SGLang pull request 22246."""

ANY_SURVIVAL = tuple(0.75 * 0.72**i for i in range(7))
"""Where a table tells throughput only, any acceptance gives it back."""

CONTEXTS = (400, 900, 1900, 4000)
NO_SPECULATION = (2711.7, 1987.1, 1815.2, 1535.9)
SCHEDULE_ZERO = (1875.6, 1453.5, 1416.6, 1232.8)
SCHEDULE_THREE = (None, 1874.6, 1848.2, 1680.4)
"""Tokens per second at 256 in flight by context: vLLM pull request 48944 and issue 49986. At
context 400 every schedule measured ran K=0."""


def length(survival: Sequence[float], tokens: int) -> float:
    """Return the mean tokens per step at K."""
    return 1.0 + sum(survival[:tokens])


def cell(
    batch: int,
    tokens: int,
    seconds: float,
    survival: Sequence[float] = EAGLE3,
    *,
    arm: str = "probe",
    context: int | None = None,
    steps: int = 4000,
    undrafted: int = 0,
    **more: object,
) -> Cell:
    """Return a window of ``steps`` engine steps of ``seconds`` each.

    Args:
        batch: Requests in flight.
        tokens: K.
        seconds: Of a step.
        survival: Acceptance by draft position.
        arm: Arm of the window.
        context: Mean context.
        steps: Engine steps in which every request drafts.
        undrafted: Tokens that came without a draft, in no draft counter.
        more: Other fields.
    """
    passed = steps * batch
    accepted = round((length(survival, tokens) - 1) * passed)
    tpot = 1000 * seconds / length(survival, tokens)
    drafted = (
        {}
        if arm == "none"
        else {
            "drafts": passed if tokens else 0,
            "draftTokens": passed * tokens,
            "acceptedTokens": accepted,
        }
    )
    fields = {
        "cell": f"{arm}-b{batch}-k{tokens}-c{context}",
        "arm": arm,
        "launch": 2 if arm == "none" else 1,
        "profile": Profile(kind="hold", concurrency=batch),
        "tokens": tokens,
        "context": context,
        "windowSeconds": steps * seconds,
        "offered": 100,
        "completed": 100,
        "outputTokens": passed + accepted + undrafted,
        "batchSizeMean": float(batch),
        "ttftMs": Quantiles(p50=1500 * seconds, p90=2500 * seconds),
        "tpotMs": Quantiles(p50=tpot, p90=1.05 * tpot),
        **drafted,
        **more,
    }
    return Cell.model_validate(fields)


def from_steps(
    milliseconds: Mapping[int, Mapping[int, float]], survival: Sequence[float]
) -> list[Cell]:
    """Return the windows of a table of step times."""
    return [
        cell(batch, tokens, ms / 1000, survival)
        for batch, row in milliseconds.items()
        for tokens, ms in row.items()
    ]


def from_rates(rates: Mapping[int, Sequence[float]], batches: Sequence[int]) -> list[Cell]:
    """Return the windows of a table of tokens per second."""
    return [
        cell(batch, tokens, batch * length(ANY_SURVIVAL, tokens) / rate, ANY_SURVIVAL)
        for tokens, row in rates.items()
        for batch, rate in zip(batches, row, strict=True)
    ]


def context_axis() -> list[Cell]:
    """Return the windows of pull request 48944 at 256 in flight."""
    survival = (0.75, 0.5, 0.35)
    found = []
    for at, context in enumerate(CONTEXTS):
        none, zero, three = NO_SPECULATION[at], SCHEDULE_ZERO[at], SCHEDULE_THREE[at]
        found.append(cell(256, 0, 256 / none, survival, arm="none", context=context))
        found.append(cell(256, 0, 256 / zero, survival, context=context))
        if three is not None:
            seconds = 256 * length(survival, 3) / three
            found.append(cell(256, 3, seconds, survival, context=context))
    return found


def search(batches: Sequence[int], max_tokens: int, **more: object) -> Search:
    """Return a search over load points that weigh alike, with limits that all requests meet."""
    fields: dict[str, object] = {
        "slo": Slo(tpot="10s"),
        "time_at": dict.fromkeys(batches, 1.0),
        "max_tokens": max_tokens,
        "max_num_seqs": max(batches),
        "output_tokens": 128,
        "prompt_tokens": 128,
    }
    return Search(**(fields | more))  # type: ignore[arg-type]
