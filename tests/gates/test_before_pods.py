"""Gates that need no pod: of the question, the server's arguments, and the load."""

import pytest

from specschedule.core.gate import GATES
from specschedule.core.gates import before_pods, blocking, refused
from specschedule.core.target import Unreadable
from specschedule.core.workload import Trace
from specschedule.vllm_facts import matrix
from tests.gates.asked import CARD, answers, assert_answered, spec, speculative, target

TRACE = {"digest": "sha256:0123456789ab", "requests": 400, "seconds": 600.0, "longest": 3000}
TRACES = {
    "a trace that fits": ({}, {}, "Pass", "400 arrivals in 600 s"),
    "longer than a launch may take": (
        {"seconds": 1801.0},
        {},
        "TraceTooLong",
        "key trace.jsonl of ConfigMap recorded lasts 1801 s, and every launch replays it: cut it "
        "to 1800 s at most",
    ),
    "too few arrivals": ({"requests": 19}, {}, "TraceTooShort", "holds 19 arrivals"),
    "a request that the model has no room for": (
        {"longest": 4097},
        {"max_model_len": 4096},
        "BeyondModelLength",
        "a request of 4097 tokens",
    ),
    "one that just fits the model": ({"longest": 4096}, {"max_model_len": 4096}, "Pass", ""),
}


@pytest.mark.parametrize("claim", TRACES)
def test_a_trace_that_no_launch_can_replay_is_refused_by_name(claim):
    changes, server, reason, words = TRACES[claim]
    asked = spec(load={"trace": {"configMap": "recorded"}})
    trace = Trace.model_validate({**TRACE, **changes})
    gate = answers(asked, target(**server), trace=trace)["trace"]
    assert (gate.answer if gate.answer == "Pass" else gate.reason) == reason
    assert words in gate.message
    assert gate.answer in ("Pass", "Fail")


CONTEXTS = {
    "a context whose requests just fit the model": (4096 - 128, 4096, "Pass", ""),
    "one token more does not": (
        4096 - 127,
        4096,
        "BeyondModelLength",
        "spec.bar.protect[0].context 3969 needs prompts of 3841 tokens, which with outputTokens "
        "256 are more than max_model_len 4096",
    ),
    "one that half an answer fills": (128, 4096, "ContextTooShort", "leaves no room for a prompt"),
    "the shortest that there is": (129, 4096, "Pass", ""),
    "a model whose length nobody tells": (100_000, None, "NotApplicable", "is not known"),
}


@pytest.mark.parametrize("claim", CONTEXTS)
def test_a_context_that_no_request_can_have_is_refused_by_name(claim):
    context, limit, expected, words = CONTEXTS[claim]
    protect = [{"at": [1], "context": context}]
    asked = spec(load={"outputTokens": 256}, bar={"improve": [{"by": "15%"}], "protect": protect})
    gate = answers(asked, target(max_model_len=limit))["load"]
    assert (gate.reason if gate.answer == "Fail" else gate.answer) == expected
    assert words in gate.message


def test_a_trace_that_was_not_read_is_unknown_and_none_is_not_applicable():
    gate = answers(spec(load={"trace": {"configMap": "recorded"}}), target())["trace"]
    assert (gate.answer, gate.reason) == ("Unknown", "TraceNotRead")
    assert answers(spec(), target())["trace"].answer == "NotApplicable"


def test_a_good_run_is_held_by_nothing():
    gates = list(answers(spec(), target()).values())
    assert refused(gates) is None
    assert blocking(gates) is None


def test_the_published_configuration_is_accepted():
    found = answers(spec(), target(**speculative(method="dspark")))
    assert blocking(list(found.values())) is None
    assert found["methodAndSchedule"].reason == "DraftingCostStays"
    assert found["blockSize"].reason == "LeftToEngine"


BLOCKS = {
    "as many tokens as the block holds": (5, "Pass", "Holds"),
    "more tokens than the block holds": (3, "Fail", "BeyondBlock"),
    "fewer tokens than the block holds": (7, "Pass", "BelowBlock"),
}


@pytest.mark.parametrize("claim", BLOCKS)
def test_a_block_drafters_files_limit_the_tokens(claim):
    block, verdict, reason = BLOCKS[claim]
    dspark = target(**speculative(method="dspark"))
    found = {
        each.gate: each
        for each in before_pods(spec(), dspark, matrix=matrix.ROWS, drafter_block=block)
    }["blockSize"]
    assert (found.answer, found.reason) == (verdict, reason)
    assert f"is {block}" in found.message


