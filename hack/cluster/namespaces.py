"""The cluster's own network, mount and PID namespaces, its link to the host, and its end.

Everything that one cluster puts on the host carries a name made from its state folder (the
link, the cgroup folders) or lies in that folder, so it can find and remove its own leftovers
and never another cluster's.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import host

# One slot is a link, a pod and a service network; the host has routes to all three.
_SLOTS = range(48)
_INIT = Path(__file__).resolve().parent / "init.py"
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Addresses:
    """The networks of one slot."""

    slot: int

    @property
    def host(self) -> str:
        """The host's end of the link."""
        return f"10.199.{self.slot}.1"

    @property
    def node(self) -> str:
        """The node's end of the link, where the API server and the health checks answer."""
        return f"10.199.{self.slot}.2"

    @property
    def link(self) -> str:
        """The link's network."""
        return f"10.199.{self.slot}.0/24"

    @property
    def pods(self) -> str:
        """The pods' network; every node has a /24 of it."""
        return f"10.{100 + self.slot}.0.0/16"

    @property
    def node_pods(self) -> str:
        """The first node's part of the pods' network."""
        return f"10.{100 + self.slot}.0.0/24"

    @property
    def services(self) -> str:
        """The Services' network."""
        return f"10.{150 + self.slot}.0.0/16"

    @property
    def api_service(self) -> str:
        """The address of the Service `kubernetes`."""
        return f"10.{150 + self.slot}.0.1"

    @property
    def dns(self) -> str:
        """The address of the cluster's DNS Service."""
        return f"10.{150 + self.slot}.0.10"


@dataclass(frozen=True)
class Cluster:
    """A cluster's place on the host.

    Attributes:
        state: Its state folder, absolute.
    """

    state: Path

    @property
    def name(self) -> str:
        """The name of its link and its cgroups, at most 15 characters."""
        return f"specs{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for use on the host."""
        return self.state / "kubeconfig"

    def init(self) -> "Init | None":
        """The first process of its namespaces, if it runs."""
        with contextlib.suppress(FileNotFoundError):
            init = Init(**json.loads((self.state / "init.json").read_text()))
            if _started(init.pid) == init.started:
                return init
        return None

    def remember(self, init: "Init") -> None:
        """Writes down which process is the cluster's init."""
        partial = self.state / "init.json.partial"
        partial.write_text(json.dumps(asdict(init)))
        partial.rename(self.state / "init.json")


@dataclass(frozen=True)
class Init:
    """The first process of a cluster's namespaces.

    Attributes:
        pid: Its process id on the host.
        started: When it started, in clock ticks since boot: a reused id has another one.
        slot: The cluster's slot.
    """

    pid: int
    started: int
    slot: int

    def command(self, *command: str | Path) -> list[str]:
        """The command that runs a command inside the namespaces."""
        return [*("nsenter", "-t", str(self.pid), "-m", "-p", "-n", "--"), *map(str, command)]


