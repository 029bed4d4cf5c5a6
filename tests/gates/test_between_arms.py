"""Gates that the running arms answer."""

import pytest

from specschedule.core.evidence import (
    Cell,
    Fit,
    Launch,
    Outputs,
    Profile,
    Receipt,
    TooLong,
    WindowLeftOut,
)
from specschedule.core.gate import GATES
from specschedule.core.gates import between_arms, blocking
from specschedule.core.preflight import load_fits, tables_of
from specschedule.core.receipts import compared
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

ROWS = [[1, 2, 5], [3, 16, 1]]
SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "num_speculative_tokens": 5},
)


def spec(**more):
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"ttft": "500ms"},
            "candidates": [{"name": "card", "schedule": ROWS}],
            "load": {"points": [1, 8], **more.pop("load", {})},
            "bar": {"improve": [{"by": "15%"}]},
            **more,
        }
    )


def receipt(**more):
    facts = {
        "image_id": "sha256:a",
        "engine_version": "0.32.0",
        "gpu": "H100",
        "model_runner": "V2",
        "graph_mode": "FULL_AND_PIECEWISE",
        "captured_sizes": [1, 2, 4, 8, 16, 32, 64, 96],
        "attention_backend": "FLASH_ATTN",
        "async_scheduling": True,
        "kv_cache_tokens": 100_000,
        "log_level_hides_warnings": False,
        "num_speculative_tokens": 5,
        **more,
    }
    return Receipt.model_validate({k: v for k, v in facts.items() if v is not None})


def cell(at, planned, *, per_draft=None, share=0.6, **more):
    """A window of 1000 drafts that behaves as planned, unless told otherwise."""
    drafted = planned if per_draft is None else per_draft
    drafts = 1000 if drafted else 0
    tokens = round(1000 * drafted)
    plain = {
        "cell": f"hold{at}",
        "arm": "x",
        "launch": 1,
        "profile": {"kind": "hold", "concurrency": at},
        "tokens": planned,
        "context": 400,
        "requestTokens": 400,
        "windowSeconds": 30.0,
        "offered": 20,
        "completed": 20,
        "outputTokens": 4000,
        "engineOutputTokens": 4000,
        "drafts": drafts,
        "draftTokens": tokens,
        "acceptedTokens": round(tokens * share),
        "preemptions": 0,
        "prefixCache": {"queries": 1000, "hits": 0},
        **more,
    }
    return Cell.model_validate({k: v for k, v in plain.items() if v is not None})


def launch(arm, cells=None, *, schedule=None, number=1, void=None, failed=None, **facts):
    planned = {"incumbent": (5, 5), "candidate-card": (5, 1)}.get(arm)
    if cells is None:
        cells = (
            [cell(1, planned[0]), cell(8, planned[1])] if planned else [none_cell(1), none_cell(8)]
        )
    if arm == "candidate-card" and schedule is None:
        schedule = ROWS
    return Launch(
        arm=arm, launch=number, round=1, schedule=schedule, receipt=receipt(**facts),
        cells=[*cells, SAID], void=void, failed=failed,
    )  # fmt: skip


SAID = Cell.model_validate(
    {
        "cell": "equivalence",
        "arm": "x",
        "launch": 1,
        "profile": {"kind": "equivalence", "steps": [[1, 2]]},
        "windowSeconds": 1.0,
        "offered": 2,
        "completed": 2,
        "outputs": {"prompts": "0a1b", "unit": "token", "answers": ["17 4", "23"]},
    }
)
"""What every launch says when it is asked for its outputs."""


def none_cell(at):
    return cell(at, 0, drafts=None, draftTokens=None, acceptedTokens=None)


def arms(**overrides):
    """The three arms of a run that is in order, with launches replaced by name."""
    plain = {
        "incumbent": launch("incumbent"),
        "candidate": launch("candidate-card"),
        "none": launch("none", async_scheduling=True),
        **overrides,
    }
    return [each for each in plain.values() if each is not None]


def answer(gate, launches, spec_=None, server=SERVER):
    found = {each.gate: each for each in between_arms(spec_ or spec(), launches, server)}
    return found[gate]


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


def test_kv_sizes_may_differ_where_the_load_fits_the_smallest():
    smaller = launch("candidate-card", kv_cache_tokens=5_000)
    assert answer("kvCache", arms(candidate=smaller)).reason == "DiffersReported"
    silent = launch("candidate-card", kv_cache_tokens=None)
    assert answer("kvCache", arms(candidate=silent)).answer == "Unknown"


