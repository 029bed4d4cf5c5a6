"""PromQL that the operator asks. Names of the load process's own series live here only."""

import re
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

from specschedule.vllm_facts import metrics

ANSWERS = "vector(1)"
"""The cheapest query that goes through the whole engine."""

REQUESTS = "specschedule_requests_total"
"""Counter of the load process: requests by run, arm, launch, visit, cell and outcome."""


SERVING_SECONDS = 3600
"""How far back the serving pods are looked at."""
SERVING_STEP_SECONDS = 10
"""How often they are looked at in that time, where it is counted."""
NEAR = "near_"
"""Beginning of the facts that count looks nearest to a number of requests in flight."""


def serving(*, namespace: str, pods: Sequence[str], points: Sequence[int] = ()) -> str:
    """Return the instant query for what serving pods did: one series per value, named by ``fact``.

    Ratios are left to the reader, as a sum that is absent must not look like 0.

    Args:
        namespace: Of the pods.
        pods: Their names.
        points: Requests in flight; looks at a busy pod are counted by the nearest of them.
    """
    names = "|".join(re.escape(pod) for pod in pods)
    selector = f"{{namespace={_quoted(namespace)},pod=~{_quoted(names)}}}"
    back = f"[{SERVING_SECONDS}s]"
    sums = {
        "prefix_hits": f"{metrics.PREFIX_HITS}_total",
        "prefix_queries": f"{metrics.PREFIX_QUERIES}_total",
        "prompt_tokens": f"{metrics.PROMPT_LENGTHS}_sum",
        "prompts": f"{metrics.PROMPT_LENGTHS}_count",
        "output_tokens": f"{metrics.OUTPUT_LENGTHS}_sum",
        "outputs": f"{metrics.OUTPUT_LENGTHS}_count",
    }
    values = {fact: f"sum(increase({name}{selector}{back}))" for fact, name in sums.items()}
    running = f"{metrics.RUNNING}{selector}{back}"
    values["batch_size"] = f"avg(avg_over_time({running}))"
    values["batch_size_p95"] = f"max(quantile_over_time(0.95, {running}))"
    looks = f"[{SERVING_SECONDS}s:{SERVING_STEP_SECONDS}s]"
    for point, bounds in _nearest(points):
        near = f"{metrics.RUNNING}{selector} {bounds}"
        values[f"{NEAR}{point}"] = f"sum(count_over_time(({near}){looks}))"
    named = [f'label_replace({value}, "fact", "{fact}", "", "")' for fact, value in values.items()]
    return " or ".join(named)


def _nearest(points: Sequence[int]) -> list[tuple[int, str]]:
    """Return the filter of what is nearest to each point, by ratio; an idle pod is near none."""
    rising = sorted(set(points))
    between = [f"{sqrt(a * b):.3f}" for a, b in pairwise(rising)]
    lows = ["> 0", *(f">= {edge}" for edge in between)]
    highs = [*(f" < {edge}" for edge in between), ""]
    return [(point, low + high) for point, low, high in zip(rising, lows, highs, strict=False)]


def final_counts(*, run: str, launch: int, visit: int) -> str:
    """Return the instant query for one visit's request counters."""
    matchers = {"run": run, "launch": str(launch), "visit": str(visit)}
    return REQUESTS + "{" + ",".join(f"{k}={_quoted(v)}" for k, v in matchers.items()) + "}"


ANY_COUNTS = f"topk(1, {REQUESTS})"
"""The instant query for one of the load processes' series, whatever its labels are."""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
