"""What others do while a run goes on: kill, delete, change, evict, preempt."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from hack.demo.stage import ROOT, SYSTEM

from .place import (
    CANDIDATE,
    INCUMBENT,
    MEASURED,
    NAME,
    QUESTION,
    Object,
    Place,
    Watch,
    writes_of_the_operator,
)
from .scenes import OPERATOR_ALONE, of, scene

pytestmark = pytest.mark.e2e

SLOT = "specschedule.dev/e2e-slot"
"""A resource of the node of which there are two: one for serving, one for a trial pod."""


@dataclass(frozen=True)
class Killed:
    """A run whose operator was killed while a launch was being measured."""

    trial: Object
    """Its trial pod at that moment."""
    loads: list[str]
    """UIDs of load pods at that moment."""
    operator: Object
    """The operator's container status afterwards."""
    status: Object
    pods: Watch


@scene(launches=7)
def killed(place: Place) -> Killed:
    place.serve(cpu=MEASURED)
    with place.watching("pods") as pods:
        place.ask()
        trial = place.under_load(2)
        loads = [
            p["metadata"]["uid"]
            for p in place.ours()
            if p["metadata"]["labels"]["specschedule.dev/role"] == "load"
        ]
        with OPERATOR_ALONE:
            operator = kill_operator(place)
        status = place.outcome()
    return Killed(trial, loads, operator, status, pods)


def operator_container(place: Place) -> Object:
    labels = "app.kubernetes.io/name=specschedule"
    pods = place.api.list("pods", SYSTEM, labels=labels)
    (pod,) = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
    status: Object = pod["status"]["containerStatuses"][0]
    return status


def kill_operator(place: Place) -> Object:
    """Send the operator's process SIGKILL; return its container's status once it is ready again."""
    before = operator_container(place)
    container = before["containerID"].removeprefix("containerd://")
    kill = ["ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container]
    subprocess.run([sys.executable, str(ROOT / "hack/cluster"), "exec", "--", *kill], check=True)

    def again() -> Object | None:
        now = operator_container(place)
        return now if now["restartCount"] > before["restartCount"] and now["ready"] else None

    found: Object = place.until("the operator is ready again", again, 120)
    return found


@of(killed)
def test_a_killed_operator_goes_on_with_the_same_pods(played: Killed) -> None:
    ended = played.operator["lastState"]["terminated"]
    assert ended["exitCode"] == 137
    uids: dict[str, set[str]] = {}
    for pod in played.pods.objects():
        uids.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])
    name = played.trial["metadata"]["name"]
    assert uids[name] == {played.trial["metadata"]["uid"]}
    assert all(len(found) == 1 for found in uids.values()), "no name was used twice"
    assert len(played.loads) == 1


@of(killed)
def test_the_launch_that_was_measured_meanwhile_counts(place: Place, played: Killed) -> None:
    (trial,) = [t for t in place.trials() if t["spec"]["launch"] == 2]
    assert "void" not in trial["status"]
    assert "failed" not in trial["status"]
    assert trial["status"]["check"] == "Agrees"
    started = {t["metadata"]["name"]: t["spec"] for t in place.trials()}
    assert len({(s["round"], s["arm"], s["attempt"]) for s in started.values()}) == len(started)


@of(killed)
def test_a_killed_operator_promotes_once(place: Place, played: Killed, began: str) -> None:
    assert played.status["outcome"] == "Promoted", played.status["message"]
    writes = [w for w in writes_of_the_operator(place, began) if w["resource"] == "deployments"]
    assert [w["verb"] for w in writes] == ["patch"]
    created = [
        (w["resource"], w["name"])
        for w in writes_of_the_operator(place, began)
        if w["verb"] == "create" and w["resource"] != "events"
    ]
    assert len(created) == len(set(created))


@dataclass(frozen=True)
class Deleted:
    """A SpecSchedule deleted in mid-run."""

    before: Object
    seconds: float
    """Until its pods and jobs and it itself were gone."""
    deployments: Watch


@scene(launches=1)
def deleted(place: Place) -> Deleted:
    place.serve()
    before = place.deployment()
    with place.watching("deployments") as deployments:
        place.ask()
        place.under_load(1)
        began = time.monotonic()
        place.kubectl("delete", "specschedule", NAME, "--wait=false")
        place.until(
            "everything of the run is gone",
            lambda: not (place.ours() or place.ours("jobs") or place.trials() or place.schedule()),
            300,
        )
        seconds = time.monotonic() - began
        # An operator that still worked on it would make a pod again.
        time.sleep(5)
    return Deleted(before, seconds, deployments)


