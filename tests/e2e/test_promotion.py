"""From ``kubectl apply`` to a changed serving Deployment, or to one that was left alone."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.demo.stage import ROOT

from .place import (
    CANDIDATE,
    INCUMBENT,
    MEASURED,
    NAME,
    QUESTION,
    Object,
    Place,
    Watch,
    conditions,
    question,
    untouched,
    writes_of_the_operator,
)
from .scenes import of, scene

pytestmark = pytest.mark.e2e

ROWS = "num_speculative_tokens_per_batch_size"
CONFIGS: dict[str, Object | None] = {
    "incumbent": INCUMBENT,
    "candidate-card": {**INCUMBENT, "num_speculative_tokens": 5, ROWS: CANDIDATE},
    "none": None,
}
"""What each arm launches with."""
AT_8 = {"incumbent": 12, "candidate-card": 1, "none": 0}
"""Tokens drafted for a request in a step with 8 requests in flight."""


@dataclass(frozen=True)
class Ended:
    """A run that came to its end."""

    before: Object
    """The Deployment before the run."""
    status: Object
    pods: Watch
    slices: Watch
    deployments: Watch


def to_the_end(place: Place, **changes: Any) -> Ended:
    before = place.deployment()
    with (
        place.watching("pods") as pods,
        place.watching("endpointslices") as slices,
        place.watching("deployments") as deployments,
    ):
        place.ask(**changes)
        status = place.outcome()
    return Ended(before, status, pods, slices, deployments)


@scene(launches=7)
def promoted(place: Place) -> Ended:
    place.serve(cpu=MEASURED, replicas=2)
    return to_the_end(place)


@scene(launches=7)
def not_promoted(place: Place) -> Ended:
    """The candidate beats the incumbent, and loses to having no speculation."""
    prompts = yaml.safe_load((ROOT / "hack/prompts/chat-prompts.yaml").read_text())
    prompts["metadata"] = {"name": "prompts"}
    place.apply(prompts)
    place.serve(
        cpu=MEASURED, world="demo-loses", speculative={**INCUMBENT, "num_speculative_tokens": 5}
    )
    load = {**QUESTION["load"], "prompts": {"configMap": "prompts"}}
    return to_the_end(
        place,
        load=load,
        candidates=[{"name": "card", "schedule": [[1, 2, 5], [3, 16, 2]]}],
        bar={"improve": [{"metric": "goodput", "at": [8], "by": "30%"}]},
    )


@dataclass(frozen=True)
class TakenBack:
    """A run that was approved, and whose rollout could not finish."""

    before: Object
    waiting: Object
    """Status while it waited for approval."""
    unapproved: list[str]
    """Arguments that served then."""
    left: list[Object]
    """What of the operator's was there then."""
    status: Object
    deployments: Watch


@scene(launches=7)
def taken_back(place: Place) -> TakenBack:
    """Once the candidate is approved, a quota lets no new serving pod start."""
    place.serve(cpu=MEASURED, replicas=2)
    before = place.deployment()
    place.ask(mode="Approve", rollout={"deadline": "20s"})
    place.until(
        "the run waits for approval",
        lambda: place.status().get("stage") == "AwaitingApproval" or place.status().get("outcome"),
        1500,
    )
    waiting = place.status()
    place.until("trial pods are gone", lambda: not place.ours(), 60)
    unapproved, left = place.arguments(), [*place.ours(), *place.ours("jobs")]
    hard = {"hard": {"pods": "2"}}
    place.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": hard}
    )
    with place.watching("deployments") as deployments:
        approve = f"specschedule.dev/approve={waiting['runId']}"
        place.kubectl("annotate", "specschedule", NAME, approve)
        status = place.outcome()
    return TakenBack(before, waiting, unapproved, left, status, deployments)


def config_of(arguments: list[str]) -> Object | None:
    """The speculative config in a list of arguments, which must hold it once at most."""
    at = [i for i, word in enumerate(arguments) if word.startswith("--speculative-config")]
    assert len(at) <= 1, arguments
    config: Object | None = json.loads(arguments[at[0] + 1]) if at else None
    return config


def the_rest(arguments: list[str]) -> list[str]:
    at = arguments.index("--speculative-config")
    return arguments[:at] + arguments[at + 2 :]


@of(promoted)
def test_a_better_schedule_is_in_the_arguments_of_every_serving_pod(
    place: Place, played: Ended
) -> None:
    assert played.status["outcome"] == "Promoted", played.status["message"]
    before = played.before["spec"]["template"]["spec"]["containers"][0]["args"]
    assert config_of(before) == INCUMBENT
    pods = place.serving_pods()
    assert len(pods) == 2
    for pod in pods:
        arguments = pod["spec"]["containers"][0]["args"]
        assert config_of(arguments) == CONFIGS["candidate-card"]
        assert the_rest(arguments) == the_rest(before)
        (server,) = pod["status"]["containerStatuses"]
        assert server["ready"]


