"""Five-number rows on the real engine, and what they cost: ``make bench-context``.

Under the context-axis scheduler a workload of short and long contexts is served, alone, together
and mixed: every step's K must be the table's. Then a table of five-number rows that agrees with
one of three is put beside the engine's own scheduler (``side_by_side.py``): it must cost nothing
that a schedule would be chosen by.

    python tests/bench/bench_context.py --folder FOLDER [--page PAGE.md] [--part rows|launch-N]

Exits 1 when a step's K is another, or when the launches do not show that nothing is lost.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from hack.demo.evidence import heading, show  # noqa: E402

from specschedule.core.schedule import effective  # noqa: E402
from specschedule.engine import selftest, settings  # noqa: E402
from tests.bench import side_by_side  # noqa: E402
from tests.bench.side_by_side import LAUNCHES, Arm  # noqa: E402
from tests.booted import end_with_servers, installed  # noqa: E402
from tests.instrumented import (  # noqa: E402
    BY_CONTEXT,
    LIMITS,
    Line,
    decoding,
    prompt,
    serving,
    undrafted,
    unplanned,
)

SCHEDULER = "--scheduler-cls=specschedule.engine.context.ContextScheduler"
SHORT, LONG, BETWEEN = 24, 400, 110
"""Tokens of prompts; the last grows out of the short contexts while it is answered."""
WORKLOAD = [
    [SHORT],
    [LONG],
    [BETWEEN],
    [SHORT, SHORT, SHORT],
    [LONG, LONG, LONG],
    [SHORT, LONG],
    [SHORT, SHORT, SHORT, SHORT, LONG],
    [SHORT, SHORT, LONG, LONG],
]
"""Requests sent together; the next ones once these are answered."""
TOKENS = 40
EDGE = 128
"""The last context of the table's shorter class."""
SAME, AGREES = [[1, 16, 2]], [[1, 16, 1, 128, 2], [1, 16, 129, 1024, 2]]
"""K=2 everywhere, in rows of three and of five numbers."""
FIVE, THREE = "five-number rows", "three-number rows"
FLOOR = 0.02
"""Differences below it are ties for the tuner, whatever a run shows."""
ROWS = "rows"
PARTS = (ROWS, *(f"launch-{number}" for number in range(1, LAUNCHES + 1)))


def follow(folder: Path, engine: Mapping[str, Any]) -> None:
    """Serve the workload; keep the scheduler's steps."""
    kept = folder / "steps.json"
    if kept.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "by-context.json"
    table.write_text(json.dumps(BY_CONTEXT))
    variables = {settings.TABLE: str(table)}
    with serving(engine, folder / ROWS, [SCHEDULER], variables) as server:
        for lengths in WORKLOAD:
            server.together([prompt(n, n + at) for at, n in enumerate(lengths)], TOKENS)
        page = server.page(settings.SCHEDULER_PORT)
        told = {"finding": selftest.facts(page)["finding"], "steps": selftest.steps(page)}
    kept.write_text(json.dumps(told))


def followed(told: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the page's lines about the steps, and whether every K was the table's."""
    steps: Sequence[Line] = told["steps"]
    table = effective(BY_CONTEXT, **LIMITS)
    wrong, late = unplanned(steps, table), undrafted(steps)
    good = not wrong and not late and told["finding"] is None and len(decoding(steps)) > 0
    seen = Counter((s["batchSize"], s["context"] > EDGE, s["tokens"]) for s in steps)
    lines = [
        "## Every step's K",
        "",
        f"`{json.dumps(BY_CONTEXT)}` under the context-axis scheduler; prompts of {SHORT}, "
        f"{BETWEEN} and {LONG} tokens, {TOKENS} tokens each, sent together as: "
        + "; ".join("+".join(map(str, lengths)) for lengths in WORKLOAD)
        + ".",
        "",
        f"**{len(steps)} steps: K was another than the table's in {len(wrong)}; of "
        f"{len(decoding(steps))} steps that verify, {len(late)} verified otherwise than the step "
        f"before them planned.** The scheduler's own proof: {told['finding'] or 'no mismatch'}.",
        "",
        "| requests | mean context | K of the table | steps with that K | with another |",
        "|---|---|---|---|---|",
    ]
    for batch, deep in sorted({(batch, deep) for batch, deep, _ in seen}):
        due = table.tokens(batch, EDGE + 1 if deep else EDGE)
        other = sum(n for (b, d, k), n in seen.items() if (b, d) == (batch, deep) and k != due)
        where = f"above {EDGE}" if deep else f"up to {EDGE}"
        lines.append(f"| {batch} | {where} | {due} | {seen[batch, deep, due]} | {other} |")
    return lines, good


def arms(engine: Mapping[str, Any], folder: Path) -> tuple[Arm, Arm]:
    """Return our scheduler with a table that agrees with the rows of the engine's own."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "agrees.json"
    table.write_text(json.dumps(AGREES))
    common = side_by_side.short_steps(engine)
    return (
        Arm(FIVE, [*common, SCHEDULER], {settings.TABLE: str(table)}, SAME),
        Arm(THREE, common, rows=SAME, inside=False),
    )


def cost(folder: Path) -> tuple[list[str], bool]:
    """Return the page's lines about the cost, and whether none beyond the floor is left."""
    found = side_by_side.compared(folder, FIVE, THREE)
    told = side_by_side.kept(found.more, FLOOR)
    return [
        "## What five-number rows cost where they agree with three-number ones",
        "",
        f"`{json.dumps(AGREES)}` under the context-axis scheduler, with our step log on, against "
        f"`{json.dumps(SAME)}` under the engine's own, both alive and asked in turn (ABBA), "
        f"{side_by_side.BLOCKS} blocks in each of {LAUNCHES} launches of both; the pair's drafter "
        "serves as the target, whose steps are the shortest.",
        "",
        f"A step takes **{found.more.change()}** launches more, of {found.step_ms:.2f} ms; below "
        f"{FLOOR:.0%} the tuner calls two settings alike: **{told}**. Two windows of one server in "
        f"a row differ by {found.spread:.1%} (median).",
        "",
        *found.lines,
    ], told == "kept"


def main() -> int:
    """Measure what is left, print the page and write it."""
    end_with_servers()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--page", type=Path, help="where to write the page")
    parser.add_argument("--part", choices=PARTS, help="measure only this")
    given = parser.parse_args()
    engine = installed()
    if given.part in (None, ROWS):
        follow(given.folder, engine)
    launch = None if given.part in (None, ROWS) else PARTS.index(given.part)
    if given.part == ROWS:
        return 0
    whole = side_by_side.measure(arms(engine, given.folder), given.folder, engine, launch)
    if not (whole and (given.folder / "steps.json").exists()):
        return 0
    steps, good = followed(json.loads((given.folder / "steps.json").read_text()))
    costs, free = cost(given.folder)
    text = "\n".join([*heading("make bench-context", engine["version"]), *steps, "", *costs, ""])
    show(text, given.page)
    return 0 if good and free else 1


if __name__ == "__main__":
    sys.exit(main())
