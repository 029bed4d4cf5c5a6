"""What the operator sees of a cluster: facts in the cluster's own words, in a few calls."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from specschedule.core.evidence import Receipt
from specschedule.core.observed import (
    CreateTrial,
    PodFacts,
    RecordTrial,
    StartLaunch,
    StartVisit,
    TrialFacts,
    TrialStatus,
)
from specschedule.core.regime import ServingRegime
from specschedule.core.spec import Spec, run_id
from specschedule.core.target import TargetFacts, Unreadable

from .conftest import Place, serving, until, wanted

pytestmark = pytest.mark.cluster

TRIAL = "chat-7f3a91c2-candidate-card-1"
STARTED = "2026-11-29T10:00:00Z"


def launch(place: Place, **fields: Any) -> None:
    place.world.perform(place.key, CreateTrial(name=TRIAL, spec=place.plan(**fields)))
    place.world.perform(place.key, StartLaunch(trial=TRIAL))


def record(place: Place, **fields: Any) -> None:
    place.world.perform(place.key, RecordTrial(trial=TRIAL, status=TrialStatus(**fields)))


def trial(place: Place) -> TrialFacts:
    (only,) = place.observe().trials
    return only


def pod(place: Place) -> PodFacts:
    seen = trial(place).pod
    assert seen is not None
    return seen


def ready(place: Place, address: str = "127.0.0.1") -> None:
    place.pod_status(
        TRIAL,
        {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": STARTED},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T10:00:40Z"},
            ],
            "containerStatuses": [
                {
                    "name": "server",
                    "image": "example.test/vllm:0.32.0",
                    "imageID": "example.test/vllm@sha256:1234",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-11-29T10:00:10Z"}},
                }
            ],
        },
    )


def test_an_object_that_is_not_there_is_nothing(empty: Place) -> None:
    assert empty.world.observe(empty.key) is None


def test_an_object_and_its_target_are_read_whole(place: Place) -> None:
    observed = place.observe()
    schedule, target = observed.schedule, observed.target
    assert isinstance(schedule.spec, Spec)
    assert schedule.spec.load.points == [1, 8]
    assert (schedule.generation, schedule.retry, schedule.approved) == (1, 0, None)
    assert isinstance(target, TargetFacts)
    assert target.replicas == 2
    assert target.server.container == "server"
    assert target.server.max_num_seqs == 16
    assert observed.metrics.url == "http://prometheus.test:9090"
    assert (observed.trials, observed.load, observed.other_run) == ([], None, None)


def test_approval_and_retry_are_annotations(empty: Place) -> None:
    empty.apply(serving())
    asked = wanted()
    asked["metadata"]["annotations"] = {
        "specschedule.dev/approve": "7f3a91c2",
        "specschedule.dev/retry": "2",
    }
    empty.apply(asked)
    schedule = empty.observe().schedule
    assert (schedule.approved, schedule.retry) == ("7f3a91c2", 2)


def test_a_missing_target_names_the_field(empty: Place) -> None:
    empty.apply(wanted())
    target = empty.observe().target
    assert isinstance(target, Unreadable)
    assert target.reason == "TargetNotFound"
    assert f"Deployment {empty.namespace}/chat does not exist: spec.target.name" in target.message


@pytest.mark.parametrize(
    ("data", "reason"),
    [(None, "PromptsNotFound"), ({"code": "  \n"}, "PromptsEmpty"), ({"code": "def f"}, None)],
    ids=["no ConfigMap", "nothing in it", "prompts"],
)
def test_prompts_are_looked_at_before_any_pod(empty: Place, data: Any, reason: str | None) -> None:
    empty.apply(serving())
    empty.apply(wanted(load={"points": [8], "prompts": {"configMap": "p"}}))
    if data is not None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p"}, "data": data}
        empty.apply(body)
    seen = empty.observe()
    assert (seen.load and seen.load.reason) == reason
    assert seen.workload.categories == ([] if reason else ["code"])


ENTRY = '{"timestamp": %d, "input_length": 9, "output_length": 30}\n'


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (None, "TraceNotFound", "does not exist"),
        ({"other": ENTRY % 1}, "TraceNotFound", "has no key trace.jsonl"),
        ({"trace.jsonl": ENTRY % 1}, "TraceUnreadable", "two arrivals"),
        ({"trace.jsonl": ENTRY % 1 + ENTRY % 501}, None, ""),
    ],
    ids=["no ConfigMap", "no such key", "no trace", "a trace"],
)
def test_recorded_arrivals_are_looked_at_before_any_pod(
    empty: Place, data: Any, reason: str | None, words: str
) -> None:
    empty.apply(serving())
    empty.apply(wanted(load={"points": [8], "trace": {"configMap": "recorded"}}))
    if data is not None:
        metadata = {"name": "recorded"}
        empty.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    seen = empty.observe()
    if seen.load is not None:
        assert seen.load.reason == reason
        assert words in seen.load.message
        return
    assert reason is None
    trace = seen.workload.trace
    assert trace is not None
    assert (trace.requests, trace.seconds, trace.longest) == (2, 1.0, 39)


def test_the_volume_for_records_is_looked_for_before_any_pod(empty: Place) -> None:
    empty.apply(serving())
    empty.apply(wanted(load={"points": [8], "records": {"persistentVolumeClaim": "kept"}}))
    missing = empty.observe().load
    assert missing is not None
    assert missing.reason == "RecordsNotFound"
    assert f"PersistentVolumeClaim {empty.namespace}/kept does not exist" in missing.message
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"}}
    empty.apply({**kind, "spec": claim})
    assert empty.observe().load is None


def test_the_first_of_two_runs_on_one_target_goes_first(place: Place) -> None:
    # Creation times have whole seconds, so names decide between these two.
    place.apply(wanted("aaa"))
    place.apply(wanted("elsewhere", target={"kind": "Deployment", "name": "other"}))
    first, second = place.key, place.key._replace(name="aaa")
    seen = {key.name: place.world.observe(key) for key in (first, second)}
    others = {name: facts and facts.other_run for name, facts in seen.items()}
    assert sorted(others.items(), key=str) in (
        [("aaa", None), ("chat", "aaa")],
        [("aaa", "chat"), ("chat", None)],
    )
    blocking = next(other for other in others.values() if other)
    blocked = next(name for name, other in others.items() if other)
    uid = place.get("specschedules", blocking)["metadata"]["uid"]
    done = {"observedGeneration": 1, "outcome": "NotPromoted"}
    place.world.report(first._replace(name=blocking), done, resource_uid=uid)
    facts = place.world.observe(first._replace(name=blocked))
    assert facts is not None
    assert facts.other_run is None


def test_prometheus_is_asked_what_serving_does_only_while_a_run_begins(place: Place) -> None:
    asked = place.metrics.looked_at
    place.metrics.regime = ServingRegime(seconds=3600, prefix_hit_share=0.5)
    schedule = place.observe().schedule
    assert isinstance(schedule.spec, Spec)
    run = run_id(schedule.uid, schedule.spec, schedule.retry)
    assert place.observe().serving == place.metrics.regime
    assert asked[-1][0] == place.namespace
    for ended in ("NotPromoted", "Proposed"):
        before = len(asked)
        place.world.report(place.key, {"runId": run, "outcome": ended}, resource_uid=schedule.uid)
        assert place.observe().serving is None
        assert len(asked) == before
    place.world.report(place.key, {"runId": "00000000"}, resource_uid=schedule.uid)
    assert place.observe().serving == place.metrics.regime
    first = place.plan(run_id=run)
    place.world.perform(place.key, CreateTrial(name=f"chat-{run}-candidate-card-1", spec=first))
    before = len(asked)
    assert place.observe().serving is None
    assert len(asked) == before


def test_a_promotion_in_flight_stays_with_the_target_it_wrote_to(place: Place) -> None:
    uid = place.observe().schedule.uid
    promotion = {"candidate": "card", "target": "chat", "startedAt": 1.0}
    place.world.report(place.key, {"promotion": promotion}, resource_uid=uid)
    elsewhere = {"spec": {"target": {"kind": "Deployment", "name": "other"}}}
    place.custom.patch_namespaced_custom_object(
        "specschedule.dev", "v1alpha1", place.namespace, "specschedules", "chat", elsewhere
    )
    assert isinstance(place.observe().target, TargetFacts)
    place.world.report(place.key, {"promotion": promotion, "outcome": "Promoted"}, resource_uid=uid)
    assert isinstance(place.observe().target, Unreadable)


def test_a_trial_without_a_pod_has_none_and_one_whose_pod_is_gone_says_deleted(
    place: Place,
) -> None:
    place.world.perform(place.key, CreateTrial(name=TRIAL, spec=place.plan()))
    assert trial(place).pod is None
    record(place, started_at=STARTED)
    seen = pod(place)
    assert (seen.phase, seen.reason, seen.message) == ("Ended", "Deleted", "the pod is gone")
    record(place, started_at=STARTED, ended_at=STARTED, void="Deleted")
    assert trial(place).pod is None


def test_no_free_node_is_said_in_the_schedulers_words(place: Place) -> None:
    launch(place)
    words = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": words,
    }
    place.pod_status(TRIAL, {"conditions": [condition]})
    seen = pod(place)
    assert (seen.phase, seen.reason) == ("Pending", "Unschedulable")
    assert seen.message == words


def test_what_only_an_event_says_is_said_once_a_pod_is_slow(place: Place) -> None:
    launch(place)
    scheduled = {"type": "PodScheduled", "status": "True"}
    place.pod_status(TRIAL, {"conditions": [scheduled]})
    assert pod(place).message == "its containers are being made"
    uid = place.get("pods", TRIAL)["metadata"]["uid"]
    words = 'Multi-Attach error for volume "models": already used by pod(s) chat-1'
    event = {
        "metadata": {"name": "slow"},
        "involvedObject": {"uid": uid, "kind": "Pod", "namespace": place.namespace},
        "type": "Warning",
        "reason": "FailedAttachVolume",
        "message": words,
        "lastTimestamp": STARTED,
    }
    place.core.create_namespaced_event(place.namespace, event)
    assert pod(place).message == f"FailedAttachVolume: {words}"


def test_a_trial_that_cannot_be_read_is_no_evidence(place: Place) -> None:
    place.world.perform(place.key, CreateTrial(name=TRIAL, spec=place.plan()))
    nameless = {
        "cell": "",
        "arm": "none",
        "launch": 1,
        "profile": {"kind": "hold"},
        "windowSeconds": 1,
        "offered": 1,
        "completed": 1,
    }
    written = {"status": {"cells": [nameless]}}
    place.api.patch("spectrials", place.namespace, TRIAL, written, subresource="status")
    assert place.observe().trials == []


def test_a_lost_node_hides_a_log_for_a_while_but_stops_nothing(place: Place) -> None:
    launch(place)
    visit = place.plan().visit.model_copy(update={"url": "http://10.0.0.7:8000"})
    place.world.perform(place.key, StartVisit(trial=TRIAL, visit=visit))
    until(lambda: any(each.startswith(f"{TRIAL}-v1") for each in place.names("pods")))
    died = {"name": "server", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    terminated = {"terminated": {"exitCode": 1}}
    place.pod_status(
        TRIAL, {"phase": "Failed", "containerStatuses": [died | {"state": terminated}]}
    )
    place.api.kubelets_reachable = False
    seen = trial(place)
    assert seen.visit is not None
    assert (seen.visit.phase, seen.visit.message[:40]) == (
        "Running",
        "its log cannot be read just now: 500: di",
    )
    assert seen.pod is not None
    assert (seen.pod.reason, seen.pod.message) == ("Exited", "container server exited with 1")


def test_pods_of_others_are_not_taken_for_ours(place: Place) -> None:
    place.world.perform(place.key, CreateTrial(name=TRIAL, spec=place.plan()))
    labels = place.get("spectrials", TRIAL)["metadata"]["labels"]
    place.apply(place.pod(TRIAL, labels=labels))
    assert trial(place).pod is None


class Engine(ThreadingHTTPServer):
    """A vLLM that answers what a receipt is read from."""

    daemon_threads = True
    answers: dict[str, str] = {
        "/version": '{"version": "0.32.0"}',
        "/metrics": "vllm:num_requests_running 0\n",
    }
    asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        engine = self.server
        assert isinstance(engine, Engine)
        path = self.path.split("?")[0]
        engine.asked.append(path)
        text = engine.answers.get(path)
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, format: str, *args: object) -> None:
        """The test says what matters."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine(("127.0.0.1", 0), Handler)
    server.answers, server.asked = dict(Engine.answers), []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_receipt_is_read_once_from_a_server_that_answers(empty: Place, engine: Engine) -> None:
    empty.apply(serving("chat", "--port", str(engine.server_port)))
    empty.apply(wanted())
    launch(empty)
    ready(empty)
    seen = pod(empty)
    assert seen.phase == "Ready"
    assert seen.url == f"http://127.0.0.1:{engine.server_port}"
    receipt = seen.receipt
    assert receipt.engine_version == "0.32.0"
    assert receipt.image_id == "example.test/vllm@sha256:1234"
    assert receipt.boot_seconds == 30
    assert receipt.arguments is not None
    assert receipt.arguments[:3] == ["vllm", "serve", "model"]
    asked = list(engine.asked)
    assert pod(empty).receipt == receipt
    assert engine.asked == asked, "an unrecorded receipt is remembered"
    record(empty, started_at=STARTED, receipt=receipt)
    assert pod(empty).receipt == Receipt()


