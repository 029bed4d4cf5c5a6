"""What cannot work says so, in words that help, and costs nothing."""

import time
from dataclasses import dataclass
from typing import Any

import pytest
from hack.demo.stage import StageError

from .place import (
    MEASURED,
    NAME,
    Object,
    Place,
    Watch,
    audit,
    conditions,
    question,
    soon,
    untouched,
)
from .scenes import OPERATOR_ALONE, of, scene
from .test_disturbances import operator_container

pytestmark = pytest.mark.e2e


def candidate(schedule: Any) -> Object:
    return {"candidates": [{"name": "card", "schedule": schedule}]}


REFUSED = {
    "ranges written as a map": (
        candidate({"1-8": 3, "9-16": 1}),
        'unknown field "spec.candidates[0].schedule.1-8"',
    ),
    "rows that overlap": (candidate([[1, 8, 3], [8, 16, 1]]), "rows overlap"),
    "no row that starts at 1": (candidate([[2, 8, 3]]), "no row starts at 1"),
    "rows of three and of five numbers": (
        candidate([[1, 16, 3], [17, 64, 1, 4096, 1]]),
        "must not be mixed",
    ),
    "a reversed range": (candidate([[8, 1, 3]]), "reversed range"),
    "a negative number of tokens": (candidate([[1, 8, -1]]), "greater than or equal to 0"),
    "more tokens than any drafter makes": (candidate([[1, 8, 65]]), "drafts 64 tokens at most"),
    "no rows": (candidate([]), "at least 1 item"),
    "an SLO without a limit": ({"slo": {}}, "at least one of ttft, tpot and e2e"),
    "a load point that is not measured": (
        {"bar": {"improve": [{"at": [9], "by": "15%"}]}},
        "names a load point that load.points lacks",
    ),
    "answers longer than any model's": (
        {"load": {"points": [8], "outputTokens": 24_000_000}},
        "less than or equal to 1000000",
    ),
    "a field that does not exist": ({"budget": {"gpuHours": 1}}, 'unknown field "spec.budget"'),
}


@scene(launches=0)
def refused(place: Place) -> dict[str, str]:
    """What ``kubectl apply`` says to each fault."""
    said = {}
    for fault, (changes, _) in REFUSED.items():
        try:
            place.apply(question(**changes))
            said[fault] = "it was taken"
        except StageError as error:
            said[fault] = str(error)
    return said


@of(refused)
@pytest.mark.parametrize("fault", REFUSED)
def test_apply_itself_refuses(played: dict[str, str], place: Place, fault: str) -> None:
    assert REFUSED[fault][1] in played[fault]
    assert place.schedule() == {}


def nothing_was_made(place: Place, began: str) -> None:
    """The operator never made a child in this namespace, nor tried to."""
    made = [
        (event["verb"], event["resource"], event["name"])
        for event in audit("--since", began)
        if event["namespace"] == place.namespace
        and event["user"].endswith(":specschedule")
        and event["resource"] not in ("events", "specschedules")
    ]
    assert made == []


def without_vllm(pod: Object) -> None:
    """Turn the pod into a web server and its sidecar."""
    (web,) = pod["containers"]
    del web["readinessProbe"]
    web |= {"name": "web", "command": ["sleep", "3600"], "args": []}
    pod["containers"].append({**web, "name": "sidecar", "resources": {}})


@dataclass(frozen=True)
class Watched:
    """A run beside which serving was watched."""

    before: Object
    """The Deployment before the run."""
    templates: set[str]
    """The pod templates that served then."""
    status: Object
    deployments: Watch


def watched(place: Place, seconds: float = 1500) -> Watched:
    before, templates = place.deployment(), place.template_hashes()
    with place.watching("deployments") as deployments:
        # A refusal is quick, so the watch comes first.
        place.until("the watch sees serving", deployments.objects, 60)
        place.ask()
        status = place.outcome(seconds=seconds)
    return Watched(before, templates, status, deployments)


