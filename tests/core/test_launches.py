"""One launch: what is recorded, whose fault an end is, and what holds it up."""

import pytest

from specschedule.core import launches
from specschedule.core.decision import as_launch
from specschedule.core.evidence import Cell, DeviceStep, DeviceTimes, Fit, TooLong
from specschedule.core.launches import AGREES, check_counts, next_step
from specschedule.core.observed import (
    MetricsFacts,
    PodFacts,
    RecordTrial,
    StartLaunch,
    StartVisit,
    StopLaunch,
    StopVisit,
    TrialFacts,
    TrialSpec,
    TrialStatus,
    VisitFacts,
)
from specschedule.core.spec import Slo
from specschedule.core.visit import (
    CellClosed,
    Fitted,
    Screen,
    Visit,
    VisitEnded,
    VisitFailed,
    Warmed,
    Window,
)

UP = MetricsFacts(url="http://p", available=True)
DOWN = MetricsFacts(url="http://p", available=False, message="connection refused")
NOW = 2000.0
CELL = Cell.model_validate(
    {
        "cell": "r1-hold8",
        "arm": "candidate-card",
        "launch": 2,
        "profile": {"kind": "hold", "concurrency": 8},
        "windowSeconds": 10,
        "offered": 22,
        "completed": 21,
        "failed": 1,
        "good": 20,
    }
)
COUNTED = {"r1-hold8": {"good": 20.0, "slow": 1.0, "failed": 1.0}}


def trial(pod=None, visit=None, scraped=None, **status):
    return TrialFacts(
        name="chat-1",
        spec=TrialSpec(
            run_id="run1",
            arm="candidate-card",
            launch=2,
            round=1,
            position=2,
            visit=Visit(
                run="run1",
                arm="candidate-card",
                launch=2,
                round=1,
                url="http://pending",
                windows=[Window(cell="r1-hold8", profile=CELL.profile)],
                slo=Slo(ttft=0.5),
            ),
            template_hash="t",
            bar_digest="b",
        ),
        status=TrialStatus(**status),
        pod=pod,
        visit=visit,
        scraped=scraped,
    )


def pod(phase="Ready", **more):
    facts = {"phase": phase, "created_at": 1000.0, "url": "http://10.0.0.9:8000", **more}
    return PodFacts(**facts)


def visit(phase="Running", events=(), message=""):
    return VisitFacts(phase=phase, created_at=1500.0, events=list(events), message=message)


def step(of, metrics=UP, now=NOW):
    return next_step(of, metrics, gpus=2, now=now)


STARTED = "1970-01-01T00:16:40Z"


def test_a_planned_trial_gets_its_pod_only_when_prometheus_answers():
    assert step(trial()).actions == [StartLaunch(trial="chat-1")]
    held = step(trial(), DOWN)
    assert (held.actions, held.held, held.waiting) == ([], True, "MetricsUnavailable")
    assert "connection refused" in held.message


def done(compiled_at, **cell):
    """A visit that has ended, in whose time the engine compiled something."""
    plain = CELL.plain() | {"startedAt": "1970-01-01T00:26:40Z"} | cell
    closed = CellClosed(cell=Cell.model_validate(plain))
    over = visit("Succeeded", [closed, VisitEnded(scraped_at=[1950.0])])
    return step(trial(pod(compiled_at=compiled_at), over, COUNTED, started_at=STARTED, visits=1))


CROSSING = {"kind": "crossing", "low": 2, "high": 8, "boundary": 4, "periodSeconds": 5}
COMPILED = {
    "before the window": ([1599.0], {}, "Recording"),
    "in the window": ([1604.0], {}, "VisitAgain"),
    "after the window": ([1611.0], {}, "Recording"),
    "in a crossing, which shows first-use costs": ([1604.0], {"profile": CROSSING}, "Recording"),
    "in a window of which the log is not known": (None, {}, "Recording"),
}


@pytest.mark.parametrize("claim", COMPILED)
def test_a_steady_window_in_which_the_engine_compiled_is_measured_again(claim):
    compiled_at, cell, waiting = COMPILED[claim]
    found = done(compiled_at, **cell)
    assert found.waiting == waiting
    assert found.held == (compiled_at is None)
    assert bool(found.actions) == (compiled_at is not None)


HELD = {
    "nearly all the time": ({"inFlightExact": 0.95}, "Recording"),
    "too short a time": ({"inFlightExact": 0.6, "failed": 0, "completed": 22}, "VisitAgain"),
    "too short a time, but requests failed": ({"inFlightExact": 0.6}, "Recording"),
    "a time that nobody kept": ({}, "Recording"),
}


