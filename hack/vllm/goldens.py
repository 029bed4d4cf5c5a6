"""Writes down what the real engine says, for tests/goldens.

Each part needs a server of its own, or none, so that a test can renew only what it compares.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import neutral
import server
from environment import HERE, VERSION, Environment, Failure

ROWS = [[1, 2, 2], [3, 6, 1], [7, 16, 0]]
TOKENS = 4
DISABLED = "Dynamic speculative decoding is not supported with data parallelism"
_REFUSED: tuple[object, ...] = (
    None,
    [],
    {"1-8": 3},
    [[1, 8]],
    [[1, 16, 1, 256, 4]],
    [[1, 8, 2.5]],
    [[1, 8, -1]],
    [[8, 1, 3]],
    [[0, 8, 3]],
    [[2, 8, 3]],
    [[1, 8, 3], [8, 16, 1]],
)
_LIST_ARGUMENTS = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
actions = make_arg_parser(FlexibleArgumentParser())._actions
found = [{"names": a.option_strings or [a.dest], "value": a.nargs != 0} for a in actions]
print(json.dumps(sorted(found, key=lambda one: one["names"])))
"""
_COMPLETION = {"model": server.MODEL_NAME, "prompt": "Hello", "max_tokens": 12, "temperature": 0}
_CHAT = {
    "model": server.MODEL_NAME,
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 6,
    "temperature": 0,
}
_STREAM = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


