"""A launch as the operator writes it, run as a local process: its receipt has the worker's word.

The pod's manifest is the operator's own; a kubelet's part is played here, as far as that is to run
the init container, to mount its folder and to start the server.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from specschedule.adapters import engine as engines
from specschedule.core.evidence import Profile, Receipt
from specschedule.core.spec import Slo
from specschedule.core.target import ServerFacts
from specschedule.core.visit import Visit, Window
from specschedule.load.client import Client, Served
from specschedule.load.prompts import Pool, Source
from specschedule.load.records import Record
from specschedule.load.room import room
from specschedule.vllm_facts.arguments import ArgumentEdit, read_container
from specschedule.vllm_facts.instruments import arm_arguments, observing
from specschedule.wire import manifests
from specschedule.wire.delivery import FOLDER, Delivery

from ..booted import booted, free_port
from ..wire.objects import plan, schedule, stored

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROWS = [[1, 2, 2], [3, 6, 1], [7, 16, 0]]
REQUESTS = 3
GOOD = {"good": float(REQUESTS), "slow": 0.0, "failed": 0.0}


@dataclass(frozen=True)
class Ran:
    """What was read of a launch, and where it answers."""

    url: str
    receipt: Receipt
    log: str
    metrics: str


def serving(engine: dict[str, Any], port: int) -> dict[str, Any]:
    """The Deployment of a person who serves without speculation."""
    listen = ["--host", "127.0.0.1", "--port", str(port)]
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "command": engine["command"],
        "args": [*engine["args"], *listen],
        "env": [
            {"name": name, "value": value}
            for name, value in {**engine["env"], "PYTHONPATH": "/theirs"}.items()
        ],
    }
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


def launched(engine: dict[str, Any], port: int) -> dict[str, Any]:
    """The pod of a candidate's launch, as the operator would create it."""
    deployment = serving(engine, port)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    server = read_container(container)
    assert isinstance(server, ServerFacts)
    carried = observing(container, server, Slo(ttft="60s", tpot="20s"))
    assert carried.left_out == ()
    edit = arm_arguments(
        container,
        speculative={
            "method": "draft_model",
            "model": engine["drafter"],
            "num_speculative_tokens": 2,
            "num_speculative_tokens_per_batch_size": ROWS,
        },
        instruments=carried,
    )
    assert isinstance(edit, ArgumentEdit)
    return manifests.trial_pod(
        deployment,
        stored(manifests.spec_trial(schedule(), "chat-5", plan())),
        container="vllm",
        port=port,
        arguments=(edit.field, edit.new),
        priority_class=None,
        deadline_seconds=3600,
        delivery=Delivery(carried, "specschedule", "Never", {}),
    )


