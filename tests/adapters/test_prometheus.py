"""Prometheus: an outage, a lie and an empty answer are three different things."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from specschedule.adapters.prometheus import PrometheusMetrics
from specschedule.core.regime import ServingRegime

ROOT = Path(__file__).resolve().parents[2]

Answer = Callable[[BaseHTTPRequestHandler], None]


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The test says what matters."""


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            answer(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def body(status: int, text: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


def vector(*series: tuple[dict[str, str], str]) -> Answer:
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in series]
    return body(200, json.dumps({"status": "success", "data": {"result": result}}))


def hangs(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)  # Until the client goes away.


def drips(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.1)
    except OSError:
        return


def floods(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * 65536)
    except OSError:
        return


def counts(url: str, seconds: float = 20) -> dict[str, dict[str, float]] | None:
    metrics = PrometheusMetrics(seconds=seconds)
    return metrics.final_counts(url, run="7f3a", launch=5, visit=1, at=1000.25)


OUTAGES: dict[str, Answer] = {
    "it accepts and never answers": hangs,
    "it drips an answer for ever": drips,
    "it answers without end": floods,
    "it answers 500": body(500, "oops"),
    "it answers 503 while it replays its log": body(503, "Service Unavailable"),
    "it refuses the query": body(400, '{"status":"error","error":"bad"}'),
    "a login page stands before it": body(200, "<html>please log in</html>"),
    "JSON of something else": body(200, '{"pong": true}'),
    "a list": body(200, "[]"),
    "a scalar instead of a vector": body(200, '{"data":{"result":"5"}}'),
}


@pytest.mark.parametrize("case", OUTAGES)
def test_an_outage_is_no_answer_and_never_an_exception(case: str) -> None:
    with served(OUTAGES[case]) as url:
        assert counts(url, seconds=0.5) is None
        seen = PrometheusMetrics(seconds=0.5).check(url)
    assert not seen.available
    assert seen.url == url
    assert seen.message.startswith("vector(1): ")


def test_nobody_listening_is_an_outage_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert counts(url) is None
        assert "refused" in PrometheusMetrics().check(url).message


@pytest.mark.parametrize("url", ["http://no-such-host.invalid:9090", "http://127.0.0.1:99999"])
def test_an_address_that_leads_nowhere_is_an_outage(url: str) -> None:
    assert not PrometheusMetrics().check(url).available
    assert counts(url) is None


def test_no_configured_server_is_said_to_be_so() -> None:
    seen = PrometheusMetrics().check(None)
    assert (seen.url, seen.available) == (None, False)
    assert seen.message == "no Prometheus is configured"


def test_an_outage_is_not_asked_again_and_again() -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        body(503, "busy")(handler)

    with served(answer) as url:
        counts(url)
    assert len(asked) == 1


def test_the_query_names_the_visit_and_the_moment() -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        vector()(handler)

    with served(answer) as url:
        counts(url + "/prefix/")
    parts = urlsplit(asked[0])
    assert parts.path == "/prefix/api/v1/query"
    assert parse_qs(parts.query) == {
        "query": ['specschedule_requests_total{run="7f3a",launch="5",visit="1"}'],
        "time": ["1000.250"],
    }


def series(cell: str, outcome: str, value: str, **more: str) -> tuple[dict[str, str], str]:
    return {"cell": cell, "outcome": outcome, **more}, value


READINGS: dict[str, tuple[list[Any], dict[str, dict[str, float]]]] = {
    "no series is an empty answer": ([], {}),
    "counts by cell and outcome, zero too": (
        [series("a", "good", "18"), series("a", "failed", "0"), series("b", "good", "2")],
        {"a": {"good": 18, "failed": 0}, "b": {"good": 2}},
    ),
    "two Prometheus replicas count once": (
        [
            series("a", "good", "500", prometheus_replica="0"),
            series("a", "good", "500", prometheus_replica="1"),
        ],
        {"a": {"good": 500}},
    ),
    "labels that a scrape renames or adds make no difference": (
        [series("a", "good", "9", exported_pod="chat-x-rank-0", pod="prometheus-agent")],
        {"a": {"good": 9}},
    ),
    "of copies the latest counts": (
        [series("a", "good", "20", replica="0"), series("a", "good", "18", replica="1")],
        {"a": {"good": 20}},
    ),
    "NaN is no value": ([series("a", "good", "NaN"), series("a", "slow", "1")], {"a": {"slow": 1}}),
    "infinity is no value": ([series("a", "good", "+Inf")], {}),
    "a series without our labels is not ours": ([({"job": "x"}, "5")], {}),
}


@pytest.mark.parametrize("case", READINGS)
def test_an_answer_reads_as(case: str) -> None:
    result, expected = READINGS[case]
    with served(vector(*result)) as url:
        assert counts(url) == expected


QUERY = 'specschedule_requests_total{run="7f3a",launch="5",visit="1"}'
UNSEEN: dict[str, tuple[Answer, str]] = {
    "nothing was scraped": (vector(), "; no series has that name at all"),
    "a scrape renamed the labels": (
        vector(
            ({"__name__": "specschedule_requests_total", "exported_run": "7f3a", "pod": "x"}, "5")
        ),
        "; a series of that name has the labels exported_run, pod",
    ),
    "it cannot be asked any more": (body(503, "Service Unavailable"), ""),
    "an answer of something else": (body(200, '{"data":{"result":[{}]}}'), ""),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_where_no_series_is_found_the_query_and_the_labels_there_are_are_told(case: str) -> None:
    other, more = UNSEEN[case]
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (query,) = parse_qs(urlsplit(handler.path).query)["query"]
        asked.append(query)
        (vector() if query == QUERY else other)(handler)

    with served(answer) as url:
        assert counts(url) == {}
        said = PrometheusMetrics(seconds=0.5).unseen(url, run="7f3a", launch=5, visit=1, at=1.0)
    assert said == f"query returned no series: {QUERY}{more}"
    assert asked == [QUERY, "topk(1, specschedule_requests_total)"]


def test_a_value_that_is_no_number_is_no_answer() -> None:
    with served(vector(series("a", "good", "many"))) as url:
        assert counts(url) is None


EXPOSED = """\
# TYPE specschedule_requests_total counter
specschedule_requests_total{run="7f3a",launch="5",visit="1",arm="none",cell="a",outcome="good"} 18
specschedule_requests_total{run="7f3a",launch="5",visit="1",arm="none",cell="a",outcome="slow"} 2
specschedule_requests_total{run="7f3a",launch="5",visit="1",arm="none",cell="a",outcome="failed"} 0
specschedule_requests_total{run="7f3a",launch="5",visit="2",arm="none",cell="a",outcome="good"} 99
specschedule_requests_total{run="older",launch="5",visit="1",arm="none",cell="a",outcome="good"} 7
"""


def exposed(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/plain; version=0.0.4")
    handler.end_headers()
    handler.wfile.write(EXPOSED.encode())


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    asked = [sys.executable, "hack/image", "program"]
    program = subprocess.check_output(asked, cwd=ROOT, text=True).strip()
    started: list[subprocess.Popen[bytes]] = []

    def start(target: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [urlsplit(target).netloc]}]}
            for name in ("one", "copy")
        ]
        settings = {"global": {"scrape_interval": "200ms"}, "scrape_configs": jobs}
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
        started.append(
            subprocess.Popen(
                [
                    *(program, f"--config.file={tmp_path}/prometheus.yml"),
                    *(f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address={address}"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        return f"http://{address}"

    yield start
    for process in started:
        process.kill()
        process.wait()


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def test_the_real_server_gives_exactly_the_counters_of_one_visit(
    prometheus: Callable[[str], str],
) -> None:
    metrics = PrometheusMetrics()
    with served(exposed) as target:
        url = prometheus(target)
        until(lambda: metrics.check(url).available)

        def now(visit: int) -> dict[str, dict[str, float]] | None:
            return metrics.final_counts(url, run="7f3a", launch=5, visit=visit, at=time.time())

        until(lambda: bool(now(1)))
        assert now(1) == {"a": {"good": 18, "slow": 2, "failed": 0}}
        assert now(2) == {"a": {"good": 99}}
        assert now(3) == {}
        before = metrics.final_counts(url, run="7f3a", launch=5, visit=1, at=time.time() - 3600)
        assert before == {}


def test_a_window_shorter_than_a_scrape_loses_no_count_for_it(
    prometheus: Callable[[str], str],
) -> None:
    """A rate or an increase over such a window is empty (prometheus 2052); a counter is not.

    What was counted before the first scrape is in its first value.
    """
    metrics = PrometheusMetrics()
    with served(exposed) as target:
        url = prometheus(target)
        asked = {"run": "7f3a", "launch": 5, "visit": 1}
        until(lambda: bool(metrics.final_counts(url, **asked, at=time.time())))
        query = 'increase(specschedule_requests_total{cell="a",run="7f3a",visit="1"}[100ms])'
        with urllib.request.urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}") as told:
            assert json.load(told)["data"]["result"] == []
        counted = metrics.final_counts(url, **asked, at=time.time())
    assert counted == {"a": {"good": 18, "slow": 2, "failed": 0}}


def test_the_counters_of_a_process_that_is_gone_are_still_read(
    prometheus: Callable[[str], str],
) -> None:
    metrics = PrometheusMetrics()
    with served(exposed) as target:
        url = prometheus(target)

        def seen(at: float) -> dict[str, dict[str, float]] | None:
            return metrics.final_counts(url, run="7f3a", launch=5, visit=1, at=at)

        until(lambda: bool(seen(time.time())))
        scraped_at = time.time()

    def down() -> bool:
        query = f"{url}/api/v1/query?query=sum(up)"
        with urllib.request.urlopen(query, timeout=5) as answer:
            result = json.load(answer)["data"]["result"]
        return bool(result) and result[0]["value"][1] == "0"

    until(down)
    assert seen(time.time()) == {}, "a stale series must not pass for a present one"
    assert seen(scraped_at) == {"a": {"good": 18, "slow": 2, "failed": 0}}


def regime(url: str) -> ServingRegime | None:
    return PrometheusMetrics().serving(
        url, namespace="llm", pods=["chat-1", "chat-2"], points=[1, 4, 8]
    )


def facts(**values: str) -> list[tuple[dict[str, str], str]]:
    return [({"fact": name}, value) for name, value in values.items()]


REGIMES: dict[str, tuple[list[Any], dict[str, Any] | None]] = {
    "ratios of what grew": (
        facts(
            prefix_hits="30",
            prefix_queries="100",
            prompt_tokens="9000",
            prompts="20",
            batch_size="2.5",
            batch_size_p95="7",
        ),
        {"prefixHitShare": 0.3, "promptTokens": 450.0, "batchSize": 2.5, "batchSizeP95": 7.0},
    ),
    "shares of the busy time by load point": (
        facts(near_1="30", near_8="90"),
        {"timeAt": {"1": 0.25, "8": 0.75}},
    ),
    "no traffic has no lengths": (
        facts(prompt_tokens="0", prompts="0", batch_size="0"),
        {"batchSize": 0.0},
    ),
    "NaN is no value": (facts(batch_size="NaN", prefix_hits="1"), None),
    "no series is nothing known": ([], None),
    "a value that is no number is no answer": (facts(batch_size="many"), None),
}


@pytest.mark.parametrize("case", REGIMES)
def test_what_serving_does_reads_as(case: str) -> None:
    result, expected = REGIMES[case]
    with served(vector(*result)) as url:
        found = regime(url)
    told = found.plain() if found else None
    assert told == (None if expected is None else {"seconds": 3600.0, **expected})


def test_of_an_outage_nothing_is_known_about_serving() -> None:
    with served(body(503, "busy")) as url:
        assert regime(url) is None
        assert PrometheusMetrics().serving(url, namespace="llm", pods=[], points=[1]) is None


def test_the_real_server_tells_what_the_serving_pods_did(
    prometheus: Callable[[str], str],
) -> None:
    scrapes = 0

    def pods(handler: BaseHTTPRequestHandler) -> None:
        nonlocal scrapes
        scrapes += 1
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain; version=0.0.4")
        handler.end_headers()
        for pod, weight in (("chat-1", 1), ("chat-2", 3), ("chat-7f3a-none-1", 1000)):
            labels = f'{{namespace="llm",pod="{pod}",engine="0"}}'
            for name, value in (
                ("prefix_cache_hits_total", 30 * weight * scrapes),
                ("prefix_cache_queries_total", 100 * weight * scrapes),
                ("request_prompt_tokens_sum", 500 * weight * scrapes),
                ("request_prompt_tokens_count", weight * scrapes),
                ("request_generation_tokens_sum", 64 * weight * scrapes),
                ("request_generation_tokens_count", weight * scrapes),
                ("num_requests_running", 2 * weight),
            ):
                handler.wfile.write(f"vllm:{name}{labels} {value}\n".encode())

    with served(pods) as target:
        url = prometheus(target)

        def told() -> bool:
            found = regime(url)
            return found is not None and None not in (found.prompt_tokens, found.time_at)

        until(told)
        found = regime(url)
    assert found is not None
    assert found.prefix_hit_share == pytest.approx(0.3)
    assert found.prompt_tokens == pytest.approx(500)
    assert found.output_tokens == pytest.approx(64)
    assert found.batch_size == pytest.approx(4)
    assert found.batch_size_p95 == pytest.approx(6)
    # 2 requests are nearest to 4 of the points 1, 4 and 8 by ratio, 6 to 8; the other pod is none.
    assert found.time_at == pytest.approx({4: 0.5, 8: 0.5})
