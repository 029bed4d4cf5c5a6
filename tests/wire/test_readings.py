"""Reading pods and load jobs: why something ended decides whose fault it was."""

import json
from typing import Any

import pytest

from specschedule.core.evidence import Profile
from specschedule.core.visit import CellClosed, Fitted, Screen, VisitEnded, Warmed, Window
from specschedule.wire import jobs, pods
from specschedule.wire.manifests import LOAD_PORT

from .objects import stored, visit

BORN = "2026-11-29T10:00:00Z"


def pod(status: dict[str, Any], **metadata: Any) -> Any:
    return {
        "metadata": {
            "name": "t",
            "creationTimestamp": BORN,
            "annotations": {
                "specschedule.dev/container": "vllm",
                "specschedule.dev/port": "8000",
            },
            **metadata,
        },
        "spec": {"nodeName": "node"},
        "status": status,
    }


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-29T10:00:40Z",
    }


def server(**state: Any) -> list[dict[str, Any]]:
    return [
        {"name": "sidecar", "state": {"running": {"startedAt": BORN}}},
        {"name": "vllm", "state": state, "restartCount": 0, "imageID": "sha256:1"},
    ]


SCHEDULED = condition("PodScheduled", "True")
RUNNING = server(running={"startedAt": "2026-11-29T10:00:10Z"})
KILLED = server(
    terminated={"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-29T10:10:05Z"}
)
BEING_DELETED = {
    "deletionTimestamp": "2026-11-29T10:10:10Z",
    "deletionGracePeriodSeconds": 10,
}

READINGS: dict[str, tuple[Any, str, str | None, str]] = {
    "no GPU is free": (
        pod(
            {
                "phase": "Pending",
                "conditions": [
                    condition(
                        "PodScheduled",
                        "False",
                        "Unschedulable",
                        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    )
                ],
            }
        ),
        "Pending",
        "Unschedulable",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    ),
    "not yet looked at by the scheduler": (
        pod({"phase": "Pending"}),
        "Pending",
        None,
        "waits for the scheduler",
    ),
    "an image that cannot be pulled": (
        pod(
            {
                "phase": "Pending",
                "conditions": [SCHEDULED],
                "containerStatuses": server(
                    waiting={"reason": "ErrImageNeverPull", "message": 'image "x" is not present'}
                ),
            }
        ),
        "Pending",
        "ImagePull",
        'container vllm: ErrImageNeverPull: image "x" is not present',
    ),
    "an init container's image that cannot be pulled": (
        pod(
            {
                "phase": "Pending",
                "conditions": [SCHEDULED],
                "initContainerStatuses": [
                    {"name": "fetch", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
                ],
                "containerStatuses": server(waiting={"reason": "PodInitializing"}),
            }
        ),
        "Pending",
        "ImagePull",
        "container fetch: ImagePullBackOff",
    ),
    "a Secret that is missing": (
        pod(
            {
                "phase": "Pending",
                "conditions": [SCHEDULED],
                "containerStatuses": server(
                    waiting={
                        "reason": "CreateContainerConfigError",
                        "message": 'secret "hf" not found',
                    }
                ),
            }
        ),
        "Pending",
        None,
        'container vllm: CreateContainerConfigError: secret "hf" not found',
    ),
    "containers being made": (
        pod(
            {
                "phase": "Pending",
                "conditions": [SCHEDULED],
                "containerStatuses": server(waiting={"reason": "ContainerCreating"}),
            }
        ),
        "Pending",
        None,
        "its containers are being made",
    ),
    "a server that boots": (
        pod(
            {
                "phase": "Running",
                "conditions": [SCHEDULED, condition("Ready", "False", message="not ready: [vllm]")],
                "containerStatuses": RUNNING,
            }
        ),
        "Starting",
        None,
        "not ready: [vllm]",
    ),
    "a server that is ready": (
        pod(
            {
                "phase": "Running",
                "conditions": [SCHEDULED, condition("Ready", "True")],
                "containerStatuses": RUNNING,
            }
        ),
        "Ready",
        None,
        "ready on node",
    ),
    "preempted by the scheduler, though it still runs": (
        pod(
            {
                "phase": "Running",
                "conditions": [
                    SCHEDULED,
                    condition("Ready", "True"),
                    condition(
                        "DisruptionTarget", "True", "PreemptionByScheduler", "preempting to fit x"
                    ),
                ],
                "containerStatuses": RUNNING,
            },
            **BEING_DELETED,
        ),
        "Ended",
        "Preempted",
        "preempting to fit x",
    ),
    "evicted through the API": (
        pod(
            {
                "phase": "Running",
                "conditions": [condition("DisruptionTarget", "True", "EvictionByEvictionAPI")],
                "containerStatuses": KILLED,
            },
            **BEING_DELETED,
        ),
        "Ended",
        "Evicted",
        "EvictionByEvictionAPI",
    ),
    "evicted by a kubelet under pressure": (
        pod(
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory.",
                "containerStatuses": KILLED,
            }
        ),
        "Ended",
        "Evicted",
        "Evicted: The node was low on resource: memory.",
    ),
    "refused by the kubelet for want of a GPU": (
        pod({"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "too few"}),
        "Ended",
        "Evicted",
        "OutOfnvidia.com/gpu: too few",
    ),
    "its node is unreachable": (
        pod(
            {
                "phase": "Running",
                "conditions": [condition("DisruptionTarget", "True", "DeletionByTaintManager")],
                "containerStatuses": RUNNING,
            },
            **BEING_DELETED,
        ),
        "Ended",
        "NodeLost",
        "DeletionByTaintManager",
    ),
    "deleted by somebody, killed because of it": (
        pod({"phase": "Running", "containerStatuses": KILLED}, **BEING_DELETED),
        "Ended",
        "Deleted",
        "the pod was deleted",
    ),
    "died by itself before somebody deleted it": (
        pod(
            {
                "phase": "Failed",
                "containerStatuses": server(
                    terminated={"exitCode": 1, "finishedAt": "2026-11-29T10:09:00Z"}
                ),
            },
            **BEING_DELETED,
        ),
        "Ended",
        "Exited",
        "container vllm exited with 1: ZeroDivisionError",
    ),
    "killed for its memory": (
        pod(
            {
                "phase": "Failed",
                "containerStatuses": server(terminated={"exitCode": 137, "reason": "OOMKilled"}),
            }
        ),
        "Ended",
        "OutOfMemory",
        "container vllm was killed for exceeding its memory limit: ZeroDivisionError",
    ),
    "the server died while a sidecar keeps the pod running": (
        pod(
            {
                "phase": "Running",
                "conditions": [SCHEDULED],
                "containerStatuses": server(terminated={"exitCode": 1}),
            }
        ),
        "Ended",
        "Exited",
        "container vllm exited with 1: ZeroDivisionError",
    ),
    "a server that ends well is still over": (
        pod({"phase": "Succeeded", "containerStatuses": server(terminated={"exitCode": 0})}),
        "Ended",
        "Exited",
        "container vllm exited with 0: ZeroDivisionError",
    ),
    "an init container failed": (
        pod(
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {"name": "fetch", "state": {"terminated": {"exitCode": 3, "message": "404"}}}
                ],
                "containerStatuses": server(waiting={"reason": "PodInitializing"}),
            }
        ),
        "Ended",
        "Exited",
        "init container fetch exited with 3 (404): ZeroDivisionError",
    ),
    "our own init container failed": (
        pod(
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {"name": "specschedule-engine", "state": {"terminated": {"exitCode": 2}}}
                ],
                "containerStatuses": server(waiting={"reason": "PodInitializing"}),
            }
        ),
        "Ended",
        "NotDelivered",
        "init container specschedule-engine exited with 2; where that cannot be mended, let the "
        "operator run without instruments",
    ),
    "our own image cannot be pulled": (
        pod(
            {
                "phase": "Pending",
                "conditions": [SCHEDULED],
                "initContainerStatuses": [
                    {
                        "name": "specschedule-engine",
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}},
                    }
                ],
                "containerStatuses": server(waiting={"reason": "PodInitializing"}),
            }
        ),
        "Pending",
        "NotDelivered",
        "container specschedule-engine: ErrImagePull: denied; where that cannot be mended, let "
        "the operator run without instruments",
    ),
}


