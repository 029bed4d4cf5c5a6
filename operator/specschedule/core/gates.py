"""All gates: those before any pod, and those that the running arms answer."""

from collections.abc import Sequence

from specschedule.core import capacity, counters, lengths, receipts
from specschedule.core.arms import ADAPTIVE_KEY
from specschedule.core.compare import INCUMBENT, NONE, TWIN
from specschedule.core.equivalence import output_equivalence
from specschedule.core.evidence import Launch
from specschedule.core.gate import Gate, blocking, overridden, refused, unknown, withheld
from specschedule.core.matrix import MatrixRow
from specschedule.core.preflight import before_pods, load_fits, tables_of
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

__all__ = [
    "Gate",
    "MatrixRow",
    "before_pods",
    "between_arms",
    "blocking",
    "refused",
    "withheld",
    "without_speculation",
]


def without_speculation(server: ServerFacts) -> frozenset[str]:
    """Return the arms that run without speculation."""
    return frozenset({NONE, INCUMBENT, TWIN} if server.speculative is None else {NONE})


def between_arms(
    spec: Spec,
    launches: Sequence[Launch],
    server: ServerFacts,
    *,
    serving_images: Sequence[str] | None = None,
) -> list[Gate]:
    """Answer every gate that the running arms can answer.

    Args:
        spec: The question.
        launches: Every launch of the run; void and failed ones do not count.
        server: The serving server, as it was when the run began.
        serving_images: Image ids that its pods run; None where there is none to ask.
    """
    counted = [each for each in launches if each.void is None and each.failed is None]
    if not counted:
        no_launch = unknown("launches", "NoLaunch", "no launch of any arm counts")
        return [lengths.nothing_left(launches) or no_launch]
    kv_cache = receipts.kv_cache(spec, counted)
    load = lengths.answer(spec, counted, load_fits(spec, server, tables_of(spec, server)))
    spec, counted = capacity.narrowed(spec, counted)
    silent = without_speculation(server)
    drafting = [each for each in counted if each.arm not in silent]
    without = [each for each in counted if each.arm in silent]
    alike, in_own_mode = receipts.comparable(drafting)
    adapts = (INCUMBENT, TWIN) if (server.speculative or {}).get(ADAPTIVE_KEY) else ()
    planned = [each for each in alike if each.arm not in adapts]
    if not planned:
        return [unknown("launches", "NoLaunch", "no launch of a drafting arm counts")]
    free = [each for each in counted if each not in alike]
    answers = [
        receipts.image_id(counted, serving_images),
        receipts.version(counted),
        receipts.gpu(counted, server),
        *(receipts.same(alike, fact, free) for fact in receipts.SAME_WHERE_DRAFTING),
        receipts.graph_mode(spec, counted, in_own_mode),
        receipts.graph_coverage(alike, server),
        kv_cache,
        *([load] if load is not None else []),
        receipts.adapters(counted, server),
        receipts.sources(counted),
        receipts.instruments(counted, server),
        receipts.log_level(counted),
        receipts.caches(counted),
        counters.none_measured(launches, without),
        counters.schedule_in_effect(
            spec, planned, server, has_none=any(each.arm == NONE for each in counted)
        ),
        counters.acceptance(spec, drafting),
        counters.drafter_state(drafting),
        counters.prefix_cache(spec, counted),
        counters.preemptions(counted),
        counters.engine_counters(spec, counted),
        output_equivalence(drafting, without),
    ]
    return overridden(spec, answers)
