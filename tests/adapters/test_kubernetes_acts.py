"""Actions in a cluster: each may be repeated, and none touches what is not ours."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client

from specschedule.adapters.kubernetes import KubernetesWorld
from specschedule.core.context_axis import CLASS
from specschedule.core.evidence import Cell, Profile
from specschedule.core.observed import (
    Action,
    CreateTrial,
    DeleteTrial,
    RecordTrial,
    RestoreArguments,
    SetFinalizer,
    SetSpeculative,
    StartLaunch,
    StartVisit,
    StopLaunch,
    StopVisit,
    TrialStatus,
)
from specschedule.core.schedule import ROWS, additional_config
from specschedule.core.target import TargetFacts
from specschedule.core.visit import Screen
from specschedule.engine.deliver import table_file
from specschedule.ports import Conflict, Refused
from specschedule.vllm_facts.instruments import STEP_FLAGS

from .conftest import Place, serving, until, wanted

pytestmark = pytest.mark.cluster

TRIAL = "chat-7f3a91c2-candidate-card-1"
TWO = {"method": "eagle3", "model": "d", "num_speculative_tokens": 2}


def perform(place: Place, *actions: Action) -> None:
    for action in actions:
        place.world.perform(place.key, action)


def create(place: Place, **fields: Any) -> None:
    perform(place, CreateTrial(name=TRIAL, spec=place.plan(**fields)))


def launch(place: Place, **fields: Any) -> dict[str, Any]:
    create(place, **fields)
    perform(place, StartLaunch(trial=TRIAL))
    return place.get("pods", TRIAL)


def server(deployment: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def test_a_trial_is_created_once_however_often_it_is_asked_for(place: Place) -> None:
    create(place)
    stored = place.get("spectrials", TRIAL)
    create(place)
    assert place.get("spectrials", TRIAL) == stored
    (owner,) = stored["metadata"]["ownerReferences"]
    assert owner["uid"] == place.get("specschedules", "chat")["metadata"]["uid"]
    assert [each.spec for each in place.observe().trials] == [place.plan()]


def test_a_trial_of_that_name_with_another_plan_is_refused(place: Place) -> None:
    create(place)
    with pytest.raises(Refused, match="another plan: delete it"):
        create(place, position=2)


def test_somebody_elses_trial_of_that_name_is_left_alone_and_named(place: Place) -> None:
    foreign = {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecTrial",
        "metadata": {"name": TRIAL},
        "spec": place.plan().plain(),
    }
    place.apply(foreign)
    before = place.get("spectrials", TRIAL)
    with pytest.raises(Refused, match=f"SpecTrial {place.namespace}/{TRIAL} exists and is not"):
        create(place)
    perform(place, DeleteTrial(trial=TRIAL))
    assert place.get("spectrials", TRIAL) == before


def test_a_launch_is_a_pod_with_the_arms_argument_and_no_label_of_serving(place: Place) -> None:
    pod = launch(place)
    perform(place, StartLaunch(trial=TRIAL))
    (container,) = pod["spec"]["containers"]
    old = server(place.get("deployments", "chat"))
    assert container["command"] == old["command"]
    changed = [i for i, each in enumerate(old["args"]) if container["args"][i] != each]
    assert changed == [3]
    assert container["args"][3].replace(" ", "") == (
        '{"method":"eagle3","model":"d","num_speculative_tokens":2}'
    )
    assert not {"app", "tier"} & pod["metadata"]["labels"].keys()
    assert pod["metadata"]["uid"] == place.get("pods", TRIAL)["metadata"]["uid"]


def test_the_arm_none_has_no_speculative_argument(place: Place) -> None:
    (container,) = launch(place, speculative=None)["spec"]["containers"]
    assert container["args"] == ["--max-num-seqs", "16", "--seed", "0"]


ARMS = {
    "unchanged": {"speculative": None, "unchanged": True},
    "without speculation": {"speculative": None},
    "drafting": {},
}


@pytest.mark.parametrize("arm", ARMS)
def test_with_instruments_every_arm_carries_the_same_and_serving_none(
    place: Place, arm: str
) -> None:
    before = place.get("deployments", "chat")["spec"]
    place.world = KubernetesWorld(
        metrics=place.metrics, image="specschedule:test", api=place.api, instruments=True
    )
    spec = launch(place, **ARMS[arm])["spec"]
    (container,) = spec["containers"]
    flag = "--worker-extension-cls=specschedule.engine.fingerprint.Fingerprint"
    assert container["args"][-3:] == [*STEP_FLAGS, flag]
    values = {each["name"]: each["value"] for each in container["env"]}
    assert values["PYTHONPATH"] in {m["mountPath"] for m in container["volumeMounts"]}
    assert values["SPECSCHEDULE_SLO_TTFT_MS"] == "500"
    assert values["SPECSCHEDULE_STEP_COUNTERS"] == "1"
    (init,) = spec["initContainers"]
    assert init["image"] == "specschedule:test"
    assert init["resources"] == {"requests": {"cpu": "10m"}}
    assert place.get("deployments", "chat")["spec"] == before


def test_a_probe_starts_with_its_scheduler_and_a_secret_that_its_load_job_has_too(
    place: Place,
) -> None:
    place.world = KubernetesWorld(
        metrics=place.metrics, image="specschedule:test", api=place.api, instruments=True
    )
    screen = Screen(batch_sizes=[1, 8], max_tokens=2, max_num_seqs=16, secret="only-this-launch")
    visit = place.plan().visit.model_copy(update={"windows": [], "screen": screen})
    (container,) = launch(place, arm="probe", visit=visit)["spec"]["containers"]
    scheduler = "--scheduler-cls=specschedule.engine.probe.EitherProbeScheduler"
    assert [each for each in container["args"] if "scheduler" in each] == [scheduler]
    values = {each["name"]: each["value"] for each in container["env"]}
    assert values["SPECSCHEDULE_PROBE_SECRET"] == "only-this-launch"
    (trial,) = place.observe().trials
    assert trial.spec.visit.screen == screen


def test_rows_by_context_start_with_their_scheduler_and_its_table(place: Place) -> None:
    place.world = KubernetesWorld(
        metrics=place.metrics, image="specschedule:test", api=place.api, instruments=True
    )
    rows = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]
    spec = launch(place, schedule=rows, context_axis=True)["spec"]
    (container,) = spec["containers"]
    assert f"--scheduler-cls={CLASS}" in container["args"]
    values = {each["name"]: each["value"] for each in container["env"]}
    (init,) = spec["initContainers"]
    *_, folder, option, table = init["command"]
    assert (option, json.loads(table)) == ("--table", rows)
    assert values["SPECSCHEDULE_TABLE"] == f"{folder}/{table_file(rows)}"
    seen = place.observe()
    assert seen.probes, "launches can carry a scheduler of ours"
    (trial,) = seen.trials
    assert (trial.spec.schedule, trial.spec.context_axis) == (rows, True)


OWN = ["--scheduler-cls", CLASS, "--additional-config", '{"theirs": 1}']
FIVE = {**TWO, ROWS: [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 2]]}


def test_where_the_template_names_our_scheduler_rows_by_context_are_promoted_and_taken_back(
    place: Place,
) -> None:
    edit_target(place, lambda found: server(found)["args"].extend(OWN))
    before = place.target()
    original = server(place.get("deployments", "chat"))["args"]
    write_target(place, lambda version: SetSpeculative(speculative=FIVE, resource_version=version))
    promoted = server(place.get("deployments", "chat"))["args"]
    assert len(promoted) == len(original)
    assert json.loads(promoted[-1]) == {"theirs": 1} | additional_config(FIVE[ROWS])
    after = place.target()
    assert after.server.speculative == FIVE
    assert after.template_hash == before.template_hash
    write_target(
        place,
        lambda version: RestoreArguments(
            field="args",
            arguments=before.server.arguments,
            expected=FIVE,
            resource_version=version,
        ),
    )
    assert server(place.get("deployments", "chat"))["args"] == original


def test_without_instruments_launches_carry_no_scheduler_of_ours(place: Place) -> None:
    assert not place.observe().probes


def test_an_unchanged_arm_has_the_targets_arguments_byte_for_byte(place: Place) -> None:
    (container,) = launch(place, speculative=None, unchanged=True)["spec"]["containers"]
    assert container["args"] == server(place.get("deployments", "chat"))["args"]


def edit_target(place: Place, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the Deployment as a person would, whose tools try again when its status moves."""
    while True:
        deployment = place.get("deployments", "chat")
        change(deployment)
        try:
            place.apps.replace_namespaced_deployment("chat", place.namespace, deployment)
            return
        except client.ApiException as error:
            if error.status != 409:
                raise


