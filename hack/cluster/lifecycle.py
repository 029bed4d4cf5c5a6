"""Brings the embedded cluster up and down, and changes the one that runs."""

import json
import time
from pathlib import Path

import components
import health
import host
import images
import namespaces
import programs
from namespaces import Addresses, Cluster, Init

_PACKAGES = {
    "unshare": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
}


def up(cluster: Cluster) -> None:
    """Brings the cluster up; a healthy one is left alone.

    What is left of an earlier run that ended half-way is removed first.

    Raises:
        host.Failure: With a health summary and the telling log lines, if it does not get well.
    """
    host.require_root()
    with host.lock(cluster.name):
        if init := cluster.init():
            problems = health.summary(cluster, Addresses(init.slot))
            if not any(problems.values()):
                host.say(f"the cluster is up and healthy; its kubeconfig is {cluster.kubeconfig}")
                return
            for name, problem in problems.items():
                host.say(f"  {name:<24} {problem or 'ok'}")
            host.say("the cluster that runs is not healthy; starting it afresh")
        _require_packages()
        programs.build_all()
        pause = images.pause_archive()
        namespaces.remove(cluster)
        began = time.monotonic()
        _start(cluster, pause)
        host.say(
            f"the cluster came up in {time.monotonic() - began:.0f} s; "
            f"its kubeconfig is {cluster.kubeconfig}"
        )


def down(cluster: Cluster) -> None:
    """Ends the cluster and removes everything of it; does nothing where there is none."""
    host.require_root()
    with host.lock(cluster.name):
        namespaces.remove(cluster)
    host.say(f"the cluster of {cluster.state} is down and removed")


def status(cluster: Cluster) -> tuple[dict[str, str], Addresses]:
    """The problems of the running cluster by component, empty when well, and its addresses.

    Raises:
        host.Failure: If it does not run.
    """
    addresses = Addresses(running(cluster).slot)
    return health.summary(cluster, addresses), addresses


def running(cluster: Cluster) -> Init:
    """The init of the running cluster.

    Raises:
        host.Failure: If it does not run.
    """
    if init := cluster.init():
        return init
    raise host.Failure(f"no cluster runs for {cluster.state}; start it with `hack/cluster up`")


def set_gpus(cluster: Cluster, count: int) -> None:
    """Pretends that the node has GPUs: capacity that the scheduler and the kubelet count.

    The kubelet keeps extended resources that it does not know when it updates the node's status.

    Raises:
        host.Failure: If the count is negative or the cluster does not run.
    """
    if count < 0:
        raise host.Failure(f"gpus {count}: a node cannot have fewer than 0")
    running(cluster)
    health.kubectl(
        cluster,
        *("patch", "node", components.NODE, "--subresource=status", "--type=json", "-p"),
        json.dumps(
            [
                {"op": "add", "path": f"/status/{field}/nvidia.com~1gpu", "value": str(count)}
                for field in ("capacity", "allocatable")
            ]
        ),
    )


def load_image(cluster: Cluster, archive: Path) -> None:
    """Gives the running cluster's node the images of an OCI or Docker archive.

    Raises:
        host.Failure: If the cluster does not run or the archive cannot be imported.
    """
    images.load(running(cluster), archive)
    host.say(f"the node has the image of {archive}")


def _require_packages() -> None:
    needed = dict(_PACKAGES)
    if not any(Path(folder, "ptp").exists() for folder in components.CNI_PLUGINS):
        needed[f"{components.CNI_PLUGINS[0]}/ptp"] = "containernetworking-plugins"
    host.require_packages(needed)


def _start(cluster: Cluster, pause: Path) -> None:
    for folder in ("", "log", "run", "bin"):
        (cluster.state / folder).mkdir(parents=True, exist_ok=True)
    for module in programs.ALL:
        for program in module.packages:
            (cluster.state / "bin" / program).symlink_to(programs.path(program))
    starter = namespaces.Starter(cluster)
    try:
        _start_components(cluster, starter, pause)
        starter.keep()
    except health.Unhealthy as unhealthy:
        explanation = health.explain(cluster, starter.addresses, unhealthy.component)
        starter.abandon()
        raise host.Failure(f"the cluster did not get well: {unhealthy}\n{explanation}") from None
    except BaseException:
        starter.abandon()
        raise


def _start_components(cluster: Cluster, starter: namespaces.Starter, pause: Path) -> None:
    addresses = starter.addresses
    components.write_configuration(cluster, addresses)
    environment = components.environment()
    started = components.components(cluster, addresses)
    for component in started:
        starter.start(component.name, component.argv, environment)
        match component.name:
            case "containerd":
                health.await_component(cluster, component)
                images.load(starter.init, pause)
            case "kube-apiserver":
                health.await_component(cluster, component)
                manifests = components.dns_manifests(addresses)
                everything = {"apiVersion": "v1", "kind": "List", "items": manifests}
                health.kubectl(cluster, "apply", "-f", "-", input=json.dumps(everything))
    for component in started:
        health.await_component(cluster, component)
    health.await_node(cluster, addresses)
