"""The images below the project's: a small Debian with Python, and Prometheus on top of it."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import buildah
import host

BASE = "localhost/specschedule-base:1"
PROMETHEUS = "localhost/prometheus:1"

_PACKAGES = ("python3", "python3-venv", "ca-certificates", "libnuma1")
# What a package manager leaves behind and a container never reads.
_REMOVED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
_BASE_FILE = "FROM scratch\nADD root.tar /\n"
_PROMETHEUS_FILE = """\
ARG BASE
FROM ${BASE}
COPY prometheus promtool /usr/bin/
USER 65534:65534
ENTRYPOINT ["/usr/bin/prometheus"]
"""


def base() -> buildah.Image:
    """The base image: this machine's own Debian release, from its own package sources."""
    image = buildah.Image(BASE, _key())
    with image.building() as held:
        if held is not None:
            with buildah.scratch() as folder:
                _bootstrap(folder / "root", image.log, held)
                host.run(
                    *("tar", "--create", "--numeric-owner", "--file", folder / "root.tar"),
                    *("--directory", folder / "root", "."),
                )
                image.build(held, folder, _BASE_FILE)
    return image


def prometheus() -> buildah.Image:
    """Debian's Prometheus on the base image."""
    below = base()
    image = buildah.Image(PROMETHEUS, _key())
    with image.building() as held:
        if held is not None:
            with buildah.scratch() as folder:
                for program in ("prometheus", "promtool"):
                    shutil.copy2(prometheus_program().with_name(program), folder)
                image.build(held, folder, _PROMETHEUS_FILE, {"BASE": below.present()})
    return image


def prometheus_program() -> Path:
    """Debian's Prometheus for this machine, not installed: that would start a service of it."""
    kept = host.cache_folder() / f"prometheus-{_key()}"
    with host.lock(kept.name):
        if not kept.exists():
            with buildah.scratch() as folder:
                _unpack("prometheus", folder)
                (folder / "usr/bin").rename(kept)
    return kept / "prometheus"


def _key() -> str:
    """A hash of the recipe: this file and the release that packages come from."""
    return hashlib.sha256(Path(__file__).read_bytes() + _release().encode()).hexdigest()[:12]


def _bootstrap(root: Path, log: Path, held: int) -> None:
    mirror = _mirror(_release())
    host.run_logged(
        [
            # In a mount namespace of its own: a killed debootstrap leaves /proc mounted.
            *("unshare", "--mount", "--", "debootstrap", "--variant=minbase"),
            f"--include={','.join(_PACKAGES)}",
            *(_release(), root, mirror),
        ],
        log,
        "unpacking the base system",
        keep_open=held,
    )
    for folder in _REMOVED:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)


def _unpack(package: str, folder: Path) -> None:
    """Downloads a Debian package without installing it, and unpacks its files."""
    command = ["apt-get", "download", "-q", package]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode != 0:
        host.run("apt-get", "update", "-q")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise host.Failure(f"apt-get cannot download {package}:\n{done.stderr.strip()}")
    host.run("dpkg-deb", "--extract", next(folder.glob("*.deb")), folder)


def _release() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    raise host.Failure("the base image is made by debootstrap, which needs Debian or Ubuntu")


def _mirror(release: str) -> str:
    """The address that this machine's apt takes the release from."""
    listed = host.run(
        *("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"),
    )
    for line in listed.splitlines():
        site, _, suite = line.partition(" ")
        if suite == release:
            return site
    raise host.Failure(f"apt has no source for {release}; add one in /etc/apt")
