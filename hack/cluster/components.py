"""What runs in the cluster: each component's configuration, command line and health address."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import certs
import host
import programs
from namespaces import Addresses, Cluster

NODE = "node"
PAUSE_IMAGE = "localhost/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DOMAIN = "cluster.local"

# Debian's folder, then the one that the plugins' own releases use.
CNI_PLUGINS = ("/usr/lib/cni", "/opt/cni/bin")

_CAP_SYS_RESOURCE = 1 << 24
_CLIENT = {"qps": 200, "burst": 400}


@dataclass(frozen=True)
class Component:
    """One process of the cluster.

    Attributes:
        name: Its name, which is its log file's too.
        argv: Its command line.
        health: The URL that answers 200 while it is well.
    """

    name: str
    argv: tuple[str | Path, ...]
    health: str


def environment() -> dict[str, str]:
    """The environment of every component: containerd finds its shim and runc on the PATH."""
    shims = programs.path("containerd-shim-runc-v2").parent
    return {"PATH": f"{shims}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def write_configuration(cluster: Cluster, addresses: Addresses) -> None:
    """Writes certificates, kubeconfigs and configuration files into the state folder."""
    folder = cluster.state / "etc"
    folder.mkdir()
    authority = certs.Authority.create(cluster.state / "pki")
    reached_by = (f"IP:{addresses.node}", "IP:127.0.0.1", f"DNS:{NODE}")
    in_cluster = (f"IP:{addresses.api_service}", "DNS:kubernetes.default.svc")
    authority.issue("kube-apiserver", "kube-apiserver", "", reached_by + in_cluster)
    authority.issue("admin", "kubernetes-admin", "system:masters")
    authority.issue("kubelet", f"system:node:{NODE}", "system:nodes", reached_by)
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        authority.issue(name, f"system:{name}", "", reached_by)
    server = f"https://{addresses.node}:6443"
    for name in ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        _private(folder / f"{name}.kubeconfig", authority.kubeconfig(name, server))
    _private(cluster.kubeconfig, authority.kubeconfig("admin", server))

    _write_json(folder / "audit-policy.json", _audit_policy())
    _write_json(folder / "kubelet.json", _kubelet(cluster, addresses))
    _write_json(folder / "kube-proxy.json", _kube_proxy(cluster, addresses))
    _write_json(folder / "kube-scheduler.json", _kube_scheduler(cluster))
    (folder / "cni").mkdir()
    _write_json(folder / "cni" / "10-pods.conflist", _pod_network(addresses))
    (folder / "containerd.toml").write_text(_containerd(cluster, addresses))
    (folder / "Corefile").write_text(_corefile(cluster, addresses))
    # Pods' own search path only: the host's resolver is not reachable from inside.
    (folder / "resolv.conf").write_text("")


def components(cluster: Cluster, addresses: Addresses) -> tuple[Component, ...]:
    """The components in the order of their start, which waits for each one's health."""
    etc, pki, state = cluster.state / "etc", cluster.state / "pki", cluster.state
    node = addresses.node
    return (
        Component(
            "etcd",
            (
                programs.path("etcd"),
                f"--data-dir={state}/etcd",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                f"--listen-metrics-urls=http://{node}:2381",
                # A cluster is never started again with old data, so none need outlive a crash.
                "--unsafe-no-fsync",
            ),
            f"http://{node}:2381/health",
        ),
        Component(
            "containerd",
            (programs.path("containerd"), "--config", etc / "containerd.toml"),
            f"http://{node}:1338/v1/metrics",
        ),
        Component(
            "kube-apiserver",
            (
                programs.path("kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                f"--advertise-address={node}",
                f"--service-cluster-ip-range={addresses.services}",
                f"--client-ca-file={pki}/ca.crt",
                f"--tls-cert-file={pki}/kube-apiserver.crt",
                f"--tls-private-key-file={pki}/kube-apiserver.key",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={pki}/service-accounts.pub",
                f"--service-account-signing-key-file={pki}/service-accounts.key",
                # Tokens live for the hour that they say, so that clients must renew them.
                "--service-account-extend-token-expiration=false",
                f"--kubelet-client-certificate={pki}/admin.crt",
                f"--kubelet-client-key={pki}/admin.key",
                f"--kubelet-certificate-authority={pki}/ca.crt",
                # Node names do not resolve; without this, exec and logs fail.
                "--kubelet-preferred-address-types=InternalIP",
                f"--audit-policy-file={etc}/audit-policy.json",
                f"--audit-log-path={state}/audit.log",
                "--audit-log-maxsize=4096",
                "--profiling=false",
            ),
            f"https://{node}:6443/readyz",
        ),
        Component(
            "kube-controller-manager",
            (
                programs.path("kube-controller-manager"),
                f"--kubeconfig={etc}/kube-controller-manager.kubeconfig",
                f"--tls-cert-file={pki}/kube-controller-manager.crt",
                f"--tls-private-key-file={pki}/kube-controller-manager.key",
                "--use-service-account-credentials",
                f"--root-ca-file={pki}/ca.crt",
                f"--service-account-private-key-file={pki}/service-accounts.key",
                "--allocate-node-cidrs",
                f"--cluster-cidr={addresses.pods}",
                f"--service-cluster-ip-range={addresses.services}",
                "--leader-elect=false",
                f"--kube-api-qps={_CLIENT['qps']}",
                f"--kube-api-burst={_CLIENT['burst']}",
                "--profiling=false",
            ),
            f"https://{node}:10257/healthz",
        ),
        Component(
            "kube-scheduler",
            (
                programs.path("kube-scheduler"),
                f"--config={etc}/kube-scheduler.json",
                f"--tls-cert-file={pki}/kube-scheduler.crt",
                f"--tls-private-key-file={pki}/kube-scheduler.key",
            ),
            f"https://{node}:10259/healthz",
        ),
        Component(
            "kube-proxy",
            (programs.path("kube-proxy"), f"--config={etc}/kube-proxy.json"),
            f"http://{node}:10256/healthz",
        ),
        Component(
            "kubelet",
            (
                programs.path("kubelet"),
                f"--config={etc}/kubelet.json",
                f"--kubeconfig={etc}/kubelet.kubeconfig",
                f"--hostname-override={NODE}",
                f"--node-ip={node}",
            ),
            f"http://{node}:10248/healthz",
        ),
        Component(
            "coredns",
            (programs.path("coredns"), "-conf", etc / "Corefile"),
            f"http://{node}:8181/ready",
        ),
    )


def dns_manifests(addresses: Addresses) -> list[Mapping[str, object]]:
    """The objects that put CoreDNS, a process of the node, behind the cluster's DNS Service."""
    system = {"namespace": "kube-system"}
    ports = [{"name": "dns", "port": 53, "protocol": p} for p in ("UDP", "TCP")]
    ports[1]["name"] = "dns-tcp"
    read = {"verbs": ["list", "watch"]}
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], **read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], **read},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:coredns",
            },
            "subjects": [
                {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "User",
                    "name": "system:coredns",
                }
            ],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", **system},
            "spec": {"clusterIP": addresses.dns, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-node",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
                **system,
            },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [addresses.node]}],
        },
    ]


def _audit_policy() -> object:
    """Every write by anyone, and the reads of all but the cluster's own components."""
    reads = ["get", "list", "watch"]
    own_users = [
        "system:anonymous",
        "system:apiserver",
        "system:coredns",
        "system:kube-controller-manager",
        "system:kube-proxy",
        "system:kube-scheduler",
    ]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "None", "verbs": reads, "users": own_users},
            {
                "level": "None",
                "verbs": reads,
                "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"],
            },
            {"level": "Metadata"},
        ],
    }


def _kubelet(cluster: Cluster, addresses: Addresses) -> object:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{cluster.state}/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{cluster.state}/pki/kubelet.crt",
        "tlsPrivateKeyFile": f"{cluster.state}/pki/kubelet.key",
        "healthzBindAddress": addresses.node,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cluster.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "clusterDNS": [addresses.dns],
        "clusterDomain": DOMAIN,
        "resolvConf": f"{cluster.state}/etc/resolv.conf",
        "volumePluginDir": f"{cluster.state}/volume-plugins",
        "maxPods": 120,
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        "syncFrequency": "10s",
        "kubeAPIQPS": _CLIENT["qps"],
        "kubeAPIBurst": _CLIENT["burst"],
        "eventRecordQPS": 0,
        "serializeImagePulls": False,
        # Images come by load-image alone: one that was removed could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
    }


def _kube_proxy(cluster: Cluster, addresses: Addresses) -> object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{cluster.state}/etc/kube-proxy.kubeconfig"},
        "hostnameOverride": NODE,
        "clusterCIDR": addresses.pods,
        "mode": "nftables",
        "nftables": {"minSyncPeriod": "100ms"},
        # The connection tracking limits belong to the host and stay as they are.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": f"{addresses.node}:10256",
    }


def _kube_scheduler(cluster: Cluster) -> object:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": f"{cluster.state}/etc/kube-scheduler.kubeconfig",
            **_CLIENT,
        },
        "leaderElection": {"leaderElect": False},
        "podMaxBackoffSeconds": 2,
    }


def _pod_network(addresses: Addresses) -> object:
    """One point-to-point link for each pod, so that all traffic passes the node's rules.

    On a shared bridge the answers between two pods of one node would bypass the translation of
    Service addresses unless the kernel has br_netfilter. The host routes to the pods, so their
    traffic needs no masquerading.
    """
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": addresses.node_pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni",
                },
            }
        ],
    }


def _containerd(cluster: Cluster, addresses: Addresses) -> str:
    plugins = next(folder for folder in CNI_PLUGINS if Path(folder, "ptp").exists())
    return f"""\
version = 3
root = "{cluster.state}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[metrics]
address = "{addresses.node}:1338"

[plugins."io.containerd.internal.v1.opt"]
path = "{cluster.state}/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{"overlayfs" if host.can_overlay(cluster.state) else "native"}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = {"false" if _may_lower_oom_score() else "true"}

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{cluster.state}/etc/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def _may_lower_oom_score() -> bool:
    """Whether this process has CAP_SYS_RESOURCE; runc dies where it lacks it and is not told."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) & _CAP_SYS_RESOURCE)


def _corefile(cluster: Cluster, addresses: Addresses) -> str:
    """The cluster's names; any other name does not exist, at once, instead of a timeout."""
    return f"""\
{DOMAIN} in-addr.arpa {{
    bind {addresses.node}
    errors
    ready {addresses.node}:8181
    kubernetes {{
        kubeconfig {cluster.state}/etc/coredns.kubeconfig
        pods insecure
        ttl 1
    }}
}}
. {{
    bind {addresses.node}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2))


def _private(path: Path, content: str) -> None:
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
