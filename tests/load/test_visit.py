"""A visit of the load generator to a simulated server: its windows, counters and records."""

import asyncio
import json
import time
from io import StringIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specschedule.core.visit import CellClosed, VisitEnded, Warmed
from specschedule.core.workload import digest_of_trace
from specschedule.load.arrivals import draw
from specschedule.load.visit import Event
from tests.booted import free_port
from tests.load.scripted import Script, Scripted
from tests.load.visits import HOLD, carry_out, cells, failure, plan


def test_a_hold_says_warmed_then_each_cell_then_ended() -> None:
    async def run() -> None:
        async with Scripted() as server:
            well, said = await carry_out(plan(server.url, HOLD, {"kind": "hold", "concurrency": 1}))
        assert well
        assert [type(event) for event in said] == [Warmed, CellClosed, CellClosed, VisitEnded]
        first, second = cells(said)
        assert (first.cell, second.cell) == ("r1-0", "r1-1")
        for cell in (first, second):
            assert cell.void is None
            assert cell.offered == cell.completed == cell.good
            assert cell.offered >= 12
            assert cell.tpot_ms is not None
            assert cell.tpot_ms.p50 is not None
            assert cell.tpot_ms.p50 >= 2
            assert cell.in_flight_exact is not None
            assert cell.in_flight_exact > 0.8

    asyncio.run(run())


def test_exactly_the_planned_number_is_in_flight_at_the_server() -> None:
    async def run() -> None:
        async with Scripted(lambda number, body: Script(pause=0.01)) as server:
            _, said = await carry_out(plan(server.url, HOLD))
            steady = server.seen_in_flight[40:-40]
        assert max(steady) == 4
        # Right after an end the server has one fewer until the next request has come in, and for
        # longer where the machine is busy.
        assert sum(count == 4 for count in steady) / len(steady) > 0.7
        (cell,) = cells(said)
        assert cell.batch_size_mean == pytest.approx(4, abs=0.5)

    asyncio.run(run())


def test_streams_do_not_end_in_step() -> None:
    async def run() -> None:
        async with Scripted(lambda number, body: Script(pause=0.01)) as server:
            await carry_out(plan(server.url, HOLD))
            lengths = [body["max_tokens"] for body in server.bodies]
        # The first request tries the plan; the streams begin an eighth into the cycle and so on.
        assert lengths[:6] == [30, 4, 12, 19, 27, 30]

    asyncio.run(run())


def test_counters_are_there_before_the_first_window_and_end_equal_to_the_cells() -> None:
    async def run() -> None:
        pages: list[str] = []

        async def scrape(port: int) -> None:
            async with aiohttp.ClientSession() as session:
                while True:
                    try:
                        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                            pages.append(await answer.text())
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(0.2)

        def script(number: int, body: dict[str, Any]) -> Script:
            return Script(status=500) if number % 9 == 8 else Script()

        port = free_port()
        async with Scripted(script) as server:
            scraper = asyncio.create_task(scrape(port))
            visit = plan(server.url, HOLD, {"kind": "hold", "concurrency": 2}, scrapes=2)
            before = time.time()
            well, said = await carry_out(visit, port=port)
            scraper.cancel()
        assert well
        assert count(pages[0]) == {
            (cell, outcome): 0.0
            for cell in ("r1-0", "r1-1")
            for outcome in ("good", "slow", "failed", "tokens")
        }
        final = count(pages[-1])
        for cell in cells(said):
            assert cell.failed > 0
            assert cell.good is not None
            assert cell.output_tokens is not None
            assert final[cell.cell, "good"] == cell.good
            assert final[cell.cell, "failed"] == cell.failed
            assert final[cell.cell, "slow"] == cell.offered - cell.good - cell.failed
            assert final[cell.cell, "tokens"] == cell.output_tokens
        ended = said[-1]
        assert isinstance(ended, VisitEnded)
        assert len(ended.scraped_at) >= 2
        assert before < ended.scraped_at[0] <= ended.scraped_at[-1] <= time.time()

    asyncio.run(run())


def count(page: str) -> dict[tuple[str, str], float]:
    """Return counters by cell and outcome (``tokens`` for the output tokens)."""
    values = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert sample.labels["run"] == "7f3a"
            assert sample.labels["launch"] == "2"
            assert sample.labels["arm"] == "incumbent"
            assert sample.labels["visit"] == "1"
            values[sample.labels["cell"], sample.labels.get("outcome", "tokens")] = sample.value
    return values


def test_records_say_what_became_of_every_request() -> None:
    async def run() -> None:
        out = StringIO()
        async with Scripted() as server:
            _, said = await carry_out(plan(server.url, HOLD), records=out)
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        (cell,) = cells(said)
        counted = [line for line in lines if line["counted"]]
        assert len(counted) == cell.offered
        assert len(lines) > len(counted)
        for line in counted:
            assert sum(tokens for _, tokens in line["chunks"]) == line["outputTokens"] == 30
            assert line["outcome"] == "good"
            assert line["ttftMs"] == line["chunks"][0][0]
            assert 0 <= line["sendLagMs"] <= line["ttftMs"]
        assert len({line["index"] for line in counted}) == len(counted)

    asyncio.run(run())


