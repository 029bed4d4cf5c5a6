"""Faults that can be planted by name, so that every gate can be seen to close."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """What goes wrong.

    Numbers in ``NAME@N`` are finished requests before it does, unless said otherwise.
    """

    SILENT_DISABLE = "silent-disable"
    """The schedule is dropped without a word; the engine runs at num_speculative_tokens."""
    WORKER_DOWNGRADE = "worker-downgrade"
    """The worker loses full graphs; the API server's config does not show it."""
    DRAFTER_IGNORES_K = "drafter-ignores-k"
    """The drafter always drafts the most; the surplus is thrown away."""
    IGNORES_K = "ignores-k"
    """The engine drafts the most, whatever a probe scheduler plans."""
    CRASH_AT_CAPTURE = "crash-at-capture"
    """Dies while capturing graphs."""
    CRASH_AT_BOUNDARY = "crash-at-boundary"
    """Dies when the number of draft tokens changes."""
    HIDDEN_WARNING = "hidden-warning"
    """The log level hides warnings."""
    JSON_LOGS = "json-logs"
    """The log is JSON."""
    STALLED = "stalled"
    """Takes requests, answers /health, makes no token."""
    SLOW_START = "slow-start"
    """Boots twenty times slower."""
    EQUIVALENCE = "equivalence"
    """The output differs from the third token on."""
    EQUIVALENCE_IN_BAND = "equivalence-in-band"
    """The output differs from the first step on that verifies exactly N draft tokens."""
    OOM = "oom"
    """Out of memory while the KV cache is set up."""
    ERRORS = "errors"
    """Answers /health, fails every completion with status 500."""


class Scope(StrEnum):
    """Launches that faults concern."""

    SCHEDULE = "schedule"
    SPECULATIVE = "speculative"
    ALL = "all"


@dataclass(frozen=True)
class Planted:
    """Faults planted, each with the finished requests before it strikes."""

    faults: Mapping[Fault, int] = field(default_factory=dict)
    scope: Scope = Scope.SCHEDULE

    @classmethod
    def parse(cls, names: tuple[str, ...], scope: str = Scope.SCHEDULE) -> "Planted":
        """Read ``NAME`` and ``NAME@N``.

        Raises:
            ValueError: A name or number is unknown.
        """
        faults: dict[Fault, int] = {}
        for text in names:
            name, _, after = text.partition("@")
            try:
                faults[Fault(name)] = int(after or 0)
            except ValueError:
                known = ", ".join(Fault)
                raise ValueError(f"--fault {text}: not one of {known}, or NAME@N") from None
        return cls(faults, Scope(scope))

    def hits(self, fault: Fault, *, speculative: bool, schedule: bool) -> bool:
        """Say whether a fault concerns a launch."""
        concerned = {
            Scope.ALL: True,
            Scope.SPECULATIVE: speculative,
            Scope.SCHEDULE: schedule,
        }[self.scope]
        return concerned and fault in self.faults
