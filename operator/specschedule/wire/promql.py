"""PromQL that the operator asks. Names of the load process's own series live here only."""

ANSWERS = "vector(1)"
"""The cheapest query that goes through the whole engine."""

REQUESTS = "specschedule_requests_total"
"""Counter of the load process: requests by run, arm, launch, visit, cell and outcome."""


def final_counts(*, run: str, launch: int, visit: int) -> str:
    """Return the instant query for one visit's request counters."""
    matchers = {"run": run, "launch": str(launch), "visit": str(visit)}
    return REQUESTS + "{" + ",".join(f"{k}={_quoted(v)}" for k, v in matchers.items()) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
