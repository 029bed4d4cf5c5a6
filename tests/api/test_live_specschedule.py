"""What a live API server accepts, refuses and keeps of a SpecSchedule.

The table below is the contract with whoever types ``kubectl apply``: a bad spec is refused there
and then, and the answer names the field and the fault.
"""

import copy
from typing import Any

import pytest

from specschedule.api.conditions import conditions
from specschedule.core.spec import Spec, run_id

pytestmark = pytest.mark.cluster

MINIMAL: dict[str, Any] = {
    "target": {"name": "chat"},
    "slo": {"ttft": "500ms"},
    "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
    "load": {"points": [1, 8, 16]},
    "bar": {"improve": [{"at": [8, 16], "by": "15%"}]},
}

FULL: dict[str, Any] = {
    "target": {"kind": "Deployment", "name": "chat", "container": "vllm"},
    "mode": "Auto",
    "slo": {"ttft": "500ms", "tpot": "40ms", "e2e": "1m30s"},
    "candidates": [
        {"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]], "maxTokens": 5},
        {
            "name": "grid",
            "schedule": [
                [1, 16, 1, 4096, 3],
                [17, 64, 1, 4096, 1],
                [1, 16, 4097, 131072, 5],
                [17, 64, 4097, 131072, 2],
            ],
        },
    ],
    "speculative": {"method": "eagle3", "model": "org/drafter"},
    "load": {
        "points": [1, 8, 16],
        "requestsPerSecond": [0.5, 4],
        "trace": {"configMap": "recorded", "key": "monday.jsonl"},
        "prompts": {"configMap": "chat-prompts"},
        "promptTokens": 64,
        "outputTokens": 256,
        "requests": 40,
        "sampling": {"temperature": 0.7, "topP": 0.9},
        "prefixCache": "Warm",
        "endpoint": "chat",
        "apiKeySecretRef": {"name": "key", "key": "token"},
        "maxSendLag": "10ms",
    },
    "bar": {
        "improve": [{"metric": "goodput", "at": [8, 16], "by": "15%"}],
        "protect": [
            {
                "metric": "decodeRate",
                "at": [1],
                "category": "code",
                "context": 4096,
                "within": "3%",
            },
            {"metric": "attainment", "within": "3%"},
        ],
        "elsewhere": {"maxLoss": "2.5%"},
        "minEffect": "4%",
        "rule": "EveryPair",
    },
    "experiment": {
        "effort": "Quick",
        "static": [2, 3],
        "seed": 7,
        "parallelism": 2,
        "budget": {"gpuHours": 12.5},
        "deadline": "2h",
    },
    "policy": {
        "graphMode": "Same",
        "acceptanceFloor": "10%",
        "overrides": [{"gate": "GraphMode", "reason": "known"}],
    },
    "rollout": {"deadline": "5m"},
    "historyLimit": 3,
    "prometheus": {"url": "http://prometheus.monitoring:9090"},
}


def schedule_object(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": name},
        "spec": spec,
    }


def changed(path: str, value: object) -> dict[str, Any]:
    """The minimal spec with one field set, or taken away for ``...``."""
    spec = copy.deepcopy(MINIMAL)
    place: Any = spec
    *way, last = path.split(".")
    for step in way:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return spec


def schedule(*rows: object) -> dict[str, Any]:
    return changed("candidates.0.schedule", list(rows))


SCHEDULE = "spec.candidates[0].schedule"

REFUSED = {
    "no rows at all": (schedule(), f"{SCHEDULE}: Invalid value: 0", "at least 1 items"),
    "a row of two numbers": (schedule([1, 8]), f"{SCHEDULE}[0]", "at least 3 items"),
    "a row of four numbers": (
        schedule([1, 8, 3], [9, 16, 1, 2]),
        f"{SCHEDULE}[1]",
        "three or five numbers, not four",
    ),
    "a row of six numbers": (schedule([1, 8, 1, 2, 3, 4]), f"{SCHEDULE}[0]", "at most 5 items"),
    "rows of three and of five numbers": (
        schedule([1, 16, 3], [17, 64, 1, 4096, 1]),
        SCHEDULE,
        "must not be mixed",
    ),
    "a reversed range": (
        schedule([1, 2, 1], [8, 3, 1]),
        f"{SCHEDULE}[1]",
        "reversed range: first is above last",
    ),
    "a range that starts at zero": (
        schedule([0, 8, 3]),
        f"{SCHEDULE}[0]",
        "batch sizes start at 1",
    ),
    "negative tokens": (
        schedule([1, 8, -1]),
        f"{SCHEDULE}[0][2]",
        "greater than or equal to 0",
    ),
    "more tokens than a launch may draft": (
        schedule([1, 8, 64], [9, 16, 65]),
        f"{SCHEDULE}[1]",
        "a row drafts 64 tokens at most",
    ),
    "the same at a context": (
        schedule([1, 8, 1, 64, 65]),
        f"{SCHEDULE}[0]",
        "a row drafts 64 tokens at most",
    ),
    "no row for batch size 1": (schedule([2, 8, 3]), SCHEDULE, "no row starts at 1"),
    "two rows that overlap": (
        schedule([1, 8, 3], [8, 16, 1]),
        SCHEDULE,
        "rows overlap: a batch size is in more than one row",
    ),
    "overlap of rows that are not neighbours": (
        schedule([1, 4, 3], [20, 30, 1], [5, 25, 2]),
        SCHEDULE,
        "rows overlap",
    ),
    "the same row twice": (schedule([1, 8, 3], [1, 8, 3]), SCHEDULE, "rows overlap"),
    "a row inside another": (schedule([1, 64, 3], [8, 16, 1]), SCHEDULE, "rows overlap"),
    "ranges as keys of a map": (
        changed("candidates.0.schedule", {"1-8": 3, "9-16": 1}),
        f"{SCHEDULE}.1-8",
        "unknown field",
    ),
    "words for numbers": (
        schedule(["1", "8", "3"]),
        f"{SCHEDULE}[0][0]",
        "must be of type integer",
    ),
    "a reversed context range": (
        schedule([1, 8, 1, 64, 3], [1, 8, 200, 100, 1]),
        f"{SCHEDULE}[1]",
        "reversed range: contextFirst is above contextLast",
    ),
    "a context that starts at zero": (
        schedule([1, 8, 0, 64, 3]),
        f"{SCHEDULE}[0]",
        "contexts start at 1",
    ),
    "contexts of a batch range that do not start at 1": (
        schedule([1, 8, 1, 64, 3], [9, 16, 65, 128, 1]),
        SCHEDULE,
        "contexts start at 1",
    ),
    "a cell of the grid twice": (
        schedule([1, 8, 1, 64, 3], [1, 8, 64, 128, 1]),
        SCHEDULE,
        "a batch size and context are in more than one row",
    ),
    "six thousand rows": (
        schedule(*([n, n, 1, 4096, 1] for n in range(1, 6001))),
        SCHEDULE,
        "Too many: 6000: must have at most 128 items",
    ),
    "no candidates and no search": (
        changed("candidates", []),
        "spec",
        "exactly one of candidates and search is needed",
    ),
    "candidates and a search": (
        changed("search", {"maxTokens": 3}),
        "spec",
        "exactly one of candidates and search is needed",
    ),
    "a search without drafts": (
        changed("search", {"maxTokens": 0}),
        "spec.search.maxTokens",
        "greater than or equal to 1",
    ),
    "a batch size to search twice": (
        changed("search", {"batchSizes": [8, 8]}),
        "spec.search.batchSizes[1]",
        "Duplicate value: 8",
    ),
    "nine candidates": (
        changed("candidates", [{"name": f"c{n}", "schedule": [[1, 8, n]]} for n in range(9)]),
        "spec.candidates",
        "Too many: 9: must have at most 8 items",
    ),
    "two candidates of one name": (
        changed("candidates", [{"name": "a", "schedule": [[1, 8, n]]} for n in (1, 2)]),
        "spec.candidates[1]: Duplicate value",
        '"name":"a"',
    ),
    "a candidate's name that no pod can carry": (
        changed("candidates.0.name", "My_Card"),
        "spec.candidates[0].name",
        "should match",
    ),
    "an SLO without limits": (
        changed("slo", {}),
        "spec.slo",
        "slo needs at least one of ttft, tpot and e2e",
    ),
    "a duration without a unit": (changed("slo.ttft", "500"), "spec.slo.ttft", "500ms, 30s, 10m"),
    "a limit of nothing": (changed("slo.ttft", "0ms"), "spec.slo.ttft", "longer than 0"),
    "a deadline of nothing": (
        changed("experiment.deadline", "0h0s"),
        "spec.experiment.deadline",
        "longer than 0",
    ),
    "a duration as a number": (changed("slo.ttft", 500), "spec.slo.ttft", "of type string"),
    "a share without its sign": (
        changed("bar.improve.0.by", "0.15"),
        "spec.bar.improve[0].by",
        "write a share as 15%",
    ),
    "an improvement asked for where nothing is measured": (
        changed("bar.improve.0.at", [8, 32]),
        "spec.bar.improve",
        "at names a load point that load.points lacks",
    ),
    "a protection where nothing is measured": (
        changed("bar.protect", [{"at": [2]}]),
        "spec.bar.protect",
        "at names a load point that load.points lacks",
    ),
    "a load that is not offered": (
        changed("bar.protect", [{"metric": "ttftP99", "requestsPerSecond": [4]}]),
        "spec.bar.protect",
        "requestsPerSecond names loads of load.requestsPerSecond",
    ),
    "attainment without an offered load": (
        changed("bar.protect", [{"metric": "attainment"}]),
        "spec.bar.protect",
        "attainment is judged at every load.requestsPerSecond",
    ),
    "a trace among the prompts": (
        changed(
            "load",
            {"points": [8, 16], "prompts": {"configMap": "p"}, "trace": {"configMap": "p"}},
        ),
        "spec.load",
        "every key there is a category",
    ),
    "a bar that asks for nothing": (
        changed("bar.improve", []),
        "spec.bar.improve",
        "at least 1 items",
    ),
    "no bar": (changed("bar", ...), "spec.bar", "Required value"),
    "a load point twice": (
        changed("load.points", [8, 16, 8]),
        "spec.load.points[2]",
        "Duplicate value: 8",
    ),
    "a metric that does not exist": (
        changed("bar.improve.0.metric", "itl"),
        "spec.bar.improve[0].metric",
        "Unsupported value",
    ),
    "an unknown mode": (changed("mode", "Yolo"), "spec.mode", 'supported values: "Approve"'),
    "a kind of target that cannot be tuned": (
        changed("target.kind", "StatefulSet"),
        "spec.target.kind",
        'supported values: "Deployment"',
    ),
    "no GPU-hours to spend": (
        changed("experiment.budget", {"gpuHours": 0}),
        "spec.experiment.budget.gpuHours",
        "should be greater than 0",
    ),
    "a field that does not exist": (
        changed("load.point", [1]),
        'unknown field "spec.load.point"',
        "strict decoding",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_apply_refuses_and_names_the_fault(kubectl: Any, fault: str) -> None:
    spec, field, message = REFUSED[fault]
    done = kubectl.apply(schedule_object("refused", spec), "--dry-run=server")
    assert done.returncode != 0
    assert field in done.stderr
    assert message in done.stderr


ACCEPTED = {
    "the smallest spec": MINIMAL,
    "every field": FULL,
    "a search with nothing said": {
        **{key: MINIMAL[key] for key in MINIMAL if key != "candidates"},
        "search": {},
    },
    "a search with every field": {
        **{key: FULL[key] for key in FULL if key != "candidates"},
        "search": {"maxTokens": 7, "batchSizes": [1, 8, 32], "contexts": [512, 8192]},
    },
    "rows out of order, as vLLM sorts them": schedule([9, 16, 1], [1, 8, 3]),
    "a gap, which carries the previous tokens": schedule([1, 16, 3], [32, 64, 1]),
    "the longest schedule, eight times": changed(
        "candidates",
        [
            {"name": f"c{n}", "schedule": [[r, r, (r + n) % 5] for r in range(1, 129)]}
            for n in range(8)
        ],
    ),
    "the largest grid": schedule(
        *([b, b, 1024 * c + 1, 1024 * (c + 1), 2] for b in range(1, 17) for c in range(8))
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_apply_accepts_and_the_defaulted_object_has_the_run_id_of_the_written_one(
    kubectl: Any, case: str
) -> None:
    name = f"ok-{list(ACCEPTED).index(case)}"
    written = ACCEPTED[case]
    kubectl.apply(schedule_object(name, written)).check_returncode()
    stored = kubectl.get("specschedule", name)["spec"]
    assert Spec.model_validate(stored).plain() == Spec.model_validate(written).plain()
    assert run_id("u", Spec.model_validate(stored), 0) == run_id(
        "u", Spec.model_validate(written), 0
    )


def test_a_name_that_is_no_label_value_is_refused(kubectl: Any) -> None:
    done = kubectl.apply(schedule_object("a" * 64, MINIMAL), "--dry-run=server")
    assert "metadata.name" in done.stderr
    assert "63" in done.stderr


def test_the_server_writes_no_default_into_items_of_lists(kubectl: Any) -> None:
    spec = changed("bar.protect", [{"at": [1]}])
    kubectl.apply(schedule_object("items", spec)).check_returncode()
    stored = kubectl.get("specschedule", "items")["spec"]
    assert stored["bar"]["protect"] == [{"at": [1]}]
    assert stored["bar"]["improve"] == spec["bar"]["improve"]
    assert stored["bar"]["elsewhere"] == {"maxLoss": "5%"}


@pytest.mark.parametrize("name", ["sps", "specschedule", "specschedules"])
def test_every_name_of_the_kind_gets_one_object(kubectl: Any, name: str) -> None:
    kubectl.apply(schedule_object("named", MINIMAL)).check_returncode()
    table = kubectl("get", name, "named").splitlines()
    assert table[0].split() == ["NAME", "STAGE", "OUTCOME", "REASON", "AGE"]
    assert table[1].startswith("named ")


def test_the_category_lists_the_objects(kubectl: Any) -> None:
    kubectl.apply(schedule_object("listed", MINIMAL)).check_returncode()
    assert "specschedule.specschedule.dev/listed" in kubectl("get", "speculation")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("spec", "A change of it"),
        ("spec.candidates.schedule", "ranges are inclusive"),
        ("spec.slo.ttft", "Longest time to first token"),
        ("spec.bar.improve.by", "Smallest gain over the incumbent"),
        ("spec.mode", "specschedule.dev/approve=<run id>"),
        ("status.recommendation", "control that is best"),
        ("status.conditions.reason", "Booting: A trial pod's server starts."),
        ("status.verdict.bars.change", "positive is better"),
    ],
)
def test_explain_reads_well(kubectl: Any, field: str, words: str) -> None:
    text = kubectl("explain", f"specschedule.{field}")
    assert words in " ".join(text.split())


def test_kubectl_can_wait_for_a_condition(kubectl: Any) -> None:
    kubectl.apply(schedule_object("waited", MINIMAL)).check_returncode()
    generation = kubectl.get("specschedule", "waited")["metadata"]["generation"]

    def report(outcome: str | None) -> None:
        stated = conditions(
            outcome,
            "RolledOut" if outcome else "Booting",
            "",
            held=False,
            generation=generation,
            now="2026-11-29T10:00:00Z",
            previous=[],
        )
        kubectl.patch_status("specschedule", "waited", {"conditions": stated})

    report(None)
    kubectl("wait", "--for=condition=Progressing", "specschedule/waited", "--timeout=10s")
    running = kubectl.run("wait", "--for=condition=Promoted", "sps/waited", "--timeout=1s")
    assert running.returncode != 0
    report("Promoted")
    kubectl("wait", "--for=condition=Promoted", "specschedule/waited", "--timeout=10s")
    kubectl("wait", "--for=condition=Progressing=False", "sps/waited", "--timeout=10s")
    assert kubectl("get", "sps", "waited", "--no-headers").split()[-2] == "RolledOut"


def test_status_is_a_subresource(kubectl: Any) -> None:
    """A spec write never touches the status, nor a status write the spec."""
    document = schedule_object("parted", MINIMAL) | {"status": {"runId": "forged"}}
    kubectl.apply(document).check_returncode()
    kubectl.patch_status("specschedule", "parted", {"runId": "7f3a"}, spec={"mode": "Auto"})
    stored = kubectl.get("specschedule", "parted")
    assert stored["status"] == {"runId": "7f3a"}
    assert stored["spec"]["mode"] == "Approve"
