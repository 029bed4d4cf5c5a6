"""The order of a screen: which window a load process measures next, from the cells so far."""

from collections import Counter
from itertools import pairwise

import pytest

from specschedule.core.context_axis import every_k
from specschedule.core.schedule import effective
from specschedule.core.screen import TRIES
from specschedule.core.screening import (
    PROBE,
    REPEATS,
    fixed_arm,
    launch_windows,
    next_window,
    search,
)
from specschedule.core.visit import Visit
from tests.tuner.published import EAGLE3, cell

POINTS = [1, 8, 64]


def visit(arm="probe", **screen):
    plain = {"batchSizes": POINTS, "maxTokens": 5, "maxNumSeqs": 64} | screen
    return Visit.model_validate(
        {
            "run": "7f3a",
            "arm": arm,
            "launch": 1,
            "round": 0,
            "url": "http://127.0.0.1:8000",
            "slo": {"tpot": "40ms"},
            "outputTokens": 128,
            "screen": plain,
        }
    )


def seconds(batch, tokens):
    busy = max(6e-3, 5e-5 * batch * (tokens + 1))
    return busy + (1e-3 + 4e-4 * tokens if tokens else 8e-4)


def measured(of, window, **changes):
    """The cell that a window becomes on an engine that drafts pay for while it is idle."""
    batch, tokens = window.profile.concurrency, window.tokens
    made = cell(batch, tokens, seconds(batch, tokens), EAGLE3, arm=of.arm, context=window.context)
    return made.model_copy(update={"cell": window.cell} | changes)


def carried_out(of, known=()):
    cells = list(known)
    windows = []
    while (window := next_window(of, cells)) is not None:
        windows.append(window)
        cells.append(measured(of, window))
        assert len(cells) < 200
    return windows, cells


@pytest.mark.parametrize("contexts", [[], [400, 4000]])
@pytest.mark.parametrize("arm", ["none", "zero", "constant-3"])
def test_a_launch_takes_the_windows_that_it_is_priced_at(arm, contexts):
    tokens = {"zero": 0, "constant-3": 3}.get(arm)
    of = visit(arm, contexts=contexts, **({} if tokens is None else {"tokens": tokens}))
    windows, _ = carried_out(of)
    wanted = search(of.screen, slo=of.slo, output_tokens=128, prompt_tokens=128)
    assert len(windows) == launch_windows(wanted, arm)
    assert len(windows) < launch_windows(wanted, PROBE)


@pytest.mark.parametrize("limit", [{"maxModelLen": 1000}, {"kvCacheTokens": 2000}])
@pytest.mark.parametrize("arm", ["none", "zero"])
def test_a_launch_ends_though_one_of_its_contexts_is_out_of_reach(arm, limit):
    tokens = {"tokens": 0} if arm == "zero" else {}
    windows, _ = carried_out(visit(arm, contexts=[400, 4000], **tokens, **limit))
    assert {window.context for window in windows} == {400}
    assert set(Counter(window.profile.concurrency for window in windows).values()) == {REPEATS}


def test_a_probe_switches_k_between_windows_and_ends_by_itself():
    windows, cells = carried_out(visit())
    assert {w.tokens for w in windows} >= {0, 1, 2, 5}
    assert len({w.cell for w in windows}) == len(windows)
    switched = sum(a.tokens != b.tokens for a, b in pairwise(windows))
    assert switched > len(windows) / 2
    assert next_window(visit(), cells) is None


def test_the_same_setting_is_never_measured_twice_in_a_row_while_another_waits():
    windows, _ = carried_out(visit())
    pairs = [(w.profile.concurrency, w.tokens) for w in windows]
    again = [a for a, b in pairwise(pairs) if a == b]
    # At the very end a single setting may be left.
    assert len(again) <= 1


def test_a_repeat_of_a_setting_gets_other_prompts():
    windows, _ = carried_out(visit())
    by_setting = Counter((w.profile.concurrency, w.tokens, w.seed) for w in windows)
    assert set(by_setting.values()) == {1}


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_screen_that_was_cut_off_goes_on_as_if_it_had_not_been(cut):
    whole, cells = carried_out(visit())
    windows, _ = carried_out(visit(), cells[:cut])
    assert [w.cell for w in windows] == [w.cell for w in whole[cut:]]


def test_cells_of_earlier_visits_count_like_those_of_this_one():
    _, cells = carried_out(visit())
    done = [c.plain() for c in cells[:6]]
    assert next_window(visit(done=done), []) == next_window(visit(), cells[:6])


@pytest.mark.parametrize(
    ("arm", "screen", "settings"),
    [
        ("none", {}, {(1, 0), (64, 0)}),
        ("constant-3", {"tokens": 3}, {(1, 3), (8, 3), (64, 3)}),
        ("zero", {"tokens": 0}, {(1, 0), (8, 0), (64, 0)}),
        ("constant-3", {"tokens": 3, "maxNumSeqs": 8}, {(1, 3), (8, 3)}),
    ],
)
def test_a_launch_with_one_k_measures_its_points_again_once_all_were_measured(
    arm, screen, settings
):
    windows, _ = carried_out(visit(arm, **screen))
    pairs = [(w.profile.concurrency, w.tokens) for w in windows]
    assert len(pairs) == REPEATS * len(settings)
    for repeat in range(REPEATS):
        assert set(pairs[repeat * len(settings) : (repeat + 1) * len(settings)]) == settings


def test_cells_of_other_launches_do_not_make_a_fixed_one_shorter():
    _, probed = carried_out(visit())
    windows, _ = carried_out(visit("none"), probed)
    assert len(windows) == REPEATS * len((POINTS[0], POINTS[-1]))


def test_a_setting_whose_windows_never_count_is_given_up_and_the_rest_goes_on():
    of, cells = visit(), []
    asked = Counter()
    while (window := next_window(of, cells)) is not None:
        stuck = window.profile.concurrency == 64 and window.tokens == 5
        asked[window.profile.concurrency, window.tokens] += 1
        cells.append(measured(of, window, **({"preemptions": 4} if stuck else {})))
        assert len(cells) < 200
    assert asked[64, 5] == TRIES
    assert len(asked) > 6


def test_a_probe_that_never_drafts_as_asked_ends_the_screen():
    of, cells = visit(), []
    while (window := next_window(of, cells)) is not None:
        # The engine stays at K=5, whatever is asked for.
        cells.append(measured(of, window.model_copy(update={"tokens": 5}), tokens=window.tokens))
        assert len(cells) <= TRIES * 50
    counted = {c.tokens for c in cells if (c.draft_tokens or 0) == 5 * (c.drafts or 0)}
    assert 5 in counted


def test_prompts_are_made_as_long_as_the_context_that_a_window_stands_for():
    window = next_window(visit(contexts=[400, 4000]), [])
    assert window.context in (400, 4000)
    assert window.profile.context == window.context - 64
    assert window.cell.endswith(f"-c{window.context}")


def test_rows_for_a_probe_name_every_k():
    table = effective(every_k(4, 16), max_tokens=4, max_num_seqs=16)
    assert {band.tokens for band in table.bands()} == {0, 1, 2, 3, 4}
    assert fixed_arm(0) == "zero"
    assert fixed_arm(3) == "constant-3"
