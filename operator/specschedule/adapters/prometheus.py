"""Prometheus through prometheus-api-client: instant queries that always end.

That it cannot be asked is an answer here, never an exception: an outage is data to the decision,
which holds the run. The client's own retries are off, its waits and the size of answers bounded.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from specschedule.core.observed import MetricsFacts
from specschedule.core.regime import ServingRegime
from specschedule.wire import promql

LONGEST_ANSWER = 8 << 20
"""Bytes."""


class _BoundedSession(requests.Session):
    """A session whose every answer ends within so many seconds, however slowly it drips."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        until = time.monotonic() + self._seconds
        response = super().send(request, **{**options, "stream": True, "timeout": self._seconds})
        body = bytearray()
        with response:
            while chunk := response.raw.read1(1 << 16, decode_content=True):
                body += chunk
                if len(body) > LONGEST_ANSWER:
                    raise requests.RequestException(f"more than {LONGEST_ANSWER} bytes")
                if time.monotonic() > until:
                    raise requests.Timeout(f"no whole answer within {self._seconds:g} s")
        response._content = bytes(body)
        return response


class PrometheusMetrics:
    """The port ``Metrics``, for any number of servers."""

    def __init__(self, *, seconds: float = 5.0) -> None:
        """Make a reader.

        Args:
            seconds: Longest wait for one answer.
        """
        self._seconds = seconds

    def check(self, url: str | None) -> MetricsFacts:
        """Say whether the server answers a query."""
        if url is None:
            return MetricsFacts(url=None, available=False, message="no Prometheus is configured")
        try:
            self._query(url, promql.ANSWERS)
        except _Unanswered as error:
            return MetricsFacts(url=url, available=False, message=str(error))
        return MetricsFacts(url=url, available=True)

    def final_counts(
        self, url: str, *, run: str, launch: int, visit: int, at: float
    ) -> dict[str, dict[str, float]] | None:
        """Return requests by cell and outcome as of a Unix time; None when it cannot be asked.

        Each counter is exported by exactly one process, so series that share cell and outcome are
        copies (a pair of Prometheus replicas, a relabelled instance) and count once: the largest
        is the latest. No series at all is an empty answer, not an outage; NaN is no value.
        """
        query = promql.final_counts(run=run, launch=launch, visit=visit)
        counts: dict[str, dict[str, float]] = {}
        try:
            for series in self._query(url, query, at=at):
                labels, value = series["metric"], float(series["value"][1])
                if not math.isfinite(value) or not {"cell", "outcome"} <= labels.keys():
                    continue
                cell = counts.setdefault(labels["cell"], {})
                cell[labels["outcome"]] = max(value, cell.get(labels["outcome"], 0.0))
        except (_Unanswered, *_MISFORMED):
            return None
        return counts

    def unseen(self, url: str, *, run: str, launch: int, visit: int, at: float) -> str:
        """Say what was asked and gave no series, and which labels a series of that name has.

        A relabelling rule, or a target label of the same name, renames what the load process said.
        """
        text = (
            f"query returned no series: {promql.final_counts(run=run, launch=launch, visit=visit)}"
        )
        try:
            found = self._query(url, promql.ANY_COUNTS, at=at)
            labels = sorted(
                {label for series in found for label in series["metric"]} - {"__name__"}
            )
        except (_Unanswered, *_MISFORMED):
            return text
        if not found:
            return f"{text}; no series has that name at all"
        return f"{text}; a series of that name has the labels {', '.join(labels)}"

    def serving(
        self, url: str, *, namespace: str, pods: Sequence[str], points: Sequence[int]
    ) -> ServingRegime | None:
        """Return what serving pods did of late; None when nothing is known of them.

        A pair of Prometheus replicas doubles both sides of a mean or a share, which then stays
        as it is.
        """
        if not pods:
            return None
        facts: dict[str, float] = {}
        try:
            query = promql.serving(namespace=namespace, pods=pods, points=points)
            for series in self._query(url, query):
                value = float(series["value"][1])
                if math.isfinite(value):
                    facts[series["metric"]["fact"]] = value
        except (_Unanswered, *_MISFORMED):
            return None

        def mean(total: str, count: str) -> float | None:
            return round(facts[total] / facts[count], 4) if facts.get(count) else None

        near = {point: facts.get(f"{promql.NEAR}{point}", 0.0) for point in points}
        busy = sum(near.values())
        found = ServingRegime(
            seconds=promql.SERVING_SECONDS,
            prefix_hit_share=mean("prefix_hits", "prefix_queries"),
            prompt_tokens=mean("prompt_tokens", "prompts"),
            output_tokens=mean("output_tokens", "outputs"),
            batch_size=facts.get("batch_size"),
            batch_size_p95=facts.get("batch_size_p95"),
            time_at={at: round(n / busy, 4) for at, n in near.items() if n} if busy else None,
        )
        return found if len(found.plain()) > 1 else None

    def _query(self, url: str, query: str, *, at: float | None = None) -> list[Any]:
        """Return the vector that an instant query gives.

        Raises:
            _Unanswered: The server gave none.
        """
        no_retries = urllib3.Retry(total=0, redirect=2, raise_on_redirect=True)
        parameters = {} if at is None else {"time": f"{at:.3f}"}
        with _BoundedSession(self._seconds) as session:
            try:
                server = PrometheusConnect(url.rstrip("/"), session=session, retry=no_retries)
                answer = server.custom_query(query, parameters)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                raise _Unanswered(f"{query}: {_root(error)}") from error
            except PrometheusApiClientException as error:
                raise _Unanswered(f"{query}: {error}") from error
            except _MISFORMED as error:
                raise _Unanswered(f"{query}: the answer is none of Prometheus'") from error
        if not isinstance(answer, list):
            raise _Unanswered(f"{query}: the answer is no vector")
        return answer


class _Unanswered(Exception):
    """A query got no answer; the message says which and why."""


_MISFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)


def _root(error: BaseException) -> str:
    """Return the innermost reason: the outer ones repeat the URL and name no cause."""
    while (inner := error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"[:300]