def write_target(place: Place, action: Callable[[str], Action]) -> None:
    """Look and act until no status update of the Deployment came in between, as a run does."""
    while True:
        try:
            perform(place, action(place.target().resource_version))
            return
        except Conflict as conflict:
            if f"Deployment {place.namespace}/chat changed" not in str(conflict):
                raise


def test_arguments_that_come_from_a_config_map_are_read_and_kept(empty: Place) -> None:
    data = {"seqs": "24", "spec": '{"method": "ngram", "num_speculative_tokens": 3}'}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "engine"}}
    empty.apply({**body, "data": data})
    deployment = serving()
    server(deployment)["args"] = ["--max-num-seqs", "$(SEQS)", "--speculative-config", "$(SPEC)"]
    server(deployment)["env"] = [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": "engine", "key": name.lower()}}}
        for name in ("SEQS", "SPEC")
    ]
    empty.apply(deployment)
    empty.apply(wanted())
    facts = empty.target().server
    assert (facts.max_num_seqs, facts.speculative["method"]) == (24, "ngram")
    (container,) = launch(empty, speculative=None)["spec"]["containers"]
    assert container["args"] == ["--max-num-seqs", "$(SEQS)"]


def another_image(deployment: dict[str, Any]) -> None:
    server(deployment)["image"] = "example.test/vllm:0.33.0"


