"""What recorder and scheduler add to an engine step: ``make bench-engine``.

First the real engine with them against the same engine without, both alive on one machine and
asked in turn (``side_by_side.py``), on the shortest steps that the model pair has. Then each by
itself, as Python between two steps, on objects that carry the attributes of vLLM's own: a GPU's
steps are shorter than a CPU's, and this part is the same there. The limit is one percent of a
step: on a GPU one of 20 ms, which a busy engine takes for 256 requests; small batches have
shorter steps and cost less here.

    python tests/bench/bench_engine.py --folder FOLDER [--page PAGE.md] [--launch N]

Exits 1 when a limit is missed, or when the launches do not show that it is kept.
"""

import argparse
import json
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from hack.demo.evidence import heading, show  # noqa: E402

from specschedule.core.schedule import effective  # noqa: E402
from specschedule.engine import settings  # noqa: E402
from specschedule.engine.planner import Planner  # noqa: E402
from specschedule.engine.recording import Recording  # noqa: E402
from specschedule.engine.ring import Ring  # noqa: E402
from specschedule.vllm_facts.instruments import STEP_FLAGS  # noqa: E402
from tests.bench import side_by_side  # noqa: E402
from tests.bench.side_by_side import LATENCY, Arm  # noqa: E402
from tests.booted import end_with_servers, installed  # noqa: E402
from tests.instrumented import EVERY_K, Booted, prompt, serving  # noqa: E402

SHARE = 0.01
STEP_MS = {1: 5.0, 16: 8.0, 256: 20.0}
"""Step times of an engine on a GPU, by requests in the batch."""
WITH, WITHOUT = "with recorder and scheduler", "without"
LINE = "specschedule.bench.timed: "
"""As in ``inside/specschedule_timed.py``, which this process cannot import: it needs vLLM."""
INSIDE = (1, 4, 16)
"""Requests at once, in the running engine."""
REPEATS = 2_000


def main() -> int:
    """Measure what is left, print the page and write it."""
    end_with_servers()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where launches are kept")
    parser.add_argument("--page", type=Path, help="where to write the page")
    parser.add_argument("--launch", type=int, help="measure only this launch of both servers")
    given = parser.parse_args()
    engine = installed()
    if not side_by_side.measure(arms(engine, given.folder), given.folder, engine, given.launch):
        return 0
    real, kept = real_engine(given.folder)
    timed, few = inside(given.folder, engine)
    alone, within = stand_ins()
    head = heading("make bench-engine", engine["version"])
    text = "\n".join([*head, *real, "", *timed, "", *alone, ""])
    show(text, given.page)
    return 0 if kept and few and within else 1


def arms(engine: Mapping[str, Any], folder: Path) -> tuple[Arm, Arm]:
    """Return the engine with our parts and flags, and without; all else of them is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    # Two context classes, so that the mean context is needed; K is the boot rows' in both.
    rows = [[*row[:2], *part, row[2]] for row in EVERY_K for part in ((1, 512), (513, 1024))]
    table = folder / "rows.json"
    table.write_text(json.dumps(rows))
    common = tuple(side_by_side.short_steps(engine))
    scheduler = "--scheduler-cls=specschedule.engine.context.ContextScheduler"
    variables = {settings.TABLE: str(table), settings.TTFT: "60000", settings.TPOT: "20000"}
    variables[settings.STEPS] = "1"
    return Arm(WITH, (*common, *STEP_FLAGS, scheduler), variables), Arm(
        WITHOUT, common, inside=False
    )


def real_engine(folder: Path) -> tuple[list[str], bool]:
    """Return the page's lines about the real engine, and whether the limit is kept."""
    found = side_by_side.compared(folder, WITH, WITHOUT)
    told = side_by_side.kept(found.more, SHARE)
    added = found.more.mean * found.step_ms * 1e3
    return [
        "## The same engine with and without",
        "",
        f"Both servers are alive and asked in turn (ABBA), {side_by_side.BLOCKS} blocks in each of "
        f"{side_by_side.LAUNCHES} launches of both: {side_by_side.IN_FLIGHT} requests of "
        f"{side_by_side.TOKENS} tokens a window, the pair's drafter serving as the target, whose "
        f"steps are the shortest. With: counters of good requests and of steps, the engine's flags "
        "that those need, a line for each step in the recorder's and in the scheduler's page, and "
        "a table of five-number rows that chooses the K of the other's three-number rows. Step "
        "times are the engine's own "
        f"(`{side_by_side.LATENCY}`).",
        "",
        f"A step takes **{found.more.change()}** launches more, {added:+.0f} us of "
        f"{found.step_ms:.2f} ms; the limit is {SHARE:.0%}: **{told}**. Two windows of one server "
        f"in a row differ by {found.spread:.1%} (median).",
        "",
        *found.lines,
    ], told == "kept"


