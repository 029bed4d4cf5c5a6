"""What the benches make of numbers: the right answer of planted ones, and none where none is."""

import json
import math
import random
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import (
    bench_attention,
    bench_context,
    bench_crossing,
    bench_screen,
    side_by_side,
    steps_plot,
)
from .bench_crossing import Step
from .paired import Interval, interval

BATCHES = list(bench_attention.batches(bench_attention.ON_CPU).values())


def test_batches_to_compare_have_one_sum_and_one_size() -> None:
    for load in (bench_attention.ON_CPU, bench_attention.ON_GPU):
        batches = list(bench_attention.batches(load).values())
        equal = batches[: bench_attention.EQUAL]
        assert {sum(batch) for batch in equal} == {load.requests * load.mean}
        assert len({max(batch) for batch in equal}) == len(equal)
        assert {len(batch) for batch in batches} == {load.requests}
        assert min(map(min, batches)) > max(bench_attention.KS)


@pytest.mark.parametrize(
    ("truth", "time", "told"),
    [
        ("each request's context is read", lambda b: sum(b), "the sum"),
        ("the longest request decides", lambda b: max(b), "the longest"),
        ("half and half", lambda b: math.sqrt(sum(b) * max(b)), "both"),
        ("neither matters", lambda b: 1.0, None),
    ],
)
def test_what_time_follows_is_told(
    truth: str, time: Callable[[list[int]], float], told: str | None
) -> None:
    chance = random.Random(1)
    seconds = [[time(b) * chance.lognormvariate(0, 0.03) for _ in range(12)] for b in BATCHES]
    assert bench_attention.answer(*bench_attention.exponents(BATCHES, seconds)) == told, truth


def test_times_that_only_scatter_tell_nothing() -> None:
    chance = random.Random(1)
    seconds = [[sum(b) * chance.lognormvariate(0, 2.0) for _ in range(3)] for b in BATCHES]
    assert bench_attention.answer(*bench_attention.exponents(BATCHES, seconds)) is None


def test_one_value_shows_no_spread() -> None:
    with pytest.raises(ValueError, match="measure more"):
        interval([1.0])


