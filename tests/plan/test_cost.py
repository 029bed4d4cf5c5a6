"""What a run costs, before it begins and as launches tell more; and `specschedule plan`."""

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main
from specschedule.core.arms import arms
from specschedule.core.budget import Cost, budget_left, cost
from specschedule.core.evidence import Cell, Launch, Receipt
from specschedule.core.spec import Spec
from specschedule.core.windows import MOST_CATEGORIES, windows
from specschedule.core.workload import Workload
from tests.plan.asked import CATEGORIES, SERVER, SPEC, TRACE, arm_of, spec_of


def test_what_categories_add_is_in_the_price_and_what_is_left_out_is_named() -> None:
    spec = spec_of()
    many = Workload(categories=[*CATEGORIES, "a-first", "zulu"])
    plain, whole = (
        cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, workload=sent)
        for sent in (None, many)
    )
    assert plain.notes == []
    held, left_out = whole.notes
    assert "incumbent and candidate holds a-first, code, prose, shell apart at 1 and 16" in held
    # The bar holds code at 1 anyway; a request is as slow as the SLO lets it be.
    added = (3 * (1 + 20) + MOST_CATEGORIES * (1 + 2)) * (0.5 + 256 * 0.04) / 60
    assert f"{added:.1f} minutes more" in held
    assert "tool-json, zulu" in left_out
    before, after = ({row.arm: row.minutes for row in each.arms} for each in (plain, whole))
    for arm in ("incumbent", "candidate-card"):
        assert after[arm] - before[arm] == pytest.approx(added, abs=0.11), "its first launch only"
    assert after["none"] == before["none"]


def test_a_trace_costs_every_launch_as_long_as_it_lasts() -> None:
    load = {**SPEC["load"], "trace": {"configMap": "recorded"}}
    spec = Spec.model_validate({**SPEC, "load": load})
    plain, whole = (
        cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, workload=sent)
        for sent in (None, Workload(trace=TRACE))
    )
    request = 0.5 + 256 * 0.04
    added = plain.launches * (60 + request) / 60
    assert whole.minutes - plain.minutes == pytest.approx(added, abs=0.3)


def cost_of(**experiment: Any) -> Cost:
    spec = spec_of(**experiment)
    return cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=2)


def test_quick_costs_seven_launches_when_the_first_candidate_decides() -> None:
    answer = cost_of()
    by_arm = {row.arm: row for row in answer.arms}
    assert answer.launches == 7
    assert {name: row.launches for name, row in by_arm.items()} == {
        "incumbent": 3,
        "candidate-card": 3,
        "candidate-second": 0,
        "none": 1,
    }
    # Each candidate has one round more where a loss is to be watched.
    assert answer.launches_at_most == 17
    assert "only if it is needed" in by_arm["candidate-second"].buys
    assert answer.gpu_hours == pytest.approx(answer.minutes * 2 / 60, rel=0.01)
    assert answer.gpu_hours_at_most > answer.gpu_hours


