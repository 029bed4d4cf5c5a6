"""Each change of K in the real engine, and what it costs: ``make bench-crossing``.

One server follows a schedule of two rows while ``specschedule load`` crosses their boundary, up
and down, twice. The recorder tells what each step took, the scheduler's page what it planned.
Writes a page and a picture of the two logs.

    python tests/bench/bench_crossing.py --folder FOLDER [--page PAGE.md]

Exits 1 when the load never crossed, or when the two logs disagree on a step.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from hack.demo.evidence import heading, show  # noqa: E402

from specschedule.engine import selftest, settings  # noqa: E402
from tests.bench import steps_plot  # noqa: E402
from tests.booted import end_with_servers, installed  # noqa: E402
from tests.instrumented import serving, undrafted  # noqa: E402

ROWS = [[1, 2, 3], [3, 16, 1]]
LOW, BOUNDARY, HIGH = 2, 2, 8
SECONDS = 6.0
"""On each side of the boundary: some twenty steps of the busier side."""
PASSES = 2
SETTLED = 3
"""Steps after a change, the one that decides on it included, that count as part of it."""
PAGES = (settings.SCHEDULER_PORT, settings.RECORDER_PORT)
FEWEST = 3
"""Steps alike, beside those of changes, that tell what such a step takes otherwise."""


@dataclass(frozen=True)
class Step:
    """A step, as the two logs tell it.

    Attributes:
        at: When it was scheduled, in seconds of the machine's monotonic clock.
        ms: Time until the next one was.
        batch: Requests in it.
        planned: K that it drafts, for the next step to verify.
        verified: Drafts that each request verified in it.
        prompt: Prompt tokens computed in it.
        accepted: Drafts that were accepted in it, of all requests.
    """

    at: float
    ms: float
    batch: int
    planned: int
    verified: int
    prompt: int
    accepted: int

    @property
    def alike(self) -> tuple[int, int, int, int]:
        """What steps must share to be expected to take equally long."""
        return self.batch, self.planned, self.verified, self.prompt


@dataclass(frozen=True)
class Change:
    """A change of K: the step that decides on it, at a place in the log."""

    at: int
    before: Step
    steps: Sequence[Step]
    """The step that decides, then those after it."""


def joined(
    planned: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]
) -> list[Step]:
    """Join the scheduler's lines with the recorder's: both have one for each step, in order.

    Raises:
        ValueError: A step of one log is not, or is otherwise, in the other.
    """
    seen_of = [line for line in recorded if line.get("batchSize")]
    if len(seen_of) != len(planned):
        raise ValueError(f"{len(planned)} steps were planned and {len(seen_of)} recorded")
    steps = []
    # The last one has no next to tell how long it took.
    for line, after, seen in zip(planned, planned[1:], seen_of, strict=False):
        if seen["batchSize"] != line["batchSize"]:
            raise ValueError(f"the recorder saw another batch in step {line}: {seen}")
        if seen.get("drafts") and seen.get("tokens") != line.get("verified"):
            raise ValueError(f"the recorder saw other drafts in step {line}: {seen}")
        steps.append(
            Step(
                at=line["at"],
                ms=1e3 * (after["at"] - line["at"]),
                batch=line["batchSize"],
                planned=line["tokens"],
                verified=line.get("verified", 0),
                prompt=seen.get("prefillTokens", 0),
                accepted=seen.get("acceptedTokens", 0),
            )
        )
    return steps


def changes(steps: Sequence[Step]) -> list[Change]:
    """Return every step that decides on another K than the step before it, with what follows."""
    return [
        Change(at, steps[at - 1], steps[at : at + SETTLED])
        for at in range(1, len(steps) - SETTLED)
        if steps[at].planned != steps[at - 1].planned
    ]


def usual(steps: Sequence[Step], found: Sequence[Change]) -> dict[tuple[int, int, int, int], float]:
    """Return the median time of steps alike that belong to no change, in milliseconds."""
    part_of = {change.at + after for change in found for after in range(SETTLED)}
    times: dict[tuple[int, int, int, int], list[float]] = defaultdict(list)
    for at, step in enumerate(steps):
        if at not in part_of:
            times[step.alike].append(step.ms)
    return {kind: median(each) for kind, each in times.items() if len(each) >= FEWEST}


def extra(step: Step, known: Mapping[tuple[int, int, int, int], float]) -> float | None:
    """Return how much longer a step took than its like, in milliseconds; None without any."""
    return step.ms - known[step.alike] if step.alike in known else None


def measure(folder: Path, engine: Mapping[str, Any]) -> list[Step]:
    """Serve, put under load, read both logs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(ROWS))
    arguments = [
        "--scheduler-cls=specschedule.engine.context.ContextScheduler",
        "--enable-logging-iteration-details",
        "--cudagraph-metrics",
        "--disable-log-stats",
    ]
    variables = {settings.TABLE: str(folder / "rows.json")}
    windows = [
        {"kind": "crossing", "low": LOW, "high": HIGH, "boundary": BOUNDARY}
        | {"periodSeconds": SECONDS, "pass": number}
        for number in range(1, PASSES + 1)
    ]
    load = {"promptTokens": 16, "outputTokens": 48, "maxSendLag": "1s"}
    wanted = [{"requests": 1, "profile": profile} for profile in windows]
    (folder / "profile.yaml").write_text(yaml.safe_dump(load | {"windows": wanted}))
    with serving(engine, folder, arguments, variables, rows=ROWS) as server:
        command = [sys.executable, "-m", "specschedule.cli.main", "load", "--url", server.url]
        command += ["--profile", str(folder / "profile.yaml"), "--slo", "ttft=60s,tpot=10s"]
        done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        void = [json.loads(line).get("void") for line in done.stdout.splitlines()]
        if any(void):
            sys.exit(f"a window does not count: {void}")
        logs = {name: quiet(server.page(name)) for name in PAGES}
    (folder / "steps.json").write_text(json.dumps(logs))
    planned = logs[settings.SCHEDULER_PORT]
    if wrong := undrafted(planned):
        sys.exit(f"steps that verify otherwise than planned: {wrong[:3]}")
    return joined(planned, logs[settings.RECORDER_PORT])