@pytest.mark.parametrize("claim", HELD)
def test_a_window_that_did_not_hold_its_load_is_measured_again(claim):
    cell, waiting = HELD[claim]
    found = done([], **cell)
    assert found.waiting == waiting
    if waiting == "VisitAgain":
        assert "8 requests were in flight only 60% of the time" in found.message


def test_the_start_is_recorded_so_that_a_pod_deleted_later_is_known_to_have_existed():
    recorded = step(trial(pod("Pending")))
    (record,) = recorded.actions
    assert isinstance(record, RecordTrial)
    assert record.status.started_at == STARTED
    gone = step(trial(None, started_at=STARTED))
    assert gone.actions[0].status.void is not None


def test_the_schedulers_words_are_passed_on_while_waiting():
    waiting = step(
        trial(
            pod(
                "Pending", reason="Unschedulable", message="0/1 nodes: Insufficient nvidia.com/gpu"
            ),
            started_at=STARTED,
        )
    )
    assert (waiting.waiting, waiting.held, waiting.actions) == ("Unschedulable", True, [])
    assert "Insufficient nvidia.com/gpu" in waiting.message


def test_an_image_that_stays_unpullable_is_the_arms_failure():
    seen = pod("Pending", reason="ImagePull", message='image "x:y" not found')
    soon = step(trial(seen, started_at=STARTED), now=1000.0 + 60)
    assert soon.actions == []
    late = step(trial(seen, started_at=STARTED), now=1000.0 + 121)
    assert late.actions[0].status.failed == 'ImagePull: image "x:y" not found'
    assert late.actions[1] == StopLaunch(trial="chat-1")


def test_an_image_of_ours_that_stays_unpullable_is_not_the_arms_failure():
    seen = pod("Pending", reason="NotDelivered", message="our image is not there")
    assert step(trial(seen, started_at=STARTED), now=1000.0 + 60).actions == []
    late = step(trial(seen, started_at=STARTED), now=1000.0 + 121)
    assert late.actions[0].status.void == "NotDelivered: our image is not there"
    assert late.actions[0].status.failed is None


def test_a_ready_pod_is_visited_at_its_own_address_and_the_visit_is_counted_first():
    record, start = step(trial(pod(ready_at=1400.0), started_at=STARTED)).actions
    assert record.status.visits == 1
    assert isinstance(start, StartVisit)
    assert (start.visit.url, start.visit.visit) == ("http://10.0.0.9:8000", 1)


@pytest.mark.parametrize(
    ("reason", "void"),
    [
        ("Preempted", True),
        ("Evicted", True),
        ("NodeLost", True),
        ("Deleted", True),
        ("NotDelivered", True),
        ("Exited", False),
        ("OutOfMemory", False),
    ],
)
def test_who_is_to_blame_for_a_pods_end(reason, void):
    ended = step(trial(pod("Ended", reason=reason, message="last words"), started_at=STARTED))
    status = ended.actions[0].status
    assert (status.void is not None, status.failed is not None) == (void, not void)
    assert "last words" in (status.void or status.failed)
    assert status.ended_at is not None


def test_samples_taken_before_a_death_under_load_are_discarded():
    dead = trial(
        pod("Ended", reason="Exited", message="RuntimeError: size 5 vs 7", ready_at=1400.0),
        visit("Running", [CellClosed(cell=CELL)]),
        started_at=STARTED,
        cells=[CELL],
    )
    record, stop_visit, stop_launch = step(dead).actions
    assert record.status.cells == []
    assert "under load" in record.status.failed
    assert (stop_visit, stop_launch) == (
        StopVisit(trial="chat-1"),
        StopLaunch(trial="chat-1"),
    )


def test_cells_are_recorded_as_they_close_and_only_when_there_are_new_ones():
    running = visit("Running", [CellClosed(cell=CELL)])
    first = step(trial(pod(), running, started_at=STARTED, visits=1))
    assert first.actions[0].status.cells == [CELL]
    again = step(trial(pod(), running, started_at=STARTED, visits=1, cells=[CELL]))
    assert again.actions == []