@scene(launches=0)
def data_parallel(place: Place) -> Watched:
    place.serve(extra_args=["--data-parallel-size", "2"])
    return watched(place, seconds=60)


@scene(launches=0)
def no_container(place: Place) -> Watched:
    place.serve(change=without_vllm)
    return watched(place, seconds=60)


@scene(launches=0)
def unparsable(place: Place) -> Object:
    place.serve(
        speculative=None,
        extra_args=["--speculative-config", '{"method": "eagle3", '],
        replicas=0,
        wait=False,
    )
    place.ask()
    return place.outcome(seconds=60)


@scene(launches=0)
def other_engine(place: Place) -> Object:
    def change(pod: Object) -> None:
        pod["containers"][0] |= {
            "image": "lmsysorg/sglang:v0.5",
            "command": ["python", "-m", "sglang.launch_server"],
            "args": ["--model-path", "m"],
        }

    place.serve(change=change, replicas=0, wait=False)
    place.ask()
    return place.outcome(seconds=60)


@scene(launches=2)
def silently_off(place: Place) -> Watched:
    """The engine drops the schedule without a word, which only its worker knows."""
    place.serve(cpu=MEASURED, extra_args=["--fault", "silent-disable"])
    return watched(place)


@of(data_parallel)
def test_a_data_parallel_target_is_rejected_with_its_size(place: Place, played: Watched) -> None:
    assert (played.status["outcome"], played.status["reason"]) == ("Rejected", "DataParallel")
    assert "data parallel size 2" in played.status["message"]
    assert set(conditions(played.status).values()) == {"False"}


@of(no_container)
def test_a_target_without_a_vllm_container_is_rejected_with_the_field_to_set(
    played: Watched,
) -> None:
    assert (played.status["outcome"], played.status["reason"]) == ("Rejected", "NoVllmContainer")
    assert "spec.target.container" in played.status["message"]


@of(unparsable)
def test_arguments_that_cannot_be_read_are_rejected_by_name(played: Object) -> None:
    assert played["outcome"] == "Rejected"
    assert "--speculative-config" in played["message"]
    assert "JSON" in played["message"]


@of(other_engine)
def test_a_target_of_another_engine_is_rejected_with_its_name(played: Object) -> None:
    """Case 36."""
    assert (played["outcome"], played["reason"]) == ("Rejected", "EngineNotSupported")
    assert "SGLang" in played["message"]


@of(silently_off)
def test_a_schedule_that_is_silently_off_ends_the_run_after_one_pair(
    place: Place, played: Watched
) -> None:
    assert (played.status["outcome"], played.status["reason"]) == ("NotPromoted", "SwitchedOff")
    assert "candidate-card: the running configuration has no schedule" in played.status["message"]
    assert len(place.trials()) <= 2


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(each, marks=of(each), id=each.name)
        for each in (data_parallel, no_container, silently_off)
    ],
)
def test_serving_never_noticed_the_run(place: Place, played: Watched, which: Any) -> None:
    untouched(played.before, place, played.deployments)
    assert len(played.templates) == 1
    assert place.template_hashes() == played.templates


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(each, marks=of(each), id=each.name)
        for each in (data_parallel, no_container, other_engine, unparsable)
    ],
)
def test_what_is_rejected_never_had_a_pod(place: Place, which: Any, began: str) -> None:
    nothing_was_made(place, began)
    assert place.deployment()["metadata"]["generation"] == 1


@dataclass(frozen=True)
class Awaited:
    """A SpecSchedule that was there before its target."""

    held: Object
    trials: list[Object]


@scene(launches=1)
def target_later(place: Place) -> Awaited:
    place.ask()
    held = place.reason("TargetNotFound")
    place.serve()
    trials = place.until("a launch starts", place.trials, 120)
    place.kubectl("delete", "specschedule", NAME)
    return Awaited(held, trials)


