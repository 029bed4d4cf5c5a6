"""Does verify attention's time follow the summed context or the longest? ``make bench-attention``

The question that vLLM's pull request 48944 left open: which number of a batch's contexts should a
schedule with a context axis look at? Batches of equal size, equal K and equal summed context, but
of different spread, run side by side through vLLM's own attention, as each layer of a step calls
it; others with half and twice the sum tell the two apart. Where the engine's torch sees a GPU,
that is what is measured, with more requests and longer contexts.

    python tests/bench/bench_attention.py [--python PYTHON --model FOLDER] [--page PAGE.md]

Exits 1 when the backend's outputs are wrong or the times do not tell: then they answer nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from hack.demo.evidence import heading, portable, show  # noqa: E402

from tests.bench.paired import Interval, interval  # noqa: E402
from tests.booted import end_with_servers, installed  # noqa: E402

KS = (0, 3)
"""No draft, as a decode step has, and three."""
ROUNDS = 12
MOST_APART = 0.03
"""Relative difference of outputs that 16-bit floats allow."""
WHOLE, LITTLE = 0.8, 0.2
"""Time follows what doubles it by nearly two, and not what leaves it nearly alone."""

Batch = list[int]


@dataclass(frozen=True)
class Load:
    """Size of the batches."""

    requests: int
    mean: int


ON_CPU = Load(requests=8, mean=2048)
ON_GPU = Load(requests=32, mean=4096)


def batches(load: Load) -> dict[str, Batch]:
    """Return the batches by name; the first four have one sum."""
    count, mean = load.requests, load.mean
    half, eighth = count // 2, mean // 8

    def one_long(total: int) -> Batch:
        return [eighth] * (count - 1) + [total - eighth * (count - 1)]

    total = count * mean
    return {
        "all alike": [mean] * count,
        "half of them three times as long": [mean // 2] * half + [3 * mean // 2] * half,
        "half of them fifteen times as long": [eighth] * half + [2 * mean - eighth] * half,
        "one long, the others short": one_long(total),
        "all alike, half the sum": [mean // 2] * count,
        "all alike, twice the sum": [2 * mean] * count,
        "one long, half the sum": one_long(total // 2),
        "one long, twice the sum": one_long(2 * total),
    }


EQUAL = 4
"""How many of them have one sum."""


def measured(python: str, variables: Mapping[str, str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Run the engine's side; return what it found.

    Raises:
        SystemExit: It failed; its words are on standard error.
    """
    script = Path(__file__).with_name("verify_attention.py")
    environment = {**os.environ, **variables, "PYTHONPATH": str(script.parent)}
    with tempfile.NamedTemporaryFile("r") as answer:
        words = [python, str(script), json.dumps(asked), answer.name]
        process = subprocess.Popen(
            words, env=environment, stdout=sys.stderr, start_new_session=True
        )
        try:
            process.wait()
        finally:
            # The engine's own processes too, which an interrupted run would leave.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            sys.exit(f"{script.name} ended with {process.returncode}: its words stand above")
        return dict(json.loads(answer.read()))


def exponents(of: Sequence[Batch], seconds: Sequence[Sequence[float]]) -> tuple[Interval, Interval]:
    """Return how time grows with the sum and with the longest, each with the other held.

    An exponent of 1 is time that doubles with it, 0 time that does not care. One fit for each
    round, so that the interval is of rounds.

    Args:
        of: The batches.
        seconds: Seconds by batch and round.
    """
    known = np.array([[1.0, np.log(sum(batch)), np.log(max(batch))] for batch in of])
    fits = np.linalg.lstsq(known, np.log(np.array(seconds)), rcond=None)[0]
    return interval(list(fits[1])), interval(list(fits[2]))


def answer(total: Interval, longest: Interval) -> str | None:
    """Say what time follows; None where the intervals do not tell."""
    if total.low >= WHOLE and longest.high <= LITTLE:
        return "the sum"
    if longest.low >= WHOLE and total.high <= LITTLE:
        return "the longest"
    if total.low > LITTLE and longest.low > LITTLE:
        return "both"
    return None


def section(k: int, of: Mapping[str, Batch], found: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return a page's lines about one K, and whether they answer the question."""
    seconds: list[list[float]] = found["seconds"]
    total, longest = exponents(list(of.values()), seconds)
    told = answer(total, longest)
    right = found["difference"] <= MOST_APART
    lines = [
        f"## K={k}: {k + 1} token{'s' if k else ''} of each request in a step",
        "",
        "| batch | summed context | longest | median | ms per layer | against all alike |",
        "|---|---|---|---|---|---|",
    ]
    for at, (name, batch) in enumerate(of.items()):
        ratios = [np.log(a / b) for a, b in zip(seconds[at], seconds[0], strict=True)]
        against = interval(ratios).change() if at else ""
        lines.append(
            f"| {name} | {sum(batch)} | {max(batch)} | {median(batch):.0f} "
            f"| {1e3 * fmean(seconds[at]):.3f} | {against} |"
        )
    lines += [
        "",
        f"Time grows with the sum to the power of {power(total)} where the longest stays, and "
        f"with the longest to the power of {power(longest)} where the sum stays: it follows "
        f"**{told or 'NEITHER CLEARLY'}**.",
        "",
        f"Outputs differ from attention written out in 32-bit floats by {found['difference']:.2%} "
        f"of the largest at most: {'as they may' if right else 'TOO MUCH, the times say nothing'}.",
        "",
    ]
    return lines, right and told is not None


def power(of: Interval) -> str:
    """Return an exponent with its interval."""
    return f"{of.mean:.2f} ({of.low:.2f} to {of.high:.2f}, n = {of.count} rounds)"


def page(load: Load, found: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the page, and whether it answers the question."""
    of = batches(load)
    first = next(iter(found["byK"].values()))
    lines = [
        *heading("make bench-attention", found["vllm"]),
        f"Verify attention of vLLM's backend {first['backend']} on {first['device']} "
        f"({first['threads']} threads, {first['dtype']}), called as a layer of a step calls it: "
        f"{load.requests} requests, heads of an 8B model, blocks anywhere in the KV cache. Every "
        f"batch once a round, in drawn order, {len(first['seconds'][0])} rounds; a sample is "
        f"{first['passes']} passes over four layers. The first {EQUAL} batches have one sum. "
        "Ratios are of one round; intervals are 95 %.",
        "",
        "If time follows the sum, the mean context (times the batch size, it is the sum) is what "
        "a schedule should look at; if it follows the longest, the maximum.",
        "",
    ]
    good = True
    for k, one in found["byK"].items():
        told, clear = section(int(k), of, one)
        lines += told
        good &= clear
    return "\n".join(lines), good


def main() -> int:
    """Measure, print, and write the page."""
    end_with_servers()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", help="a Python with vLLM [that of hack/vllm]")
    parser.add_argument("--model", help="folder of a Llama model, for its tokenizer [of hack/vllm]")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--page", type=Path, help="where to write the page")
    given = parser.parse_args()
    python, model, variables = given.python, given.model, {}
    if python is None or model is None:
        here = installed()
        python, model = python or here["python"], model or here["model"]
        variables = here["env"] if given.python is None else {}
    sees = "import torch; print(int(torch.cuda.is_available()))"
    gpu = subprocess.check_output([python, "-c", sees], text=True).strip() == "1"
    load = ON_GPU if gpu else ON_CPU
    asked = {
        "model": model,
        "dtype": "bfloat16",
        "ks": KS,
        "rounds": given.rounds,
        "batches": list(batches(load).values()),
    }
    text, good = page(load, measured(python, variables, asked))
    text = portable(text)
    show(text, given.page)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
