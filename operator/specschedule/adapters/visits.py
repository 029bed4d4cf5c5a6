"""What both worlds say of a launch in the same way: its final counters, and that it is gone."""

from typing import Any

from specschedule.core.observed import PodFacts, TrialSpec, TrialStatus, VisitFacts
from specschedule.core.visit import VisitEnded
from specschedule.ports import Metrics
from specschedule.wire import pods


def final_counts(
    metrics: Metrics, url: str | None, spec: TrialSpec, number: int, visit: VisitFacts, now: float
) -> dict[str, Any]:
    """Ask for the final counters of a visit that has ended; nothing before, or without a server.

    Args:
        metrics: Whom to ask.
        url: The Prometheus server.
        spec: The launch.
        number: Number of the visit.
        visit: What it said so far.
        now: Unix seconds, for a visit that does not say when it was scraped last.

    Returns:
        The fields ``scraped`` and ``unseen`` of ``TrialFacts``.
    """
    ended = next((each for each in visit.events if isinstance(each, VisitEnded)), None)
    if ended is None or url is None:
        return {}
    asked: dict[str, Any] = {"run": spec.run_id, "launch": spec.launch, "visit": number}
    at = ended.scraped_at[-1] if ended.scraped_at else now
    counts = metrics.final_counts(url, **asked, at=at)
    unseen = metrics.unseen(url, **asked, at=at) if counts == {} else ""
    return {"scraped": counts, "unseen": unseen}


def lost(status: TrialStatus, message: str) -> PodFacts | None:
    """Return a server that is on record but gone; None unless its launch should be running."""
    if status.started_at is None or status.ended_at is not None:
        return None
    created_at = pods.unix(status.started_at)
    return PodFacts(phase="Ended", reason="Deleted", message=message, created_at=created_at)