def test_the_warm_up_is_recorded_apart_from_what_counts():
    warmed = Warmed(seconds=41.5, steady=False)
    running = visit("Running", [warmed, CellClosed(cell=CELL)])
    so_far = step(trial(pod(), running, started_at=STARTED, visits=1)).actions[0].status
    ended = visit("Succeeded", [warmed, CellClosed(cell=CELL), VisitEnded(scraped_at=[1.0])])
    over = step(trial(pod(), ended, COUNTED, started_at=STARTED, visits=1)).actions[0].status
    for status in (so_far, over):
        assert (status.warm_up_seconds, status.warm_up_steady) == (41.5, False)
        assert status.cells == [CELL]


FIT = Fit(
    max_model_len=8192,
    prompts=[TooLong(category="code", left_out=3, of=64, longest=9000)],
)


def test_what_the_server_had_no_room_for_is_recorded_and_is_evidence():
    said = [Fitted(fit=FIT), CellClosed(cell=CELL)]
    so_far = step(trial(pod(), visit("Running", said), started_at=STARTED, visits=1))
    over = visit("Succeeded", [*said, VisitEnded(scraped_at=[1.0])])
    ended = step(trial(pod(), over, COUNTED, started_at=STARTED, visits=1))
    for status in (so_far.actions[0].status, ended.actions[0].status):
        assert status.fit == FIT
        again = TrialStatus.model_validate(status.plain())
        assert as_launch(trial(**dict(again))).fit == FIT


def test_a_plan_of_which_nothing_was_left_keeps_the_word_why():
    fit = FIT.model_copy(update={"nothing_left": True})
    said = [Fitted(fit=fit), VisitFailed(reason="BadPlan", message="nothing is left to measure")]
    (record, *_) = step(trial(pod(), visit("Failed", said), started_at=STARTED, visits=1)).actions
    assert record.status.fit == fit
    assert record.status.void == "BadPlan: nothing is left to measure", "no second visit helps"


def test_a_trial_of_an_earlier_version_says_nothing_of_room():
    assert TrialStatus.model_validate({"startedAt": STARTED}).fit is None


def test_an_ended_visit_is_recorded_before_anything_is_deleted():
    ended = visit("Succeeded", [CellClosed(cell=CELL), VisitEnded(scraped_at=[1.0])])
    record, *deletes = step(trial(pod(), ended, COUNTED, started_at=STARTED, visits=1)).actions
    assert record.status.check == AGREES
    assert record.status.cells == [CELL]
    assert record.status.gpu_seconds == 2 * 1000.0
    assert deletes == [StopVisit(trial="chat-1"), StopLaunch(trial="chat-1")]


def test_without_prometheus_an_ended_visit_waits_with_its_pods_kept():
    ended = visit("Succeeded", [CellClosed(cell=CELL), VisitEnded()])
    held = step(trial(pod(), ended, None, started_at=STARTED, visits=1), DOWN)
    assert (held.actions, held.held) == ([], True)


def test_a_lost_log_means_the_visit_is_done_again_and_no_cell_of_it_survives():
    lost = visit("Failed", message="log lost")
    record, stop = step(trial(pod(), lost, started_at=STARTED, visits=1, cells=[CELL])).actions
    assert record.status.cells == []
    assert stop == StopVisit(trial="chat-1")


def test_after_three_visits_a_silent_server_is_blamed_and_a_missed_scrape_is_not():
    silent = visit("Failed", [VisitFailed(reason="Stalled", message="no token for 60 s")])
    blamed = step(trial(pod(), silent, started_at=STARTED, visits=3))
    assert blamed.actions[0].status.failed == "Stalled: no token for 60 s"
    unseen = visit("Failed", [VisitFailed(reason="NotScraped", message="nobody scraped :9100")])
    excused = step(trial(pod(), unseen, started_at=STARTED, visits=3))
    assert excused.actions[0].status.failed is None
    assert "NotScraped" in excused.actions[0].status.void


def test_a_window_that_must_not_count_is_measured_again_and_at_last_voids_the_launch():
    void = CELL.model_copy(update={"void": "send lag p99 6.5 ms"})
    ended = visit("Succeeded", [CellClosed(cell=void), VisitEnded()])
    record, stop = step(trial(pod(), ended, {}, started_at=STARTED, visits=1)).actions
    assert (record.status.ended_at, stop) == (None, StopVisit(trial="chat-1"))
    last = step(trial(pod(), ended, {}, started_at=STARTED, visits=3)).actions[0].status
    assert last.void == "no window counts: send lag p99 6.5 ms"
    assert last.cells == []


