"""A visit where something is wrong: the server, its answers, the client, the plan, the volume."""

import asyncio
import contextlib
import time
from typing import Any

import pytest

from specschedule.core.visit import VisitFailed, Warmed
from specschedule.load.prompts import Pool
from tests.booted import free_port
from tests.load.scripted import Script, Scripted
from tests.load.visits import HOLD, carry_out, cells, failure, plan


def test_nobody_scrapes_and_no_window_opens() -> None:
    async def run() -> None:
        async with Scripted() as server:
            visit = plan(server.url, HOLD, scrapes=3, scrapeTimeout="1s")
            well, said = await carry_out(visit, port=free_port())
        assert not well
        assert [type(event) for event in said] == [VisitFailed]
        assert failure(said).reason == "NotScraped"

    asyncio.run(run())


def test_a_full_volume_costs_the_records_and_not_the_cells() -> None:
    async def run() -> None:
        async with Scripted() as server:
            full = open("/dev/full", "w")  # noqa: SIM115
            well, said = await carry_out(plan(server.url, HOLD, HOLD), records=full)
            with contextlib.suppress(OSError):
                full.close()
        assert well
        for cell in cells(said):
            assert cell.void is None
            assert cell.notes is not None
            assert "could not be written down: No space left on device" in cell.notes[-1]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("claim", "script", "changes", "reason", "words"),
    [
        ("a refused plan", Script(status=400), {}, "BadPlan", "HTTP 400"),
        ("a server that ends answers early", Script(chunks=[1]), {}, "BadPlan", "1 tokens instead"),
        ("a server that fails all", Script(status=500), {}, "Stalled", "HTTP 500"),
        ("silence", Script(hangs_after=0), {"requestTimeout": "500ms"}, "Stalled", "0.5 s"),
    ],
)
def test_a_server_that_cannot_be_measured_ends_the_visit_with_its_words(
    claim: str, script: Script, changes: dict[str, Any], reason: str, words: str
) -> None:
    async def run() -> None:
        async with Scripted(lambda number, body: script) as server:
            well, said = await carry_out(plan(server.url, HOLD, **changes))
        assert not well, claim
        assert failure(said).reason == reason
        assert words in failure(said).message
        assert not cells(said)

    asyncio.run(run())


def test_a_server_that_dies_in_a_window_leaves_a_void_cell_and_a_failed_visit() -> None:
    async def run() -> None:
        async with Scripted(lambda number, body: Script(pause=0.01)) as server:
            visit = plan(server.url, HOLD | {"concurrency": 2}, warmUpTimeout="1200ms")
            visit = visit.model_copy(
                update={"windows": [visit.windows[0].model_copy(update={"requests": 500})]}
            )

            async def kill() -> None:
                while len(server.bodies) < 20:
                    await asyncio.sleep(0.01)
                await server.stop()

            killer = asyncio.create_task(kill())
            well, said = await carry_out(visit)
            await killer
        assert not well
        (cell,) = cells(said)
        assert cell.void is not None
        assert "the visit failed in this window" in cell.void
        assert failure(said).reason == "ServerUnreachable"

    asyncio.run(run())


def test_tokens_stop_coming_in_a_window_and_the_visit_is_stalled() -> None:
    async def run() -> None:
        def script(number: int, body: dict[str, Any]) -> Script:
            return Script(hangs_after=3 if number > 25 else None)

        async with Scripted(script) as server:
            visit = plan(server.url, HOLD, warmUpTimeout="600ms", requestTimeout="1500ms")
            visit = visit.model_copy(
                update={"windows": [visit.windows[0].model_copy(update={"requests": 500})]}
            )
            well, said = await carry_out(visit)
        assert not well
        assert failure(said).reason == "Stalled"

    asyncio.run(run())


def test_nothing_counts_until_a_server_that_starts_slowly_is_steady() -> None:
    async def run() -> None:
        began = time.monotonic()
        slow = 0.8

        def script(number: int, body: dict[str, Any]) -> Script:
            return Script(pause=0.02 if time.monotonic() - began < slow else 0.004)

        async with Scripted(script) as server:
            visit = plan(server.url, HOLD, warmUpTimeout="40s")
            well, said = await carry_out(visit)
        assert well
        warmed, (cell,) = said[0], cells(said)
        assert isinstance(warmed, Warmed)
        assert warmed.steady
        # A change is over once it is within the quarter that is thrown away.
        assert warmed.seconds > 2 * slow
        assert cell.tpot_ms is not None
        assert cell.tpot_ms.p99 < 15
        assert cell.notes is None

    asyncio.run(run())


