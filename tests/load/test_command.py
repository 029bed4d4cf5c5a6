"""``specschedule load`` as people and Jobs run it, against the simulated engine."""

import gzip
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.booted import free_port
from tests.load.scripted import Scripted, serving

COMMAND = [sys.executable, "-m", "specschedule.cli.main"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A simulated engine with K=3 on a port of loopback."""
    port = free_port()
    speculative = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}
    log = (tmp_path_factory.mktemp("engine") / "log").open("w")
    with subprocess.Popen(
        [
            *(*COMMAND, "sim", "--world", "demo", "--seed", "1", "--boot", "100ms"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--speculative-config", json.dumps(speculative)),
        ],
        stdout=log,
        stderr=log,
    ) as process:
        url = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
        process.terminate()
    log.close()


def load(
    *arguments: str, environment: dict[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "load", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        input=stdin,
        env=os.environ | (environment or {}),
        check=False,
    )


def plan(url: str, **changes: Any) -> dict[str, Any]:
    return {
        "run": os.urandom(4).hex(),
        "arm": "incumbent",
        "launch": 3,
        "round": 2,
        "url": url,
        "windows": [
            {"cell": "r2-hold4-s0", "profile": {"kind": "hold", "concurrency": 4}, "tokens": 3}
        ],
        "slo": {"ttft": "2s", "tpot": "200ms"},
        "promptTokens": 32,
        "outputTokens": 24,
        "scrapes": 0,
        "maxSendLag": "5s",
        "warmUpTimeout": "12s",
    } | changes


def by_hand(engine: str, folder: Path, window: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure one window by the command; return its cell and the records that it wrote."""
    out = folder / "records.jsonl.gz"
    profile = f"windows:\n- {window}\noutputTokens: 24\nmaxSendLag: 5s\nwarmUpTimeout: 12s\n"
    result = load(
        *("--url", engine, "--profile", "-", "--slo", "ttft=2s,tpot=200ms", "--out", str(out)),
        stdin=profile,
    )
    assert result.returncode == 0, result.stderr
    (cell,) = map(json.loads, result.stdout.splitlines())
    return cell, [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]


def test_by_hand_it_prints_cells_and_writes_records(engine: str, tmp_path: Path) -> None:
    cell, lines = by_hand(engine, tmp_path, "{kind: hold, concurrency: 2}")
    assert cell["profile"] == {"kind": "hold", "concurrency": 2}
    assert cell["offered"] == cell["completed"] == cell["good"] >= 20
    assert "void" not in cell
    counted = [line for line in lines if line["counted"]]
    assert len(counted) == cell["offered"]
    assert all(line["outputTokens"] == 24 for line in counted)
    # A drafter's tokens come several to a chunk.
    assert all(len(line["chunks"]) < 24 for line in counted)


def test_contexts_that_a_window_mixes_are_in_flight_together(engine: str, tmp_path: Path) -> None:
    window = "{kind: hold, concurrency: 4, contexts: [20, 300]}"
    cell, lines = by_hand(engine, tmp_path, window)
    assert cell["profile"] == {"kind": "hold", "concurrency": 4, "contexts": [20, 300]}
    assert "void" not in cell
    sent = [line["promptTokens"] for line in sorted(lines, key=lambda x: x["index"])]
    counted = [line["promptTokens"] for line in lines if line["counted"]]
    assert sent == [20 if index % 2 == 0 else 300 for index in sorted(x["index"] for x in lines)]
    assert 0.3 < counted.count(300) / len(counted) < 0.7


def test_as_a_job_its_counters_equal_its_cells_and_the_engines(engine: str) -> None:
    port = free_port()
    seen: list[str] = []
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(0.3):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    seen.append(page.read().decode())
            except OSError:
                pass

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        result = load(
            environment={
                "SPECSCHEDULE_VISIT": json.dumps(plan(engine, scrapes=2)),
                "SPECSCHEDULE_METRICS_PORT": str(port),
            }
        )
    finally:
        stop.set()
        scraper.join()
    assert result.returncode == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["warmed", "cell", "ended"]
    cell = events[1]["cell"]
    assert (cell["arm"], cell["launch"], cell["round"], cell["tokens"]) == ("incumbent", 3, 2, 3)
    counters = dict(re.findall(r'requests_total{.*outcome="(\w+)".*} (\S+)', seen[-1]))
    assert counters == {"good": f"{cell['good']}.0", "slow": "0.0", "failed": "0.0"}
    assert len(events[2]["scrapedAt"]) >= 2
    # The engine's own account of the window: all K tokens drafted, as many tokens as we saw, up
    # to the few steps between its reading and ours.
    assert cell["draftTokens"] == 3 * cell["drafts"]
    assert 0 < cell["acceptedTokens"] < cell["draftTokens"]
    positions = cell["acceptedByPosition"]
    assert len(positions) == 3
    assert sum(positions) == cell["acceptedTokens"]
    assert cell["drafts"] > positions[0] > positions[1] > positions[2] > 0
    assert cell["engineOutputTokens"] == pytest.approx(cell["outputTokens"], rel=0.15)
    assert cell["prefixCache"]["hits"] == 0
    assert cell["batchSizeMean"] == pytest.approx(4, abs=0.8)


def test_prompts_that_are_too_long_for_the_server_are_named_by_hand_too(
    engine: str, tmp_path: Path
) -> None:
    (tmp_path / "code").write_text("def f\n" + "four" * 8200 + "\n")
    result = load(
        *("--url", engine, "--profile", "-", "--slo", "ttft=2s", "--prompts", str(tmp_path)),
        stdin="windows: [{kind: hold, concurrency: 2}]\noutputTokens: 8\nmaxSendLag: 5s\n",
    )
    assert result.returncode == 0, result.stderr
    assert (
        "load: max_model_len 8192 has no room for 1 of 2 prompts of category code (requests of up "
        "to 8223 tokens): left out"
    ) in result.stderr
    (cell,) = map(json.loads, result.stdout.splitlines())
    assert cell["failed"] == 0


def test_a_second_visit_with_the_same_prompts_is_found_out_by_the_cache(engine: str) -> None:
    again = json.dumps(plan(engine, run="twice"))
    first, second = (load("--visit", "-", stdin=again) for _ in range(2))
    cells = [json.loads(run.stdout.splitlines()[1])["cell"] for run in (first, second)]
    assert "void" not in cells[0]
    assert "load.prefixCache Unique does not hold" in cells[1]["void"]


def test_sigterm_ends_it_without_a_cell_for_the_open_window(engine: str) -> None:
    visit = plan(engine)
    visit["windows"][0]["requests"] = 5000
    with subprocess.Popen(
        [*COMMAND, "load"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"SPECSCHEDULE_VISIT": json.dumps(visit)} | port_variable(),
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "warmed"
        process.send_signal(signal.SIGTERM)
        rest, words = process.communicate(timeout=30)
    assert process.returncode == 143
    assert rest == ""
    assert "Traceback" not in words


def port_variable() -> dict[str, str]:
    return {"SPECSCHEDULE_METRICS_PORT": str(free_port())}


def test_a_job_whose_prompts_are_missing_says_so_as_an_event(engine: str) -> None:
    result = load(
        environment={
            "SPECSCHEDULE_VISIT": json.dumps(plan(engine)),
            "SPECSCHEDULE_PROMPTS": "/nowhere",
        }
        | port_variable()
    )
    assert result.returncode == 1
    event = json.loads(result.stdout)
    assert (event["event"], event["reason"]) == ("failed", "PromptsMissing")


@pytest.mark.parametrize("name", ["aiperf-0.13.0.jsonl", "vllm-bench-serve-0.32.0.json"])
def test_a_run_of_another_tool_is_read_as_a_cell_without_any_server(name: str) -> None:
    file = Path(__file__).parent / "recorded" / name
    asked = ("--read", str(file), "--profile", "-", "--slo", "ttft=500ms,tpot=40ms")
    result = load(*asked, stdin="{kind: hold, concurrency: 4}")
    assert result.returncode == 0, result.stderr
    (cell,) = map(json.loads, result.stdout.splitlines())
    assert (cell["cell"], cell["arm"]) == ("hold-1", "local")
    assert cell["profile"] == {"kind": "hold", "concurrency": 4}
    assert 26 <= cell["offered"] <= 31
    assert cell["good"] == cell["completed"] == cell["offered"]
    assert cell["tpotMs"]["p50"] > 0


@pytest.mark.parametrize(
    ("claim", "content", "profile", "words"),
    [
        ("two windows", "", "[{kind: hold, concurrency: 4}, {kind: hold, concurrency: 1}]", "one "),
        ("no run of a known tool", "{}", "{kind: hold, concurrency: 4}", "other.json"),
    ],
)
def test_what_cannot_be_read_as_a_cell_is_refused(
    claim: str, content: str, profile: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    asked = ("--read", str(file), "--profile", "-", "--slo", "ttft=1s")
    result = load(*asked, stdin=profile)
    assert result.returncode == 2, claim
    assert words in result.stderr
    assert result.stdout == ""


def test_a_job_writes_its_records_to_its_volume(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "chat-1-v1.jsonl.gz"
    job = {"SPECSCHEDULE_VISIT": json.dumps(plan(engine)), "SPECSCHEDULE_RECORDS": str(file)}
    result = load(environment=job | port_variable())
    assert result.returncode == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["warmed", "cell", "ended"]
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert sum(line["counted"] for line in lines) == events[1]["cell"]["offered"]


def test_a_job_that_may_not_write_to_its_volume_measures_nothing(engine: str) -> None:
    job = {"SPECSCHEDULE_VISIT": json.dumps(plan(engine)), "SPECSCHEDULE_RECORDS": "/nowhere/r"}
    result = load(environment=job | port_variable())
    assert result.returncode == 1
    event = json.loads(result.stdout)
    assert (event["event"], event["reason"]) == ("failed", "BadPlan")
    assert "load.records: /nowhere/r: No such file" in event["message"]


HOLD = "{kind: hold, concurrency: 1}"


@pytest.mark.parametrize(
    ("claim", "arguments", "stdin", "words"),
    [
        ("nothing given", [], "", "needs --url, --profile and --slo"),
        ("no such profile", ["--profile", "/nowhere.yaml"], "", "/nowhere.yaml"),
        ("a profile of no kind", ["--profile", "-"], "{concurrency: 3}", "window 1"),
        ("an unknown kind", ["--profile", "-"], "{kind: spiral}", "windows.0.profile.kind"),
        ("an unknown setting", ["--profile", "-"], "{windows: [], speed: 3}", "speed"),
        (
            "a hold of less than nothing",
            ["--profile", "-"],
            "{kind: hold, concurrency: -4}",
            "window hold-1: hold: needs concurrency of at least 1",
        ),
        (
            "a length inside the profile, where it would be ignored",
            ["--profile", "-"],
            "{kind: hold, concurrency: 1, promptTokens: 64}",
            "a profile has no field promptTokens; lengths, sampling and requests stand beside",
        ),
        ("a hold of nothing", ["--profile", "-"], "{kind: hold}", "needs concurrency"),
        ("an address without scheme", ["--url", "127.0.0.1:8000"], HOLD, "--url 127.0.0.1:8000: "),
        ("an address without host", ["--url", "http://"], HOLD, "--url http://: "),
        ("a port too high", ["--url", "http://127.0.0.1:99999"], HOLD, "--url http://127.0.0.1"),
        ("a limit that is unknown", ["--slo", "ttfb=1s"], HOLD, "--slo ttfb=1s: ttfb"),
        ("a limit without unit", ["--slo", "ttft=500x"], "{kind: hold}", "--slo ttft=500x: ttft"),
        ("limits of another form", ["--slo", "fast"], "{kind: hold}", "ttft=500ms,tpot=40ms"),
        ("no prompts there", ["--prompts", "/nowhere"], HOLD, "/nowhere"),
        ("no folder for records", ["--out", "/nowhere/r.jsonl"], HOLD, "/nowhere"),
        ("a visit that is none", ["--visit", "-"], "{}", "run: Field required"),
    ],
)
def test_bad_input_gets_one_clear_line_and_status_2(
    claim: str, arguments: list[str], stdin: str, words: str
) -> None:
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if arguments and "--visit" not in given:
        given = {"--url": "http://127.0.0.1:9", "--profile": "-", "--slo": "ttft=1s"} | given
    result = load(*[part for pair in given.items() for part in pair], stdin=stdin)
    assert result.returncode == 2, claim
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_an_unreachable_server_fails_the_visit(tmp_path: Path) -> None:
    result = load(
        "--visit", "-", stdin=json.dumps(plan("http://127.0.0.1:9")), environment=port_variable()
    )
    assert result.returncode == 1
    event = json.loads(result.stdout)
    assert (event["event"], event["reason"]) == ("failed", "ServerUnreachable")
    assert "127.0.0.1:9" in event["message"]


def test_a_certificate_that_is_not_trusted_is_refused_and_a_trusted_one_is_not(
    tmp_path: Path,
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(Scripted(tls=context)) as server:
        visit = json.dumps(plan(server.url, outputTokens=4))
        trusted = {"SSL_CERT_FILE": str(certificate)}
        well = load("--visit", "-", stdin=visit, environment=port_variable() | trusted)
        refused = load("--visit", "-", stdin=visit, environment=port_variable())
    assert well.returncode == 0, well.stdout
    assert refused.returncode == 1
    assert "certificate" in json.loads(refused.stdout)["message"]
