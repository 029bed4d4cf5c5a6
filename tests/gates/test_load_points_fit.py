"""Load points, prompts and windows that the launched servers have room for."""

import pytest

from specschedule.core.evidence import Fit, Outputs, Profile, TooLong, WindowLeftOut
from specschedule.core.gates import between_arms, blocking
from specschedule.core.preflight import load_fits, tables_of
from tests.gates.launched import SAID, SERVER, answer, arms, cell, launch, spec


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
