"""Accuracy and cost of the load generator, beside vllm bench serve and AIPerf on one server.

The server is the simulated engine in its world ``steady``: every step takes 50 ms, so each stream
gets 20 chunks a second, and the engine says when it wrote them. Prints one table, and
writes it to a page where one is named; exits 1 when a promise is not kept, or not measured because
a tool cannot be had.

    python tests/bench/bench_load.py --page PAGE
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from specschedule.core.evidence import Cell
from specschedule.load import client as client_module
from specschedule.load.client import Client, Stream
from specschedule.load.readers import read_run
from specschedule.load.records import Prepared, Record

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "specschedule.cli.main"]
AIPERF = "0.13.0"
MODEL = "sim/model"
HALF = 256
"""Streams at half of saturation: 512 are what one sim and one client fill two cores with."""
CORES = 2
"""What the server and whoever measures it may use, however many there are."""
FEW, MANY = 64, 448
"""Requests of the two runs whose difference is the cost of chunks alone."""
IN_FLIGHT = 64
TOKENS = 100
SINGLE = 40
"""Requests of the runs with one in flight."""
SEVERAL = 16
"""In flight where tools are compared under load."""
VLLM_BENCH, AIPERF_NAME = OTHERS = ("vllm bench serve", "AIPerf")
NOT_MEASURED = "not measured"
PROMPT = 256
"""Tokens of a prompt, as the simulated engine counts them."""
STEP_TOKENS = PROMPT // 4
"""Prompt tokens of a step where TTFT is compared: every prompt takes four, 200 ms."""
AIPERF_PROMPT, VLLM_PROMPT = 960, 1850
"""Prompt lengths to ask the other tools for, to get a little less than ``PROMPT``: theirs are
counted in bytes, of text or of what random tokens decode to."""


class Row(NamedTuple):
    """A line of the table."""

    what: str
    measured: str
    promise: str
    kept: bool | None
    """None where nothing was promised."""

    @property
    def said(self) -> str:
        """What became of the promise."""
        if self.kept is None:
            return ""
        return "kept" if self.kept else "MISSING" if self.measured == NOT_MEASURED else "BROKEN"


class Tool(NamedTuple):
    """A load generator that can be run."""

    name: str
    run: Callable[[str, int, int, int, Path], Path | None]
    """Called with URL, requests in flight, requests, output tokens and a folder; returns the
    file with its requests."""


def main() -> int:
    """Measure everything, print the table and write it down."""
    # The server and the other tools inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=Path, help="where to write the table")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        with engine() as url:
            for measure in (accuracy, held, crowd):
                step(measure.__name__)
                rows.extend(measure(url))
            tools = [Tool("specschedule load", ours), *others(rows)]
            rows.extend(cost(url, tools, Path(folder)))
            rows.extend(agreement(url, tools, Path(folder), SEVERAL))
        # vllm bench serve tries its first prompt out, and would find it in the cache later.
        steps = ("--max-num-batched-tokens", str(STEP_TOKENS), "--no-enable-prefix-caching")
        with engine(*steps) as url:
            rows.extend(agreement(url, tools, Path(folder), 1))
    width = max(len(row.what) for row in rows)
    for row in rows:
        click.echo(f"{row.what:<{width}}  {row.measured:>16}  {row.promise:<24}  {row.said}")
    if options.page is not None:
        options.page.write_text(page(rows))
    return 1 if any(row.kept is False for row in rows) else 0


def page(rows: list[Row]) -> str:
    """Return the table as a page of Markdown."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.partition(":")[2].strip() for x in cpus if x.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0))
    asked = [row for row in rows if row.kept is not None]
    return "\n".join(
        [
            "# make bench-load",
            "",
            f"Written by that command on {now} at commit {commit or 'unknown'}; specschedule "
            f"{version('specschedule')}, Python {platform.python_version()}; {cores} "
            f"cores ({model or 'unknown'}), shared by server and load.",
            "",
            f"{sum(row.kept is True for row in asked)} of {len(asked)} promises are kept. The "
            "server is the simulated engine whose every step takes 50 ms. Errors are against its "
            "own time stamps; the other tools ran in the same run against the same server. With "
            "several in flight TTFT depends on when in a step a tool sends, so only TPOT is "
            "compared there.",
            "",
            "| what | measured | promise | |",
            "|---|---:|---|---|",
            *(f"| {row.what} | {row.measured} | {row.promise} | {row.said} |" for row in rows),
            "",
        ]
    )


