"""What a run keeps: a verdict at its deadline, its bar in every trial, its sampling."""

from typing import Any

import pytest

from specschedule.core.evidence import Launch
from specschedule.core.spec import Spec

from .fake_world import FakeWorld
from .test_runs import INCUMBENT, LOSES, PROMOTED, SPEC, over, run, settle, world


class Watched(FakeWorld):
    """A world in which the candidate loses decode rate in every pair, inside the noise of it."""

    def _evidence(self, name: str) -> Launch:
        spec, _ = self.trials[name]
        rate = 57.6 if spec.arm == "candidate-card" else 60.0 * (1 + 0.1 * (spec.round % 2))
        launch = super()._evidence(name)
        cells = [
            c if c.decode_rate is None else c.model_copy(update={"decode_rate": rate})
            for c in launch.cells
        ]
        return launch.model_copy(update={"cells": cells})


def watched() -> FakeWorld:
    return Watched(SPEC, physics="demo", incumbent=dict(INCUMBENT))


def test_a_watched_loss_gets_a_fourth_pair_while_there_is_time() -> None:
    of = watched()
    assert run(of)["outcome"] == "Promoted"
    assert max(spec.round for spec, _ in of.trials.values()) == 4


@pytest.mark.parametrize("done", [7, 8], ids=["before the fourth pair", "in its middle"])
def test_what_was_decided_is_not_undone_by_a_deadline_that_cuts_a_watched_loss_short(
    done: int,
) -> None:
    of = watched()
    run(of, until=over(done))
    run(of, until=lambda w: len(w.pods) == 1)
    of.now += 2 * 3600
    status = run(of)
    assert status["outcome"] == "Promoted", status["message"]
    assert {item["metric"] for item in status["watch"]} == {"decodeRate"}
    assert of.speculative == PROMOTED
    settle(of)
    assert (of.pods, of.visits, len(of.writes())) == ({}, {}, 1)


def test_every_trial_carries_the_digest_of_the_bar_and_another_bar_is_another_run() -> None:
    of = world()
    run(of, until=over(2))
    first, asked = of.status["runId"], Spec.model_validate(SPEC).bar
    assert {spec.bar_digest for spec, _ in of.trials.values()} == {asked.digest()}
    eased = {**SPEC["bar"], "protect": [{"metric": "decodeRate", "at": [1], "within": "20%"}]}
    of.spec = Spec.model_validate({**SPEC, "bar": eased})
    of.generation = 2
    status = run(of)
    assert status["runId"] != first
    assert [(h["runId"], h["outcome"]) for h in status["history"]] == [(first, "Superseded")]
    digests = {spec.bar_digest for spec, _ in of.trials.values() if spec.run_id != first}
    assert digests == {of.spec.bar.digest()} != {asked.digest()}


def test_sampling_is_recorded_and_the_same_in_every_arm() -> None:
    sampling = {"temperature": 0.7, "topP": 0.9}
    spec: dict[str, Any] = {**LOSES, "load": {**LOSES["load"], "sampling": sampling}}
    of = world(spec, "demo-loses")
    run(of)
    trials = [trial for trial, _ in of.trials.values()]
    assert {trial.arm for trial in trials} >= {"incumbent", "candidate-card", "none"}
    found = {(t.visit.sampling.temperature, t.visit.sampling.top_p) for t in trials}
    assert found == {(0.7, 0.9)}
