"""A Kubernetes cluster as the world of the experiment: launches are pods, visits are Jobs."""

from typing import Any

from kubernetes.config import ConfigException
from yaml import YAMLError

from specschedule.adapters.kubernetes.api import Api, connect
from specschedule.adapters.kubernetes.world import KubernetesWorld
from specschedule.api.served import OPENAPI_PATH, missing_fields
from specschedule.ports import Unavailable

__all__ = ["KubernetesWorld", "fields_not_served", "read_schedule"]


def fields_not_served() -> list[str]:
    """Return the fields of this operator that the API server's definitions would drop."""
    return missing_fields(Api(connect()).document(OPENAPI_PATH))


def read_schedule(namespace: str, name: str) -> dict[str, Any] | None:
    """Return a SpecSchedule as stored, for people who follow it; None when there is none.

    Raises:
        Unavailable: There is no usable kubeconfig, or the API server does not answer.
    """
    try:
        api = Api(connect())
    except (ConfigException, YAMLError, OSError) as error:
        raise Unavailable(f"no usable kubeconfig: {error}") from error
    return api.get("specschedules", namespace, name)