@of(promoted)
def test_the_promotion_is_one_write_of_one_argument_list(
    place: Place, played: Ended, began: str
) -> None:
    after = place.deployment()
    assert after["metadata"]["generation"] == played.before["metadata"]["generation"] + 1
    writes = [w for w in writes_of_the_operator(place, began) if w["resource"] == "deployments"]
    assert [(w["verb"], w["name"], w["subresource"]) for w in writes] == [("patch", NAME, "")]
    (owned,) = [
        entry["fieldsV1"]
        for entry in after["metadata"]["managedFields"]
        if entry["manager"] == "specschedule"
    ]
    container = 'k:{"name":"vllm"}'
    containers: Object = {"f:containers": {container: {"f:args": {}}}}
    assert owned == {"f:spec": {"f:template": {"f:spec": containers}}}, "replicas stay theirs"


@of(promoted)
def test_kubectl_waits_for_the_promotion_and_shows_it(place: Place, played: Ended) -> None:
    for condition in ("Promoted", "Ready", "Progressing=False", "Degraded=False"):
        place.kubectl("wait", f"--for=condition={condition}", "sps/chat", "--timeout=2s")
    row = place.kubectl("get", "sps", NAME, "--no-headers").split()
    assert row[:4] == [NAME, "Ended", "Promoted", "RolledOut"]
    assert "chat" in place.kubectl("get", "spt", "--no-headers")


@of(promoted)
def test_the_status_tells_the_whole_run(place: Place, played: Ended) -> None:
    status = place.status()
    assert status["observedGeneration"] == place.schedule()["metadata"]["generation"]
    assert status["plan"]["launches"] == 7
    assert status["progress"]["launchesDone"] >= 7
    assert {arm["arm"] for arm in status["arms"]} == {"incumbent", "candidate-card", "none"}
    (floor,) = [f for f in status["noiseFloor"] if f["metric"] == "goodput" and f["at"] == 8]
    assert 0 <= floor["floor"] * 5 <= 0.70
    (verdict,) = status["verdict"]
    assert (verdict["candidate"], verdict["verdict"]) == ("card", "Better")
    assert {gate["answer"] for gate in status["gates"]} <= {"Pass", "NotApplicable"}
    assert status["startedAt"] < status["endedAt"]
    assert "recommendation" not in status
    assert conditions(status) == {
        "Accepted": "True",
        "Progressing": "False",
        "Promoted": "True",
        "Degraded": "False",
        "Ready": "True",
    }
    assert len(json.dumps(status)) < 64 * 1024


@of(promoted)
def test_each_launch_has_a_receipt_of_what_really_ran(place: Place, played: Ended) -> None:
    trials = place.trials()
    (image,) = {
        s["imageID"] for p in place.serving_pods() for s in p["status"]["containerStatuses"]
    }
    assert len({t["spec"]["runId"] for t in trials}) == 1
    for trial in trials:
        receipt, arm = trial["status"]["receipt"], trial["spec"]["arm"]
        assert receipt["engineVersion"] == "0.32.0"
        assert receipt["modelRunner"] == "V2"
        assert receipt["graphMode"] == "FULL_AND_PIECEWISE"
        assert receipt["imageId"] == image
        assert receipt["node"] == "node"
        assert receipt["instruments"] == ["fingerprint", "counters"]
        drafting = CONFIGS[arm] or {}
        planned = drafting.get("num_speculative_tokens_per_batch_size", [])
        assert receipt.get("schedule") == (planned if drafting else None)
        assert config_of(receipt["arguments"]) == CONFIGS[arm]
        for cell in trial["status"]["cells"]:
            if cell["profile"]["kind"] != "hold":
                continue
            drafted = cell["draftTokens"] / cell["drafts"] if "drafts" in cell else 0
            assert drafted == pytest.approx(AT_8[arm], rel=0.1), "by the engine's own counters"


@of(promoted)
def test_every_counted_window_agrees_with_prometheus(place: Place, played: Ended) -> None:
    """Asked again here, by another way than the operator's."""
    scraped = place.counted(played.status["runId"])
    compared = 0
    for trial in place.trials():
        if trial["status"].get("void"):
            continue
        assert trial["status"]["check"] == "Agrees"
        for cell in trial["status"]["cells"]:
            assert "void" not in cell
            where = (str(cell["launch"]), str(cell["visit"]), cell["cell"])
            if cell["profile"]["kind"] == "hold":
                assert cell["completed"] + cell["failed"] >= 20
            assert scraped[*where, "good"] == cell["good"]
            assert scraped[*where, "slow"] == cell["completed"] - cell["good"]
            assert scraped[*where, "failed"] == cell["failed"]
            compared += 1
    assert compared >= 7


