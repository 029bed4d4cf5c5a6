"""The simulated engine as a probe: requests switch K between two steps, as in the real one."""

import json
import socket
from typing import Any
from urllib.request import urlopen

import pytest

from specschedule.core import inband
from specschedule.vllm_facts.logs import scheduler_finding

CONFIG = {
    "method": "eagle3",
    "model": "draft",
    "num_speculative_tokens": 5,
    "num_speculative_tokens_per_batch_size": [[1, 1, 5], [2, 2, 2], [3, 16, 0]],
}
SPECULATIVE = ["--speculative-config", json.dumps(CONFIG)]
SCHEDULER = ["--scheduler-cls", "specschedule.engine.probe.EitherProbeScheduler"]


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def page(port: str, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text = answer.read().decode()
    return [json.loads(line) for line in text.splitlines()]


def ask(tokens: int = 24, **xargs: str) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": [7] * 16, "max_tokens": tokens, "ignore_eos": True}
    return body | {"temperature": 0} | ({"vllm_xargs": xargs} if xargs else {})


@pytest.fixture(scope="module")
def probe(start: Any) -> Any:
    port = free_port()
    variables = {"SPECSCHEDULE_PROBE_SECRET": "s", "SPECSCHEDULE_SCHEDULER_PORT": port}
    with start("--seed", "1", *SPECULATIVE, *SCHEDULER, **variables) as process:
        yield process, port


@pytest.mark.parametrize("tokens", [0, 2, 5])
def test_a_request_with_the_secret_sets_k_from_the_next_step_on(probe: Any, tokens: int) -> None:
    process, port = probe
    since = page(port, "/facts")[0]["next"]
    before = process.metrics()
    asked = inband.arguments("s", [[1, 16, tokens]], f"k{tokens}")
    status, _ = process.post("/v1/completions", ask(**asked))
    after = process.metrics()
    assert status == 200
    assert page(port, "/facts")[0]["window"] == f"k{tokens}"
    lines = page(port, f"/steps?since={since}")
    assert {line["tokens"] for line in lines} == {tokens}
    drafts, drafted = (
        after.get(f"vllm:spec_decode_num_{name}_total", 0.0)
        - before.get(f"vllm:spec_decode_num_{name}_total", 0.0)
        for name in ("drafts", "draft_tokens")
    )
    # The first step after a switch still verifies what was drafted before it.
    assert drafts * tokens <= drafted <= drafts * tokens + 5
    assert (drafts > 1) is (tokens > 0)


REFUSED = {
    "another secret": inband.arguments("guess", [[1, 16, 2]], "theirs"),
    "a K that it was not started with": inband.arguments("s", [[1, 16, 3]], "three"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_may_not_switch_it_is_answered_and_switches_nothing(probe: Any, why: str) -> None:
    process, port = probe
    (before,) = page(port, "/facts")
    status, _ = process.post("/v1/completions", ask(**REFUSED[why]))
    (after,) = page(port, "/facts")
    assert status == 200
    assert (after["ranges"], after["switches"]) == (before["ranges"], before["switches"])
    assert after["refused"]


def test_an_engine_that_ignores_what_is_planned_is_found_out_and_switched_no_more(
    start: Any,
) -> None:
    port = free_port()
    variables = {"SPECSCHEDULE_PROBE_SECRET": "s", "SPECSCHEDULE_SCHEDULER_PORT": port}
    with start("--fault", "ignores-k", *SPECULATIVE, *SCHEDULER, **variables) as process:
        for tokens in (2, 0):
            asked = inband.arguments("s", [[1, 16, tokens]], f"k{tokens}")
            assert process.post("/v1/completions", ask(**asked))[0] == 200
        (facts,) = page(port, "/facts")
        process.end()
    finding = "K=2 was planned and 5 drafts were scheduled"
    assert facts["finding"] == finding
    assert facts["refused"] == f"the self test failed: {finding}"
    assert (facts["window"], facts["ranges"]) == ("k2", facts["bootRanges"])
    timed = [f"2026-11-30T10:00:00Z {line}" for line in process.log]
    assert scheduler_finding("\n".join(timed)) == finding


def test_a_probe_without_a_secret_ends_while_it_boots(start: Any) -> None:
    with start(*SPECULATIVE, *SCHEDULER) as process:
        assert process.url == ""
        assert process.wait() == 1
        assert "SPECSCHEDULE_PROBE_SECRET is missing" in process.text
