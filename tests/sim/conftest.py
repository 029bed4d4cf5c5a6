"""A simulated server as a real process on a port of its own."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

SCHEDULE = [[1, 2, 5], [3, 16, 1]]


def speculative(rows: object = None, **fields: object) -> list[str]:
    """The speculative argument of an arm."""
    config: dict[str, object] = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 5}
    if rows is not None:
        config["num_speculative_tokens_per_batch_size"] = rows
    return ["--speculative-config", json.dumps(config | fields)]


class Process:
    """A started simulator; ``url`` is empty when it ended before it listened."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid
        self.url = ""
        self.log: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            self.log.append(line.rstrip("\n"))
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break

    def end(self) -> int:
        """Ask it to stop, and return its exit status; its whole log is then read."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Return the exit status of a process that ends by itself."""
        rest, _ = self._process.communicate(timeout=60)
        self.log += rest.splitlines()
        return self._process.returncode

    @property
    def text(self) -> str:
        """The log so far."""
        return "\n".join(self.log)

    def get(self, path: str, headers: Mapping[str, str] = {}) -> tuple[int, Any]:
        """GET; JSON is parsed."""
        return self._ask(urllib.request.Request(self.url + path, headers=dict(headers)))

    def post(self, path: str, body: object, headers: Mapping[str, str] = {}) -> tuple[int, Any]:
        """POST JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        return self._ask(urllib.request.Request(self.url + path, data=data, headers=dict(headers)))

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """POST a streamed request and return its events; the last must be [DONE]."""
        _, text = self.post(path, {**body, "stream": True})
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    def metrics(self) -> dict[str, float]:
        """Sum every sample by name over its labels, apart from buckets."""
        _, text = self.get("/metrics")
        out: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    out[sample.name] = out.get(sample.name, 0.0) + sample.value
        return out

    def cpu_seconds(self) -> float:
        """CPU time that the process has used."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _ask(request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, body, kind = answer.status, answer.read(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            with error:
                status, body, kind = error.code, error.read(), error.headers["Content-Type"]
        text = body.decode()
        return status, json.loads(text) if kind and "json" in kind else text


@contextmanager
def started(*argv: str, **environment: str) -> Iterator[Process]:
    """Run ``specschedule sim`` until the block ends."""
    command = [sys.executable, "-m", "specschedule.cli.main", "sim", "--boot", "20ms"]
    command += ["--host", "127.0.0.1", "--port", "0", *argv]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield Process(process)
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="session")
def start() -> Callable[..., AbstractContextManager[Process]]:
    """Starts simulators: ``with start("--world", "demo") as process``."""
    return started


@pytest.fixture(scope="session")
def dynamic() -> list[str]:
    """The speculative argument of an arm with a schedule."""
    return speculative(SCHEDULE)


@pytest.fixture(scope="session")
def static() -> list[str]:
    """The speculative argument of an arm without one."""
    return speculative()


@pytest.fixture(scope="module")
def demo(dynamic: list[str]) -> Iterator[Process]:
    """The demo world with a schedule, development endpoints on."""
    with started("--seed", "1", *dynamic, VLLM_SERVER_DEV_MODE="1") as process:
        yield process
