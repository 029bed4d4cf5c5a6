"""``specschedule facts``: what lies in the folder afterwards, and what is said."""

import json

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main

from .manifests import specschedule

CELL = {
    "cell": "hold1", "profile": {"kind": "hold", "concurrency": 1}, "windowSeconds": 30.0,
    "offered": 20, "completed": 20, "good": 20,
}  # fmt: skip


RECEIPT = {
    "engineVersion": "0.32.0", "gpu": "H100", "imageId": "sha256:a", "modelRunner": "V2",
    "graphMode": "FULL", "attentionBackend": "FLASH_ATTN", "asyncScheduling": True,
}  # fmt: skip


def trial(arm, launch, *, run="7f3a", void=None, **receipt):
    status = {"startedAt": "2026-11-29T10:00:00Z", "endedAt": "2026-11-29T10:05:00Z"}
    status |= {"receipt": RECEIPT | receipt, "cells": [CELL]}
    if void is not None:
        status["void"] = void
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecTrial",
        "metadata": {"name": f"chat-{arm}-{launch}"},
        "spec": {"runId": run, "arm": arm, "launch": launch, "round": 1},
        "status": status,
    }


@pytest.fixture
def ask(tmp_path):
    schedule = specschedule(load={"points": [1]})
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schedule))

    def run(trials, *more):
        listed = yaml.safe_dump({"kind": "List", "items": trials})
        arguments = ["facts", "-f", str(tmp_path / "s.yaml"), "--trials", "-", *more]
        return CliRunner().invoke(main, arguments, input=listed)

    return run


def test_each_launch_becomes_a_page_of_facts_and_one_json(ask, tmp_path):
    out = tmp_path / "receipts"
    found = ask([trial("none", 2), trial("incumbent", 1)], "--out", str(out), "-o", "json")
    assert found.exit_code == 0, found.output
    names = sorted(file.name for file in out.iterdir())
    assert names == [
        "facts-001-incumbent.txt",
        "facts-002-none.txt",
        "launch-001-incumbent.json",
        "launch-002-none.json",
    ]
    assert sorted(json.loads(found.output)["files"]) == [str(out / name) for name in names]
    facts = dict(line.split(maxsplit=1) for line in (out / names[0]).read_text().splitlines())
    assert facts["arm"] == "incumbent"
    assert facts["engineVersion"] == "0.32.0"
    assert facts["cells"] == "1 of 1 count"
    whole = json.loads((out / names[3]).read_text())
    assert whole["receipt"]["gpu"] == "H100"
    assert whole["cells"][0]["good"] == 20


def test_what_differs_is_said_with_what_forbids_it(ask):
    said = ask([trial("incumbent", 1), trial("candidate-card", 2, gpu="A100", kvCacheTokens=5)])
    assert '"H100" (incumbent); "A100" (candidate-card): forbidden' in said.output
    assert "kvCacheTokens" not in said.output, "one launch alone tells it"
    assert "no fact differs" in ask([trial("incumbent", 1), trial("none", 2)]).output


def test_what_servers_had_no_room_for_is_said_and_written(ask, tmp_path):
    trials = [trial("incumbent", 1), trial("candidate-card", 2)]
    left_out = {"category": "code", "leftOut": 3, "of": 64, "longest": 9000}
    for each in trials:
        each["status"]["fit"] = {"maxModelLen": 8192, "prompts": [left_out], "windows": []}
    said = ask(trials, "--out", str(tmp_path / "r"))
    assert "3 of 64 prompts of category code (requests of up to 9000 tokens)" in said.output
    assert "(incumbent launch 1, candidate-card launch 2)" in said.output
    (row,) = json.loads(ask(trials, "-o", "json").output)["room"]
    assert row["launches"] == ["incumbent launch 1", "candidate-card launch 2"]
    facts = (tmp_path / "r" / "facts-001-incumbent.txt").read_text()
    assert '"maxModelLen": 8192' in facts


def test_a_void_launch_is_written_but_not_compared(ask, tmp_path):
    trials = [trial("incumbent", 1), trial("none", 2, void="Preempted: by others", gpu="A100")]
    trials.append(trial("candidate-card", 3))
    said = ask(trials, "--out", str(tmp_path / "r"))
    assert "not compared: none launch 2: Preempted: by others" in said.output
    assert "no fact differs" in said.output
    assert "Preempted" in (tmp_path / "r" / "facts-002-none.txt").read_text()


