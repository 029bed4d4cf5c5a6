"""Real vLLM on this machine's CPU asked the same thing again and again: A/A runs, and true winners.

Whole runs of effort Standard by ``specschedule tune --local``: every launch is a fresh process of
the real engine, and what comes out is what an operator would have decided.

- ``aa-N``: static K=2 serves and the candidate is the schedule [[1, 16, 2]]. vLLM then looks K up
  in a table at every step and finds 2: on a CPU, without graphs and without preempted requests,
  that is all it does otherwise. So the two arms do the same work, yet nothing tells the judge so,
  as their code paths have different names; a promotion would be a false one. (A candidate with
  the incumbent's own table would be no test: it is refused before any launch.)
- ``winner-N``: the question of ``make demo ENGINE=vllm`` with the controls of Standard: K=4
  serves, which costs more the busier it is, and the candidate drafts less then.
- ``search-N``: K=4 serves and nobody names a candidate. One probe launch and one without
  speculation screen it, and what they propose is tested like any candidate, with vLLM's own
  scheduler. ``search-1`` drafts with a model, ``search-2`` looks drafts up in what was said before.

It can be done in pieces: a run goes on in its folder where it was left, and runs that have ended
stand in the JSON file with every launch's numbers and are not run again. Exits 3 when runs are
left, 1 when one came out otherwise than it must.

    python tests/bench/bench_real.py [--minutes 18] [--only aa-1] [--state FOLDER]
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from hack.demo import vllm  # noqa: E402
from hack.demo.evidence import commit, machine, portable  # noqa: E402

from specschedule.core.budget import ROUNDS  # noqa: E402
from specschedule.core.spec import Effort  # noqa: E402

PAGE = ROOT / "docs/evidence/real-aa.md"
FEWEST, _ = ROUNDS[Effort.STANDARD]
LEAST_MINUTES = 2.0
"""A launch takes one to two minutes; with less left none is begun."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A run, and what must come of it."""

    name: str
    spec: Record
    incumbent: Record
    outcomes: tuple[str, ...]
    title: str


def questions(drafter: str) -> list[Question]:
    """Return the runs in order."""
    return [
        *(same_work(drafter, seed) for seed in (1, 2, 3)),
        *(true_winner(drafter, seed) for seed in (1, 2)),
        searched(drafter, 1),
        searched(drafter, 2, ngram=True),
    ]


def same_work(drafter: str, seed: int) -> Question:
    """Ask whether K=2 from a table is better than K=2."""
    return Question(
        name=f"aa-{seed}",
        title="K=2 from a schedule against K=2: the same work",
        spec={
            "target": {"name": "chat"},
            "slo": {"ttft": "20s", "tpot": "2s"},
            "candidates": [{"name": "same", "schedule": [[1, 16, 2]]}],
            "load": load(points=[2, 8]),
            "bar": {"improve": [{"metric": "goodput", "at": [8], "by": "3%"}]},
            "experiment": {"effort": "Standard", "seed": seed, "deadline": "1000h"},
        },
        incumbent={"method": "draft_model", "model": drafter, "num_speculative_tokens": 2},
        outcomes=("NotPromoted", "Inconclusive"),
    )


def true_winner(drafter: str, seed: int) -> Question:
    """Ask the demo's question, where the true answer is yes."""
    asked = vllm.scenario(drafter)
    return Question(
        name=f"winner-{seed}",
        title=asked.title,
        spec={
            "target": {"name": "chat"},
            "slo": asked.slo,
            "candidates": asked.candidates,
            "load": load(points=[2, 12]),
            "bar": {
                "improve": [{"metric": "goodput", "at": [12], "by": "5%"}],
                "protect": [{"metric": "goodput", "at": [2], "within": "15%"}],
            },
            "experiment": {
                "effort": "Standard",
                "static": [1],
                "seed": seed,
                "deadline": "1000h",
            },
        },
        incumbent=asked.incumbent or {},
        outcomes=("Proposed",),
    )


def searched(drafter: str, seed: int, *, ngram: bool = False) -> Question:
    """Ask for a better schedule than K=4, where one is known to exist and none is named.

    Alone a request gains from two tokens and more, sixteen together pay for each: far apart, so
    that a schedule beats every one K.

    Args:
        drafter: Model that drafts.
        seed: Of the run.
        ngram: Whether drafts are looked up instead. Every step still verifies those it finds.
    """
    asked = vllm.scenario(drafter)
    return Question(
        name=f"search-{seed}",
        title=f"static K=4 {'of ngram ' if ngram else ''}serves; a search finds what to test",
        spec={
            "target": {"name": "chat"},
            "slo": asked.slo,
            "search": {"maxTokens": 4},
            "load": load(points=[1, 16]),
            "bar": {
                "improve": [{"metric": "goodput", "at": [16], "by": "5%"}],
                "protect": [{"metric": "goodput", "at": [1], "within": "15%"}],
            },
            "experiment": {"effort": "Standard", "seed": seed, "deadline": "1000h"},
        },
        incumbent={**vllm.NGRAM, "num_speculative_tokens": 4} if ngram else asked.incumbent or {},
        outcomes=("Proposed",),
    )


