"""PromQL that the operator asks. Names of the load process's own series live here only."""

import re
from collections.abc import Sequence

from specschedule.vllm_facts import metrics

ANSWERS = "vector(1)"
"""The cheapest query that goes through the whole engine."""

REQUESTS = "specschedule_requests_total"
"""Counter of the load process: requests by run, arm, launch, visit, cell and outcome."""


SERVING_SECONDS = 3600
"""How far back the serving pods are looked at."""


def serving(*, namespace: str, pods: Sequence[str]) -> str:
    """Return the instant query for what serving pods did: one series per value, named by ``fact``.

    Ratios are left to the reader, as a sum that is absent must not look like 0.
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
    named = [f'label_replace({value}, "fact", "{fact}", "", "")' for fact, value in values.items()]
    return " or ".join(named)


def final_counts(*, run: str, launch: int, visit: int) -> str:
    """Return the instant query for one visit's request counters."""
    matchers = {"run": run, "launch": str(launch), "visit": str(visit)}
    return REQUESTS + "{" + ",".join(f"{k}={_quoted(v)}" for k, v in matchers.items()) + "}"


ANY_COUNTS = f"topk(1, {REQUESTS})"
"""The instant query for one of the load processes' series, whatever its labels are."""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
