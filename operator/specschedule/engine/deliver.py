"""Lays what runs inside vLLM into a folder for PYTHONPATH, with the metadata of its entry points.

``python -m specschedule.engine.deliver FOLDER``: an init container runs it into a shared volume,
a local process into a folder of the run. vLLM then finds the recorder as if it were installed;
its image stays as it is, and so does this package's installation beside vLLM, which turns
nothing on by itself.
"""

import argparse
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
    folder: Path = parser.parse_args(words).folder
    try:
        files = deliver(folder)
    except OSError as fault:
        sys.stderr.write(f"error: {folder} cannot be written: {fault}\n")
        return 2
    sys.stdout.write("".join(f"{folder / each}\n" for each in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