def another_speculation(deployment: dict[str, Any]) -> None:
    server(deployment)["args"][3] = '{"method": "ngram", "num_speculative_tokens": 3}'


def test_a_template_that_changed_since_the_plan_stops_the_launch(place: Place) -> None:
    create(place)
    edit_target(place, another_image)
    with pytest.raises(Conflict, match="template changed"):
        perform(place, StartLaunch(trial=TRIAL))
    assert place.missing("pods", TRIAL)


def test_an_incumbent_whose_argument_changed_since_the_plan_is_not_launched(place: Place) -> None:
    create(place, arm="incumbent", unchanged=True)
    edit_target(place, another_speculation)
    with pytest.raises(Conflict, match="arguments changed"):
        perform(place, StartLaunch(trial=TRIAL))
    assert place.missing("pods", TRIAL)


def test_somebody_elses_pod_of_that_name_is_never_adopted_nor_deleted(place: Place) -> None:
    place.apply(place.pod(TRIAL, labels={"app.kubernetes.io/managed-by": "specschedule"}))
    create(place)
    with pytest.raises(Refused, match="not ours"):
        perform(place, StartLaunch(trial=TRIAL))
    perform(place, StopLaunch(trial=TRIAL))
    assert "deletionTimestamp" not in place.get("pods", TRIAL)["metadata"]


def test_a_service_that_would_send_users_to_trial_pods_stops_the_launch(place: Place) -> None:
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "wide"},
            "spec": {
                "selector": {"app.kubernetes.io/managed-by": "specschedule"},
                "ports": [{"port": 80}],
            },
        }
    )
    with pytest.raises(Refused, match=r"Service .*/wide selects trial pods"):
        launch(place)
    assert place.missing("pods", TRIAL)


