"""Gates that the log and the metrics of the serving engine answer before any launch."""

from collections.abc import Sequence

from specschedule.core import capacity, receipts
from specschedule.core.evidence import Launch, Receipt
from specschedule.core.gate import Gate, fails, not_applicable, overridden, passes, unknown
from specschedule.core.preflight import load_fits, tables_of
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.vllm_facts.failures import start_failure
from specschedule.vllm_facts.logs import read_log
from specschedule.vllm_facts.metrics import Scrape, read_metrics
from specschedule.vllm_facts.receipt import read_receipt


def serving_gates(
    spec: Spec, server: ServerFacts, *, log_text: str | None, metrics_text: str | None
) -> list[Gate]:
    """Return what a running engine's own words say about this run.

    Args:
        spec: The question.
        server: The serving server.
        log_text: Its log from the beginning, where it was given.
        metrics_text: One scrape of its metrics, where it was given.
    """
    receipt = read_receipt(log_text=log_text, metrics_text=metrics_text)
    answers: list[Gate] = []
    if log_text is not None:
        answers += _of_log(spec, server, receipt, log_text)
    if metrics_text is not None:
        answers += _of_metrics(spec, receipt, read_metrics(metrics_text))
    return overridden(spec, answers)


def _of_log(spec: Spec, server: ServerFacts, receipt: Receipt, text: str) -> list[Gate]:
    # The log is what a candidate's launch would say, as its arguments differ in the drafting only;
    # but on model runner V1 a schedule, which serving may lack, forces another graph mode.
    loses_graphs = receipt.model_runner == "V1" and receipt.graph_mode not in (None, "NONE")
    expected = receipt.model_copy(update={"graph_mode": "PIECEWISE"}) if loses_graphs else receipt
    launches = [
        Launch(
            arm=f"candidate-{c.name}",
            launch=1,
            round=1,
            schedule=c.schedule,
            receipt=expected.model_copy(update={"num_speculative_tokens": c.largest_tokens}),
        )
        for c in spec.candidates
    ]
    return [
        _start(receipt, text),
        receipts.log_level(launches),
        _switched_off(receipt),
        _runner(receipt),
        _graph_mode(spec, launches, receipt),
        *_length(spec, server, text),
        receipts.graph_coverage(launches, server),
    ]


def _start(receipt: Receipt, text: str) -> Gate:
    if receipt.model_runner is not None and receipt.async_scheduling is not None:
        return passes("start", "the engine started")
    failure = start_failure(text)
    if failure.line or failure.reason != "EngineExited":
        said = failure.message if failure.message == failure.line else f"{failure.message}: "
        return fails("start", failure.reason, said + (failure.line if said[-1] == " " else ""))
    return not_applicable("start", "NotSeen", "the log does not show whether the engine started")


def _switched_off(receipt: Receipt) -> Gate:
    said = receipts.noted(receipt, receipts.SCHEDULE_DISABLED)
    if said:
        return fails("scheduleInEffect", "SwitchedOff", said[0])
    return not_applicable(
        "scheduleInEffect", "NotYetMeasured", "draft counters of the launches decide"
    )


def _length(spec: Spec, server: ServerFacts, text: str) -> list[Gate]:
    """Answer whether the load fits where only the log tells the longest context."""
    told = read_log(text).max_model_len
    if server.max_model_len is not None or told is None:
        return []
    server = server.model_copy(update={"max_model_len": told})
    return [load_fits(spec, server, tables_of(spec, server))]


def _graph_mode(spec: Spec, launches: Sequence[Launch], serving: Receipt) -> Gate:
    gate = receipts.graph_mode(spec, launches, launches)
    if all(each.receipt.graph_mode == serving.graph_mode for each in launches):
        return gate
    said = f"{gate.message}; serving has {serving.graph_mode}, but on model runner V1 a schedule "
    return gate.model_copy(update={"message": f"{said}forces PIECEWISE"})


def _runner(receipt: Receipt) -> Gate:
    fallback = receipts.noted(receipt, receipts.RUNNER_FALLBACK)
    if fallback:
        return passes("modelRunner", f"model runner V1: {fallback[0]}", "RunnerFallback")
    if receipt.model_runner:
        return passes("modelRunner", f"model runner {receipt.model_runner}")
    return not_applicable("modelRunner", "NotSeen", "the log does not name the model runner")


def _of_metrics(spec: Spec, receipt: Receipt, scrape: Scrape) -> Sequence[Gate]:
    return [_alive(scrape), _accepted(spec, scrape), _fits(spec, receipt)]


def _alive(scrape: Scrape) -> Gate:
    gate = "servingAlive"
    stalled = [
        f"{waiting:.0f} requests wait and none runs" + (f" in engine {engine}" if engine else "")
        for engine, running, waiting in scrape.requests_by_engine
        if waiting and running == 0
    ]
    if stalled:
        return fails(gate, "Stalled", f"{'; '.join(stalled)}: the serving engine is stuck")
    told = [n for _, *numbers in scrape.requests_by_engine for n in numbers]
    if not told or None in told:
        return unknown(
            gate,
            "NotRead",
            "the metrics do not tell how many requests run and wait; give one scrape of "
            "http://POD:PORT/metrics of a serving pod",
        )
    return passes(gate, "the serving engine is not stuck")


def _accepted(spec: Spec, scrape: Scrape) -> Gate:
    gate, floor = "acceptance", spec.policy.acceptance_floor
    if scrape.draft_tokens is None or scrape.accepted_tokens is None:
        return not_applicable(gate, "NotSeen", "acceptance n/a: the metrics tell no draft counters")
    if not scrape.draft_tokens:
        return not_applicable(gate, "NothingDrafted", "acceptance n/a: nothing was drafted yet")
    if not 0 <= scrape.accepted_tokens <= scrape.draft_tokens:
        return unknown(
            gate,
            "CountersDisagree",
            f"the metrics tell {scrape.accepted_tokens:.0f} accepted of {scrape.draft_tokens:.0f} "
            "draft tokens, which cannot be; give one scrape of one pod, unedited",
        )
    share = scrape.accepted_tokens / scrape.draft_tokens
    said = f"accepted {share:.1%} of {scrape.draft_tokens:.0f} draft tokens"
    if share < floor:
        return fails(
            gate,
            "AcceptanceBelowFloor",
            f"{said}; the floor is {floor:.1%}: serve without speculation",
        )
    if scrape.acceptance_length is not None:
        said += f", acceptance length {scrape.acceptance_length:.3f}"
    if scrape.engines_disagree:
        return passes(gate, f"{said}; engines disagree: one accepts nothing", "EnginesDisagree")
    return passes(gate, said)


def _fits(spec: Spec, receipt: Receipt) -> Gate:
    gate, size = capacity.GATE, receipt.kv_cache_tokens
    if size is None:
        return not_applicable(gate, "NotSeen", "the metrics do not tell the KV cache size")
    beyond = capacity.beyond(spec, size)
    if beyond:
        return capacity.answer(spec, beyond, size)
    return passes(gate, f"the KV cache holds {size} tokens")
