"""The sweep in one boot of real vLLM against one boot for each K: ``make bench-screen``.

One probe launch and one launch without speculation are screened by ``specschedule screen``, as a
user would; then each K gets a launch of its own, with a schedule of one row. Prints, and writes
down, what each says is best at each batch size. Exits 1 where the probe's choice is worse than
the launches' own by more than they differ from themselves, or where they differ from themselves
so much that nothing is shown. Takes up where it was cut off.

    python tests/bench/bench_screen.py --folder FOLDER [--method ngram] [--page PAGE.md]
        [--part probe ...]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from hack.demo.evidence import heading, show  # noqa: E402
from hack.demo.vllm import NGRAM  # noqa: E402

from specschedule.core.context_axis import every_k  # noqa: E402
from specschedule.core.screening import fixed_arm  # noqa: E402
from specschedule.engine import deliver, settings  # noqa: E402
from specschedule.vllm_facts.instruments import (  # noqa: E402
    FINGERPRINT,
    PROBE,
    SCHEDULER,
    WORKER_EXTENSION,
)
from specschedule.vllm_facts.logs import device_times  # noqa: E402
from tests.booted import booted, free_port, installed  # noqa: E402

POINTS = (1, 4, 12)
MOST = 4
SEQUENCES = 16
ONE_BOOT_SECONDS = 600.0
LEAST_TIE = 0.02
"""Differences below it are ties whatever two windows show."""
LEAST_STEPS = 20
"""Steps of one shape below which their mean time is not shown."""
MOST_SPREAD = 0.1
"""Mean difference between two windows of a launch above which no choice is shown to be right."""
QUESTION = {
    "kind": "SpecSchedule",
    "spec": {
        "slo": {"ttft": "60s", "tpot": "10s"},
        "load": {
            "points": list(POINTS),
            "promptTokens": 64,
            "outputTokens": 32,
            "maxSendLag": "250ms",
        },
        "search": {"maxTokens": MOST},
    },
}
FIXED = {fixed_arm(k): k for k in range(MOST + 1)}
PARTS = ("probe", "none", *FIXED)
AS_LAUNCHES = "The probe chose as the launches would"
OTHERWISE = "The probe CHOSE OTHERWISE than the launches would"
NOT_SHOWN = "NOT SHOWN: the launches differ from themselves too much to tell a right choice"
METHODS = ("draft_model", "ngram")
"""With a model that drafts, and with one that looks the drafts up in what was said before."""


class Bench:
    """Launches of the real engine, and what was measured in each."""

    def __init__(self, folder: Path, method: str) -> None:
        self.folder, self.method = folder, method
        folder.mkdir(parents=True, exist_ok=True)
        self.manifest = folder / "question.yaml"
        self.manifest.write_text(yaml.safe_dump(QUESTION))
        self.engine = installed()

    @property
    def drafting(self) -> dict[str, Any]:
        """How drafts are made, as in a speculative config."""
        if self.method == "ngram":
            return dict(NGRAM)
        return {"method": self.method, "model": self.engine["drafter"]}

    def cells(self, part: str) -> Path:
        return self.folder / f"{part}.jsonl"

    def took(self, part: str) -> Path:
        """File with the seconds that a part took; there once it is whole."""
        return self.folder / f"{part}.seconds"

    def measure(self, part: str) -> None:
        """Boot the part's server and screen it."""
        if self.took(part).exists():
            return
        started = time.monotonic()
        options = {"probe": (), "none": ("--none",)}.get(part)
        if options is None:
            options = ("--tokens", str(FIXED[part]))
        with self._serving(part) as (url, environment):
            say(f"{part}: booted in {time.monotonic() - started:.0f} s")
            command = [sys.executable, "-m", "specschedule.cli.main", "screen", "--url", url]
            command += ["-f", str(self.manifest), "--cells", str(self.cells(part))]
            command += ["--max-num-seqs", str(SEQUENCES), "--graph-sizes", "", *options]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        self.took(part).write_text(f"{seconds:.1f}\n")
        say(f"{part}: {len(self.read(part))} windows, {seconds:.0f} s with its boot")

    def read(self, part: str) -> list[dict[str, Any]]:
        """Return the cells of a part that count."""
        lines = self.cells(part).read_text().splitlines()
        return [cell for line in lines if "void" not in (cell := json.loads(line))]

    def proposal(self) -> dict[str, Any]:
        """Return what ``specschedule propose`` makes of the two screening launches."""
        both = self.folder / "screen.jsonl"
        both.write_text("".join(self.cells(part).read_text() for part in ("probe", "none")))
        command = [sys.executable, "-m", "specschedule.cli.main", "propose", "-o", "json"]
        command += ["-f", str(self.manifest), "--cells", str(both)]
        command += ["--max-num-seqs", str(SEQUENCES), "--graph-sizes", ""]
        return dict(json.loads(subprocess.check_output(command)))

    def device(self) -> list[str]:
        """Return the page's lines on how long the probe's steps kept the device."""
        log = (self.folder / "probe.log").read_text(errors="replace")
        told = device_times("".join(f"- {line}\n" for line in log.splitlines()))
        if told is None or not told.steps:
            why = told.absent if told else "nothing was said"
            return [f"Device time of a step: absent ({why})."]
        shown = [
            step for step in told.steps if step.requests in POINTS and step.steps >= LEAST_STEPS
        ]
        return [
            f"Time of a step on the device in the probe, by the worker's {told.clock} clock: means "
            f"over the steps of so many requests and draft tokens, where there were {LEAST_STEPS}.",
            "",
            "| requests | draft tokens | steps | target (ms) | drafter (ms) |",
            "|---|---|---|---|---|",
            *(
                f"| {step.requests} | {step.draft_tokens} | {step.steps} | {step.target_ms:.1f} | "
                f"{step.drafter_ms:.1f} |"
                for step in shown
            ),
        ]

    @contextmanager
    def _serving(self, part: str) -> Iterator[tuple[str, dict[str, str]]]:
        port, page = free_port(), free_port()
        variables: dict[str, str] = {}
        words: list[str] = []
        if part != "none":
            rows = every_k(MOST, SEQUENCES)
            if part in FIXED:
                rows = [[1, SEQUENCES, FIXED[part]]]
            config = {
                **self.drafting,
                "num_speculative_tokens": MOST,
                "num_speculative_tokens_per_batch_size": rows,
            }
            words += ["--speculative-config", json.dumps(config)]
        if part == "probe":
            deliver.deliver(self.folder / "plugins")
            words += [f"{SCHEDULER}={PROBE}", f"{WORKER_EXTENSION}={FINGERPRINT}"]
            variables |= {
                "PYTHONPATH": str(self.folder / "plugins"),
                settings.DEVICE_TIMES: "1",
                settings.SECRET: os.urandom(16).hex(),
                settings.SCHEDULER_PORT: str(page),
            }
        command = [sys.executable, "hack/vllm", "serve", "--port", str(port), "--", *words]
        with booted(command, port, self.folder / f"{part}.log", variables) as url:
            yield url, {**os.environ, **variables, "PYTHONPATH": ""}


