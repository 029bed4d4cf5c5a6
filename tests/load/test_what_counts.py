"""What a held window leaves out: tokens of a load that is not as planned."""

import asyncio
from typing import Any

from tests.load.scripted import Script, Scripted
from tests.load.visits import HOLD, carry_out, cells, plan


def test_tokens_count_only_while_every_stream_is_under_way() -> None:
    async def run() -> Any:
        def script(number: int, body: dict[str, Any]) -> Script:
            # The stream that is refused rests for as long as an answer takes.
            return Script(status=500) if number % 3 == 2 else Script()

        windows = [{"cell": "r1-0", "profile": {**HOLD, "concurrency": 2}, "requests": 40}]
        async with Scripted(script) as server:
            well, said = await carry_out(plan(server.url, windows=windows))
        assert well
        (cell,) = cells(said)
        return cell

    cell = asyncio.run(run())
    assert cell.failed > 8
    assert 0.4 < cell.output_tokens / (30 * cell.completed) < 0.85