def test_a_launch_costs_boot_warm_up_windows_and_scrapes() -> None:
    spec = spec_of()
    answer = cost(spec, arms(spec, SERVER)[:1], boot_seconds=240.0, gpus=1, scrape_seconds=15.0)
    request = 0.5 + 256 * 0.04
    held = sum((1 + -(-20 // at)) * request for at in (1, 1, 8, 16))
    # Outputs: bands end at 2, 4 and 16, so 8 + 3 + 2 + 2 + 4 waves of 20 tokens on average.
    held += 19 * (0.5 + 20 * 0.04)
    assert answer.arms[0].minutes == 0.0
    answer = cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, scrape_seconds=15.0)
    assert answer.arms[0].minutes == pytest.approx(3 * (240 + 30 + 60 + held) / 60, abs=0.06)


REQUEST = 0.5 + 256 * 0.04
"""Seconds of a request, as long as the SLO allows."""


REFINED = {
    "windows of 20 s that opened 25 s after each other": (25, 12.0, 5.0),
    "a wave of requests settles a window whose time is not known": (None, None, REQUEST),
}


@pytest.mark.parametrize("claim", REFINED)
def test_boot_warm_up_settling_and_windows_are_refined_by_launches(claim: str) -> None:
    every, warm_up, settled = REFINED[claim]
    spec = spec_of()
    began = datetime(2026, 11, 29, 10, tzinfo=UTC)
    planned = windows(spec, arm_of(spec, "incumbent"), round=1, first=True)
    cells = [
        Cell(
            cell=window.cell,
            arm="incumbent",
            launch=1,
            profile=window.profile,
            started_at=None
            if every is None
            else (began + timedelta(seconds=every * at)).isoformat(),
            window_seconds=20.0,
            offered=100,
            completed=100,
        )
        for at, window in enumerate(planned)
    ]
    receipt = Receipt(boot_seconds=100.0)
    done = [
        Launch(
            arm="incumbent",
            launch=1,
            round=1,
            receipt=receipt,
            warm_up_seconds=warm_up,
            cells=cells,
        )
    ]
    answer = cost(spec, arms(spec, SERVER), boot_seconds=240.0, gpus=1, done=done)
    measured = len(cells) * 20 + (len(cells) - 1) * settled
    expected = 3 * (100 + (warm_up or 30) + 60 + measured) / 60
    assert answer.arms[0].minutes == pytest.approx(expected, abs=0.06)


def test_effort_buys_more_launches() -> None:
    quick, standard, thorough = (
        cost_of(effort=effort).launches for effort in ("Quick", "Standard", "Thorough")
    )
    assert quick < standard < thorough


def test_two_arms_at_a_time_halve_the_minutes_and_not_the_gpu_hours() -> None:
    one, two = cost_of(), cost_of(parallelism=2)
    assert two.minutes == pytest.approx(one.minutes / 2, abs=0.1)
    assert two.gpu_hours == one.gpu_hours


def test_the_budget_left_is_told_in_gpu_hours_and_launches() -> None:
    spec, answer = spec_of(), cost_of()
    left = budget_left(spec, answer, gpu_seconds=3600.0)
    each = answer.gpu_hours / answer.launches
    assert left.gpu_hours == 1.0
    assert left.launches == int(1.0 / each)
    assert budget_left(spec, answer, gpu_seconds=90000.0).launches == 0
    free = spec.model_copy(
        update={
            "experiment": spec.experiment.model_copy(
                update={"budget": spec.experiment.budget.model_copy(update={"gpu_hours": None})}
            )
        }
    )
    assert budget_left(free, answer, gpu_seconds=0.0).plain() == {}


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat", "namespace": "llm"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "chat"}},
        "template": {
            "metadata": {"labels": {"app": "chat"}},
            "spec": {
                "containers": [
                    {
                        "name": "server",
                        "image": "vllm/vllm-openai:v0.32.0",
                        "command": ["vllm", "serve", "org/model"],
                        "args": [
                            "--max-num-seqs=16",
                            '--speculative-config={"method":"eagle3","model":"org/drafter",'
                            '"num_speculative_tokens":5}',
                        ],
                        "resources": {"limits": {"nvidia.com/gpu": 2}},
                    }
                ]
            },
        },
    },
}


def ask(tmp_path: Path, target: Any, *more: str, spec: Any = SPEC) -> Any:
    schedule = {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecSchedule",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schedule))
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(target))
    paths = ["-f", str(tmp_path / "s.yaml"), "--target", str(tmp_path / "d.yaml")]
    return CliRunner().invoke(main, ["plan", *paths, *more])


def test_a_price_says_when_preflight_refuses_the_run(tmp_path: Path) -> None:
    sound = ask(tmp_path, DEPLOYMENT)
    assert "refuses" not in sound.output
    target = copy.deepcopy(DEPLOYMENT)
    target["spec"]["template"]["spec"]["containers"][0]["args"] += ["-dp", "2"]
    assert "preflight refuses this run: dataParallel: " in ask(tmp_path, target).output
    plain = json.loads(ask(tmp_path, target, "-o", "json").output)
    assert plain["refused"]["reason"] == "DataParallel"
    assert "refused" not in json.loads(ask(tmp_path, DEPLOYMENT, "-o", "json").output)


