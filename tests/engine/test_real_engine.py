"""In the real engine: every step gets the K that was planned, and the records are the engine's.

Two boots in all: one under the probe scheduler with recorder and fingerprint, one under the
context-axis scheduler. Everything reaches the server as a person would bring it: a delivered
folder on PYTHONPATH, variables, arguments, requests.
"""

import http.client
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specschedule.core import context_axis, inband
from specschedule.core.schedule import additional_config, effective
from specschedule.engine import deliver, selftest, settings
from specschedule.vllm_facts.logs import device_times, scheduler_finding
from specschedule.vllm_facts.receipt import read_receipt

from ..booted import free_port
from ..instrumented import (
    BY_CONTEXT,
    EVERY_K,
    LIMITS,
    Booted,
    decoding,
    prompt,
    serving,
    undrafted,
    unplanned,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SCHEDULED = Path(__file__).with_name("scheduled.py")
SWITCHED = Path(__file__).with_name("switched.py")
SECRET = "only-this-launch"


@pytest.fixture(scope="module")
def probe(engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    arguments = [
        "--scheduler-cls=specschedule.engine.probe.ProbeScheduler",
        "--worker-extension-cls=specschedule.engine.fingerprint.Fingerprint",
        "--enable-logging-iteration-details",
        "--cudagraph-metrics",
        "--disable-log-stats",
    ]
    variables = {
        settings.SECRET: SECRET,
        settings.TTFT: "60000",
        settings.TPOT: "0.000001",
        settings.DEVICE_TIMES: "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    with serving(engine, tmp_path_factory.mktemp("probe"), arguments, variables) as server:
        yield server


@pytest.fixture(scope="module")
def tested(probe: Booted) -> dict[str, Any]:
    """The self test as a launch runs it, before anything else."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "specschedule.engine.selftest", "--model", "pair"),
            *("--url", f"http://127.0.0.1:{probe.port}"),
        ],
        env={
            **os.environ,
            settings.SECRET: SECRET,
            settings.SCHEDULER_PORT: str(probe.ports[settings.SCHEDULER_PORT]),
        },
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    return {"code": done.returncode, **json.loads(done.stdout)}


def test_the_self_test_sees_every_k_run(probe: Booted, tested: dict[str, Any]) -> None:
    assert tested == {"code": 0, "passed": True, "findings": []}
    facts = selftest.facts(probe.page(settings.SCHEDULER_PORT))
    assert facts["proven"] == [0, 1, 2, 3, 4]
    assert facts["switches"] == 5
    for k, observed in facts["observed"].items():
        assert set(observed) == {k}, "every draft of every request was as planned"


def test_k_per_step_is_the_plan_while_the_batch_changes(
    probe: Booted, tested: dict[str, Any]
) -> None:
    page = probe.page(settings.SCHEDULER_PORT)
    before = selftest.facts(page)["next"]
    rows = [[1, 1, 4], [2, 3, 2], [4, 4, 0], [5, 16, 1]]
    with ThreadPoolExecutor(6) as pool:
        asked = inband.arguments(SECRET, rows, "plan")
        work = [pool.submit(probe.complete, prompt(20, n), 24 + 16 * n, **asked) for n in range(6)]
        for each in work:
            each.result()
    lines = selftest.steps(page, before)
    assert {line["window"] for line in lines} == {"plan"}
    assert unplanned(lines, effective(rows, **LIMITS)) == []
    assert {line["tokens"] for line in lines} == {0, 1, 2, 4}
    assert len(decoding(lines)) > 20
    assert undrafted(lines) == [], "drafted as planned before it"
    shapes = [(line["batchSize"], line["targetTokens"]) for line in lines if "firstOfShape" in line]
    assert len(shapes) == len(set(shapes)) > 3
    assert selftest.facts(page)["finding"] is None


def test_the_worker_tells_how_long_target_and_drafter_kept_the_device(
    probe: Booted, tested: dict[str, Any]
) -> None:
    page = probe.page(settings.SCHEDULER_PORT)
    means: dict[int, tuple[float, float, float]] = {}
    for k in (4, 0):
        asked = inband.arguments(SECRET, [[1, 16, k]], f"device {k}")
        before = selftest.facts(page)["next"]
        probe.complete(prompt(20, k), 200, **asked)
        lines = [each for _, each in decoding(selftest.steps(page, before))]
        seconds = (lines[-1]["at"] - lines[0]["at"]) / (len(lines) - 1)
        means[k] = (seconds * 1000.0, *_device(probe, drafts=k))
    for step, target, drafter in means.values():
        assert 0.4 * step < target + drafter < 1.2 * step, means
    # With nothing to draft the drafter still follows the target, in one pass instead of four.
    assert 0 < means[0][2] < 0.5 * means[4][2], means
    assert means[4][2] > 0.2 * means[4][1], means


def _device(server: Booted, *, drafts: int) -> tuple[float, float]:
    """Make the worker say its times, and return those of a request alone."""
    for n in range(60):
        server.complete(prompt(20, 300 + n), 40)
        lines = [f"2026-11-30T10:00:00Z {line}" for line in server.log.read_text().splitlines()]
        told = device_times("\n".join(lines))
        for step in told.steps if told else []:
            if (step.requests, step.draft_tokens) == (1, drafts) and step.steps > 20:
                return step.target_ms, step.drafter_ms
    raise AssertionError(f"no line tells of steps with {drafts} drafts")


def test_a_request_without_the_secret_switches_nothing(
    probe: Booted, tested: dict[str, Any]
) -> None:
    page = probe.page(settings.SCHEDULER_PORT)
    before = selftest.facts(page)
    probe.complete(prompt(20), 8, **inband.arguments("guess", [[1, 16, 0]], "theirs"))
    after = selftest.facts(page)
    assert (after["ranges"], after["switches"]) == (before["ranges"], before["switches"])
    assert inband.SECRET in after["refused"]


def test_the_recorder_agrees_with_the_engines_own_counters(
    probe: Booted, tested: dict[str, Any]
) -> None:
    probe.complete(prompt(30), 16)
    lines = selftest.steps(probe.page(settings.RECORDER_PORT))
    metrics = probe.metrics()

    def total(name: str) -> int:
        return sum(line.get(name, 0) for line in lines)

    assert lines[0]["step"] == 0
    assert total("outputTokens") == metrics["vllm:generation_tokens_total"]
    assert total("drafts") == metrics["vllm:spec_decode_num_drafts_total"]
    assert total("draftTokens") == metrics["vllm:spec_decode_num_draft_tokens_total"]
    assert total("acceptedTokens") == metrics["vllm:spec_decode_num_accepted_tokens_total"]
    assert total("finished") == total("firstTokens") == metrics["vllm:request_success_total"]
    assert metrics["specschedule_engine_requests_total"] == total("finished")
    assert metrics["specschedule_engine_first_tokens_total"] == total("finished")
    assert metrics["specschedule_engine_recorder_on"] == 1.0


def test_the_recorder_saw_no_draft_that_the_scheduler_did_not_plan(
    probe: Booted, tested: dict[str, Any]
) -> None:
    def verified(name: str, key: str) -> Counter[int]:
        lines = selftest.steps(probe.page(name))
        return Counter(line[key] for line in lines if line.get(key))

    seen = verified(settings.RECORDER_PORT, "tokens")
    planned = verified(settings.SCHEDULER_PORT, "verified")
    assert set(seen) == set(planned) == {1, 2, 3, 4}
    # A step that was under way when its request ended is planned, and its drafts count nowhere.
    assert 0.7 * planned.total() < seen.total() <= planned.total()


def test_a_request_that_misses_one_limit_is_not_good(probe: Booted, tested: dict[str, Any]) -> None:
    # Nothing takes a billionth of a second per token: all is slow, though no first token is late.
    connection = http.client.HTTPConnection("127.0.0.1", probe.port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = dict(
        re.findall(r'^specschedule_engine_requests_total.*outcome="(\w+)".* (\S+)$', text, re.M)
    )
    assert float(found["good"]) == float(found["failed"]) == 0.0
    assert float(found["slow"]) > 0.0


def test_the_fingerprint_is_the_workers_own(probe: Booted) -> None:
    facts = selftest.facts(probe.page(settings.FINGERPRINT_PORT))
    clocks = {name: facts.pop(name) for name in ("monotonic", "unix")}
    assert clocks["unix"] > 0
    connection = http.client.HTTPConnection("127.0.0.1", probe.port, timeout=30)
    headers = {"Content-Type": "application/json"}
    asked = json.dumps({"method": "specschedule_fingerprint"})
    connection.request("POST", "/collective_rpc", asked, headers)
    assert json.loads(connection.getresponse().read()) == {"results": [facts]}
    connection.close()
    torch = facts.pop("torchVersion")
    assert re.match(r"2\.\d+", torch)
    assert facts == {
        "modelRunner": "V1",
        "graphMode": "NONE",
        "capturedSizes": [],
        "attentionBackend": "CPU_ATTN",
        "drafterClass": "DraftModelProposer",
        "asyncScheduling": False,
        "schedule": EVERY_K,
        "numSpeculativeTokens": 4,
        "enforceEager": True,
        "graphsCaptured": 0,
    }


MISFIT = """
from types import SimpleNamespace
from specschedule.engine import context, recorder, scheduling
scheduler = context.ContextScheduler.__new__(context.ContextScheduler)
scheduler.dynamic_sd_lookup = [0, 1]
scheduler.scheduler_config = SimpleNamespace(async_scheduling=True, max_num_seqs=1)
try:
    scheduling._check(scheduler)
except ValueError as refused:
    print(refused)
"""


def test_a_scheduler_that_does_not_fit_the_server_names_the_one_that_does(
    engine: dict[str, Any], tmp_path: Path
) -> None:
    deliver.deliver(tmp_path)
    said = subprocess.check_output(
        [engine["python"], "-c", MISFIT],
        env={**os.environ, **engine["env"], "PYTHONPATH": str(tmp_path)},
        text=True,
    )
    assert "--scheduler-cls specschedule.engine.context.AsyncContextScheduler" in said


@pytest.fixture(scope="module")
def by_context(
    engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Booted]:
    folder = tmp_path_factory.mktemp("context")
    (folder / "rows.json").write_text(json.dumps(BY_CONTEXT))
    arguments = [f"--scheduler-cls={context_axis.CLASS}"]
    variables = {settings.TABLE: str(folder / "rows.json")}
    with serving(engine, folder, arguments, variables) as server:
        yield server


@pytest.mark.parametrize(
    ("why", "lengths", "planned"),
    [
        ("alone and short", [20], {1}),
        ("alone and long", [400], {4}),
        ("short ones together", [20, 24], {0, 1}),
        ("long ones together", [400, 380], {2, 4}),
        ("mixed: their mean is long", [20, 400], {0, 1, 2, 4}),
    ],
)
def test_five_number_rows_run_at_every_step_of_the_real_engine(
    by_context: Booted, why: str, lengths: list[int], planned: set[int]
) -> None:
    page = by_context.page(settings.SCHEDULER_PORT)
    before, counted = selftest.facts(page)["next"], by_context.metrics()
    by_context.together([prompt(n, n) for n in lengths], 40)
    lines, after = selftest.steps(page, before), by_context.metrics()
    table = effective(BY_CONTEXT, **LIMITS)
    assert unplanned(lines, table) == []
    assert {line["tokens"] for line in lines if line["decodes"]} <= planned, why
    assert len(decoding(lines)) >= 8
    assert undrafted(lines) == []
    if len(lengths) == 1:
        # The engine's own counters, which know nothing of our table.
        name = "vllm:spec_decode_num_draft"
        drafts = after[f"{name}s_total"] - counted[f"{name}s_total"]
        tokens = after[f"{name}_tokens_total"] - counted[f"{name}_tokens_total"]
        verified = [line["verified"] for line in lines if line.get("verified")]
        assert (drafts, tokens) == (len(verified), sum(verified))
        # The prompt's own step stands at context 0: the drafts after it are a short context's.
        assert lines[0]["tokens"] == table.tokens(1, 0)
        assert {*verified[1:]} == planned
        contexts = [line["context"] for line in lines if line["decodes"]]
        assert contexts[0] == lengths[0]
        assert contexts == sorted(contexts)
    else:
        both = [line["context"] for line in lines if line["decodes"] == 2]
        mean = sum(lengths) // 2
        assert both
        assert all(mean <= each <= mean + 50 for each in both), "prompts and 40 tokens of output"
    assert selftest.facts(page)["finding"] is None


def test_the_scheduler_that_suits_the_server_says_what_it_follows(by_context: Booted) -> None:
    receipt = read_receipt(log_text=by_context.log.read_text())
    assert receipt.scheduler == "context-axis"
    assert receipt.schedule == effective(BY_CONTEXT, **LIMITS).ranges


@pytest.fixture(scope="module")
def switched(engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM's schedulers did with the probe's on top."""
    folder = tmp_path_factory.mktemp("switched")
    deliver.deliver(folder)
    ports = [str(free_port()), str(free_port())]
    done = subprocess.run(
        [engine["python"], SWITCHED, engine["model"], engine["drafter"], *ports],
        env={**os.environ, **engine["env"], "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    said = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return {**json.loads(said), "log": done.stdout + done.stderr}


def test_the_class_that_stands_for_both_is_the_one_that_suits(switched: dict[str, Any]) -> None:
    assert switched["asynchronous"] == "AsyncProbeScheduler"
    assert switched["plain"] == "ProbeScheduler"


def test_a_switch_with_two_steps_in_flight_holds_from_the_next_step_on(
    switched: dict[str, Any],
) -> None:
    lines = switched["lines"]
    assert [line["tokens"] for line in lines] == [int(line["window"][1:]) for line in lines]
    assert {line["tokens"] for line in lines} == {0, 1, 2, 4}
    for before, after in pairwise(lines):
        assert set(after["drafts"].values()) <= {before["tokens"]}, "drafted as planned before it"
    facts = switched["inFlight"]
    assert (facts["finding"], facts["switches"]) == (None, 4)


def test_after_a_mismatch_the_scheduler_goes_back_and_refuses_every_switch(
    switched: dict[str, Any],
) -> None:
    finding = "K=1 was planned and 3 drafts were scheduled"
    assert set(switched["well"]) == {2}
    assert switched["before"]["finding"] is None
    assert switched["misfit"][:2] == [1, 1]
    assert switched["after"]["finding"] == finding
    alone = effective(EVERY_K, **LIMITS).tokens(1)
    assert set(switched["misfit"][2:]) == {alone}, "the table that it was started with"
    assert set(switched["refused"]) == {alone}
    assert switched["end"]["ranges"] == switched["end"]["bootRanges"]
    assert switched["end"]["refused"] == f"the self test failed: {finding}"


def test_the_finding_stands_in_the_engines_log(switched: dict[str, Any]) -> None:
    lines = [f"2026-11-30T10:00:00Z {line}" for line in switched["log"].splitlines()]
    found = scheduler_finding("\n".join(lines))
    assert found == switched["after"]["finding"]


@pytest.fixture(scope="module")
def in_flight(
    engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What vLLM's asynchronous scheduler did with ours on top, and a last line about others."""
    folder = tmp_path_factory.mktemp("in-flight")
    deliver.deliver(folder)
    given = json.dumps(additional_config(BY_CONTEXT))
    said = subprocess.check_output(
        [engine["python"], SCHEDULED, engine["model"], engine["drafter"], given],
        env={**os.environ, **engine["env"], "PYTHONPATH": str(folder)},
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_with_two_steps_in_flight_every_step_follows_the_table_of_the_additional_config(
    in_flight: list[dict[str, Any]],
) -> None:
    *lines, end = in_flight
    table = effective(BY_CONTEXT, **LIMITS)
    last: dict[str, int] = {}
    for line in lines:
        past = [computed for computed, length in line["before"].values() if computed >= length]
        pool = past or [computed for computed, _ in line["before"].values()]
        planned = table.tokens(len(line["before"]), sum(pool) // len(pool))
        assert line["tokens"] == planned, line
        for name, (computed, length) in line["before"].items():
            assert line["drafts"][name] == (last[name] if computed >= length else 0), line
        last |= dict.fromkeys(line["before"], planned)
    assert {line["tokens"] for line in lines} == {0, 2, 4}
    assert end["proof"]["finding"] is None
    assert end["kind"] == "AsyncContextScheduler"


def test_a_server_without_a_schedule_gets_vllms_own_scheduler(
    in_flight: list[dict[str, Any]],
) -> None:
    told = in_flight[-1]["without"]
    assert told["fixed"] == "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
    assert told["none"] == "vllm.v1.core.sched.scheduler.Scheduler"
    assert told["rows"] == "specschedule.engine.context.AsyncContextScheduler"
    assert "the server has no schedule in effect" in told["table"]