def missing(what: str, promise: str) -> Row:
    """Return the row of a promise that was not measured: that is not keeping it."""
    return Row(what, NOT_MEASURED, promise, False)


def step(what: str) -> None:
    """Say what is going on."""
    click.echo(f"# {time.strftime('%H:%M:%S')} {what}", err=True)


@contextmanager
def engine(*arguments: str) -> Iterator[str]:
    """Serve the world ``steady`` on a port of loopback."""
    port = 18731
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [
            *(*COMMAND, "sim", "--world", "steady", "--seed", "1", "--boot", "100ms"),
            *("--host", "127.0.0.1", "--port", str(port), *arguments),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while process.poll() is None:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def generated(url: str) -> int:
    """Return the tokens that the engine has generated so far: here, the chunks."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith("vllm:generation_tokens_total")
    )


class Timed(Stream):
    """An answer that also keeps what the engine says of its own times."""

    said: dict[int, bytes] = {}
    """Last event by prompt number."""

    def end(self, status: int | None) -> None:
        """Keep the last event, to be read when time no longer matters."""
        super().end(status)
        Timed.said[self._record.request.index] = self._last


def accuracy(url: str) -> list[Row]:
    """Compare times with the engine's own, at half of saturation.

    Both clocks are the machine's monotonic one. The true time to first token counts from when the
    client's bytes went out: the engine's own stamp of a request comes when its busy loop gets to
    it, and a user waits for that too.
    """

    async def run() -> list[Record]:
        records = []
        async with Client(url, endpoint="completions", timeout=120) as client:
            clock = asyncio.get_running_loop().time

            async def stream(number: int) -> None:
                await asyncio.sleep(number * 5 / HALF)
                for request in requests[number::HALF]:
                    record = Record(request, "c", clock())
                    await client.send(record)
                    records.append(record)

            await asyncio.gather(*(stream(number) for number in range(HALF)))
        return records

    requests = [timed_request(number) for number in range(3 * HALF)]
    client_module.Stream = Timed  # type: ignore[misc]
    try:
        records = asyncio.run(run())
    finally:
        client_module.Stream = Stream  # type: ignore[misc]
    failed = sum(record.error is not None for record in records)
    ttft, tpot = [], []
    for record in records:
        if record.error is None and record.tpot is not None:
            said = json.loads(Timed.said[record.request.index].removeprefix(b"data:"))["sim"][0]
            first, last = said["first_token_written"], said["last_token_written"]
            later = TOKENS - said["tokens_in_first_chunk"]
            ttft.append(abs(record.chunks[0][0] - first) * 1000)
            tpot.append(abs(record.tpot - (last - first) / later) * 1000)
    where = f"{HALF} in flight"
    return [
        bound(f"TTFT error, p99, {where}", float(np.quantile(ttft, 0.99)), "ms", 1.0),
        bound(f"TPOT error, p99, {where}", float(np.quantile(tpot, 0.99)), "ms", 1.0),
        bound(f"requests failed of {len(records)}, {where}", failed, "", 0),
    ]


def timed_request(number: int) -> Prepared:
    """Return a request whose answer ends with the engine's own times."""
    body = {
        "model": MODEL,
        "prompt": [4 + number % 190, 5 + number // 190],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "sim_timestamps": True,
    }
    return Prepared(number, None, json.dumps(body).encode(), TOKENS)


def bound(what: str, value: float, unit: str, most: float) -> Row:
    """Return a row whose promise is an upper bound."""
    shown = f"{value:.3f} {unit}" if unit else f"{value:g}"
    return Row(what, shown, f"at most {most:g} {unit}".rstrip(), value <= most)


def load(url: str, concurrency: int, requests: int, tokens: int) -> Cell:
    """Run ``specschedule load`` with one hold window."""
    profile = {
        "windows": [
            {"profile": {"kind": "hold", "concurrency": concurrency}, "requests": requests}
        ],
        "outputTokens": tokens,
        "warmUpTimeout": "12s",
    }
    answer = subprocess.run(
        [*COMMAND, "load", "--url", url, "--profile", "-", "--slo", "ttft=1s,tpot=100ms"],
        input=json.dumps(profile),
        capture_output=True,
        text=True,
        check=True,
    )
    return Cell.model_validate_json(answer.stdout)


def held(url: str) -> list[Row]:
    """Hold 16 in flight and see for how long it was exactly 16."""
    cell = load(url, 16, 20, 200)
    share = cell.in_flight_exact or 0.0
    return [
        Row("share of time with exactly 16 in flight", f"{share:.2%}", "99.9%", share >= 0.999),
        Row("engine's own mean in flight", f"{cell.batch_size_mean}", "", None),
    ]


def crowd(url: str) -> list[Row]:
    """Hold 512 streams at 20 chunks a second each."""
    cell = load(url, 512, 20, TOKENS)
    assert cell.output_tokens is not None
    rate = cell.output_tokens / cell.window_seconds
    return [
        Row("512 streams: chunks a second", f"{rate:.0f}", "at least 10000", rate >= 10_000),
        Row("512 streams: window", cell.void or "counts", "not void", cell.void is None),
        bound("512 streams: send lag, p99", cell.send_lag_ms_p99 or 0.0, "ms", 5.0),
    ]


def others(rows: list[Row]) -> list[Tool]:
    """Return the other tools that can be had here; say which cannot."""
    sys.path.insert(0, str(ROOT / "hack/vllm"))
    import environment  # type: ignore[import-not-found]

    try:
        here = environment.require()
    except environment.Failure as error:
        rows.append(Row("vllm bench serve and AIPerf", "left out", str(error), None))
        return []
    tools = [Tool(VLLM_BENCH, lambda *asked: vllm_bench(here, *asked))]
    try:
        aiperf = install_aiperf()
    except subprocess.CalledProcessError as error:
        rows.append(Row(f"AIPerf {AIPERF}", "left out", f"it does not install: {error}", None))
        return tools
    return [*tools, Tool(AIPERF_NAME, lambda *asked: run_aiperf(aiperf, here.model, *asked))]


def ours(url: str, in_flight: int, requests: int, tokens: int, folder: Path) -> Path | None:
    """Run our own generator; its cells say all that is compared."""
    cell = load(url, in_flight, requests, tokens)
    (folder / "ours.json").write_text(json.dumps(cell.plain()))
    return None


def vllm_bench(
    here: Any, url: str, in_flight: int, requests: int, tokens: int, folder: Path
) -> Path:
    """Run ``vllm bench serve`` (by its module: the CPU build's console script does not start)."""
    script = (
        "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
        "p = argparse.ArgumentParser(); add_cli_args(p); main(p.parse_args())"
    )
    quiet(
        [
            *(str(here.python), "-c", script, "--backend", "openai", "--base-url", url),
            *("--endpoint", "/v1/completions", "--model", MODEL, "--tokenizer", str(here.model)),
            *("--dataset-name", "random", "--random-input-len", str(VLLM_PROMPT)),
            *("--random-output-len", str(tokens), "--num-prompts", str(requests)),
            *("--max-concurrency", str(in_flight), "--ignore-eos", "--disable-tqdm"),
            *("--save-result", "--save-detailed", "--result-dir", str(folder)),
            *("--result-filename", "vllm.json"),
        ],
        here.variables,
    )
    return folder / "vllm.json"


def install_aiperf() -> Path:
    """Return the aiperf command, from a virtual environment of its own in the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "specschedule" / f"aiperf-{AIPERF}"
    command = home / "bin/aiperf"
    if not command.exists():
        step(f"installing AIPerf {AIPERF} (0.9 GB) into {home}")
        uv = [sys.executable, "-m", "uv"]
        if subprocess.run([*uv, "--version"], capture_output=True, check=False).returncode:
            uv = ["uv"]
        quiet([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)], {})
        python = str(home / "bin/python")
        quiet([*uv, "pip", "install", "--quiet", "--python", python, f"aiperf=={AIPERF}"], {})
    return command


def run_aiperf(
    command: Path, tokenizer: Path, url: str, in_flight: int, requests: int, tokens: int, out: Path
) -> Path:
    """Run AIPerf."""
    quiet(
        [
            *(str(command), "profile", "-m", MODEL, "--url", url, "--streaming"),
            *("--endpoint-type", "completions", "--tokenizer", str(tokenizer)),
            *("--concurrency", str(in_flight), "--request-count", str(requests)),
            *(
                "--synthetic-input-tokens-mean",
                str(AIPERF_PROMPT),
                "--output-tokens-mean",
                str(tokens),
            ),
            *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{tokens}"),
            *("--use-server-token-count", "--ui", "none"),
            *("--output-artifact-dir", str(out / "aiperf")),
        ],
        {},
    )
    return out / "aiperf" / "profile_export.jsonl"


def quiet(command: list[str], variables: dict[str, str]) -> None:
    """Run a command; show what it said only when it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | variables, check=False
    )
    if done.returncode:
        click.echo((done.stdout + done.stderr)[-2000:], err=True)
        done.check_returncode()


def agreement(url: str, tools: list[Tool], folder: Path, in_flight: int) -> list[Row]:
    """Compare mean TTFT and TPOT with the other tools'.

    With one in flight the engine is idle when a request comes, so that what a tool sees does not
    depend on its own pauses between requests. With several, TTFT does: it is shown, and only TPOT
    must agree.
    """
    own, *others = tools
    folder = folder / f"agreement-{in_flight}"
    folder.mkdir()
    step(f"agreement, {in_flight} in flight: {own.name}")
    mine = own_means(url, folder, in_flight)
    rows = [
        Row(f"mean {what}, {in_flight} in flight: {own.name}", f"{value:.2f} ms", "", None)
        for what, value in mine.items()
    ]
    means: dict[str, dict[str, float]] = {}
    for tool in others:
        step(f"agreement, {in_flight} in flight: {tool.name}")
        path = tool.run(url, in_flight, SINGLE * in_flight, 16, folder)
        assert path is not None
        means[tool.name] = tool_means(path, in_flight)
    for name in OTHERS:
        for what, value in mine.items():
            title = f"mean {what}, {in_flight} in flight: {name}"
            promised = in_flight == 1 or what == "TPOT"
            promise = "within 2% of ours" if promised else ""
            if name in means:
                off = means[name][what] / value - 1
                shown = f"{means[name][what]:.2f} ms ({off:+.1%})"
                rows.append(Row(title, shown, promise, abs(off) <= 0.02 if promised else None))
            elif promised:
                rows.append(missing(title, promise))
    return rows


def own_means(url: str, folder: Path, in_flight: int) -> dict[str, float]:
    """Return our mean TTFT and TPOT, in ms."""
    out = folder / "ours.jsonl"
    profile = {
        "windows": [{"kind": "hold", "concurrency": in_flight}],
        "promptTokens": PROMPT,
        "outputTokens": 16,
    }
    subprocess.run(
        [
            *(*COMMAND, "load", "--url", url, "--profile", "-", "--slo", "ttft=1s"),
            *("--out", str(out)),
        ],
        input=json.dumps(profile | {"warmUpTimeout": "12s"}),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    counted = [line for line in lines if line["counted"]]
    return {
        "TTFT": float(np.mean([line["ttftMs"] for line in counted])),
        "TPOT": float(np.mean([line["tpotMs"] for line in counted])),
    }


def tool_means(path: Path, in_flight: int) -> dict[str, float]:
    """Return another tool's mean TTFT and TPOT, in ms.

    The first requests of a process pay for its connections and its imports. With one in flight,
    prompts that took another number of steps do not count: lengths are not quite what was asked.
    """
    records = [
        record
        for record in read_run(path).records[in_flight:]
        if in_flight > 1 or ceil((record.prompt_tokens or 0) / STEP_TOKENS) == 4
    ]
    return {
        "TTFT": float(np.mean([1000 * r.ttft for r in records if r.ttft is not None])),
        "TPOT": float(np.mean([1000 * r.tpot for r in records if r.tpot is not None])),
    }


def cost(url: str, tools: list[Tool], folder: Path) -> list[Row]:
    """Return the CPU seconds per million chunks: the difference between two runs of each tool."""
    seconds: dict[str, float] = {}
    for tool in tools:
        step(f"cost: {tool.name}")
        points = []
        for requests in (FEW, MANY):
            chunks, spent = generated(url), children()
            tool.run(url, IN_FLIGHT, requests, TOKENS, folder)
            points.append((generated(url) - chunks, children() - spent))
        (few, less), (many, more) = points
        seconds[tool.name] = (more - less) / (many - few) * 1e6
    mine = seconds[tools[0].name]
    rows = [
        Row(f"CPU s per million chunks: {name}", f"{value:.1f}", "", None)
        for name, value in seconds.items()
    ]
    what, promise = "ours over the better of the others", "at most 0.5"
    if set(OTHERS) <= set(seconds):
        share = mine / min(seconds[name] for name in OTHERS)
        return [*rows, Row(what, f"{share:.2f}", promise, share <= 0.5)]
    return [*rows, missing(what, promise)]


def children() -> float:
    """Return CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
