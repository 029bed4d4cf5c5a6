"""Real vLLM on CPU with our parts inside, brought to it as a person would: files, variables,
arguments, requests."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from specschedule.core.schedule import EffectiveTable
from specschedule.engine import deliver, settings

from .booted import free_port, running

EVERY_K = [[1, 4, 4], [5, 8, 3], [9, 12, 2], [13, 14, 1], [15, 16, 0]]
LIMITS = {"max_tokens": 4, "max_num_seqs": 16}
BY_CONTEXT = [[1, 1, 1, 128, 1], [1, 1, 129, 1024, 4], [2, 16, 1, 128, 0], [2, 16, 129, 1024, 2]]
"""Shorter and longer contexts than 128 tokens, alone and together: four different K."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Booted:
    """A server, with where each part of ours answers."""

    port: int
    ports: Mapping[str, int]
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def complete(self, prompt: Sequence[int], tokens: int, **xargs: str) -> None:
        body = {"model": "pair", "prompt": list(prompt), "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True} | ({"vllm_xargs": xargs} if xargs else {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, said
        assert said["usage"]["completion_tokens"] == tokens

    def kill(self) -> None:
        """End all of its processes at once, as a machine that runs out of memory does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def together(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        """Send so many requests at once; return when all are answered."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            work = [pool.submit(self.complete, each, tokens) for each in prompts]
            for each in work:
                each.result()

    def metrics(self) -> dict[str, float]:
        """Every counter and gauge, summed over its series."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found: dict[str, float] = {}
        for name, value in re.findall(r"^([a-z_:]+)(?:{.*})? (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found


def prompt(tokens: int, first: int = 1) -> list[int]:
    return [5 + (first + 7 * at) % 200 for at in range(tokens)]


@contextmanager
def serving(
    engine: Mapping[str, Any],
    folder: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    rows: Sequence[Sequence[int]] = EVERY_K,
    inside: bool = True,
    again: Booted | None = None,
    beside: Path | None = None,
) -> Iterator[Booted]:
    """Run the model pair's server until the block ends.

    Args:
        engine: What ``hack/vllm where`` says.
        folder: For its log and what is delivered to it.
        arguments: Beyond the usual ones.
        variables: Its environment, beyond this process's.
        rows: Its schedule.
        inside: Whether our parts are delivered and listen; which of them run, the arguments say.
        again: An earlier server, now dead, whose ports it takes.
        beside: One more folder of modules.
    """
    port = again.port if again else free_port()
    speculative = {
        "method": "draft_model",
        "model": engine["drafter"],
        "num_speculative_tokens": max(row[-1] for row in rows),
        "num_speculative_tokens_per_batch_size": [list(row) for row in rows],
    }
    command = [sys.executable, "hack/vllm", "serve", "--port", str(port), "--"]
    command += ["--speculative-config", json.dumps(speculative), *arguments]
    names = (settings.RECORDER_PORT, settings.SCHEDULER_PORT, settings.FINGERPRINT_PORT)
    ports = again.ports if again else {name: free_port() for name in names if inside}
    variables = {name: str(value) for name, value in ports.items()} | dict(variables)
    folder.mkdir(parents=True, exist_ok=True)
    if inside:
        deliver.deliver(folder / "plugins")
        paths = [folder / "plugins", *([beside] if beside else [])]
        variables["PYTHONPATH"] = ":".join(map(str, paths))
    with running(command, port, folder / "log", variables) as process:
        yield Booted(port, ports, process, folder / "log")


def unplanned(lines: Sequence[Line], table: EffectiveTable) -> list[Line]:
    """Return the scheduler's steps whose K is not the table's for their batch and context."""
    return [
        line for line in lines if line["tokens"] != table.tokens(line["batchSize"], line["context"])
    ]


def decoding(lines: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Return steps that verify drafts, each with the step before it, which planned them."""
    return [(before, line) for before, line in pairwise(lines) if line["decodes"]]


def undrafted(lines: Sequence[Line]) -> list[Line]:
    """Return the steps that verify otherwise than the step before them planned."""
    return [line for before, line in decoding(lines) if line["verified"] != before["tokens"]]