def load(*, points: Sequence[int]) -> Record:
    """Return the load: windows of 10 to 20 s, prompts short because prefill costs all the same."""
    return {
        "points": list(points),
        "requests": 32,
        "promptTokens": 16,
        "outputTokens": 24,
        # On two busy cores a send may be late by this much; steps take 50 to 300 ms.
        "maxSendLag": "250ms",
    }


def main() -> int:
    """Go on with what is left, for the minutes given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=18.0, help="of this piece")
    parser.add_argument("--only", help="name of one run")
    parser.add_argument("--state", type=Path, default=ROOT / ".bench-real")
    parser.add_argument("--page", type=Path, default=PAGE, help="a JSON file lies beside it")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    engine = vllm.engine_facts()
    data = given.page.with_suffix(".json")
    ended: dict[str, Record] = {}
    if data.exists():
        ended = {each["name"]: each for each in json.loads(data.read_text())["runs"]}
    asked = questions(engine["drafter"])
    for question in asked:
        minutes = (until - time.monotonic()) / 60
        chosen = given.only in (None, question.name) and question.name not in ended
        if not chosen or minutes < LEAST_MINUTES:
            continue
        click.echo(f"== {question.name}: {question.title}, {minutes:.0f} minutes")
        if tune(question, engine, given.state / question.name, minutes):
            ended[question.name] = record(question, engine, given.state / question.name)
            runs = [ended[each.name] for each in asked if each.name in ended]
            given.page.parent.mkdir(parents=True, exist_ok=True)
            # A line for each run: a finished one never changes again.
            lines = ",\n".join(json.dumps(run) for run in runs)
            data.write_text(portable(f'{{"runs": [\n{lines}\n]}}\n'))
            given.page.write_text(portable(page(runs)))
    wrong = [name for name, each in ended.items() if not right(each)]
    left = [each.name for each in asked if each.name not in ended]
    click.echo(f"ended: {', '.join(sorted(ended)) or 'none'}; left: {', '.join(left) or 'none'}")
    if wrong:
        click.echo(f"came out otherwise than they must: {', '.join(wrong)}")
    return 1 if wrong else 3 if left else 0


def right(run: Record) -> bool:
    """Say whether a run came out as it must, on as many pairs as Standard asks for.

    A gate that withholds promotion does not make a false verdict right, and a run that broke off
    shows nothing.
    """
    better = any(verdict["verdict"] == "Better" for verdict in run["verdict"])
    pairs = max((verdict["pairs"] for verdict in run["verdict"]), default=0)
    found = better == (run["expected"] == ["Proposed"])
    return run["outcome"] in run["expected"] and found and pairs >= FEWEST


def tune(question: Question, engine: Record, folder: Path, minutes: float) -> bool:
    """Go on with a run for so many minutes; say whether it has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": question.name},
        "spec": question.spec,
    }
    asked = folder / "asked.yaml"
    asked.write_text(yaml.safe_dump(manifest, sort_keys=False))
    words = [sys.executable, "-m", "specschedule.cli.main", "tune", "-f", str(asked), "--local"]
    words += ["--run", str(folder), "--minutes", f"{minutes:.2f}", "--"]
    done = subprocess.run([*words, *served(question, engine)], cwd=ROOT, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"specschedule tune ended with {done.returncode}: {folder}")
    return done.returncode == 0


def served(question: Question, engine: Record) -> list[str]:
    """Return the command of the server that serves now."""
    variables = [f"{name}={value}" for name, value in engine["env"].items()]
    config = json.dumps(question.incumbent)
    words = ["env", *variables, *engine["command"], *engine["args"]]
    return [*words, "--speculative-config", config]


def record(question: Question, engine: Record, folder: Path) -> Record:
    """Return what a run came to, with every launch's numbers."""
    status = json.loads((folder / "schedule.json").read_text())["status"]
    trials = [json.loads(path.read_text()) for path in (folder / "trials").glob("*.json")]
    trials.sort(key=lambda trial: trial["spec"]["launch"])
    replayed = replay(folder)
    return {
        "name": question.name,
        "title": question.title,
        "expected": list(question.outcomes),
        **{field: status.get(field) for field in ("outcome", "reason", "message", "runId")},
        "replayed": replayed["outcome"],
        "startedAt": status["startedAt"],
        "endedAt": status["endedAt"],
        "written": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine(),
        "versions": {"vllm": engine["version"], "specschedule": commit()},
        "command": shlex.join(served(question, engine)),
        "spec": question.spec,
        "noiseFloor": status.get("noiseFloor", []),
        "verdict": status.get("verdict", []),
        "gates": status.get("gates", []),
        "proposals": status.get("proposals", {}),
        "launches": [launch(trial) for trial in trials],
    }


def replay(folder: Path) -> Record:
    """Return the verdict of ``specschedule judge`` over the trials alone."""
    words = [sys.executable, "-m", "specschedule.cli.main", "judge", "-o", "json"]
    words += ["-f", str(folder / "schedule.json"), "--trials", str(folder / "trials.yaml")]
    answer: Record = json.loads(subprocess.check_output(words, cwd=ROOT))
    return answer


