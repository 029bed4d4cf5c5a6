"""What the reader of a verdict must know: what limits it, and what to make of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from specschedule.core.bands import unheld
from specschedule.core.bar import MIN_PAIRS
from specschedule.core.compare import Evidence, Pair, unfit
from specschedule.core.context_axis import by_context, mixed
from specschedule.core.noise import untested
from specschedule.core.regime import ServingRegime, regime
from specschedule.core.spec import Metric, Spec
from specschedule.core.verdict import BarResult, Note, Tax, Verdict


def notes(
    evidence: Evidence,
    verdicts: Sequence[Verdict],
    tax: Sequence[Tax],
    serving: ServingRegime | None,
) -> list[Note]:
    """Return the notes of a judgement.

    Args:
        evidence: Of the run.
        verdicts: Of its candidates.
        tax: Rows of the tax table.
        serving: What the serving pods do; None where nobody told.
    """
    return [
        *(
            Note(reason=reason, message=said)
            for reason, said in regime(evidence.spec, evidence, serving)
        ),
        *limits(evidence),
        *_stalls(evidence.spec, verdicts, tax),
        *_by_context(evidence.spec, verdicts),
    ]


def limits(evidence: Evidence) -> list[Note]:
    """List what limits the verdict."""
    found = [
        ("LaunchNotCounted", f"launch {launch.launch} ({launch.arm}): {why}")
        for launch, why in evidence.dropped
    ]
    found.extend(
        ("WindowNotCounted", f"launch {launch.launch} ({launch.arm}), cell {cell.cell}: {why}")
        for launch in evidence.counted
        for cell in launch.cells
        if cell.void is None and (why := unfit(cell)) is not None
    )
    for candidate in evidence.spec.candidates:
        pairs = evidence.pairs(f"candidate-{candidate.name}")
        bands = unheld(candidate.schedule, evidence.spec.load.points) if pairs else []
        found.extend(
            (
                "BandNotHeld",
                f"{candidate.name}: no load point lies in its band {band}: nothing was "
                "held there, and the verdict is silent about it; add one to load.points",
            )
            for band in bands
        )
        if len(pairs) >= MIN_PAIRS:
            found.extend(_imbalances(evidence, candidate.name, pairs))
    if evidence.counted and evidence.fixed_arm(0) is None:
        message = "none was not measured: whether speculation pays at all is not known"
        found.append(("NoneNotMeasured", message))
    held = (cell for launch in evidence.counted for cell in evidence.cells(launch))
    found.extend(("ContextsMixed", message) for message in mixed(held))
    bench = untested(evidence) if evidence.counted else None
    if bench is not None:
        found.append(("BenchNotTested", bench))
    found.extend(("TokensVary", message) for message in evidence.unplanned_tokens())
    return [Note(reason=reason, message=message) for reason, message in found]


def _stalls(spec: Spec, verdicts: Sequence[Verdict], tax: Sequence[Tax]) -> list[Note]:
    """Advise where a schedule holds in its bands and stalls between them.

    What is lost in an open loop, which crosses the boundaries too, may come from that very stall.
    """
    sound = {
        verdict.candidate
        for verdict in verdicts
        if (held := [bar for bar in verdict.bars if bar.at is not None])
        and all(bar.answer != "Lost" for bar in held)
    }
    return [
        Note(
            reason="CrossingsStall",
            message=f"{row.message}: only crossings stall; use fewer bands, a moved boundary will "
            "not help",
        )
        for row in tax
        if row.what == "crossing"
        and row.candidate in sound
        and row.change < -spec.bar.elsewhere.max_loss
        and (row.high is None or row.high < 0)
    ]


def _by_context(spec: Spec, verdicts: Sequence[Verdict]) -> list[Note]:
    """Say where a schedule by batch size gains at one context and loses at another."""
    rows = {each.name: each.schedule for each in spec.candidates}
    found = []
    for verdict in verdicts:
        if by_context(rows[verdict.candidate]):
            continue
        held: dict[tuple[Metric, int | None], list[BarResult]] = defaultdict(list)
        for bar in verdict.bars:
            if bar.context is not None and bar.change is not None:
                held[bar.metric, bar.at].append(bar)
        for (metric, at), bars in held.items():
            lost = [bar for bar in bars if bar.answer == "Lost"]
            gained = [bar for bar in bars if (bar.change or 0) > max(bar.floor or 0, 0.0)]
            if lost and gained:
                each = ", ".join(
                    f"{bar.change:+.1%} at context {bar.context}" for bar in (*gained, *lost)
                )
                found.append(
                    Note(
                        reason="DependsOnContext",
                        message=f"{verdict.candidate}: {metric.value} at {at} in flight: {each}: "
                        "what is gained depends on the context, and one table by batch size cannot "
                        "express that; choose by context too (five-number rows), or serve the two "
                        "apart",
                    )
                )
    return found


def _imbalances(evidence: Evidence, name: str, pairs: Sequence[Pair]) -> Iterable[tuple[str, str]]:
    if len({pair.arm_first for pair in pairs}) == 1:
        order = "before" if pairs[0].arm_first else "after"
        yield (
            "OrderNotBalanced",
            f"order not balanced: {name} was launched {order} the incumbent in all {len(pairs)} "
            "pairs, so an effect of the order is part of the difference",
        )
    ours, theirs = (
        {launch.receipt.node for launch in side if launch.receipt.node}
        for side in ([pair.arm for pair in pairs], [pair.reference for pair in pairs])
    )
    if ours and theirs and ours.isdisjoint(theirs):
        yield (
            "PlaceNotBalanced",
            f"place not balanced: {name} ran on {', '.join(sorted(ours))} only, the incumbent on "
            f"{', '.join(sorted(theirs))} only",
        )
    for pair in pairs:
        seeds = [
            {
                (cell.profile.concurrency, cell.category, cell.profile.context, cell.seed)
                for cell in evidence.cells(x)
            }
            for x in (pair.arm, pair.reference)
        ]
        if seeds[0] != seeds[1]:
            yield (
                "PromptsDiffer",
                f"round {pair.round}: {name} and the incumbent did not see the same windows with "
                "the same prompts",
            )
            return
