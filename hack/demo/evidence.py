"""Writes what a demo run came to into docs/evidence/: one JSON file, and one page for people."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hack.demo.scenarios import Shown
from hack.demo.stage import ROOT, Stage

FOLDER = ROOT / "docs/evidence"


def write_evidence(stage: Stage, shown: Shown, engine_version: str) -> list[Path]:
    """Write outcome, receipts and numbers of a run; return the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    namespace = shown.scenario.namespace
    trials = stage.get("spectrials", "-n", namespace).get("items", [])
    trials.sort(key=lambda trial: trial["spec"]["launch"])
    record = {
        "command": f"make demo ENGINE={shown.scenario.name}",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine(),
        "versions": {"vllm": engine_version, "kubernetes": kubernetes_version(stage)},
        "expected": shown.scenario.outcome,
        "outcome": shown.outcome,
        "servingArgumentsBefore": shown.arguments_before,
        "servingArgumentsAfter": shown.arguments_after,
        "spec": stage.get("specschedule", "chat", "-n", namespace)["spec"],
        "status": shown.status,
        "trials": [
            {"name": t["metadata"]["name"], "spec": t["spec"], "status": t.get("status", {})}
            for t in trials
        ],
    }
    data = FOLDER / f"demo-{shown.scenario.name}.json"
    data.write_text(portable(json.dumps(record, indent=1)) + "\n")
    page = FOLDER / f"demo-{shown.scenario.name}.md"
    page.write_text(portable(as_page(record)))
    return [page, data]


def show(text: str, page: Path | None) -> None:
    """Print a page, and write it where one is asked for."""
    sys.stdout.write(text)
    if page is not None:
        page.write_text(text)


def portable(text: str) -> str:
    """Take the paths of this machine out."""
    return text.replace(str(ROOT), "<repository>").replace(str(Path.home()), "~")


def machine() -> dict[str, Any]:
    """Say what kind of machine this is."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"cpus": os.cpu_count(), "cpu": model, "system": f"Linux {platform.machine()}"}


def commit() -> str:
    """Return the commit of this repository."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.check_output(words, cwd=ROOT, text=True).strip()


def heading(command: str, vllm: str) -> list[str]:
    """Return a page's first lines: the command that wrote it, when, where and of what.

    Args:
        command: As a person types it.
        vllm: Version of the engine.
    """
    here = machine()
    return [
        f"# {command}",
        "",
        f"Written by that command on {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}; {here['cpus']} cores "
        f"({here['cpu']}), vLLM {vllm}, specschedule {commit()}.",
        "",
    ]


def kubernetes_version(stage: Stage) -> str:
    """Return the API server's version."""
    answer = json.loads(stage.kubectl("version", "-o", "json"))
    version: str = answer["serverVersion"]["gitVersion"]
    return version


def as_page(record: dict[str, Any]) -> str:
    """Return the record as a page of Markdown: verdict, numbers, receipts."""
    status, machine_ = record["status"], record["machine"]
    lines = [
        f"# {record['command']}",
        "",
        f"Written by that command on {record['date']}; {machine_['cpus']} cores "
        f"({machine_['cpu']}), vLLM {record['versions']['vllm']}, "
        f"Kubernetes {record['versions']['kubernetes']}.",
        "",
        f"**{record['outcome']}** ({status.get('reason')}): {status.get('message')}",
        "",
        "| arm | launches | " + " | ".join(f"good/s at {p}" for p in points(status)) + " |",
        "|---|---|" + "---|" * len(points(status)),
    ]
    for arm in status.get("arms", []):
        by_point = {g["at"]: g for g in arm.get("goodput", [])}
        cells = [
            f"{by_point[p]['perSecond']:.3f}" if p in by_point else "-" for p in points(status)
        ]
        lines.append(f"| {arm['arm']} | {arm['launches']} | " + " | ".join(cells) + " |")
    lines += ["", "## The bar", ""]
    for verdict in status.get("verdict", []):
        lines += [f"- {bar['message']} ({bar['answer']})" for bar in verdict.get("bars", [])]
    lines += ["", "## Noise floor", ""]
    lines += [
        f"- {f['metric']} at {f['at']}: {f['floor']:.1%} ({f['count']} relaunches)"
        for f in status.get("noiseFloor", [])
    ]
    lines += ["", "## Is the schedule in effect? Draft tokens per draft, by launch", ""]
    lines += ["| launch | arm | " + " | ".join(f"at {p}" for p in points(status)) + " | boot (s) |"]
    lines += ["|---|---|" + "---|" * (len(points(status)) + 1)]
    lines += [launch_row(trial, points(status)) for trial in record["trials"]]
    lines += ["", "## Serving arguments", ""]
    lines += ["before:", "", *[f"    {' '.join(a)}" for a in record["servingArgumentsBefore"][:1]]]
    lines += [
        "",
        "after:",
        "",
        *[f"    {' '.join(a)}" for a in record["servingArgumentsAfter"][:1]],
    ]
    lines += ["", "## Gates", ""]
    lines += [f"- {g['answer']}: {g['gate']}: {g['message']}" for g in status.get("gates", [])]
    return "\n".join(lines) + "\n"


def points(status: dict[str, Any]) -> list[int]:
    """Return the load points that were measured."""
    return sorted({g["at"] for arm in status.get("arms", []) for g in arm.get("goodput", [])})


def launch_row(trial: dict[str, Any], at: list[int]) -> str:
    """Return a launch's draft tokens per draft at each point; K=0 steps draft nothing."""
    cells = {}
    for cell in trial["status"].get("cells", []):
        drafts = cell.get("drafts")
        shown = "no drafts" if not drafts else f"{cell['draftTokens'] / drafts:.2f}"
        cells[cell["profile"].get("concurrency")] = shown
    boot = trial["status"].get("receipt", {}).get("bootSeconds", "-")
    values = " | ".join(cells.get(point, "-") for point in at)
    return f"| {trial['spec']['launch']} | {trial['spec']['arm']} | {values} | {boot} |"