def counted_places(out: StringIO, cell: str = "r1-0") -> list[int]:
    """Return the places in the order of a window's prompts that counted in it, sorted."""
    lines = map(json.loads, out.getvalue().splitlines())
    return sorted(line["index"] for line in lines if line["counted"] and line["cell"] == cell)


@pytest.mark.parametrize("profile", [HOLD, {"kind": "open", "requestsPerSecond": 16}])
def test_a_slow_server_and_a_fast_one_count_the_same_prompts(profile: dict[str, Any]) -> None:
    async def run() -> None:
        found, before = [], []
        for chunk, pause in ((1, 0.008), (3, 0.004)):
            out = StringIO()
            answer = Script(chunks=[chunk] * (30 // chunk), pause=pause)
            async with Scripted(lambda number, body, answer=answer: answer) as server:  # type: ignore[misc]
                visit = plan(server.url, profile, warmUpTimeout="12s")
                well, said = await carry_out(visit, records=out)
            assert well
            found.append(counted_places(out))
            prompts = [str(body["prompt"]) for body in server.bodies]
            assert len(set(prompts)) == len(prompts), "no prompt is sent twice"
            before.append(len(prompts) - cells(said)[0].offered)
        slow, fast = found
        assert slow[:12] == fast[:12] == list(range(12))
        assert before[0] != before[1], "they need not be equal before the window for that"

    asyncio.run(run())


def test_answers_that_differ_in_length_of_time_change_few_of_the_counted_prompts() -> None:
    async def run() -> None:
        found = []
        for pause, salt in ((0.005, 0), (0.01, 3)):

            def script(
                number: int, body: dict[str, Any], pause: float = pause, salt: int = salt
            ) -> Script:
                # As acceptance does: some prompts are answered half again as fast as others, and
                # which they are differs between the servers.
                return Script(pause=pause * (1 + (sum(body["prompt"]) + salt) % 6 / 10))

            out = StringIO()
            async with Scripted(script) as server:
                visit = plan(server.url, HOLD | {"concurrency": 8}, warmUpTimeout="12s")
                await carry_out(visit, records=out)
            found.append(set(counted_places(out)))
        for one in found:
            assert sum(place < 0 for place in one) <= 3
            assert sum(place not in one for place in range(14)) <= 3

    asyncio.run(run())


def test_answers_that_the_model_ends_are_measured_where_that_is_asked_for() -> None:
    async def run() -> None:
        def script(number: int, body: dict[str, Any]) -> Script:
            return Script(chunks=[1] * min(body["max_tokens"], 10 + number % 11), pause=0.004)

        async with Scripted(script) as server:
            well, said = await carry_out(plan(server.url, HOLD, ignoreEos=False))
        assert well
        (cell,) = cells(said)
        assert cell.failed == 0
        assert 12 <= cell.offered <= 24, "as long as its answers are, not as they might be"
        assert cell.output_tokens is not None
        assert cell.output_tokens / cell.offered == pytest.approx(15, abs=4)

    asyncio.run(run())


def test_a_crossing_goes_through_the_boundary_and_its_later_passes_are_a_cell_of_their_own() -> (
    None
):
    async def run() -> None:
        out = StringIO()
        crossing = {"kind": "crossing", "low": 1, "high": 5, "periodSeconds": 0.6, "boundary": 3}
        async with Scripted(lambda number, body: Script(pause=0.004)) as server:
            visit = plan(server.url, crossing | {"pass": 1}, crossing | {"pass": 2})
            well, said = await carry_out(visit, records=out)
        assert well
        first, later = cells(said)
        assert max(server.seen_in_flight) == 5
        assert first.window_seconds == pytest.approx(1.2, abs=0.3)
        assert later.offered >= 12
        assert first.profile.pass_ == 1
        assert first.in_flight_exact is None
        assert set(range(10)) <= set(counted_places(out, "r1-1")), "each pass has its own order"

    asyncio.run(run())


def test_a_burst_fills_to_the_peak_and_drains_to_the_floor() -> None:
    async def run() -> None:
        burst = {"kind": "burst", "floor": 1, "peak": 6}
        async with Scripted(lambda number, body: Script(pause=0.004)) as server:
            well, said = await carry_out(plan(server.url, burst | {"pass": 1}, burst | {"pass": 2}))
        assert well
        first, later = cells(said)
        assert max(server.seen_in_flight) == 6
        assert first.offered >= 5
        assert later.offered >= 12

    asyncio.run(run())


def test_an_open_window_counts_every_request_that_was_due_in_it() -> None:
    async def run() -> None:
        def script(number: int, body: dict[str, Any]) -> Script:
            return Script(status=500) if number % 4 == 3 else Script(pause=0.01)

        async with Scripted(script) as server:
            profile = {"kind": "open", "requestsPerSecond": 8, "peakRequestsPerSecond": 16}
            well, said = await carry_out(plan(server.url, profile))
        assert well
        (cell,) = cells(said)
        assert cell.offered == 12
        assert cell.failed >= 2
        assert cell.completed + cell.failed == 12
        assert cell.window_seconds == pytest.approx(1.0, abs=0.001)

    asyncio.run(run())


def test_an_open_window_sends_when_due_whatever_the_server_does() -> None:
    async def run() -> None:
        out = StringIO()
        async with Scripted(lambda number, body: Script(pause=0.05)) as server:
            visit = plan(server.url, {"kind": "open", "requestsPerSecond": 10})
            _, said = await carry_out(visit, records=out)
        assert max(server.seen_in_flight) > 5
        counted = [r for r in map(json.loads, out.getvalue().splitlines()) if r["counted"]]
        due = sorted(line["scheduledAt"] for line in counted)
        planned = [arrival.at for arrival in draw(10, 12, 0).arrivals]
        assert [at - due[0] for at in due] == pytest.approx(
            [at - planned[0] for at in planned], abs=1e-4
        )
        assert cells(said)[0].offered == 12

    asyncio.run(run())


def test_a_trace_is_replayed_with_its_times_and_lengths(tmp_path: Path) -> None:
    async def run() -> None:
        trace, out = tmp_path / "trace.jsonl", StringIO()
        lengths = [(10 + 3 * n, 4 + n % 5) for n in range(12)]
        lines = [
            {"timestamp": 500 + 40 * n * (1 + n % 2), "input_length": i, "output_length": o}
            for n, (i, o) in enumerate(lengths)
        ]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        async with Scripted() as server:
            visit = plan(server.url, {"kind": "open", "trace": str(trace)})
            well, said = await carry_out(visit, records=out)
        assert well
        (cell,) = cells(said)
        assert (cell.offered, cell.completed, cell.failed) == (12, 12, 0)
        counted = [r for r in map(json.loads, out.getvalue().splitlines()) if r["counted"]]
        counted.sort(key=lambda line: line["index"])
        in_time = sorted(range(12), key=lambda n: lines[n]["timestamp"])
        assert [line["outputTokens"] for line in counted] == [lengths[n][1] for n in in_time]
        due = [line["scheduledAt"] - counted[0]["scheduledAt"] for line in counted]
        planned = [(lines[n]["timestamp"] - 500) / 1000 for n in in_time]
        assert due == pytest.approx(planned, abs=1e-4)
        asked = [(len(body["prompt"]), body["max_tokens"]) for body in server.bodies]
        assert set(lengths) <= set(asked)

    asyncio.run(run())


def test_a_trace_named_by_its_digest_is_the_one_that_was_given(tmp_path: Path) -> None:
    lengths = [(10 + 3 * n, 4 + n % 5) for n in range(20)]
    text = "".join(
        json.dumps({"timestamp": 40 * n, "input_length": i, "output_length": o}) + "\r\n"
        for n, (i, o) in enumerate(lengths)
    )
    trace = tmp_path / "trace.jsonl"
    profile = {"kind": "open", "trace": digest_of_trace(text), "requestsPerSecond": 25}

    async def run() -> tuple[bool, list[Event], list[dict[str, Any]]]:
        async with Scripted() as server:
            well, said = await carry_out(plan(server.url, profile), trace=trace)
            return well, said, server.bodies

    trace.write_bytes(text.encode())
    well, said, bodies = asyncio.run(run())
    assert well
    assert cells(said)[0].offered == 20
    # Two turns at least of the trace went over the wire: the one that counts, and what led to it.
    asked = [(len(body["prompt"]), body["max_tokens"], body["min_tokens"]) for body in bodies]
    assert {(i, o, o) for i, o in lengths} <= set(asked)

    trace.write_text(text.replace('"output_length": 8', '"output_length": 9'))
    well, said, bodies = asyncio.run(run())
    assert (well, bodies) == (False, [])
    assert "put the trace back as it was" in failure(said).message


def test_a_depth_sweep_leaves_degenerate_and_cached_answers_out_and_counts_them() -> None:
    async def run() -> None:
        def script(number: int, body: dict[str, Any]) -> Script:
            assert len(body["prompt"]) == 500
            if number % 3 == 0:
                # The few tokens of a template that the cache knows do not make it real text.
                return Script(text=" haha", pause=0.01, cached=1)
            return Script(varied=True, cached=6 if number % 3 == 1 else 0)

        async with Scripted(script) as server:
            visit = plan(server.url, {"kind": "depth", "context": 500}, outputTokens=50)
            _, said = await carry_out(visit)
        (cell,) = cells(said)
        assert cell.context == 500
        assert cell.left_out is not None
        assert cell.completed // 3 * 2 <= cell.left_out < cell.completed
        # The degenerate answers came five times more slowly, and had no say.
        assert cell.tpot_ms is not None
        assert cell.tpot_ms.p99 is not None
        assert cell.tpot_ms.p50 is not None
        assert cell.tpot_ms.p50 < 9

    asyncio.run(run())
