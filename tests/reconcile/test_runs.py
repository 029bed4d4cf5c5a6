"""Whole runs through observe, decide, act and report, in virtual time."""

import json

import pytest

from specschedule.api.v1alpha1 import Status
from specschedule.core.observed import SetSpeculative, StartVisit
from specschedule.core.spec import Spec
from specschedule.core.target import Unreadable
from specschedule.core.workload import Workload
from specschedule.reconcile import Reconciler

from .fake_world import KEY, FakeWorld, Killed

INCUMBENT = {"method": "eagle3", "model": "demo/drafter", "num_speculative_tokens": 5}
SPEC = {
    "target": {"name": "chat"},
    "mode": "Auto",
    "slo": {"ttft": "500ms", "tpot": "40ms"},
    "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
    "load": {"points": [1, 8, 16], "outputTokens": 32, "promptTokens": 64},
    "bar": {
        "improve": [{"metric": "throughput", "at": [8, 16], "by": "15%"}],
        "protect": [{"metric": "decodeRate", "at": [1], "within": "15%"}],
    },
    "experiment": {"effort": "Quick", "seed": 7, "deadline": "2h"},
}
LOSES = {
    **SPEC,
    "slo": {"ttft": "500ms", "tpot": "100ms"},
    "candidates": [{"name": "card", "schedule": [[1, 2, 3], [3, 16, 1]]}],
    "load": {**SPEC["load"], "points": [8, 16]},
    "bar": {"improve": [{"metric": "throughput", "at": [8, 16], "by": "10%"}]},
}
PROMOTED = {**INCUMBENT, "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 1]]}


def world(spec=SPEC, physics="demo"):
    return FakeWorld(spec, physics=physics, incumbent=dict(INCUMBENT))


def run(of, *, until=lambda w: w.status.get("outcome"), looks=2000):
    """Call reconcile as the queue would, until a claim about the world holds."""
    reconcile = Reconciler(of, of.clock)
    for _ in range(looks):
        try:
            again = reconcile(KEY)
        except Killed:
            reconcile = Reconciler(of, of.clock)
            continue
        if until(of):
            return of.status
        of.now += max(0.5, again if again is not None else 5.0)
    pytest.fail(f"not within {looks} looks: {json.dumps(of.status, indent=1)[:2000]}")


def over(launches):
    """Wait until so many launches are over."""
    return lambda w: sum(1 for _, s in w.trials.values() if s.ended_at) == launches


def settle(of):
    """Look a few times more: an ended run must stay ended and leave nothing."""
    reconcile = Reconciler(of, of.clock)
    for _ in range(5):
        reconcile(KEY)
        of.now += 60


def test_a_better_candidate_is_promoted_with_one_write():
    of = world()
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    assert of.speculative == PROMOTED
    assert len(of.writes()) == 1
    assert status["promotion"]["target"] == "chat"
    settle(of)
    assert (of.pods, of.visits, of.finalizer) == ({}, {}, False)
    assert of.status["outcome"] == "Promoted"
    assert of.writes() == [
        SetSpeculative(speculative=PROMOTED, resource_version=of.writes()[0].resource_version)
    ]


def test_the_status_fits_the_published_type_and_holds_no_nan():
    of = world()
    run(of)
    Status.model_validate(of.status)
    json.dumps(of.status, allow_nan=False)
    assert len(json.dumps(of.status)) < 64 * 1024


def test_a_schedule_that_loses_to_its_controls_is_not_promoted_and_names_the_control():
    of = world(LOSES, "demo-loses")
    status = run(of)
    assert status["outcome"] == "NotPromoted", status["message"]
    assert of.writes() == []
    assert of.speculative == INCUMBENT
    assert "none" in status["recommendation"]


def test_a_control_is_named_even_where_the_incumbent_has_no_good_request_at_all():
    of = world({**LOSES, "slo": {"ttft": "500ms", "tpot": "40ms"}}, "demo-loses")
    status = run(of)
    assert status["outcome"] == "NotPromoted"
    assert status["recommendation"].startswith("none: remove --speculative-config")


def test_killed_after_any_single_action_the_run_ends_in_the_same_place():
    whole = world()
    run(whole)
    for death in range(len(whole.performed)):
        of = world()
        of.die_after = death
        status = run(of)
        settle(of)
        assert status["outcome"] == "Promoted", (death, status["message"])
        assert of.speculative == PROMOTED, death
        assert len(of.writes()) == 1, death
        assert set(of.launched()) == set(whole.launched()), death
        assert (of.pods, of.visits, of.finalizer) == ({}, {}, False), death


def test_prompt_categories_are_those_of_the_beginning_and_their_decode_rates_are_told():
    prompts = {"configMap": "chat-prompts"}
    of = world({**SPEC, "load": {**SPEC["load"], "prompts": prompts}})
    of.workload = Workload(categories=["code", "prose"])
    run(of, until=over(1))
    of.workload = Workload(categories=["another", "code", "prose"])
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    told = {
        arm["arm"]: [(rate["at"], rate["category"]) for rate in arm.get("decode", [])]
        for arm in status["arms"]
    }
    held = [(1, "code"), (1, "prose"), (16, "code"), (16, "prose")]
    assert told == {"incumbent": held, "candidate-card": held, "none": []}
    assert "code, prose apart at 1 and 16 in flight" in status["plan"]["notes"][0]
    Status.model_validate(status)


def test_the_noise_and_a_forecast_are_known_from_the_first_relaunch_on():
    experiment = {**SPEC["experiment"], "effort": "Standard"}
    of = world({**SPEC, "experiment": experiment, "mode": "Propose"})

    run(of, until=over(2))
    assert not {"noiseFloor", "verdict"} & set(of.status)
    run(of, until=lambda w: over(3)(w) and "noiseFloor" in w.status)
    assert of.status.get("outcome") is None
    assert {(f["metric"], f["at"], f["count"]) for f in of.status["noiseFloor"]} >= {
        ("throughput", 8, 1),
        ("throughput", 16, 1),
        ("decodeRate", 1, 1),
    }
    (verdict,) = of.status["verdict"]
    gains = [bar for bar in verdict["bars"] if bar["kind"] == "improve"]
    assert (verdict["verdict"], len(gains)) == ("Inconclusive", 2)
    assert all((bar["count"], bar["answer"]) == (1, "Unproven") for bar in gains)
    assert all(5 <= bar["roundsNeeded"] <= 12 for bar in gains)
    Status.model_validate(of.status)


def test_a_status_lost_in_mid_run_is_rebuilt_from_the_trials():
    of = world()
    run(of, until=over(4))
    before = len(of.launched())
    of.status = {}
    status = run(of)
    assert status["outcome"] == "Promoted"
    assert len(set(of.launched())) == len(of.launched()), "a recorded launch was launched again"
    assert len(of.launched()) >= before
    assert len(of.writes()) == 1


def test_a_preempted_launch_takes_its_pair_with_it_and_fails_nothing():
    of = world()
    run(of, until=lambda w: len(w.pods) == 1 and len(w.trials) == 2)
    (name,) = of.pods
    of.pod_ends[name] = ("Preempted", "preempted by a pod of higher priority")
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    void = [n for n, (_, s) in of.trials.items() if s.void]
    assert void == [name]
    attempts = [s.attempt for s, _ in of.trials.values()]
    assert attempts.count(2) == 2


def test_a_changed_spec_supersedes_the_run_and_carries_no_sample_over():
    of = world()
    run(of, until=over(2))
    first = of.status["runId"]
    of.spec = Spec.model_validate({**SPEC, "experiment": {**SPEC["experiment"], "seed": 8}})
    of.generation = 2
    status = run(of)
    assert status["outcome"] == "Promoted"
    assert status["runId"] != first
    assert [(h["runId"], h["outcome"]) for h in status["history"]] == [(first, "Superseded")]
    assert {s.run_id for s, _ in of.trials.values()} == {status["runId"]} | (
        {first} & {s.run_id for s, _ in of.trials.values()}
    )
    assert status["observedGeneration"] == 2


def test_a_watched_loss_stays_in_the_history_of_the_run_that_saw_it():
    of = world()
    run(of)
    seen = {
        "candidate": "card",
        "metric": "decodeRate",
        "at": 1,
        "change": -0.04,
        "pairs": [-0.03, -0.05],
        "spread": 0.06,
        "message": "decodeRate at 1: -4.0% (-3.0%, -5.0%), the same sign in every pair",
    }
    of.status = {**of.status, "watch": [seen]}
    of.spec = Spec.model_validate({**SPEC, "experiment": {**SPEC["experiment"], "seed": 8}})
    of.generation = 2
    status = run(of, until=lambda w: w.status.get("history"))
    assert status["history"][0]["watch"] == [f"card: {seen['message']}"]
    assert "watch" not in status
    Status.model_validate(status)


def test_changing_mode_or_rollout_deadline_keeps_the_run():
    of = world({**SPEC, "mode": "Propose"})
    run(of, until=over(2))
    first = of.status["runId"]
    of.spec = Spec.model_validate({**SPEC, "mode": "Auto", "rollout": {"deadline": "20m"}})
    of.generation = 2
    assert run(of)["runId"] == first


def test_a_prometheus_outage_holds_the_run_and_is_nobodys_fault():
    of = world()
    run(of, until=over(2))
    of.prometheus_down = True
    run(of, until=lambda w: w.status["reason"] == "MetricsUnavailable")
    held = {c["type"]: c["status"] for c in of.status["conditions"]}
    assert (held["Accepted"], held["Progressing"], held["Ready"]) == ("True", "True", "False")
    launches = len(of.launched())
    of.now += 600
    Reconciler(of, of.clock)(KEY)
    assert len(of.launched()) == launches
    of.prometheus_down = False
    assert run(of)["outcome"] == "Promoted"


@pytest.mark.parametrize(
    ("launches", "outcome"),
    [
        (0, ("Inconclusive", "NothingMeasured")),
        (1, ("NotPromoted", "CandidateFailed")),
        (3, ("Inconclusive", "IncumbentFailed")),
        (5, ("NotPromoted", "CandidateFailed")),
    ],
)
def test_40_traffic_that_stops_half_way_promotes_nothing_and_the_run_ends(launches, outcome):
    of = world()
    of.traffic_stops_from = launches + 1
    status = run(of)
    assert (status["outcome"], status["reason"]) == outcome
    assert "no token for 120 s" in status["message"]
    assert of.writes() == []
    cells = {spec.launch: len(trial.cells) for spec, trial in of.trials.values()}
    assert not any(count for launch, count in cells.items() if launch > launches)
    settle(of)
    assert (of.pods, of.visits) == ({}, {})


def test_a_refused_write_is_tried_again_after_a_while_however_often_it_is_called():
    of = world()
    of.quota_full = True
    run(of, until=lambda w: len(w.refused) == 1)
    reconcile = Reconciler(of, of.clock)
    reconcile(KEY)
    tried = len(of.refused)
    for _ in range(20):
        # What was written before the refusal makes the object due at once.
        assert reconcile(KEY) > 0
        of.now += 0.2
    assert len(of.refused) == tried
    assert of.status["reason"] == "Refused"
    of.quota_full = False
    assert run(of)["outcome"] == "Promoted"


def test_an_outage_past_the_deadline_is_inconclusive_with_everything_cleared():
    of = world()
    run(of, until=lambda w: len(w.visits) == 1)
    of.prometheus_down = True
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Inconclusive", "MetricsUnavailable")
    assert of.writes() == []
    settle(of)
    assert (of.pods, of.visits) == ({}, {})


def test_what_was_shown_before_the_deadline_stays_with_the_outcome_that_it_brings():
    of = world()
    run(of, until=over(6))
    of.now += 2 * 3600
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Inconclusive", "DeadlineExceeded")
    assert [verdict["verdict"] for verdict in status["verdict"]] == ["Better"]
    assert status["noiseFloor"]
    assert of.writes() == []


def test_what_was_shown_by_evidence_that_is_void_does_not_stay():
    of = world()
    run(of, until=lambda w: over(4)(w) and "verdict" in w.status)
    of.template_hash = "template-2"
    status = run(of)
    assert status["reason"] == "TargetChanged"
    assert not {"verdict", "noiseFloor"} & set(status)


def test_counters_that_disagree_with_the_record_end_the_run_inconclusive():
    of = world()
    of.miscount = True
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Inconclusive", "MetricsDisagree")
    assert of.writes() == []


def test_a_gate_that_fails_ends_the_run_before_more_gpus_are_spent():
    of = world()
    of.images = {"candidate-card": "sha256:b"}
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("NotPromoted", "Differs")
    assert "sha256:a (incumbent); sha256:b (candidate-card)" in status["message"]
    assert len(of.launched()) == 2 < status["plan"]["launches"]
    settle(of)
    assert (of.pods, of.visits, of.writes()) == ({}, {}, [])


def test_25_a_tag_that_moved_since_the_target_was_rolled_out_ends_the_run():
    of = world()
    of.images = dict.fromkeys(("incumbent", "candidate-card", "none"), "sha256:b")
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("NotPromoted", "NotTheServingImage")
    assert (
        "serving pods run image sha256:a, every arm was launched with sha256:b"
        in (status["message"])
    )
    assert len(of.launched()) == 1
    settle(of)
    assert of.writes() == []


def test_a_target_edited_by_others_voids_the_evidence():
    of = world()
    run(of, until=over(3))
    of.template_hash = "template-2"
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Aborted", "TargetChanged")
    settle(of)
    assert (of.pods, of.visits, of.writes()) == ({}, {}, [])


def test_no_free_gpu_ends_at_the_deadline_with_the_schedulers_own_words():
    of = world({**SPEC, "experiment": {**SPEC["experiment"], "deadline": "10m"}})
    of.pending = ("Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    run(of, until=lambda w: w.status.get("reason") == "Unschedulable")
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Inconclusive", "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in status["message"]
    settle(of)
    assert of.pods == {}


def test_data_parallel_targets_are_rejected_without_a_single_pod():
    of = world()
    of.data_parallel = 2
    status = run(of)
    assert status["outcome"] == "Rejected"
    assert "2" in status["message"]
    assert (of.trials, of.pods) == ({}, {})
    accepted = next(c for c in status["conditions"] if c["type"] == "Accepted")
    assert accepted["status"] == "False"


def test_a_spec_that_cannot_be_read_is_rejected_in_its_own_words():
    of = world()
    of.spec = Unreadable(reason="InvalidSpec", message="spec.slo: needs a limit")
    status = run(of)
    assert (status["outcome"], status["message"]) == ("Rejected", "spec.slo: needs a limit")


def test_a_missing_target_is_waited_for_until_it_appears():
    of = world()
    of.target_missing = True
    run(of, until=lambda w: w.status.get("reason") == "TargetNotFound")
    assert of.status.get("outcome") is None
    of.target_missing = False
    assert run(of)["outcome"] == "Promoted"


def test_missing_prompts_hold_the_run_before_any_pod():
    of = world()
    of.missing = Unreadable(reason="PromptsNotFound", message="ConfigMap llm/p does not exist")
    run(of, until=lambda w: w.status.get("reason") == "PromptsNotFound")
    assert (of.trials, of.status.get("outcome")) == ({}, None)
    of.missing = None
    assert run(of)["outcome"] == "Promoted"


def test_propose_never_writes_and_approve_waits_for_its_run_id():
    proposed = world({**SPEC, "mode": "Propose"})
    assert run(proposed)["outcome"] == "Proposed"
    assert proposed.writes() == []
    waiting = world({**SPEC, "mode": "Approve"})
    run(waiting, until=lambda w: w.status.get("stage") == "AwaitingApproval")
    assert waiting.pods == {}
    waiting.approved = "another"
    run(waiting, until=lambda w: w.status.get("stage") == "AwaitingApproval")
    assert waiting.writes() == []
    waiting.approved = waiting.status["runId"]
    assert run(waiting)["outcome"] == "Promoted"


@pytest.mark.parametrize("mode", ["Auto", "Approve"])
def test_what_was_proposed_is_promoted_by_its_own_evidence_once_the_mode_lets_it(mode):
    of = world({**SPEC, "mode": "Propose"})
    proposed = run(of)
    settle(of)
    launched = of.launched()
    of.spec = Spec.model_validate({**SPEC, "mode": mode})
    of.generation = 2
    if mode == "Approve":
        waiting = run(of, until=lambda w: w.status["stage"] == "AwaitingApproval")
        assert not {"outcome", "endedAt"} & set(waiting)
        of.approved = proposed["runId"]
    status = run(of, until=lambda w: w.status.get("outcome") == "Promoted")
    assert status["runId"] == proposed["runId"]
    assert status["startedAt"] == proposed["startedAt"]
    assert status["endedAt"] > proposed["endedAt"]
    assert of.launched() == launched, "nothing was measured again"
    assert of.speculative == PROMOTED


def test_what_was_proposed_for_a_target_that_changed_since_is_not_promoted():
    of = world({**SPEC, "mode": "Propose"})
    run(of)
    of.template_hash = "template-2"
    of.spec = Spec.model_validate(SPEC)
    of.generation = 2
    status = run(of, until=lambda w: w.status.get("outcome") != "Proposed")
    assert (status["outcome"], status["reason"]) == ("Aborted", "TargetChanged")
    assert of.writes() == []


def test_an_approval_counts_once_though_the_same_question_comes_back():
    of = world({**SPEC, "mode": "Approve", "rollout": {"deadline": "2m"}})
    of.rollout_fails_with = "pod chat-x: CrashLoopBackOff"
    run(of, until=lambda w: w.status.get("stage") == "AwaitingApproval")
    of.approved = of.status["runId"]
    first = run(of)
    assert first["outcome"] == "RolledBack"
    asked = of.spec
    other = {**SPEC, "mode": "Approve", "experiment": {**SPEC["experiment"], "seed": 8}}
    of.spec, of.generation = Spec.model_validate(other), 2
    run(of, until=lambda w: w.status.get("stage") == "AwaitingApproval")
    of.spec, of.generation = asked, 3
    run(of, until=lambda w: w.status.get("runId") == first["runId"])
    back = run(of, until=lambda w: w.status["stage"] not in ("Preflight", "Measuring"))
    assert (back["runId"], back["stage"]) == (first["runId"], "AwaitingApproval")
    assert "an approval counts once" in back["message"]
    assert "specschedule.dev/retry=1" in back["message"]
    settle(of)
    assert len(of.writes()) == 2, "the change and its way back, of the first time"


def test_a_rollout_that_does_not_finish_is_taken_back():
    of = world({**SPEC, "rollout": {"deadline": "2m"}})
    of.rollout_fails_with = "pod chat-x: CrashLoopBackOff: unrecognized arguments"
    status = run(of)
    assert status["outcome"] == "RolledBack"
    assert "CrashLoopBackOff" in status["message"]
    assert of.speculative == INCUMBENT
    assert len(of.writes()) == 2
    assert not of.finalizer
    degraded = next(c for c in status["conditions"] if c["type"] == "Degraded")
    assert degraded["status"] == "True"


def test_a_promotion_not_yet_written_is_withdrawn_by_mode_or_bar():
    for change in ({"mode": "Propose"}, {"experiment": {**SPEC["experiment"], "seed": 9}}):
        of = world()
        run(of, until=lambda w: w.status.get("promotion"))
        assert of.writes() == []
        of.spec = Spec.model_validate({**SPEC, **change})
        of.generation = 2
        status = run(of)
        if "mode" in change:
            assert status["outcome"] == "Proposed"
            assert of.writes() == []
        else:
            assert len([s for s, _ in of.trials.values() if s.run_id == status["runId"]]) >= 7


def test_a_template_changed_between_record_and_write_is_never_written():
    of = world()
    run(of, until=lambda w: w.status.get("promotion"))
    of.template_hash = "template-2"
    assert run(of)["reason"] == "TargetChanged"
    assert of.writes() == []


def test_a_status_lost_right_after_the_write_finds_its_promotion_again():
    of = world()
    run(of, until=lambda w: len(w.writes()) == 1)
    of.status = {}
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    assert len(of.writes()) == 1


def test_a_pod_left_over_after_its_record_is_cleared_while_the_run_goes_on():
    of = world()
    run(of, until=over(2))
    ended = next(n for n, (_, s) in of.trials.items() if s.ended_at)
    of.pods[ended] = of.now
    run(of, until=lambda w: ended not in w.pods)
    assert of.status.get("outcome") is None


def test_a_target_deleted_in_mid_run_frees_the_gpus_at_once():
    of = world()
    run(of, until=lambda w: len(w.pods) == 1)
    of.target_missing = True
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Aborted", "TargetNotFound")
    assert of.pods == {}


def test_a_boot_that_hangs_cannot_break_the_budget():
    budget = {"gpuHours": 0.2}
    of = world({**SPEC, "experiment": {**SPEC["experiment"], "budget": budget}})
    of.pending = ("Unschedulable", "0/1 nodes are available")
    status = run(of)
    assert status["reason"] == "BudgetExhausted"
    assert of.pods == {}


def test_deleted_in_mid_run_nothing_is_created_any_more():
    of = world()
    run(of, until=lambda w: len(w.visits) == 1)
    of.deleting = True
    before = len(of.performed)
    settle(of)
    assert of.performed[before:] == []


def test_deleted_in_mid_promotion_the_unproven_change_is_taken_back():
    of = world()
    run(of, until=lambda w: len(w.writes()) == 1)
    of.deleting = True
    settle(of)
    assert of.speculative == INCUMBENT
    assert not of.finalizer


def test_the_budget_is_a_hard_limit():
    of = world({**SPEC, "experiment": {**SPEC["experiment"], "budget": {"gpuHours": 0.035}}})
    status = run(of)
    spent = sum(s.gpu_seconds or 0 for _, s in of.trials.values()) / 3600
    assert spent <= 0.035
    assert status["outcome"] == "Inconclusive"
    assert status["reason"] == "BudgetExhausted"


def test_arms_side_by_side_where_parallelism_allows_it():
    of = world({**SPEC, "experiment": {**SPEC["experiment"], "parallelism": 2}})
    most = 0

    def watch(w):
        nonlocal most
        most = max(most, len(w.pods))
        return w.status.get("outcome")

    assert run(of, until=watch)["outcome"] == "Promoted"
    assert most == 2


def test_every_outcome_is_announced_once():
    of = world()
    run(of)
    settle(of)
    assert [r for r, _ in of.announced].count("Promoted") == 1


def test_visits_go_to_the_pod_itself():
    of = world()
    run(of)
    visits = [a for a in of.performed if isinstance(a, StartVisit)]
    assert {v.visit.url for v in visits} == {"http://10.0.0.1:8000"}
