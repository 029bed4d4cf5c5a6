"""Kopf delivers events; each marks the key it belongs to. The only module that imports Kopf.

Only ``on.event`` handlers are used: Kopf then puts no finalizer and no annotation on anybody's
object, and a missed or repeated event does no harm.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from specschedule.api.v1alpha1 import GROUP, VERSION
from specschedule.ports import Key
from specschedule.wire import names


def _register(registry: kopf.OperatorRegistry, mark: Callable[[Key], None]) -> None:
    def of_schedule(namespace: str | None, name: str | None, **_: Any) -> None:
        if namespace and name:
            mark(Key(namespace, name))

    def of_child(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        owner = labels.get(names.SCHEDULE)
        if namespace and owner:
            mark(Key(namespace, owner))

    labelled = {names.SCHEDULE: kopf.PRESENT}
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
    registry = kopf.get_default_registry()
    _register(registry, mark)
    kopf.run(
        registry=registry,
        settings=_settings(namespaced=bool(namespaces)),
        # Kopf's own guess asks the system for a user name, and a container's numeric user has none.
        identity=f"specschedule@{socket.gethostname()}",  # type: ignore[arg-type]
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )


def _settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Kopf delivers events and writes nothing on its own; every wait has an end."""
    settings = kopf.OperatorSettings()
    # A Role may not list definitions, and named namespaces need none to be followed.
    settings.scanning.disabled = namespaced
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    return settings
