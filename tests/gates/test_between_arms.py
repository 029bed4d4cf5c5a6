"""Gates that the running arms answer: what they must have in common."""

import pytest

from specschedule.core.gate import GATES
from specschedule.core.gates import between_arms, blocking
from specschedule.core.receipts import compared
from tests.gates.launched import (
    ROWS,
    SERVER,
    answer,
    arms,
    cached,
    candidate,
    cell,
    launch,
    none_cell,
    spec,
)


def test_arms_in_order_are_held_by_nothing():
    assert blocking(between_arms(spec(), arms(), SERVER)) is None


SAME = {
    "imageId": ("image_id", "sha256:b"),
    "engineVersion": ("engine_version", "0.33.0"),
    "gpu": ("gpu", "A100"),
    "modelRunner": ("model_runner", "V1"),
    "attentionBackend": ("attention_backend", "FLASHINFER"),
    "asyncScheduling": ("async_scheduling", False),
}


@pytest.mark.parametrize(("gate", "fact"), SAME.items(), ids=SAME.keys())
def test_a_difference_between_speculative_arms_fails_and_names_both(gate, fact):
    name, other = fact
    found = answer(gate, arms(candidate=launch("candidate-card", **{name: other})))
    assert (found.answer, found.reason) == ("Fail", "Differs")
    assert str(other) in found.message
    assert "candidate-card" in found.message
    assert "incumbent" in found.message


@pytest.mark.parametrize("gate", sorted(SAME.keys() - {"gpu"}))
def test_a_fact_that_one_arm_does_not_tell_is_unknown(gate):
    name, _ = SAME[gate]
    found = answer(gate, arms(candidate=launch("candidate-card", **{name: None})))
    assert (found.answer, found.reason) == ("Unknown", "NotRead")
    assert "candidate-card" in found.message


SERVING = {
    "what serves": (["sha256:a"], "Pass", "in every arm and in serving"),
    "another build under the same tag": (["sha256:old"], "Fail", "image sha256:old, every arm"),
    "pods of two builds": (["sha256:a", "sha256:old"], "Fail", "sha256:a, sha256:old"),
    "pods that do not tell": ([], "Unknown", "no serving pod"),
    "no pod to ask": (None, "Pass", "in every arm"),
}


@pytest.mark.parametrize("claim", SERVING)
def test_the_arms_image_is_held_against_the_one_that_serves(claim):
    serving, verdict, words = SERVING[claim]
    found = {
        each.gate: each for each in between_arms(spec(), arms(), SERVER, serving_images=serving)
    }
    assert found["imageId"].answer == verdict
    assert words in found["imageId"].message


def test_without_any_gpu_the_gate_does_not_apply():
    launches = [launch(arm, gpu=None) for arm in ("incumbent", "candidate-card", "none")]
    assert answer("gpu", launches).answer == "NotApplicable"


def test_a_gpu_that_nobody_names_is_the_same_on_one_node_only():
    server = SERVER.model_copy(update={"gpus": 1})
    arms_ = ("incumbent", "candidate-card", "none")
    together = [launch(arm, gpu=None, node="a") for arm in arms_]
    assert answer("gpu", together, server=server).reason == "SameNode"
    apart = [launch(arm, gpu=None, node=arm) for arm in arms_]
    assert answer("gpu", apart, server=server).answer == "Unknown"
    silent = [launch(arm, gpu=None) for arm in arms_]
    assert answer("gpu", silent, server=server).answer == "Unknown"


def test_a_gpu_that_may_be_there_without_being_asked_for_must_be_told():
    untold = SERVER.model_copy(update={"gpus_untold": "its devices come by resourceClaims"})
    launches = [launch(arm, gpu=None) for arm in ("incumbent", "candidate-card", "none")]
    assert answer("gpu", launches, server=untold).answer == "Unknown"


