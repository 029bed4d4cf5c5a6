"""Runs whose candidates have rows by context, in virtual time.

They are proposed and never written, unless the target names the scheduler that follows them.
"""

from dataclasses import replace
from typing import Any

import pytest

from specschedule.api.v1alpha1 import Status
from specschedule.core.context_axis import CLASS
from specschedule.core.spec import Mode, Spec
from specschedule.sim.physics import Drafter, Linear, Sum
from specschedule.sim.worlds import WORLDS, World

from .fake_world import FakeWorld
from .test_runs import INCUMBENT, SPEC, run, settle

ROWS_KEY = "num_speculative_tokens_per_batch_size"
ROWS = [[1, 2, 1, 4096, 5], [3, 16, 1, 4096, 1]]
"""What the demo's better schedule does, written by context."""
ASKED = {**SPEC, "candidates": [{"name": "deep", "schedule": ROWS}]}


def follows(world: World) -> World:
    """A world whose simulated engine can follow five-number rows, as our scheduler lets it."""
    return replace(world, name=f"{world.name}-five", context_schedules=True)


def world(spec: dict[str, Any] = ASKED, physics: World = WORLDS["demo"]) -> FakeWorld:
    of = FakeWorld(spec, physics="demo", incumbent=dict(INCUMBENT))
    of.physics = follows(physics)
    return of


def arms(of: FakeWorld) -> list[str]:
    return [spec.arm for spec, _ in sorted(of.trials.values(), key=lambda t: t[0].launch)]


@pytest.fixture(scope="module")
def asked() -> FakeWorld:
    of = world()
    run(of)
    return of


def test_a_winner_of_five_numbers_is_proposed_in_mode_auto_and_serving_is_not_written(
    asked: FakeWorld,
) -> None:
    status = asked.status
    assert (status["outcome"], status["reason"]) == ("Proposed", "EveryPairMeetsBar"), status
    assert asked.writes() == []
    assert asked.speculative == INCUMBENT
    assert "promotion" not in status
    assert status["recommendation"].startswith("deep: serve with num_speculative_tokens 5")
    assert "--scheduler-cls" in status["recommendation"]
    Status.model_validate(status)


def test_its_launches_start_with_every_k_and_show_the_rows_by_context(asked: FakeWorld) -> None:
    trials = [spec for spec, _ in asked.trials.values() if spec.arm == "candidate-deep"]
    assert len(trials) >= 3
    for spec in trials:
        assert spec.context_axis
        assert spec.schedule == ROWS
        assert spec.speculative is not None
        assert [row[-1] for row in spec.speculative[ROWS_KEY]] == [5, 4, 3, 2, 1, 0]
    assert not any(spec.context_axis for spec, _ in asked.trials.values() if spec not in trials)
    gates = {gate["gate"]: gate for gate in asked.status["gates"]}
    assert gates["scheduleInEffect"]["answer"] == "Pass"
    assert gates["methodAndSchedule"]["answer"] != "Fail"
    assert "deep: our context-axis scheduler follows its rows" in gates["schedule"]["message"]


def test_it_stays_proposed_even_where_the_mode_or_the_target_changes(asked: FakeWorld) -> None:
    before = dict(asked.status)
    settle(asked)
    assert asked.status == before
    assert isinstance(asked.spec, Spec)
    asked.spec = asked.spec.model_copy(update={"mode": Mode.APPROVE})
    asked.approved = before["runId"]
    asked.template_hash = "with-our-scheduler"
    settle(asked)
    assert asked.status["outcome"] == "Proposed"
    assert asked.writes() == []


def test_in_mode_approve_nothing_waits_for_an_approval_that_could_do_nothing() -> None:
    of = world({**ASKED, "mode": "Approve"})
    assert run(of)["outcome"] == "Proposed"
    assert of.writes() == []


def test_where_launches_carry_nothing_of_ours_it_is_refused_before_any_pod() -> None:
    of = world()
    of.probes = False
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Rejected", "EngineRefusesSchedule")
    assert not of.trials


def test_where_the_target_has_a_scheduler_of_its_own_it_is_refused() -> None:
    of = world()
    of.scheduler_class = "theirs.Scheduler"
    assert run(of)["reason"] == "EngineRefusesSchedule"


def own(spec: dict[str, Any] = ASKED) -> FakeWorld:
    """A target whose own arguments name our scheduler."""
    of = world(spec)
    of.scheduler_class = CLASS
    return of


def test_where_the_target_names_our_scheduler_a_winner_of_five_numbers_is_promoted() -> None:
    of = own()
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Promoted", "RolledOut"), status["message"]
    assert of.speculative == {**INCUMBENT, ROWS_KEY: ROWS}
    assert len(of.writes()) == 1
    assert "recommendation" not in status
    gates = {gate["gate"]: gate for gate in status["gates"]}
    assert "follows its rows, as it does in serving" in gates["schedule"]["message"]
    assert gates["scheduleInEffect"]["answer"] == "Pass"
    trials = [spec for spec, _ in of.trials.values() if spec.arm == "candidate-deep"]
    assert len(trials) >= 3
    for spec in trials:
        assert (spec.context_axis, spec.schedule) == (False, ROWS)
        assert (spec.speculative or {})[ROWS_KEY] == ROWS
    settle(of)
    assert of.status["outcome"] == "Promoted"
    Status.model_validate(status)


