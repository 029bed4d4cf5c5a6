"""Runs of AIPerf and vllm bench serve as cells.

The recorded files are runs of both tools against the simulated engine (world demo, K=3, four in
flight, 36 requests of 32 tokens), cut down to what is read.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from specschedule.core.visit import Visit
from specschedule.load.readers import as_cell, read_run

RECORDED = Path(__file__).parent / "recorded"
AIPERF = RECORDED / "aiperf-0.13.0.jsonl"
VLLM = RECORDED / "vllm-bench-serve-0.32.0.json"


def visit(profile: dict[str, Any], **window: Any) -> Visit:
    return Visit.model_validate(
        {
            "run": "7f3a",
            "arm": "static-3",
            "launch": 4,
            "round": 2,
            "url": "file",
            "windows": [{"cell": "r2-hold4", "profile": profile, "tokens": 3} | window],
            "slo": {"ttft": "500ms", "tpot": "40ms"},
        }
    )


HOLD = visit({"kind": "hold", "concurrency": 4})


@pytest.mark.parametrize("path", [AIPERF, VLLM], ids=["aiperf", "vllm bench serve"])
def test_a_recorded_run_becomes_a_cell_without_ramp_and_drain(path: Path) -> None:
    run = read_run(path)
    assert len(run.records) == 36
    cell = as_cell(HOLD, HOLD.windows[0], run)
    assert (cell.arm, cell.launch, cell.round, cell.tokens) == ("static-3", 4, 2, 3)
    assert cell.void is None
    # Four ended before the window opened, the last to be sent ended after it closed.
    assert 26 <= cell.offered <= 31
    assert cell.good == cell.completed == cell.offered
    assert cell.output_tokens == pytest.approx(32 * cell.offered, rel=0.1)
    assert cell.notes == ["the server does not say how many tokens each chunk holds; spread evenly"]


def test_latencies_are_the_tools_own() -> None:
    ours = {r.request.index: r for r in read_run(AIPERF).records}
    for index, line in enumerate(AIPERF.read_text().splitlines()):
        metrics = json.loads(line)["metrics"]
        record = ours[index]
        assert record.ttft == pytest.approx(metrics["time_to_first_token"]["value"] / 1e3)
        assert record.e2e == pytest.approx(metrics["request_latency"]["value"] / 1e3)
        assert record.tpot == pytest.approx(metrics["inter_token_latency"]["value"] / 1e3, rel=1e-4)
        assert record.tokens == 32
    document = json.loads(VLLM.read_text())
    run = read_run(VLLM)
    mean = sum(r.tpot or 0 for r in run.records) / 36
    assert mean * 1e3 == pytest.approx(document["mean_tpot_ms"], rel=1e-3)
    assert sum(r.ttft or 0 for r in run.records) / 36 * 1e3 == pytest.approx(
        document["mean_ttft_ms"], rel=1e-3
    )


def test_failures_and_cancellations_count(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in AIPERF.read_text().splitlines()]
    lines[20] |= {"metrics": {}, "error": {"code": 500, "type": "X", "message": "engine died"}}
    lines[21]["metadata"]["was_cancelled"] = True
    lines[22]["metadata"]["benchmark_phase"] = "warmup"
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    run = read_run(path)
    assert len(run.records) == 35
    assert [r.error for r in run.records if r.error] == ["engine died", "cancelled"]
    assert as_cell(HOLD, HOLD.windows[0], run).failed == 2

    document = json.loads(VLLM.read_text())
    document["errors"][15], document["itls"][15], document["ttfts"][15] = "refused", [], 0.0
    document["ttfts"][16], document["itls"][16] = 0.0, []
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    failed = [record.error for record in read_run(path).records if record.error]
    assert failed == ["refused", "no token came"]


def test_the_counters_that_vllm_bench_serve_keeps_are_kept(tmp_path: Path) -> None:
    document = json.loads(VLLM.read_text()) | {
        "spec_decode_num_drafts": 400,
        "spec_decode_draft_tokens": 1200,
        "spec_decode_accepted_tokens": 700,
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    cell = as_cell(HOLD, HOLD.windows[0], read_run(path))
    assert (cell.drafts, cell.draft_tokens, cell.accepted_tokens) == (400, 1200, 700)


def test_an_open_run_counts_every_request() -> None:
    made = visit({"kind": "open", "requestsPerSecond": 8})
    cell = as_cell(made, made.windows[0], read_run(VLLM))
    assert cell.offered == 36


def test_a_run_that_is_too_short_is_void_or_refused() -> None:
    made = visit({"kind": "hold", "concurrency": 4}, requests=100)
    cell = as_cell(made, made.windows[0], read_run(VLLM))
    assert cell.void is not None
    assert "100 are needed" in cell.void
    made = visit({"kind": "hold", "concurrency": 40})
    with pytest.raises(ValueError, match="too few"):
        as_cell(made, made.windows[0], read_run(VLLM))
    made = visit({"kind": "burst", "floor": 1, "peak": 5})
    with pytest.raises(ValueError, match="hold or open"):
        as_cell(made, made.windows[0], read_run(VLLM))


@pytest.mark.parametrize(
    ("claim", "text", "words"),
    [
        ("no run", "hello", "not understood"),
        ("another JSON", '{"a": 1}', "AIPerf's profile_export.jsonl"),
        ("without details", '{"ttfts": [0.1], "errors": [""]}', "--save-detailed"),
        ("lists of different length", '{"ttfts": [0.1], "itls": [], "errors": []}', "output_lens"),
        ("empty", "", "profile_export.jsonl"),
    ],
)
def test_anything_else_is_refused_with_what_would_do(
    claim: str, text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_run(path)
