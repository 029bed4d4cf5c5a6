"""The run folder: one run, whole files, and records that stay."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from specschedule.adapters.local import Command, FolderRefused, Ledger, LocalWorld, OutOfTime
from specschedule.adapters.prometheus import PrometheusMetrics
from specschedule.core.observed import (
    CreateTrial,
    SetFinalizer,
    TrialSpec,
    TrialStatus,
)
from specschedule.core.visit import Visit
from specschedule.ports import Conflict, Refused
from tests.local.questions import question, sim, spec

NOW = 1_800_000_000.0
COMMAND = ["vllm", "serve", "m"]


def opened(folder: Path, **changes: Any) -> Ledger:
    return Ledger(folder, spec(**changes), COMMAND, now=NOW)


def trial(arm: str = "incumbent", launch: int = 1, round: int = 1, attempt: int = 1) -> TrialSpec:
    visit = Visit(
        run="7f3a", arm=arm, launch=launch, round=round, url="http://pending", windows=[],
        slo=spec().slo,
    )  # fmt: skip
    return TrialSpec(
        run_id="7f3a", arm=arm, launch=launch, round=round, position=1, attempt=attempt,
        visit=visit, template_hash="t", bar_digest="b",
    )  # fmt: skip


def test_what_is_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "run")) as ledger:
        uid = ledger.uid
        ledger.report({"stage": "Measuring", "outcome": None})
        ledger.create("one", trial())
        ledger.record("one", TrialStatus(started_at="2026-11-29T10:00:00Z", visits=1))
    with closing(opened(tmp_path / "run")) as ledger:
        assert ledger.uid == uid
        assert ledger.status == {"stage": "Measuring"}
        assert ledger.trials()["one"] == (
            trial(),
            TrialStatus(started_at="2026-11-29T10:00:00Z", visits=1),
        )


def test_the_question_is_kept_as_one_that_writes_no_target(tmp_path: Path) -> None:
    with closing(opened(tmp_path, mode="Auto")) as ledger:
        assert ledger.schedule().spec.mode == "Propose"
    # The mode is no part of the question: another one goes on with the run.
    opened(tmp_path, mode="Approve").close()


@pytest.mark.parametrize(
    ("what", "changes", "command"),
    [
        ("another spec", {"slo": {"ttft": "1s"}}, COMMAND),
        ("another command", {}, [*COMMAND, "--enforce-eager"]),
    ],
)
def test_a_folder_holds_one_run(
    tmp_path: Path, what: str, changes: dict[str, Any], command: list[str]
) -> None:
    opened(tmp_path).close()
    with pytest.raises(FolderRefused, match=f"holds a run of {what}"):
        Ledger(tmp_path, spec(**changes), command, now=NOW)
    opened(tmp_path).close()


def test_a_rejected_run_holds_no_evidence_and_makes_room(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        before = ledger.uid
        ledger.report({"outcome": "Rejected"})
    with closing(opened(tmp_path, slo={"ttft": "1s"})) as ledger:
        assert ledger.uid != before
        assert ledger.status == {}


def test_two_processes_never_work_in_one_folder(tmp_path: Path) -> None:
    with (
        closing(opened(tmp_path)),
        pytest.raises(FolderRefused, match="another process works in it"),
    ):
        opened(tmp_path)


def test_a_record_that_is_over_stays(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        ledger.create("one", trial())
        ended = TrialStatus(ended_at="2026-11-29T10:00:00Z")
        ledger.record("one", ended)
        ledger.record("one", ended)
        with pytest.raises(Conflict, match="is over"):
            ledger.record("one", TrialStatus(ended_at="2026-11-29T11:00:00Z"))
        with pytest.raises(Refused, match="another plan"):
            ledger.create("one", trial(launch=2))
        assert ledger.trials()["one"] == (trial(), ended)


def test_all_launches_are_exported_in_order_as_kubectl_lists_them(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        ledger.create("b", trial("none", launch=10))
        ledger.create("a", trial(launch=2))
        listed = yaml.safe_load(ledger.export().read_text())
    assert listed["kind"] == "List"
    assert [item["kind"] for item in listed["items"]] == ["SpecTrial"] * 2
    assert [item["spec"]["launch"] for item in listed["items"]] == [2, 10]


WRITES = """
import sys
from pathlib import Path
from specschedule.adapters.local.files import write
at = 0
while True:
    at += 1
    write(Path(sys.argv[1]), str(at) * 100_000)
"""


def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    chance = random.Random(1)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITES, str(path)]) as writer:
            while not path.exists():
                time.sleep(0.01)
            time.sleep(chance.uniform(0.01, 0.1))
            writer.send_signal(signal.SIGKILL)
        text = path.read_text()
        assert len(text) % 100_000 == 0
        assert text == text[: len(text) // 100_000] * 100_000
        os.unlink(path)


@pytest.mark.parametrize(
    ("claim", "planned", "begins"),
    [
        ("the first of a pair", trial("incumbent", 3, round=2), False),
        ("the second of a pair", trial("candidate-card", 2, round=1), True),
        ("a control after its pair", trial("none", 3, round=1), False),
        ("a pair tried again", trial("candidate-card", 3, round=1, attempt=2), False),
    ],
)
def test_after_the_time_given_only_a_pair_is_finished(
    tmp_path: Path, claim: str, planned: TrialSpec, begins: bool
) -> None:
    with closing(opened(tmp_path)) as ledger:
        ledger.create("one", trial("incumbent", 1, round=1))
        world = LocalWorld(
            ledger,
            Command(sim(), {}),
            prometheus=PrometheusMetrics(),
            until=NOW,
            clock=lambda: NOW + 1,
        )
        create = CreateTrial(name="two", spec=planned)
        if begins:
            world.perform(ledger.key, create)
        else:
            with pytest.raises(OutOfTime):
                world.perform(ledger.key, create)
        assert ("two" in ledger.trials()) == begins


def test_nothing_is_ever_written_to_a_target(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        world = LocalWorld(ledger, Command(sim(), {}), prometheus=PrometheusMetrics())
        with pytest.raises(Refused, match="no serving workload"):
            world.perform(ledger.key, SetFinalizer(present=True))


def test_the_folder_is_readable_as_the_objects_it_holds(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        ledger.create("one", trial())
    stored = json.loads((tmp_path / "schedule.json").read_text())
    assert (stored["kind"], stored["spec"]["slo"]) == ("SpecSchedule", question()["slo"])
    assert json.loads((tmp_path / "trials/one.json").read_text())["kind"] == "SpecTrial"
