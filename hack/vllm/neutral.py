"""Takes out of the engine's words what differs from run to run and from machine to machine."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from environment import Environment

_VOLATILE = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"pid=\d+", "pid=PID"),
    (r"process \[\d+\]", "process [PID]"),
    (r"\d\d-\d\d \d\d:\d\d:\d\d", "MM-DD HH:MM:SS"),
    (r"\[W\d{4} [\d:.]+ ", "[WMMDD HH:MM:SS "),
    (r"/tmp/[\w./-]+", "TMP"),
    (r" at 0x[0-9a-f]+>", " at ADDRESS>"),
    (r"'port': \d+", "'port': PORT"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"(mq_connect_ip|coordinator_ip|master_addr)=[\d.]+", r"\1=ADDRESS"),
    (r"(?:tcp|ipc)://[\w./:-]+", "SOCKET"),
    (r"\b\d+\.\d+ (s|seconds|GiB)\b", r"N \1"),
    (r"\(\d+\.\d+/\d+\.\d+\) GiB", "(N/N) GiB"),
    (r"ulimit of \d+", "ulimit of N"),
    (r"(core ids|reserved_cpus)=\[[\d, ]*\]", r"\1=[CPUS]"),
    (r"Torch threads from \d+ to", "Torch threads from N to"),
    (r"file system type for checkpoints: \w+", "file system"),
    (r"Filesystem type for checkpoints: \w+", "Filesystem type for checkpoints: TYPE"),
    (r"because the filesystem \(\w+\)", "because the filesystem (TYPE)"),
    (r"(cmpl|chatcmpl)-[0-9a-f]+", r"\1-ID"),
    (r"\"created\": ?\d+", '"created":0'),
    (r"(vllm-[\d.]+)-[0-9a-f]{8}", r"\1-HASH"),
)
_PROGRESS = re.compile(r"\d+%(\||[^|]*Completed)")


def text(here: Environment, given: str) -> str:
    """Return the text with words in capitals for paths, process ids, times and the like."""
    for path, word in _paths(here):
        given = given.replace(str(path), word)
    for pattern, word in _VOLATILE:
        given = re.sub(pattern, word, given)
    return given


def log(here: Environment, given: str) -> str:
    """Return a log's lines, without progress bars and the list of routes."""
    lines = [line.rstrip() for line in given.replace("\r", "\n").splitlines()]
    kept = [line for line in lines if line and not _PROGRESS.search(line) and "Route: " not in line]
    return text(here, "\n".join(kept) + "\n")


def families(metrics: str) -> dict[str, object]:
    """Return the metric families of an exposition: type, label names, and buckets of histograms.

    Families of the Python process itself are left out: they depend on the kernel.
    """
    found: dict[str, dict[str, object]] = {}
    labels: dict[str, set[str]] = {}
    for line in metrics.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            found[name] = {"type": kind}
        elif line and not line.startswith("#"):
            sample, names, bucket = _sample(line)
            family = sample if sample in found else sample.rsplit("_", 1)[0]
            labels.setdefault(family, set()).update(names - {"le"})
            if bucket is not None:
                buckets = found[family].setdefault("buckets", [])
                if isinstance(buckets, list) and bucket not in buckets:
                    buckets.append(bucket)
    for family, names in labels.items():
        found[family]["labels"] = sorted(names)
    kept = (name for name in sorted(found) if not name.startswith(("python_", "process_")))
    return {name: found[name] for name in kept}


def dump(path: Path, data: list[object] | dict[str, object]) -> None:
    """Write plain data as JSON, one line for each of its items."""
    if isinstance(data, dict):
        items = [f"{json.dumps(key)}: {_line(value)}" for key, value in sorted(data.items())]
        begin, end = "{", "}"
    else:
        items = [_line(value) for value in data]
        begin, end = "[", "]"
    path.write_text(begin + "\n " + ",\n ".join(items) + "\n" + end + "\n")


def _line(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _sample(line: str) -> tuple[str, set[str], str | None]:
    name, _, rest = line.partition("{")
    if not rest:
        return line.split(" ")[0], set(), None
    pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest))
    return name, set(pairs), pairs.get("le")


def _paths(here: Environment) -> Iterable[tuple[Path, str]]:
    yield here.model, "MODEL"
    yield here.drafter, "DRAFTER"
    yield here.cache, "CACHE"
    yield here.venv, "VENV"
    yield here.interpreter, "PYTHON"
    yield Path.home(), "HOME"
