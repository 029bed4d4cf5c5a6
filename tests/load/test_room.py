"""Requests beyond the model's context are left out before anything is sent, and named."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specschedule.core.evidence import Fit, TooLong, WindowLeftOut
from specschedule.core.visit import Fitted, Visit, Warmed
from specschedule.load.client import Client, Served, Unanswered
from specschedule.load.prompts import Pool, Source, Text
from specschedule.load.records import Record
from specschedule.load.room import Room, room
from specschedule.load.visit import Event
from tests.load.scripted import Scripted
from tests.load.visits import carry_out, cells, failure, plan

LONGEST = 200
ANSWER = 24
HOLD = {"kind": "hold", "concurrency": 2}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A simulated engine whose requests have 200 tokens at most; four characters are a token."""
    command = [sys.executable, "-m", "specschedule.cli.main", "sim", "--boot", "20ms"]
    command += ["--host", "127.0.0.1", "--port", "0", "--max-model-len", str(LONGEST)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield next(line for line in process.stdout if line.startswith("listening")).split()[-1]
        process.kill()


def asked(url: str, *profiles: dict[str, Any], **changes: Any) -> Visit:
    return plan(url, *profiles, **({"outputTokens": ANSWER} | changes))


def found(visit: Visit, pool: Pool | None) -> Room:
    async def run() -> Room:
        async with Client(visit.url, endpoint=visit.endpoint, timeout=5) as client:
            return await room(client, await client.model(), visit, pool)

    return asyncio.run(run())


def of_category(visit: Visit, *categories: str | None) -> Visit:
    pairs = zip(visit.windows, categories, strict=True)
    windows = [window.model_copy(update={"category": name}) for window, name in pairs]
    return visit.model_copy(update={"windows": windows})


# 200 tokens less an answer of 24, and 8 or at most 15 of a nonce.
FIT: dict[str, tuple[dict[str, Any], Text, Text]] = {
    "ids, to the token": ({}, [7] * 168, [7] * 169),
    "a text, to the token": ({}, "four" * 161, "four" * 161 + "!"),
    "a text that nothing leads": ({"prefixCache": "Warm"}, "four" * 176, "four" * 176 + "!"),
    "ids behind a shared beginning": ({"prefixCache": "Shared"}, [7] * 160, [7] * 161),
    "a text of many bytes": ({}, "é" * 644, "é" * 645),
    # The template puts 7 characters around it.
    "a chat": ({"endpoint": "chat"}, "four" * 159 + "!", "four" * 160),
}


@pytest.mark.parametrize("claim", FIT)
def test_a_prompt_fits_with_all_that_leads_it_and_its_answer(claim: str, engine: str) -> None:
    changes, fits, too_long = FIT[claim]
    told = found(asked(engine, HOLD, **changes), Pool({"code": [too_long, fits, "short"]}))
    assert told.whole == Pool({"code": [fits, "short"]})
    (left_out,) = (told.fit or Fit()).prompts
    assert left_out == TooLong(category="code", left_out=1, of=3, longest=LONGEST + 1)


@pytest.mark.parametrize("regime", ["Unique", "Shared", "Warm"])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_what_is_kept_is_answered_whole_and_what_is_left_out_is_not(
    regime: str, endpoint: str, engine: str
) -> None:
    prompts = ["four" * length for length in range(60, 200, 3)]
    visit = asked(engine, HOLD, prefixCache=regime, endpoint=endpoint)
    told = found(visit, Pool({"code": prompts}))
    assert told.whole is not None
    kept = told.whole.categories["code"]

    async def error(prompt: Text) -> str | None:
        async with Client(engine, endpoint=endpoint, timeout=5) as client:
            pool = Pool({"code": [prompt]})
            source = Source(visit, visit.windows[0], pool=pool, model="sim/model")
            record = Record(source.take(), "c", 0.0)
            await client.send(record)
            return record.error

    async def ends() -> list[str | None]:
        beyond = prompts[len(kept) + 4 :]
        return [await error(kept[0]), await error(kept[-1]), await error(beyond[0])]

    shortest, longest, beyond = asyncio.run(ends())
    assert kept == prompts[: len(kept)]
    assert (shortest, longest) == (None, None)
    assert beyond is not None


def test_which_prompts_are_left_out_hangs_on_lengths_alone(engine: str) -> None:
    pool = Pool({"code": ["four" * n for n in (10, 160, 161, 162, 190)], "prose": ["word" * 3]})
    arms = [
        found(asked(engine, HOLD, arm=arm, launch=launch, round=turn), pool)
        for arm, launch, turn in (("incumbent", 1, 1), ("candidate-card", 2, 1), ("none", 9, 4))
    ]
    assert arms[0].fit == Fit(
        max_model_len=LONGEST,
        prompts=[TooLong(category="code", left_out=2, of=5, longest=190 + 15 + ANSWER)],
    )
    assert all((arm.fit, arm.whole) == (arms[0].fit, arms[0].whole) for arm in arms)


def test_a_window_whose_category_has_no_prompt_left_is_not_measured_and_no_other(
    engine: str,
) -> None:
    pool = Pool({"code": ["def f", "four" * 300], "prose": ["four" * 250, "four" * 260]})
    visit = of_category(asked(engine, HOLD, HOLD, HOLD), None, "code", "prose")
    well, said = asyncio.run(carry_out(visit, pool=pool))
    assert well
    assert [type(event) for event in said[:2]] == [Fitted, Warmed]
    assert said[0] == Fitted(
        fit=Fit(
            max_model_len=LONGEST,
            prompts=[
                TooLong(category="code", left_out=1, of=2, longest=300 + 15 + ANSWER),
                TooLong(category="prose", left_out=2, of=2, longest=260 + 15 + ANSWER),
            ],
            windows=[WindowLeftOut(cell="r1-2", longest=260 + 15 + ANSWER)],
        )
    )
    assert [(cell.cell, cell.failed, cell.void) for cell in cells(said)] == [
        ("r1-0", 0, None),
        ("r1-1", 0, None),
    ]


def test_prompts_that_are_cut_to_a_length_may_be_longer_than_it(engine: str) -> None:
    steps = {"kind": "equivalence", "steps": [[1, 2]]}
    pool = Pool({"prose": ["four" * 260]})
    depths = [{"kind": "depth", "context": 100}, {"kind": "depth", "context": 190}]
    told = found(asked(engine, *depths, steps), pool)
    assert [window.cell for window in told.windows] == ["r1-0", "r1-2"]
    assert told.fit == Fit(
        max_model_len=LONGEST,
        windows=[WindowLeftOut(cell="r1-1", longest=190 + 15 + ANSWER)],
    )


@pytest.mark.parametrize(("longest", "measured"), [(170, ["r1-0", "r1-1"]), (171, ["r1-0"])])
def test_a_trace_with_a_request_that_does_not_fit_is_left_out_and_named(
    longest: int, measured: list[str], engine: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    lengths = [(0, 8, 4), (50, longest, 30), (90, 20, 100)]
    names = ("timestamp", "input_length", "output_length")
    trace.write_text("\n".join(json.dumps(dict(zip(names, each, strict=True))) for each in lengths))
    visit = asked(engine, HOLD, {"kind": "open", "trace": str(trace)})
    well, said = asyncio.run(carry_out(visit))
    assert well
    assert [(cell.cell, cell.failed) for cell in cells(said)] == [(name, 0) for name in measured]
    told = [event.fit for event in said if isinstance(event, Fitted)]
    left_out = [WindowLeftOut(cell="r1-1", longest=longest + 30)]
    assert told == ([] if len(measured) == 2 else [Fit(max_model_len=LONGEST, windows=left_out)])


NOTHING: dict[str, tuple[dict[str, Any], Pool | None, str]] = {
    "no prompt fits": (HOLD, Pool({"prose": ["word " * 60]}), "1 of 1 prompts of category prose"),
    "synthetic prompts are too long": (HOLD | {"context": 90}, None, "window r1-0"),
    "only outputs could be compared": (HOLD, Pool({"prose": ["word " * 60]}), "category prose"),
}


@pytest.mark.parametrize("claim", NOTHING)
def test_a_plan_of_which_nothing_is_left_ends_before_anything_is_sent(claim: str) -> None:
    profile, pool, named = NOTHING[claim]
    more = [{"kind": "equivalence", "steps": [[1, 2]]}] if "outputs" in claim else []

    async def run() -> tuple[list[Event], list[Any]]:
        async with Scripted(max_model_len=70, counts=True) as server:
            well, said = await carry_out(asked(server.url, profile, *more), pool=pool)
            assert not well
            return said, server.bodies

    said, sent = asyncio.run(run())
    assert sent == []
    assert failure(said).reason == "BadPlan"
    assert "max_model_len 70 has no room for" in failure(said).message
    assert named in failure(said).message
    assert isinstance(said[0], Fitted)
    assert said[0].fit.nothing_left


UNCOUNTED = {
    "a server that does not count tokens": (100, "POST /tokenize answers HTTP 404"),
    "a server that does not tell its longest request": (None, "tells no max_model_len"),
}


@pytest.mark.parametrize("claim", UNCOUNTED)
def test_where_nobody_tells_lengths_all_is_sent_and_that_is_said(claim: str) -> None:
    limit, words = UNCOUNTED[claim]
    pool = Pool({"code": ["word " * 300, "short"]})

    async def run() -> Room:
        async with Scripted(max_model_len=limit) as server:
            visit = asked(server.url, HOLD)
            async with Client(server.url, endpoint="completions", timeout=5) as client:
                return await room(client, await client.model(), visit, pool)

    told = asyncio.run(run())
    assert told.whole == pool
    assert told.fit is not None
    assert (told.fit.max_model_len, told.fit.prompts) == (limit, [])
    assert words in (told.fit.not_counted or "")


def test_a_server_that_goes_away_meanwhile_is_no_server_that_does_not_count() -> None:
    async def run() -> None:
        visit = asked("http://127.0.0.1:9", HOLD)
        async with Client(visit.url, endpoint="completions", timeout=5) as client:
            await room(client, Served("m", 100), visit, Pool({"code": ["word"]}))

    with pytest.raises(Unanswered):
        asyncio.run(run())


def test_token_ids_need_nobody_to_count_them() -> None:
    pool = Pool({"ids": [[5] * 90, [6] * 60]})

    async def run() -> Room:
        async with Scripted(max_model_len=100) as server:
            visit = asked(server.url, HOLD)
            async with Client(server.url, endpoint="completions", timeout=5) as client:
                return await room(client, await client.model(), visit, pool)

    told = asyncio.run(run())
    assert told.whole == Pool({"ids": [[6] * 60]})
    assert told.fit is not None
    assert told.fit.not_counted is None


def test_a_screen_measures_no_context_that_the_server_cannot_reach(engine: str) -> None:
    screen = {"batchSizes": [1], "contexts": [100, 5000], "maxTokens": 1, "maxNumSeqs": 8}
    visit = asked(engine, arm="none", screen=screen, outputTokens=8)
    well, said = asyncio.run(carry_out(visit))
    assert well
    assert {cell.context for cell in cells(said)} == {100}
    (left_out,) = [event.fit.windows for event in said if isinstance(event, Fitted)]
    assert [each.cell for each in left_out] == ["screen at context 5000"]
    nowhere = visit.model_copy(
        update={"screen": visit.screen and visit.screen.model_copy(update={"contexts": [5000]})}
    )
    well, said = asyncio.run(carry_out(nowhere))
    assert not well
    assert failure(said).reason == "BadPlan"