COUNTS = {
    "equal counters agree": (COUNTED, AGREES),
    "a cell that Prometheus never saw": (
        {},
        "cell r1-hold8: Prometheus has no counters of it; 0 of 1 windows have series: "
        'query returned no series: specschedule_requests_total{run="run1"}',
    ),
    "one good request more": (
        {"r1-hold8": {"good": 21.0, "slow": 1.0, "failed": 1.0}},
        "cell r1-hold8: the record has 20 good requests, Prometheus 21.0",
    ),
    "an outcome missing": (
        {"r1-hold8": {"good": 20.0, "slow": 1.0}},
        "cell r1-hold8: the record has 1 failed requests, Prometheus none",
    ),
}


@pytest.mark.parametrize("claim", COUNTS)
def test_counters_and_records(claim):
    scraped, want = COUNTS[claim]
    unseen = 'query returned no series: specschedule_requests_total{run="run1"}'
    assert check_counts([CELL], scraped, unseen) == want


MISSED = {
    "none of the last scrapes": {},
    "the last scrapes, so that the counters are old": {
        "r1-hold8": {"good": 12.0, "slow": 1.0, "failed": 0.0}
    },
}


@pytest.mark.parametrize("what", MISSED)
def test_a_prometheus_that_missed_scrapes_is_asked_again_and_then_measured_for_again(what):
    ended = visit("Succeeded", [CellClosed(cell=CELL), VisitEnded(scraped_at=[NOW - 3])])
    of = trial(pod(), ended, MISSED[what], started_at=STARTED, visits=1)
    soon = step(of)
    assert (soon.actions, soon.waiting) == ([], "Measuring")
    record, stop = step(of, now=NOW + 10).actions
    assert (record.status.ended_at, stop) == (None, StopVisit(trial="chat-1"))
    last = step(trial(pod(), ended, MISSED[what], started_at=STARTED, visits=3), now=NOW + 10)
    assert last.actions[0].status.check not in (None, AGREES)


def test_counters_above_the_record_are_no_missed_scrape():
    above = {"r1-hold8": {"good": 21.0, "slow": 0.0, "failed": 0.0}}
    ended = visit("Succeeded", [CellClosed(cell=CELL), VisitEnded(scraped_at=[NOW - 1])])
    record = step(trial(pod(), ended, above, started_at=STARTED, visits=1)).actions[0]
    assert record.status.check not in (None, AGREES)


def test_a_void_cell_needs_no_counters():
    void = CELL.model_copy(update={"void": "send lag"})
    assert check_counts([void], {}) == AGREES


FINDING = "K=2 was planned and 4 drafts were scheduled"
FOUND_OUT = {
    "after a visit that ended well": [VisitEnded()],
    "after one that failed for another reason": [VisitFailed(reason="Stalled", message="silent")],
}


def screening(seen, of):
    planned = trial(seen, of, started_at=STARTED, visits=1)
    screen = Screen(batch_sizes=[8], max_tokens=2, max_num_seqs=16, secret="s")
    visit_plan = planned.spec.visit.model_copy(update={"screen": screen, "windows": []})
    spec = planned.spec.model_copy(update={"arm": "probe", "visit": visit_plan})
    return planned.model_copy(update={"spec": spec})


@pytest.mark.parametrize("when", FOUND_OUT)
def test_a_finding_in_the_engines_log_ends_a_probe_at_once_in_its_words(when):
    said = visit("Failed", [CellClosed(cell=CELL), *FOUND_OUT[when]])
    record = step(screening(pod(finding=FINDING), said)).actions[0]
    assert record.status.ended_at is not None
    assert record.status.failed == f"NotSwitched: {FINDING}"


def test_what_steps_took_of_the_device_is_recorded_and_is_evidence():
    device = DeviceTimes(
        clock="stream",
        steps=[DeviceStep(requests=8, draft_tokens=24, steps=90, target_ms=20.0, drafter_ms=9.0)],
    )
    said = visit("Succeeded", [CellClosed(cell=CELL), VisitEnded()])
    record = step(screening(pod(device=device), said)).actions[0]
    assert record.status.device == device
    again = TrialStatus.model_validate(record.status.plain())
    assert as_launch(trial(**dict(again))).device == device


def test_the_words_of_the_load_process_stand_where_it_found_the_same():
    own = VisitFailed(reason="NotSwitched", message="K=0 was asked for")
    record = step(screening(pod(finding=FINDING), visit("Failed", [own]))).actions[0]
    assert record.status.failed == "NotSwitched: K=0 was asked for"


def test_times_are_written_in_utc():
    assert launches.rfc3339(1000.0) == STARTED
