"""``specschedule judge --histograms``: what latency histograms of two servers can say, no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specschedule.cli.output import BadInput
from specschedule.core.compare import INCUMBENT
from specschedule.core.histogram import (
    BetweenEdges,
    Bounds,
    Buckets,
    attained,
    grown,
    joint,
    quantile,
)
from specschedule.core.spec import Metric, Spec
from specschedule.vllm_facts.metrics import HISTOGRAMS, histograms_in, read_histogram

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def bounds(spec: Spec, named: Sequence[str], *, accepted: bool) -> dict[str, Any]:
    """Return bounds on every arm's attainment, and on its difference from the incumbent's.

    Args:
        spec: The limits, and the gain in attainment that is asked for.
        named: ``ARM=PAGE`` or ``ARM=BEFORE,AFTER``: scrapes of the arm's /metrics.
        accepted: Whether bounds will do where a limit is no bucket edge.

    Raises:
        BadInput: An arm or file is missing, a page lacks a histogram, or a limit lies between
            edges and bounds are not accepted.
    """
    arms = dict(_arm(spec, text, accepted=accepted) for text in named)
    if INCUMBENT not in arms or len(arms) < len(named) or len(arms) == 1:
        raise BadInput(
            "--histograms: give incumbent=PAGE and one other arm at least, each of them once"
        )
    base = _bounds(arms[INCUMBENT])
    differences = [
        _difference(spec, arm, _bounds(facts), base)
        for arm, facts in arms.items()
        if arm != INCUMBENT
    ]
    return {"arms": list(arms.values()), "differences": differences}


def text(answer: dict[str, Any]) -> str:
    """Write the bounds for people."""
    lines = []
    for arm in answer["arms"]:
        attainment = arm["attainment"]
        low, high = attainment["low"], attainment["high"]
        lines.append(f"{arm['arm']}: attainment {low:.1%} to {high:.1%} (n = {arm['requests']})")
        for metric, shares in arm["quantiles"].items():
            told = ", ".join(f"{name} {where}" for name, where in shares.items())
            lines.append(f"  {metric}: {told}")
    lines += [difference["message"] for difference in answer["differences"]]
    return "\n".join(lines)


def _arm(spec: Spec, named: str, *, accepted: bool) -> tuple[str, dict[str, Any]]:
    arm, equals, paths = named.partition("=")
    if not equals or not arm or not paths:
        raise BadInput(f"--histograms: {named!r} is not ARM=PAGE or ARM=BEFORE,AFTER")
    shares: list[Bounds] = []
    quantiles: dict[str, dict[str, str]] = {}
    requests = 0.0
    for name, family in HISTOGRAMS.items():
        limit = getattr(spec.slo, name)
        if limit is None:
            continue
        try:
            buckets = _buckets(paths, family)
            shares.append(attained(buckets, limit, bounds_accepted=accepted))
            quantiles[name] = {p: str(quantile(buckets, share)) for p, share in SHARES.items()}
        except BetweenEdges as error:
            raise BadInput(f"slo.{name}: {error} with --accept-bounds") from error
        except ValueError as error:
            raise BadInput(f"{paths}: {family}: {error}") from error
        requests = max(requests, max(buckets.values()))
    low, high = joint(shares)
    return arm, {
        "arm": arm,
        "requests": round(requests),
        "attainment": {"low": low, "high": high},
        "quantiles": quantiles,
    }


def _buckets(paths: str, family: str) -> Buckets:
    pages = [_histogram(path, family) for path in paths.split(",", 1)]
    return pages[0] if len(pages) == 1 else grown(pages[0], pages[1])


def _histogram(path: str, family: str) -> Buckets:
    try:
        page = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    buckets = read_histogram(page, family)
    if not buckets:
        there = ", ".join(histograms_in(page)) or "none"
        raise BadInput(f"{path}: metric not found: {family}; vLLM's histograms there: {there}")
    return buckets


def _bounds(arm: dict[str, Any]) -> Bounds:
    return Bounds(arm["attainment"]["low"], arm["attainment"]["high"])


def _difference(spec: Spec, arm: str, ours: Bounds, theirs: Bounds) -> dict[str, Any]:
    asked = max(
        (each.by for each in spec.bar.improve if each.metric is Metric.ATTAINMENT),
        default=spec.bar.min_effect,
    )
    low, high = ours.low - theirs.high, ours.high - theirs.low
    answer = "Met" if low >= asked else "NotMet" if high < asked else "Unproven"
    return {
        "arm": arm,
        "low": low,
        "high": high,
        "answer": answer,
        "message": f"{arm}: attainment {low:+.1%} to {high:+.1%} against the incumbent, "
        f"{asked:+.1%} asked: {answer}. Bounds from marginal histograms of one launch each; "
        "nothing is promoted on them",
    }
