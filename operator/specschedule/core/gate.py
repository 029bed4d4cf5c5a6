"""A gate: a check with four answers, each with a reason."""

from collections.abc import Sequence
from typing import Literal

from specschedule.core.spec import Spec
from specschedule.core.values import Value

Answer = Literal["Pass", "Fail", "NotApplicable", "Unknown"]

GATES = frozenset(
    [
        "acceptance",
        "adapters",
        "arguments",
        "asyncScheduling",
        "attentionBackend",
        "blockSize",
        "caches",
        "dataParallel",
        "drafterState",
        "engine",
        "engineCounters",
        "engineVersion",
        "gpu",
        "graphCoverage",
        "graphMode",
        "imageId",
        "instruments",
        "kvCache",
        "launches",
        "load",
        "logLevel",
        "methodAndSchedule",
        "modelRunner",
        "newSchedule",
        "noneMeasured",
        "outputEquivalence",
        "overrides",
        "owner",
        "preemptions",
        "prefillDecodeSplit",
        "prefixCache",
        "registration",
        "rollout",
        "schedule",
        "scheduleInEffect",
        "servingAlive",
        "sources",
        "speculative",
        "start",
        "target",
        "tls",
        "tokenBudget",
        "tokenSource",
        "trace",
    ]
)
"""Names of all gates."""

MUST_HOLD = frozenset({"arguments", "dataParallel", "engine", "overrides", "schedule", "tls"})
"""Gates that nobody can take responsibility for: what is behind them cannot work at all."""


class Gate(Value):
    """One answer. Only Pass and NotApplicable let a run go on to promotion."""

    gate: str
    """Name of the gate."""
    answer: Answer
    """Pass, Fail, NotApplicable or Unknown."""
    reason: str
    """CamelCase constant."""
    message: str
    """The same for people."""

    @property
    def holds(self) -> bool:
        """Whether it keeps a run from promotion."""
        return self.answer in ("Fail", "Unknown")


def passes(gate: str, message: str, reason: str = "Holds") -> Gate:
    """Return a Pass."""
    return Gate(gate=gate, answer="Pass", reason=reason, message=message)


def fails(gate: str, reason: str, message: str) -> Gate:
    """Return a Fail."""
    return Gate(gate=gate, answer="Fail", reason=reason, message=message)


def not_applicable(gate: str, reason: str, message: str) -> Gate:
    """Return a NotApplicable."""
    return Gate(gate=gate, answer="NotApplicable", reason=reason, message=message)


def unknown(gate: str, reason: str, message: str) -> Gate:
    """Return an Unknown."""
    return Gate(gate=gate, answer="Unknown", reason=reason, message=message)


def overrides(spec: Spec) -> Gate:
    """Require that every override names a gate: a misspelt one would help nobody."""
    unheard = sorted({override.gate for override in spec.policy.overrides} - GATES)
    if unheard:
        return fails(
            "overrides",
            "UnknownGate",
            f"spec.policy.overrides names {', '.join(unheard)}, which is no gate; gates are "
            f"{', '.join(sorted(GATES))}",
        )
    if not spec.policy.overrides:
        return not_applicable("overrides", "NoOverrides", "no gate is overridden")
    return passes("overrides", "every override names a gate")


def refused(gates: Sequence[Gate]) -> Gate | None:
    """Return the first gate that fails: the run must not start."""
    return next((gate for gate in gates if gate.answer == "Fail"), None)


def merged(before: Sequence[Gate], after: Sequence[Gate]) -> list[Gate]:
    """Answer each gate once; what the running arms say replaces what was unknown before."""
    answered = {gate.gate for gate in after}
    return [gate for gate in before if gate.gate not in answered] + list(after)


def blocking(gates: Sequence[Gate]) -> Gate | None:
    """Return the gate that keeps the run from promotion: a failed one before an unknown one."""
    holding = [gate for gate in gates if gate.holds]
    return refused(holding) or next(iter(holding), None)


def withheld(gate: Gate) -> str:
    """Return the outcome of a run that a gate keeps from promotion."""
    return "NotPromoted" if gate.answer == "Fail" else "Inconclusive"


def overridden(spec: Spec, gates: Sequence[Gate]) -> list[Gate]:
    """Let the user's overrides turn Fail and Unknown into Pass, with both reasons shown."""
    reasons = {override.gate: override.reason for override in spec.policy.overrides}
    return [
        Gate(
            gate=gate.gate,
            answer="Pass",
            reason="Overridden",
            message=f"overridden ({reasons[gate.gate]}); otherwise {gate.answer} {gate.reason}: "
            f"{gate.message}",
        )
        if gate.holds and gate.gate in reasons and gate.gate not in MUST_HOLD
        else gate
        for gate in gates
    ]
