"""Whether a finished request met every limit of the SLO at once, from the engine's own record."""

from typing import Any, Literal

from specschedule.engine.settings import Limits

Outcome = Literal["good", "slow", "failed"]

OUTCOMES: tuple[Outcome, ...] = ("good", "slow", "failed")
FINISHED_WELL = ("stop", "length")


def outcome(finished: Any, limits: Limits) -> Outcome:
    """Judge one request.

    Args:
        finished: vLLM's ``FinishedRequestStats``; its times are seconds.
        limits: The limits; one that is not given cannot be missed.

    Raises:
        AttributeError: This engine's record lacks a time, and nothing can be said.

    The engine keeps no time of the first token with a finished request: it is taken as the whole
    latency less the decoding, both of which end with the last token. A request of one token has
    no time per output token, so that limit cannot be missed by it.
    """
    if str(finished.finish_reason) not in FINISHED_WELL:
        return "failed"
    measured = (
        (finished.e2e_latency - finished.decode_time, limits.ttft),
        (finished.mean_time_per_output_token, limits.tpot),
        (finished.e2e_latency, limits.e2e),
    )
    if any(limit is not None and value > limit for value, limit in measured):
        return "slow"
    return "good"
