"""One line about an engine step, from what vLLM hands to its statistics loggers."""

from typing import Any

Line = dict[str, Any]


def step_line(scheduler: Any, iteration: Any) -> Line:
    """Return what the engine tells about a step; what it does not tell is left out.

    Args:
        scheduler: vLLM's ``SchedulerStats``, or None.
        iteration: vLLM's ``IterationStats``, or None for a step without output.

    ``batchSize``, ``prefills``, ``decodes`` and ``elapsedMs`` need
    ``--enable-logging-iteration-details``; ``graphMode`` and the target's tokens need
    ``--cudagraph-metrics``. ``tokens`` is the most drafts that a request verified. ``stepMs`` is
    the time since the step before, by the engine core's clock: what a request that decoded in
    both waited for its tokens.
    """
    line: Line = {
        "running": getattr(scheduler, "num_running_reqs", None),
        "waiting": getattr(scheduler, "num_waiting_reqs", None),
        "kvCacheUsage": getattr(scheduler, "kv_cache_usage", None),
        **_drafted(getattr(scheduler, "spec_decoding_stats", None)),
        **_batch(getattr(scheduler, "iteration_details", None)),
        **_graph(getattr(scheduler, "cudagraph_stats", None)),
        **_output(iteration),
    }
    return {name: value for name, value in line.items() if value is not None}


def _drafted(stats: Any) -> Line:
    if stats is None:
        return {}
    by_position = getattr(stats, "num_draft_tokens_per_pos", None) or []
    return {
        "tokens": sum(1 for drafted in by_position if drafted) if by_position else None,
        "drafts": stats.num_drafts,
        "draftTokens": stats.num_draft_tokens,
        "acceptedTokens": stats.num_accepted_tokens,
    }


def _batch(details: Any) -> Line:
    if details is None or details.is_dummy:
        return {}
    return {
        "batchSize": details.num_ctx_requests + details.num_generation_requests,
        "prefills": details.num_ctx_requests,
        "prefillTokens": details.num_ctx_tokens,
        "decodes": details.num_generation_requests,
        "decodeTokens": details.num_generation_tokens,
        "elapsedMs": round(details.elapsed_ms, 3),
    }


def _graph(stats: Any) -> Line:
    if stats is None:
        return {}
    return {
        "graphMode": str(stats.runtime_mode),
        "targetTokens": stats.num_unpadded_tokens,
        "paddedTokens": stats.num_padded_tokens,
    }


def _output(stats: Any) -> Line:
    if stats is None:
        return {}
    waited = getattr(stats, "inter_token_latencies_iter", None)
    return {
        "stepMs": round(min(waited) * 1e3, 3) if waited else None,
        "outputTokens": stats.num_generation_tokens,
        "firstTokens": len(stats.time_to_first_tokens_iter),
        "preemptions": stats.num_preempted_reqs,
        "finished": len(stats.finished_requests),
    }