CASES = {
    "data parallelism switches schedules off": (
        spec(),
        target(data_parallel_size=2),
        "dataParallel",
        "Fail",
        "DataParallel",
        "size 2",
    ),
    "a bad row": (
        spec([[1, 8, 1], [8, 16, 1]]),
        target(),
        "schedule",
        "Fail",
        "ScheduleOverlap",
        "rows[1]",
    ),
    "mixed rows": (
        spec([[1, 16, 3], [17, 64, 1, 4096, 1]]),
        target(),
        "schedule",
        "Fail",
        "ScheduleMixedLengths",
        "rows[1]",
    ),
    "a context axis is in no release": (
        spec([[1, 16, 1, 100, 2], [1, 16, 101, 200, 5]]),
        target(),
        "methodAndSchedule",
        "Fail",
        "EngineRefusesSchedule",
        "0.33.0",
    ),
    "no method to draft by": (
        spec(),
        target(speculative=None),
        "speculative",
        "Fail",
        "NoSpeculativeMethod",
        "spec.speculative",
    ),
    "two methods to draft by": (
        spec(speculative={"method": "ngram"}),
        target(),
        "speculative",
        "Fail",
        "TwoSpeculativeMethods",
        "spec.speculative",
    ),
    "a method for a server without one": (
        spec(speculative={"method": "ngram"}),
        target(speculative=None),
        "speculative",
        "Pass",
        "Holds",
        "ngram",
    ),
    "a second source of tokens": (
        spec(),
        target(**speculative(num_speculative_tokens_per_seq_len=[[1, 9, 1]])),
        "tokenSource",
        "Fail",
        "SecondTokenSource",
        "num_speculative_tokens_per_seq_len",
    ),
    "another owner": (
        spec(),
        target(owner="InferenceService/chat"),
        "owner",
        "Fail",
        "ControlledByAnother",
        "InferenceService/chat",
    ),
    "another owner when nothing is written": (
        spec(mode="Propose"),
        target(owner="InferenceService/chat"),
        "owner",
        "Pass",
        "ProposesOnly",
        "InferenceService/chat",
    ),
    "a server of HTTPS": (
        spec(),
        target(tls="--ssl-certfile"),
        "tls",
        "Fail",
        "ServesTls",
        "container server serves HTTPS (--ssl-certfile)",
    ),
    "half a server": (
        spec(),
        target(kv_role="kv_producer"),
        "prefillDecodeSplit",
        "Fail",
        "PrefillDecodeSplit",
        "kv_producer",
    ),
    "a server that registers itself": (
        spec(),
        target(environment={"LMCACHE_CONTROLLER_URL": "x"}),
        "registration",
        "Fail",
        "RegistersItself",
        "LMCACHE_CONTROLLER_URL",
    ),
    "a rollout that can never finish": (
        spec(),
        target(can_roll="maxUnavailable is 0 and no GPU is free"),
        "rollout",
        "Fail",
        "RolloutDeadlock",
        "no GPU is free",
    ),
    "a rollout that nobody asks for": (
        spec(mode="Propose"),
        target(can_roll="maxUnavailable is 0"),
        "rollout",
        "Pass",
        "Holds",
        "Propose",
    ),
    "a rollout that could not be looked at": (
        spec(),
        target(roll_unchecked="free GPUs"),
        "rollout",
        "NotApplicable",
        "FreeGpusNotSeen",
        "free GPUs",
    ),
    "a log level that hides warnings": (
        spec(),
        target(environment={"VLLM_LOGGING_LEVEL": "error"}),
        "logLevel",
        "Unknown",
        "LogLevelHidesWarnings",
        "VLLM_LOGGING_LEVEL",
    ),
    "prompts beyond the model's length": (
        spec(load={"promptTokens": 4000, "outputTokens": 200}),
        target(max_model_len=4096),
        "load",
        "Fail",
        "BeyondModelLength",
        "4096",
    ),
    "more in flight than the server batches": (
        spec(load={"points": [1, 64]}),
        target(),
        "load",
        "Pass",
        "QueuesBeyondBatch",
        "[64]",
    ),
    "a row that runs by a default of some GPUs only is said to": (
        spec([[1, 256, 4], [257, 1024, 0]]),
        target(max_num_seqs=256, max_num_seqs_given=False),
        "schedule",
        "Pass",
        "HoldsWithNotes",
        "rows beyond batch size 256 run on some GPUs only: --max-num-seqs is not given",
    ),
    "a schedule that differs from serving by the larger default only is something new": (
        spec([[1, 256, 5], [257, 1024, 0]]),
        target(
            max_num_seqs=256,
            max_num_seqs_given=False,
            **speculative(num_speculative_tokens_per_batch_size=[[1, 1024, 5]]),
        ),
        "newSchedule",
        "Pass",
        "Holds",
        "",
    ),
    "a load point whose K depends on a default": (
        spec([[1, 256, 4], [257, 1024, 0]], load={"points": [1, 512]}),
        target(max_num_seqs=256, max_num_seqs_given=False),
        "load",
        "Unknown",
        "BatchLimitNotGiven",
        "card at 512 in flight drafts is not known: --max-num-seqs is not given",
    ),
    "a load point beyond a default where K is the same": (
        spec(load={"points": [1, 512]}),
        target(max_num_seqs=256, max_num_seqs_given=False),
        "load",
        "Pass",
        "QueuesBeyondBatch",
        "--max-num-seqs is not given",
    ),
    "a log level among the arguments": (
        spec(),
        target(log_level="error"),
        "logLevel",
        "Unknown",
        "LogLevelHidesWarnings",
        "hide",
    ),
    "logging that the arguments leave alone": (
        spec(),
        target(configure_logging=False),
        "logLevel",
        "Unknown",
        "LogLevelHidesWarnings",
        "hide",
    ),
    "logging that a file among the arguments configures": (
        spec(),
        target(log_config_file="/etc/logging.json"),
        "logLevel",
        "Unknown",
        "LoggingConfigNotRead",
        "an argument names a file",
    ),
    "logging that a file may configure": (
        spec(),
        target(unread=["VLLM_LOGGING_CONFIG_PATH"]),
        "logLevel",
        "Unknown",
        "EnvironmentNotRead",
        "VLLM_LOGGING_CONFIG_PATH",
    ),
    "logging that a file configures": (
        spec(),
        target(environment={"VLLM_LOGGING_CONFIG_PATH": "/etc/logging.json"}),
        "logLevel",
        "Unknown",
        "LoggingConfigNotRead",
        "unset it",
    ),
    "requests of any length where the model's own is not known": (
        spec(load={"promptTokens": 900_000, "points": [1]}),
        target(),
        "load",
        "NotApplicable",
        "ModelLengthNotGiven",
        "--max-model-len is not given",
    ),
    "requests that the model's length holds": (
        spec(load={"promptTokens": 4000, "outputTokens": 96, "points": [1]}),
        target(max_model_len=4096),
        "load",
        "Pass",
        "Holds",
        "4096 tokens fit max_model_len 4096",
    ),
    "a token budget by default that may be too small": (
        spec([[1, 1024, 16]]),
        target(max_num_seqs=1024),
        "tokenBudget",
        "Pass",
        "BudgetNotGiven",
        "17408 tokens a step; --max-num-batched-tokens is not given",
    ),
    "a token budget that every default holds": (
        spec(),
        target(),
        "tokenBudget",
        "NotApplicable",
        "EngineDefault",
        "96 tokens a step, which every default of vLLM holds",
    ),
    "a token budget smaller than K": (
        spec([[1, 16, 16]]),
        target(max_num_batched_tokens=16),
        "tokenBudget",
        "Fail",
        "TokenBudget",
        "K=16",
    ),
    "a token budget smaller than a full batch, with adapters": (
        spec(),
        target(max_num_batched_tokens=64, enable_lora=True),
        "tokenBudget",
        "Fail",
        "TokenBudget",
        "96",
    ),
    "a token budget smaller than a full batch": (
        spec(),
        target(max_num_batched_tokens=64),
        "tokenBudget",
        "Pass",
        "BudgetShort",
        "96",
    ),
    "a token budget that a later candidate's K fills": (
        spec(
            candidates=[{"name": "a", "schedule": CARD}, {"name": "b", "schedule": [[1, 16, 16]]}]
        ),
        target(max_num_batched_tokens=16),
        "tokenBudget",
        "Fail",
        "TokenBudget",
        "candidate b: K=16",
    ),
    "a method to draft by that vLLM does not have": (
        spec(speculative={"method": "bogus"}),
        target(speculative=None),
        "speculative",
        "Fail",
        "ValueRefused",
        'spec.speculative has what vLLM 0.32 refuses to start with: method "bogus"',
    ),
    "the serving schedule is nothing new": (
        spec(),
        target(**speculative(num_speculative_tokens_per_batch_size=[[1, 2, 5], [3, 8, 1]])),
        "newSchedule",
        "Fail",
        "AlreadyServing",
        "card",
    ),
    "the serving schedule beside a new one": (
        spec(candidates=[{"name": "a", "schedule": CARD}, {"name": "b", "schedule": [[1, 16, 2]]}]),
        target(**speculative(num_speculative_tokens_per_batch_size=CARD)),
        "newSchedule",
        "Pass",
        "HoldsWithNotes",
        "a is the serving schedule",
    ),
    "a schedule that is spelt in two ways": (
        spec(
            candidates=[
                {"name": "a", "schedule": [[1, 2, 5], [3, 16, 2]]},
                {"name": "b", "schedule": [[1, 2, 5], [3, 8, 2], [9, 16, 2]]},
            ]
        ),
        target(),
        "newSchedule",
        "Pass",
        "HoldsWithNotes",
        "b is the same schedule as a: not launched twice",
    ),
    "one table with room for more tokens is another schedule": (
        spec(
            candidates=[
                {"name": "a", "schedule": [[1, 16, 2]]},
                {"name": "b", "schedule": [[1, 16, 2]], "maxTokens": 5},
            ]
        ),
        target(),
        "newSchedule",
        "Pass",
        "Holds",
        "",
    ),
    "the serving rows with another largest K are something new": (
        spec(),
        target(**speculative(num_speculative_tokens=7, num_speculative_tokens_per_batch_size=CARD)),
        "newSchedule",
        "Pass",
        "Holds",
        "",
    ),
    "a schedule with a gap is said to have one": (
        spec([[1, 2, 5], [8, 16, 1]]),
        target(),
        "schedule",
        "Pass",
        "HoldsWithNotes",
        "3-7",
    ),
    "notes of the arguments are shown": (
        spec(),
        target(notes=["odd"]),
        "arguments",
        "Pass",
        "HoldsWithNotes",
        "odd",
    ),
}


