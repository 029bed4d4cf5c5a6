"""Which cells say something about steps, and why the others do not."""

import pytest

from specschedule.core.cost import Setting
from specschedule.core.evidence import Profile
from specschedule.core.sweep import sweep
from tests.tuner.published import cell

GOOD = cell(8, 3, 0.01)

LEFT_OUT = {
    "a void window": ({"void": "sends lagged"}, "void: sends lagged"),
    "a crossing": ({"profile": Profile(kind="crossing", low=2, high=8)}, "no fixed number"),
    "an open loop": ({"profile": Profile(kind="open", requests_per_second=3)}, "no fixed number"),
    "a K that varied": ({"tokens": None}, "K varied"),
    "a K that no schedule has": ({"tokens": 65}, "tokens is 65"),
    "no output": ({"output_tokens": 0}, "no output tokens"),
    "failed requests": ({"failed": 2}, "2 requests failed"),
    "preempted requests": ({"preemptions": 3}, "3 preemptions"),
    "fewer running than held": ({"batch_size_mean": 5.0}, "8 requests were to be held and 5.0 ran"),
    "fewer in flight than held": (
        {"in_flight_exact": 0.6},
        "8 requests were in flight only 60% of the time",
    ),
    "no draft counters": ({"drafts": None}, "acceptance is unknown"),
    "no accepted tokens": ({"accepted_tokens": None}, "acceptance is unknown"),
    "a drafter that ignores K": (
        {"draft_tokens": 5 * (GOOD.drafts or 0)},
        "K=3 was planned and 5.00 draft tokens were verified",
    ),
    "more accepted than drafted": (
        {"accepted_tokens": 4 * (GOOD.drafts or 0)},
        "accepted of at most",
    ),
}


@pytest.mark.parametrize(("change", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_left_out_with_its_reason(change, reason):
    found = sweep([GOOD, GOOD.model_copy(update=change)])
    assert len(found.schedule) == 1
    (note,) = found.notes
    assert reason in note


def test_a_few_samples_of_the_batch_size_say_nothing_of_a_short_window():
    """Real vLLM, twelve streams in step: the gauge said 9.5 in windows of 1.3 s."""
    short = GOOD.model_copy(
        update={"window_seconds": 1.3, "batch_size_mean": 6.3, "in_flight_exact": 0.9995}
    )
    assert sweep([short]).notes == ()


@pytest.mark.parametrize(("ran", "counts"), [(0.75, True), (0.45, False), (1.2, False)])
def test_a_stream_of_short_answers_may_be_away_when_the_gauge_is_read(ran, counts):
    """Real vLLM, one request of 32 tokens after the other: the gauge said 0.6 to 0.9."""
    cell_of_one = cell(1, 3, 0.03).model_copy(
        update={"window_seconds": 12.0, "batch_size_mean": ran}
    )
    assert len(sweep([GOOD, cell_of_one]).schedule) == 1 + counts


def test_zero_with_drafts_verified_is_no_zero():
    lying = cell(8, 3, 0.01).model_copy(update={"tokens": 0})
    assert "planned without drafts" in sweep([lying]).notes[0]


@pytest.mark.parametrize("tokens", [0, 1, 3, 7])
def test_the_mean_step_comes_back_from_the_counters(tokens):
    (window,) = sweep([cell(8, tokens, 0.0123)]).schedule
    assert window.seconds == pytest.approx(0.0123)
    assert window.setting == Setting(8, tokens)


def test_no_speculation_is_another_path_than_zero():
    found = sweep([cell(8, 0, 0.01, arm="none"), cell(8, 0, 0.011), cell(8, 2, 0.012)])
    assert [w.seconds for w in found.none] == pytest.approx([0.01])
    assert [w.seconds for w in found.schedule] == pytest.approx([0.011, 0.012])


def test_static_windows_stand_in_only_where_nothing_else_was_measured():
    static = cell(8, 2, 0.01, arm="static-2")
    alone = sweep([static])
    assert len(alone.schedule) == 1
    assert "with a schedule present" in alone.notes[0]
    beside = sweep([static, cell(8, 2, 0.012, arm="constant-2")])
    assert [w.cell.arm for w in beside.schedule] == ["constant-2"]
    assert "another code path" in beside.notes[0]


def test_nearly_equal_contexts_are_one():
    cells = [cell(8, 2, 0.01, context=c) for c in (400, 430, 1900, 2000)]
    assert [w.setting.context for w in sweep(cells).schedule] == [415, 415, 1949, 1949]
    planned = sweep(cells, contexts=(400, 1900, 4000))
    assert planned.contexts == (400, 1900)


def test_one_context_is_no_axis():
    assert sweep([cell(8, 2, 0.01, context=c) for c in (400, 430)]).contexts == ()


def test_contexts_that_some_windows_lack_tell_nothing():
    cells = [cell(8, 2, 0.01, context=400), cell(8, 1, 0.01, context=4000), cell(8, 0, 0.01)]
    assert sweep(cells).contexts == ()


def test_a_depth_window_is_a_single_stream():
    deep = GOOD.model_copy(
        update={"profile": Profile(kind="depth", context=6500), "batch_size_mean": 1.0}
    )
    shallow = deep.model_copy(update={"profile": Profile(kind="depth", context=425_000)})
    found = sweep([deep, shallow])
    assert [w.setting for w in found.schedule] == [Setting(1, 3, 6500), Setting(1, 3, 425_000)]


@pytest.mark.parametrize("undrafted", [0, 900, 30_000])
def test_a_step_is_timed_by_output_since_drafts_do_not_tell_all_of_it(undrafted):
    """An answer's first token, and all that a drafter finds nothing for, is in no draft counter."""
    seen = cell(8, 3, 0.01, undrafted=undrafted)
    (window,) = sweep([seen]).schedule
    length = 1 + seen.accepted_tokens / seen.drafts
    rate = seen.output_tokens / seen.window_seconds
    assert 8 * length / window.seconds == pytest.approx(rate)


def test_a_drafter_that_finds_fewer_tokens_than_k_is_believed_and_told():
    short = GOOD.model_copy(update={"draft_tokens": 2 * (GOOD.drafts or 0)})
    found = sweep([GOOD, short])
    assert len(found.schedule) == 2
    (note,) = found.notes
    assert "1 windows drafted fewer tokens than their K" in note
    assert "2.00 at K=3" in note
