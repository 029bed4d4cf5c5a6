"""The context-axis scheduler of the simulated engine: K by the table of a file or an argument."""

import json
from pathlib import Path

import pytest

from specschedule.core.schedule import additional_config
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


def launched(
    environment: dict[str, str], *more: str, rows: list[list[int]] | None = EVERY_K
) -> Launch:
    config = {"method": "eagle3", "model": "d", "num_speculative_tokens": 4}
    if rows is not None:
        config["num_speculative_tokens_per_batch_size"] = rows
    words = ["m", "--scheduler-cls", CLASSES[-1], "--speculative-config", json.dumps(config)]
    return read([*words, "--max-num-seqs", "16", *more], environment, WORLDS["demo"])


def looked_up(launch: Launch) -> list[int]:
    chosen = launch.settings.tokens_for
    assert chosen is not None
    at = [(1, 100), (1, 129), (4, 5000), (5, 128), (16, 8000)]
    return [chosen(batch, context) for batch, context in at]


def test_the_engine_looks_k_up_by_batch_and_context(table: dict[str, str]) -> None:
    launch = launched(table)
    assert launch.late_refusal is None
    assert launch.rows == tuple(map(tuple, EVERY_K)), "as it was started"
    assert looked_up(launch) == [1, 4, 4, 0, 2]


def argument(rows: list[list[int]]) -> str:
    return f"--additional-config={json.dumps(additional_config(rows))}"


def test_the_table_may_be_an_argument_and_a_file_comes_before_it(table: dict[str, str]) -> None:
    assert looked_up(launched({}, argument(ROWS))) == [1, 4, 4, 0, 2]
    assert looked_up(launched(table, argument([[1, 16, 3]]))) == [1, 4, 4, 0, 2]
    assert looked_up(launched({}, argument([[1, 16, 3]]))) == [3] * 5
    others = launched({}, "--additional-config", '{"theirs": 1}')
    assert looked_up(others) == looked_up(launched({})) == [4, 4, 1, 0, 0], "the engine's own rows"


def test_without_a_schedule_the_engines_own_scheduler_serves(table: dict[str, str]) -> None:
    launch = launched({}, rows=None)
    assert (launch.late_refusal, launch.followed, launch.settings.tokens_for) == (None, None, None)
    for asked in (launched(table, rows=None), launched({}, argument(ROWS), rows=None)):
        assert "no schedule in effect" in str(asked.late_refusal)


def test_another_scheduler_leaves_the_rows_in_force(table: dict[str, str]) -> None:
    assert followed(None, EVERY_K, table, **LIMITS) is None
    assert followed("theirs.S", EVERY_K, table, **LIMITS) is None


def test_it_ends_the_boot_where_it_cannot_follow_the_table(
    table: dict[str, str], tmp_path: Path
) -> None:
    gone = launched({"SPECSCHEDULE_TABLE": str(tmp_path / "gone.json")})
    assert "cannot be read as JSON" in str(gone.late_refusal)
    few = launched(table, rows=[[1, 8, 4], [9, 16, 0]])
    assert "K=1, 2 is in the table and not among" in str(few.late_refusal)
    (tmp_path / "table.json").write_text("[[1, 16]]")
    assert "has 2 numbers" in str(launched(table).late_refusal)
    (tmp_path / "table.json").write_text("null")
    assert "the table to follow" in str(launched(table).late_refusal)
    nothing = launched({}, "--additional-config", '{"specschedule": {}}')
    assert "the table to follow" in str(nothing.late_refusal)
    with pytest.raises(Refused, match="no schedule in effect"):
        followed(CLASSES[0], None, table, **LIMITS)
