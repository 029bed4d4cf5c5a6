"""What the self test concludes from a scheduler's page and from the engine's own counters."""

from typing import Any

import pytest

from specschedule.engine.proof import ENOUGH, Proof
from specschedule.engine.selftest import otherwise, output_tokens, uncounted, unproven

COUNTERS = {
    "nothing was drafted at K=0": (0, 0, 0, None),
    "every draft was of K tokens": (3, 9, 27, None),
    "a drafter that at times found fewer": (3, 9, 24, None),
    "something was drafted at K=0": (0, 4, 8, "K=0 was asked for and the engine drafted 2.00"),
    "more was drafted": (1, 9, 36, "K=1 was asked for and the engine drafted 4.00"),
    "once more than asked for": (2, 8, 17, "K=2 was asked for and the engine drafted 2.12"),
    "always fewer": (4, 9, 27, "K=4 was asked for and not seen often enough"),
    "nothing was drafted though K > 0": (2, 0, 0, "the engine drafted 0 times"),
}


@pytest.mark.parametrize("what", COUNTERS)
def test_the_counters_of_one_request_tell_whether_its_k_ran(what: str) -> None:
    k, drafts, draft_tokens, finding = COUNTERS[what]
    found = uncounted(k, drafts, draft_tokens)
    assert found is None if finding is None else finding in str(found)


@pytest.mark.parametrize("k", range(9))
def test_a_request_is_long_enough_though_every_draft_is_accepted(k: int) -> None:
    drafts = (output_tokens(k) - 1) // (k + 1) + 1 if k else 0
    assert k == 0 or drafts - 1 >= ENOUGH
    assert uncounted(k, drafts, k * drafts) is None


BEFORE = {"window": None, "next": 5, "finding": None, "refused": None}
FOLLOWED = {"window": "self-test-2", "finding": None, "refused": None}


def line(tokens: int, window: str = "self-test-2") -> dict[str, Any]:
    return {"window": window, "tokens": tokens}


PAGES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str | None]] = {
    "every step planned it": (FOLLOWED, [line(2), line(2)], None),
    "steps of the window before are not its own": (FOLLOWED, [line(4, "w"), line(2)], None),
    "a step planned another K": (FOLLOWED, [line(2), line(3)], "the scheduler planned [3]"),
    "no step is on record": (FOLLOWED, [], "the scheduler planned no step"),
    "the switch was refused": (
        {"window": "w", "finding": None, "refused": "K=2 is not among them"},
        [],
        "did not switch the table: K=2 is not among them",
    ),
    "a mismatch is told before what followed from it": (
        FOLLOWED | {"finding": "K=2 was planned and 4 drafts were scheduled"},
        [line(2), line(4)],
        "K=2 was planned and 4 drafts were scheduled",
    ),
}


@pytest.mark.parametrize("what", PAGES)
def test_the_page_tells_whether_a_request_was_followed(what: str) -> None:
    after, lines, finding = PAGES[what]
    found = otherwise(2, BEFORE, after, lines)
    assert found is None if finding is None else finding in str(found)


def test_a_k_that_was_not_seen_often_enough_is_named() -> None:
    proof = Proof()
    for _ in range(ENOUGH):
        proof.observe(0, 0)
        proof.observe(2, 2)
    proof.observe(1, 1)
    assert unproven(proof.plain(), [0, 2]) is None
    assert str(unproven(proof.plain(), range(3))).startswith("K=1 was planned and not seen")
    proof.observe(1, 2)
    assert unproven(proof.plain(), [0]) == "K=1 was planned and 2 drafts were scheduled"