def say(line: str) -> None:
    sys.stderr.write(line + "\n")


Rates = Mapping[tuple[int, int], Sequence[float]]
"""Output tokens per second of each window, by (requests in flight, K)."""


def rates(cells: Sequence[Mapping[str, Any]]) -> Rates:
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for cell in cells:
        at = cell["profile"]["concurrency"], cell["tokens"]
        found[at].append(cell["outputTokens"] / cell["windowSeconds"])
    return found


def spread(of: Rates) -> float:
    """Return the mean relative difference between two windows of one setting of a launch.

    Infinite where no setting has two: nobody knows then.
    """
    apart = [abs(a - b) / ((a + b) / 2) for a, b, *_ in (w for w in of.values() if len(w) > 1)]
    return fmean(apart) if apart else inf


def compared(proposal: Mapping[str, Any], alone: Rates, probed: Rates) -> tuple[list[str], str]:
    """Return the page's lines, and what is said of the probe's choice.

    Args:
        proposal: What the screen says, as ``specschedule propose`` does.
        alone: Of the launches with one K each.
        probed: Of the probe.
    """
    tie = max(LEAST_TIE, 2 * spread(alone))
    choices = {choice["at"]: choice for choice in proposal["choices"]}
    lines = [
        "| in flight | " + " | ".join(f"K={k}" for k in range(MOST + 1)) + " | best by launches | "
        "probe: best | probe: chosen | the choice loses |",
        "|" + "---|" * (MOST + 6),
    ]
    good = True
    for at in POINTS:
        row = {k: fmean(alone[at, k]) for k in range(MOST + 1) if alone.get((at, k))}
        best = max(row, key=lambda k: row[k])
        chosen = choices[at]["chosen"]
        loss = 1 - row.get(chosen, 0.0) / row[best]
        good &= loss <= tie
        near = [k for k in row if k != best and row[k] >= row[best] * (1 - tie)]
        tied = f" (K={', '.join(map(str, near))} within {tie:.1%})" if near else ""
        cells = [
            f"{row[k]:.1f} / {fmean(probed[at, k]):.1f}" if probed.get((at, k)) else f"{row[k]:.1f}"
            for k in sorted(row)
        ]
        lines.append(
            f"| {at} | " + " | ".join(cells) + f" | {best}{tied} | {choices[at]['best']} | "
            f"{chosen} | {max(0.0, loss):.1%} |"
        )
    lead = next(c for c in proposal["candidates"] if c["name"] == proposal["lead"])
    lines += ["", f"Proposed first: {lead['name']} `{json.dumps(lead.get('schedule'))}`."]
    lines += [f"- {note}" for note in proposal["notes"]]
    if spread(alone) > MOST_SPREAD:
        return lines, NOT_SHOWN
    return lines, AS_LAUNCHES if good else OTHERWISE