class Starter:
    """Namespaces in the making: starts components, and is lost unless told to keep them."""

    def __init__(self, cluster: Cluster) -> None:
        """Makes the namespaces, the link to the host and the cgroup folders.

        Raises:
            host.Failure: If the machine refuses, or no slot is free.
        """
        self._cluster = cluster
        # Pods' cgroups lie below one folder of ours: kubelet removes what it does not know
        # below its root, so two kubelets must not share one.
        _hand_down_controllers(_CGROUPS)
        for controller in _controllers():
            (controller / cluster.name).mkdir(exist_ok=True)
        with (cluster.state / "log" / "init.log").open("wb") as log:
            self._unshare = subprocess.Popen(
                [
                    *("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"),
                    *("--propagation", "slave", "--"),
                    *(sys.executable, "-I", "-S", str(_INIT), str(cluster.state)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._unshare.stdin
        assert self._unshare.stdout
        self._orders = self._unshare.stdin
        try:
            self.init = self._connect(self._unshare.stdout)
        except BaseException:
            self.abandon()
            raise
        self.addresses = Addresses(self.init.slot)

    def _connect(self, answers: IO[str]) -> Init:
        """Waits for init, makes its link in a free slot, and writes down which process it is."""
        if answers.readline() != "ready\n":
            said = (self._cluster.state / "log" / "init.log").read_text(errors="replace")
            raise host.Failure(f"cannot make the cluster's namespaces:\n{said}")
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        pid = int(children.read_text())
        with host.lock("slots"):
            addresses = _free_slot()
            _make_link(self._cluster.name, addresses, pid)
        started = _started(pid)
        if started is None:
            raise host.Failure("the cluster's init ended while its link was made")
        init = Init(pid, started, addresses.slot)
        self._cluster.remember(init)
        return init

    def start(self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Starts a component inside the namespaces, with its output in the state's log folder."""
        self._order(
            start=name,
            argv=[str(part) for part in argv],
            environment=dict(environment),
            log=str(self._cluster.state / "log" / f"{name}.log"),
        )

    def keep(self) -> None:
        """Makes the cluster outlive this process."""
        self._order(keep=True)
        self._orders.close()

    def abandon(self) -> None:
        """Ends the namespaces and everything in them."""
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        self._unshare.wait()

    def _order(self, **order: object) -> None:
        print(json.dumps(order), file=self._orders, flush=True)


def remove(cluster: Cluster) -> None:
    """Ends a cluster, or what is left of one, and removes everything that it put on the host.

    Raises:
        host.Failure: If a process of it does not end or a cgroup folder stays in use.
    """
    if init := cluster.init():
        with contextlib.suppress(ProcessLookupError):
            os.kill(init.pid, signal.SIGKILL)
        _wait(lambda: _started(init.pid) != init.started, "the cluster's processes do not end")
    if Path("/sys/class/net", cluster.name).exists():
        # The kernel may remove it at the same moment, together with the namespace.
        subprocess.run(["ip", "link", "delete", cluster.name], capture_output=True, check=False)
        _wait(
            lambda: not Path("/sys/class/net", cluster.name).exists(),
            f"the link {cluster.name} cannot be removed",
        )
    roots = [controller / cluster.name for controller in _controllers()]
    _wait(
        lambda: all(_remove_cgroup(root) for root in roots),
        f"a process still runs in the cgroup {cluster.name}",
    )
    if cluster.state.exists():
        shutil.rmtree(cluster.state)


def _wait(done: Callable[[], bool], otherwise: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise host.Failure(otherwise)
        time.sleep(0.05)


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _free_slot() -> Addresses:
    """The first slot whose networks overlap with no route and no address of the host."""
    routes = json.loads(host.run("ip", "-json", "-4", "route", "show", "table", "all"))
    taken = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in routes
        if route["dst"] != "default"
    ]
    for slot in _SLOTS:
        addresses = Addresses(slot)
        networks = [
            ipaddress.ip_network(network)
            for network in (addresses.link, addresses.pods, addresses.services)
        ]
        if not any(network.overlaps(other) for network in networks for other in taken):
            return addresses
    raise host.Failure(
        "no free networks for another cluster: the host has routes into every slot of "
        "10.199.N.0/24, 10.(100+N).0.0/16 and 10.(150+N).0.0/16; take another cluster down"
    )


def _make_link(name: str, addresses: Addresses, pid: int) -> None:
    host.run(
        *("ip", "-batch", "-"),
        input="\n".join(
            [
                f"link add {name} type veth peer name eth0 netns {pid}",
                f"address add {addresses.host}/24 dev {name}",
                f"link set {name} up",
                f"route add {addresses.pods} via {addresses.node} dev {name}",
                f"route add {addresses.services} via {addresses.node} dev {name}",
            ]
        ),
    )
    host.run(
        *("nsenter", "-t", str(pid), "-n", "--", "ip", "-batch", "-"),
        input="\n".join(
            [
                "link set lo up",
                f"address add {addresses.node}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {addresses.host}",
            ]
        ),
    )


def _controllers() -> list[Path]:
    """The roots of the cgroup hierarchies: one for each v1 controller, or the v2 root."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [
        entry
        for entry in sorted(_CGROUPS.iterdir())
        if (entry / "cgroup.procs").exists() and not entry.is_symlink()
    ]


def _hand_down_controllers(root: Path) -> None:
    """Offers every controller of a v2 hierarchy to the folders below its root.

    The kubelet refuses a cgroup root that lacks one that it needs.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in (root / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # one that a folder below must not use
                (root / "cgroup.subtree_control").write_text(f"+{name}")


def _remove_cgroup(root: Path) -> bool:
    """Removes a cgroup folder and those below it, as far as no process is left in them."""
    for folder, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not root.exists()
