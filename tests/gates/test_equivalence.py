"""The gate on outputs: what is compared, what is tolerated, and what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.equivalence import output_equivalence
from specschedule.core.evidence import Cell, Launch

STEPS = [[1, 8], [16, 22], [1, 4]]
PROMPTS = 34
RIGHT = [f"{n} 4 17" for n in range(PROMPTS)]


def launch(arm, wrong=(), *, number=1, word="99", unit="token", prompts="0a1b", void=None):
    """A launch whose answers differ from the second token on in some prompts."""
    answers = [f"{n} {word} 17" if n in wrong else right for n, right in enumerate(RIGHT)]
    cell = {
        "cell": "equivalence",
        "arm": arm,
        "launch": number,
        "profile": {"kind": "equivalence", "steps": STEPS},
        "windowSeconds": 2.0,
        "offered": PROMPTS,
        "completed": PROMPTS,
        "outputs": {"prompts": prompts, "unit": unit, "answers": answers},
    }
    if void is not None:
        cell["void"] = void
    return Launch(arm=arm, launch=number, round=1, cells=[Cell.model_validate(cell)])


def bare(arm):
    return Launch(arm=arm, launch=1, round=1)


NONE = launch("none")
INCUMBENT = launch("incumbent")
CARD = launch("candidate-card")
LOW, HIGH = range(8), range(8, 30)
"""Prompts that were sent while 1 was in flight, and while 16 were; 4 more follow at 1."""

CASES = {
    "the same everywhere": ([INCUMBENT, CARD], [NONE], "Pass", "Holds"),
    "no relaunch is needed where nothing differs": ([CARD], [NONE], "Pass", "Holds"),
    "one near tie, where relaunches of none never differ": (
        [INCUMBENT, launch("candidate-card", {3})], [NONE, NONE], "Pass", "HoldsWithNotes",
    ),
    "the most that chance explains in a band of 12": (
        [launch("candidate-card", {0, 1, 2})], [NONE, NONE], "Pass", "HoldsWithNotes",
    ),
    "one more than that": (
        [launch("candidate-card", {0, 1, 2, 3})], [NONE, NONE], "Fail", "OutputDiffers",
    ),
    "the same, where many relaunches never differ": (
        [launch("candidate-card", {0, 1})], [NONE] * 6, "Fail", "OutputDiffers",
    ),
    "too many in all, though not in any one band": (
        [launch("candidate-card", {0, 1, 2, 8, 9, 10, 11})], [NONE, NONE],
        "Fail", "OutputDiffers",
    ),
    "relaunches of the incumbent stand in": (
        [INCUMBENT, INCUMBENT, launch("candidate-card", LOW)], [NONE], "Fail", "OutputDiffers",
    ),
    "one prompt, where nothing was launched twice": (
        [INCUMBENT, launch("candidate-card", {3})], [NONE], "Unknown", "NoRelaunchToCompare",
    ),
    "no more than relaunches of none": (
        [launch("candidate-card", {3, 11})], [NONE, launch("none", {9, 20})],
        "Pass", "HoldsWithNotes",
    ),
    "one whole band, where relaunches of none differ a little": (
        [launch("candidate-card", LOW)], [NONE, launch("none", {9, 20})], "Fail", "OutputDiffers",
    ),
    "one launch of six, in one band": (
        [*[CARD] * 5, launch("candidate-card", LOW)], [NONE, NONE], "Fail", "OutputDiffers",
    ),
    "relaunches that hardly agree": (
        [CARD], [NONE, launch("none", range(10))], "Unknown", "OutputNotRepeatable",
    ),
    "an incumbent that says what comes to its mind": (
        [INCUMBENT, launch("incumbent", range(30)), launch("candidate-card", range(30))], [NONE],
        "Unknown", "OutputNotRepeatable",
    ),
    "the incumbent is the faulty one": (
        [launch("incumbent", LOW), launch("incumbent", LOW), CARD], [NONE],
        "Pass", "HoldsWithNotes",
    ),
    "other prompts": (
        [launch("candidate-card", prompts="ffff")], [NONE], "Unknown", "PromptsDiffer",
    ),
    "text against tokens": (
        [launch("candidate-card", unit="character")], [NONE], "Unknown", "PromptsDiffer",
    ),
    "a candidate that was not asked": ([bare("candidate-card")], [NONE], "Unknown", "NotCompared"),
    "one candidate of two that was not asked": (
        [CARD, bare("candidate-next")], [NONE], "Unknown", "NotCompared",
    ),
    "a void window": (
        [launch("candidate-card", void="request 3 has no whole answer")], [NONE],
        "Unknown", "NotCompared",
    ),
    "none was not asked": ([CARD], [bare("none")], "Unknown", "NotCompared"),
    "no none": ([CARD], [], "Unknown", "NotCompared"),
    "no candidate": ([INCUMBENT], [NONE], "Unknown", "NotCompared"),
}  # fmt: skip


@pytest.mark.parametrize("claim", CASES)
def test_outputs_are_held_against_none(claim):
    drafting, without, answer, reason = CASES[claim]
    found = output_equivalence(drafting, without)
    assert (found.answer, found.reason) == (answer, reason), found.message


def test_a_failure_says_how_many_where_and_the_first_differing_token():
    wrong = launch("candidate-card", {2, 4, 5, 6}, number=9)
    said = output_equivalence([INCUMBENT, CARD, wrong], [NONE, NONE]).message
    assert "candidate-card launch 9 in 4 of 12 prompts at 1 in flight" in said
    assert "first in prompt 3, token 2: 99 instead of 4" in said
    assert "2 launches of none differ among each other in 0.0% of them (n = 34)" in said
    assert "by chance may differ up to 3 of 12 at 1 in flight, 4 of 22 at 16 in flight" in said


def test_what_is_tolerated_is_said():
    incumbent = launch("incumbent", LOW)
    said = output_equivalence([incumbent, launch("candidate-card", {5})], [NONE, NONE]).message
    assert "candidate-card launch 1 in 1 of 12 prompts at 1 in flight (first in prompt 6" in said
    assert "incumbent launch 1 in 8 of 12 prompts" in said


def test_texts_are_compared_by_character_and_by_length():
    def texts(arm, *answers):
        each = launch(arm, unit="character")
        cell = each.cells[0]
        outputs = cell.outputs.model_copy(update={"answers": [*answers, *RIGHT[len(answers) :]]})
        return each.model_copy(update={"cells": [cell.model_copy(update={"outputs": outputs})]})

    none = texts("none", "a b", "yes")
    said = output_equivalence([texts("candidate-card", "a  b", "yes")], [none]).message
    assert "character 3:   instead of b" in said
    said = output_equivalence([texts("candidate-card", "a b", "yes!")], [none]).message
    assert "prompt 2, character 4: ! instead of the end" in said


@given(st.sets(st.integers(0, PROMPTS - 1)), st.sets(st.integers(0, PROMPTS - 1), max_size=8))
def test_more_differences_are_never_better(wrong, noise):
    order = ["Pass", "Fail"]
    without = [NONE, launch("none", noise, word="98")]
    less, more = (
        order.index(output_equivalence([launch("candidate-card", some)], without).answer)
        for some in (set(), wrong)
    )
    assert less <= more
    if len(wrong) > PROMPTS // 2 and not noise:
        assert more == 1