@of(target_later)
def test_a_missing_target_is_named_and_waited_for(place: Place, played: Awaited) -> None:
    assert f"Deployment {place.namespace}/chat does not exist" in played.held["message"]
    assert conditions(played.held) == {
        "Accepted": "True",
        "Progressing": "True",
        "Promoted": "False",
        "Degraded": "False",
        "Ready": "False",
    }
    assert played.trials[0]["spec"]["launch"] == 1


@dataclass(frozen=True)
class Expired:
    """A run that something outside held until its deadline."""

    held: Object
    """Status while it was held."""
    status: Object


def expired(place: Place, held: Object) -> Expired:
    status = place.outcome(seconds=180)
    place.until("pods and jobs are gone", lambda: not place.ours() and not place.ours("jobs"), 60)
    return Expired(held, status)


@scene(launches=0)
def no_image(place: Place) -> Expired:
    def change(pod: Object) -> None:
        pod["containers"][0]["image"] = "localhost/no-such-image:1"

    place.serve(change=change, replicas=0, wait=False)
    place.ask(experiment=soon(45))
    return expired(place, place.reason("ImagePull"))


@scene(launches=0)
def no_gpu(place: Place) -> Expired:
    def change(pod: Object) -> None:
        pod["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "999"}}

    place.serve(change=change, replicas=0, wait=False)
    place.ask(experiment=soon(30))
    return expired(place, place.reason("Unschedulable"))


@scene(launches=0)
def no_volume(place: Place) -> Expired:
    """The pod mounts a Secret that is not there; only events say so (like case 65)."""

    def change(pod: Object) -> None:
        pod["volumes"] = [{"name": "weights", "secret": {"secretName": "weights"}}]
        # The kubelet mounts only what a container asks for.
        mounts = [{"name": "weights", "mountPath": "/weights"}]
        pod["containers"][0]["volumeMounts"] = mounts

    place.serve(change=change, replicas=0, wait=False)
    place.ask(experiment=soon(45))
    place.until("it says why", lambda: "weights" in place.status().get("message", ""), 60)
    return expired(place, place.status())


@scene(launches=0)
def no_quota(place: Place) -> Expired:
    """Serving may have the one GPU that the namespace is granted (case 69)."""
    hard = {"hard": {"requests.nvidia.com/gpu": "1"}}
    place.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": hard}
    )
    place.serve()
    place.ask(experiment=soon(30))
    return expired(place, place.reason("Refused"))


@scene(launches=0)
def no_prometheus(place: Place) -> Expired:
    place.serve()
    place.ask(experiment=soon(30), prometheus={"url": "http://127.0.0.1:9"})
    return expired(place, place.reason("MetricsUnavailable"))


@of(no_image)
def test_an_image_that_cannot_be_pulled_is_named(played: Expired) -> None:
    assert "localhost/no-such-image:1" in played.held["message"]
    assert played.status["outcome"] == "Inconclusive"
    assert "localhost/no-such-image:1" in played.status["message"]


