"""What recorder and scheduler add to an engine step: ``make bench-engine``.

Both run in Python between two steps of the engine, on objects that carry the attributes of
vLLM's own. The limit is one percent of a step of 20 ms, which a busy engine takes for 256
requests; small batches have shorter steps and cost less here.
"""

import socket
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from specschedule.core.schedule import effective
from specschedule.engine import settings
from specschedule.engine.planner import Planner
from specschedule.engine.recording import Recording
from specschedule.engine.ring import Ring

SHARE = 0.01
STEP_MS = {1: 5.0, 16: 8.0, 256: 20.0}
"""Step times of an engine on a GPU, by requests in the batch."""
REPEATS = 2_000


def main() -> int:
    """Print each cost beside its limit; return 1 when one is missed."""
    missed = False
    for batch, step_ms in STEP_MS.items():
        limit = SHARE * step_ms * 1000.0
        for name, cost in (("recorder", recorder(batch)), ("scheduler", scheduler(batch))):
            sys.stdout.write(
                f"{name}, {batch} requests: {cost:.1f} us per step, {cost / step_ms / 10:.2f} % of "
                f"a step of {step_ms:.0f} ms (limit {limit:.0f} us)\n"
            )
            missed |= cost > limit
    return int(missed)


def recorder(batch: int) -> float:
    """Return the median cost of recording a step, in microseconds; one request ends in each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    asked = {settings.TTFT: "500", settings.TPOT: "40", settings.RECORDER_PORT: str(port)}
    config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="pair"))
    # Each batch size asks anew, so each has a registry and a port of its own.
    recording = Recording(asked, config, CollectorRegistry())
    ended = SimpleNamespace(
        finish_reason="stop", e2e_latency=1.0, decode_time=0.9, mean_time_per_output_token=0.03
    )
    iteration = SimpleNamespace(
        num_generation_tokens=batch * 3,
        time_to_first_tokens_iter=[0.1],
        num_preempted_reqs=0,
        finished_requests=[ended],
    )
    stats = SimpleNamespace(
        num_running_reqs=batch,
        num_waiting_reqs=0,
        kv_cache_usage=0.5,
        spec_decoding_stats=SimpleNamespace(
            num_drafts=batch,
            num_draft_tokens=batch * 4,
            num_accepted_tokens=batch * 2,
            num_draft_tokens_per_pos=[batch] * 4,
        ),
        iteration_details=SimpleNamespace(
            num_ctx_requests=1,
            num_ctx_tokens=400,
            num_generation_requests=batch,
            num_generation_tokens=batch * 5,
            elapsed_ms=10.0,
            is_dummy=False,
        ),
        cudagraph_stats=SimpleNamespace(
            runtime_mode="FULL", num_unpadded_tokens=batch * 5, num_padded_tokens=batch * 5
        ),
    )
    cost = median_us(lambda: recording.record(stats, iteration, engine_idx=0))
    assert recording.on, recording.finding
    return cost


def scheduler(batch: int) -> float:
    """Return the median cost of planning, comparing and recording a step, in microseconds."""
    rows = [[1, 16, 1, 2048, 2], [1, 16, 2049, 32768, 4]]
    rows += [[17, 256, 1, 2048, 1], [17, 256, 2049, 32768, 3]]
    table = effective(rows, max_tokens=4, max_num_seqs=256)
    planner = Planner(table, Ring(settings.STEPS_KEPT))
    names = [f"cmpl-{at:032x}-0" for at in range(batch)]
    requests = {
        name: SimpleNamespace(num_computed_tokens=3000, num_prompt_tokens=400) for name in names
    }
    drafts = [-1] * table.tokens(batch, 3000)
    output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, len(drafts) + 1),
        scheduled_spec_decode_tokens=dict.fromkeys(names, drafts),
        finished_req_ids=set(),
    )
    cost = median_us(lambda: planner.plan(requests, output))
    assert planner.proof.finding is None
    assert planner.proof.proven == [len(drafts)]
    return cost


def median_us(act: Callable[[], object]) -> float:
    """Return the median time of a call, in microseconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    sys.exit(main())