def test_none_may_differ_in_runner_backend_and_scheduling_but_not_in_image():
    other = launch("none", model_runner="V1", attention_backend="X", async_scheduling=False)
    assert blocking(between_arms(spec(), arms(none=other), SERVER)) is None
    told = answer("modelRunner", arms(none=other))
    assert (told.answer, told.reason) == ("Pass", "DiffersReported")
    assert "V2 in every arm that must agree" in told.message
    assert "V1 (none)" in told.message
    assert answer("imageId", arms(none=launch("none", image_id="sha256:b"))).answer == "Fail"


def test_an_engine_that_turns_out_too_old_fails():
    launches = [launch(a, engine_version="0.31.0") for a in ("incumbent", "candidate-card", "none")]
    assert answer("engineVersion", launches).reason == "VersionTooOld"


def downgraded(policy):
    other = launch(
        "candidate-card",
        graph_mode="PIECEWISE",
        notes=["GraphModeOverridden: Overriding to PIECEWISE"],
    )
    return answer("graphMode", arms(candidate=other), spec(policy={"graphMode": policy}))


def test_a_graph_mode_that_differs_is_reported_or_refused_by_policy():
    assert (downgraded("Report").answer, downgraded("Report").reason) == ("Pass", "DiffersReported")
    assert "Overriding to PIECEWISE" in downgraded("Report").message
    assert (downgraded("Same").answer, downgraded("Same").reason) == ("Fail", "Differs")
    assert (downgraded("RequireFull").answer, downgraded("RequireFull").reason) == (
        "Fail",
        "NotFull",
    )


def test_no_graphs_anywhere_is_not_applicable_and_no_word_is_unknown():
    without = [launch(a, graph_mode="NONE") for a in ("incumbent", "candidate-card", "none")]
    assert answer("graphMode", without).answer == "NotApplicable"
    silent = arms(candidate=launch("candidate-card", graph_mode=None))
    assert answer("graphMode", silent).answer == "Unknown"


TRUNCATED = {"notes": ["CaptureTruncated: Truncating max_cudagraph_capture_size to 40"]}


