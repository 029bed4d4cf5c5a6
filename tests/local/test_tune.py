"""``specschedule tune --local`` as people run it, kill it and go on, with a simulated engine."""

import gzip
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.tune import command
from specschedule.core.schedule import speculative_config
from tests.local.questions import SPEC, question, sim

COMMAND = [sys.executable, "-m", "specschedule.cli.main"]


def manifest(folder: Path, **changes: Any) -> Path:
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump({"kind": "SpecSchedule", "spec": question(**changes)}))
    return path


class Run:
    """A run in its folder, gone on with as often as asked."""

    def __init__(self, tmp_path: Path, serving: list[str], **changes: Any) -> None:
        self.folder = tmp_path / "run"
        self._words = [*COMMAND, "tune", "-f", str(manifest(tmp_path, **changes)), "--local"]
        self._words += ["--run", str(self.folder)]
        self._serving = serving

    def begin(self, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self._words, *options, "--", *self._serving],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # As from a terminal: tests that a shell runs in the background ignore the interrupt.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def finish(self, *options: str) -> tuple[int, str]:
        with self.begin(*options) as process:
            said, _ = process.communicate(timeout=300)
        return process.returncode, said

    @property
    def status(self) -> dict[str, Any]:
        path = self.folder / "schedule.json"
        found: dict[str, Any] = json.loads(path.read_text())["status"] if path.exists() else {}
        return found

    @property
    def trials(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.folder.glob("trials/*.json")]
        return sorted(found, key=lambda trial: int(trial["spec"]["launch"]))

    def measuring(self, attempt: int) -> bool:
        """Whether the load of a try has begun."""
        return any(
            trial["spec"]["attempt"] == attempt and trial.get("status", {}).get("visits")
            for trial in self.trials
        )

    def processes(self) -> list[int]:
        """Every living process that the run started, or that one of those did."""
        uid = json.loads((self.folder / "schedule.json").read_text())["metadata"]["uid"]
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if uid.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def judged(self) -> dict[str, Any]:
        """The verdict that judge reads from the trials alone."""
        words = ["judge", "-o", "json", "-f", f"{self.folder}/schedule.json"]
        words += ["--trials", f"{self.folder}/trials.yaml"]
        found: dict[str, Any] = json.loads(subprocess.check_output([*COMMAND, *words]))
        return found


def until(claim: Callable[[], object]) -> None:
    for _ in range(600):
        if claim():
            return
        time.sleep(0.1)
    pytest.fail("not within 60 s")


def test_killed_and_interrupted_it_goes_on_with_the_same_run(tmp_path: Path) -> None:
    run = Run(tmp_path, sim("--fault", "crash-at-boundary"))
    with run.begin() as process:
        until(lambda: run.measuring(attempt=1))
        process.send_signal(signal.SIGKILL)
    orphans = run.processes()
    assert orphans, "the kill came too late to leave anything"
    uid = run.status["runId"]

    with run.begin() as process:
        until(lambda: run.measuring(attempt=2))
        assert not set(orphans) & set(run.processes())
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "the same command goes on" in said
    assert run.processes() == []

    code, said = run.finish()
    assert code == 0, said
    assert run.status["runId"] == uid
    assert run.processes() == []
    counted = [t for t in run.trials if not t["status"].get("void")]
    void = [t for t in run.trials if t["status"].get("void")]
    assert [t["spec"]["launch"] for t in run.trials] == list(range(1, len(run.trials) + 1))
    assert [t["spec"]["attempt"] for t in void] == [1, 2]
    assert all("ended with the run" in t["status"]["void"] for t in void)
    assert {t["spec"]["attempt"] for t in counted} == {3}

    # The candidate's engine dies when K changes under load: its own fault, said in its own words.
    (failed,) = [t["status"]["failed"] for t in counted if "failed" in t["status"]]
    assert "Exited under load" in failed
    assert "must match the size of tensor b" in failed
    assert (run.status["outcome"], run.status["reason"]) == ("NotPromoted", "CandidateFailed")
    judged = run.judged()
    for field in ("outcome", "reason", "message"):
        assert judged[field] == run.status[field]

    # An ended run stays ended.
    before = run.trials
    assert run.finish()[0] == 0
    assert run.trials == before


def test_an_engine_that_does_not_start_ends_the_run_with_its_words(tmp_path: Path) -> None:
    run = Run(tmp_path, sim("--no-such-flag"))
    code, said = run.finish()
    assert code == 0, said
    (trial,) = run.trials
    assert trial["status"]["failed"].startswith("Exited at start-up: the server exited with 2")
    assert "! Exited at start-up" in said
    assert "unrecognized arguments: --no-such-flag" in said
    assert run.status["outcome"] in ("Inconclusive", "NotPromoted")
    assert run.processes() == []


