"""The command that serves, as the target of a run: the same facts and the same edit as a pod's.

A command of this machine is a container whose command it is, in a Deployment of one replica.
What Kubernetes would put in for ``$(NAME)`` is kept from it by writing every ``$`` twice.
"""

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from specschedule.core.preflight import REGISTRATION
from specschedule.core.target import ServerFacts, TargetFacts, Unreadable
from specschedule.vllm_facts.arguments import edited_container, read_container, with_speculative
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
            if (_DECISIVE.match(name) and not _SECRET.search(name)) or REGISTRATION.match(name)
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
        return facts.model_copy(update={"server": server, "gpus": gpus})

    def with_speculative(
        self, speculative: Mapping[str, Any] | None, *, graph_mode: str | None = None
    ) -> list[str] | Unreadable:
        """Return the command that serves with exactly this speculative config."""
        edit = with_speculative(self._container, speculative, graph_mode=graph_mode)
        if isinstance(edit, Unreadable):
            return edit
        edited = edited_container(self._container, edit)
        return [word.replace("$$", "$") for word in edited["command"]]

    def _config_files(self) -> dict[str, str]:
        """Return the text of what ``--config`` names, by path."""
        named = [after for word, after in pairwise(self.argv) if word == "--config"]
        return {path: Path(path).read_text() for path in named if Path(path).is_file()}

    def installed(self) -> str:
        """Name what the command runs, as an image's digest names what a pod runs.

        That is every program before the server's arguments, and beside each the packages of its
        Python environment: their names, versions and the times of their installation.
        """
        launch = launch_of(self._container)
        count = len(self.argv)
        if isinstance(launch, Launch) and launch.places:
            count = launch.places[0].item
        digest = hashlib.sha256()
        for word in self.argv[:count]:
            if (program := shutil.which(word)) is None:
                continue
            digest.update(_file(Path(program)).encode())
            for packages in sorted(Path(program).parent.parent.glob("lib/python3*/site-packages")):
                for record in sorted(packages.glob("*.dist-info/RECORD")):
                    digest.update(_file(record).encode())
        return f"local:{digest.hexdigest()}"


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


def _escaped(word: str) -> str:
    return word.replace("$", "$$")
