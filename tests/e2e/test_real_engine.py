"""One run with real vLLM on CPU in the pods: its receipts show that the schedule was in effect.

Played alone and last: vLLM takes both cores. Which arm wins, and by how much, depends on what
else the machine's memory is busy with, so the claims here are about the engine and about acting
in keeping with the verdict; `make demo ENGINE=vllm` measures the gain.
"""

import pytest
from hack.demo import vllm
from hack.demo.stage import Stage

from .place import LABEL

# Seven launches, each with a boot of about a minute on a slow day.
pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(2400)]

SCHEDULE = [[1, 2, 2], [3, 6, 1], [7, 16, 0]]
POINTS = [2, 12]


@pytest.fixture(scope="module")
def shown(stage: Stage):
    engine = vllm.engine_facts()
    asked = vllm.scenario(
        engine["drafter"],
        name="vllm-test",
        effort="Quick",
        schedule=SCHEDULE,
        points=POINTS,
        requests=20,
        output_tokens=16,
    )
    # The scenes before it are over; their pods would double the time of every boot.
    stage.kubectl("delete", "namespace", "-l", LABEL, "--ignore-not-found", "--wait")
    stage.kubectl("delete", "namespace", asked.namespace, "--ignore-not-found", "--wait")
    vllm.serve(stage, asked, engine, replicas=1)
    yield vllm.demo.ask(stage, asked, vllm.NAME)
    stage.kubectl("delete", "namespace", asked.namespace, "--wait=false")


@pytest.fixture(scope="module")
def trials(stage: Stage, shown):
    found = stage.get("spectrials", "-n", shown.scenario.namespace)["items"]
    return [t for t in found if not t["status"].get("void")]


def cells(trials, arm, at):
    return [
        cell
        for trial in trials
        if trial["spec"]["arm"] == arm
        for cell in trial["status"]["cells"]
        if cell["profile"].get("concurrency") == at and not cell.get("void")
    ]


def test_every_launch_was_the_real_engine(trials):
    assert {t["status"]["receipt"]["engineVersion"] for t in trials} == {"0.32.0"}
    assert {t["spec"]["arm"] for t in trials} == {"incumbent", "candidate-steps", "none"}


def test_every_launch_was_looked_at_from_inside(trials, shown):
    for trial in trials:
        receipt, arm = trial["status"]["receipt"], trial["spec"]["arm"]
        assert receipt["instruments"] == ["fingerprint", "counters"]
        assert (receipt["modelRunner"], receipt["asyncScheduling"]) == ("V1", False)
        drafting = {"incumbent": [], "candidate-steps": SCHEDULE}.get(arm)
        assert receipt.get("schedule") == drafting
        assert receipt.get("drafterClass") == ("DraftModelProposer" if arm != "none" else None)
    gates = {g["gate"]: g for g in shown.status["gates"]}
    assert (gates["instruments"]["answer"], gates["sources"]["answer"]) == ("Pass", "Pass")


def test_the_schedule_is_in_effect_at_both_ends(trials):
    for cell in cells(trials, "candidate-steps", 2):
        assert cell["draftTokens"] / cell["drafts"] == pytest.approx(2, abs=0.1)
    for cell in cells(trials, "candidate-steps", 12):
        # Requests that end together leave batches of 7 and fewer now and then.
        assert cell.get("draftTokens", 0) < 0.1 * cell["outputTokens"]
    for cell in cells(trials, "incumbent", 12):
        assert cell["draftTokens"] / cell["drafts"] == pytest.approx(4, abs=0.1)
    for cell in cells(trials, "none", 12):
        assert "drafts" not in cell


def test_the_steps_of_each_window_are_told_by_the_k_in_effect(trials):
    for arm, at, planned in (("candidate-steps", 2, 2), ("incumbent", 12, 4), ("none", 12, 0)):
        for cell in cells(trials, arm, at):
            most = max(cell["steps"], key=lambda each: each["count"])
            assert (most["tokens"], set(most["graphModes"])) == (planned, {"NONE"})


def test_the_gate_says_so_too(shown):
    gates = {g["gate"]: g for g in shown.status["gates"]}
    assert gates["scheduleInEffect"]["answer"] == "Pass", gates["scheduleInEffect"]["message"]
    assert gates["engineVersion"]["answer"] == "Pass"


def test_serving_was_changed_exactly_when_the_verdict_says_so(shown):
    promoted = shown.outcome == "Promoted"
    assert shown.outcome in ("Promoted", "Inconclusive", "NotPromoted"), shown.status["message"]
    assert (shown.arguments_before != shown.arguments_after) == promoted
    if promoted:
        assert all(str(SCHEDULE).replace(" ", "") in " ".join(a) for a in shown.arguments_after)