@of(deleted)
def test_a_deleted_run_is_gone_within_a_minute(place: Place, played: Deleted) -> None:
    assert played.seconds < 60
    assert place.ours() == []


@of(deleted)
def test_serving_does_not_notice_a_deleted_run(place: Place, played: Deleted) -> None:
    assert place.deployment()["metadata"]["generation"] == played.before["metadata"]["generation"]
    available = {each["status"].get("availableReplicas") for each in played.deployments.objects()}
    assert available == {1}


@dataclass(frozen=True)
class Replaced:
    """A run whose spec was changed in its middle."""

    first: str
    """Its run id."""
    measured: list[str]
    """Trials of it that were recorded before."""
    status: Object
    trials: list[Object]
    pods: list[Object]


@scene(launches=3)
def superseded(place: Place) -> Replaced:
    place.serve(cpu=MEASURED)
    place.ask()
    place.under_load(2)
    first = place.status()["runId"]
    measured = [t["metadata"]["name"] for t in place.trials() if t.get("status", {}).get("endedAt")]
    place.ask(experiment={**QUESTION["experiment"], "seed": 8})

    def recorded() -> bool:
        new = [t for t in place.trials() if t["spec"]["runId"] != first]
        return any((t.get("status") or {}).get("endedAt") for t in new)

    place.until("a launch of the new run is recorded", recorded)
    status, trials = place.status(), place.trials()
    pods = place.ours()
    place.kubectl("delete", "specschedule", NAME)
    return Replaced(first, measured, status, trials, pods)


@of(superseded)
def test_a_changed_spec_is_a_new_run_and_the_old_one_is_history(played: Replaced) -> None:
    status = played.status
    assert status["runId"] != played.first
    assert status["observedGeneration"] == 2
    (entry,) = status["history"]
    assert (entry["runId"], entry["outcome"]) == (played.first, "Superseded")
    assert (entry["reason"], status.get("outcome")) == ("SpecChanged", None)


@of(superseded)
def test_no_launch_of_the_old_run_goes_on_or_counts(played: Replaced) -> None:
    of_old = [t for t in played.trials if t["spec"]["runId"] == played.first]
    assert {t["metadata"]["name"] for t in of_old} <= set(played.measured)
    assert played.measured, "one was recorded before the change"
    runs = {p["metadata"]["labels"]["specschedule.dev/run"] for p in played.pods}
    assert runs <= {played.status["runId"]}
    counted = sum(arm["launches"] for arm in played.status["arms"])
    of_new = [t for t in played.trials if t["spec"]["runId"] == played.status["runId"]]
    assert counted <= len(of_new)
    assert min(t["spec"]["launch"] for t in of_new) == 1


@dataclass(frozen=True)
class Driven:
    """A run whose first launches were taken away."""

    trials: list[Object]
    status: Object
    deployments: Watch


@scene(launches=4)
def driven_out(place: Place) -> Driven:
    """The first launch is evicted; one of its second try is preempted for a pod that matters."""
    values = [
        {"op": "add", "path": f"/status/{field}/{SLOT.replace('/', '~1')}", "value": "2"}
        for field in ("capacity", "allocatable")
    ]
    patch = ("--subresource=status", "--type=json", "-p", json.dumps(values))
    place.kubectl("patch", "node", "node", *patch)

    def take_a_slot(pod: Object) -> None:
        pod["containers"][0]["resources"]["limits"][SLOT] = "1"

    place.serve(cpu=MEASURED, change=take_a_slot)
    with place.watching("deployments") as deployments:
        place.ask()
        victim = place.under_load(1)["metadata"]["name"]
        evict(place, victim)
        place.until("the evicted launch is recorded", lambda: record(place, 1).get("void"))
        place.under_load(2)
        outrank(place)
        place.until("the preempted launch is recorded", lambda: record(place, 2).get("void"))
        place.kubectl("delete", "pod", "important", "--grace-period=0", "--force")
        place.until("the pair is measured", lambda: len(measured(place)) == 2)
    trials, status = place.trials(), place.status()
    place.kubectl("delete", "specschedule", NAME)
    return Driven(trials, status, deployments)


