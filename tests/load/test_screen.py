"""``specschedule screen`` against simulated servers, as processes: K switched in one boot."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from specschedule.core.context_axis import every_k
from specschedule.engine.settings import SCHEDULER_PORT as PORT
from specschedule.engine.settings import SECRET

from ..booted import free_port

QUESTION = {
    "kind": "SpecSchedule",
    "spec": {
        "slo": {"ttft": "5s", "tpot": "1s"},
        "load": {
            "points": [1, 4],
            "promptTokens": 16,
            "outputTokens": 16,
            # Lags are tested where they are meant; a busy machine must not void these windows.
            "maxSendLag": "5s",
        },
        "search": {"maxTokens": 2},
    },
}
SPECULATIVE = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 2}


class Bench:
    """A simulated server on a port that it keeps, and the command that screens it."""

    def __init__(self, folder: Path) -> None:
        self.port, self.page = free_port(), free_port()
        self.environment = {**os.environ, SECRET: "only-this-launch", PORT: str(self.page)}
        self.manifest, self.cells = folder / "chat.yaml", folder / "cells.jsonl"
        self.manifest.write_text(yaml.safe_dump(QUESTION))

    @contextmanager
    def serving(self, *more: str, rows: object = None) -> Iterator["subprocess.Popen[str]"]:
        config = (
            SPECULATIVE
            if rows is None
            else SPECULATIVE | {"num_speculative_tokens_per_batch_size": rows}
        )
        command = [sys.executable, "-m", "specschedule.cli.main", "sim", "--boot", "20ms"]
        command += ["--seed", "1", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--max-num-seqs", "8", "--speculative-config", json.dumps(config), *more]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=self.environment
        ) as process:
            assert process.stdout is not None
            assert any(line.startswith("listening on") for line in process.stdout)
            try:
                yield process
            finally:
                process.kill()

    def probe(self, *more: str) -> Any:
        scheduler = "specschedule.engine.probe.AsyncProbeScheduler"
        return self.serving("--scheduler-cls", scheduler, *more, rows=every_k(2, 8))

    def screen(self, *options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "specschedule.cli.main", "screen"]
        command += ["--url", f"http://127.0.0.1:{self.port}", "-f", str(self.manifest)]
        command += ["--cells", str(self.cells), "--max-num-seqs", "8", *options]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def kept(self) -> list[dict[str, Any]]:
        if not self.cells.exists():
            return []
        return [json.loads(line) for line in self.cells.read_text().splitlines()]

    def wait_for(self, cells: int) -> None:
        give_up = time.monotonic() + 60
        while len(self.kept()) < cells:
            assert time.monotonic() < give_up, "no cells"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def screened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, str]:
    """A whole screen of a probe server, with the scheduler's page in sight."""
    bench = Bench(tmp_path_factory.mktemp("whole"))
    with bench.probe():
        command = bench.screen()
        said, told = command.communicate(timeout=120)
        assert command.returncode == 0, told
    return bench, said


def test_one_boot_measures_every_k_as_the_engine_s_own_counters_say(
    screened: tuple[Bench, str],
) -> None:
    cells = screened[0].kept()
    assert {cell["tokens"] for cell in cells} == {0, 1, 2}
    assert {cell["profile"]["concurrency"] for cell in cells} >= {1, 4}
    for cell in cells:
        assert "void" not in cell, cell
        assert cell["arm"] == "probe"
        drafts, drafted = cell["drafts"], cell["draftTokens"]
        assert drafted == cell["tokens"] * drafts
        assert (drafts > 0) is (cell["tokens"] > 0)


def test_what_is_printed_is_what_is_kept(screened: tuple[Bench, str]) -> None:
    bench, said = screened
    assert [json.loads(line) for line in said.splitlines()] == bench.kept()


def test_a_finished_screen_asks_the_server_for_nothing_more(screened: tuple[Bench, str]) -> None:
    bench, _ = screened
    before = bench.kept()
    with bench.probe():
        command = bench.screen()
        command.communicate(timeout=60)
    assert command.returncode == 0
    assert bench.kept() == before


def test_the_proposal_reads_the_cells(screened: tuple[Bench, str]) -> None:
    bench, _ = screened
    command = [sys.executable, "-m", "specschedule.cli.main", "propose", "-o", "json"]
    command += ["-f", str(bench.manifest), "--cells", str(bench.cells), "--max-num-seqs", "8"]
    answer = json.loads(subprocess.check_output(command))
    assert [choice["at"] for choice in answer["choices"]] == [1, 4]
    left_out = [note for note in answer["notes"] if "left out" in note]
    assert answer["windows"] == len(bench.kept()) - len(left_out)


