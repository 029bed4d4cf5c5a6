"""Container images without a registry: the pause image, and loading archives into the node."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import components
import host
import programs
from namespaces import Init

_OCI = "application/vnd.oci.image"
# The kernel's names of architectures, as images call them.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pause_archive() -> Path:
    """The pause image as an OCI archive, made of the pause program alone.

    It lies next to the program, which is what it changes with.
    """
    program = programs.path("pause")
    archive = program.with_name("pause.oci.tar")
    if not archive.exists():
        partial = archive.with_suffix(".partial")
        partial.write_bytes(_single_program_image(program.read_bytes(), components.PAUSE_IMAGE))
        partial.rename(archive)
    return archive


def load(init: Init, archive: Path) -> None:
    """Imports an OCI or Docker archive into the node's image store.

    Raises:
        host.Failure: If there is no such archive or it cannot be imported.
    """
    if not archive.is_file():
        raise host.Failure(f"there is no image archive {archive}")
    host.run(*init.command(*_ctr("images", "import", archive.resolve())))


def _ctr(*arguments: str | Path) -> tuple[str | Path, ...]:
    ctr = programs.path("ctr")
    return (ctr, "--address", components.CONTAINERD_SOCKET, "--namespace", "k8s.io", *arguments)


def _single_program_image(program: bytes, name: str) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo("pause")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    blobs: dict[str, bytes] = {}

    def add(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {
            "mediaType": f"{_OCI}.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    difference = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    machine = os.uname().machine
    platform = {"architecture": _ARCHITECTURES.get(machine, machine), "os": "linux"}
    config = {
        **platform,
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [difference]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": add(json.dumps(config).encode(), "config.v1+json"),
        "layers": [add(gzip.compress(layer.getvalue(), mtime=0), "layer.v1.tar+gzip")],
    }
    described = add(json.dumps(manifest).encode(), "manifest.v1+json")
    names = {"org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [{**described, "annotations": names}]}
    blobs["index.json"] = json.dumps(index).encode()
    blobs["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in blobs.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