def write(here: Environment, out: Path, parts: Sequence[str], say: Callable[[str], None]) -> None:
    """Write the goldens of some parts into a folder.

    Raises:
        Failure: The engine did something else than the part is about.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(_index())
    for part in parts:
        began = time.monotonic()
        _, make = PARTS[part]
        make(here, out)
        say(f"{part}: {time.monotonic() - began:.0f} s")


def _arguments(here: Environment, out: Path) -> None:
    said = _in_engine(here, ["-c", _LIST_ARGUMENTS])
    neutral.dump(out / "arguments.json", json.loads(said.splitlines()[-1]))


def _refusals(here: Environment, out: Path) -> None:
    cases = [{"rows": rows, "max_num_seqs": 16, "max_tokens": TOKENS} for rows in _REFUSED]
    said = _in_engine(here, [str(HERE / "lookup.py")], "\n".join(map(json.dumps, cases)))
    answers = [json.loads(line) for line in said.splitlines()[-len(cases) :]]
    found: list[object] = [
        {"rows": rows, "refusal": answer["refusal"]}
        for rows, answer in zip(_REFUSED, answers, strict=True)
    ]
    neutral.dump(out / "refusals.json", found)


def _none(here: Environment, out: Path) -> None:
    with server.started(here, []) as running:
        running.wait()
        _keep_log(here, running, out / "startup-none.log")
        _keep_metrics(running, out / "metrics-none.json")


def _static(here: Environment, out: Path) -> None:
    with server.started(here, server.speculative(here, TOKENS)) as running:
        running.wait()
        _keep_log(here, running, out / "startup-static.log")


def _schedule(here: Environment, out: Path) -> None:
    arguments = server.speculative(here, TOKENS, ROWS)
    with server.started(here, arguments, {"VLLM_SERVER_DEV_MODE": "1"}) as running:
        running.wait()
        _keep_log(here, running, out / "startup-schedule.log")
        asked = {
            "completion-stream": ("/v1/completions", {**_COMPLETION, **_STREAM}),
            "chat-stream": ("/v1/chat/completions", {**_CHAT, **_STREAM}),
            "error-model": ("/v1/completions", {**_COMPLETION, "model": "other"}),
            "error-length": ("/v1/completions", {**_COMPLETION, "prompt": "x" * 2000}),
        }
        for name, (path, body) in asked.items():
            answer = running.request(path, body)
            kept = f"HTTP {answer.status}\n{neutral.text(here, answer.text).rstrip()}\n"
            (out / f"{name}.txt").write_text(kept)
        _keep_metrics(running, out / "metrics-schedule.json")
        neutral.dump(out / "version.json", json.loads(running.request("/version").text))
        info = json.loads(running.request("/server_info?config_format=json").text)
        neutral.dump(out / "server-info.json", _server_info(here, info))


def _data_parallel(here: Environment, out: Path) -> None:
    arguments = [*server.speculative(here, TOKENS, ROWS), "--data-parallel-size", "2"]
    with server.started(here, arguments) as running:
        deadline = time.monotonic() + server.BOOT_SECONDS
        while DISABLED not in running.log.read_text(errors="replace"):
            if running.process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"no word about the schedule:\n{running.last_words()}")
            time.sleep(0.5)
        running.stop()
        _keep_log(here, running, out / "startup-data-parallel.log", last=DISABLED)


def _refused(here: Environment, out: Path) -> None:
    for by, rows in (("engine", [[2, 8, 2]]), ("arguments", [[1, 8, 1, 256, 2]])):
        with server.started(here, server.speculative(here, TOKENS, rows)) as running:
            if running.process.wait(server.BOOT_SECONDS) == 0:
                raise Failure(f"vLLM accepted {rows}")
            _keep_log(here, running, out / f"startup-refused-by-{by}.log")


PARTS: dict[str, tuple[str, Callable[[Environment, Path], None]]] = {
    "arguments": ("every argument of the server: its names, whether a value follows", _arguments),
    "refusals": ("what vLLM's schedule code answers to schedules that it refuses", _refusals),
    "none": ("start-up log and metric families without speculation", _none),
    "static": (f"start-up log with {TOKENS} tokens at every batch size", _static),
    "schedule": (f"start-up log, metric families and answers with the rows {ROWS}", _schedule),
    "data-parallel": ("start-up log up to where the schedule is switched off", _data_parallel),
    "refused": ("start-up logs of two schedules that stop the server", _refused),
}


def _index() -> str:
    return "\n".join(
        [
            f"# What vLLM {VERSION} for CPUs says",
            "",
            "Written by `python3 hack/vllm goldens`, not by hand. `--part NAME` writes one part:",
            "",
            *(f"- `{name}`: {what}" for name, (what, _) in PARTS.items()),
            "",
            "Process ids, times, ports, request ids, paths and sizes of the machine are words in",
            "capitals; progress bars and the list of routes are left out. `tests/vllm` compares",
            "arguments, refusals, metric families, answers and what a start-up log tells with the",
            "live engine.",
            "",
        ]
    )


def _keep_log(here: Environment, running: server.Server, to: Path, last: str | None = None) -> None:
    """Write the log; with `last`, only up to the first line that says so."""
    lines = neutral.log(here, running.log.read_text(errors="replace")).splitlines(keepends=True)
    if last is not None:
        lines = lines[: next(at for at, line in enumerate(lines, 1) if last in line)]
    to.write_text("".join(lines))


def _keep_metrics(running: server.Server, to: Path) -> None:
    for _ in range(3):
        answer = running.request("/v1/completions", _COMPLETION)
        if answer.status != 200:
            raise Failure(f"vLLM answered {answer.status}: {answer.text}")
    neutral.dump(to, neutral.families(running.request("/metrics").text))


def _server_info(here: Environment, info: dict[str, dict[str, object]]) -> dict[str, object]:
    """Keep the keys of every part, and the values of the one that holds the schedule."""
    speculative = json.dumps(info["vllm_config"]["speculative_config"])
    return {
        "keys": {part: sorted(values) for part, values in info.items()},
        "speculative_config": json.loads(neutral.text(here, speculative)),
    }


def _in_engine(here: Environment, argv: Sequence[str], given: str = "") -> str:
    done = subprocess.run(
        [str(here.python), *argv],
        input=given,
        env={**os.environ, **here.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"vLLM's Python ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout
