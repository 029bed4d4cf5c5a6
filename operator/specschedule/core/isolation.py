"""Gates before any pod: that a trial pod, a clone of a serving one, meets load only from its run.

A server that is one half of a prefill/decode split, or that announces itself to a router, cache or
discovery service, would take production traffic into the measurement, and the measurement's errors
into production.
"""

import re

from specschedule.core.gate import Gate, fails, passes, unknown
from specschedule.core.target import ServerFacts

LOCAL_CONNECTORS = frozenset(
    {"HiSparseConnector", "LMCacheConnectorV1", "OffloadingConnector", "SimpleCPUOffloadConnector"}
)
"""KV connectors to memory of the same node, unless a variable says otherwise."""

CACHE_FILE = "LMCACHE_CONFIG_FILE"
"""Variable that names a file which says what the others of ``REGISTRATION`` say."""

REGISTRATION = re.compile(
    r"^(LMCACHE_(CONTROLLER|REMOTE|LOOKUP)\w*|DYN_\w+|ETCD_ENDPOINTS?|NATS_(SERVER|URL)|CONSUL_\w+"
    r"|EUREKA_\w+|MOONCAKE_(MASTER|CONFIG)\w*|ROUTER_(URL|ADDRESS)|VLLM_NIXL_SIDE_CHANNEL_HOST"
    r"|AIBRIX_\w+|KV_EVENTS_\w+)$"
)
"""Environment variables by which a server announces itself to a router, cache or discovery."""


def isolation(server: ServerFacts) -> list[Gate]:
    """Say whether a clone of a server would stand apart from those that serve."""
    return [_tls(server), _kv_role(server), _registration(server)]


def _tls(server: ServerFacts) -> Gate:
    if server.tls is None:
        return passes("tls", "trial pods will be spoken to over HTTP, as the target serves")
    return fails(
        "tls",
        "ServesTls",
        f"container {server.container} serves HTTPS ({server.tls}): a trial pod is reached by its "
        "address, which no certificate names, so load and receipts could not trust it; serve HTTP "
        "in the pod and end TLS before it, in a sidecar or a gateway",
    )


def _kv_role(server: ServerFacts) -> Gate:
    gate = "prefillDecodeSplit"
    if server.kv_role not in (None, "kv_both"):
        return fails(
            gate,
            "PrefillDecodeSplit",
            f"container {server.container} has kv_role {server.kv_role}: a clone of it serves only "
            "half of a request, and would join the serving ones",
        )
    between = [name for name in server.kv_connectors if name not in LOCAL_CONNECTORS]
    if between:
        return unknown(
            gate,
            "KvConnectorShares",
            f"container {server.container} has kv_connector {', '.join(between)}, which brings KV "
            "from other servers: with kv_role kv_both too, it may be one half of a prefill/decode "
            "split, or share a cache with trial pods; override gate prefillDecodeSplit if it "
            "serves whole requests from its own cache",
        )
    return passes(gate, "prefill and decode share one server")


def _registration(server: ServerFacts) -> Gate:
    given = {*server.environment, *server.unread}
    where = {server.container: given, **server.sidecars}
    found = [
        f"container {container}: {', '.join(names)}"
        for container, variables in where.items()
        if (names := sorted(name for name in variables if REGISTRATION.match(name)))
    ]
    if server.kv_events_to:
        found.append(f"container {server.container}: --kv-events-config ({server.kv_events_to})")
    if found:
        return fails(
            "registration",
            "RegistersItself",
            f"{'; '.join(found)} may let a trial pod join a router, cache or discovery service and "
            "get production traffic; override gate registration if it does not",
        )
    if CACHE_FILE in given:
        return unknown(
            "registration",
            "EnvironmentNotRead",
            f"container {server.container}: the file of {CACHE_FILE} was not read and may name a "
            "controller or a shared cache; override gate registration if it names none",
        )
    if hidden := [*server.unread_sources, *server.sidecar_sources]:
        return unknown(
            "registration",
            "EnvironmentNotRead",
            f"container {server.container}: {', '.join(hidden)} was not read and may hold "
            "a variable by which a trial pod joins a router, cache or discovery service; write the "
            "variables in env, or override gate registration if none of them does",
        )
    return passes("registration", "no variable by which a trial pod would register itself")