def lost_at_most_the_open_window(before: list[Any], cells: list[Any]) -> None:
    """Assert that cells keep those that counted before, and hold every K under its own name."""
    counted = [cell for cell in cells if "void" not in cell]
    assert counted[: len(before)] == before
    assert len(cells) - len(counted) <= 1
    assert {cell["tokens"] for cell in counted} == {0, 1, 2}
    assert len({cell["cell"] for cell in cells}) == len(cells)


def test_an_engine_killed_under_way_costs_the_open_window_and_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.probe() as engine:
        command = bench.screen()
        bench.wait_for(2)
        engine.send_signal(signal.SIGKILL)
        engine.wait()
    before = [cell for cell in bench.kept() if "void" not in cell]
    with bench.probe():
        _, told = command.communicate(timeout=120)
    assert command.returncode == 0, told
    assert "waiting for the server" in told
    lost_at_most_the_open_window(before, bench.kept())


@pytest.mark.parametrize("recovers", [True, False], ids=["recovers", "is-replaced"])
def test_an_engine_that_hangs_under_way_costs_the_open_window_and_no_other(
    tmp_path: Path, recovers: bool
) -> None:
    bench = Bench(tmp_path)
    with bench.probe() as engine:
        command = bench.screen("--request-timeout", "3s")
        bench.wait_for(2)
        engine.send_signal(signal.SIGSTOP)
        before = [cell for cell in bench.kept() if "void" not in cell]
        assert command.stderr is not None
        assert any("waiting for the server" in line for line in iter(command.stderr.readline, ""))
        if recovers:
            engine.send_signal(signal.SIGCONT)
            _, told = command.communicate(timeout=120)
    if not recovers:
        with bench.probe():
            _, told = command.communicate(timeout=120)
    assert command.returncode == 0, told
    lost_at_most_the_open_window(before, bench.kept())


def test_a_command_stopped_and_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.probe():
        command = bench.screen()
        bench.wait_for(2)
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=30)
        before = bench.kept()
        again = bench.screen()
        again.communicate(timeout=120)
    assert again.returncode == 0
    assert bench.kept()[: len(before)] == before
    settings = [(c["profile"]["concurrency"], c["tokens"]) for c in bench.kept()]
    assert {k for _, k in settings} == {0, 1, 2}


def test_a_server_that_does_not_follow_requests_is_told_apart_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    del bench.environment[PORT]
    with bench.serving():
        command = bench.screen()
        _, told = command.communicate(timeout=120)
    assert command.returncode == 1
    assert "NotSwitched" in told
    assert "the engine drafted 2.00" in told


@pytest.mark.parametrize(
    ("page", "finding"),
    [
        ("in sight", "K=0 was planned and 2 drafts were scheduled"),
        ("out of sight", "K=0 was asked for and the engine drafted 2.00 tokens at a time"),
    ],
)
def test_an_engine_that_does_not_do_as_planned_is_found_out_before_the_first_window(
    tmp_path: Path, page: str, finding: str
) -> None:
    bench = Bench(tmp_path)
    with bench.probe("--fault", "ignores-k"):
        if page == "out of sight":
            del bench.environment[PORT]
        command = bench.screen()
        _, told = command.communicate(timeout=120)
    assert command.returncode == 1
    assert f"NotSwitched: {finding}" in told
    assert bench.kept() == []


def test_where_the_page_is_out_of_sight_the_counters_tell_that_each_k_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.probe():
        del bench.environment[PORT]
        command = bench.screen()
        _, told = command.communicate(timeout=120)
    assert command.returncode == 0, told
    assert {cell["tokens"] for cell in bench.kept()} == {0, 1, 2}


def test_a_page_that_is_no_probe_s_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.serving():
        command = bench.screen("--page", f"http://127.0.0.1:{bench.port}")
        _, told = command.communicate(timeout=60)
    assert command.returncode == 1
    assert f"NotSwitched: http://127.0.0.1:{bench.port}/facts" in told


@pytest.mark.parametrize(
    ("options", "changed", "words"),
    [
        ((), {SECRET: ""}, "SPECSCHEDULE_PROBE_SECRET is not set"),
        (("--request-timeout", "0"), {}, "--request-timeout"),
        (("--none", "--tokens", "2"), {}, "--tokens"),
        (("--patience", "soon"), {}, "--patience"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, options: tuple[str, ...], changed: dict[str, str], words: str
) -> None:
    bench = Bench(tmp_path)
    bench.environment |= changed
    command = bench.screen(*options)
    _, told = command.communicate(timeout=30)
    assert command.returncode == 2
    assert words in told
    assert len(told.strip().splitlines()) == 1