@pytest.fixture(scope="module")
def ran(engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("launch")
    port = free_port()
    spec = launched(engine, port)["spec"]
    (init,), (server,) = spec["initContainers"], spec["containers"]

    def mounted(word: str) -> str:
        return word.replace(FOLDER, str(folder / "volume"))

    # The python of our image is the one that runs here.
    subprocess.run([sys.executable, *map(mounted, init["command"][1:])], check=True)
    variables = {each["name"]: mounted(each["value"]) for each in server["env"]}
    command = [*server["command"], *server["args"]]
    with booted(command, port, folder / "log", variables) as url:
        for _ in range(REQUESTS):
            complete(url)
        # The engine counts a request a moment after it has answered.
        until = time.monotonic() + 10
        while counted(page := engines.get(url, "/metrics") or "") != GOOD:
            assert time.monotonic() < until, page
            time.sleep(0.2)
        said = (folder / "log").read_text(errors="replace")
        receipt, whole = engines.receipt(url, log_text=said, known={})
        assert whole
        yield Ran(url, receipt, said, page)


def complete(url: str) -> None:
    body = {"model": "pair", "prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 8


def counted(metrics: str) -> dict[str, float]:
    """Finished requests by outcome, as our recorder counts them on vLLM's page."""
    pattern = r'^specschedule_engine_requests_total{.*outcome="(\w+)".*} (\S+)$'
    return {name: float(n) for name, n in re.findall(pattern, metrics, re.MULTILINE)}


def test_the_receipt_has_what_only_the_worker_knows(ran: Ran) -> None:
    told = ran.receipt
    assert told.instruments == ["fingerprint", "counters"]
    assert (told.engine_version, told.model_runner, told.graph_mode) == ("0.32.0", "V1", "NONE")
    assert (told.drafter_class, told.attention_backend) == ("DraftModelProposer", "CPU_ATTN")
    assert (told.captured_sizes, told.graphs_captured) == ([], 0)
    assert told.async_scheduling is False
    assert told.torch_version is not None


def test_the_schedule_in_effect_is_told_without_a_development_endpoint(ran: Ran) -> None:
    assert ran.receipt.schedule == ROWS
    assert ran.receipt.num_speculative_tokens == 2


def test_worker_and_log_of_the_real_engine_tell_the_same(ran: Ran) -> None:
    assert not [note for note in ran.receipt.notes or [] if note.startswith("SourcesDisagree")]


def test_the_worker_prints_its_facts_once_and_before_the_server_listens(ran: Ran) -> None:
    lines = ran.log.splitlines()
    printed = [i for i, line in enumerate(lines) if "specschedule.engine.fingerprint: {" in line]
    listens = next(i for i, line in enumerate(lines) if "Application startup complete" in line)
    assert len(printed) == 1
    assert printed[0] < listens


def test_good_requests_are_counted_on_the_servers_own_page_under_names_of_ours(ran: Ran) -> None:
    assert counted(ran.metrics) == GOOD
    assert 'specschedule_engine_slo_seconds{limit="ttft"} 60.0' in ran.metrics


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_what_fits_by_the_servers_own_count_is_answered_and_what_does_not_is_refused(
    ran: Ran, endpoint: str
) -> None:
    answer = 8
    plain = {"run": "r", "arm": "none", "launch": 1, "round": 1, "slo": {"ttft": "60s"}}
    plain |= {"url": ran.url, "endpoint": endpoint, "prefixCache": "Warm", "outputTokens": answer}
    window = Window(cell="a", profile=Profile(kind="hold", concurrency=1))
    visit = Visit.model_validate({**plain, "windows": [window]})

    async def run() -> None:
        async with Client(ran.url, endpoint=endpoint, timeout=120) as client:
            served = await client.model()
            assert served == Served("pair", 1024)
            # A byte is a token of this model; a chat has what its template puts around it.
            around = await client.tokens("pair", "é") - 2
            assert around == (len("user: \nassistant: ") if endpoint == "chat" else 0)
            pool = Pool({"code": ["x" * (1024 - around - answer + more) for more in (0, 1)]})
            told = await room(client, served, visit, pool)
            assert told.whole == Pool({"code": pool.categories["code"][:1]})
            for prompt, error in zip(pool.categories["code"], (None, "HTTP 400"), strict=True):
                source = Source(visit, window, pool=Pool({"code": [prompt]}), model=served.name)
                record = Record(source.take(), "a", 0.0)
                await client.send(record)
                assert (record.error or "").startswith(error or ""), record.error
                assert (record.error is None) == (error is None), record.error
                assert error is not None or record.prompt_tokens == 1024 - answer

    asyncio.run(run())


def total(metrics: str, name: str, **labels: str) -> float:
    """The sum over every series of a name that has these labels."""
    found = re.findall(rf"^{name}{{(.*)}} (\S+)$", metrics, re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for text, value in found if all(each in text for each in wanted))


def test_steps_are_counted_as_the_engine_s_own_metrics_tell(ran: Ran) -> None:
    steps = total(ran.metrics, "specschedule_engine_steps_total")
    # One request at a time: each wait for tokens is one step.
    assert steps == total(ran.metrics, "vllm:inter_token_latency_seconds_count") > 0
    seconds = total(ran.metrics, "specschedule_engine_step_seconds_total")
    waited = total(ran.metrics, "vllm:inter_token_latency_seconds_sum")
    assert seconds == pytest.approx(waited, abs=1e-5 * steps)
    planned = {"tokens": "2", "graph_mode": "NONE", "part": "stable"}
    assert total(ran.metrics, "specschedule_engine_steps_total", **planned) == steps
    for kind in ("draft", "accepted"):
        ours = total(ran.metrics, f"specschedule_engine_{kind}_tokens_total", tokens="2")
        assert ours == total(ran.metrics, f"vllm:spec_decode_num_{kind}_tokens_total")
    assert total(ran.metrics, "specschedule_engine_draft_tokens_total") > 0


def test_the_log_has_no_line_for_each_step(ran: Ran) -> None:
    assert "Iteration(" not in ran.log
    assert "CUDAGraph Stats" not in ran.log
