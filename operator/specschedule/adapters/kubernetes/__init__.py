"""A Kubernetes cluster as the world of the experiment: launches are pods, visits are Jobs."""

from typing import Any

from specschedule.adapters.kubernetes.api import Api, connect
from specschedule.adapters.kubernetes.world import KubernetesWorld

__all__ = ["KubernetesWorld", "read_schedule"]


def read_schedule(namespace: str, name: str) -> dict[str, Any] | None:
    """Return a SpecSchedule as stored, for people who follow it; None when there is none."""
    return Api(connect()).get("specschedules", namespace, name)