@pytest.mark.parametrize("case", READINGS)
def test_a_pod_reads_as(case: str) -> None:
    manifest, phase, reason, message = READINGS[case]
    seen = pods.pod_facts(manifest, was_ready=False, last_line="ZeroDivisionError")
    assert (seen.phase, seen.reason, seen.message) == (phase, reason, message)


def test_a_server_that_was_ready_and_is_not_is_no_longer_starting() -> None:
    manifest = READINGS["a server that boots"][0]
    assert pods.pod_facts(manifest, was_ready=True).phase == "NotReady"


def test_readiness_has_a_time_an_address_and_a_boot() -> None:
    manifest = READINGS["a server that is ready"][0]
    manifest["status"]["podIP"] = "10.0.0.7"
    seen = pods.pod_facts(manifest, was_ready=False)
    assert (seen.ready_at or 0) - seen.created_at == 40
    assert seen.url == "http://10.0.0.7:8000"
    assert pods.boot_seconds(manifest) == 30
    assert pods.image_id(manifest) == "sha256:1"


def test_an_ipv6_address_is_bracketed() -> None:
    assert pods.url(pod({"podIP": "fd00::7"})) == "http://[fd00::7]:8000"


CELL = {
    "cell": "hold8",
    "arm": "none",
    "launch": 1,
    "profile": {"kind": "hold", "concurrency": 8},
    "windowSeconds": 10.0,
    "offered": 20,
    "completed": 20,
}
FITTED = json.dumps({"event": "fitted", "fit": {"maxModelLen": 8192}})
WARMED = json.dumps({"event": "warmed", "seconds": 3.5, "steady": True})
CLOSED = json.dumps({"event": "cell", "cell": CELL})
ENDED = json.dumps({"event": "ended", "scrapedAt": [1.0, 2.0, 3.0]})