@pytest.mark.parametrize("claim", CASES)
def test_each_gate_has_its_answer_and_reason(claim):
    assert_answered(*CASES[claim])


@pytest.mark.parametrize(
    ("unreadable", "gate"),
    [
        (Unreadable(reason="EngineNotSupported", message="it runs SGLang"), "engine"),
        (Unreadable(reason="EntryScript", message="/start.sh"), "arguments"),
    ],
)
def test_a_server_that_cannot_be_read_is_refused_even_when_overridden(unreadable, gate):
    facts = target().model_copy(update={"server": unreadable})
    override = {"overrides": [{"gate": gate, "reason": "trust me"}]}
    (found,) = before_pods(spec(policy=override), facts, matrix=matrix.ROWS)
    assert (found.gate, found.answer, found.reason) == (gate, "Fail", unreadable.reason)


def test_a_missing_target_is_one_failed_gate():
    missing = Unreadable(reason="TargetNotFound", message="no Deployment chat")
    (found,) = before_pods(spec(), missing)
    assert (found.answer, found.reason) == ("Fail", "TargetNotFound")


def test_an_override_passes_with_both_reasons_shown():
    override = {"overrides": [{"gate": "registration", "reason": "the router ignores it"}]}
    found = answers(spec(policy=override), target(environment={"DYN_NAMESPACE": "x"}))[
        "registration"
    ]
    assert (found.answer, found.reason) == ("Pass", "Overridden")
    assert "the router ignores it" in found.message
    assert "DYN_NAMESPACE" in found.message


def test_data_parallelism_cannot_be_overridden():
    override = {"overrides": [{"gate": "dataParallel", "reason": "please"}]}
    found = answers(spec(policy=override), target(data_parallel_size=2))["dataParallel"]
    assert found.answer == "Fail"


def test_an_override_that_names_no_gate_is_refused_and_every_answer_is_a_known_gate():
    known = answers(spec(), target())
    assert set(known) <= GATES
    assert known["overrides"].answer == "NotApplicable"
    misspelt = {"overrides": [{"gate": "prefixCahce", "reason": "one template"}]}
    found = answers(spec(policy=misspelt), target())["overrides"]
    assert (found.answer, found.reason) == ("Fail", "UnknownGate")
    assert "prefixCahce, which is no gate" in found.message
    itself = {"overrides": [*misspelt["overrides"], {"gate": "overrides", "reason": "no"}]}
    assert answers(spec(policy=itself), target())["overrides"].answer == "Fail"
    right = {"overrides": [{"gate": "prefixCache", "reason": "one template"}]}
    assert answers(spec(policy=right), target())["overrides"].answer == "Pass"


def test_a_load_point_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match=r"load\.points: each point stands once"):
        spec(load={"points": [1, 8, 8]})