def test_a_quota_is_quoted(place: Place) -> None:
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "no-pods"},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    quota = place.core.read_namespaced_resource_quota
    until(lambda: bool(quota("no-pods", place.namespace).status.hard))
    with pytest.raises(Refused, match="exceeded quota: no-pods"):
        launch(place)


def test_a_quota_that_stops_a_load_job_is_quoted_though_only_an_event_says_so(
    place: Place,
) -> None:
    launch(place)
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one-pod"},
            "spec": {"hard": {"pods": "1"}},
        }
    )
    quota = place.core.read_namespaced_resource_quota
    until(lambda: bool(quota("one-pod", place.namespace).status.hard))
    visit = place.plan().visit.model_copy(update={"url": "http://10.0.0.7:8000"})
    perform(place, StartVisit(trial=TRIAL, visit=visit))

    def said() -> str:
        seen = place.observe().trials[0].visit
        assert seen is not None
        assert seen.phase == "Running"
        return seen.message

    until(lambda: "exceeded quota: one-pod" in said())


def test_a_visit_is_a_job_and_stopping_it_takes_only_it(place: Place) -> None:
    launch(place)
    visit = place.plan().visit.model_copy(update={"url": "http://10.0.0.7:8000", "visit": 1})
    perform(place, *[StartVisit(trial=TRIAL, visit=visit)] * 2)
    (job,) = place.names("jobs")
    assert job == f"{TRIAL}-v1"
    seen = place.observe().trials[0].visit
    assert seen is not None
    assert seen.phase == "Running"
    perform(place, *[StopVisit(trial=TRIAL)] * 2)
    until(lambda: place.names("jobs") == [])
    assert "deletionTimestamp" not in place.get("pods", TRIAL)["metadata"]


def test_stopping_a_launch_twice_deletes_its_pod_once(place: Place) -> None:
    launch(place)
    perform(place, *[StopLaunch(trial=TRIAL)] * 2)
    until(lambda: place.missing("pods", TRIAL))
    perform(place, StopLaunch(trial=TRIAL))


def test_a_pod_still_going_away_is_not_taken_for_the_new_one(place: Place) -> None:
    create(place)
    perform(place, StartLaunch(trial=TRIAL))
    held = {"metadata": {"finalizers": ["specschedule.dev/test"]}}
    place.core.patch_namespaced_pod(TRIAL, place.namespace, held)
    perform(place, StopLaunch(trial=TRIAL))
    with pytest.raises(Conflict, match="being deleted"):
        perform(place, StartLaunch(trial=TRIAL))
    free = {"metadata": {"finalizers": None}}
    place.core.patch_namespaced_pod(TRIAL, place.namespace, free)


def cell(name: str) -> Cell:
    profile = Profile(kind="hold", concurrency=8)
    return Cell(
        cell=name,
        arm="candidate-card",
        launch=1,
        profile=profile,
        window_seconds=10,
        offered=20,
        completed=20,
    )


def test_a_record_is_kept_and_an_unchanged_one_is_not_written(place: Place) -> None:
    create(place)
    status = TrialStatus(started_at="2026-11-29T10:00:00Z", visits=1, cells=[cell("a"), cell("b")])
    perform(place, RecordTrial(trial=TRIAL, status=status))
    stored = place.get("spectrials", TRIAL)
    perform(place, RecordTrial(trial=TRIAL, status=status))
    assert place.get("spectrials", TRIAL) == stored
    assert place.observe().trials[0].status == status
    fewer = status.model_copy(update={"cells": []})
    perform(place, RecordTrial(trial=TRIAL, status=fewer))
    assert place.observe().trials[0].status == fewer


