"""GPUs that are free in the cluster, as far as the operator may see."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from specschedule.adapters.kubernetes.api import Api
from specschedule.ports import Unavailable
from specschedule.vllm_facts.target import pod_gpus

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
            node["metadata"]["name"]: _gpus_of(node)
            for node in nodes
            if not (node.get("spec") or {}).get("unschedulable")
        }
        asked = sum(pod_gpus(pod["spec"]) for pod in pods if pod["spec"].get("nodeName") in usable)
        return max(0, sum(usable.values()) - asked)


def _gpus_of(node: Mapping[str, Any]) -> int:
    """Return a node's GPUs: what a pod would ask for that asked for all of the node."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return pod_gpus({"containers": [{"resources": {"limits": allocatable}}]})
