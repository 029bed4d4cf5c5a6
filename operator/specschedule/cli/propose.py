"""``specschedule propose``: schedules worth testing, from the cells of a screening."""

import json
from collections.abc import Sequence

import click

from specschedule.cli.output import BadInput, emit, output_option
from specschedule.cli.question import read_cells, read_forward, read_question, sizes
from specschedule.core.cost import DEFAULT_GRAPH_SIZES, Graphs
from specschedule.core.forecast import Interval
from specschedule.core.forward import Unusable
from specschedule.core.proposal import Proposal, Proposed
from specschedule.core.tuner import NothingMeasured, propose
from specschedule.core.values import parse_share
from specschedule.core.versions import adaptive_verification
from specschedule.core.view import ASSUMED_FLOOR, Search


@click.command()
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option("--cells", required=True, help="Cells as a JSON list, or one to a line.")
@click.option("--max-tokens", type=click.IntRange(1, 64), help="Largest K. [the cells' largest]")
@click.option(
    "--max-num-seqs", type=click.IntRange(1, 65536), help="Of the server. [the largest load point]"
)
@click.option("--max-model-len", type=click.IntRange(1), help="Of the server.")
@click.option("--kv-cache-tokens", type=click.IntRange(1), help="Tokens the KV cache holds.")
@click.option("--graph-sizes", help="Captured graph sizes, such as 1,2,4,8. [vLLM's default]")
@click.option("--noise-floor", help="Differences below it are noise, such as 3%. [1%]")
@click.option(
    "--time-at",
    multiple=True,
    metavar="POINT=SHARE",
    help="Share of its time that serving spends near a load point, such as 8=60%; may be given "
    "again. Points not named share the rest. [all weigh alike]",
)
@click.option("--method", help="Speculative method, to say whether it can verify adaptively.")
@click.option("--engine-version", help="Version of vLLM, for the same.")
@click.option(
    "--forward",
    help="Steps timed by vllm bench forward (0.33 and newer): what its --output-json wrote. "
    "Three of their settings must be among the cells.",
)
@output_option
def command(
    path: str,
    cells: str,
    max_tokens: int | None,
    max_num_seqs: int | None,
    max_model_len: int | None,
    kv_cache_tokens: int | None,
    graph_sizes: str | None,
    noise_floor: str | None,
    time_at: tuple[str, ...],
    method: str | None,
    engine_version: str | None,
    forward: str | None,
    output: str,
) -> None:
    """Propose schedules from measured CELLS, with predicted numbers and why."""
    spec = read_question(path)
    found = read_cells(cells)
    method = method or (spec.speculative.method if spec.speculative else None)
    limits = spec.search
    largest = max(c.tokens or 0 for c in found) or 1
    search = Search(
        slo=spec.slo,
        time_at=_time_at(time_at, spec.batch_sizes),
        time_told="--time-at" if time_at else None,
        max_tokens=max_tokens or (limits.max_tokens if limits else largest),
        max_num_seqs=max_num_seqs or max(spec.batch_sizes),
        output_tokens=spec.load.output_tokens,
        prompt_tokens=spec.load.prompt_tokens,
        contexts=tuple(sorted(limits.contexts)) if limits else (),
        graphs=Graphs(DEFAULT_GRAPH_SIZES if graph_sizes is None else sizes(graph_sizes)),
        kv_cache_tokens=kv_cache_tokens,
        max_model_len=max_model_len,
        floor=_floor(noise_floor),
        seed=spec.experiment.seed,
    )
    adaptive = (
        method is not None
        and engine_version is not None
        and adaptive_verification(method, engine_version)
    )
    try:
        timed = read_forward(forward) if forward is not None else []
        answer = propose(search, found, adaptive=adaptive, forward=timed)
    except NothingMeasured as error:
        raise BadInput(f"{cells}: no cell can be used: {error}") from error
    except Unusable as error:
        raise BadInput(f"--forward {forward}: {error}") from error
    emit(answer.plain(), _text(answer), output)


def _floor(text: str | None) -> float:
    if text is None:
        return ASSUMED_FLOOR
    try:
        floor = parse_share(text)
    except ValueError as error:
        raise BadInput(f"--noise-floor: {error}") from error
    if floor >= 1:
        raise BadInput(f"--noise-floor: {text} is not below 100%")
    return floor


def _time_at(given: Sequence[str], points: Sequence[int]) -> dict[int, float]:
    """Read shares of time by load point; those not named share what is left evenly.

    Raises:
        BadInput: One is no POINT=SHARE of a load point, or they are no shares of a whole.
    """
    named: dict[int, float] = {}
    for text in given:
        point, _, share = text.partition("=")
        try:
            at, part = int(point), parse_share(share)
        except ValueError as error:
            raise BadInput(f"--time-at: {text!r}: write it as 8=60% ({error})") from error
        if at not in points or at in named:
            listed = ", ".join(map(str, sorted(points)))
            raise BadInput(f"--time-at: {text}: name each of the load points {listed} once at most")
        named[at] = part
    others = [at for at in points if at not in named]
    total = sum(named.values())
    if total > 1.0 + 1e-9 or (total == 0.0 and not others):
        raise BadInput(f"--time-at: the shares add up to {total:.0%}, not to at most 100%")
    rest = max(0.0, 1.0 - total) / len(others) if others else 0.0
    return {at: named.get(at, rest) for at in points}


def _text(answer: Proposal) -> str:
    lines = [f"Test first: {answer.lead}", ""]
    for candidate in answer.candidates:
        if candidate.same_as is not None:
            lines += [f"{candidate.name}: the same as {candidate.same_as}", ""]
            continue
        lines += [_head(candidate), f"  {candidate.why}"]
        lines += [f"  warning: {warning}" for warning in candidate.warnings]
        if candidate.predicted:
            lines.append(
                f"  {'IN FLIGHT':>9} {'CONTEXT':>8} {'K':>3} {'TOKENS/S':>22} {'TPOT MS':>21} "
                f"{'GOOD REQUESTS/S':>24} {'N':>3}  BASIS"
            )
        lines += [
            f"  {p.at:>9} {p.context or '':>8} {p.tokens:>3} {_interval(p.throughput, '.1f'):>22} "
            f"{_interval(p.tpot_ms, '.2f'):>21} {_interval(p.goodput, '.3f'):>24} "
            f"{p.windows:>3}  {p.basis}"
            for p in candidate.predicted
        ]
        lines.append("")
    lines.append(
        f"{answer.windows} windows, spread between repeats {answer.noise:.1%}, expected regret "
        f"{answer.expected_regret:.1%} (intervals: 95 %)"
    )
    lines += [
        f"measure next: {ask.concurrency} in flight, K={ask.tokens}"
        + (f", context {ask.context}" if ask.context else "")
        + f": {ask.why}"
        for ask in answer.measure_next
    ]
    lines += [f"note: {note}" for note in answer.notes]
    return "\n".join(lines)


def _head(candidate: Proposed) -> str:
    what = json.dumps(candidate.schedule) if candidate.schedule else ""
    gains = [
        f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%}) over {name}"
        for name, gain in (("none", candidate.over_none), ("static", candidate.over_static))
        if gain is not None
    ]
    return " ".join([f"{candidate.name}:", what, ", ".join(gains)]).strip()


def _interval(found: Interval, form: str) -> str:
    return f"{found.value:{form}} ({found.low:{form}}-{found.high:{form}})"
