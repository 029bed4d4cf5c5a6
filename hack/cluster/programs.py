"""Builds the cluster's programs from pinned Go modules, once, into the cache folder."""

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import host

MODULES = Path(__file__).resolve().parent / "modules"
KUBERNETES = "1.36.3"
COMPILER = {"GOGC": "off", "GOMEMLIMIT": "3GiB"}
"""A compiler that collects no garbage before it holds this much is a sixth quicker."""
_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """A Go module of this folder and the programs built from it.

    Attributes:
        name: The folder below `modules`.
        version: The version of the programs, for people; go.mod decides.
        packages: Program to Go package.
        linker: What to set in the programs while linking.
        tags: Go build tags.
    """

    name: str
    version: str
    packages: dict[str, str]
    linker: str = ""
    tags: str = ""

    @property
    def folder(self) -> Path:
        """Where the module's finished programs lie; its name changes with what is built."""
        digest = hashlib.sha256(f"{self.linker} {self.tags} {sorted(self.packages)}".encode())
        for file in sorted((MODULES / self.name).iterdir()):
            digest.update(file.name.encode() + file.read_bytes())
        return host.cache_folder() / f"{self.name}-{digest.hexdigest()[:12]}"


_KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
    "kube-proxy",
)

ALL = (
    Module("pause", "1", {"pause": "specschedule.dev/hack/cluster/pause"}),
    Module("etcd", "3.7.3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        "kubernetes",
        KUBERNETES,
        {program: f"k8s.io/kubernetes/cmd/{program}" for program in _KUBERNETES_PROGRAMS},
        # Without these the API server reports v0.0.0 and clients refuse to talk to it.
        linker=(
            f"-X {_VERSION}.gitVersion=v{KUBERNETES}"
            f" -X {_VERSION}.gitMajor={KUBERNETES.split('.')[0]}"
            f" -X {_VERSION}.gitMinor={KUBERNETES.split('.')[1]}"
        ),
    ),
    Module(
        "containerd",
        "2.4.2",
        {
            program: f"github.com/containerd/containerd/v2/cmd/{program}"
            for program in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        tags="no_btrfs",
    ),
    Module("coredns", "1.15.0", {"coredns": "specschedule.dev/hack/cluster/coredns"}),
    Module("helm", "3.22.0", {"helm": "helm.sh/helm/v3/cmd/helm"}),
)


def path(program: str) -> Path:
    """The finished program's absolute path."""
    return next(m.folder / program for m in ALL if program in m.packages)


def build_all() -> None:
    """Builds every program that the cache folder does not hold yet.

    A module's programs appear in the cache together, by a rename. Two builders take turns: the
    Go command inherits the lock, so the turn lasts until it ends, even if the builder is killed.

    Raises:
        host.Failure: If Go is missing or a build fails, with what Go said.
    """
    if all(module.folder.is_dir() for module in ALL):
        return
    if not shutil.which("go"):
        raise host.Failure(
            "Go is needed to build the cluster's programs and is not on the PATH; "
            "install Go 1.26 or newer (https://go.dev/dl)"
        )
    with host.lock(f"programs {host.cache_folder()}") as held:
        for stale in host.cache_folder().glob("*.building"):
            shutil.rmtree(stale)
        todo = [module for module in ALL if not module.folder.is_dir()]
        total = sum(len(module.packages) for module in todo)
        began = time.monotonic()
        if total:
            host.say(f"building {total} programs from source, once for this machine")
        done = 0
        for module in todo:
            building = module.folder.with_name(f"{module.folder.name}.building")
            building.mkdir()
            for program in module.packages:
                done += 1
                seconds = _build(module, program, building, held)
                host.say(f"  [{done}/{total}] {program} {module.version}: {seconds:.0f} s")
            (building / "build.log").unlink()
            building.rename(module.folder)
        if total:
            host.say(f"built {total} programs in {time.monotonic() - began:.0f} s")


def _build(module: Module, program: str, into: Path, held: int) -> float:
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {module.linker}".strip()]
    if module.tags:
        command += ["-tags", module.tags]
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=readonly -buildvcs=false".strip()
    return host.run_logged(
        [*command, "-o", into / program, module.packages[program]],
        into / "build.log",
        f"building {program} {module.version}",
        folder=MODULES / module.name,
        environment={**COMPILER, **os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags},
        keep_open=held,
    )