@of(no_gpu)
def test_no_free_gpu_is_said_in_the_schedulers_own_words(played: Expired) -> None:
    assert "Insufficient nvidia.com/gpu" in played.held["message"]
    assert (played.status["outcome"], played.status["reason"]) == ("Inconclusive", "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in played.status["message"]


@of(no_volume)
def test_a_volume_that_cannot_be_mounted_is_said_in_the_kubelets_own_words(
    played: Expired,
) -> None:
    assert 'secret "weights" not found' in played.held["message"]
    assert played.status["outcome"] == "Inconclusive"
    assert 'secret "weights" not found' in played.status["message"]


@of(no_quota)
def test_a_quota_that_is_full_is_said_in_the_api_servers_own_words(
    place: Place, played: Expired
) -> None:
    assert "exceeded quota: gpus" in played.held["message"]
    assert (played.status["outcome"], played.status["reason"]) == ("Inconclusive", "Refused")
    assert "exceeded quota: gpus" in played.status["message"]


@of(no_prometheus)
def test_a_prometheus_that_refuses_holds_the_run_and_promotes_nothing(
    place: Place, played: Expired, began: str
) -> None:
    assert conditions(played.held)["Progressing"] == "True"
    assert "http://127.0.0.1:9 cannot be asked" in played.held["message"]
    assert (played.status["outcome"], played.status["reason"]) == (
        "Inconclusive",
        "MetricsUnavailable",
    )
    assert place.deployment()["metadata"]["generation"] == 1
    creates = [e for e in audit("--since", began) if e["namespace"] == place.namespace]
    assert not [e for e in creates if e["resource"] == "pods" and "specschedule" in e["user"]]


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(each, marks=of(each), id=each.name)
        for each in (no_image, no_gpu, no_volume, no_quota, no_prometheus)
    ],
)
def test_what_was_held_to_its_deadline_leaves_nothing_half_started(
    place: Place, played: Expired, which: Any
) -> None:
    assert conditions(played.status) == {
        "Accepted": "True",
        "Progressing": "False",
        "Promoted": "False",
        "Degraded": "False",
        "Ready": "False",
    }
    assert place.ours() == []
    assert [t for t in place.trials() if not (t.get("status") or {}).get("endedAt")] == []


SILENT = 4
"""As many as the operator has threads."""


@dataclass(frozen=True)
class Silence:
    """SpecSchedules whose Prometheus accepts connections and never answers, and one beside them."""

    seconds: float
    """From the creation of the one beside them to its first condition."""
    beside: Object
    restarts: tuple[int, int]
    """Restarts of the operator before and after."""
    statuses: list[Object]
    """What became of the silent ones."""


@scene(launches=0)
def silent_prometheus(place: Place) -> Silence:
    script = "import socket, time\ns = socket.create_server(('', 9090), backlog=128)\n"
    container = {
        "name": "silent",
        "image": place.stage.image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", script + "time.sleep(3600)"],
        "readinessProbe": {"tcpSocket": {"port": 9090}, "periodSeconds": 1},
    }
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "silent", "labels": {"app": "silent"}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        }
    )
    place.kubectl("wait", "--for=condition=Ready", "pod/silent", "--timeout=120s")
    found = place.get("pods", "silent")
    assert found is not None
    url = f"http://{found['status']['podIP']}:9090"
    place.serve()
    names = [f"silent-{n}" for n in range(1, SILENT + 1)]
    for name in names:
        place.ask(name, experiment=soon(60), prometheus={"url": url})
    place.until("they are held", lambda: all(place.status(name) for name in names), 60)
    with OPERATOR_ALONE:
        before = operator_container(place)["restartCount"]
        began = time.monotonic()
        place.ask("beside", target={"name": "nobody"})
        place.until("it has a condition", lambda: place.status("beside").get("conditions"), 60)
        seconds = time.monotonic() - began
        beside = place.status("beside")
        statuses = [place.outcome(name, 240) for name in names]
        after = operator_container(place)["restartCount"]
    place.kubectl("delete", "specschedule", "beside")
    return Silence(seconds, beside, (before, after), statuses)


@of(silent_prometheus)
def test_a_prometheus_that_never_answers_keeps_nobody_else_waiting(played: Silence) -> None:
    """Case 55: a blocking call must not freeze every object."""
    assert played.seconds < 10
    assert played.beside["reason"] == "TargetNotFound"
    assert played.restarts[0] == played.restarts[1], "it stayed alive"


@of(silent_prometheus)
def test_a_prometheus_that_never_answers_is_no_pass(place: Place, played: Silence) -> None:
    assert {status["outcome"] for status in played.statuses} == {"Inconclusive"}
    assert any("cannot be asked" in status["message"] for status in played.statuses)
    assert place.deployment()["metadata"]["generation"] == 1
    assert place.arguments()[-1].startswith('{"method"')