def test_a_receipt_that_lacks_an_answer_is_read_again(empty: Place, engine: Engine) -> None:
    empty.apply(serving("chat", "--port", str(engine.server_port)))
    empty.apply(wanted())
    del engine.answers["/version"]
    launch(empty)
    ready(empty)
    assert pod(empty).receipt.engine_version is None
    engine.answers["/version"] = '{"version": "0.32.0"}'
    assert pod(empty).receipt.engine_version == "0.32.0"


def test_final_counters_are_asked_for_only_when_a_visit_has_ended(place: Place) -> None:
    launch(place)
    visit = place.plan().visit.model_copy(update={"url": "http://10.0.0.7:8000"})
    place.world.perform(place.key, StartVisit(trial=TRIAL, visit=visit))
    seen = trial(place)
    assert seen.visit is not None
    assert (seen.visit.phase, seen.scraped) == ("Running", None)
    assert place.metrics.asked == []


def test_a_look_costs_the_same_calls_for_one_launch_and_for_many(place: Place) -> None:
    def calls() -> list[str]:
        place.api.calls = []
        place.observe()
        return list(place.api.calls)

    plan = place.plan()
    place.world.perform(place.key, CreateTrial(name=TRIAL, spec=plan))
    one = calls()
    for number in range(2, 7):
        spec = plan.model_copy(update={"launch": number})
        place.world.perform(place.key, CreateTrial(name=f"chat-7f3a91c2-none-{number}", spec=spec))
    many = calls()
    assert [each.split("?")[0] for each in many] == [each.split("?")[0] for each in one]
    assert len(many) <= 6
    assert [each.spec.launch for each in place.observe().trials] == [1, 2, 3, 4, 5, 6]


def test_facts_are_plain_json_without_nan(place: Place) -> None:
    launch(place)
    json.dumps(place.observe().plain(), allow_nan=False)
