"""The command that serves, read and edited as a container's would be."""

import json
import sys
from pathlib import Path

import pytest

from specschedule.adapters.local import Command
from specschedule.core.target import ServerFacts, Unreadable
from tests.local.questions import SPECULATIVE, sim

SCHEDULED = {**SPECULATIVE, "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 1]]}


def test_it_is_read_as_a_server_with_its_speculative_config() -> None:
    server = Command(sim("--max-num-seqs", "8"), {}).server()
    assert isinstance(server, ServerFacts)
    assert (server.model, server.max_num_seqs) == ("demo/model", 8)
    assert server.speculative == SPECULATIVE


def test_an_edit_changes_the_one_argument() -> None:
    before = sim("--served-model-name", "chat")
    after = Command(before, {}).with_speculative(SCHEDULED)
    assert isinstance(after, list)
    assert [b for b, a in zip(before, after, strict=True) if b != a] == [json.dumps(SPECULATIVE)]
    assert json.loads(after[-1]) == SCHEDULED
    assert Command(before, {}).with_speculative(None) == before[:-2]


@pytest.mark.parametrize("word", ["$HOME", "$(HOME)", "$$", "a$$(b)", "$"])
def test_words_with_dollars_are_words(word: str) -> None:
    before = sim("--served-model-name", word)
    after = Command(before, {"HOME": "/elsewhere"}).with_speculative(SCHEDULED)
    assert isinstance(after, list)
    assert after[:-1] == before[:-1]


@pytest.mark.parametrize(
    ("reason", "argv"),
    [
        ("BadManifest", ["vllm-that-is-not-there", "serve", "m"]),
        ("UnsupportedShell", ["sh", "-c", "vllm serve m"]),
        ("NoVllmContainer", ["sleep", "300"]),
        ("UnsupportedArgumentForm", sim("--config", "/nowhere.yaml")),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(reason: str, argv: list[str]) -> None:
    server = Command(argv, {}).server()
    assert isinstance(server, Unreadable)
    assert server.reason == reason


def test_a_config_file_is_read_and_counts_as_arguments(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("max-num-seqs: 4\n")
    command = Command(sim("--config", str(config)), {})
    server = command.server()
    assert isinstance(server, ServerFacts)
    assert server.max_num_seqs == 4
    before = command.target().template_hash
    config.write_text("max-num-seqs: 5\n")
    assert command.target().template_hash != before


@pytest.mark.parametrize(
    ("same", "variables"),
    [
        (False, {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        (False, {"LD_PRELOAD": "other.so"}),
        (True, {"SSH_TTY": "/dev/pts/1"}),
        (True, {"HF_TOKEN": "secret"}),
    ],
)
def test_the_run_is_bound_to_variables_that_decide_how_an_engine_runs(
    same: bool, variables: dict[str, str]
) -> None:
    plain = Command(sim(), {"HOME": "/root"}).target().template_hash
    assert (Command(sim(), variables).target().template_hash == plain) == same


def test_the_schedule_is_no_part_of_what_the_run_is_bound_to() -> None:
    before = Command(sim(), {})
    after = before.with_speculative(SCHEDULED)
    assert isinstance(after, list)
    assert Command(after, {}).target().template_hash == before.target().template_hash


def test_another_installation_has_another_name(tmp_path: Path) -> None:
    program = tmp_path / "bin/vllm"
    record = tmp_path / "lib/python3.11/site-packages/vllm-0.32.0.dist-info/RECORD"
    for file in (program, record):
        file.parent.mkdir(parents=True)
        file.write_text("one")
    program.chmod(0o755)
    command = Command([str(program), "serve", "m"], {})
    before = command.installed()
    assert command.installed() == before
    record.write_text("another")
    upgraded = command.installed()
    program.write_text("#!/bin/sh")
    assert len({before, upgraded, command.installed()}) == 3


@pytest.mark.parametrize(
    ("text", "block"), [('{"block_size": 7}', 7), ("{}", None), ("no JSON", None), (None, None)]
)
def test_the_drafters_own_files_tell_its_block_size(
    tmp_path: Path, text: str | None, block: int | None
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    config = {"method": "dspark", "model": str(tmp_path), "num_speculative_tokens": 9}
    command = Command(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m",
         "--speculative-config", json.dumps(config)],
        {},
    )  # fmt: skip
    assert command.target().drafter_block == block