def quiet(page: str) -> list[dict[str, Any]]:
    """Return a page's steps once no more of them come."""
    before = -1
    while (now := selftest.facts(page)["next"]) != before:
        before = now
        time.sleep(1.0)
    return selftest.steps(page)


def rows(steps: Sequence[Step], found: Sequence[Change]) -> Iterator[str]:
    """Yield the table of changes."""
    known = usual(steps, found)
    yield (
        "| at (s) | K | requests | step before (ms) | step that decides (ms) | its prompt tokens | "
        "first step of the new K (ms) | others like it (ms) | it takes more |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for change in found:
        decides, first = change.steps[:2]
        more = extra(first, known)
        yield (
            f"| {decides.at - steps[0].at:.1f} | {change.before.planned} to {decides.planned} "
            f"| {change.before.batch} to {decides.batch} | {change.before.ms:.0f} "
            f"| {decides.ms:.0f} | {decides.prompt} | {first.ms:.0f} "
            + (
                f"| {known[first.alike]:.0f} | {more:+.0f} ms |"
                if more is not None
                else "| - | - |"
            )
        )


def summary(steps: Sequence[Step], found: Sequence[Change]) -> list[str]:
    """Return a line for each direction: what the first step of the new K takes beyond its like."""
    known = usual(steps, found)
    lines = []
    for old, new in sorted({(each.before.planned, each.steps[0].planned) for each in found}):
        of = [each for each in found if (each.before.planned, each.steps[0].planned) == (old, new)]
        more = [extra(each.steps[1], known) for each in of]
        told = [each for each in more if each is not None]
        seen = f"{fmean(told):+.1f} ms on average ({min(told):+.1f} to {max(told):+.1f}, "
        seen = f"{seen}n = {len(told)})" if told else "with no step like it to compare"
        lines.append(f"- K={old} to K={new}: {len(of)} times; the first step of the new K: {seen}.")
    return lines


def page(steps: Sequence[Step], picture: str, version: str) -> str:
    """Return the page."""
    found = changes(steps)
    seconds = steps[-1].at - steps[0].at
    by_k: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        if not step.prompt:
            by_k[step.verified].append(step.ms)
    return "\n".join(
        [
            *heading("make bench-crossing", version),
            f"One server follows `{json.dumps(ROWS)}` while the load swings between {LOW} and "
            f"{HIGH} requests in flight, {SECONDS:.0f} s on each side. {len(steps)} steps in "
            f"{seconds:.0f} s; in every one the recorder saw the batch and the drafts that the "
            f"scheduler had planned. K changed {len(found)} times.",
            "",
            f"![requests and K above, milliseconds of each step below]({picture})",
            "",
            "K is decided when a step is scheduled, drafted at its end, and verified by the next "
            "step: that one is the first of the new K. It is compared with steps of the same "
            "batch size, K and prompt tokens that are not within "
            f"{SETTLED} steps of a change (their median; at least {FEWEST}). A step that lets "
            "requests join computes their prompts, whatever K is.",
            "",
            *summary(steps, found),
            "",
            *rows(steps, found),
            "",
            "Steps without prompt tokens, by drafts verified: "
            + "; ".join(
                f"K={k}: {median(times):.0f} ms (median of {len(times)})"
                for k, times in sorted(by_k.items())
            )
            + ".",
            "",
        ]
    )


def main() -> int:
    """Measure, or take what was measured, and write page and picture."""
    end_with_servers()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where logs are kept")
    parser.add_argument("--page", type=Path, help="where to write the page; a picture beside it")
    given = parser.parse_args()
    engine = installed()
    try:
        steps = measure(given.folder, engine)
    except ValueError as fault:
        sys.exit(str(fault))
    picture = (given.page or given.folder / "crossing").with_suffix(".svg")
    text = page(steps, picture.name, engine["version"])
    marks = [step.steps[0].at for step in changes(steps)]
    picture.write_text(steps_plot.svg(steps, marks))
    show(text, given.page)
    return 0 if len(marks) >= 2 * PASSES else 1


if __name__ == "__main__":
    sys.exit(main())
