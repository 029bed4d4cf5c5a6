"""What the context-axis scheduler says that it follows, as a receipt takes it from the log."""

import json

import pytest

from specschedule.engine.settings import FINGERPRINT_LINE, TABLE_LINE
from specschedule.vllm_facts.receipt import read_receipt

EVERY_K = [[1, 1, 4], [2, 2, 3], [3, 3, 2], [4, 4, 1], [5, 16, 0]]
ROWS = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]
WORKER = FINGERPRINT_LINE + json.dumps({"schedule": EVERY_K, "numSpeculativeTokens": 4})


@pytest.mark.parametrize("prefix", ["", "(EngineCore pid=77) ", "(EngineCore_DP0 pid=77) "])
def test_its_table_is_in_effect_and_not_the_rows_of_the_boot(prefix: str) -> None:
    receipt = read_receipt(log_text=f"{WORKER}\n{prefix}{TABLE_LINE}{json.dumps(ROWS)}")
    assert receipt.schedule == ROWS
    assert receipt.scheduler == "context-axis"
    assert receipt.num_speculative_tokens == 4
    assert receipt.notes is None, "the two do not disagree: the rows only prepare the engine"


def test_without_its_line_the_rows_of_the_boot_are_all_that_is_known() -> None:
    receipt = read_receipt(log_text=WORKER)
    assert (receipt.schedule, receipt.scheduler) == (EVERY_K, None)


@pytest.mark.parametrize("line", ["[[1, 16, 1", "[[1.5, 2]]", "[7]", "{}"])
def test_a_line_that_cannot_be_read_tells_nothing(line: str) -> None:
    receipt = read_receipt(log_text=f"{WORKER}\n{TABLE_LINE}{line}")
    assert (receipt.schedule, receipt.scheduler) == (EVERY_K, None)
