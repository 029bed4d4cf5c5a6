"""Faults planted in a simulated engine close the gate that they should.

Real processes: the simulator serves, the load command measures, and the receipt and cells that
come of it are all that the gates see.
"""

import json
import subprocess
import sys
import urllib.request

import pytest

from specschedule.core.evidence import Launch
from specschedule.core.gates import between_arms, blocking
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.core.visit import CellClosed, visit_event
from specschedule.vllm_facts.failures import start_failure
from specschedule.vllm_facts.receipt import read_receipt

ROWS = [[1, 2, 5], [3, 16, 1]]
STATIC = {"method": "eagle3", "model": "d", "num_speculative_tokens": 5}
SERVER = ServerFacts(container="server", max_num_seqs=16, speculative=STATIC)
SPEC = Spec.model_validate(
    {
        "target": {"name": "chat"},
        "slo": {"ttft": "10s"},
        "candidates": [{"name": "card", "schedule": ROWS}],
        "load": {"points": [1, 8], "promptTokens": 64, "outputTokens": 24},
        "bar": {"improve": [{"by": "15%"}]},
    }
)
CONFIGS = {
    "none": None,
    "incumbent": STATIC,
    "candidate-card": {**STATIC, "num_speculative_tokens_per_batch_size": ROWS},
}
PLANNED = {"none": (0, 0), "incumbent": (5, 5), "candidate-card": (5, 1)}


def command(arm, *options):
    config = CONFIGS[arm]
    carried = [] if config is None else ["--speculative-config", json.dumps(config)]
    return [
        *(sys.executable, "-m", "specschedule.cli.main", "sim", "--world", "demo", "--boot", "0s"),
        *("--seed", "1", *options, "--host", "127.0.0.1", "--port", "0", "--max-num-seqs", "16"),
        *carried,
    ]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def visit(arm, url):
    windows = [
        {"cell": f"hold{at}", "profile": {"kind": "hold", "concurrency": at}, "tokens": planned}
        for at, planned in zip((1, 8), PLANNED[arm], strict=True)
    ]
    windows.append(
        {"cell": "said", "profile": {"kind": "equivalence", "steps": [[1, 8], [8, 10], [1, 4]]}}
    )
    return {
        "run": "r", "arm": arm, "launch": 1, "round": 1, "url": url, "windows": windows,
        "slo": {"ttft": "10s"}, "promptTokens": 64, "outputTokens": 24, "scrapes": 0,
        "maxSendLag": "10s", "warmUpTimeout": "3s",
    }  # fmt: skip


def launched(arm, *options):
    """Start an arm, put it under load, and return what is known of it."""
    server = subprocess.Popen(
        command(arm, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        log = []
        for line in server.stdout:
            log.append(line)
            if line.startswith("listening on "):
                break
        url = log[-1].split()[-1]
        load = subprocess.run(
            [sys.executable, "-m", "specschedule.cli.main", "load", "--visit", "-"],
            input=json.dumps(visit(arm, url)),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={"SPECSCHEDULE_METRICS_PORT": "0", "PATH": "/usr/bin:/bin"},
        )
        receipt = read_receipt(
            version=json.loads(get(f"{url}/version")),
            metrics_text=get(f"{url}/metrics"),
            log_text="".join(log),
        )
    finally:
        server.terminate()
        server.communicate(timeout=30)
    events = [visit_event.validate_json(line) for line in load.stdout.splitlines()]
    cells = [event.cell for event in events if isinstance(event, CellClosed)]
    assert len(cells) == 3, load.stderr
    return Launch(
        arm=arm, launch=1, round=1,
        schedule=ROWS if arm == "candidate-card" else None,
        receipt=receipt.model_copy(update={"image_id": "sha256:a"}),
        # What disturbs a busy test machine is not the engine's doing.
        cells=[cell.model_copy(update={"void": None}) for cell in cells],
    )  # fmt: skip


@pytest.fixture(scope="module")
def controls():
    return [launched("none"), launched("none"), launched("incumbent")]


def answers(controls, candidate):
    return {gate.gate: gate for gate in between_arms(SPEC, [*controls, candidate], SERVER)}


def test_without_faults_nothing_holds_the_run(controls):
    gates = list(answers(controls, launched("candidate-card")).values())
    assert blocking(gates) is None, blocking(gates)


FAULTS = {
    "silent-disable": ("scheduleInEffect", "Fail", "NotLimited"),
    "worker-downgrade": ("graphMode", "Pass", "DiffersReported"),
    "hidden-warning": ("logLevel", "Unknown", "LogLevelHidesWarnings"),
    "json-logs": ("logLevel", "Pass", "Holds"),
    # Counters cannot show it: only the comparison with the arm none can.
    "drafter-ignores-k": ("scheduleInEffect", "Pass", "Holds"),
    "equivalence": ("outputEquivalence", "Fail", "OutputDiffers"),
    # One band only: K=5 up to 2 in flight, K=1 above.
    "equivalence-in-band@5": ("outputEquivalence", "Fail", "OutputDiffers"),
    "equivalence-in-band@1": ("outputEquivalence", "Fail", "OutputDiffers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_engine_closes_its_gate(controls, fault):
    gate, verdict, reason = FAULTS[fault]
    found = answers(controls, launched("candidate-card", "--fault", fault))[gate]
    assert (found.answer, found.reason) == (verdict, reason), found


FAILED_STARTS = {"oom": "OutOfMemory", "crash-at-capture": "FailedDuringCapture"}


@pytest.mark.parametrize("fault", FAILED_STARTS)
def test_a_failed_start_says_why(fault):
    ended = subprocess.run(
        command("candidate-card", "--fault", fault),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert start_failure(ended.stdout + ended.stderr).reason == FAILED_STARTS[fault]