def windows(ratio: float, scatter: float, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    step = {"with": 10.0 * ratio, "without": 10.0}
    order = ["with", "without", "without", "with"] * 4
    return [
        {"arm": arm, "stepMs": step[arm] * chance.lognormvariate(0, scatter), "tokens": 4.0}
        for arm in order
    ]


@pytest.mark.parametrize(
    ("why", "ratio", "scatter", "told"),
    [
        ("a fifth of the limit, on a quiet machine", 1.002, 0.001, "kept"),
        ("three times the limit", 1.03, 0.001, "MISSED"),
        ("noise beyond the limit", 1.002, 0.08, "NOT SHOWN"),
    ],
)
def test_a_cost_is_within_its_limit_only_where_launches_show_it(
    tmp_path: Path, why: str, ratio: float, scatter: float, told: str
) -> None:
    for number in range(1, side_by_side.LAUNCHES + 1):
        path = tmp_path / f"launch-{number}.json"
        path.write_text(json.dumps(windows(ratio, scatter, number)))
    found = side_by_side.compared(tmp_path, "with", "without")
    assert side_by_side.kept(found.more, 0.01).startswith(told), why
    assert found.more.count == side_by_side.LAUNCHES
    assert found.step_ms == pytest.approx(10.0, rel=0.1)


def test_servers_that_draft_differently_are_not_compared(tmp_path: Path) -> None:
    for number in range(1, side_by_side.LAUNCHES + 1):
        told = windows(1.0, 0.01, number)
        told[3]["tokens"] = 2.0
        (tmp_path / f"launch-{number}.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="drafts differ"):
        side_by_side.compared(tmp_path, "with", "without")


@pytest.mark.parametrize(
    ("more", "told"),
    [((0.0, -0.02, 0.009), "kept"), ((0.02, 0.011, 0.03), "MISSED"), ((0.0, -0.1, 0.1), "NOT")],
)
def test_only_the_whole_interval_keeps_a_limit(more: tuple[float, float, float], told: str) -> None:
    assert side_by_side.kept(Interval(*more, 4), 0.01).startswith(told)


def line(k: int, batch: int, context: int, verified: int | None, decodes: int) -> dict[str, Any]:
    step = {"batchSize": batch, "context": context, "tokens": k, "decodes": decodes}
    return step if verified is None else step | {"verified": verified}


RIGHT = [line(1, 1, 0, None, 0), line(1, 1, 24, 1, 1), line(1, 1, 128, 1, 1), line(4, 1, 129, 1, 1)]


@pytest.mark.parametrize(
    ("why", "steps", "finding", "good"),
    [
        ("as the table says", RIGHT, None, True),
        ("one K too many", [*RIGHT, line(3, 1, 140, 4, 1)], None, False),
        ("planned and not drafted", [*RIGHT, line(4, 1, 140, 2, 1)], None, False),
        ("the scheduler's own finding", RIGHT, "K=4 was planned and 5 came", False),
        ("nothing was verified", RIGHT[:1], None, False),
    ],
)
def test_steps_follow_a_table_or_the_page_says_so(
    why: str, steps: list[dict[str, Any]], finding: str | None, good: bool
) -> None:
    assert bench_context.followed({"steps": steps, "finding": finding})[1] is good, why


def step(at: float, ms: float, batch: int, planned: int, verified: int, prompt: int = 0) -> Step:
    return Step(at, ms, batch, planned, verified, prompt, accepted=1)


QUIET = [step(0.05 * n, 50.0, 2, 3, 3) for n in range(8)]
BUSY = [step(1.0 + 0.1 * n, 100.0, 8, 1, 1) for n in range(8)]
CROSSED = [
    *QUIET,
    step(0.4, 190.0, 8, 1, 3, prompt=96),
    step(0.6, 130.0, 8, 1, 1),
    *BUSY,
    step(2.0, 90.0, 2, 3, 1),
    step(2.1, 58.0, 2, 3, 3),
    *(step(2.2 + 0.05 * n, 50.0, 2, 3, 3) for n in range(8)),
]


def test_the_first_step_of_a_new_k_is_held_against_steps_like_it() -> None:
    found = bench_crossing.changes(CROSSED)
    assert [(each.before.planned, each.steps[0].planned) for each in found] == [(3, 1), (1, 3)]
    known = bench_crossing.usual(CROSSED, found)
    more = [bench_crossing.extra(each.steps[1], known) for each in found]
    assert more == pytest.approx([30.0, 8.0])
    assert bench_crossing.extra(found[0].steps[0], known) is None, "no other step is like it"


def lines(batches: list[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    planned = [
        {"at": 0.1 * n, "batchSize": b, "tokens": 1, "verified": 1} for n, b in enumerate(batches)
    ]
    seen = [{"batchSize": b, "tokens": 1, "drafts": b, "prefillTokens": 0} for b in batches]
    return planned, seen


def test_two_logs_of_the_same_steps_are_joined() -> None:
    joined = bench_crossing.joined(*lines([2, 3, 3, 2]))
    assert [each.batch for each in joined] == [2, 3, 3]
    assert [each.ms for each in joined] == pytest.approx([100.0] * 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batchSize": 4}, "another batch"),
        ({"tokens": 2}, "other drafts"),
        ({"batchSize": None}, "4 steps were planned and 3 recorded"),
    ],
)
def test_logs_that_disagree_are_refused(change: dict[str, Any], words: str) -> None:
    planned, seen = lines([2, 3, 3, 2])
    seen[1] |= change
    with pytest.raises(ValueError, match=words):
        bench_crossing.joined(planned, seen)


def test_the_picture_shows_every_step_and_every_change() -> None:
    picture = ET.fromstring(steps_plot.svg(CROSSED, [0.4, 2.0]))
    circles = picture.findall("{*}circle")
    legend = len({each.verified for each in CROSSED})
    assert len(circles) == len(CROSSED) + legend
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    assert all(0 <= float(c.get("cx", -1)) <= width for c in circles)
    assert all(0 <= float(c.get("cy", -1)) <= height for c in circles)


LAUNCHES = {1: (20.0, 24.0, 30.0, 29.8, 27.0), 4: (80.0, 90.0, 85.0, 70.0, 60.0), 12: (99.0,) * 5}


@pytest.mark.parametrize(
    ("why", "chosen", "apart", "told"),
    [
        ("each the launches' best", (2, 1, 4), 0.01, bench_screen.AS_LAUNCHES),
        ("K=3 alone loses less than a tie", (3, 1, 0), 0.01, bench_screen.AS_LAUNCHES),
        ("K=1 alone loses a fifth", (1, 1, 0), 0.01, bench_screen.OTHERWISE),
        ("a fifth is a tie where windows differ by a tenth", (1, 1, 0), 0.0999,
         bench_screen.OTHERWISE),
        ("right, and so would anything be", (2, 1, 0), 0.15, bench_screen.NOT_SHOWN),
        ("wrong, and nobody could tell", (0, 4, 0), 0.15, bench_screen.NOT_SHOWN),
        ("no launch was measured twice", (2, 1, 0), None, bench_screen.NOT_SHOWN),
    ],
)  # fmt: skip
def test_the_probe_chose_as_the_launches_only_where_they_can_tell(
    why: str, chosen: tuple[int, ...], apart: float | None, told: str
) -> None:
    both = [1.0] if apart is None else [1 - apart / 2, 1 + apart / 2]
    alone = {
        (at, k): [rate * each for each in both]
        for at, row in LAUNCHES.items()
        for k, rate in enumerate(row)
    }
    proposal = {
        "choices": [
            {"at": at, "best": k, "chosen": k} for at, k in zip(LAUNCHES, chosen, strict=True)
        ],
        "candidates": [{"name": "best", "schedule": [[1, 16, 2]]}],
        "lead": "best",
        "notes": [],
    }
    lines, said = bench_screen.compared(proposal, alone, {})
    assert said == told, why
    assert [line[:5] for line in lines if line.startswith("| ")][1:] == ["| 1 |", "| 4 |", "| 12 "]
