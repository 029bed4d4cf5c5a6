"""Starts vLLM's API server with what suits a small machine, asks it, and stops it again."""

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from environment import Environment, Failure

MODEL_NAME = "pair"
ARGUMENTS = (
    "--enforce-eager",
    "--dtype=float32",
    "--max-model-len=1024",
    "--max-num-seqs=16",
    f"--kv-cache-memory-bytes={256 * 2**20}",
)
"""Eager mode boots without compiling; 16 requests of 1024 tokens fit into the KV cache. In 32-bit
floats a token of the batch costs about a twentieth of reading the weights, which is what makes
drafting lose in large batches, as it does on a GPU."""
BOOT_SECONDS = 300.0
"""A boot takes about half a minute on two idle cores."""


def program(here: Environment) -> list[str]:
    """Return the start of the command line, up to the server's own arguments."""
    # The "vllm" script asks for a distribution named vllm, which the CPU build is not.
    return [str(here.python), "-m", "vllm.entrypoints.openai.api_server"]


def arguments(here: Environment) -> list[str]:
    """Return the arguments of every server, in a pod and outside, without speculation.

    The default thread binding stays: on two cores, one computes and the other is left to the
    server's other processes and to the clients.
    """
    return ["--model", str(here.model), "--served-model-name", MODEL_NAME, *ARGUMENTS]


def command(here: Environment, port: int, extra: Sequence[str] = ()) -> list[str]:
    """Return the command line of a server on loopback; `extra` comes last, so that it wins."""
    listen = ("--host", "127.0.0.1", "--port", str(port))
    return [*program(here), *arguments(here), *listen, *extra]


def as_shell(here: Environment, argv: Sequence[str]) -> str:
    """Return the command with its environment, for a person to copy."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in here.variables.items()]
    return " ".join([*variables, shlex.join(argv)])


def speculative(here: Environment, tokens: int, rows: object = None) -> list[str]:
    """Return the argument that turns drafting on, with a schedule where rows are given."""
    config = {"method": "draft_model", "model": str(here.drafter), "num_speculative_tokens": tokens}
    if rows is not None:
        config["num_speculative_tokens_per_batch_size"] = rows
    return ["--speculative-config", json.dumps(config)]


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    status: int
    text: str


@dataclass(frozen=True)
class Server:
    """A server process.

    Attributes:
        port: Its port on loopback.
        log: What it wrote, standard output and error together.
        process: The API server, leader of a process group with its children in it.
    """

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def request(self, path: str, body: object = None, timeout: float = 120.0) -> Answer:
        """Send a GET, or a POST where there is a body, and read the whole answer.

        Raises:
            OSError: Nobody answers.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with closing(connection):
            if body is None:
                connection.request("GET", path)
            else:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode())

    def wait(self) -> None:
        """Return when the server is healthy.

        Raises:
            Failure: It ended, or was not healthy in time; the text ends with its last words.
        """
        deadline = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failure(f"vLLM ended with {self.process.returncode}:\n{self.last_words()}")
            with suppress(OSError):
                if self.request("/health", timeout=5.0).status == 200:
                    return
            time.sleep(0.5)
        raise Failure(f"vLLM was not healthy after {BOOT_SECONDS:.0f} s:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """End the server and all its children."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=20)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def started(
    here: Environment, extra: Sequence[str], variables: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start a server on a free port; it is ended, and its log gone, at the end.

    Args:
        here: The environment to run it in.
        extra: Arguments beyond the usual ones.
        variables: Environment variables beyond the usual ones.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(
            command(here, port, extra),
            env={**os.environ, **here.variables, **(variables or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        server = Server(port, Path(log.name), process)
        try:
            yield server
        finally:
            server.stop()
