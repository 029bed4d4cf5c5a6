"""Visits: planned, carried out against a server, and what they said."""

import asyncio
from typing import Any

from specschedule.core.evidence import Cell
from specschedule.core.visit import CellClosed, Visit, VisitFailed
from specschedule.load.visit import Event, VisitRun

HOLD = {"kind": "hold", "concurrency": 4}


def plan(url: str, *profiles: dict[str, Any], **changes: Any) -> Visit:
    windows = [
        {"cell": f"r1-{number}", "profile": profile, "requests": 12}
        for number, profile in enumerate(profiles)
    ]
    plain: dict[str, Any] = {
        "run": "7f3a",
        "arm": "incumbent",
        "launch": 2,
        "round": 1,
        "url": url,
        "windows": windows,
        "slo": {"ttft": "5s", "tpot": "1s"},
        "promptTokens": 16,
        "outputTokens": 30,
        "scrapes": 0,
        # Lags are tested where they are meant; a busy machine must not void the others.
        "maxSendLag": "5s",
        "warmUpTimeout": "6s",
        "requestTimeout": "30s",
    }
    return Visit.model_validate(plain | changes)


async def carry_out(visit: Visit, **options: Any) -> tuple[bool, list[Event]]:
    said: list[Event] = []
    run = VisitRun(visit, **({"pool": None, "say": said.append} | options))
    return await asyncio.wait_for(run.run(), 60), said


def cells(said: list[Event]) -> list[Cell]:
    return [event.cell for event in said if isinstance(event, CellClosed)]


def failure(said: list[Event]) -> VisitFailed:
    assert isinstance(said[-1], VisitFailed)
    return said[-1]