def job(*conditions: dict[str, str]) -> Any:
    made = stored({"metadata": {"name": "t-v1"}})
    return {**made, "status": {"conditions": list(conditions)}}


COMPLETE = condition("Complete", "True")
FAILED = condition("Failed", "True", "BackoffLimitExceeded", "Job has reached the limit")


def test_events_are_read_from_among_other_lines() -> None:
    log = f"starting\n{FITTED}\n{WARMED}\n{{}}\n{CLOSED}\n2026 INFO {{not json\n{ENDED}\n"
    read = [type(event) for event in jobs.events(log)]
    assert read == [Fitted, Warmed, CellClosed, VisitEnded]


def test_a_partial_last_line_is_left_for_the_next_look() -> None:
    assert len(jobs.events(f"{WARMED}\n{CLOSED[:40]}")) == 1
    assert len(jobs.events(f"{WARMED}\n{CLOSED}")) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (CLOSED[:-30], "line 2 of the load job's log is cut off"),
        (CLOSED.replace("10.0", "-1"), "line 2 of the load job's log is no event"),
        ('{"event": "other"}', "line 2 of the load job's log is no event"),
    ],
    ids=["cut off in the middle", "an impossible number", "an unknown event"],
)
def test_a_damaged_event_fails_the_visit_instead_of_being_skipped(line: str, says: str) -> None:
    seen = jobs.visit_facts(job(COMPLETE), pod({}), f"{WARMED}\n{line}\n{ENDED}\n")
    assert seen.phase == "Failed"
    assert seen.message.startswith(says)
    assert seen.events == []


def test_a_finished_job_with_its_last_event_succeeded() -> None:
    seen = jobs.visit_facts(job(COMPLETE), pod({}), f"{CLOSED}\n{ENDED}\n")
    assert (seen.phase, len(seen.events)) == ("Succeeded", 2)


@pytest.mark.parametrize("log", [None, "", f"{CLOSED}\n", "unable to retrieve container logs"])
def test_a_finished_job_whose_log_lacks_the_end_is_a_lost_log(log: str | None) -> None:
    seen = jobs.visit_facts(job(COMPLETE), pod({}), log)
    assert seen.phase == "Failed"
    assert "its log is lost" in seen.message


def test_a_failed_job_says_how_its_pod_ended_and_what_it_said_last() -> None:
    ended = pod(
        {
            "containerStatuses": [
                {"name": "load", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
            ]
        }
    )
    seen = jobs.visit_facts(job(FAILED), ended, "BadPlan: windows: empty\n")
    assert seen.phase == "Failed"
    assert "BackoffLimitExceeded: Job has reached the limit" in seen.message
    assert "exit code 2 (Error)" in seen.message
    assert "last line: BadPlan: windows: empty" in seen.message


def test_a_job_that_runs_is_running_even_without_a_pod() -> None:
    assert jobs.visit_facts(job(), None, None).phase == "Running"
    waiting = pod(
        {
            "containerStatuses": [
                {
                    "name": "load",
                    "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "k"}},
                }
            ]
        }
    )
    seen = jobs.visit_facts(job(), waiting, None)
    assert (seen.phase, seen.message) == ("Running", "load pod: CreateContainerConfigError: k")


def test_the_port_of_the_counters_is_the_load_process_default() -> None:
    assert LOAD_PORT == 9100


@pytest.mark.parametrize(
    ("claim", "profile", "seconds"),
    [
        ("waves of held requests", {"kind": "hold", "concurrency": 4}, (5 + 2) * 60),
        ("rare arrivals", {"kind": "open", "requestsPerSecond": 0.01}, 20 / 0.01 + 2 * 60),
        (
            "arrivals that rise and fall",
            {"kind": "open", "requestsPerSecond": 1, "peakRequestsPerSecond": 3},
            20 / 2 + 2 * 60,
        ),
    ],
)
def test_a_job_may_live_as_long_as_its_windows_can_take(
    claim: str, profile: dict[str, Any], seconds: float
) -> None:
    limits = {"request_timeout": "60s", "warm_up_timeout": "10s", "scrape_timeout": "15s"}
    window = Window(cell="c", profile=Profile.model_validate(profile), requests=20)
    planned = visit(windows=[window], **limits)
    assert jobs.longest_seconds(planned) == 10 + 2 * 15 + 120 + seconds, claim


def test_a_screens_job_may_live_as_long_as_every_window_it_may_ask_for() -> None:
    screen = Screen(batch_sizes=[1, 8], contexts=[100, 900, 1800], max_tokens=4, max_num_seqs=16)
    limits = {"request_timeout": "60s", "warm_up_timeout": "10s", "scrape_timeout": "15s"}
    windows = 2 * 3 * 5 * 3
    seconds = (windows * (10 + 2) + 5) * 60
    planned = visit(windows=[], screen=screen, **limits)
    assert jobs.longest_seconds(planned) == 10 + 2 * 15 + 120 + seconds