def test_the_command_prints_what_each_arm_buys(tmp_path: Path) -> None:
    result = ask(tmp_path, DEPLOYMENT, "--boot", "4m", "-o", "json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert said["launches"] == 7
    assert said["gpuHours"] == pytest.approx(cost_of().gpu_hours)
    assert [row["arm"] for row in said["arms"]][:2] == ["incumbent", "candidate-card"]
    assert said["budget"]["gpuHours"] == 2.0
    text = ask(tmp_path, DEPLOYMENT, "--boot", "4m").output
    assert "candidate-second" in text
    assert "a hard limit" in text


@pytest.mark.parametrize(
    ("claim", "target", "more", "said"),
    [
        ("a duration without unit", DEPLOYMENT, ["--boot", "4"], "--boot: '4' is not a duration"),
        ("no Deployment", {"kind": "Service"}, [], "holds no Deployment"),
        (
            "another engine",
            {
                **DEPLOYMENT,
                "spec": {
                    "template": {
                        "spec": {
                            "containers": [
                                {
                                    "name": "server",
                                    "command": ["python", "-m", "sglang.launch_server"],
                                }
                            ]
                        }
                    }
                },
            },
            [],
            "EngineNotSupported",
        ),
    ],
)
def test_bad_input_gets_one_clear_line(
    tmp_path: Path, claim: str, target: Any, more: list[str], said: str
) -> None:
    result = ask(tmp_path, target, *more)
    assert result.exit_code == 2, claim
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_prompts_are_priced_by_their_categories_or_the_price_says_that_it_lacks_them(
    tmp_path: Path,
) -> None:
    spec = {**SPEC, "load": {**SPEC["load"], "prompts": {"configMap": "chat-prompts"}}}
    assert "not in this price" in ask(tmp_path, DEPLOYMENT, spec=spec).output
    prompts = str(Path(__file__).parents[2] / "hack/prompts/chat-prompts.yaml")
    told = ask(tmp_path, DEPLOYMENT, "--prompts", prompts, spec=spec).output
    assert "holds code, prose, shell, tool-json apart at 1 and 16 in flight" in told
    assert "not in this price" not in told
    wrong = ask(tmp_path, DEPLOYMENT, "--prompts", str(tmp_path / "none.yaml"), spec=spec)
    assert wrong.exit_code == 2
    assert "--prompts" in wrong.output


def test_a_trace_is_priced_where_it_is_given_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    spec = {**SPEC, "load": {**SPEC["load"], "trace": {"configMap": "recorded"}}}
    assert (
        "replays the trace too, which is not in this price"
        in ask(tmp_path, DEPLOYMENT, spec=spec).output
    )
    trace = tmp_path / "trace.jsonl"
    entry = '{{"timestamp": {}, "input_length": 9, "output_length": 9}}\n'
    trace.write_text("".join(entry.format(1000 * n) for n in range(40)))
    told = ask(tmp_path, DEPLOYMENT, "--trace", str(trace), spec=spec).output
    assert "not in this price" not in told
    assert "refuses" not in told
    trace.write_text("".join(entry.format(60_000 * n) for n in range(40)))
    told = ask(tmp_path, DEPLOYMENT, "--trace", str(trace), spec=spec).output
    assert "preflight refuses this run: trace: " in told
    trace.write_text("nonsense\n")
    wrong = ask(tmp_path, DEPLOYMENT, "--trace", str(trace), spec=spec)
    assert wrong.exit_code == 2
    assert "trace.jsonl:1" in wrong.output


def test_an_impossible_schedule_is_named(tmp_path: Path) -> None:
    bad = {**SPEC, "candidates": [{"name": "card", "schedule": [[4, 8, 2]]}]}
    result = ask(tmp_path, DEPLOYMENT, spec=bad)
    assert result.exit_code == 2
    assert "NotFromOne" in result.output


def test_a_search_is_priced_with_its_screen_before_anything_is_known(tmp_path: Path) -> None:
    spec = {key: value for key, value in SPEC.items() if key != "candidates"}
    result = ask(tmp_path, DEPLOYMENT, "--boot", "4m", "-o", "json", spec=spec | {"search": {}})
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert [row["arm"] for row in said["arms"]][:4] == [
        "probe",
        "none",
        "incumbent",
        "candidate-search",
    ]
    assert said["launches"] == sum(row["launches"] for row in said["arms"])
    assert said["gpuHours"] == pytest.approx(
        sum(row["gpuHours"] for row in said["arms"]), abs=0.005
    )
