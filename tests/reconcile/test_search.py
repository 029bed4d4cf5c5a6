"""Runs that look for their candidates: screen, propose, test, in virtual time."""

import json

import pytest

from specschedule.api.v1alpha1 import Status
from specschedule.core.regime import ServingRegime

from .test_runs import INCUMBENT, SPEC, run, settle, world

SEARCH = {key: value for key, value in SPEC.items() if key != "candidates"} | {
    "search": {"maxTokens": 5}
}


def arms(of):
    """Every launch in order, by arm."""
    return [spec.arm for spec, _ in sorted(of.trials.values(), key=lambda t: t[0].launch)]


def screens(of):
    return [spec.arm for spec, _ in of.trials.values() if spec.screening]


def measured(status):
    return [cell for cell in status.cells if cell.void is None]


@pytest.fixture(scope="module")
def whole():
    of = world(SEARCH)
    run(of)
    return of


def test_a_schedule_is_found_in_two_launches_proven_and_promoted(whole):
    status = whole.status
    assert status["outcome"] == "Promoted", status["message"]
    assert arms(whole)[:2] == ["probe", "none"]
    assert sorted(screens(whole)) == ["none", "probe"]
    table = whole.speculative["num_speculative_tokens_per_batch_size"]
    assert table[0][2] > table[-1][2], "few in flight get more tokens"
    assert status["promotion"]["candidate"] == "best"
    assert len(whole.writes()) == 1


