"""Gates that the counters of the running engines answer: is the schedule in effect?"""

import pytest

from specschedule.core.target import ServerFacts
from tests.gates.launched import ROWS, answer, arms, cached, candidate, cell, launch, receipt, spec

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


FOUND = {
    "fewer than K": ([cell(1, 5, per_draft=3.1), cell(8, 1, per_draft=0.9)], "HoldsWithNotes"),
    "more than K": ([cell(1, 5, per_draft=3.1), cell(8, 1, per_draft=3.1)], "NotLimited"),
    "nothing": ([cell(1, 5, per_draft=0), cell(8, 1)], "SpeculationOff"),
}


@pytest.mark.parametrize(("cells", "reason"), FOUND.values(), ids=FOUND.keys())
def test_of_a_method_that_finds_its_drafts_only_the_most_can_be_held(cells, reason):
    server = ServerFacts(
        container="server", speculative={"method": "ngram", "num_speculative_tokens": 5}
    )
    found = answer("scheduleInEffect", candidate(*cells), server=server)
    assert found.reason == reason
    assert found.answer == ("Pass" if reason == "HoldsWithNotes" else "Fail")
    if reason == "SpeculationOff":
        assert "ngram finds nothing in these texts" in found.message