UNTOLD = {
    # Claim: launches; then what is not read, and what the page says.
    "no launch tells anything": (
        [trial(arm, n, **dict.fromkeys(RECEIPT)) for n, arm in enumerate(("incumbent", "none"), 1)],
        {"imageId", "engineVersion", "gpu", "modelRunner", "attentionBackend", "asyncScheduling",
         "graphMode"},
        "gpu: NotRead from incumbent, none, so whether it differs is not known",
    ),
    "one launch does not tell its GPU": (
        [trial("incumbent", 1), trial("candidate-card", 2, gpu=None)],
        {"gpu"},
        "gpu: NotRead from candidate-card",
    ),
    "none need not tell what only drafting launches share": (
        [trial("incumbent", 1), trial("none", 2, modelRunner=None, graphMode=None)],
        set(),
        "no fact differs",
    ),
    "one launch alone": ([trial("incumbent", 1)], set(), "nothing compared: 1 of the launches"),
    "no launch that counts": (
        [trial("incumbent", 1, void="Preempted: x")], set(), "nothing compared: 0 of the launches",
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", UNTOLD)
def test_what_no_launch_tells_is_not_said_to_be_the_same(ask, claim):
    launches, lacking, said = UNTOLD[claim]
    page = ask(launches)
    assert said in page.output, page.output
    assert ("no fact differs" in page.output) == (said == "no fact differs")
    answer = json.loads(ask(launches, "-o", "json").output)
    assert {each["fact"] for each in answer["notRead"]} == lacking
    assert {each["reason"] for each in answer["notRead"]} <= {"NotRead"}


def test_bad_input_gets_one_clear_line(ask, tmp_path):
    (tmp_path / "file").write_text("")
    for trials, more, words in (
        ([], [], "holds no SpecTrial"),
        ([trial("none", 1), trial("none", 2, run="8888")], [], "choose one with --run"),
        ([trial("none", 1), trial("none", 1)], [], "is there twice"),
        ([trial("none", 1)], ["--out", str(tmp_path / "file")], "--out"),
    ):
        found = ask(trials, *more)
        assert found.exit_code == 2
        assert words in found.output
        assert len(found.output.strip().splitlines()) == 1


NO_NAMES = ["none\x00", "../none", "a/b", "", "\ud800"]


@pytest.mark.parametrize("arm", NO_NAMES, ids=ascii)
def test_an_arm_whose_name_no_file_can_have_is_refused(tmp_path, arm):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(specschedule(load={"points": [1]})))
    listed = json.dumps({"kind": "List", "items": [trial(arm, 1)]})
    arguments = ["facts", "-f", str(tmp_path / "s.yaml"), "--trials", "-"]
    found = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "r")], input=listed)
    assert found.exit_code == 2, found.exception
    assert len(found.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_facts_that_no_encoding_can_write_are_written_as_json_says_them(tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(specschedule(load={"points": [1]})))
    listed = json.dumps({"kind": "List", "items": [trial("none", 1, void="Preempted: \ud800")]})
    arguments = ["facts", "-f", str(tmp_path / "s.yaml"), "--trials", "-"]
    found = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path)], input=listed)
    assert found.exit_code == 0, found.exception
    assert "Preempted: \\ud800" in found.output
    assert "Preempted: \\ud800" in (tmp_path / "facts-001-none.txt").read_text()


def test_parts_of_a_trial_that_are_no_objects_are_no_fault_of_the_command(ask):
    first, second = trial("incumbent", 1), trial("none", 2)
    first["spec"]["visit"] = ["screen"]
    second["metadata"] = ["x"]
    assert "2 launches compared" in ask([first, second]).output
    second["spec"]["launch"] = "two"
    found = ask([first, second])
    assert found.exit_code == 2
    assert "none.launch" in found.stderr


def test_arms_that_the_gates_let_differ_may_differ_here_too(ask):
    launches = [
        trial("incumbent", 1, modelRunner="V1", graphMode="FULL_AND_PIECEWISE"),
        trial("adaptive", 2, modelRunner="V2", graphMode="FULL_AND_PIECEWISE"),
    ]
    found = ask(launches, "-o", "json")
    assert found.exit_code == 0, found.output
    (only,) = json.loads(found.output)["differences"]
    assert only["fact"] == "modelRunner"
    assert "forbidden" not in only
