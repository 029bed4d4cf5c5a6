"""Whether the cluster is well, asked over its link as any client would, and why not."""

import contextlib
import json
import re
import socket
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import components
import host
import programs
from components import Component
from namespaces import Addresses, Cluster

# How the components' several log formats mark what went wrong.
_TROUBLE = re.compile(
    r'^[EF]\d{4} |"level":"(error|fatal|panic)"|level=(error|fatal|panic)|\[(ERROR|FATAL)\]'
    r"|^panic:|^Error:|^\S+: error:|command failed"
)


def component_problem(cluster: Cluster, component: Component) -> str:
    """What is wrong with a component; empty when it is well."""
    with contextlib.suppress(FileNotFoundError):
        status = (cluster.state / "run" / f"{component.name}.ended").read_text().strip()
        return f"ended with status {status}"
    trust = None
    if component.health.startswith("https:"):
        trust = ssl.create_default_context(cafile=str(cluster.state / "pki" / "ca.crt"))
    # A proxy that the machine may have is not for addresses of this cluster.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    )
    try:
        with opener.open(component.health, timeout=3):
            return ""
    except urllib.error.HTTPError as error:
        body = error.read().decode(errors="replace").strip()
        failing = [line for line in body.splitlines() if line.startswith("[-]")] or [body[:200]]
        return f"answers {error.code}: {' '.join(failing)}"
    except OSError as error:
        return f"does not answer at {component.health} ({error})"


def node_problem(cluster: Cluster) -> str:
    """Why the node takes no pods; empty when it is Ready and pods may be created."""
    try:
        kubectl(cluster, "get", "serviceaccount", "default", "-n", "default")
        node = json.loads(kubectl(cluster, "get", "node", components.NODE, "-o", "json"))
    except host.Failure as failure:
        return str(failure).splitlines()[-1]
    if taints := node["spec"].get("taints"):
        return f"node has the taint {taints[0]['key']}"
    for condition in node["status"].get("conditions", []):
        if condition["type"] == "Ready":
            return "" if condition["status"] == "True" else str(condition["message"])
    return "node has no Ready condition yet"


def dns_problem(addresses: Addresses) -> str:
    """Why the cluster's DNS Service does not resolve a name; empty when it does."""
    name = f"kubernetes.default.svc.{components.DOMAIN}"
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    header = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0)
    question = labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        query.settimeout(1)
        try:
            query.sendto(header + question, (addresses.dns, 53))
            answer = query.recv(512)
        except OSError as error:
            return f"no answer from {addresses.dns} ({error})"
    if not answer.endswith(socket.inet_aton(addresses.api_service)):
        return f"{name} does not resolve to {addresses.api_service}"
    return ""


def summary(cluster: Cluster, addresses: Addresses) -> dict[str, str]:
    """Every component, the node and the DNS Service, with its problem; empty when it is well."""
    problems = {
        component.name: component_problem(cluster, component)
        for component in components.components(cluster, addresses)
    }
    problems["node"] = node_problem(cluster)
    problems["dns"] = dns_problem(addresses)
    return problems


def await_component(cluster: Cluster, component: Component, seconds: float = 90) -> None:
    """Waits until a component is well.

    Raises:
        host.Failure: As soon as it has ended, or at the deadline.
    """

    def problem() -> str:
        return component_problem(cluster, component)

    ended = cluster.state / "run" / f"{component.name}.ended"
    _await(component.name, problem, seconds, give_up=ended.exists)


def await_node(cluster: Cluster, addresses: Addresses, seconds: float = 90) -> None:
    """Waits until the node takes pods and cluster names resolve.

    Raises:
        host.Failure: At the deadline.
    """
    _await("kubelet", lambda: node_problem(cluster), seconds)
    _await("coredns", lambda: dns_problem(addresses), seconds)


class Unhealthy(host.Failure):
    """A component that is not well.

    Attributes:
        component: Its name.
    """

    def __init__(self, component: str, problem: str) -> None:
        super().__init__(f"{component}: {problem}")
        self.component = component


def _await(
    component: str,
    problem: Callable[[], str],
    seconds: float,
    give_up: Callable[[], bool] = lambda: False,
) -> None:
    deadline = time.monotonic() + seconds
    while found := problem():
        if give_up() or time.monotonic() > deadline:
            raise Unhealthy(component, found)
        time.sleep(0.1)


def explain(cluster: Cluster, addresses: Addresses, component: str) -> str:
    """A health summary and the last log lines of the component at fault that say why."""
    lines = [
        f"  {name:<24} {problem or 'ok'}" for name, problem in summary(cluster, addresses).items()
    ]
    return "\n".join([*lines, *last_words(cluster.state / "log" / f"{component}.log")])


def last_words(log: Path, count: int = 8) -> list[str]:
    """The last lines of a log that report trouble, or its last lines if none does."""
    if not log.exists():
        return [f"{log} was never written"]
    lines = log.read_text(errors="replace").splitlines()
    telling = [line for line in lines if _TROUBLE.search(line)] or lines
    return [f"the end of {log}:", *(f"  {line[:400]}" for line in telling[-count:])]


def kubectl(cluster: Cluster, *arguments: str, input: str | None = None) -> str:
    """Runs kubectl as the cluster's administrator and returns its output.

    Raises:
        host.Failure: With what kubectl said.
    """
    return host.run(
        programs.path("kubectl"),
        f"--kubeconfig={cluster.kubeconfig}",
        "--request-timeout=10s",
        *arguments,
        input=input,
    )
