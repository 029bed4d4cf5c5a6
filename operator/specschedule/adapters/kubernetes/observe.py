"""Gathers the facts of one SpecSchedule: one list per kind, whatever the number of launches."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from specschedule.adapters.kubernetes.api import Api, Object
from specschedule.adapters.kubernetes.capacity import Capacity
from specschedule.adapters.kubernetes.schedules import (
    ahead,
    container_name,
    first_fault,
    schedule_facts,
    target_name,
)
from specschedule.adapters.kubernetes.servers import Servers, served_adapters
from specschedule.adapters.visits import final_counts, lost
from specschedule.core.evidence import Receipt
from specschedule.core.observed import (
    Observed,
    PodFacts,
    ScheduleFacts,
    TrialFacts,
    TrialSpec,
    TrialStatus,
    VisitFacts,
)
from specschedule.core.spec import Load, Spec, TraceReference, run_id
from specschedule.core.target import ServerFacts, TargetFacts, Unreadable
from specschedule.core.workload import Trace, Workload, trace_facts
from specschedule.ports import Key, Metrics, Unavailable
from specschedule.vllm_facts.failures import last_words
from specschedule.vllm_facts.logs import while_serving
from specschedule.vllm_facts.target import pod_gpus, target_facts
from specschedule.wire import delivery, jobs, names, pods

log = logging.getLogger(__name__)

_LAST_LINES = 400
_SLOW_SECONDS = 10.0
"""A pod that is not there or not begun after this long has a reason that its status lacks."""


class Observer:
    """Reads; it never writes to the cluster."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        *,
        prometheus_url: str | None,
        instruments: bool,
        clock: Callable[[], float],
    ) -> None:
        """Make an observer.

        Args:
            api: The Kubernetes API.
            metrics: Prometheus.
            prometheus_url: Server for objects that name none.
            instruments: Whether trial pods carry what runs inside the engine.
            clock: Unix seconds.
        """
        self._api = api
        self._metrics = metrics
        self._prometheus_url = prometheus_url
        self._instruments = instruments
        self._clock = clock
        self._capacity = Capacity(api)
        self._servers = Servers(api)

    def observe(self, key: Key) -> Observed | None:
        """Gather the facts; None when the SpecSchedule is gone."""
        schedules = self._api.list("specschedules", key.namespace)
        mine = next((each for each in schedules if each["metadata"]["name"] == key.name), None)
        if mine is None:
            return None
        schedule = schedule_facts(mine)
        spec = schedule.spec if isinstance(schedule.spec, Spec) else None
        url = spec.prometheus.url if spec and spec.prometheus else self._prometheus_url
        deployment = self._deployment(mine)
        target, metrics = self._target(mine, deployment), self._metrics.check(url)
        trials = self._trials(key.namespace, schedule.uid, url)
        serving = None
        beginning = spec is not None and _begins(schedule, spec, trials)
        if url and metrics.available and beginning and isinstance(target, TargetFacts):
            points = spec.searched if spec else []
            serving = self._metrics.serving(
                url, namespace=key.namespace, pods=target.pods, points=points
            )
        missing, workload = None, Workload()
        if spec is not None:
            missing, workload = self._load(key.namespace, spec.load)
        return Observed(
            schedule=schedule,
            target=target,
            trials=trials,
            metrics=metrics,
            serving=serving,
            load=missing,
            workload=workload,
            probes=self._instruments and _carries(target, deployment),
            other_run=ahead(schedules, mine),
        )

    def _deployment(self, schedule: Object) -> Object | None:
        namespace, name = schedule["metadata"]["namespace"], target_name(schedule)
        return self._api.get("deployments", namespace, name) if name else None

    def _target(self, schedule: Object, deployment: Object | None) -> TargetFacts | Unreadable:
        """Read the serving workload of a SpecSchedule."""
        if deployment is None:
            namespace, name = schedule["metadata"]["namespace"], target_name(schedule)
            return Unreadable(
                reason="TargetNotFound",
                message=f"Deployment {namespace}/{name} does not exist: spec.target.name must "
                "name a Deployment in the namespace of this object",
            )
        return self.deployment_facts(schedule, deployment, look_at_pods=True)

    def deployment_facts(
        self, schedule: Object, deployment: Object, *, look_at_pods: bool
    ) -> TargetFacts:
        """Read a Deployment as the target of a SpecSchedule.

        Args:
            schedule: The SpecSchedule, which may name the container.
            deployment: The Deployment as read.
            look_at_pods: Whether facts about running pods and free GPUs are wanted.
        """
        namespace = deployment["metadata"]["namespace"]
        pod_spec = deployment["spec"]["template"]["spec"]
        serving: list[Object] = []
        free_gpus = None
        if look_at_pods:
            selector = _selector(deployment["spec"]["selector"])
            serving = self._api.list("pods", namespace, labels=selector)
            free_gpus = self._capacity.free_gpus() if pod_gpus(pod_spec) else None
        facts = target_facts(
            deployment,
            pods=serving,
            config_maps=self.config_maps(namespace, pod_spec),
            free_gpus=free_gpus,
            container=container_name(schedule),
        )
        server = facts.server
        if isinstance(server, Unreadable) or not server.enable_lora:
            return facts
        served = server.model_copy(update={"adapters": served_adapters(serving, server.port)})
        return facts.model_copy(update={"server": served})

    def config_maps(
        self, namespace: str, pod_spec: Mapping[str, Any]
    ) -> dict[str, Mapping[str, str]]:
        """Read what a server's arguments may refer to: a config file or an environment source."""
        found: dict[str, Mapping[str, str]] = {}
        for name in sorted(_config_map_names(pod_spec)):
            config_map = self._api.get("configmaps", namespace, name)
            if config_map is not None:
                found[name] = config_map.get("data") or {}
        return found

    def _load(self, namespace: str, load: Load) -> tuple[Unreadable | None, Workload]:
        """Return what the load jobs would wait for in vain, and what they will send."""
        prompts = self._prompts(namespace, load.prompts.config_map) if load.prompts else []
        if isinstance(prompts, Unreadable):
            return prompts, Workload()
        trace = self._trace(namespace, load.trace) if load.trace else None
        if isinstance(trace, Unreadable):
            return trace, Workload()
        return self._records(namespace, load), Workload(categories=prompts, trace=trace)

    def _records(self, namespace: str, load: Load) -> Unreadable | None:
        if load.records is None:
            return None
        name = load.records.persistent_volume_claim
        if self._api.get("persistentvolumeclaims", namespace, name) is not None:
            return None
        return Unreadable(
            reason="RecordsNotFound",
            message=f"PersistentVolumeClaim {namespace}/{name} does not exist: create it, or leave "
            "spec.load.records out",
        )

    def _prompts(self, namespace: str, name: str) -> list[str] | Unreadable:
        config_map = self._api.get("configmaps", namespace, name)
        if config_map is None:
            return Unreadable(
                reason="PromptsNotFound",
                message=f"ConfigMap {namespace}/{name} does not exist: create it with one key per "
                "category of prompts, or leave spec.load.prompts out",
            )
        texts = config_map.get("data") or {}
        categories = sorted(name for name, text in texts.items() if text.strip())
        if not categories:
            return Unreadable(
                reason="PromptsEmpty",
                message=f"ConfigMap {namespace}/{name} holds no prompts: spec.load.prompts needs "
                "one key per category, with one prompt per line",
            )
        return categories

    def _trace(self, namespace: str, asked: TraceReference) -> Trace | Unreadable:
        config_map = self._api.get("configmaps", namespace, asked.config_map)
        where = f"ConfigMap {namespace}/{asked.config_map}"
        texts = (config_map or {}).get("data") or {}
        if asked.key not in texts:
            said = f"has no key {asked.key}" if config_map is not None else "does not exist"
            return Unreadable(
                reason="TraceNotFound",
                message=f"{where} {said}: create it with the recorded arrivals under that key, or "
                "leave spec.load.trace out",
            )
        try:
            return trace_facts(texts[asked.key], asked.key)
        except ValueError as error:
            return Unreadable(reason="TraceUnreadable", message=f"{where}: {error}")

    def _trials(self, namespace: str, uid: str, url: str | None) -> list[TrialFacts]:
        labels = f"{names.OWNER_UID}={uid}"
        trials = self._api.list("spectrials", namespace, labels=labels)
        if not trials:
            return []
        pods_by_owner = _by_controller(self._api.list("pods", namespace, labels=labels))
        jobs_by_owner = _by_controller(self._api.list("jobs", namespace, labels=labels))
        facts = [
            self._trial(trial, pods_by_owner, jobs_by_owner, url)
            for trial in trials
            if names.controlled_by(trial, uid)
        ]
        readable = [each for each in facts if each is not None]
        return sorted(readable, key=lambda each: (each.spec.launch, each.spec.attempt))

    def _trial(
        self,
        trial: Object,
        pods_by_owner: Mapping[str, list[Object]],
        jobs_by_owner: Mapping[str, list[Object]],
        url: str | None,
    ) -> TrialFacts | None:
        metadata = trial["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        try:
            spec = TrialSpec.model_validate(trial["spec"])
            status = TrialStatus.model_validate(trial.get("status") or {})
        except ValidationError as error:
            # No evidence can be read from it, and none is: a run that needs the name says so.
            fault = first_fault(error)
            log.warning("SpecTrial %s/%s is unreadable: %s", metadata["namespace"], name, fault)
            return None
        pod = next(iter(pods_by_owner.get(uid, [])), None)
        job = _newest_visit(jobs_by_owner.get(uid, []))
        visit = self._visit(job, pods_by_owner) if job else None
        return TrialFacts(
            name=name,
            spec=spec,
            status=status,
            pod=self._pod(pod, status, job, visit) if pod else lost(status, "the pod is gone"),
            visit=visit,
            **(
                final_counts(self._metrics, url, spec, _visit_number(job), visit, self._clock())
                if job and visit and status.ended_at is None
                else {}
            ),
        )

    def _pod(
        self, pod: Object, status: TrialStatus, job: Object | None, visit: VisitFacts | None
    ) -> PodFacts:
        container = pod["metadata"]["annotations"][names.CONTAINER]
        over = status.ended_at is not None
        last_line = None
        if pods.server_ended(pod) and not over:
            said = self._servers.log(pod, container, tail_lines=_LAST_LINES)
            last_line = last_words(said or "", pods.exit_code(pod))
        seen = pods.pod_facts(pod, was_ready=status.ready_at is not None, last_line=last_line)
        if seen.phase == "Pending" and seen.reason is None and self._slow(seen.created_at):
            seen = seen.model_copy(update={"message": self._warning(pod) or seen.message})
        if seen.phase == "Ready" and not over and status.receipt == Receipt():
            receipt = self._servers.receipt(pod, container)
            seen = seen.model_copy(update={"receipt": receipt})
        if job and visit and visit.phase != "Running" and seen.phase == "Ready" and not over:
            since = job["metadata"]["creationTimestamp"]
            said = self._servers.log(pod, container, since=since, timestamps=True)
            told = {"compiled_at": None} if said is None else while_serving(said)
            seen = seen.model_copy(update=told)
        return seen

    def _visit(self, job: Object, pods_by_owner: Mapping[str, list[Object]]) -> VisitFacts:
        pod = next(iter(pods_by_owner.get(job["metadata"]["uid"], [])), None)
        try:
            said = self._api.log(*_named(pod), "load") if pod is not None else None
        except Unavailable as error:
            # An unreachable kubelet may come back; when its node is given up, so is the log.
            return VisitFacts(
                phase="Running",
                message=f"its log cannot be read just now: {error}",
                created_at=pods.unix(job["metadata"]["creationTimestamp"]),
            )
        seen = jobs.visit_facts(job, pod, said)
        if seen.phase == "Running" and pod is None and self._slow(seen.created_at):
            seen = seen.model_copy(update={"message": self._warning(job) or seen.message})
        return seen

    def _slow(self, created_at: float) -> bool:
        return self._clock() - created_at > _SLOW_SECONDS

    def _warning(self, about: Object) -> str | None:
        """Return the last warning about an object: volumes and quotas are told nowhere else."""
        metadata = about["metadata"]
        fields = f"involvedObject.uid={metadata['uid']},type=Warning"
        try:
            warnings = self._api.list("events", metadata["namespace"], fields=fields)
        except Unavailable:  # What may not be read only says less.
            return None
        latest = max(warnings, key=_said_at, default=None)
        return f"{latest['reason']}: {latest['message']}" if latest else None


def _carries(target: TargetFacts | Unreadable, deployment: Object | None) -> bool:
    """Say whether pods of a target can carry a scheduler of ours."""
    if deployment is None or isinstance(target, Unreadable):
        return False
    server = target.server
    pod = deployment["spec"]["template"]["spec"]
    return isinstance(server, ServerFacts) and delivery.carries(pod, server.container)


def _begins(schedule: ScheduleFacts, spec: Spec, trials: Iterable[TrialFacts]) -> bool:
    """Say whether the next launch is the first of its run: what serving does is kept there."""
    run = run_id(schedule.uid, spec, schedule.retry)
    over = schedule.status.get("runId") == run and schedule.status.get("outcome")
    return not over and all(trial.spec.run_id != run for trial in trials)


def _visit_number(job: Object) -> int:
    return int(job["metadata"]["labels"][names.VISIT])


def _newest_visit(of_trial: Iterable[Object]) -> Object | None:
    """Return the newest load job that is not being deleted."""
    present = [job for job in of_trial if "deletionTimestamp" not in job["metadata"]]
    return max(present, key=_visit_number, default=None)


def _named(each: Object) -> tuple[str, str]:
    return each["metadata"]["namespace"], each["metadata"]["name"]


def _said_at(event: Object) -> str:
    said = event.get("lastTimestamp") or event.get("eventTime") or ""
    return str(said)


def _by_controller(objects: Iterable[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for each in objects:
        for reference in each["metadata"].get("ownerReferences") or []:
            if reference.get("controller"):
                found.setdefault(reference["uid"], []).append(each)
    return found


def _selector(selector: Mapping[str, Any]) -> str:
    """Write a LabelSelector as a query."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for rule in selector.get("matchExpressions") or []:
        key, values = rule["key"], ",".join(rule.get("values") or [])
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",  # codespell:ignore
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[rule["operator"]]
        )
    return ",".join(parts)


def _config_map_names(pod_spec: Mapping[str, Any]) -> set[str]:
    found = {
        volume["configMap"]["name"]
        for volume in pod_spec.get("volumes") or []
        if "configMap" in volume
    }
    for container in pod_spec["containers"]:
        for source in container.get("envFrom") or []:
            if "configMapRef" in source:
                found.add(source["configMapRef"]["name"])
        for variable in container.get("env") or []:
            reference = (variable.get("valueFrom") or {}).get("configMapKeyRef")
            if reference:
                found.add(reference["name"])
    return found