def test_load_points_beyond_the_smallest_kv_cache_are_left_out_and_named():
    climbed = SAID.model_copy(
        update={
            "cell": "climbed",
            "profile": Profile(kind="equivalence", steps=[[1, 8], [8, 12]]),
            "outputs": Outputs(prompts="other", unit="token", answers=["17 5", "24"]),
            "preemptions": 7,
        }
    )
    preempted = [cell(1, 5), cell(8, 1, preemptions=7, engineOutputTokens=9000), climbed]
    tiny = arms(candidate=launch("candidate-card", preempted, kv_cache_tokens=3_000))
    found = answer("kvCache", tiny)
    assert (found.answer, found.reason) == ("Pass", "PointsLeftOut")
    assert "8 in flight of 400 tokens do not fit the smallest KV cache, 3000" in found.message
    assert blocking(between_arms(spec(), tiny, SERVER)) is None, "its windows do not count"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"bar": {"improve": [{"by": "15%", "at": [8]}]}}, "the bar names 8"),
        (
            {"bar": {"improve": [{"by": "15%"}], "protect": [{"at": [1, 8]}]}},
            "the bar names 8",
        ),
        ({"load": {"points": [8]}}, "no load point is left"),
    ],
)
def test_a_load_point_that_the_answer_needs_is_not_left_out(asked, told):
    tiny = arms(candidate=launch("candidate-card", kv_cache_tokens=3_000))
    found = answer("kvCache", tiny, spec_=spec(**asked))
    assert (found.answer, found.reason) == ("Fail", "BeyondKvCache")
    assert told in found.message


PROMPTS = {"load": {"prompts": {"configMap": "chat-prompts"}}}
CODE = {"bar": {"improve": [{"by": "15%", "category": "code"}]}}
ALL_FIT = Fit(max_model_len=8192)
UNCOUNTED = Fit(max_model_len=8192, not_counted="POST /tokenize answers HTTP 404: none")


def shorter(limit=8192, **left_out):
    """What a server had no room for: a number of 10 prompts by category."""
    return Fit(
        max_model_len=limit,
        prompts=[
            TooLong(category=name, left_out=n, of=10, longest=9000) for name, n in left_out.items()
        ],
        windows=[
            WindowLeftOut(cell=f"r1-hold8-{name}-s1", longest=9000)
            for name, n in left_out.items()
            if n == 10
        ],
    )