COVERED = {
    # Claim: rows, what the receipt says, the largest batch; then answer, reason and words.
    "every step has a graph": ([[1, 6, 5]], {}, 6, "Pass", "Holds", "cover every step"),
    "the capture list was cut above the largest step": (
        [[1, 6, 5]], {"captured_sizes": None, **TRUNCATED}, 6, "Pass", "Holds", "",
    ),
    "the capture list was cut below the largest step": (
        [[1, 6, 6]], {"num_speculative_tokens": 6, **TRUNCATED}, 6, "Fail", "NotCaptured", "42",
    ),
    "steps beyond the captured sizes": (
        ROWS, {"captured_sizes": [1, 2, 4, 8]}, 16, "Pass", "BeyondCaptured", "32",
    ),
    "the last row is carried on to the largest batch": (
        [[1, 6, 6]], {"captured_sizes": [1, 64], "num_speculative_tokens": 6}, 16,
        "Pass", "BeyondCaptured", "up to 112 tokens, captured are 64",
    ),
    "K is cut to num_speculative_tokens": (
        [[1, 16, 6]], {"captured_sizes": [1, 64], "num_speculative_tokens": 3}, 16,
        "Pass", "Holds", "",
    ),
    "no graph was captured at all": (
        ROWS, {"captured_sizes": []}, 16, "Pass", "BeyondCaptured", "captured are 0",
    ),
    "captured sizes are not told": (
        ROWS, {"captured_sizes": None}, 16, "Unknown", "NotRead", "VLLM_LOGGING_LEVEL",
    ),
    "neither graph mode nor captured sizes are told": (
        ROWS, {"captured_sizes": None, "graph_mode": None}, 16,
        "Unknown", "NotRead", "candidate-card",
    ),
    "captured sizes are not told where there are no graphs": (
        ROWS, {"captured_sizes": None, "graph_mode": "NONE"}, 16, "Pass", "Holds", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", COVERED)
def test_captured_graphs_are_held_against_the_steps_that_the_engine_takes(claim):
    rows, facts, largest, verdict, reason, said = COVERED[claim]
    # The other arms cover whatever is asked of them.
    incumbent = launch("incumbent", captured_sizes=[512])
    card = launch("candidate-card", schedule=rows, **facts)
    server = SERVER.model_copy(update={"max_num_seqs": largest})
    found = answer("graphCoverage", arms(incumbent=incumbent, candidate=card), server=server)
    assert (found.answer, found.reason) == (verdict, reason)
    assert said in found.message


def test_a_fixed_number_of_tokens_needs_graphs_too():
    short = launch("incumbent", captured_sizes=[64])
    found = answer("graphCoverage", arms(incumbent=short))
    assert (found.answer, found.reason) == ("Pass", "BeyondCaptured")
    assert "incumbent takes steps of up to 96 tokens, captured are 64" in found.message
    untold = launch("incumbent", num_speculative_tokens=None)
    assert answer("graphCoverage", arms(incumbent=untold)).answer == "Unknown"


def test_a_fact_that_is_told_twice_and_not_alike_is_unknown_until_somebody_says_why():
    assert answer("sources", arms()).answer == "Pass"
    apart = ["SourcesDisagree: modelRunner is V2 in the worker and V1 by the log"]
    launches = arms(candidate=launch("candidate-card", notes=apart))
    found = answer("sources", launches)
    assert (found.answer, found.reason) == ("Unknown", "SourcesDisagree")
    assert "candidate-card: modelRunner is V2 in the worker" in found.message
    known = {"policy": {"overrides": [{"gate": "sources", "reason": "the log is an old one"}]}}
    assert answer("sources", launches, spec(**known)).answer == "Pass"


BOTH, ONE = ["fingerprint", "counters"], ["fingerprint"]


CARRIED = {
    "no arm carries any": (None, None, None, "NotApplicable", "NoInstruments"),
    "every arm carries the same": (BOTH, BOTH, BOTH, "Pass", "Same"),
    "one arm carries less": (BOTH, ONE, BOTH, "Fail", "Differs"),
    "the arm without speculation carries less": (BOTH, BOTH, ONE, "Fail", "Differs"),
    "one arm was not seen to carry any": (BOTH, None, BOTH, "Unknown", "NotRead"),
}


@pytest.mark.parametrize("claim", CARRIED)
def test_what_observes_the_engine_is_the_same_in_every_arm(claim):
    incumbent, candidate, none, verdict, reason = CARRIED[claim]
    found = answer(
        "instruments",
        arms(
            incumbent=launch("incumbent", instruments=incumbent),
            candidate=launch("candidate-card", instruments=candidate),
            none=launch("none", instruments=none),
        ),
    )
    assert (found.answer, found.reason) == (verdict, reason)


def test_what_a_target_cannot_carry_is_said():
    notes = ["NotCarried: it has a --worker-extension-cls of its own"]
    found = answer("instruments", [launch(a, notes=notes) for a in ("incumbent", "none")])
    assert found.reason == "NoInstruments"
    assert found.message.endswith("it has a --worker-extension-cls of its own")


@pytest.mark.parametrize(
    ("hides", "reason"), [(True, "LogLevelHidesWarnings"), (None, "LogNotRead")]
)
def test_a_hidden_or_unread_log_is_unknown_each_for_its_own_reason(hides, reason):
    found = answer(
        "logLevel", arms(candidate=launch("candidate-card", log_level_hides_warnings=hides))
    )
    assert (found.answer, found.reason) == ("Unknown", reason)
    assert "candidate-card" in found.message


def test_a_launch_that_filled_the_caches_for_others_does_not_count_as_normal():
    tuned = launch("incumbent", notes=["Tuned: Compiling a graph"], caches_warm=False)
    warm = launch("candidate-card", caches_warm=True)
    found = answer("caches", arms(incumbent=tuned, candidate=warm))
    assert (found.answer, found.reason) == ("Fail", "TunedUnderMeasurement")
    everyone = [launch(a, notes=["Tuned: x"]) for a in ("incumbent", "candidate-card", "none")]
    assert answer("caches", everyone).answer == "Pass"


LORA = SERVER.model_copy(update={"enable_lora": True, "adapters": ["a", "b"]})


ADAPTERS = {
    "as in serving": (["a", "b"], LORA, "Pass", "Same"),
    "one is missing": (["a"], LORA, "Fail", "AdaptersDiffer"),
    "one too many": (["a", "b", "c"], LORA, "Fail", "AdaptersDiffer"),
    "not told": (None, LORA, "Unknown", "NotRead"),
    "serving cannot be asked": (
        ["a", "b"], LORA.model_copy(update={"adapters": None}), "Unknown", "NotRead",
    ),
    "a server without adapters": (None, SERVER, "NotApplicable", "NoAdapters"),
}  # fmt: skip


@pytest.mark.parametrize("claim", ADAPTERS)
def test_adapters_are_those_of_serving(claim):
    adapters, server, verdict, reason = ADAPTERS[claim]
    others = {arm: launch(arm, adapters=["a", "b"]) for arm in ("incumbent", "none")}
    card = launch("candidate-card", adapters=adapters)
    found = answer("adapters", arms(**others, candidate=card), server=server)
    assert (found.answer, found.reason) == (verdict, reason)
    if verdict == "Fail":
        assert "candidate-card lacks" in found.message


def test_a_counted_window_with_preemptions_fails_and_an_unread_one_is_unknown():
    assert answer("preemptions", candidate(cell(1, 5, preemptions=2))).reason == "Preempted"
    assert answer("preemptions", candidate(cell(1, 5, preemptions=None))).answer == "Unknown"
    void = candidate(cell(1, 5, preemptions=2, void="preempted"), cell(8, 1))
    assert answer("preemptions", void).answer == "Pass"


def test_void_and_failed_launches_do_not_count():
    launches = [
        *arms(),
        launch("candidate-card", number=7, image_id="sha256:b", void="preempted"),
        launch("candidate-card", number=8, image_id="sha256:c", failed="out of memory"),
    ]
    assert blocking(between_arms(spec(), launches, SERVER)) is None


def test_no_launch_is_no_evidence():
    assert between_arms(spec(), [], SERVER)[0].answer == "Unknown"
    assert between_arms(spec(), [launch("none")], SERVER)[0].answer == "Unknown"


def test_a_server_without_speculation_is_its_own_incumbent():
    bare = SERVER.model_copy(update={"speculative": None})
    launches = arms(incumbent=launch("incumbent", [none_cell(1), none_cell(8)]))
    chosen = spec(speculative={"method": "eagle3", "model": "d"})
    assert blocking(between_arms(chosen, launches, bare)) is None


def test_an_override_is_shown_beside_the_answer():
    override = {"overrides": [{"gate": "prefixCache", "reason": "one template"}]}
    everywhere = [launch(a, cached(500)) for a in ("incumbent", "candidate-card", "none")]
    found = answer("prefixCache", everywhere, spec(policy=override))
    assert (found.answer, found.reason) == ("Pass", "Overridden")
    assert "PromptsNotUnique" in found.message


COMPARED = {
    "the same facts": ({}, {}, {}),
    "what every launch must share": ({}, {"gpu": "A100"}, {"gpu": True}),
    "what every launch that drafts must share": (
        {}, {"attention_backend": "FLASHINFER"}, {"attentionBackend": True},
    ),
    "a graph mode under policy Report": ({}, {"graph_mode": "PIECEWISE"}, {"graphMode": False}),
    "a graph mode under policy Same": (
        {"policy": {"graphMode": "Same"}}, {"graph_mode": "PIECEWISE"}, {"graphMode": True},
    ),
    "what differs by design": ({}, {"node": "b", "boot_seconds": 9.0, "captured_sizes": [1]}, {}),
    "what is only reported": ({}, {"kv_cache_tokens": 9_000}, {"kvCacheTokens": False}),
    "a fact that one launch does not tell": ({}, {"gpu": None}, {}),
}  # fmt: skip


@pytest.mark.parametrize("claim", COMPARED)
def test_receipts_tell_what_differs_and_what_of_it_is_forbidden(claim):
    policy, facts, expected = COMPARED[claim]
    found = compared(spec(**policy), arms(candidate=launch("candidate-card", **facts)), {"none"})
    assert {each.fact: each.forbidden is not None for each in found} == expected


def test_none_may_differ_where_only_drafting_launches_must_agree():
    found = compared(spec(), arms(none=launch("none", model_runner="V1")), {"none"})
    assert [(each.fact, each.forbidden) for each in found] == [("modelRunner", None)]
    assert found[0].values == {'"V2"': ["incumbent", "candidate-card"], '"V1"': ["none"]}


def test_without_a_counted_launch_of_none_nothing_is_promoted():
    failed = launch("none", [], failed="OutOfMemory at start-up")
    for missing in (None, failed, launch("none", [], void="preempted"), launch("none", [])):
        found = answer("noneMeasured", arms(none=missing))
        assert (found.answer, found.reason) == ("Unknown", "NoneNotMeasured")
    assert "OutOfMemory at start-up" in answer("noneMeasured", arms(none=failed)).message
    override = {"overrides": [{"gate": "noneMeasured", "reason": "known to be slower"}]}
    found = answer("noneMeasured", arms(none=None), spec(policy=override))
    assert (found.answer, found.reason) == ("Pass", "Overridden")


def test_every_answer_is_of_a_known_gate_that_an_override_may_name():
    assert {each.gate for each in between_arms(spec(), arms(), SERVER)} <= GATES
    assert {each.gate for each in between_arms(spec(), [], SERVER)} <= GATES


def test_a_static_arm_in_piecewise_graphs_does_not_break_a_bar_on_graph_modes():
    policy = {"policy": {"graphMode": "Same"}}
    piecewise = launch("piecewise-5", [cell(1, 5), cell(8, 5)], graph_mode="PIECEWISE")
    assert answer("graphMode", arms(piecewise=piecewise), spec(**policy)).answer == "Pass"
    other = launch("constant-5", [cell(1, 5), cell(8, 5)], graph_mode="PIECEWISE")
    assert answer("graphMode", arms(constant=other), spec(**policy)).answer == "Fail"


def test_adaptive_verification_may_run_on_another_runner_and_drafts_what_it_likes():
    varying = [cell(at, None, per_draft=2.4) for at in (1, 8)]
    facts = {"model_runner": "V2", "graph_mode": "FULL", "async_scheduling": False}
    others = {
        "incumbent": launch("incumbent", model_runner="V1"),
        "candidate": launch("candidate-card", model_runner="V1"),
        "none": launch("none", model_runner="V1"),
    }
    launches = arms(**others, adaptive=launch("adaptive", varying, **facts))
    assert blocking(between_arms(spec(), launches, SERVER)) is None
    assert "differs as declared: V2 (adaptive)" in answer("modelRunner", launches).message
    drafts_in_vain = launch("adaptive", [cell(8, None, per_draft=2.4, share=0.01)], **facts)
    assert answer("acceptance", arms(adaptive=drafts_in_vain)).answer == "Fail"


def test_an_incumbent_that_adapts_has_no_plan_to_be_held_against():
    adapts = SERVER.model_copy(
        update={"speculative": {**(SERVER.speculative or {}), "enable_adaptive_verification": True}}
    )
    varying = launch("incumbent", [cell(at, None, per_draft=2.4) for at in (1, 8)])
    found = answer("scheduleInEffect", arms(incumbent=varying), server=adapts)
    assert found.answer == "Pass"
    assert "candidate-card" in found.message
    alone = between_arms(spec(), [varying], adapts)
    assert [(gate.gate, gate.answer) for gate in alone] == [("launches", "Unknown")]
