"""The second witness where no Prometheus is: the load processes' counters, read over HTTP.

Like Prometheus it sees only what another process serves, as counters that start at 0, and the
last value counts. Unlike Prometheus it keeps nothing when it ends; the launch it looked at ends
with it.
"""

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from specschedule.adapters import engine
from specschedule.core.observed import MetricsFacts
from specschedule.core.regime import ServingRegime
from specschedule.wire import promql

SOURCE = "http://127.0.0.1"
"""What stands for a server in reports."""

Counts = dict[str, dict[str, float]]
"""Requests by cell and outcome."""


class Pages:
    """The port ``Metrics``, from pages that were read here."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], Counts] = {}

    def read(self, port: int) -> None:
        """Read the page of a load process, if it answers; it counts as a scrape."""
        page = engine.get(f"{SOURCE}:{port}", "/metrics", seconds=1.0)
        if page is None:
            return
        found: dict[tuple[str, str, str], Counts] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name != promql.REQUESTS:
                    continue
                of = (sample.labels["run"], sample.labels["launch"], sample.labels["visit"])
                cell = found.setdefault(of, {}).setdefault(sample.labels["cell"], {})
                cell[sample.labels["outcome"]] = sample.value
        self._last |= found

    def check(self, url: str | None) -> MetricsFacts:
        """Say that pages can be read: whether one was, its visit tells."""
        return MetricsFacts(url=SOURCE, available=True)

    def final_counts(
        self, url: str, *, run: str, launch: int, visit: int, at: float
    ) -> Counts | None:
        """Return what the last page of a visit said; empty when none was read."""
        return self._last.get((run, str(launch), str(visit)), {})

    def unseen(self, url: str, *, run: str, launch: int, visit: int, at: float) -> str:
        """Say which page was not read."""
        query = promql.final_counts(run=run, launch=launch, visit=visit)
        return f"no page of the load process was read that holds {query}"

    def serving(
        self, url: str, *, namespace: str, pods: Sequence[str], points: Sequence[int]
    ) -> ServingRegime | None:
        """Return nothing: no production traffic is looked at."""
        return None
