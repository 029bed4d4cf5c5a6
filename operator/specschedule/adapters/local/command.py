"""The command that serves, as the target of a run: the same facts and the same edit as a pod's.

A command of this machine is a container whose command it is, in a Deployment of one replica.
What Kubernetes would put in for ``$(NAME)`` is kept from it by writing every ``$`` twice.
"""

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from specschedule.core.isolation import CACHE_FILE, REGISTRATION
from specschedule.core.spec import Slo
from specschedule.core.target import ServerFacts, TargetFacts, Unreadable
from specschedule.vllm_facts.arguments import edited_container, read_container
from specschedule.vllm_facts.drafter import block_in
from specschedule.vllm_facts.instruments import (
    Instruments,
    arm_arguments,
    following,
    hides_path,
    observing,
    probing,
    timing,
    variables_with,
)
from specschedule.vllm_facts.launch import Launch, launch_of
from specschedule.vllm_facts.target import target_facts

CONTAINER = "vllm"
_DECISIVE = re.compile(
    r"^(VLLM|CUDA|NVIDIA|HIP|ROCR|HF|HUGGING_FACE|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|NCCL"
    r"|OMP|KMP|MKL|ONEDNN)_|^(LD_PRELOAD|LD_LIBRARY_PATH|PYTHONPATH)$"
)
"""Variables that decide how an engine runs; one that changes in mid-run voids its evidence."""
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
_NVIDIA = Path("/proc/driver/nvidia")
_LONGEST_SCRIPT = 1 << 16
"""Bytes that are read of a program; scripts that start a server are shorter."""


class Command:
    """The command that serves now."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Take a command.

        Args:
            argv: Program and arguments.
            environment: Variables that it runs with.
        """
        self.argv = list(argv)
        known = {
            name: value
            for name, value in sorted(environment.items())
            if (_DECISIVE.match(name) and not _SECRET.search(name))
            or REGISTRATION.match(name)
            or name == CACHE_FILE
        }
        self._container: dict[str, Any] = {
            "name": CONTAINER,
            "command": [_escaped(word) for word in argv],
            "env": [{"name": name, "value": _escaped(value)} for name, value in known.items()],
        }

    def server(self) -> ServerFacts | Unreadable:
        """Return what its arguments say about its server, or why it cannot be tuned here."""
        if shutil.which(self.argv[0]) is None:
            return Unreadable(
                reason="BadManifest", message=f"{self.argv[0]}: there is no such program"
            )
        launch = launch_of(self._container)
        if isinstance(launch, Launch) and launch.scripted:
            return Unreadable(
                reason="UnsupportedShell",
                message="a shell script starts the server: give the command itself, such as "
                "-- vllm serve MODEL",
            )
        server = read_container(self._container, config_files=self._config_files())
        if isinstance(server, Unreadable) or not gpu_products():
            return server
        ranks = server.tensor_parallel_size * server.pipeline_parallel_size
        return server.model_copy(update={"gpus": ranks * server.data_parallel_size})

    def target(self) -> TargetFacts:
        """Return the facts of the target that it amounts to."""
        server = self.server()
        template = {
            "metadata": {"annotations": self._config_files()},
            "spec": {"containers": [self._container]},
        }
        facts = target_facts({"spec": {"template": template}}, container=CONTAINER)
        gpus = server.gpus if isinstance(server, ServerFacts) else 0
        block = _block(server) if isinstance(server, ServerFacts) else None
        return facts.model_copy(update={"server": server, "gpus": gpus, "drafter_block": block})

    def with_speculative(
        self,
        speculative: Mapping[str, Any] | Literal["unchanged"] | None,
        *,
        graph_mode: str | None = None,
        instruments: Instruments = Instruments(),
    ) -> list[str] | Unreadable:
        """Return the command that serves with exactly this speculative config.

        Args:
            speculative: The config; None serves without; ``unchanged`` keeps the command's own.
            graph_mode: ``cudagraph_mode`` to add to the compilation config; None for none.
            instruments: What it carries of ours.
        """
        edit = arm_arguments(
            self._container,
            speculative=speculative,
            graph_mode=graph_mode,
            instruments=instruments,
        )
        if isinstance(edit, Unreadable):
            return edit
        edited = edited_container(self._container, edit) if edit else self._container
        return [_plain(word) for word in edited["command"]]

    def instruments(
        self, slo: Slo, *, screening: bool = False, secret: str | None = None, port: int = 0
    ) -> Instruments:
        """Return what a launch carries: the same in every arm, but for what screens.

        Args:
            slo: The limits that good requests meet.
            screening: Whether it serves to find candidates.
            secret: What a request must carry to switch K; None for an arm that is no probe.
            port: Of a probe's page on loopback.
        """
        server = self.server()
        if isinstance(server, Unreadable):
            return Instruments(left_out=(server.message,))
        if (why := self._path_hidden()) is not None:
            return Instruments(left_out=(why,))
        observed = observing(self._container, server, slo)
        if screening:
            observed = timing(observed)
        if secret is None:
            return observed
        return probing(observed, self._container, server, secret, port=port)

    def following(
        self, observed: Instruments, rows: Sequence[Sequence[int]], folder: Path
    ) -> Instruments | Unreadable:
        """Return the instruments of a launch whose context-axis scheduler follows a table.

        Args:
            observed: What every arm carries.
            rows: The table.
            folder: Where ``engine.deliver`` has laid the parts, and the table.
        """
        server = self.server()
        if isinstance(server, Unreadable):
            return server
        return following(observed, self._container, server, rows, _escaped(str(folder.resolve())))

    def variables(self, instruments: Instruments, folder: Path) -> dict[str, str]:
        """Return the variables that instruments need, over those that the command runs with.

        Args:
            instruments: What the launch carries.
            folder: Where ``engine.deliver`` has laid the parts.
        """
        entries = variables_with(self._container, instruments, _escaped(str(folder.resolve())))
        return {entry["name"]: _plain(entry["value"]) for entry in entries}

    def _config_files(self) -> dict[str, str]:
        """Return the text of what ``--config`` names, by path."""
        named = [after for word, after in pairwise(self.argv) if word == "--config"]
        return {path: Path(path).read_text() for path in named if Path(path).is_file()}

    def installed(self) -> str:
        """Name what the command runs, as an image's digest names what a pod runs.

        That is every program before the server's arguments, and beside each the packages of its
        Python environment: their names, versions and the times of their installation.
        """
        digest = hashlib.sha256()
        for program in self._programs():
            digest.update(_file(program).encode())
            for packages in sorted(program.parent.parent.glob("lib/python3*/site-packages")):
                for record in sorted(packages.glob("*.dist-info/RECORD")):
                    digest.update(_file(record).encode())
        return f"local:{digest.hexdigest()}"

    def _path_hidden(self) -> str | None:
        """Say which script on the way to the server hides PYTHONPATH from it; None where none."""
        for program in self._programs():
            for line in _script(program):
                if (what := hides_path(line)) is not None:
                    return f"{program} {what}, so vLLM would not find what is delivered"
        return None

    def _programs(self) -> Iterator[Path]:
        """Yield every program before the server's arguments."""
        launch = launch_of(self._container)
        count = len(self.argv)
        if isinstance(launch, Launch) and launch.places:
            count = launch.places[0].item
        for word in self.argv[:count]:
            if (program := shutil.which(word)) is not None:
                yield Path(program)


