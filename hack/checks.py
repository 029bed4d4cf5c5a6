"""Checks that no linter makes: generated files are fresh, and nothing local is committed."""

import filecmp
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES = ("pypi", "pythonhosted", "npmjs", "crates", "golang", "maven", "debian")
LOCAL = re.compile(r"https?://[a-z.-]*(" + "|".join(REGISTRIES) + r")[.]|/(root|home)/[a-z.]")


def main() -> int:
    """Print every finding; exit 1 when there is one."""
    findings = [*stale_generated_files(), *local_words(), *stray_modules()]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def stale_generated_files() -> list[str]:
    """Generate the CRDs afresh and compare."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        (fresh / "chart/templates").mkdir(parents=True)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "specschedule.api.crd",
                str(fresh / "crds"),
                str(fresh / "chart"),
            ],
            check=True,
        )
        pairs = [(made, ROOT / "crds" / made.name) for made in (fresh / "crds").iterdir()]
        pairs += [
            (made, ROOT / "charts/specschedule" / made.relative_to(fresh / "chart"))
            for made in (fresh / "chart").rglob("*.yaml")
        ]
        return [
            f"{kept.relative_to(ROOT)} is stale: run `make generate` and commit the result"
            for made, kept in pairs
            if not kept.exists() or not filecmp.cmp(made, kept, shallow=False)
        ]


def local_words() -> list[str]:
    """Find registry hosts and paths of one machine in committed files."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    findings = []
    for name in listed:
        if name.endswith(".sum") or name == "hack/checks.py":
            continue
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        findings += [
            f"{name}:{number}: names a registry host or a path of one machine"
            for number, line in enumerate(text.splitlines(), 1)
            if LOCAL.search(line)
        ]
    return findings


def stray_modules() -> list[str]:
    """A module directly in operator/ would shadow Python's own operator module."""
    return [
        f"operator/{found.name}: operator/ holds only the package folder"
        for found in (ROOT / "operator").glob("*.py")
    ]


if __name__ == "__main__":
    sys.exit(main())
