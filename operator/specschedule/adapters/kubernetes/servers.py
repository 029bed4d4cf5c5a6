"""What the servers of a run say: the receipt of a launch, the adapters served, the log."""

from collections.abc import Iterable, Mapping
from typing import Any

from specschedule.adapters import engine
from specschedule.adapters.kubernetes.api import Api, Object
from specschedule.core.evidence import Receipt
from specschedule.ports import Unavailable
from specschedule.vllm_facts.receipt import adapters, with_gpu_label, with_left_out
from specschedule.wire import names, pods

_RECEIPTS_KEPT = 256
"""A receipt is kept only until it is recorded; a lost one is read again."""
_GPU_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
_DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version")


class Servers:
    """Asks servers, and the cluster about them; safe to use from several threads."""

    def __init__(self, api: Api) -> None:
        """Make one.

        Args:
            api: The Kubernetes API.
        """
        self._api = api
        self._receipts: dict[str, Receipt] = {}

    def receipt(self, pod: Object, container: str) -> Receipt:
        """Read the facts of a launch, once: a receipt that lacks an answer is read again."""
        uid = pod["metadata"]["uid"]
        if known := self._receipts.get(uid):
            return known
        node = pod["spec"].get("nodeName")
        labels = self._node_labels(node)
        server = next(each for each in pod["spec"]["containers"] if each["name"] == container)
        receipt, whole = engine.receipt(
            pods.url(pod),
            log_text=self.log(pod, container, limit_bytes=engine.LOG_HEAD_BYTES),
            known={
                "image_id": pods.image_id(pod),
                "node": node,
                "driver_version": _first(labels, _DRIVER_LABELS),
                "arguments": [*(server.get("command") or []), *(server.get("args") or [])],
                "boot_seconds": pods.boot_seconds(pod),
            },
        )
        receipt = with_gpu_label(receipt, _first(labels, _GPU_LABELS))
        annotations = pod["metadata"].get("annotations") or {}
        receipt = with_left_out(receipt, annotations.get(names.NOT_CARRIED))
        if whole:
            self._receipts[uid] = receipt
            if len(self._receipts) > _RECEIPTS_KEPT:
                self._receipts.pop(next(iter(self._receipts)), None)
        return receipt

    def log(self, pod: Object, container: str, **options: Any) -> str | None:
        """Return a server's log; None when it cannot be read, as when its node is lost."""
        metadata = pod["metadata"]
        try:
            return self._api.log(metadata["namespace"], metadata["name"], container, **options)
        except Unavailable:
            return None

    def _node_labels(self, node: str | None) -> Mapping[str, str]:
        if node is None:
            return {}
        try:
            found = self._api.get("nodes", None, node)
        except Unavailable:  # A namespaced role may not read nodes; the receipt says less then.
            return {}
        return (found or {}).get("metadata", {}).get("labels") or {}


def served_adapters(serving: Iterable[Object], port: int) -> list[str] | None:
    """Ask the first serving pod that is Ready for its adapters; they may come at run time."""
    ready = next((pod for pod in serving if pods.is_ready(pod)), None)
    url = pods.url_at(ready, port) if ready is not None else None
    return adapters(engine.models(url)) if url is not None else None


def _first(labels: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    return next((labels[name] for name in wanted if name in labels), None)
