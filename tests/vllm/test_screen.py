"""A screen of the real engine that is killed under way: only the open window is lost."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from specschedule.core.context_axis import every_k
from specschedule.engine import settings

from ..instrumented import serving

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MOST, SEQUENCES = 1, 16
QUESTION = {
    "kind": "SpecSchedule",
    "spec": {
        "slo": {"ttft": "60s", "tpot": "10s"},
        "load": {
            "points": [1, 3],
            "promptTokens": 16,
            "outputTokens": 8,
            # Lags are tested where they are meant; a busy machine must not void these windows.
            "maxSendLag": "5s",
        },
        "search": {"maxTokens": MOST},
    },
}
ARGUMENTS = ["--scheduler-cls=specschedule.engine.probe.EitherProbeScheduler"]
VARIABLES = {settings.SECRET: "only-this-launch"}


def kept(cells: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cells.read_text().splitlines()] if cells.exists() else []


def test_an_engine_killed_under_way_costs_the_open_window_and_no_other(
    engine: dict[str, Any], tmp_path: Path
) -> None:
    manifest, cells = tmp_path / "chat.yaml", tmp_path / "cells.jsonl"
    manifest.write_text(yaml.safe_dump(QUESTION))
    rows = every_k(MOST, SEQUENCES)
    with serving(engine, tmp_path / "first", ARGUMENTS, VARIABLES, rows=rows) as server:
        words = [sys.executable, "-m", "specschedule.cli.main", "screen", "--url", server.url]
        words += ["-f", str(manifest), "--cells", str(cells), "--max-num-seqs", str(SEQUENCES)]
        words += ["--graph-sizes", "", "--page", server.page(settings.SCHEDULER_PORT)]
        command = subprocess.Popen(
            words, env={**os.environ, **VARIABLES}, stderr=subprocess.PIPE, text=True
        )
        give_up = time.monotonic() + 120
        while len(kept(cells)) < 2:
            assert command.poll() is None, "the screen went on until the engine died"
            assert time.monotonic() < give_up, "no cells"
            time.sleep(0.05)
        server.kill()
    before = [cell for cell in kept(cells) if "void" not in cell]
    assert command.poll() is None, "it waits"
    with serving(engine, tmp_path / "second", ARGUMENTS, VARIABLES, rows=rows, again=server):
        _, told = command.communicate(timeout=240)
    assert command.returncode == 0, told
    assert "waiting for the server; only the open window is lost" in told
    found = kept(cells)
    counted = [cell for cell in found if "void" not in cell]
    assert counted[: len(before)] == before
    assert len(found) - len(counted) <= 1
    # Both boots measured, and what they measured is one screen.
    assert {cell["visit"] for cell in counted} == {1, 2}
    assert {cell["tokens"] for cell in counted} == {*range(MOST + 1)}
    assert {cell["profile"]["concurrency"] for cell in counted} == {1, 3}
