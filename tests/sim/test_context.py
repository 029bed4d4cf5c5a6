"""The context-axis scheduler of the simulated engine: K by the table of a file."""

import json
from pathlib import Path

import pytest

from specschedule.sim.arguments import Refused
from specschedule.sim.context import CLASSES, followed
from specschedule.sim.launch import Launch, read
from specschedule.sim.worlds import WORLDS

EVERY_K = [[1, 1, 4], [2, 2, 3], [3, 3, 2], [4, 4, 1], [5, 16, 0]]
ROWS = [[1, 4, 1, 128, 1], [1, 4, 129, 8192, 4], [5, 16, 1, 128, 0], [5, 16, 129, 8192, 2]]
LIMITS = {"max_tokens": 4, "max_num_seqs": 16}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(ROWS))
    return {"SPECSCHEDULE_TABLE": str(path)}


def launched(environment: dict[str, str], rows: list[list[int]] = EVERY_K) -> Launch:
    config = {
        "method": "eagle3",
        "model": "d",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": rows,
    }
    words = ["m", "--scheduler-cls", CLASSES[-1], "--speculative-config", json.dumps(config)]
    return read([*words, "--max-num-seqs", "16"], environment, WORLDS["demo"])


def test_the_engine_looks_k_up_by_batch_and_context(table: dict[str, str]) -> None:
    launch = launched(table)
    assert launch.late_refusal is None
    assert launch.rows == tuple(map(tuple, EVERY_K)), "as it was started"
    chosen = launch.settings.tokens_for
    assert chosen is not None
    at = [(1, 100), (1, 129), (4, 5000), (5, 128), (16, 8000)]
    assert [chosen(batch, context) for batch, context in at] == [1, 4, 4, 0, 2]


def test_another_scheduler_leaves_the_rows_in_force(table: dict[str, str]) -> None:
    assert followed(None, EVERY_K, table, **LIMITS) is None
    assert followed("theirs.S", EVERY_K, table, **LIMITS) is None


def test_it_ends_the_boot_where_it_cannot_follow_the_table(
    table: dict[str, str], tmp_path: Path
) -> None:
    assert "SPECSCHEDULE_TABLE is missing" in str(launched({}).late_refusal)
    few = launched(table, rows=[[1, 8, 4], [9, 16, 0]])
    assert "K=1, 2 is in the table and not among" in str(few.late_refusal)
    (tmp_path / "table.json").write_text("[[1, 16]]")
    assert "has 2 numbers" in str(launched(table).late_refusal)
    with pytest.raises(Refused, match="no schedule in effect"):
        followed(CLASSES[0], None, table, **LIMITS)
