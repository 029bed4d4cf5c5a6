"""What the reconcile loop needs from the world, in the domain's verbs.

Kubernetes pods and local processes are two adapters of ``World``; Prometheus is one of
``Metrics``; tests bring their own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from specschedule.core.observed import Action, MetricsFacts, Observed
from specschedule.core.regime import ServingRegime


class Key(NamedTuple):
    """Name of one SpecSchedule."""

    namespace: str
    name: str


class Conflict(Exception):
    """A write's precondition did not hold; look again and decide anew."""


class Refused(Exception):
    """The world refused an action for good, in its own words (quota, admission, forbidden)."""


class Unavailable(Exception):
    """The world does not answer just now (timeout, overload, expired token); look again later."""


class Metrics(Protocol):
    """Prometheus, as far as the experiment needs it."""

    def check(self, url: str | None) -> MetricsFacts:
        """Say whether the server answers."""
        ...

    def final_counts(
        self, url: str, *, run: str, launch: int, visit: int, at: float
    ) -> dict[str, dict[str, float]] | None:
        """Return requests by cell and outcome as of a Unix time; None when it cannot be asked.

        Values are the counters' own, never rates.
        """
        ...

    def unseen(self, url: str, *, run: str, launch: int, visit: int, at: float) -> str:
        """Say why ``final_counts`` is empty: what was asked, and which series there are instead."""
        ...

    def serving(
        self, url: str, *, namespace: str, pods: Sequence[str], points: Sequence[int]
    ) -> ServingRegime | None:
        """Return what serving pods did of late; None when nothing is known of them.

        Args:
            url: Of the server.
            namespace: Of the pods.
            pods: Their names.
            points: Requests in flight near which their time is counted.
        """
        ...


class World(Protocol):
    """Where launches and visits run, and where the objects are kept."""

    def observe(self, key: Key) -> Observed | None:
        """Gather the facts; None when the SpecSchedule is gone.

        Raises:
            Unavailable: The world does not answer.
        """
        ...

    def perform(self, key: Key, action: Action) -> None:
        """Carry out one action; repeating it changes nothing.

        Raises:
            Conflict: A precondition did not hold.
            Refused: The world refused for good.
            Unavailable: The world does not answer.
        """
        ...

    def report(self, key: Key, status: dict[str, Any], *, resource_uid: str) -> None:
        """Store the status, if it differs from what is stored and the object is the same."""
        ...

    def announce(self, key: Key, reason: str, message: str, *, warning: bool) -> None:
        """Emit an event about the SpecSchedule; the same one again is counted, not repeated."""
        ...
