"""The window that compares outputs: who is asked what, when, and what is kept of the answers."""

import asyncio
import itertools
from typing import Any

from specschedule.core.evidence import Cell
from specschedule.load.prompts import Pool
from tests.load.scripted import Script, Scripted
from tests.load.visits import HOLD, carry_out, cells, failure, plan

STEPS = [[1, 3], [6, 9], [2, 2]]
STAIRCASE = {"kind": "equivalence", "steps": STEPS}


def asked(script: Any = None, **changes: Any) -> tuple[list[Cell], Scripted]:
    """Carry out a held window, then the one that compares; the server says what it was told."""

    async def run() -> tuple[list[Cell], Scripted]:
        async with Scripted() as server:
            if script is not None:
                server.script = script
            pool = changes.pop("pool", None)
            _, said = await carry_out(plan(server.url, HOLD, STAIRCASE, **changes), pool=pool)
        return cells(said), server

    return asyncio.run(run())


def bodies(server: Scripted) -> list[dict[str, Any]]:
    return [body for body in server.bodies if body.get("return_token_ids")]


def test_every_prompt_is_sent_once_at_temperature_0_with_lengths_of_its_own() -> None:
    (_, said), server = asked(sampling={"temperature": 0.9, "topP": 0.5})
    sent = bodies(server)
    assert len(sent) == said.offered == said.completed == 14
    assert {body["temperature"] for body in sent} == {0.0}
    assert {body["top_p"] for body in sent} == {1.0}
    assert len({str(body["prompt"]) for body in sent}) == 14
    assert len({len(body["prompt"]) for body in sent}) > 3
    lengths = {body["max_tokens"] for body in sent}
    assert len(lengths) > 3
    assert all(8 <= length <= 30 for length in lengths)
    assert said.outputs is not None
    assert len(said.outputs.answers) == 14


def test_all_arms_and_rounds_are_asked_the_same_in_the_same_order() -> None:
    (_, one), _ = asked()
    (_, other), _ = asked(arm="candidate-card", launch=9, round=4, visit=2)
    (_, another_run), _ = asked(run="8888")
    assert one.outputs is not None
    assert other.outputs is not None
    assert another_run.outputs is not None
    assert one.outputs == other.outputs
    assert one.outputs.prompts != another_run.outputs.prompts


def test_the_load_goes_up_the_steps_and_down_again_as_requests_join_and_leave() -> None:
    (_, _), server = asked()
    compared = bodies(server)
    first = server.bodies.index(compared[0])
    seen = server.entered[first:]
    # At the first, the server may not have noticed yet that the window before hung up.
    assert seen[1:3] == [1, 1]
    assert max(seen[3:12]) == 6
    assert seen.count(6) > 1, "some join while others are in flight"
    assert all(count <= 2 for count in seen[12:])


def test_the_text_is_kept_where_the_server_tells_no_ids() -> None:
    (_, said), _ = asked()
    assert said.outputs is not None
    assert said.outputs.unit == "character"
    assert set(said.outputs.answers[0].split()) == {"tok"}


def test_token_ids_are_kept_where_the_server_tells_them() -> None:
    (_, said), server = asked(lambda number, body: Script(ids=True))
    assert said.outputs is not None
    assert said.outputs.unit == "token"
    lengths = [len(answer.split()) for answer in said.outputs.answers]
    assert lengths == [body["max_tokens"] for body in bodies(server)]
    assert said.outputs.answers[0].split()[:3] == ["0", "1", "2"]


def test_prompts_of_the_user_are_sent_when_there_are_some() -> None:
    pool = Pool({"chat": ["how are you", "what is this"], "code": ["def f"]})
    (_, said), server = asked(pool=pool)
    assert said.void is None
    assert {body["prompt"].split("\n")[1] for body in bodies(server)} == {
        "how are you",
        "what is this",
        "def f",
    }


def test_a_request_that_fails_voids_the_window() -> None:
    compared = itertools.count(1)

    def fails(number: int, body: dict[str, Any]) -> Script:
        third = bool(body.get("return_token_ids")) and next(compared) == 3
        return Script(breaks_after=2 if third else None)

    (held, said), _ = asked(fails)
    assert held.void is None
    assert said.void is not None
    assert said.void.startswith("request 3 has no whole answer: the server reports")
    assert said.outputs is None


def test_a_late_generator_does_not_void_answers() -> None:
    (held, said), _ = asked(maxSendLag=1e-9)
    assert held.void is not None
    assert said.void is None
    assert said.outputs is not None


def test_steps_that_cannot_be_taken_are_refused() -> None:
    async def run() -> None:
        async with Scripted() as server:
            for steps in (None, [], [[1]], [[0, 3]], [[2, 0]]):
                profile = {"kind": "equivalence", "steps": steps}
                well, said = await carry_out(plan(server.url, profile))
                assert not well
                assert "equivalence: needs steps" in failure(said).message
                assert not server.bodies

    asyncio.run(run())
