"""Lays what runs inside vLLM into a folder for PYTHONPATH, with the metadata of its entry points.

``python -m specschedule.engine.deliver FOLDER``: an init container runs it into a shared volume,
a local process into a folder of the run. vLLM then finds the recorder as if it were installed;
its image stays as it is, and so does this package's installation beside vLLM, which turns
nothing on by itself. With ``--table ROWS`` the folder also gets a table for the context-axis
scheduler.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import specschedule

PACKAGE = Path(specschedule.__file__).parent
ENTRY_POINTS = """[vllm.stat_logger_plugins]
specschedule = specschedule.engine.recorder:StepRecorder
"""
EXTENDED = '\n__path__ = __import__("pkgutil").extend_path(__path__, __name__)\n'
"""Put behind each package's own text: what is installed beside it stays in reach."""


def deliver(folder: Path) -> list[Path]:
    """Write the files, whole or not at all, over what an earlier call wrote.

    Args:
        folder: The folder; made if it is missing.

    Returns:
        The files, relative to the folder.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = f"specschedule-{specschedule.__version__}.dist-info"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".deliver-") as half:
        for source in _sources():
            made = Path(half) / "specschedule" / source.relative_to(PACKAGE)
            made.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text(encoding="utf-8")
            package = source.name == "__init__.py"
            made.write_text(text + EXTENDED if package else text, encoding="utf-8")
        metadata = Path(half) / named
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: specschedule\nVersion: {specschedule.__version__}\n"
        )
        (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
        files = sorted(each.relative_to(half) for each in Path(half).rglob("*") if each.is_file())
        # The engine may run as another user than the one that writes the files.
        for each in Path(half).rglob("*"):
            each.chmod(0o755 if each.is_dir() else 0o644)
        for old in (folder / "specschedule", *folder.glob("specschedule-*.dist-info")):
            shutil.rmtree(old, ignore_errors=True)
        for part in ("specschedule", named):
            (Path(half) / part).rename(folder / part)
    return files


def table_file(rows: Sequence[Sequence[int]]) -> str:
    """Return the name of a table's file in the folder: each table has its own."""
    return f"table-{hashlib.sha256(_text(rows).encode()).hexdigest()[:10]}.json"


def deliver_table(folder: Path, rows: Sequence[Sequence[int]]) -> Path:
    """Write a table for the context-axis scheduler (SPECSCHEDULE_TABLE names its file).

    Args:
        folder: The folder; it is there.
        rows: The rows.

    Returns:
        The file, relative to the folder.

    Raises:
        OSError: It cannot be written.
    """
    made = Path(table_file(rows))
    (folder / made).write_text(_text(rows), encoding="utf-8")
    # The engine may run as another user than the one that writes the file.
    (folder / made).chmod(0o644)
    return made


def _text(rows: Sequence[Sequence[int]]) -> str:
    return json.dumps([list(row) for row in rows])


def _sources() -> Iterator[Path]:
    yield PACKAGE / "__init__.py"
    yield PACKAGE / "core/__init__.py"
    yield PACKAGE / "core/inband.py"
    yield PACKAGE / "core/schedule.py"
    yield from sorted((PACKAGE / "engine").glob("*.py"))


def main(words: Sequence[str] | None = None) -> int:
    """Deliver, and print the files."""
    parser = argparse.ArgumentParser(prog="specschedule.engine.deliver", description=__doc__)
    parser.add_argument("folder", type=Path, help="what PYTHONPATH will name")
    parser.add_argument(
        "--table", type=json.loads, help="rows for the context-axis scheduler, as JSON"
    )
    given = parser.parse_args(words)
    folder: Path = given.folder
    try:
        files = deliver(folder)
        if given.table is not None:
            files.append(deliver_table(folder, given.table))
    except OSError as fault:
        sys.stderr.write(f"error: {folder} cannot be written: {fault}\n")
        return 2
    sys.stdout.write("".join(f"{folder / each}\n" for each in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
