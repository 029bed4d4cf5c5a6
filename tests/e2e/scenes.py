"""Scenes: what happens in a namespace of its own, played side by side; tests look at the facts.

A scene waits most of its time, for a boot, a window or a scrape, so several share the machine.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from hack.demo.stage import Stage

from .place import Place

LOADED_AT_ONCE = 2
"""Scenes whose windows are measured; their load generators and engines need cores in time."""

LIGHT_AT_ONCE = 3
"""Scenes that only start a pod or two, which takes a core for some seconds each."""

OPERATOR_ALONE = threading.Lock()
"""Held by a scene that ends the operator, and by one that times its answers."""


@dataclass(frozen=True)
class Scene:
    """What happens in a namespace."""

    name: str
    play: Callable[[Place], Any]
    launches: int

    @property
    def namespace(self) -> str:
        return f"e2e-{self.name.replace('_', '-')}"


def scene(*, launches: int) -> Callable[[Callable[[Place], Any]], Scene]:
    """Make a scene of a function from its place to the facts that tests look at.

    Args:
        launches: About how many launches are measured in it. Where there are any, only a few such
            scenes play at once, the longest first.
    """
    return lambda play: Scene(play.__name__, play, launches)


def of(*scenes: Scene) -> pytest.MarkDecorator:
    """Say which scenes a test looks at; ``place`` and ``played`` are those of the first."""
    return pytest.mark.scenes(*scenes)


@dataclass(frozen=True)
class Company:
    """The scenes of this session."""

    stage: Stage
    since: str
    """RFC 3339 time before the first of them."""
    facts: dict[Scene, "Future[Any]"]
    places: dict[Scene, Place]
