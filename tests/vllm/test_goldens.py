"""The goldens are what the real engine says today."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specschedule.vllm_facts.receipt import read_receipt

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests/goldens/vllm-0.32.0"


@pytest.fixture(scope="module")
def live(engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("goldens")
    parts = [f"--part={name}" for name in ("arguments", "refusals", "none", "schedule")]
    subprocess.run(
        [sys.executable, "hack/vllm", "goldens", "--out", out, *parts], cwd=ROOT, check=True
    )
    return out


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "arguments.json",
        "refusals.json",
        "metrics-none.json",
        "metrics-schedule.json",
        "server-info.json",
        "version.json",
        "error-model.txt",
        "error-length.txt",
    ],
)
def test_the_live_engine_still_says(name: str, live: Path) -> None:
    assert (live / name).read_text() == (GOLDENS / name).read_text()


@pytest.mark.parametrize("name", ["none", "schedule"])
def test_the_live_start_up_log_still_tells_the_same(name: str, live: Path) -> None:
    of_live, of_golden = (
        read_receipt(log_text=(folder / f"startup-{name}.log").read_text())
        for folder in (live, GOLDENS)
    )
    assert of_live == of_golden
    assert of_live.kv_cache_tokens is not None
    assert of_live.model_runner == "V1"


def test_the_engine_runs_the_schedule_it_was_given(live: Path) -> None:
    info = json.loads((live / "server-info.json").read_text())
    rows = info["speculative_config"]["num_speculative_tokens_per_batch_size"]
    assert rows == [[1, 2, 2], [3, 6, 1], [7, 16, 0]]


def test_draft_counters_exist_only_where_there_is_a_drafter(live: Path) -> None:
    drafting = {"vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total"}
    assert drafting <= json.loads((live / "metrics-schedule.json").read_text()).keys()
    assert not drafting & json.loads((live / "metrics-none.json").read_text()).keys()


def test_a_chunk_of_a_drafting_stream_carries_several_tokens(live: Path) -> None:
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in (live / "completion-stream.txt").read_text().splitlines()
        if line.startswith("data: {")
    ]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
    steps = [after - before for before, after in pairwise(counts)]
    assert counts[-1] == 12
    assert max(steps) in (2, 3), "two drafted tokens add one to three tokens at a time"
