"""Kopf delivers events; each marks the key it belongs to. The only module that imports Kopf.

Only ``on.event`` handlers are used: Kopf then puts no finalizer and no annotation on anybody's
object, and a missed or repeated event does no harm.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from specschedule.ports import Key

GROUP = "specschedule.dev"
VERSION = "v1alpha1"
OWNER_LABEL = "specschedule.dev/schedule"


def _register(registry: kopf.OperatorRegistry, mark: Callable[[Key], None]) -> None:
    def of_schedule(namespace: str | None, name: str | None, **_: Any) -> None:
        if namespace and name:
            mark(Key(namespace, name))

    def of_child(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        owner = labels.get(OWNER_LABEL)
        if namespace and owner:
            mark(Key(namespace, owner))

    labelled = {OWNER_LABEL: kopf.PRESENT}
    kopf.on.event(GROUP, VERSION, "specschedules", registry=registry, id="schedule")(of_schedule)
    kopf.on.event(GROUP, VERSION, "spectrials", registry=registry, id="trial")(of_child)
    kopf.on.event("", "v1", "pods", labels=labelled, registry=registry, id="pod")(of_child)
    kopf.on.event("batch", "v1", "jobs", labels=labelled, registry=registry, id="job")(of_child)


def run(mark: Callable[[Key], None], namespaces: Sequence[str]) -> None:
    """Deliver events until the process is told to stop.

    Args:
        mark: Called from Kopf's threads for every event of an object or of its children.
        namespaces: Where to watch; empty for the whole cluster.
    """
    registry = kopf.OperatorRegistry()
    _register(registry, mark)
    kopf.run(
        registry=registry,
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )


def _settings() -> kopf.OperatorSettings:
    """Kopf delivers events and writes nothing on its own; every wait has an end."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    return settings