def test_a_record_that_is_closed_stays_as_it_is(place: Place) -> None:
    create(place)
    over = TrialStatus(ended_at="2026-11-29T10:00:00Z", void="Preempted")
    perform(place, *[RecordTrial(trial=TRIAL, status=over)] * 2)
    with pytest.raises(Conflict, match="its record stays"):
        perform(place, RecordTrial(trial=TRIAL, status=TrialStatus(cells=[cell("a")])))
    assert place.observe().trials[0].status == over


def test_a_deleted_trial_takes_its_pod_along_and_is_deleted_once(place: Place) -> None:
    launch(place)
    perform(place, *[DeleteTrial(trial=TRIAL)] * 2)
    until(lambda: place.missing("pods", TRIAL) and place.missing("spectrials", TRIAL))


def delete(place: Place) -> None:
    place.custom.delete_namespaced_custom_object(
        "specschedule.dev", "v1alpha1", place.namespace, "specschedules", "chat"
    )


def test_a_deleted_schedule_takes_everything_along_without_an_operator(place: Place) -> None:
    launch(place)
    delete(place)
    until(lambda: place.missing("pods", TRIAL) and place.missing("spectrials", TRIAL))
    assert place.world.observe(place.key) is None
    assert not place.missing("deployments", "chat")


def test_nothing_is_created_for_a_schedule_that_is_being_deleted(place: Place) -> None:
    create(place)
    plan = place.plan(launch=2)
    perform(place, SetFinalizer(present=True))
    delete(place)
    for action in (
        CreateTrial(name="chat-7f3a91c2-none-2", spec=plan),
        StartLaunch(trial=TRIAL),
        StartVisit(trial=TRIAL, visit=plan.visit),
    ):
        with pytest.raises(Conflict, match="being deleted"):
            perform(place, action)
    assert place.observe().schedule.deleting
    perform(place, *[SetFinalizer(present=False)] * 2)
    until(lambda: place.missing("specschedules", "chat"))


def test_our_finalizer_comes_and_goes_and_others_stay(place: Place) -> None:
    theirs = {"metadata": {"finalizers": ["example.test/keep"]}}
    place.custom.patch_namespaced_custom_object(
        "specschedule.dev", "v1alpha1", place.namespace, "specschedules", "chat", theirs
    )
    perform(place, *[SetFinalizer(present=True)] * 2)
    both = ["example.test/keep", "specschedule.dev/promotion"]
    assert place.get("specschedules", "chat")["metadata"]["finalizers"] == both
    assert place.observe().schedule.finalizer
    perform(place, *[SetFinalizer(present=False)] * 2)
    assert place.get("specschedules", "chat")["metadata"]["finalizers"] == both[:1]
    gone: dict[str, Any] = {"metadata": {"finalizers": None}}
    place.custom.patch_namespaced_custom_object(
        "specschedule.dev", "v1alpha1", place.namespace, "specschedules", "chat", gone
    )


def promote(place: Place) -> None:
    write_target(place, lambda version: SetSpeculative(speculative=TWO, resource_version=version))


def test_a_promotion_changes_one_element_of_the_template_and_nothing_else(place: Place) -> None:
    before = place.get("deployments", "chat")
    promote(place)
    after = place.get("deployments", "chat")
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert server(after)["args"][3].count('"num_speculative_tokens"') == 1
    server(after)["args"][3] = server(before)["args"][3]
    assert after["spec"] == before["spec"]
    managers = {each["manager"]: each for each in after["metadata"]["managedFields"]}
    assert "replicas" not in str(managers["specschedule"])


def test_a_promotion_is_done_once_and_can_be_read_back(place: Place) -> None:
    promote(place)
    stored = place.get("deployments", "chat")
    promote(place)
    assert place.get("deployments", "chat")["metadata"]["generation"] == 2
    assert stored["metadata"]["generation"] == 2
    assert place.target().server.speculative == TWO


def test_a_promotion_of_what_changed_since_it_was_looked_at_is_a_conflict(place: Place) -> None:
    version = place.target().resource_version
    edit_target(place, another_image)
    with pytest.raises(Conflict, match="changed since"):
        perform(place, SetSpeculative(speculative=TWO, resource_version=version))
    assert server(place.get("deployments", "chat"))["args"][3].count("eagle3") == 1