def test_windows_of_the_screen_are_no_evidence(whole):
    summary = {entry["arm"]: entry for entry in whole.status["arms"]}
    judged = whole.status["verdict"][0]
    assert summary["probe"]["cells"] > 8
    assert judged["candidate"] == "best"
    rounds = [spec.round for spec, _ in whole.trials.values() if not spec.screening]
    assert min(rounds) == 1
    numbers = [spec.launch for spec, _ in whole.trials.values()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_the_proposals_stand_in_the_status_with_their_gains(whole):
    Status.model_validate(whole.status)
    assert len(json.dumps(whole.status)) < 64 * 1024
    found = whole.status["proposals"]
    best = found["proposed"][0]
    assert best["name"] == found["lead"] == "best"
    assert best["overNone"]["low"] <= best["overNone"]["value"] <= best["overNone"]["high"]
    assert {each["at"] for each in best["predicted"]} == set(SEARCH["load"]["points"])
    assert all(
        each["throughput"]["value"] > 0 < each["tpotMs"]["value"] for each in best["predicted"]
    )
    assert {"none"} <= {each["name"] for each in found["proposed"]}


def test_the_cost_names_the_screen_before_the_first_pod():
    of = world(SEARCH)
    run(of, until=lambda w: w.status)
    rows = of.status["plan"]["arms"]
    assert [row["arm"] for row in rows[:2]] == ["probe", "none"]
    assert all(row["buys"].startswith("screen: ") for row in rows[:2])
    probe, none = (row["minutes"] for row in rows[:2])
    assert none < probe, "a launch is priced by the windows that it takes"
    assert of.status["stage"] == "Screening"
    assert not of.pods


def test_the_probe_starts_with_every_k_and_a_secret_of_its_own(whole):
    probe = next(spec for spec, _ in whole.trials.values() if spec.arm == "probe")
    rows = probe.speculative["num_speculative_tokens_per_batch_size"]
    assert {row[-1] for row in rows} == {0, 1, 2, 3, 4, 5}
    assert probe.speculative["num_speculative_tokens"] == 5
    assert len(probe.visit.screen.secret) == 32
    others = [s for s, _ in whole.trials.values() if s.screening and s.arm != "probe"]
    assert all(spec.visit.screen.secret is None for spec in others)


def test_killed_after_any_action_of_the_screen_it_ends_in_the_same_place(whole):
    screened = [at for at, action in enumerate(whole.performed) if "probe" in repr(action)[:200]]
    for death in screened[:4]:
        of = world(SEARCH)
        of.die_after = death
        status = run(of)
        settle(of)
        assert status["outcome"] == "Promoted", (death, status["message"])
        assert of.speculative == whole.speculative, death
        assert arms(of) == arms(whole), death


def test_a_status_lost_after_the_screen_is_rebuilt_from_the_trials(whole):
    of = world(SEARCH)
    run(of, until=lambda w: w.status.get("stage") == "Measuring" and len(w.trials) == 3)
    before = of.status["proposals"]
    of.status = {}
    status = run(of)
    assert status["proposals"] == before
    assert status["outcome"] == "Promoted"
    assert arms(of) == arms(whole)


def test_what_was_proposed_stands_though_the_cells_behind_it_are_lost(whole):
    of = world(SEARCH)
    run(of, until=lambda w: w.status.get("stage") == "Measuring" and len(w.trials) == 3)
    for name, (spec, status) in list(of.trials.items()):
        if spec.screening:
            of.trials[name] = spec, status.model_copy(update={"cells": []})
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    assert of.speculative == whole.speculative


def test_a_visit_that_fails_under_way_loses_only_its_open_window(whole):
    of = world(SEARCH)
    of.screen_dies_after = 5
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    (probe,) = [trial for trial in of.trials.values() if trial[0].arm == "probe"]
    assert probe[1].visits == 2
    cells = measured(probe[1])
    assert [cell.visit for cell in cells][:6] == [1, 1, 1, 1, 1, 2]
    assert len({cell.cell for cell in cells}) == len(cells)
    (undisturbed,) = [s for t, s in whole.trials.values() if t.arm == "probe"]
    assert len(cells) <= len(measured(undisturbed)) + 3


def test_a_probe_pod_that_dies_goes_on_in_another_with_what_it_measured(whole):
    of = world(SEARCH)
    of.screen_dies_after = 5
    run(of, until=lambda w: any(s.visits == 2 and s.cells for _, s in w.trials.values()))
    (name,) = of.pods
    of.pod_ends[name] = ("Exited", "CUDA error: device-side assert triggered")
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    first, second = [trial for trial in of.trials.values() if trial[0].arm == "probe"]
    assert first[1].failed is not None
    assert len(first[1].cells) >= 5
    known = {cell.cell for cell in second[0].visit.screen.done}
    assert known >= {cell.cell for cell in first[1].cells}
    assert not known & {cell.cell for cell in second[1].cells}


@pytest.mark.parametrize(
    "obstacle", ["the engine refuses the probe", "switching does not work", "another scheduler"]
)
def test_where_the_probe_cannot_be_used_each_k_gets_a_launch(obstacle):
    of = world(SEARCH)
    if obstacle == "another scheduler":
        of.scheduler_class = "theirs.Scheduler"
    elif obstacle == "switching does not work":
        of.probe_never_switches = True
    else:
        of.refuses["probe"] = "ModuleNotFoundError: No module named 'specschedule'"
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    found = [arm for arm in arms(of) if arm != "probe"][:7]
    assert sorted(found) == ["constant-1", "constant-2", "constant-3", "constant-4",
                             "constant-5", "none", "zero"]  # fmt: skip
    assert screens(of).count("probe") == (0 if obstacle == "another scheduler" else 1)
    fixed = [spec for spec, _ in of.trials.values() if spec.arm == "constant-3"]
    assert fixed[0].speculative["num_speculative_tokens_per_batch_size"] == [[1, 16, 3]]


def test_a_k_whose_launch_fails_is_named_and_never_proposed():
    of = world(SEARCH)
    of.scheduler_class = "theirs.Scheduler"
    of.refuses["constant-2"] = "No valid cudagraph sizes after rounding to multiple of 3"
    run(of, until=lambda w: w.status.get("proposals"))
    assert screens(of).count("constant-2") == 1
    found = of.status["proposals"]
    said = next(note for note in found["notes"] if "unavailable" in note)
    assert "K=2: " in said
    assert "No valid cudagraph sizes" in said
    proposed = [row[-1] for each in found["proposed"] for row in each.get("schedule") or []]
    assert proposed
    assert 2 not in proposed


def test_windows_of_an_engine_that_does_not_do_as_planned_propose_nothing():
    of = world(SEARCH)
    finding = "K=5 was planned 64 times and never came"
    of.finds = {"probe": finding}
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    (probe,) = [s for t, s in of.trials.values() if t.arm == "probe"]
    assert probe.failed == f"NotSwitched: {finding}"
    assert probe.cells
    assert "constant-5" in screens(of)
    fixed = [s for t, s in of.trials.values() if t.screening and t.arm not in ("probe", "none")]
    assert status["proposals"]["windows"] == sum(len(launch.cells) for launch in fixed)


def test_where_no_schedule_is_worth_it_the_control_is_named_and_nothing_is_tested():
    spec = SEARCH | {"slo": {"ttft": "500ms", "tpot": "100ms"}}
    of = world(spec, "demo-loses")
    status = run(of)
    assert status["outcome"] == "NotPromoted", status["message"]
    assert status["reason"] == "NothingProposed"
    assert arms(of) == ["probe", "none"]
    assert status["recommendation"].startswith("none: remove --speculative-config")
    assert "not confirmed" in status["recommendation"]
    assert of.writes() == []
    assert of.speculative == INCUMBENT


def test_a_screen_of_which_nothing_counts_is_inconclusive():
    of = world(SEARCH)
    of.refuses |= dict.fromkeys(
        ["probe", "none", "zero", *(f"constant-{k}" for k in range(1, 6))], "out of memory"
    )
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Inconclusive", "NothingMeasured")
    assert "out of memory" in status["message"]
    assert of.pods == {}


def test_load_points_beyond_the_kv_cache_are_neither_screened_nor_proposed_for():
    of = world(SEARCH)
    of.kv_cache_tokens = 12 * 100
    status = run(of, until=lambda w: w.status.get("proposals"))
    screened = [cell for spec, s in of.trials.values() if spec.screening for cell in s.cells]
    assert {cell.arm for cell in screened} == {"probe", "none"}
    assert all(cell.profile.concurrency * (64 + 32) <= 12 * 100 for cell in screened)
    assert {8, 1} <= {cell.profile.concurrency for cell in screened if cell.tokens == 5}
    assert any("16 in flight is beyond" in note for note in status["proposals"]["notes"])


def test_rows_end_on_the_graphs_that_the_launch_captured():
    of = world(SEARCH)
    of.captured_sizes = [9, 18, 36, 72]
    run(of, until=lambda w: w.status.get("proposals"))
    ends = {
        (row[1], row[2])
        for each in of.status["proposals"]["proposed"]
        for row in (each.get("schedule") or [])[:-1]
    }
    assert ends
    assert all(last in {size // (k + 1) for size in of.captured_sizes} for last, k in ends)
    screens = [spec.visit.screen for spec, _ in of.trials.values() if spec.screening]
    assert all(screen.kv_cache_tokens is None for screen in screens), "nobody knows beforehand"


def test_a_cache_that_holds_no_load_point_is_named():
    of = world(SEARCH)
    of.kv_cache_tokens = 80
    status = run(of)
    assert (status["outcome"], status["reason"]) == ("Inconclusive", "NothingMeasured")
    assert "cannot hold any of the load points" in status["message"]
    assert arms(of) == ["probe", "none"]


def test_load_points_weigh_by_the_time_that_serving_spends_there():
    def static(**time_at):
        of = world(SEARCH)
        if time_at:
            of.serving = ServingRegime(seconds=3600, time_at=time_at["time_at"])
        run(of, until=lambda w: w.status.get("proposals"))
        found = of.status["proposals"]
        (fixed,) = [each for each in found["proposed"] if each["kind"] == "static"]
        return fixed["maxTokens"], found["notes"][0]

    alone, said = static(time_at={1: 1.0})
    assert said == (
        "load points weigh by the time that serving pods spent nearest to each: "
        "1: 93%, 8: 3%, 16: 3%"
    )
    crowded, _ = static(time_at={8: 0.2, 16: 0.8})
    assert alone > crowded
    _, said = static()
    assert said == "load points weigh alike: nobody tells where serving spends its time"
