"""Carries out actions in the cluster. Each may be repeated: names are derived, writes guarded.

Nothing that is not ours is adopted, overwritten or deleted, and nothing is created for a
SpecSchedule that is being deleted.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from specschedule.adapters.kubernetes.api import AlreadyExists, Api, Object, Unprocessable
from specschedule.adapters.kubernetes.observe import Observer
from specschedule.adapters.kubernetes.schedules import container_name, target_name
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
    TrialSpec,
    TrialStatus,
)
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts, Unreadable
from specschedule.core.visit import Visit
from specschedule.ports import Conflict, Key, Refused, Unavailable
from specschedule.vllm_facts.arguments import (
    ArgumentEdit,
    find_container,
    read_container,
    with_speculative,
)
from specschedule.vllm_facts.instruments import (
    Instruments,
    arm_arguments,
    following,
    observing,
    probing,
    timing,
)
from specschedule.vllm_facts.target import sourced_environment
from specschedule.wire import events, jobs, manifests, names, patches, statuses
from specschedule.wire.delivery import FOLDER, Delivery, clash

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    """What the operator adds to the pods it makes."""

    image: str
    """Image of load jobs, and of what trial pods carry."""
    image_pull_policy: str = "IfNotPresent"
    """Their imagePullPolicy."""
    priority_class: str | None = None
    """PriorityClass of trial pods and load jobs."""
    instruments: bool = False
    """Whether trial pods carry what observes the engine from inside."""


class Actor:
    """Writes to the cluster."""

    def __init__(
        self, api: Api, observer: Observer, settings: Settings, *, clock: Callable[[], float]
    ) -> None:
        """Make an actor.

        Args:
            api: The Kubernetes API.
            observer: Reads targets the way the decision saw them.
            settings: What the operator adds to the pods it makes.
            clock: Unix seconds.
        """
        self._api = api
        self._observer = observer
        self._settings = settings
        self._clock = clock

    def perform(self, key: Key, action: Action) -> None:
        """Carry out one action; repeating it changes nothing.

        Raises:
            Conflict: A precondition did not hold.
            Refused: The API server or one of our own safety rules says no.
        """
        match action:
            case CreateTrial(name=name, spec=spec):
                self._create_trial(key, name, spec)
            case StartLaunch(trial=trial):
                self._start_launch(key, trial)
            case StartVisit(trial=trial, visit=visit):
                self._start_visit(key, trial, visit)
            case StopVisit(trial=trial):
                self._stop_visit(key, trial)
            case StopLaunch(trial=trial):
                self._stop_launch(key, trial)
            case RecordTrial(trial=trial, status=status):
                self._record(key, trial, status)
            case DeleteTrial(trial=trial):
                if (found := self._own_trial(key, trial)) is not None:
                    self._api.delete("spectrials", found)
            case SetSpeculative() | RestoreArguments():
                self._write_target(key, action)
            case SetFinalizer(present=present):
                self._set_finalizer(key, present)

    def report(self, key: Key, status: Mapping[str, Any], *, resource_uid: str) -> None:
        """Store the status, if it differs from what is stored and the object is the same."""
        schedule = self._api.get("specschedules", *key)
        if schedule is None or schedule["metadata"]["uid"] != resource_uid:
            return
        patch = patches.merge_patch(schedule.get("status") or {}, statuses.fitted(status))
        if patch:
            body = {"metadata": {"uid": resource_uid}, "status": patch}
            self._api.patch("specschedules", *key, body, subresource="status")

    def announce(self, key: Key, reason: str, message: str, *, warning: bool) -> None:
        """Emit an event about the SpecSchedule; the same one again is counted, not repeated.

        Events are news for people; a run goes on when they cannot be written.
        """
        try:
            self._announce(key, reason, message, warning=warning)
        except (Conflict, Refused, Unavailable) as error:
            log.warning("%s/%s: no event for %s: %s", *key, reason, error)

    def _announce(self, key: Key, reason: str, message: str, *, warning: bool) -> None:
        schedule = self._api.get("specschedules", *key)
        if schedule is None:
            return
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = events.event(schedule, reason, message, warning=warning, now=now)
        try:
            self._api.create("events", event)
        except AlreadyExists:
            name = event["metadata"]["name"]
            stored = self._api.get("events", key.namespace, name)
            if stored is not None:
                again = {"count": (stored.get("count") or 1) + 1, "lastTimestamp": now}
                self._api.patch("events", key.namespace, name, again)

    def _schedule(self, key: Key) -> tuple[Object, Spec]:
        """Return a SpecSchedule that may still get children."""
        schedule = self._api.get("specschedules", *key)
        if schedule is None or "deletionTimestamp" in schedule["metadata"]:
            raise Conflict(f"SpecSchedule {key.namespace}/{key.name} is being deleted")
        return schedule, Spec.model_validate(schedule["spec"])

    def _own_trial(self, key: Key, name: str) -> Object | None:
        """Return a SpecTrial of this SpecSchedule; None when there is none, or it is not ours."""
        schedule = self._api.get("specschedules", *key)
        trial = self._api.get("spectrials", key.namespace, name)
        if schedule is None or trial is None:
            return None
        return trial if names.controlled_by(trial, schedule["metadata"]["uid"]) else None

    def _live_trial(self, key: Key, name: str) -> Object:
        trial = self._own_trial(key, name)
        if trial is None or "deletionTimestamp" in trial["metadata"]:
            raise Conflict(f"SpecTrial {key.namespace}/{name} is gone")
        return trial

    def _create(self, resource: str, body: Object) -> None:
        """Create a child; one that stands already is fine when it is the same child."""
        metadata = body["metadata"]
        try:
            self._api.create(resource, body)
            return
        except AlreadyExists:
            found = self._api.get(resource, metadata["namespace"], metadata["name"])
        what = f"{body['kind']} {metadata['namespace']}/{metadata['name']}"
        if found is None or "deletionTimestamp" in found["metadata"]:
            raise Conflict(f"{what} is being deleted; wait until it is gone")
        owner = metadata["ownerReferences"][0]["uid"]
        if not names.controlled_by(found, owner):
            raise Refused(
                f"{what} exists and is not ours: rename or delete it, this run needs the name"
            )
        if resource == "spectrials" and found["spec"] != body["spec"]:
            raise Refused(f"{what} exists with another plan: delete it")

    def _create_trial(self, key: Key, name: str, spec: TrialSpec) -> None:
        schedule, _ = self._schedule(key)
        self._create("spectrials", manifests.spec_trial(schedule, name, spec))

    def _start_launch(self, key: Key, name: str) -> None:
        schedule, spec = self._schedule(key)
        trial = self._live_trial(key, name)
        plan = TrialSpec.model_validate(trial["spec"])
        deployment = self._deployment(schedule)
        facts = self._observer.deployment_facts(schedule, deployment, look_at_pods=False)
        if isinstance(facts.server, Unreadable):
            raise Refused(facts.server.message)
        if facts.template_hash != plan.template_hash:
            raise Conflict("the target's pod template changed since the launch was planned")
        if plan.unchanged and facts.server.arguments != plan.incumbent_arguments:
            raise Conflict("the target's arguments changed since the launch was planned")
        container, environment = self._container(schedule, deployment)
        carried = self._instruments(deployment, container, facts.server, spec, environment)
        if plan.screening:
            carried = timing(carried)
        if plan.visit.screen is not None and (secret := plan.visit.screen.secret) is not None:
            carried = probing(carried, container, facts.server, secret, environment)
        if plan.context_axis:
            rows = plan.schedule or []
            found = following(carried, container, facts.server, rows, FOLDER, environment)
            if isinstance(found, Unreadable):
                raise Refused(found.message)
            carried = found
        edit = arm_arguments(
            container,
            speculative="unchanged" if plan.unchanged else plan.speculative,
            graph_mode=plan.graph_mode,
            instruments=carried,
            environment=environment,
        )
        if isinstance(edit, Unreadable):
            raise Refused(edit.message)
        pod = manifests.trial_pod(
            deployment,
            trial,
            container=facts.server.container,
            port=facts.server.port,
            arguments=(edit.field, edit.new) if edit else None,
            priority_class=self._settings.priority_class,
            deadline_seconds=int(spec.experiment.deadline) + 3600,
            delivery=Delivery(
                carried, self._settings.image, self._settings.image_pull_policy, environment
            ),
        )
        services = self._api.list("services", key.namespace)
        if selecting := names.selecting(services, pod["metadata"]["labels"]):
            raise Refused(
                f"Service {key.namespace}/{selecting[0]} selects trial pods by their labels, so "
                "they would get production traffic: narrow its spec.selector"
            )
        self._create("pods", pod)

    def _start_visit(self, key: Key, name: str, visit: Visit) -> None:
        _, spec = self._schedule(key)
        job = manifests.visit_job(
            self._live_trial(key, name),
            visit,
            image=self._settings.image,
            pull_policy=self._settings.image_pull_policy,
            prompts=spec.load.prompts.config_map if spec.load.prompts else None,
            trace=spec.load.trace,
            records=spec.load.records.persistent_volume_claim if spec.load.records else None,
            api_key=spec.load.api_key_secret_ref,
            priority_class=self._settings.priority_class,
            deadline_seconds=min(jobs.longest_seconds(visit), int(spec.experiment.deadline)),
        )
        self._create("jobs", job)

    def _stop_visit(self, key: Key, name: str) -> None:
        trial = self._own_trial(key, name)
        if trial is None:
            return
        uid = trial["metadata"]["uid"]
        labels = f"{names.TRIAL}={names.fitted(name)},{names.ROLE}=load"
        for job in self._api.list("jobs", key.namespace, labels=labels):
            if names.controlled_by(job, uid):
                self._api.delete("jobs", job)

    def _stop_launch(self, key: Key, name: str) -> None:
        trial = self._own_trial(key, name)
        pod = self._api.get("pods", key.namespace, name)
        if trial and pod and names.controlled_by(pod, trial["metadata"]["uid"]):
            self._api.delete("pods", pod)

    def _record(self, key: Key, name: str, status: TrialStatus) -> None:
        trial = self._live_trial(key, name)
        stored = trial.get("status") or {}
        patch = patches.merge_patch(stored, status.plain())
        if not patch:
            return
        if stored.get("endedAt"):
            raise Conflict(f"SpecTrial {key.namespace}/{name} is over; its record stays")
        version = trial["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "status": patch}
        self._api.patch("spectrials", key.namespace, name, body, subresource="status")

    def _deployment(self, schedule: Object) -> Object:
        namespace, name = schedule["metadata"]["namespace"], target_name(schedule)
        deployment = self._api.get("deployments", namespace, name) if name else None
        if deployment is None:
            raise Conflict(f"Deployment {namespace}/{name} is gone")
        return deployment

    def _edit(
        self, schedule: Object, deployment: Object, speculative: Mapping[str, Any] | None
    ) -> ArgumentEdit:
        container, environment = self._container(schedule, deployment)
        edit = with_speculative(container, speculative, environment=environment)
        if isinstance(edit, Unreadable):
            raise Refused(edit.message)
        return edit

    def _container(
        self, schedule: Object, deployment: Object
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Return the vLLM container, and its variables that come from ConfigMaps."""
        pod_spec = deployment["spec"]["template"]["spec"]
        container = find_container(pod_spec, container_name(schedule))
        if isinstance(container, Unreadable):
            raise Refused(container.message)
        maps = self._observer.config_maps(deployment["metadata"]["namespace"], pod_spec)
        return container, sourced_environment(container, maps)

    def _instruments(
        self,
        deployment: Object,
        container: Mapping[str, Any],
        server: ServerFacts,
        spec: Spec,
        environment: Mapping[str, str],
    ) -> Instruments:
        """Return what trial pods of this target carry, whichever their arm is."""
        if not self._settings.instruments:
            return Instruments()
        if why := clash(deployment["spec"]["template"]["spec"], server.container):
            return Instruments(left_out=(f"nothing can be delivered: {why}",))
        return observing(container, server, spec.slo, environment)

    def _write_target(self, key: Key, action: SetSpeculative | RestoreArguments) -> None:
        """Change the one argument of the target, and nothing else, if nothing else changed."""
        schedule = self._api.get("specschedules", *key)
        if schedule is None:
            raise Conflict(f"SpecSchedule {key.namespace}/{key.name} is gone")
        deployment = self._deployment(schedule)
        metadata = deployment["metadata"]
        what = f"Deployment {metadata['namespace']}/{metadata['name']}"
        if metadata["resourceVersion"] != action.resource_version:
            raise Conflict(f"{what} changed since it was looked at")
        facts = self._observer.deployment_facts(schedule, deployment, look_at_pods=False)
        if facts.owner is not None:
            raise Refused(f"{what} is controlled by {facts.owner}: change it there")
        if isinstance(facts.server, Unreadable):
            raise Refused(facts.server.message)
        if isinstance(action, SetSpeculative):
            edit = self._edit(schedule, deployment, action.speculative)
        else:
            edit = self._restoring_edit(schedule, deployment, facts.server, action)
        patch = patches.argument_patch(
            deployment, facts.server.container, edit.field, edit.old, edit.new
        )
        if not patch:
            return
        try:
            self._api.patch("deployments", metadata["namespace"], metadata["name"], patch)
        except Unprocessable as refusal:
            now = self._deployment(schedule)["metadata"]["resourceVersion"]
            if now != metadata["resourceVersion"]:
                raise Conflict(f"{what} changed while it was written") from refusal
            raise

    def _restoring_edit(
        self,
        schedule: Object,
        deployment: Object,
        server: ServerFacts,
        action: RestoreArguments,
    ) -> ArgumentEdit:
        """Return the edit that puts the argument list back.

        An argument that somebody else changed meanwhile stays theirs: only where the rest of the
        list is as it was does the whole old list come back, byte for byte.
        """
        container, environment = self._container(schedule, deployment)
        now = list(container.get(action.field) or [])
        whole = ArgumentEdit(field=action.field, old=now, new=list(action.arguments))
        if now == whole.new:
            return whole
        if server.speculative != action.expected:
            raise Conflict("the target's speculative argument is not the one we wrote")
        before = {**container, action.field: whole.new}
        rest = _without_speculative(container, environment)
        if rest is not None and rest == _without_speculative(before, environment):
            return whole
        previous = read_container(before, environment=environment)
        if isinstance(previous, Unreadable):
            raise Refused(previous.message)
        return self._edit(schedule, deployment, previous.speculative)

    def _set_finalizer(self, key: Key, present: bool) -> None:
        schedule = self._api.get("specschedules", *key)
        if schedule is None:
            return
        metadata = schedule["metadata"]
        standing = metadata.get("finalizers") or []
        if (names.FINALIZER in standing) == present:
            return
        if present and "deletionTimestamp" in metadata:
            raise Conflict(f"SpecSchedule {key.namespace}/{key.name} is being deleted")
        others = [each for each in standing if each != names.FINALIZER]
        body = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*others, names.FINALIZER] if present else others,
            }
        }
        self._api.patch("specschedules", *key, body)


def _without_speculative(
    container: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[str, list[str]] | None:
    edit = with_speculative(container, None, environment=environment)
    return None if isinstance(edit, Unreadable) else (edit.field, edit.new)
