"""A Kubernetes cluster as the world of the experiment: launches are pods, visits are Jobs."""

from specschedule.adapters.kubernetes.world import KubernetesWorld

__all__ = ["KubernetesWorld"]
