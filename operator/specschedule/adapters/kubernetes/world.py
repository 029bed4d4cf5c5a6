"""The port ``World`` on a Kubernetes cluster."""

import time
from collections.abc import Callable
from typing import Any

from specschedule.adapters.kubernetes.act import Actor, Settings
from specschedule.adapters.kubernetes.api import Api, connect
from specschedule.adapters.kubernetes.observe import Observer
from specschedule.core.observed import Action, Observed
from specschedule.ports import Key, Metrics


class KubernetesWorld:
    """Safe to call from several threads, for different objects at the same time."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        image: str,
        image_pull_policy: str = "IfNotPresent",
        prometheus_url: str | None = None,
        priority_class: str | None = None,
        instruments: bool = False,
        api: Api | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a world.

        Args:
            metrics: Prometheus.
            image: Image of load jobs, and of what trial pods carry.
            image_pull_policy: Their imagePullPolicy.
            prometheus_url: Prometheus for objects that name none.
            priority_class: PriorityClass of trial pods and load jobs; none leaves the default.
            instruments: Whether trial pods carry what observes the engine from inside.
            api: The Kubernetes API; KUBECONFIG's, or that of the cluster around us, by default.
            clock: Unix seconds.
        """
        api = api or Api(connect())
        settings = Settings(image, image_pull_policy, priority_class, instruments)
        self._observer = Observer(
            api, metrics, prometheus_url=prometheus_url, instruments=instruments, clock=clock
        )
        self._actor = Actor(api, self._observer, settings, clock=clock)

    def observe(self, key: Key) -> Observed | None:
        """Gather the facts; None when the SpecSchedule is gone."""
        return self._observer.observe(key)

    def perform(self, key: Key, action: Action) -> None:
        """Carry out one action; repeating it changes nothing."""
        self._actor.perform(key, action)

    def report(self, key: Key, status: dict[str, Any], *, resource_uid: str) -> None:
        """Store the status, if it differs from what is stored and the object is the same."""
        self._actor.report(key, status, resource_uid=resource_uid)

    def announce(self, key: Key, reason: str, message: str, *, warning: bool) -> None:
        """Emit an event about the SpecSchedule; the same one again is counted, not repeated."""
        self._actor.announce(key, reason, message, warning=warning)
