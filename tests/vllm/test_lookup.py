"""The effective table is the real engine's own, batch size by batch size, refusals included."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specschedule.core import schedule

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

EXAMPLES = 2_500
LOOKUP = Path(__file__).resolve().parents[2] / "hack/vllm/lookup.py"


@dataclass
class Engine:
    """vLLM's own schedule code in a process of its own."""

    process: subprocess.Popen[str]
    compared: Counter[str] = field(default_factory=Counter)

    def answer(self, rows: object, max_tokens: int, max_num_seqs: int) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        case = {"rows": rows, "max_tokens": max_tokens, "max_num_seqs": max_num_seqs}
        print(json.dumps(case), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@pytest.fixture(scope="module")
def lookup(engine: dict[str, Any]) -> Iterator[Engine]:
    process = subprocess.Popen(
        [engine["python"], LOOKUP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield Engine(process)
        process.stdin.close()


def ours(rows: object, max_tokens: int, max_num_seqs: int) -> list[int] | None:
    """K at each batch size, or None where we refuse."""
    try:
        table = schedule.effective(rows, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
    except schedule.ScheduleError:
        return None
    return [table.tokens(batch) for batch in range(1, max_num_seqs + 1)]


@st.composite
def ranges(draw: st.DrawFn) -> list[list[int]]:
    """Rows that start at 1 and do not overlap, with gaps, in any order."""
    rows, start = [], 1
    for _ in range(draw(st.integers(1, 6))):
        last = start + draw(st.integers(0, 20))
        rows.append([start, last, draw(st.integers(0, 9))])
        start = last + 1 + draw(st.sampled_from([0, 0, 1, 7]))
    return draw(st.permutations(rows))


@st.composite
def spoiled(draw: st.DrawFn) -> list[list[int]]:
    """Such rows with one number changed: mostly, but not always, no schedule any more."""
    rows = [list(row) for row in draw(ranges())]
    row = draw(st.sampled_from(rows))
    at = draw(st.integers(0, 2))
    row[at] = draw(st.integers(-2, 12) | st.just(row[at] + 1))
    return rows


NUMBER = st.integers(-3, 40)
ROWS = st.one_of(
    ranges(),
    spoiled(),
    st.lists(st.lists(NUMBER, min_size=3, max_size=3), max_size=4),
    st.lists(st.lists(NUMBER, max_size=4), min_size=1, max_size=3),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(ROWS, st.integers(-1, 8), st.integers(-1, 80))
def _both_answer_alike(
    lookup: Engine, rows: list[list[int]], max_tokens: int, max_num_seqs: int
) -> None:
    theirs = lookup.answer(rows, max_tokens, max_num_seqs)
    assert ours(rows, max_tokens, max_num_seqs) == theirs.get("table"), theirs
    lookup.compared["accepted" if "table" in theirs else "refused"] += 1


def test_every_batch_size_and_every_refusal_is_the_engines(lookup: Engine) -> None:
    _both_answer_alike(lookup)
    assert lookup.compared.total() >= 2_000
    # Neither answer may be so rare that agreeing on it proves nothing.
    assert min(lookup.compared["accepted"], lookup.compared["refused"]) >= 400, lookup.compared


@pytest.mark.parametrize(
    ("why", "rows", "theirs"),
    [
        ("text that reads as a number is a slip, not a schedule", [[1, 8, "2"]], [2] * 8),
        ("so is a fraction without a fraction", [[1, 8, 2.0]], [2] * 8),
        ("and a yes or no", [[1, 8, True]], [1] * 8),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_we_refuse_what_the_engine_only_tolerates(
    why: str, rows: list[list[object]], theirs: list[int], lookup: Engine
) -> None:
    assert lookup.answer(rows, 4, 8) == {"table": theirs}
    assert ours(rows, 4, 8) is None, why


def test_five_number_rows_are_beyond_this_version_of_the_engine(lookup: Engine) -> None:
    rows = [[1, 8, 1, 4096, 2]]
    assert "3 items" in lookup.answer(rows, 4, 8)["refusal"]
    assert schedule.effective(rows, max_tokens=4, max_num_seqs=8).tokens(1, 100) == 2
