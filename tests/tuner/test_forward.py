"""Steps timed by ``vllm bench forward`` beside few served windows.

The form is that of vLLM 0.33.0's ``vllm/benchmarks/forward/main.py``; no GPU is here to run it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main
from specschedule.core.cost import Setting
from specschedule.core.forward import Case, Unusable, beside
from specschedule.core.sweep import sweep
from specschedule.core.tuner import propose
from tests.tuner import published
from tests.tuner.published import EAGLE, PR_32374_MS

OVERHEAD_MS = 1.5
"""Of a served step beyond its forward pass."""
CONTEXT, OUTPUT = 512, 128
SERVED = [(1, 1), (1, 7), (1, 0), (16, 4), (32, 3), (64, 0), (64, 5)]


def timed(
    batch: int, k: int, ms: float, *, context: int = CONTEXT, **changed: Any
) -> dict[str, Any]:
    """A case as the file has it, with fields that nothing here reads."""
    request = {"query_len": k + 1, "kv_len": context + k + 1, "num_draft_tokens": k}
    latency = {"timer": "graph_events", "median": 1e3 * ms, "sample_spread_pct": 0.2}
    rank = {
        "num_tokens": batch * (k + 1),
        "kv_blocks": 900,
        "routing": "real",
        "timing_scope": "target_and_drafter",
        "graph_vs_eager": {"relative_rms": 0.0},
        "finite": True,
        "drafter": {"method": "eagle", "acceptance": "all", "num_draft_tokens": k},
        "latency_us": latency,
    }
    case = {
        "case": f"verify-{batch}-{k}",
        "requests": [{**request, "chunked": False} for _ in range(batch)],
        "median_us": 1e3 * ms,
        "ranks": [rank | changed.pop("rank", {})],
    }
    return case | changed


def cases(of: Sequence[Mapping[str, Any]]) -> list[Case]:
    return [Case.model_validate(each) for each in of]


ALL = [
    timed(batch, k, ms - OVERHEAD_MS)
    for batch, row in PR_32374_MS.items()
    for k, ms in row.items()
    if k
]
WINDOWS = [published.cell(b, k, PR_32374_MS[b][k] / 1e3, EAGLE) for b, k in SERVED]


def test_timed_steps_take_what_served_ones_take_beyond_their_forward_pass() -> None:
    found = beside(sweep(WINDOWS), cases(ALL), usual=CONTEXT)
    for step in found.timed:
        batch, k, context = step.setting
        assert context is None
        assert step.seconds == pytest.approx(PR_32374_MS[batch][k] / 1e3, rel=1e-3)
        assert (batch, k) not in SERVED, "a served step is known already"
    assert len(found.timed) + len([k for _, k in SERVED if k]) == len(ALL)
    assert "1.50 ms longer, as the 5 do that were served too" in found.notes[-1]


def test_few_windows_and_timed_steps_choose_as_the_whole_grid_of_windows() -> None:
    search = published.search((1, 16, 32, 64), max_tokens=7)
    whole = propose(search, published.from_steps(PR_32374_MS, EAGLE))
    usual = search.prompt_tokens + search.output_tokens // 2
    here = [
        timed(b, k, ms - OVERHEAD_MS, context=usual)
        for b, row in PR_32374_MS.items()
        for k, ms in row.items()
        if k
    ]
    few = propose(search, WINDOWS, forward=cases(here))
    assert [c.best for c in few.choices] == [c.best for c in whole.choices]
    assert any("timed by vllm bench forward" in note for note in few.notes)
    assert few.windows == len(WINDOWS), "timed steps are no windows"


MIXED = timed(2, 3, 9.0)
MIXED["requests"][0] |= {"num_draft_tokens": 1, "query_len": 2}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (timed(4, 0, 7.0), "with K=0 a schedule's drafter still follows"),
        (MIXED, "not every request of it verifies the same number of drafts"),
        (
            timed(4, 3, 9.0, rank={"timing_scope": "target_only", "drafter": None}),
            "leave --exclude-drafter away",
        ),
        (
            timed(4, 3, 9.0, rank={"drafter": {"num_draft_tokens": 7}}),
            "num_speculative_tokens 3",
        ),
        (timed(4, 3, 9.0, rank={"finite": False}), "not made of numbers"),
        (timed(4, 3, 9.0, context=8192), "its mean context is 8192 tokens"),
    ],
)
def test_a_case_that_is_no_step_of_a_schedule_is_left_out_by_name(
    case: dict[str, Any], words: str
) -> None:
    found = beside(sweep(WINDOWS), cases([*ALL, case]), usual=CONTEXT)
    (note,) = [n for n in found.notes if n.startswith(f"forward case {case['case']} is left out")]
    assert words in note
    assert len(case["requests"]) not in {step.setting.batch for step in found.timed}


def test_a_case_stands_at_the_context_of_its_windows() -> None:
    windows = [
        published.cell(b, k, (PR_32374_MS[b][k] + c / 1e3) / 1e3, EAGLE, context=c)
        for b, k in [(1, 1), (1, 7), (64, 5)]
        for c in (500, 4000)
    ]
    near = [timed(b, k, PR_32374_MS[b][k] - 1, context=510) for b, k in [(1, 1), (1, 7), (64, 5)]]
    found = beside(sweep(windows), cases([*near, timed(16, 4, 9.8, context=3900)]), usual=64)
    assert [step.setting for step in found.timed] == [Setting(16, 4, 4000)]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ([timed(1, 1, 6.0), timed(1, 7, 10.0)], "2 of the settings timed by vllm bench forward"),
        ([timed(b, k, 50.0) for b, k in SERVED if k], "of another engine, model or machine"),
    ],
)
def test_timings_that_cannot_stand_beside_the_windows_are_refused(
    of: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(Unusable, match=words):
        beside(sweep(WINDOWS), cases(of), usual=CONTEXT)


SPEC = {
    "slo": {"tpot": "40ms"},
    "load": {"points": [1, 16, 32, 64], "promptTokens": 448, "outputTokens": OUTPUT},
}


@pytest.mark.parametrize(
    ("written", "code", "words"),
    [
        (ALL, 0, "settings were timed by vllm bench forward and not served"),
        (ALL[:1], 2, "Error: --forward"),
        ([{"case": "x"}], 2, "item 1"),
        ([], 2, "holds no case"),
        ("nothing", 2, "not JSON"),
    ],
)
def test_a_user_gives_the_file_that_vllm_wrote(
    tmp_path: Any, written: Any, code: int, words: str
) -> None:
    manifest, cells, forward = (tmp_path / name for name in ("q.yaml", "cells.json", "forward"))
    manifest.write_text(yaml.safe_dump({"kind": "SpecSchedule", "spec": SPEC}))
    cells.write_text(json.dumps([cell.plain() for cell in WINDOWS]))
    forward.write_text(written if isinstance(written, str) else json.dumps(written, indent=2))
    words_given = ["propose", "-f", str(manifest), "--cells", str(cells)]
    result = CliRunner().invoke(main, [*words_given, "--forward", str(forward)])
    assert result.exit_code == code, result.output
    assert words in result.output