def inside(folder: Path, engine: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the page's lines about the time taken inside a running engine, and if it is little.

    The engine's own flags are not in it; they are in the comparison of two servers.
    """
    there, carried = folder / "timed", arms(engine, folder)[0]
    metadata = there / "specschedule_timed-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: specschedule-timed\nVersion: 1\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[vllm.stat_logger_plugins]\ntimed = specschedule_timed:TimedRecorder\n"
    )
    shutil.copy(ROOT / "tests/bench/inside/specschedule_timed.py", there)
    arguments = [a for a in carried.arguments if not a.startswith("--scheduler-cls")]
    arguments.append("--scheduler-cls=specschedule_timed.TimedScheduler")
    variables = {**carried.variables, "VLLM_PLUGINS": "timed"}
    lines = [
        "## Inside the running engine",
        "",
        "The same parts, each with its time taken in the real engine (`tests/bench/inside`), and "
        "the engine's mean step meanwhile. The recorder runs in the API server's process, beside "
        "the step; the scheduler within it.",
        "",
        "| requests | step (ms) | recorder (us) | share | scheduler (us) | share |",
        "|---|---|---|---|---|---|",
    ]
    few = True
    with serving(engine, folder / "inside", arguments, variables, beside=there) as server:
        before = _taken(server)
        for batch in INSIDE:
            metrics = server.metrics()
            server.together([prompt(24, at) for at in range(batch)], 400)
            time.sleep(1.0)
            after, grown = _taken(server), server.metrics()
            count = grown[f"{LATENCY}_count"] - metrics[f"{LATENCY}_count"]
            step_us = 1e6 * (grown[f"{LATENCY}_sum"] - metrics[f"{LATENCY}_sum"]) / count
            cells = [f"{batch}", f"{step_us / 1e3:.1f}"]
            for part in ("recorder", "scheduler"):
                steps = after[part][1] - before[part][1]
                cost = 1e6 * (after[part][0] - before[part][0]) / steps
                cells += [f"{cost:.0f}", f"{cost / step_us:.2%}"]
                few &= cost <= SHARE * step_us
            lines.append(f"| {' | '.join(cells)} |")
            before = after
    return lines, few


def _taken(server: Booted) -> dict[str, tuple[float, int]]:
    """Return the seconds that each part has taken so far, and its steps, as it said last."""
    found = {"recorder": (0.0, 0), "scheduler": (0.0, 0)}
    for line in server.log.read_text(errors="replace").splitlines():
        _, said, told = line.partition(LINE)
        if said:
            plain = json.loads(told)
            found[plain["part"]] = plain["seconds"], plain["steps"]
    return found


def stand_ins() -> tuple[list[str], bool]:
    """Return the page's lines about each part by itself, and whether all limits are kept."""
    lines = [
        "## Each by itself, per step",
        "",
        "| part | requests | us | of a GPU's step of (ms) | share | limit (us) |",
        "|---|---|---|---|---|---|",
    ]
    within = True
    for batch, step_ms in STEP_MS.items():
        limit = SHARE * step_ms * 1000.0
        for name, cost in (("recorder", recorder(batch)), ("scheduler", scheduler(batch))):
            lines.append(
                f"| {name} | {batch} | {cost:.1f} | {step_ms:g} | {cost / step_ms / 10:.2f} % "
                f"| {limit:.0f} |"
            )
            within &= cost <= limit
    return lines, within


def recorder(batch: int) -> float:
    """Return the median cost of recording a step, in microseconds; one request ends in each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    asked = {settings.TTFT: "500", settings.TPOT: "40", settings.RECORDER_PORT: str(port)}
    asked[settings.STEPS] = "1"
    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="pair"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(scheduler_cls=None, max_num_seqs=512),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=4,
            num_speculative_tokens_per_batch_size=[(1, 16, 4), (17, 512, 2)],
        ),
    )
    # Each batch size asks anew, so each has a registry and a port of its own.
    recording = Recording(asked, config, CollectorRegistry())
    ended = SimpleNamespace(
        finish_reason="stop", e2e_latency=1.0, decode_time=0.9, mean_time_per_output_token=0.03
    )
    iteration = SimpleNamespace(
        num_generation_tokens=batch * 3,
        time_to_first_tokens_iter=[0.1],
        inter_token_latencies_iter=[0.02] * batch,
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