@of(promoted)
def test_the_command_line_judges_the_ledger_as_the_operator_did(
    place: Place, played: Ended, tmp_path: Path
) -> None:
    asked, trials = tmp_path / "specschedule.yaml", tmp_path / "trials.yaml"
    asked.write_text(yaml.safe_dump(question()))
    trials.write_text(place.kubectl("get", "spectrials", "-o", "yaml"))
    words = ["judge", "-f", str(asked), "--trials", str(trials), "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "specschedule.cli.main", *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    answer = json.loads(done.stdout)
    assert answer["outcome"] == played.status["outcome"], answer["message"]
    assert answer["verdicts"] == played.status["verdict"]
    assert answer["noiseFloor"] == played.status["noiseFloor"]


@of(promoted)
def test_no_service_ever_lists_a_pod_under_test(place: Place, played: Ended) -> None:
    """The Service selects by the label that the serving template has (case 67)."""
    pods = played.pods.objects()
    under_test = {p["metadata"]["name"] for p in pods if _role(p) is not None}
    assert len(under_test) >= 14, "trial pods and load pods"
    listed = {
        (endpoint.get("targetRef") or {}).get("name")
        for each in played.slices.objects()
        for endpoint in each.get("endpoints") or []
    }
    assert len(listed) >= 4, "the pods before and after the promotion"
    assert not listed & under_test
    owners = {
        o["kind"] for p in pods if _role(p) for o in p["metadata"].get("ownerReferences") or []
    }
    assert owners == {"SpecTrial", "Job"}, "no ReplicaSet adopted one"


@of(promoted)
def test_pods_under_test_give_way_to_everything(place: Place, played: Ended) -> None:
    priorities = {p["spec"]["priority"] for p in played.pods.objects() if _role(p) is not None}
    assert priorities == {-1_000_000}


@of(promoted)
def test_nothing_is_left_but_the_ledger(place: Place, played: Ended) -> None:
    place.until("pods and jobs are gone", lambda: not place.ours() and not place.ours("jobs"), 60)
    assert place.schedule()["metadata"].get("finalizers") in (None, [])
    assert len(place.events("Promoted")) == 1
    assert place.events("Promoted")[0].get("count", 1) == 1


@of(not_promoted)
def test_a_schedule_that_loses_to_a_control_is_not_promoted(place: Place, played: Ended) -> None:
    assert played.status["outcome"] == "NotPromoted", played.status["message"]
    assert played.status["reason"] == "ControlBeatsCandidate"
    assert played.status["recommendation"].startswith("none: remove --speculative-config")
    assert conditions(played.status)["Ready"] == "True"
    assert conditions(played.status)["Promoted"] == "False"


@of(not_promoted)
def test_serving_is_not_touched_by_a_run_that_promotes_nothing(
    place: Place, played: Ended, began: str
) -> None:
    untouched(played.before, place, played.deployments)
    resources = {write["resource"] for write in writes_of_the_operator(place, began)}
    assert resources == {"specschedules", "spectrials", "pods", "jobs", "events"}


@of(taken_back)
def test_approve_waits_for_its_run_id_with_nothing_written_and_nothing_left(
    place: Place, played: TakenBack
) -> None:
    assert played.waiting.get("stage") == "AwaitingApproval", played.waiting["message"]
    assert f"specschedule.dev/approve={played.waiting['runId']}" in played.waiting["message"]
    assert conditions(played.waiting)["Progressing"] == "True"
    assert played.unapproved == played.before["spec"]["template"]["spec"]["containers"][0]["args"]
    assert played.left == []


@of(taken_back)
def test_a_rollout_that_cannot_finish_is_taken_back_in_the_clusters_own_words(
    place: Place, played: TakenBack, began: str
) -> None:
    assert played.status["outcome"] == "RolledBack", played.status["message"]
    assert "exceeded quota" in played.status["message"]
    assert conditions(played.status)["Degraded"] == "True"
    assert conditions(played.status)["Promoted"] == "False"
    after = place.deployment()
    assert after["spec"] == played.before["spec"], "put back byte for byte"
    available = {each["status"].get("availableReplicas") for each in played.deployments.objects()}
    assert available == {2}, "serving never had fewer pods"
    writes = [w for w in writes_of_the_operator(place, began) if w["resource"] == "deployments"]
    assert [w["verb"] for w in writes] == ["patch", "patch"]
    assert place.schedule()["metadata"].get("finalizers") in (None, [])


def _role(pod: Object) -> str | None:
    role: str | None = (pod["metadata"].get("labels") or {}).get("specschedule.dev/role")
    return role
