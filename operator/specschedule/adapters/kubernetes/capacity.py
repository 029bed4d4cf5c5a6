"""GPUs that are free in the cluster, as far as the operator may see."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from specschedule.adapters.kubernetes.api import Api
from specschedule.ports import Unavailable

_SECONDS_VALID = 30.0
"""Looking at every pod of a cluster is dear, and the number only answers whether one could fit."""


class Capacity:
    """Counts free GPUs, at most twice a minute for all objects together."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: tuple[float, int | None] | None = None

    def free_gpus(self) -> int | None:
        """Return GPUs that no pod has asked for; None where nodes or pods may not be read."""
        with self._lock:
            now = self._clock()
            if self._counted is None or now - self._counted[0] > _SECONDS_VALID:
                self._counted = now, self._count()
            return self._counted[1]

    def _count(self) -> int | None:
        try:
            nodes = self._api.list("nodes", None)
            pods = self._api.list(
                "pods", None, fields="status.phase!=Succeeded,status.phase!=Failed"
            )
        except Unavailable:
            return None
        usable = {
            node["metadata"]["name"]: gpus_in((node.get("status") or {}).get("allocatable") or {})
            for node in nodes
            if not (node.get("spec") or {}).get("unschedulable")
        }
        asked = sum(pod_gpus(pod["spec"]) for pod in pods if pod["spec"].get("nodeName") in usable)
        return max(0, sum(usable.values()) - asked)


def gpus_in(resources: Mapping[str, Any]) -> int:
    """Return the GPUs in a resource list, whoever makes them."""
    return sum(int(amount) for name, amount in resources.items() if name.endswith("/gpu"))


def pod_gpus(spec: Mapping[str, Any]) -> int:
    """Return the GPUs that a pod asks for; an extended resource's limit is its request."""
    return sum(
        gpus_in((each.get("resources") or {}).get("limits") or {}) for each in spec["containers"]
    )