def test_failing_requests_are_counted_and_do_not_become_a_hot_loop() -> None:
    async def run() -> None:
        async with Scripted(
            lambda number, body: Script(status=503) if number % 3 else Script(pause=0.005)
        ) as server:
            started = time.monotonic()
            well, said = await carry_out(plan(server.url, HOLD, warmUpTimeout="2s"))
            seconds = time.monotonic() - started
            sent = len(server.bodies)
        assert well
        (cell,) = cells(said)
        assert cell.failed > cell.completed
        assert cell.offered == cell.failed + cell.completed
        # Each stream rests 50 ms at least after a failure.
        assert sent < 4 * seconds / 0.05

    asyncio.run(run())


def test_a_starved_client_voids_its_window() -> None:
    async def run() -> None:
        async def starve() -> None:
            while True:
                time.sleep(0.05)
                await asyncio.sleep(0.01)

        async with Scripted() as server:
            hog = asyncio.create_task(starve())
            _, said = await carry_out(plan(server.url, HOLD, maxSendLag="5ms"))
            hog.cancel()
        (cell,) = cells(said)
        assert cell.void is not None
        assert "give it more CPU" in cell.void

    asyncio.run(run())


@pytest.mark.parametrize(
    ("claim", "profiles", "pool", "reason", "words"),
    [
        ("no concurrency", [{"kind": "hold"}], None, "BadPlan", "concurrency"),
        ("no windows", [], None, "BadPlan", "windows"),
        ("no swing", [{"kind": "burst", "floor": 5, "peak": 5}], None, "BadPlan", "floor < peak"),
        (
            "no period",
            [{"kind": "crossing", "low": 1, "high": 5}],
            None,
            "BadPlan",
            "periodSeconds",
        ),
        ("no rate", [{"kind": "open"}], None, "BadPlan", "requestsPerSecond"),
        ("no trace", [{"kind": "open", "trace": "/nowhere"}], None, "BadPlan", "/nowhere"),
        (
            "a trace that was not given",
            [{"kind": "open", "trace": "sha256:0123456789ab"}],
            None,
            "BadPlan",
            "SPECSCHEDULE_TRACE",
        ),
        ("no depth", [{"kind": "depth"}], None, "BadPlan", "context"),
        ("no such category", [HOLD], Pool({"code": ["x"]}), "PromptsMissing", "'prose'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_is_sent(
    claim: str, profiles: list[dict[str, Any]], pool: Pool | None, reason: str, words: str
) -> None:
    async def run() -> None:
        visit = plan("http://127.0.0.1:9", *profiles)
        windows = [window.model_copy(update={"category": "prose"}) for window in visit.windows]
        visit = visit.model_copy(update={"windows": windows})
        well, said = await carry_out(visit, pool=pool)
        assert not well
        assert failure(said).reason == reason, claim
        assert words in failure(said).message

    asyncio.run(run())


def test_a_key_that_the_server_wants_is_asked_for_by_its_field() -> None:
    async def run() -> None:
        async with Scripted(api_key="s3cret") as server:
            well, said = await carry_out(plan(server.url, HOLD))
            assert failure(said).reason == "BadPlan"
            assert "load.apiKeySecretRef" in failure(said).message
            well, _ = await carry_out(plan(server.url, HOLD), api_key="s3cret")
            assert well

    asyncio.run(run())


def test_a_server_without_metrics_is_measured_and_it_is_noted() -> None:
    async def run() -> None:
        async with Scripted(metrics_fault=True) as server:
            _, said = await carry_out(plan(server.url, HOLD))
        (cell,) = cells(said)
        assert cell.notes == ["the engine's /metrics could not be read"]
        assert cell.engine_output_tokens is None
        assert cell.void is None

    asyncio.run(run())


def test_metrics_that_jump_between_processes_make_a_window_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specschedule.load.measurement.SAMPLE_SECONDS", 0.05)

    async def run() -> None:
        async with Scripted(processes=2) as server:
            _, said = await carry_out(plan(server.url, HOLD))
        (cell,) = cells(said)
        assert cell.void is not None
        assert "several processes answer /metrics" in cell.void

    asyncio.run(run())
