"""``specschedule facts``: receipts and cells as files, and what differs between launches."""

import json
import re
from pathlib import Path
from typing import Any

import click

from specschedule.cli.output import BadInput, emit, output_option
from specschedule.cli.specs import read_spec
from specschedule.cli.trials import read_launches, read_trials
from specschedule.core.compare import uncounted
from specschedule.core.evidence import Launch
from specschedule.core.gates import without_speculation
from specschedule.core.lengths import told
from specschedule.core.receipts import Differing, Untold, compared, untold
from specschedule.core.target import ServerFacts

_ARM = re.compile(r"[a-z0-9][-a-z0-9]{0,62}")
"""An arm's name, as it stands in the name of a SpecTrial; a file's name may hold it as it is."""


@click.command()
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option(
    "--trials",
    required=True,
    help="SpecTrials, as kubectl get -o yaml gives them; - is standard input.",
)
@click.option("--run", help="Run id, where the trials are of several runs.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the files; none are written without."
)
@output_option
def command(path: str, trials: str, run: str | None, out: Path | None, output: str) -> None:
    """Say in which facts the launches of a run differ, and which of that the policy forbids.

    A fact that launches must share and that one of them does not tell is named NotRead: whether it
    differs is not known, and a run is not promoted on it.

    With --out, each launch also becomes facts-LAUNCH-ARM.txt (its receipt, a fact a line) and
    launch-LAUNCH-ARM.json (receipt and cells).
    """
    spec = read_spec(path)
    documents = read_trials(trials, run)
    launches = sorted(read_launches(trials, documents), key=lambda each: each.launch)
    # A target has a speculative config of its own, or the spec says how to speculate.
    server = ServerFacts(container="", speculative={} if spec.speculative is None else None)
    counted = [each for each in launches if uncounted(each) is None]
    silent = without_speculation(server)
    found, lacking = compared(spec, counted, silent), untold(counted, silent)
    written = [str(file) for each in launches for file in _write(each, out)] if out else []
    answer = {
        "launches": len(counted),
        "differences": [each.plain() for each in found],
        "notRead": [each.plain() for each in lacking],
        "room": [{"message": said, "launches": who} for said, who in told(counted).items()],
        "files": written,
    }
    emit(answer, _text(found, lacking, launches, written), output)


def _write(launch: Launch, folder: Path) -> list[Path]:
    """Write the two files of a launch.

    Raises:
        BadInput: The folder cannot be written to, or the arm's name is none.
    """
    if not _ARM.fullmatch(launch.arm):
        raise BadInput(f"launch {launch.launch}: spec.arm {launch.arm!r} is no name of an arm")
    name = f"{launch.launch:03d}-{launch.arm}"
    facts, whole = folder / f"facts-{name}.txt", folder / f"launch-{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{line}\n" for line in _facts(launch))
        facts.write_text(text, encoding="utf-8", errors="backslashreplace")
        whole.write_text(json.dumps(launch.plain(), indent=2) + "\n")
    except OSError as error:
        raise BadInput(f"--out {folder}: {error.strerror}") from error
    return [facts, whole]


def _facts(launch: Launch) -> list[str]:
    """Return the receipt of a launch, a fact a line."""
    about: dict[str, Any] = launch.plain()
    about = {key: about[key] for key in about if key not in ("receipt", "cells")}
    counted = sum(cell.void is None for cell in launch.cells)
    about["cells"] = f"{counted} of {len(launch.cells)} count"
    facts = about | launch.receipt.plain()
    width = max(map(len, facts))
    return [
        f"{fact:<{width}}  {value if isinstance(value, str) else json.dumps(value)}"
        for fact, value in facts.items()
    ]


def _text(
    found: list[Differing], lacking: list[Untold], launches: list[Launch], written: list[str]
) -> str:
    left_out = [each for each in launches if uncounted(each) is not None]
    counted = [each for each in launches if uncounted(each) is None]
    number = len(counted)
    lines = [f"{number} launches compared"]
    if number < 2:
        lines = [f"nothing compared: {number} of the launches counts, and it takes two"]
    lines += [f"  not compared: {x.arm} launch {x.launch}: {uncounted(x)}" for x in left_out]
    for each in found:
        values = "; ".join(f"{value} ({', '.join(arms)})" for value, arms in each.values.items())
        verdict = f"forbidden, {each.forbidden}" if each.forbidden else "reported"
        lines.append(f"  {each.fact}: {values}: {verdict}")
    lines += [
        f"  {each.fact}: {each.reason} from {', '.join(each.arms)}, so whether it differs is not "
        "known"
        for each in lacking
    ]
    lines += [f"  {said} ({', '.join(who)})" for said, who in told(counted).items()]
    if number > 1 and not found and not lacking:
        lines.append("  no fact differs")
    return "\n".join([*lines, *(f"wrote {file}" for file in written)])