def test_a_rollout_of_five_numbers_that_does_not_finish_is_taken_back() -> None:
    of = own({**ASKED, "rollout": {"deadline": "2m"}})
    of.rollout_fails_with = "pod chat-x: CrashLoopBackOff: the table to follow: row 1"
    status = run(of)
    assert status["outcome"] == "RolledBack"
    assert "CrashLoopBackOff" in status["message"]
    assert of.speculative == INCUMBENT
    assert len(of.writes()) == 2


def test_an_approval_promotes_it_where_somebody_else_left_the_target_alone() -> None:
    of = own({**ASKED, "mode": "Approve"})
    run(of, until=lambda w: w.status.get("stage") == "AwaitingApproval")
    assert of.writes() == []
    of.approved = of.status["runId"]
    assert run(of)["outcome"] == "Promoted"
    assert of.speculative == {**INCUMBENT, ROWS_KEY: ROWS}


def test_a_search_on_such_a_target_sweeps_in_one_boot_too() -> None:
    of = world(SEARCH, DEEP)
    of.scheduler_class = CLASS
    status = run(of)
    assert arms(of)[0] == "probe"
    assert not any(arm.startswith("constant") for arm in arms(of)[:2])
    assert status["outcome"] == "Promoted", status["message"]
    assert len(of.speculative[ROWS_KEY][0]) == 5


def test_an_engine_that_does_not_follow_the_plan_is_no_evidence() -> None:
    of = world()
    of.finds = {"candidate-deep": "K=1 was planned and 5 drafts were scheduled"}
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("NotPromoted", "CandidateFailed")
    assert "K=1 was planned and 5 drafts were scheduled" in status["message"]


DEEP = World(
    name="deep",
    source="made up: long contexts take the time of a step, so that drafts cost little there",
    step_time=Sum(
        Linear(base=0.002, per_token=0.0015, per_context=2e-6, per_prefill=1e-7),
        Drafter(per_pass=0.0002, sync=0.0002),
    ),
    acceptance=(0.80, 0.60, 0.45, 0.30),
    max_num_seqs=16,
    noise=replace(WORLDS["demo"].noise, step=0.002, launch=0.002),
)
SHORT, LONG = 100, 4000
SEARCH = {
    **{key: value for key, value in SPEC.items() if key != "candidates"},
    "search": {"maxTokens": 4, "contexts": [SHORT, LONG]},
    "load": {**SPEC["load"], "points": [8]},
    "slo": {"ttft": "60s", "tpot": "10s"},
    "bar": {
        "improve": [{"metric": "throughput", "at": [8], "context": SHORT, "by": "10%"}],
        "protect": [{"metric": "throughput", "at": [8], "context": LONG, "within": "5%"}],
    },
}


@pytest.fixture(scope="module")
def searched() -> FakeWorld:
    of = world(SEARCH, DEEP)
    run(of)
    return of


def test_rows_by_context_that_a_search_proposes_are_tested_though_one_k_is_best_by_batch_size(
    searched: FakeWorld,
) -> None:
    five = next(p for p in searched.status["proposals"]["proposed"] if p["name"] == "context")
    assert {len(row) for row in five["schedule"]} == {5}
    launched = [spec for spec, _ in searched.trials.values() if spec.arm == "candidate-context"]
    assert launched
    assert launched[0].schedule == five["schedule"]
    assert launched[0].context_axis


def test_it_ends_proposed_though_the_mode_is_auto(searched: FakeWorld) -> None:
    status = searched.status
    assert status["outcome"] == "Proposed", status["message"]
    verdicts = {each["candidate"]: each["verdict"] for each in status["verdict"]}
    assert verdicts["context"] == "Better"
    assert searched.writes() == []
    assert status["recommendation"].startswith("context: serve with")


def test_every_launch_holds_the_contexts_of_the_search_apart_and_mixed(
    searched: FakeWorld,
) -> None:
    for spec, _ in searched.trials.values():
        if not spec.screening:
            held = [w for w in spec.visit.windows if w.profile.kind == "hold"]
            assert {w.context for w in held} == {None, SHORT, LONG, (SHORT + LONG) // 2}
            (mixed,) = (w for w in held if w.profile.contexts)
            assert mixed.profile.contexts == [SHORT - 16, LONG - 16]


def test_without_a_scheduler_of_ours_the_same_proposal_is_shown_and_not_tested() -> None:
    of = world(SEARCH, DEEP)
    of.probes = False
    run(of)
    assert "context" in {each["name"] for each in of.status["proposals"]["proposed"]}
    assert "candidate-context" not in arms(of)