@pytest.mark.parametrize(
    ("refused", "changes", "options"),
    [
        ("parallelism: with --local one arm", {"experiment": {"parallelism": 2}}, []),
        (
            "names ConfigMap chat-prompts",
            {"load": {"points": [4], "prompts": {"configMap": "chat-prompts"}}},
            [],
        ),
        ("names ConfigMap (none)", {}, ["--prompts", "."]),
        (
            "--trace says where its arrivals are",
            {"load": {"points": [4], "trace": {"configMap": "recorded"}}},
            [],
        ),
        (
            "set SPECSCHEDULE_API_KEY instead",
            {"load": {"points": [4], "apiKeySecretRef": {"name": "key"}}},
            [],
        ),
        ("spec.slo", {"slo": {}}, []),
    ],
)
def test_what_cannot_be_done_here_is_said_in_one_line(
    tmp_path: Path, refused: str, changes: dict[str, Any], options: list[str]
) -> None:
    words = ["-f", str(manifest(tmp_path, **changes)), "--local", "--run", str(tmp_path / "run")]
    result = CliRunner().invoke(command, [*words, *options, "--", *sim()])
    assert result.exit_code == 2
    assert refused in result.output
    assert not (tmp_path / "run").exists()


def test_a_command_that_starts_no_vllm_is_refused(tmp_path: Path) -> None:
    words = ["-f", str(manifest(tmp_path)), "--local", "--run", str(tmp_path / "run"), "--"]
    result = CliRunner().invoke(command, [*words, "sleep", "300"])
    assert result.exit_code == 2
    assert "sleep 300: NoVllmContainer" in result.output


WINS: dict[str, Any] = {
    "candidates": [{"name": "card", "schedule": [[1, 16, 5]]}],
    "load": {**SPEC["load"], "outputTokens": 31},
    "bar": {"improve": [{"metric": "goodput", "at": [4], "by": "60%"}]},
}
SERVED = sim("--world", "steady", tokens=1)
"""Every step takes 50 ms and every draft is accepted: K=5 needs 6 steps where K=1 needs 16."""


def test_a_recorded_trace_is_replayed_in_every_launch(tmp_path: Path) -> None:
    lengths = [(5 + n, 3 + n % 4) for n in range(24)]
    trace = tmp_path / "recorded.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"timestamp": 60 * n, "input_length": i, "output_length": o}) + "\n"
            for n, (i, o) in enumerate(lengths)
        )
    )
    records = {"persistentVolumeClaim": "kept"}
    load = {**WINS["load"], "trace": {"configMap": "recorded"}, "records": records}
    bar = {"improve": [{"metric": "attainment", "by": "20%"}]}
    run = Run(tmp_path, SERVED, **{**WINS, "load": load, "bar": bar})
    code, said = run.finish("--trace", str(trace), "--minutes", "0.05")
    assert code == 3, said
    statuses = [trial["status"] for trial in run.trials]
    assert [status["check"] for status in statuses] == ["Agrees", "Agrees"]
    replays = [c for s in statuses for c in s["cells"] if "trace" in c["profile"]]
    assert [(c["cell"][:8], c["offered"], c["completed"]) for c in replays] == [
        ("r1-trace", 24, 24)
    ] * 2
    assert [c["windowSeconds"] for c in replays] == pytest.approx([24 * 0.06] * 2, abs=0.001)
    for path in sorted((run.folder / "records").glob("*.gz")):
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        counted = [x for x in lines if x["counted"] and x["cell"] == replays[0]["cell"]]
        counted.sort(key=lambda line: line["index"])
        assert [(x["promptTokens"], x["outputTokens"]) for x in counted] == lengths
    gates = {gate["gate"]: gate["answer"] for gate in run.status["gates"]}
    assert gates["trace"] == "Pass"
    assert [bar["reason"] for bar in run.judged()["verdicts"][0]["bars"] if bar.get("trace")] == [
        "TooFewPairs"
    ]


def test_a_whole_run_in_pieces_finds_the_better_schedule(tmp_path: Path) -> None:
    run = Run(tmp_path, SERVED, **WINS)
    code, said = run.finish("--minutes", "0.0001")
    assert code == 3
    assert "goes on with the run" in said
    assert run.trials == []
    # A piece that begins a launch ends it, and its pair.
    code, said = run.finish("--minutes", "0.1")
    assert code == 3
    assert {trial["spec"]["arm"] for trial in run.trials} == {"incumbent", "candidate-card"}
    assert all(trial["status"]["endedAt"] for trial in run.trials)
    code, said = run.finish()
    assert code == 0, said
    assert (run.status["outcome"], run.status["reason"]) == ("Proposed", "EveryPairMeetsBar"), said
    assert len(run.trials) == 7
    statuses = [trial["status"] for trial in run.trials]
    assert {status["check"] for status in statuses} == {"Agrees"}
    assert {status["receipt"]["engineVersion"] for status in statuses} == {"0.32.0"}
    assert {status["receipt"]["imageId"][:6] for status in statuses} == {"local:"}
    gates = {gate["gate"]: gate["answer"] for gate in run.status["gates"]}
    assert [status["receipt"]["instruments"] for status in statuses] == [
        ["fingerprint", "counters"]
    ] * 7
    assert gates["instruments"] == "Pass"
    printed = shlex.split(said.partition("Serve with:")[2].strip().splitlines()[0])
    assert printed[:-1] == SERVED[:-1]
    config = json.loads(SERVED[-1])
    assert json.loads(printed[-1]) == speculative_config(config, max_tokens=5, rows=[[1, 16, 5]])
    judged = run.judged()
    assert (judged["outcome"], judged["reason"]) == ("Proposed", "EveryPairMeetsBar")
    assert judged["verdicts"] == run.status["verdict"]
    assert run.processes() == []