def page(bench: Bench) -> tuple[str, bool]:
    alone = rates([cell for part in FIXED for cell in bench.read(part)])
    table, told = compared(bench.proposal(), alone, rates(bench.read("probe")))
    seconds = {part: float(bench.took(part).read_text()) for part in PARTS}
    windows = {part: len(bench.read(part)) for part in PARTS}
    in_time = seconds["probe"] <= ONE_BOOT_SECONDS
    lines = [
        *heading("make bench-screen", bench.engine["version"]),
        f"Method {bench.method}.",
        "",
        f"One boot, K 0 to {MOST} at {', '.join(map(str, POINTS))} in flight: "
        f"{windows['probe']} windows in {seconds['probe']:.0f} s with the boot "
        f"(limit {ONE_BOOT_SECONDS:.0f} s: {'kept' if in_time else 'MISSED'}). "
        f"Separate launches, one per K: {sum(windows[p] for p in FIXED)} windows in "
        f"{sum(seconds[p] for p in FIXED):.0f} s. {told}.",
        "",
        "Output tokens per second, by launches / in the probe. A tie is what two windows of one "
        f"launch differ by, twice ({2 * spread(alone):.1%}), or {LEAST_TIE:.0%}; above "
        f"{2 * MOST_SPREAD:.0%} nothing is shown.",
        "",
        *table,
        "",
        *bench.device(),
    ]
    return "\n".join(lines) + "\n", told == AS_LAUNCHES and in_time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where cells and logs are kept")
    parser.add_argument("--method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--page", type=Path, help="where to write the page")
    parser.add_argument("--part", action="append", choices=PARTS, help="measure only these")
    given = parser.parse_args()
    bench = Bench(given.folder, given.method)
    for part in given.part or PARTS:
        bench.measure(part)
    if given.part and not all(bench.took(part).exists() for part in PARTS):
        return 0
    text, good = page(bench)
    show(text, given.page)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