def launch(trial: Mapping[str, Any]) -> Record:
    """Return the numbers of a launch."""
    spec, status = trial["spec"], trial.get("status") or {}
    cells = [cell for cell in status.get("cells", []) if cell["profile"]["kind"] != "equivalence"]
    told = ("void", "failed", "check", "startedAt", "endedAt")
    numbers = ("windowSeconds", "offered", "completed", "good", "outputTokens", "decodeRate")
    more = (
        "tokens",
        "drafts",
        "draftTokens",
        "acceptedTokens",
        "sendLagMsP99",
        "startedAt",
        "void",
    )
    return {
        **{field: spec[field] for field in ("launch", "round", "position", "attempt", "arm")},
        **{field: status[field] for field in told if field in status},
        "bootSeconds": status.get("receipt", {}).get("bootSeconds"),
        "cells": [
            {"cell": c["cell"], "profile": c["profile"]}
            | {field: c[field] for field in (*numbers, *more) if field in c}
            for c in cells
        ],
    }


def page(runs: Sequence[Record]) -> str:
    """Return the page for people: one line per run, then its bar and its launches."""
    lines = [
        "# make bench-real",
        "",
        "Whole runs of effort Standard on real vLLM on CPU (`specschedule tune --local`), every "
        "launch a fresh process. `aa`: K=2 from a schedule against K=2, the same work under "
        "another name, where a promotion would be false. `winner`: the candidate is truly better. "
        "`search`: nobody names one, and a screen of two launches looks for it. "
        "`make bench-real` tells the rest.",
        "",
        f"{sum(map(right, runs))} of {len(runs)} came out as they must.",
        "",
        "| run | outcome | replayed | rounds | launches | goodput | evidence | vLLM | began |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        bar = asked_bar(run)
        change = f"{bar['change']:+.1%}" if "change" in bar else "-"
        if "low" in bar and "high" in bar:
            change += f" ({bar['low']:+.1%} to {bar['high']:+.1%}, n = {bar['count']})"
        proof = f"{bar.get('evidence', 0):.3g} of {bar.get('evidenceNeeded', 0):g}"
        rounds = max(each["round"] for each in run["launches"])
        lines.append(
            f"| {run['name']} | **{run['outcome']}** ({run['reason']}) | {run['replayed']} "
            f"| {rounds} | {len(run['launches'])} | {change} | {proof} "
            f"| {run['versions']['vllm']} | {run['startedAt']} |"
        )
    for run in runs:
        lines += ["", *section(run)]
    return "\n".join(lines) + "\n"


def asked_bar(run: Record) -> Record:
    """Return the gain that was asked for, as judged; empty where nothing was."""
    bars = [bar for verdict in run["verdict"] for bar in verdict.get("bars", [])]
    return next((bar for bar in bars if bar["kind"] == "improve"), {})


def proposed(run: Record) -> list[str]:
    """Return what a screen proposed, the first to be tested first."""
    found = run.get("proposals", {}).get("proposed", [])
    rows = [f" `{json.dumps(each['schedule'])}`" if each.get("schedule") else "" for each in found]
    return [each["name"] + row for each, row in zip(found, rows, strict=True)]


def section(run: Record) -> list[str]:
    """Return a run's part of the page."""
    here = run["machine"]
    points = sorted(run["spec"]["load"]["points"])
    bars = [bar for verdict in run["verdict"] for bar in verdict.get("bars", [])]
    open_gates = [g for g in run["gates"] if g["answer"] not in ("Pass", "NotApplicable")]
    lines = [
        f"## {run['name']}: {run['title']}",
        "",
        f"{run['outcome']} ({run['reason']}): {run['message']}",
        "",
        f"{here['cpus']} cores ({here['cpu']}), vLLM {run['versions']['vllm']}, specschedule "
        f"{run['versions']['specschedule']}; {run['startedAt']} to {run['endedAt']}.",
        "",
        *(f"- the screen proposes {each}" for each in proposed(run)),
        *(f"- {bar['message']} ({bar['answer']})" for bar in bars),
        *(f"- gate {gate['gate']}: {gate['answer']}: {gate['message']}" for gate in open_gates),
        "",
        "| launch | round | arm | " + " | ".join(f"good/s at {at}" for at in points) + " | boot |",
        "|---|---|---|" + "---|" * (len(points) + 1),
    ]
    for each in run["launches"]:
        rates = {
            cell["profile"].get("concurrency"): f"{cell['good'] / cell['windowSeconds']:.3f}"
            for cell in each["cells"]
            if cell["profile"]["kind"] == "hold" and "void" not in cell and each["round"]
        }
        why = each.get("void") or each.get("failed")
        values = " | ".join("void" if why else rates.get(at, "-") for at in points)
        boot = each.get("bootSeconds") or "-"
        arm = each["arm"] if each["round"] else f"{each['arm']}, {len(each['cells'])} windows"
        lines.append(f"| {each['launch']} | {each['round']} | {arm} | {values} | {boot} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