def test_a_target_that_another_controller_owns_is_never_written(empty: Place) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    empty.apply(config_map)
    owned = serving()
    owned["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": empty.get("configmaps", "owner")["metadata"]["uid"],
            "controller": True,
        }
    ]
    empty.apply(owned)
    empty.apply(wanted())
    assert empty.target().owner == "ConfigMap/owner"
    with pytest.raises(Refused, match="controlled by ConfigMap/owner"):
        promote(empty)
    assert empty.get("deployments", "chat")["metadata"]["generation"] == 1


def restore(place: Place, before: TargetFacts) -> None:
    arguments = before.server.arguments
    assert arguments is not None
    write_target(
        place,
        lambda version: RestoreArguments(
            field="args", arguments=arguments, expected=TWO, resource_version=version
        ),
    )


def test_a_rollback_puts_the_list_back_byte_for_byte_and_once(place: Place) -> None:
    before = place.target()
    original = server(place.get("deployments", "chat"))["args"]
    promote(place)
    restore(place, before)
    assert server(place.get("deployments", "chat"))["args"] == original
    restore(place, before)
    assert place.get("deployments", "chat")["metadata"]["generation"] == 3


def test_a_rollback_leaves_a_foreign_speculative_argument_alone(place: Place) -> None:
    before = place.target()
    promote(place)
    edit_target(place, another_speculation)
    with pytest.raises(Conflict, match="not the one we wrote"):
        restore(place, before)
    assert "ngram" in server(place.get("deployments", "chat"))["args"][3]


def test_a_rollback_keeps_another_argument_that_somebody_changed_meanwhile(place: Place) -> None:
    before = place.target()
    promote(place)

    def another_seed(deployment: dict[str, Any]) -> None:
        server(deployment)["args"][5] = "7"

    edit_target(place, another_seed)
    restore(place, before)
    target = place.target()
    assert target.server.speculative == before.server.speculative
    assert server(place.get("deployments", "chat"))["args"][4:] == ["--seed", "7"]


def test_a_status_is_stored_once_and_what_left_it_is_gone(place: Place) -> None:
    uid = place.observe().schedule.uid
    first = {"runId": "7f3a91c2", "stage": "Measuring", "message": "x", "outcome": None}
    place.world.report(place.key, first, resource_uid=uid)
    stored = place.get("specschedules", "chat")
    place.world.report(place.key, first, resource_uid=uid)
    assert place.get("specschedules", "chat") == stored
    place.world.report(place.key, {"runId": "7f3a91c2", "stage": "Ended"}, resource_uid=uid)
    assert place.observe().schedule.status == {"runId": "7f3a91c2", "stage": "Ended"}


def test_a_status_never_reaches_an_object_that_took_the_name_later(place: Place) -> None:
    uid = place.observe().schedule.uid
    delete(place)
    place.world.report(place.key, {"stage": "Ended"}, resource_uid=uid)
    place.apply(wanted())
    place.world.report(place.key, {"stage": "Ended"}, resource_uid=uid)
    assert place.observe().schedule.status == {}


def test_the_same_news_is_one_event_that_counts(place: Place) -> None:
    def news(message: str) -> None:
        place.world.announce(place.key, "Promoted", message, warning=False)

    news("card serves")
    news("card serves")
    news("another card serves")
    events = place.core.list_namespaced_event(
        place.namespace, field_selector="involvedObject.kind=SpecSchedule"
    ).items
    assert sorted((each.message, each.count, each.type) for each in events) == [
        ("another card serves", 1, "Normal"),
        ("card serves", 2, "Normal"),
    ]
    assert events[0].involved_object.uid == place.observe().schedule.uid


def test_an_event_may_be_long(place: Place) -> None:
    place.world.announce(place.key, "Aborted", "x" * 5000, warning=True)
