"""Promotion: change the one argument, watch the rollout, put the argument back on trouble.

The record of a promotion is written before the target is; each step looks at what the target
serves now, so a step may be repeated, skipped or cut off anywhere.
"""

from specschedule.core.observed import (
    Action,
    Promotion,
    RestoreArguments,
    SetFinalizer,
    SetSpeculative,
)
from specschedule.core.target import TargetFacts, Unreadable
from specschedule.core.values import Value

MAX_WRITES = 3
"""A change that was undone by others this often is theirs to decide."""


class RolloutStep(Value):
    """What to do for a promotion, and where it is."""

    actions: list[Action] = []
    """In order."""
    promotion: Promotion
    """The record, changed when the direction changes."""
    outcome: str | None = None
    """Promoted, RolledBack or Aborted once it is over."""
    reason: str
    """Reason constant."""
    message: str
    """The same for people."""


def next_step(
    promotion: Promotion,
    target: TargetFacts | Unreadable,
    *,
    deadline: float,
    now: float,
    last: str = "",
) -> RolloutStep:
    """Return the next step of a promotion that is not over.

    Args:
        promotion: The record written before the first write.
        target: What serves now.
        deadline: Seconds from the record that the rollout may take; the way back gets as much.
        now: Unix seconds.
        last: What was said at the last look, for the message of an end that nobody chose.
    """
    if isinstance(target, Unreadable) or isinstance(target.server, Unreadable):
        fault = target if isinstance(target, Unreadable) else target.server
        assert isinstance(fault, Unreadable)
        return RolloutStep(
            promotion=promotion,
            outcome="Aborted",
            reason="TargetChanged",
            message=f"the target changed during the promotion: {fault.message}",
        )
    serving = target.server.speculative
    if promotion.reverting is None:
        return _forward(promotion, target, serving, deadline, now, last)
    return _back(promotion, target, promotion.reverting, serving, deadline, now, last)


def _forward(
    promotion: Promotion,
    target: TargetFacts,
    serving: dict[str, object] | None,
    deadline: float,
    now: float,
    last: str,
) -> RolloutStep:
    name = promotion.candidate
    late = now - promotion.started_at > deadline
    changed = promotion.template_hash not in (None, target.template_hash)
    if serving == promotion.speculative:
        if changed:
            return _turn_round(
                promotion, "the target's pod template changed: the evidence does not hold for it"
            )
        if target.rollout.complete and target.replicas > 0:
            return RolloutStep(
                actions=[SetFinalizer(present=False)],
                promotion=promotion,
                outcome="Promoted",
                reason="RolledOut",
                message=f"{name} serves on all {target.replicas} replicas",
            )
        trouble = target.rollout.failing or target.rollout.message
        if target.replicas == 0:
            trouble = "the target has 0 replicas, so nothing shows that the change works"
        if late:
            return _turn_round(
                promotion, f"not rolled out {deadline:.0f} s after the change: {trouble}"
            )
        return RolloutStep(
            promotion=promotion, reason="RollingOut", message=f"rolling out {name}: {trouble}"
        )
    if serving == promotion.previous:
        if changed:
            return _aborted(
                promotion,
                "TargetChanged",
                "the target's pod template changed before the change was written: the evidence "
                "does not hold for it",
            )
        if promotion.written >= MAX_WRITES:
            return _aborted(
                promotion,
                "ChangedBack",
                f"{name} was written {promotion.written} times and changed back each time by "
                "another manager of the target: change it there, or use mode Propose",
            )
        if late:
            return _aborted(
                promotion,
                "NotWritten",
                f"the target could not be changed within {deadline:.0f} s; last: {last}",
            )
        return RolloutStep(
            actions=[
                SetFinalizer(present=True),
                SetSpeculative(
                    speculative=promotion.speculative, resource_version=target.resource_version
                ),
            ],
            promotion=promotion.model_copy(update={"written": promotion.written + 1}),
            reason="RollingOut",
            message=f"changing the target's speculative argument to {name}",
        )
    return _changed_by_others(promotion)


def _back(
    promotion: Promotion,
    target: TargetFacts,
    cause: str,
    serving: dict[str, object] | None,
    deadline: float,
    now: float,
    last: str,
) -> RolloutStep:
    name = promotion.candidate
    late = now - promotion.started_at > 3 * deadline
    if serving == promotion.speculative:
        if late:
            return _aborted(
                promotion,
                "NotRestored",
                f"{name}: {cause}; the previous argument could not be put back, do it by hand: "
                f"{last}",
            )
        return RolloutStep(
            actions=[
                RestoreArguments(
                    field=promotion.field,
                    arguments=promotion.previous_arguments or [],
                    expected=promotion.speculative,
                    resource_version=target.resource_version,
                )
            ],
            promotion=promotion,
            reason="Reverting",
            message=f"{name}: {cause}; putting the previous argument back",
        )
    if serving != promotion.previous:
        return _changed_by_others(promotion)
    if not target.rollout.complete and not late:
        return RolloutStep(
            promotion=promotion,
            reason="Reverting",
            message=f"{name}: {cause}; the previous argument is back, {target.rollout.message}",
        )
    state = "serves again" if target.rollout.complete else f"is back, but {target.rollout.message}"
    return RolloutStep(
        actions=[SetFinalizer(present=False)],
        promotion=promotion,
        outcome="RolledBack",
        reason="RolloutFailed",
        message=f"{name}: {cause}; the previous argument {state}",
    )


def _turn_round(promotion: Promotion, cause: str) -> RolloutStep:
    return RolloutStep(
        promotion=promotion.model_copy(update={"reverting": cause}),
        reason="Reverting",
        message=f"{promotion.candidate}: {cause}; the previous argument is put back",
    )


def _changed_by_others(promotion: Promotion) -> RolloutStep:
    return _aborted(
        promotion,
        "TargetChanged",
        f"the target's speculative argument is neither the one of {promotion.candidate} nor the "
        "previous one: somebody else changed it, and it is left as it is",
    )


def _aborted(promotion: Promotion, reason: str, message: str) -> RolloutStep:
    return RolloutStep(
        actions=[SetFinalizer(present=False)],
        promotion=promotion,
        outcome="Aborted",
        reason=reason,
        message=message,
    )


def on_deletion(promotion: Promotion, target: TargetFacts | Unreadable) -> list[Action]:
    """Return what lets a SpecSchedule go that is deleted in the middle of a promotion.

    A rollout that is not proven is taken back: with the object gone nobody would watch it.
    """
    release: list[Action] = [SetFinalizer(present=False)]
    if isinstance(target, Unreadable) or isinstance(target.server, Unreadable):
        return release
    if target.server.speculative != promotion.speculative or target.rollout.complete:
        return release
    restore = RestoreArguments(
        field=promotion.field,
        arguments=promotion.previous_arguments or [],
        expected=promotion.speculative,
        resource_version=target.resource_version,
    )
    return [restore, *release]
