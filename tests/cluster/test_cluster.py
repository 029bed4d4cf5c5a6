"""The embedded cluster is a real Kubernetes node that leaves the machine as it found it."""

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .conftest import IMAGE, Clusters, until

pytestmark = pytest.mark.cluster


def pod(name: str, script: str, **spec: object) -> dict[str, object]:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", "-c", script],
        **(spec.pop("container", {})),  # type: ignore[dict-item]
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **spec,
        },
    }


def phase(cluster: Clusters, name: str) -> str:
    return cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}")


def slot(cluster: Clusters) -> int:
    return int(json.loads((cluster.state / "init.json").read_text())["slot"])


def namespaces_of(process: int | str) -> set[str]:
    found = set()
    for kind in ("net", "mnt", "pid"):
        try:
            found.add(os.readlink(f"/proc/{process}/ns/{kind}"))
        except OSError:
            continue
    return found


def members(namespaces: set[str]) -> list[str]:
    return [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and namespaces & namespaces_of(entry.name)
    ]


def host_tables() -> str:
    return subprocess.run(
        ["nft", "list", "tables"], capture_output=True, text=True, check=True
    ).stdout


def link_to(cluster: Clusters) -> str:
    """The host's link to the cluster, which names its cgroup folders too."""
    address = f"10.199.{slot(cluster)}.2"
    routes = subprocess.run(
        ["ip", "-json", "route", "get", address], capture_output=True, text=True, check=True
    )
    return str(json.loads(routes.stdout)[0]["dev"])


def named(name: str) -> list[Path]:
    """What the host's networks and cgroups show under a name."""
    cgroups = Path("/sys/fs/cgroup").glob(f"**/{name}")
    return [*Path("/sys/class/net").glob(name), *cgroups]


def test_up_twice_changes_nothing_and_says_that_it_is_healthy(cluster: Clusters) -> None:
    before = cluster.init
    again = cluster.call("up")
    assert again.returncode == 0
    assert "up and healthy" in again.stderr
    assert cluster.init == before
    assert "kubelet                  ok" in cluster("status")


