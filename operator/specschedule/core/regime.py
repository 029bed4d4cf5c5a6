"""The regime that a verdict holds for: what the workload was, and whether serving is like it."""

from collections.abc import Iterator, Sequence
from itertools import chain

from specschedule.core.compare import CONTEXT_STEP, INCUMBENT, Evidence
from specschedule.core.spec import Spec
from specschedule.core.values import Value

HITS_APART = 0.1
"""Shares of prompt tokens found in the prefix cache further apart than this are two regimes."""
EVENLY = 0.1
"""Share of the weight that load points get evenly, wherever serving is: traffic moves, and a bar
may name a point that the last hour did not see."""


class ServingRegime(Value):
    """What the serving pods did of late, as Prometheus tells it; absent where it does not."""

    seconds: float
    """How far back it looks."""
    prefix_hit_share: float | None = None
    """Share of prompt tokens found in the prefix cache."""
    prompt_tokens: float | None = None
    """Mean length of a prompt."""
    output_tokens: float | None = None
    """Mean length of an answer."""
    batch_size: float | None = None
    """Mean requests running in a pod."""
    batch_size_p95: float | None = None
    """Requests running in the busiest pod, 95th percentile over time."""
    time_at: dict[int, float] | None = None
    """Share of the pods' busy time spent nearest to each number of requests in flight at which a
    search chooses; those never seen are left out."""


def weights(points: Sequence[int], serving: ServingRegime | None) -> list[float] | None:
    """Return how much each load point counts, adding up to 1; None where nobody tells.

    Args:
        points: Requests in flight at which a search chooses.
        serving: What the serving pods do.
    """
    told = serving.time_at if serving is not None else None
    seen = sum((told or {}).get(at, 0.0) for at in points)
    if not told or seen <= 0:
        return None
    return [
        round(EVENLY / len(points) + (1 - EVENLY) * told.get(at, 0.0) / seen, 4) for at in points
    ]


def regime(spec: Spec, evidence: Evidence, serving: ServingRegime | None) -> list[tuple[str, str]]:
    """Say what the verdict holds for, and where serving is otherwise: (reason, sentence) each.

    Args:
        spec: The workload as declared.
        evidence: The launches; the incumbent's counters say what the workload really was.
        serving: What the serving pods do; None when nobody could tell.
    """
    launches = evidence.of(INCUMBENT)
    if not launches:
        return []
    held = list(chain.from_iterable(evidence.cells(launch) for launch in launches))
    cells = [cell for cell in held if cell.plain_load] or held
    caches = [cell.prefix_cache for cell in cells if cell.prefix_cache is not None]
    queries, hits = sum(c.queries for c in caches), sum(c.hits for c in caches)
    found = hits / queries if queries else None
    served = sum(cell.completed for cell in cells if cell.prefix_cache is not None)
    prompt = queries / served if served and queries else None
    if prompt is None and spec.load.prompts is None:
        prompt = float(spec.load.prompt_tokens)
    points = ", ".join(map(str, sorted(spec.load.points)))
    measured = _text(spec.load.prefix_cache, found, prompt, spec.load.output_tokens)
    said = [("Regime", f"the verdict holds for {measured}, {points} in flight per replica")]
    if serving is None:
        return said
    apart = list(_apart(spec, found, prompt, serving))
    if apart:
        hours = serving.seconds / 3600
        said.append(
            (
                "RegimeDiffers",
                f"the serving pods did otherwise in the last {hours:g} h: {'; '.join(apart)}",
            )
        )
    return said


def _text(declared: str, found: float | None, prompt: float | None, output: int) -> str:
    cache = f"prefix cache {declared}"
    cache += f" ({found:.0%} of prompt tokens found)" if found is not None else ""
    prompts = f"prompts of about {prompt:.0f} tokens" if prompt is not None else "its own prompts"
    return f"{cache}, {prompts}, answers of {output} tokens"


def _apart(
    spec: Spec, found: float | None, prompt: float | None, serving: ServingRegime
) -> Iterator[str]:
    share = serving.prefix_hit_share
    if share is not None and found is not None and abs(share - found) > HITS_APART:
        yield (
            f"{share:.0%} of prompt tokens found in the prefix cache, the workload {found:.0%} "
            "(load.prefixCache)"
        )
    lengths = (
        ("prompts", serving.prompt_tokens, prompt, "load.promptTokens or load.prompts"),
        ("answers", serving.output_tokens, float(spec.load.output_tokens), "load.outputTokens"),
    )
    for what, theirs, ours, field in lengths:
        if theirs and ours and max(theirs / ours, ours / theirs) > CONTEXT_STEP:
            yield f"{what} of {theirs:.0f} tokens, the workload {ours:.0f} ({field})"
    busiest, mean = serving.batch_size_p95, serving.batch_size
    if busiest is not None and busiest > max(spec.load.points):
        yield f"up to {busiest:.0f} requests running in a pod, beyond every load point"
    if mean is not None and mean > 0 and (busiest or mean) < min(spec.load.points):
        yield f"{mean:.1f} requests running in a pod on average, below every load point"