def evict(place: Place, pod: str) -> None:
    """Ask for an eviction, as a drain does."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": place.namespace},
    }
    path = f"/api/v1/namespaces/{place.namespace}/pods/{pod}/eviction"
    place.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))


def outrank(place: Place) -> None:
    """Start a pod of ordinary priority that wants the slot of the trial pod."""
    container = {
        "name": "main",
        "image": place.stage.image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"limits": {SLOT: "1"}},
    }
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "important"},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        }
    )


def record(place: Place, launch: int) -> Object:
    """The status of a launch."""
    found = [t for t in place.trials() if t["spec"]["launch"] == launch]
    status: Object = (found[0].get("status") or {}) if found else {}
    return status


def measured(place: Place) -> list[Object]:
    trials = place.trials()
    return [
        t for t in trials if (t.get("status") or {}).get("cells") and t["status"].get("endedAt")
    ]


@of(driven_out)
def test_launches_that_were_driven_out_are_void_and_fail_nothing(played: Driven) -> None:
    evicted, preempted = played.trials[:2]
    assert evicted["status"]["void"].startswith("Evicted: ")
    assert preempted["status"]["void"].startswith("Preempted: ")
    assert not any(trial["status"].get("failed") for trial in played.trials)
    assert played.status.get("outcome") is None
    assert {e["status"].get("availableReplicas") for e in played.deployments.objects()} == {1}


@of(driven_out)
def test_their_pair_is_launched_again_as_a_whole(played: Driven) -> None:
    attempts = [(t["spec"]["round"], t["spec"]["attempt"]) for t in played.trials[:4]]
    assert attempts == [(1, 1), (1, 2), (1, 3), (1, 3)]
    pair = {t["spec"]["arm"] for t in played.trials[2:4]}
    assert pair == {"incumbent", "candidate-card"}
    assert all(
        cell.get("void") is None for t in played.trials[2:4] for cell in t["status"]["cells"]
    )


@scene(launches=1)
def namespace_gone(place: Place) -> float:
    """The whole namespace is deleted in mid-run."""
    place.serve()
    place.ask()
    place.under_load(1)
    began = time.monotonic()
    place.stage.kubectl("delete", "namespace", place.namespace, "--timeout=300s")
    return time.monotonic() - began


@of(namespace_gone)
def test_a_namespace_is_deleted_in_mid_run_within_two_minutes(played: float) -> None:
    assert played < 120


@dataclass(frozen=True)
class Shared:
    """Two SpecSchedules on one target."""

    waiting: Object
    """Status of the second while the first one runs."""
    runs: set[str]
    """Names of SpecSchedules that had launches meanwhile."""
    after: Object
    """Status of the second after the first was deleted."""


@scene(launches=1)
def shared_target(place: Place) -> Shared:
    place.serve()
    place.ask("first")
    place.until("the first one runs", place.trials)
    place.ask("second", candidates=[{"name": "other", "schedule": [[1, 4, 3], [5, 16, 1]]}])
    waiting = place.reason("TargetBusy", "second")
    place.under_load(1)
    runs = {t["metadata"]["labels"]["specschedule.dev/schedule"] for t in place.trials()}
    place.kubectl("delete", "specschedule", "first")

    def launched() -> bool:
        return any(t["metadata"]["name"].startswith("second-") for t in place.trials())

    place.until("the second one runs", launched, 120)
    after = place.status("second")
    place.kubectl("delete", "specschedule", "second")
    return Shared(waiting, runs, after)


@of(shared_target)
def test_a_second_run_on_the_same_target_waits_for_the_first(played: Shared) -> None:
    assert "first" in played.waiting["message"]
    held = {c["type"]: c["reason"] for c in played.waiting["conditions"]}
    assert held["Progressing"] == "TargetBusy"
    assert played.runs == {"first"}
    assert played.after.get("outcome") is None


@of(killed)
def test_the_promotion_after_the_kill_serves(place: Place, played: Killed) -> None:
    (pod,) = place.serving_pods()
    arguments = pod["spec"]["containers"][0]["args"]
    config = json.loads(arguments[arguments.index("--speculative-config") + 1])
    rows = {"num_speculative_tokens_per_batch_size": CANDIDATE}
    assert config == {**INCUMBENT, "num_speculative_tokens": 5, **rows}