def test_a_pod_resolves_a_service_by_name_and_reaches_it(cluster: Clusters) -> None:
    server = pod("web", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    cluster.apply(server, service)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    client = """
import socket, time, urllib.request
for attempt in range(50):
    try:
        print(urllib.request.urlopen("http://web.default/etc/hostname", timeout=2).read().decode())
        break
    except OSError as error:
        print(error)
        time.sleep(0.2)
print("api", socket.gethostbyname("kubernetes.default.svc.cluster.local"))
try:
    socket.gethostbyname("no-such-name.example")
except socket.gaierror as error:
    print("unknown", error.errno == socket.EAI_NONAME)
"""
    cluster.apply(pod("client", client))
    until(lambda: phase(cluster, "client") in ("Succeeded", "Failed"))
    said = cluster.kubectl("logs", "client").split()
    assert "web" in said
    assert f"10.{150 + slot(cluster)}.0.1" in said
    assert said[-2:] == ["unknown", "True"]


def test_host_folders_and_shared_memory_work_as_volumes(cluster: Clusters, tmp_path: Path) -> None:
    (tmp_path / "question").write_text("6 * 7")
    script = f"""
import os, pathlib
folder = pathlib.Path({str(tmp_path)!r})
shared = os.statvfs("/dev/shm")
(folder / "answer").write_text(str(eval((folder / "question").read_text())))
pathlib.Path("/dev/shm/large").write_bytes(bytes(100 << 20))
"""
    mounts = [
        {"name": "folder", "mountPath": str(tmp_path)},
        {"name": "shared", "mountPath": "/dev/shm"},
    ]
    volumes = [
        {"name": "folder", "hostPath": {"path": str(tmp_path)}},
        {"name": "shared", "emptyDir": {"medium": "Memory"}},
    ]
    cluster.apply(pod("volumes", script, volumes=volumes, container={"volumeMounts": mounts}))
    until(lambda: phase(cluster, "volumes") in ("Succeeded", "Failed"))
    assert phase(cluster, "volumes") == "Succeeded", cluster.kubectl("logs", "volumes")
    assert (tmp_path / "answer").read_text() == "42"


def test_the_scheduler_counts_pretended_gpus_and_the_kubelet_keeps_them(
    cluster: Clusters,
) -> None:
    cluster("gpus", "2")
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    names = [f"gpu-{number}" for number in range(3)]
    cluster.apply(*(pod(name, "input()", container=limits) for name in names))

    def reason(name: str) -> str:
        return cluster.kubectl(
            "get", "pod", name, "-o", "jsonpath={.status.conditions[?(@.status=='False')].message}"
        )

    until(lambda: sum("Insufficient nvidia.com/gpu" in reason(name) for name in names) == 1)

    def heartbeat() -> str:
        return cluster.kubectl(
            *("get", "node", "node", "-o"),
            "jsonpath={.status.conditions[?(@.type=='Ready')].lastHeartbeatTime}",
        )

    for _ in range(2):
        seen = heartbeat()
        until(lambda seen=seen: heartbeat() != seen)
    status = json.loads(cluster.kubectl("get", "node", "node", "-o", "json"))["status"]
    assert status["capacity"]["nvidia.com/gpu"] == "2"
    assert status["allocatable"]["nvidia.com/gpu"] == "2"
    cluster.kubectl("delete", "pod", *names)


def test_audit_tells_who_wrote_what_since_when(cluster: Clusters) -> None:
    cluster.kubectl("create", "serviceaccount", "writer")
    cluster.kubectl(
        *("create", "rolebinding", "writer", "--clusterrole=edit"),
        "--serviceaccount=default:writer",
    )
    token = cluster.kubectl("create", "token", "writer").strip()
    since = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    kubeconfig = ["--kubeconfig=/dev/null", f"--token={token}"]
    kubeconfig += [f"--certificate-authority={cluster.state / 'pki' / 'ca.crt'}"]
    kubeconfig += [f"--server=https://10.199.{slot(cluster)}.2:6443"]
    cluster.kubectl(*kubeconfig, "create", "configmap", "noted")
    cluster.kubectl(*kubeconfig, "get", "configmap", "noted")
    user = "system:serviceaccount:default:writer"

    def seen(*arguments: str) -> list[tuple[str, str, str, int]]:
        events = map(json.loads, cluster("audit", "--since", since, *arguments).splitlines())
        return [
            (event["verb"], event["resource"], event["name"], event["code"])
            for event in events
            if event["user"] == user and event["namespace"] == "default"
        ]

    created = ("create", "configmaps", "noted", 201)
    assert seen() == [created]
    assert seen("--reads") == [created, ("get", "configmaps", "noted", 200)]


def test_two_clones_have_clusters_side_by_side_and_an_interrupted_up_is_taken_up_again(
    cluster: Clusters, other: Clusters, base_archive: str
) -> None:
    for started in ("log/init.log", "log/kube-apiserver.log"):
        half_way = subprocess.Popen(
            other.argv("up"), env=other.environment, stderr=subprocess.DEVNULL
        )
        until((other.state / started).exists)
        half_way.send_signal(signal.SIGKILL)
        half_way.wait()
    other("up")
    assert slot(other) != slot(cluster)
    for each in (cluster, other):
        assert "dns                      ok" in each("status")
    other("load-image", base_archive)
    for each in (cluster, other):
        each.apply(pod("neighbour", "print('here')"))
        until(lambda each=each: phase(each, "neighbour") == "Succeeded")

    init, gone = other.init, namespaces_of(other.init)
    other("down")
    assert not members(gone - namespaces_of(init))
    assert "node                     ok" in cluster("status")


def test_a_dead_component_is_named_and_up_starts_the_cluster_afresh(other: Clusters) -> None:
    other("up")
    before = other.init
    other("exec", "--", "sh", "-c", "kill -9 $(pidof kube-scheduler)")
    until(lambda: other.call("status").returncode != 0)
    assert "kube-scheduler           ended with status -9" in other.call("status").stdout
    again = other.call("up")
    assert again.returncode == 0, again.stderr
    assert "kube-scheduler           ended with status -9" in again.stderr
    assert other.init != before
    other("status")


def test_down_leaves_nothing_on_the_host(other: Clusters, base_archive: str) -> None:
    mounts = Path("/proc/mounts").read_text
    before = (mounts(), host_tables())
    other("up")
    other("load-image", base_archive)
    other.apply(pod("running", "import time; time.sleep(1000)"))
    other.kubectl("wait", "--for=condition=Ready", "pod/running", "--timeout=60s")
    assert (mounts(), host_tables()) == before
    link = link_to(other)
    assert len(named(link)) > 1
    own = namespaces_of(other.init) - namespaces_of("self")
    assert len(own) == 3
    containers = set().union(*(namespaces_of(each) for each in members(own)))
    other("down")
    assert (mounts(), host_tables()) == before
    assert not named(link)
    assert not members(containers - namespaces_of("self"))
    assert not other.state.exists()
    assert other.call("status").returncode != 0