def gpu_products() -> list[str]:
    """Return the products of the NVIDIA GPUs that a server of this machine sees."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    found = []
    for file in sorted(_NVIDIA.glob("gpus/*/information")):
        model = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        found.append(model.group(1).strip() if model else "unknown")
    return found


def machine() -> dict[str, Any]:
    """Return what a receipt says of the machine, by field."""
    version = _NVIDIA / "version"
    said = version.read_text() if version.exists() else ""
    driver = re.search(r"Kernel Module\D+([\d.]+)", said)
    return {
        "node": platform.node(),
        "gpu": ", ".join(sorted(set(gpu_products()))) or None,
        "driver_version": driver.group(1) if driver else None,
    }


def _file(path: Path) -> str:
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}\n"


def _script(program: Path) -> list[str]:
    """Return the lines of a script; none of a binary, whose words are no commands."""
    try:
        with program.open("rb") as file:
            head = file.read(_LONGEST_SCRIPT)
    except OSError:
        return []
    text = head.decode(errors="replace") if head.startswith(b"#!") else ""
    return text.replace("\\\n", " ").splitlines()


def _escaped(word: str) -> str:
    return word.replace("$", "$$")


def _plain(word: str) -> str:
    return word.replace("$$", "$")


def _block(server: ServerFacts) -> int | None:
    """Return the block size in the drafter's files, where its model is a folder here."""
    drafter = (server.speculative or {}).get("model")
    if not isinstance(drafter, str):
        return None
    try:
        return block_in((Path(drafter) / "config.json").read_text(errors="replace"))
    except (OSError, ValueError):
        return None