ROOM = {
    # Claim: more of the spec, what each arm's server had no room for, failed requests of its
    # candidate; then the answer, its reason and its words.
    "every prompt fits": (
        {}, ALL_FIT, ALL_FIT, 0, "Pass", "Holds", "every request fits max_model_len 8192",
    ),
    "every arm left the same prompts out": (
        {}, shorter(code=3), shorter(code=3), 0, "Pass", "PromptsLeftOut",
        "no room for 3 of 10 prompts of category code (requests of up to 9000 tokens): left out",
    ),
    "an arm's server has room for less": (
        {}, shorter(code=3), shorter(4096, code=5), 0, "Fail", "ArmsNotComparable",
        "max_model_len 4096 has no room for 5 of 10 prompts",
    ),
    "one arm left prompts out and the other none": (
        {}, ALL_FIT, shorter(code=3), 0, "Fail", "ArmsNotComparable", "candidate-card launch 1",
    ),
    "the bar names a category of which some are left": (
        CODE, shorter(code=3, prose=10), shorter(code=3, prose=10), 0, "Pass", "PromptsLeftOut",
        "10 of 10 prompts of category prose",
    ),
    "the bar names a category of which nothing is left": (
        CODE, shorter(code=10), shorter(code=10), 0, "Fail", "BeyondModelLength",
        "the bar names category code, of which no prompt is left",
    ),
    "no server counts, and no request failed": (
        {}, UNCOUNTED, UNCOUNTED, 0, None, None, None,
    ),
    "a server does not count, and requests failed there": (
        {}, ALL_FIT, UNCOUNTED, 2, "Unknown", "PromptsNotCounted", "4 of their requests failed",
    ),
    "a server does not count, and the other left prompts out": (
        {}, shorter(code=3), UNCOUNTED, 0, "Unknown", "PromptsNotCounted", "others left prompts",
    ),
    "an earlier version looked at nothing, and requests failed": (
        {}, None, None, 2, "Unknown", "PromptsNotCounted", "nobody looked",
    ),
    "an earlier version looked at nothing, and none failed": ({}, None, None, 0, None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("claim", ROOM)
def test_every_arm_sends_the_same_prompts_and_those_that_the_bar_needs(claim):
    more, incumbent, candidate, failed, verdict, reason, said = ROOM[claim]
    loaded = launch(
        "candidate-card",
        [cell(at, k, completed=20 - failed, failed=failed) for at, k in ((1, 5), (8, 1))],
    )
    launches = arms(
        incumbent=launch("incumbent").model_copy(update={"fit": incumbent}),
        candidate=loaded.model_copy(update={"fit": candidate}),
        none=launch("none").model_copy(update={"fit": incumbent}),
    )
    answers = {each.gate: each for each in between_arms(spec(**PROMPTS, **more), launches, SERVER)}
    found = answers.get("load")
    assert (found and found.answer, found and found.reason) == (verdict, reason)
    assert said is None or said in found.message


def test_a_run_ends_at_its_first_launch_where_nothing_is_left_to_measure():
    fit = shorter(code=10).model_copy(update={"nothing_left": True})
    void = launch("incumbent", [], void="BadPlan: nothing").model_copy(update={"fit": fit})
    (found,) = between_arms(spec(**PROMPTS), [void], SERVER)
    assert (found.gate, found.answer, found.reason) == ("load", "Fail", "BeyondModelLength")
    assert "10 of 10 prompts of category code" in found.message
    assert "nothing is left to measure; ask for shorter answers" in found.message


def test_what_was_unknown_of_the_load_before_any_pod_is_not_answered_by_lengths():
    deep = {"candidates": [{"name": "card", "schedule": [[1, 300, 5], [301, 1024, 1]]}]}
    asked = spec(load={"points": [1, 512], **PROMPTS["load"]}, **deep)
    server = SERVER.model_copy(update={"max_num_seqs": 256})
    before = load_fits(asked, server, tables_of(asked, server))
    assert before.reason == "BatchLimitNotGiven"
    launches = [each.model_copy(update={"fit": shorter(code=3)}) for each in arms()]
    assert "load" not in {each.gate for each in between_arms(asked, launches, server)}


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


def candidate(*cells, **more):
    return arms(candidate=launch("candidate-card", list(cells), **more))


EFFECT = {
    "as planned": ([cell(1, 5), cell(8, 1)], "Pass", "Holds"),
    "within the tolerance": (
        [cell(1, 5, per_draft=4.9), cell(8, 1, per_draft=1.1)],
        "Pass",
        "Holds",
    ),
    "not limited at load": ([cell(1, 5), cell(8, 1, per_draft=5)], "Fail", "NotLimited"),
    "off by accident": ([cell(1, 5, per_draft=0), cell(8, 1)], "Fail", "SpeculationOff"),
    "too few at low load": (
        [cell(1, 5), cell(12, 1), cell(2, 5, per_draft=0.4)],
        "Fail",
        "DraftsShort",
    ),
    "prefills flip K near a boundary": (
        [cell(1, 5), cell(2, 5, per_draft=3.4)],
        "Pass",
        "HoldsWithNotes",
    ),
    "no counters": (
        [cell(1, 5, drafts=None), cell(8, 1, draftTokens=None)],
        "Unknown",
        "NoDraftCounters",
    ),
    "void windows tell nothing": (
        [cell(1, 5, per_draft=0, void="lag"), cell(8, 1, void="lag")],
        "Unknown",
        "NoDraftCounters",
    ),
}


@pytest.mark.parametrize(("cells", "verdict", "reason"), EFFECT.values(), ids=EFFECT.keys())
def test_drafted_tokens_are_held_against_the_plan(cells, verdict, reason):
    found = answer("scheduleInEffect", candidate(*cells))
    assert (found.answer, found.reason) == (verdict, reason)


OFF = [[1, 2, 5], [3, 16, 0]]


def test_off_on_purpose_is_told_from_off_by_accident_and_needs_the_control_without_speculation():
    on_purpose = candidate(cell(1, 5), cell(8, 0), schedule=OFF)
    assert answer("scheduleInEffect", on_purpose).answer == "Pass"
    still_on = candidate(cell(1, 5), cell(8, 0, per_draft=5), schedule=OFF)
    assert answer("scheduleInEffect", still_on).reason == "NotLimited"
    alone = [each for each in on_purpose if each.arm != "none"]
    found = answer("scheduleInEffect", alone)
    assert (found.answer, found.reason) == ("Unknown", "NoControlForZero")


def test_a_schedule_that_the_engine_switched_off_fails_whatever_was_drafted():
    off = candidate(
        cell(1, 5), cell(8, 1), notes=["ScheduleDisabled: Disabling num_speculative_tokens_per_ba"]
    )
    assert answer("scheduleInEffect", off).reason == "SwitchedOff"


def test_a_schedule_other_than_the_launched_one_fails_and_another_spelling_does_not():
    other = candidate(cell(1, 5), cell(8, 1), schedule=ROWS)
    told = {"notes": None}
    assert answer("scheduleInEffect", other).answer == "Pass"
    for rows, expected in (([[1, 2, 5], [3, 8, 1]], "Pass"), ([[1, 16, 5]], "Fail")):
        facts = receipt(**told).model_copy(update={"schedule": rows})
        changed = [
            each.model_copy(update={"receipt": facts}) if each.arm == "candidate-card" else each
            for each in other
        ]
        assert answer("scheduleInEffect", changed).answer == expected


def test_acceptance_below_the_floor_fails_and_nothing_drafted_is_not_available():
    bad = candidate(cell(1, 5, share=0.004), cell(8, 1, share=0.004))
    found = answer("acceptance", bad)
    assert (found.answer, found.reason) == ("Fail", "AcceptanceBelowFloor")
    assert "serve without speculation" in found.message
    zero = arms(zero=launch("zero", [cell(1, 0), cell(8, 0)], schedule=[[1, 16, 0]]))
    found = answer("acceptance", zero)
    assert found.answer == "Pass"
    assert "zero n/a" in found.message


def test_acceptance_that_falls_after_a_zero_spell_is_drafter_state_lost():
    lost = candidate(cell(1, 5, share=0.7), cell(8, 0), cell(1, 5, share=0.15), schedule=OFF)
    found = answer("drafterState", lost)
    assert (found.answer, found.reason) == ("Fail", "DrafterStateLost")
    assert "70% before, 15% after" in found.message
    kept = candidate(cell(1, 5, share=0.7), cell(8, 0), cell(1, 5, share=0.66), schedule=OFF)
    assert answer("drafterState", kept).answer == "Pass"
    prose = cell(1, 5, share=0.15).model_copy(update={"category": "prose"})
    other = candidate(
        cell(1, 5, share=0.7), cell(8, 0), prose, cell(1, 5, share=0.66), schedule=OFF
    )
    assert answer("drafterState", other).answer == "Pass", "another text, not another state"
    assert answer("drafterState", arms()).answer == "NotApplicable"


def cached(hits):
    return [
        cell(at, planned, prefixCache={"queries": 1000, "hits": hits})
        for at, planned in ((1, 5), (8, 1))
    ]


def test_prefix_cache_hits_must_be_as_declared_and_alike():
    apart = candidate(*cached(910))
    assert answer("prefixCache", apart).reason == "ArmsNotComparable"
    warm = {"load": {"prefixCache": "Warm"}}
    assert answer("prefixCache", arms(), spec(**warm)).reason == "PrefixCacheCold"
    everywhere = [launch(a, cached(500)) for a in ("incumbent", "candidate-card", "none")]
    assert answer("prefixCache", everywhere).reason == "PromptsNotUnique"
    assert answer("prefixCache", everywhere, spec(**warm)).answer == "Pass"
    silent = candidate(cell(1, 5, prefixCache=None), cell(8, 1, prefixCache=None))
    assert answer("prefixCache", silent).answer == "Unknown"


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


PARTIAL = {
    "no draft counters at one point": cell(8, 1, drafts=None),
    "no planned tokens at one point": cell(8, None, per_draft=1),
}


@pytest.mark.parametrize("window", PARTIAL.values(), ids=PARTIAL.keys())
def test_draft_counters_at_some_points_only_do_not_pass(window):
    found = answer("scheduleInEffect", candidate(cell(1, 5), window))
    assert (found.answer, found.reason) == ("Unknown", "NoDraftCounters")
    assert "candidate-card launch 1 at 8 in flight" in found.message
    elsewhere = {"bar": {"improve": [{"by": "15%", "at": [1]}]}}
    found = answer("scheduleInEffect", candidate(cell(1, 5), window), spec(**elsewhere))
    assert found.answer == "Pass"


def test_a_k_that_varies_by_context_is_a_reason_for_no_planned_tokens():
    rows = [
        [1, 2, 1, 2000, 5],
        [1, 2, 2001, 9999, 5],
        [3, 16, 1, 2000, 1],
        [3, 16, 2001, 9999, 5],
    ]
    found = answer(
        "scheduleInEffect", candidate(cell(1, 5), cell(8, None, per_draft=3), schedule=rows)
    )
    assert (found.answer, found.reason) == ("Pass", "HoldsWithNotes")
    assert "at 8 in flight: K varies by context" in found.message


def test_prefix_counters_at_some_points_only_do_not_pass():
    found = answer("prefixCache", candidate(cell(1, 5), cell(8, 1, prefixCache=None)))
    assert (found.answer, found.reason) == ("Unknown", "NoPrefixCounters")
    assert "candidate-card launch 1 at 8 in flight" in found.message


OUTPUT = {
    "alike": (4000, "Pass", "Holds"),
    "within a twentieth": (4200, "Pass", "Holds"),
    "another client on the server": (5000, "Fail", "EngineCountersDisagree"),
    "answers that the engine never gave": (3000, "Fail", "EngineCountersDisagree"),
}


@pytest.mark.parametrize(("generated", "verdict", "reason"), OUTPUT.values(), ids=OUTPUT.keys())
def test_tokens_received_are_held_against_the_engines_own_count(generated, verdict, reason):
    found = answer(
        "engineCounters", candidate(cell(1, 5), cell(8, 1, engineOutputTokens=generated))
    )
    assert (found.answer, found.reason) == (verdict, reason)
    assert (
        verdict == "Pass" or "candidate-card launch 1 at 8 in flight, cell hold8" in found.message
    )


def test_tokens_in_flight_at_the_edges_of_a_short_window_may_differ():
    short = cell(8, 1, outputTokens=200, engineOutputTokens=224)
    assert answer("engineCounters", candidate(cell(1, 5), short)).answer == "Pass"
    beyond = cell(8, 1, outputTokens=200, engineOutputTokens=225)
    assert answer("engineCounters", candidate(cell(1, 5), beyond)).answer == "Fail"


def test_time_in_which_the_load_was_not_as_planned_explains_its_share():
    some = {"outputTokens": 3700, "engineOutputTokens": 4000}
    explained = candidate(cell(1, 5), cell(8, 1, inFlightExact=0.9, **some))
    assert answer("engineCounters", explained).answer == "Pass"
    exact = candidate(cell(1, 5), cell(8, 1, inFlightExact=1.0, **some))
    assert answer("engineCounters", exact).answer == "Fail"


def test_an_arm_without_the_engines_own_count_is_unknown():
    silent = candidate(cell(1, 5, engineOutputTokens=None), cell(8, 1, engineOutputTokens=None))
    found = answer("engineCounters", silent)
    assert (found.answer, found.reason) == ("Unknown", "NoEngineCounters")
    assert "candidate-card" in found.message


NEAR = {
    "mean 3.4 at 2 clients": ([[1, 2, 4], [3, 16, 0]], 2, 4, 3.4, "HoldsWithNotes"),
    "another K in most drafts": ([[1, 2, 5], [3, 16, 1]], 2, 5, 2.9, "DraftsShort"),
    "the neighbour's K throughout": ([[1, 2, 5], [3, 16, 1]], 2, 5, 1.0, "DraftsShort"),
    "the higher neighbour's K throughout": ([[1, 2, 5], [3, 16, 1]], 3, 1, 5.0, "NotLimited"),
    "some drafts at the higher K": ([[1, 2, 5], [3, 16, 1]], 3, 1, 2.5, "HoldsWithNotes"),
    "a K=0 band that drafts throughout": ([[1, 2, 4], [3, 16, 0]], 3, 0, 4.0, "NotLimited"),
}


@pytest.mark.parametrize(("rows", "at", "k", "mean", "reason"), NEAR.values(), ids=NEAR.keys())
def test_a_neighbouring_k_explains_fewer_than_half_of_the_drafts(rows, at, k, mean, reason):
    window = cell(at, k, per_draft=mean)
    filled = [cell(point, rows[0][2] if point == 1 else rows[1][2]) for point in (1, 8)]
    found = answer("scheduleInEffect", candidate(*filled, window, schedule=rows))
    assert found.reason == reason
    assert found.answer == ("Pass" if reason == "HoldsWithNotes" else "Fail")


def test_a_few_drafts_in_a_band_of_k0_are_noted():
    few = cell(3, 0, drafts=400, draftTokens=1600, acceptedTokens=960)
    rows = [[1, 2, 4], [3, 16, 0]]
    found = answer("scheduleInEffect", candidate(cell(1, 4), cell(8, 0), few, schedule=rows))
    assert (found.answer, found.reason) == ("Pass", "HoldsWithNotes")


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
