"""Files that are whole whenever they are read, whatever killed the writer."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old text or the new one, even after a power cut."""
    half = path.with_name(f".{path.name}.half")
    with half.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
