"""What a launch says about itself makes a complete receipt, read like a real engine's."""

from pathlib import Path
from typing import Any

import pytest

from specschedule.core.evidence import Receipt
from specschedule.engine import deliver
from specschedule.vllm_facts.receipt import read_receipt

RUNNER_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def receipt_of(process: Any) -> Receipt:
    info = process.get("/server_info?config_format=json")
    return read_receipt(
        version=process.get("/version")[1],
        server_info=info[1] if info[0] == 200 else None,
        metrics_text=process.get("/metrics")[1],
        log_text=process.text,
    )


@pytest.mark.parametrize("development", ["0", "1"])
def test_an_arm_with_a_schedule(start, dynamic, development: str) -> None:
    with start(*dynamic, VLLM_SERVER_DEV_MODE=development) as process:
        receipt = receipt_of(process)
    assert receipt.engine_version == "0.32.0"
    assert receipt.model == "sim/model"
    assert receipt.drafter == "draft"
    assert receipt.num_speculative_tokens == 5
    # Only the development endpoint tells the schedule in effect; else the counters must prove it.
    assert receipt.schedule == ([[1, 2, 5], [3, 16, 1]] if development == "1" else None)
    assert receipt.model_runner == "V2"
    assert receipt.graph_mode == "FULL_AND_PIECEWISE"
    assert receipt.attention_backend == "FLASH_ATTN"
    assert receipt.kv_cache_tokens == 400_000
    assert receipt.caches_warm is True
    assert receipt.log_level_hides_warnings is False
    # The largest row needs (5 + 1) tokens for each of 16 requests.
    assert receipt.captured_sizes is not None
    assert max(receipt.captured_sizes) >= 6 * 16


def test_arms_share_their_compile_cache_and_no_speculation_has_its_own(
    start, dynamic, static
) -> None:
    receipts = []
    for arm in (dynamic, static, []):
        with start(*arm) as process:
            receipts.append(receipt_of(process))
    assert receipts[0].compile_hash == receipts[1].compile_hash != receipts[2].compile_hash
    assert receipts[2].schedule is receipts[2].num_speculative_tokens is None


def test_a_schedule_on_runner_v1_is_piecewise(start, dynamic) -> None:
    with start(*dynamic, **RUNNER_V1) as process:
        receipt = receipt_of(process)
    assert receipt.model_runner == "V1"
    assert receipt.graph_mode == "PIECEWISE"
    assert any("Overriding cudagraph_mode" in note for note in receipt.notes or [])


def test_a_worker_downgrade_counts_before_what_was_configured(start, dynamic) -> None:
    with start(*dynamic, "--fault", "worker-downgrade", VLLM_SERVER_DEV_MODE="1") as process:
        receipt = receipt_of(process)
    assert receipt.graph_mode == "PIECEWISE"


def test_data_parallelism_leaves_no_schedule_and_a_note(start, dynamic) -> None:
    with start(*dynamic, "-dp", "2", VLLM_SERVER_DEV_MODE="1") as process:
        receipt = receipt_of(process)
    assert receipt.schedule is None
    assert any("data parallelism" in note for note in receipt.notes or [])


def test_a_hidden_warning_is_told_from_a_clean_log(start, dynamic) -> None:
    with start(*dynamic, "--fault", "hidden-warning") as process:
        receipt = receipt_of(process)
    assert receipt.log_level_hides_warnings is not False


EXTENSION = "--worker-extension-cls=specschedule.engine.fingerprint.Fingerprint"


@pytest.fixture
def delivered(tmp_path: Path) -> dict[str, str]:
    deliver.deliver(tmp_path)
    return {"PYTHONPATH": str(tmp_path), "SPECSCHEDULE_FINGERPRINT_LOG": "1"}


def test_a_launch_that_carries_the_fingerprint_tells_the_schedule_in_effect(
    start, dynamic, delivered
) -> None:
    with start(*dynamic, EXTENSION, **delivered) as process:
        receipt = receipt_of(process)
    assert receipt.instruments == ["fingerprint"]
    assert receipt.schedule == [[1, 2, 5], [3, 16, 1]]
    assert receipt.graph_mode == "FULL_AND_PIECEWISE"
    assert not [note for note in receipt.notes or [] if "Disagree" in note]


def test_the_fingerprint_sees_what_a_hidden_log_does_not_tell(start, dynamic, delivered) -> None:
    faults = ("--fault", "hidden-warning", "--fault", "silent-disable")
    with start(*dynamic, EXTENSION, *faults, **delivered) as process:
        receipt = receipt_of(process)
    assert receipt.schedule == []
    assert receipt.model_runner == "V2"


def test_a_fingerprint_that_was_not_delivered_stops_the_start_as_in_vllm(start, dynamic) -> None:
    with start(*dynamic, EXTENSION) as process:
        assert process.wait() == 1
    assert "No module named 'specschedule'" in process.text


def test_a_fingerprint_that_is_not_turned_on_says_nothing(start, dynamic, delivered) -> None:
    with start(*dynamic, EXTENSION, PYTHONPATH=delivered["PYTHONPATH"]) as process:
        assert receipt_of(process).instruments is None


def test_a_json_log_gives_the_same_receipt(start, dynamic) -> None:
    with start(*dynamic, "--fault", "json-logs", **RUNNER_V1) as process:
        receipt = receipt_of(process)
    assert receipt.graph_mode == "PIECEWISE"
    assert receipt.model == "sim/model"
