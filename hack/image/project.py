"""The project's image: the Dockerfile of the repository on the base image."""

import configparser
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import bases
import buildah

IMAGE = "localhost/specschedule:dev"

_REPOSITORY = Path(__file__).resolve().parents[2]
# What the Dockerfile copies, and itself.
_INPUTS = (
    "Dockerfile",
    ".dockerignore",
    "requirements.lock",
    "hack/image/build.lock",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "operator",
)
# pip's settings that say where packages come from, as opposed to where they go.
_PIP_SETTINGS = frozenset(
    {
        *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy"),
        *("cert", "client-cert", "timeout", "default-timeout", "retries"),
    }
)


def image() -> buildah.Image:
    """The operator, the load generator and the simulated engine in one image."""
    base = bases.base()
    project = buildah.Image(IMAGE, _key(base))
    with project.building() as held:
        if held is not None:
            with _pip_volumes() as volumes:
                project.build(
                    held,
                    _REPOSITORY,
                    (_REPOSITORY / "Dockerfile").read_text(),
                    {"BASE": base.present()},
                    volumes,
                )
    return project


def _key(base: buildah.Image) -> str:
    digest = hashlib.sha256(base.key.encode())
    for name in _INPUTS:
        path = _REPOSITORY / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(_REPOSITORY)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _pip_volumes() -> Iterator[Mapping[Path, str]]:
    """This machine's way to its package index, shown to the build and kept out of the image."""
    settings = _pip_settings()
    volumes: dict[Path, str] = {}
    for setting in ("cert", "client-cert"):
        if file := settings.get(setting):
            volumes[Path(file)] = file
    for place in settings.get("find-links", "").split():
        if Path(place).is_dir():
            volumes[Path(place)] = place
    configuration = configparser.RawConfigParser()
    configuration["global"] = settings
    with tempfile.TemporaryDirectory() as folder:
        pip_conf = Path(folder) / "pip.conf"
        with pip_conf.open("w") as content:
            configuration.write(content)
        yield {pip_conf: "/etc/pip.conf", **volumes}


def _pip_settings() -> dict[str, str]:
    """The settings of pip's configuration files and environment, the latter before the former."""
    files = [
        Path("/etc/pip.conf"),
        Path.home() / ".pip" / "pip.conf",
        Path.home() / ".config" / "pip" / "pip.conf",
        Path(os.environ.get("PIP_CONFIG_FILE", os.devnull)),
    ]
    configuration = configparser.RawConfigParser()
    configuration.read(files)
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if configuration.has_section(section):
            settings.update(configuration[section])
    for variable, value in os.environ.items():
        if variable.startswith("PIP_"):
            settings[variable.removeprefix("PIP_").lower().replace("_", "-")] = value
    return {name: value for name, value in settings.items() if name in _PIP_SETTINGS}
