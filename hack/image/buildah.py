"""Builds images without a container engine, as archives in the cache folder."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import host

_KEPT = 3
_SCRATCH = "image-"
# An archive is read on this machine only, and soon.
_FAST = ("--compression-format", "zstd", "--compression-level", "1")


@dataclass(frozen=True)
class Image:
    """An image with one name, in as many versions as its recipe had.

    Attributes:
        name: Its name with its tag, the same in every version.
        key: What tells this version from others: a hash of all that it is made of.
    """

    name: str
    key: str

    @property
    def archive(self) -> Path:
        """Where its OCI archive lies once it is built."""
        return self._folder / f"{self._short}-{self.key}.oci.tar"

    @property
    def log(self) -> Path:
        """What the build of this image said."""
        return self._folder / f"{self._short}.log"

    @property
    def _folder(self) -> Path:
        return host.cache_folder() / "images"

    @property
    def _short(self) -> str:
        return self.name.rpartition("/")[2].replace(":", "-")

    @property
    def _version(self) -> str:
        return f"{self.name.rpartition(':')[0]}:{self.key}"

    @contextmanager
    def building(self) -> Iterator[int | None]:
        """Holds the right to build, one build at a time for this machine's storage.

        What a build that was killed left behind is removed first.

        Yields:
            The descriptor that holds the right, for `build`; None if this version exists.
        """
        self._folder.mkdir(exist_ok=True)
        with host.lock(f"images {self._folder}") as held:
            if self.archive.exists():
                yield None
                return
            host.say(f"building {self.name}")
            self.log.write_text("")
            for stale in host.cache_folder().glob(f"{_SCRATCH}*"):
                shutil.rmtree(stale)
            host.run(*_buildah("rm", "--all"))
            yield held
            self._forget_old()

    def build(
        self,
        held: int,
        context: Path,
        containerfile: str,
        arguments: Mapping[str, str] | None = None,
        volumes: Mapping[Path, str] | None = None,
    ) -> None:
        """Builds the image and writes its archive.

        Args:
            held: The right to build; the build holds it on if this process is killed.
            context: The folder that the containerfile copies from.
            containerfile: The instructions.
            arguments: The build arguments.
            volumes: Files and folders of the machine to where they appear, read-only, while
                commands of the build run.

        Raises:
            host.Failure: With the end of the log, if it fails.
        """
        instructions = self._folder / f"{self._short}.containerfile"
        instructions.write_text(containerfile)
        command = ["bud", "--isolation", "chroot", "--pull-never", "--layers", "--format", "oci"]
        for name, value in (arguments or {}).items():
            command += ["--build-arg", f"{name}={value}"]
        for source, seen_at in (volumes or {}).items():
            command += ["--volume", f"{source}:{seen_at}:ro"]
        seconds = host.run_logged(
            _buildah(*command, "--file", instructions, "--tag", self._version, context),
            self.log,
            f"building {self.name}",
            keep_open=held,
        )
        partial = self.archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        seconds += host.run_logged(
            _buildah("push", *_FAST, self._version, f"oci-archive:{partial}:{self.name}"),
            self.log,
            f"writing {self.archive}",
            keep_open=held,
        )
        partial.rename(self.archive)
        host.say(f"built {self.name} in {seconds:.0f} s")

    def present(self) -> str:
        """The name by which a build can start from this version, which must have been built."""
        listed = subprocess.run(
            _buildah("images", "--quiet", self._version), capture_output=True, check=False
        )
        if listed.returncode != 0:
            pulled = host.run(*_buildah("pull", "--quiet", f"oci-archive:{self.archive}"))
            host.run(*_buildah("tag", pulled.strip(), self._version))
        return self._version

    def _forget_old(self) -> None:
        versions = sorted(
            self._folder.glob(f"{self._short}-*.oci.tar"), key=lambda file: -file.stat().st_mtime
        )
        for old in versions[_KEPT:]:
            old.unlink()
            key = old.name.removeprefix(f"{self._short}-").removesuffix(".oci.tar")
            stale = Image(self.name, key)._version
            subprocess.run(_buildah("rmi", "--force", stale), capture_output=True, check=False)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one build, on the disk of the cache and not in a small /tmp."""
    with tempfile.TemporaryDirectory(dir=host.cache_folder(), prefix=_SCRATCH) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def require() -> None:
    """Sees to it that the machine can build images."""
    host.require_root()
    host.require_packages({"buildah": "buildah", "debootstrap": "debootstrap", "tar": "tar"})


def _buildah(*arguments: str | Path) -> list[str | Path]:
    """A buildah command in a mount namespace of its own, so that none of its mounts stays."""
    driver = "overlay" if host.can_overlay(host.cache_folder()) else "vfs"
    storage = host.cache_folder() / f"buildah-{driver}"
    return [
        *("unshare", "--mount", "--", "buildah", "--storage-driver", driver),
        *("--root", storage / "root", "--runroot", storage / "run", *arguments),
    ]
