"""What screening launches tell of their steps' time on the device, in a line."""

from collections.abc import Collection, Sequence

from specschedule.core.evidence import DeviceStep, Launch

_MOST_SHAPES = 4
_BEGINNING = "device time of a step"


def device_times(launches: Sequence[Launch], batch_sizes: Collection[int]) -> str:
    """Return the time of target and drafter by batch size, or that it is absent and why.

    Args:
        launches: Of a screen.
        batch_sizes: What was searched; of each, the commonest step that verified drafts is shown.
    """
    told = [each.device for each in launches if each.device is not None]
    with_drafts = [s for each in told for s in each.steps if s.draft_tokens]
    shown = [
        max(own, key=lambda step: step.steps)
        for size in sorted(batch_sizes)
        if (own := [step for step in with_drafts if step.requests == size])
    ]
    if not shown:
        why = next((each.absent for each in told if each.absent), None)
        return f"{_BEGINNING}: absent ({why or 'no launch told it'})"
    clock = next(each.clock for each in told if each.steps)
    said = "; ".join(map(_said, shown[:_MOST_SHAPES]))
    return f"{_BEGINNING} by the worker's {clock} clock: {said}"


def _said(step: DeviceStep) -> str:
    return (
        f"{step.requests} requests with {step.draft_tokens} drafts: target {step.target_ms:.1f} ms,"
        f" drafter {step.drafter_ms:.1f} ms (n = {step.steps})"
    )
