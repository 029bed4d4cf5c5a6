"""``specschedule judge``: manifests in, one answer out; bad input gets one line and status 2."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from specschedule.cli.main import main
from specschedule.core.spec import Spec

from .recorded import cell

SCHEDULE = {
    "apiVersion": "specschedule.dev/v1alpha1",
    "kind": "SpecSchedule",
    "metadata": {"name": "chat", "namespace": "llm"},
    "spec": {
        "target": {"kind": "Deployment", "name": "chat"},
        "slo": {"ttft": "500ms", "tpot": "40ms"},
        "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
        "load": {"points": [1, 8]},
        "bar": {
            "improve": [{"metric": "goodput", "at": [8], "by": "15%"}],
            "protect": [{"metric": "decodeRate", "at": [1], "within": "3%"}],
        },
        "experiment": {"effort": "Quick"},
    },
}


def trial(arm: str, launch: int, number: int, cells: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "specschedule.dev/v1alpha1",
        "kind": "SpecTrial",
        "metadata": {"name": f"chat-7f3a-{arm}-{launch}", "uid": "0", "managedFields": []},
        "spec": {
            "runId": "7f3a",
            "arm": arm,
            "launch": launch,
            "round": number,
            "position": 1,
            "barDigest": "9c1e",
        },
        "status": {"startedAt": "2026-11-29T10:00:00Z", "cells": cells, **more},
    }


def trials(candidate: float = 130.0, none: float = 90.0) -> list[dict[str, Any]]:
    found = []
    for number in (1, 2, 3):
        for arm, level in (("incumbent", 100.0), ("candidate-card", candidate)):
            windows = [cell(1, 60.0, decode=60.0), cell(8, level)]
            found.append(trial(arm, len(found) + 1, number, windows))
    found.append(trial("none", len(found) + 1, 3, [cell(1, 55.0, decode=55.0), cell(8, none)]))
    return found


def ask(tmp_path: Path, text: str, *more: str, schedule: Any = SCHEDULE) -> Result:
    spec, data = tmp_path / "specschedule.yaml", tmp_path / "trials.yaml"
    spec.write_text(yaml.safe_dump(schedule))
    data.write_text(text)
    return CliRunner().invoke(main, ["judge", "-f", str(spec), "--trials", str(data), *more])


def answer(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output

    def refuse(name: str) -> None:
        raise AssertionError(f"JSON holds {name}")

    plain: dict[str, Any] = json.loads(result.output, parse_constant=refuse)
    return plain


@pytest.mark.parametrize(
    "text",
    [
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": trials()}),
        yaml.safe_dump(trials()),
        yaml.safe_dump_all(trials()),
        json.dumps({"apiVersion": "v1", "kind": "SpecTrialList", "items": trials()}),
    ],
    ids=["v1 List", "a plain list", "several documents", "JSON"],
)
def test_trials_are_read_in_every_form_that_kubectl_gives(tmp_path: Path, text: str) -> None:
    said = answer(ask(tmp_path, text, "-o", "json"))
    assert said["outcome"] == "Promoted"
    assert said["reason"] == "EveryPairMeetsBar"
    assert said["recommendation"] == ""
    assert {"metric": "goodput", "at": 8, "floor": 0.0, "count": 4} in said["noiseFloor"]
    assert said["verdicts"][0]["candidate"] == "card"
    assert said["verdicts"][0]["verdict"] == "Better"
    assert {bar["kind"] for bar in said["verdicts"][0]["bars"]} == {
        "improve",
        "protect",
        "elsewhere",
    }
    assert said["tax"] == []
    assert said["watch"] == []


def test_a_better_control_is_recommended(tmp_path: Path) -> None:
    said = answer(ask(tmp_path, yaml.safe_dump(trials(none=190.0)), "-o", "json"))
    assert said["outcome"] == "NotPromoted"
    assert said["recommendation"].startswith("none: remove --speculative-config")


def test_the_text_answer_is_for_people(tmp_path: Path) -> None:
    said = ask(tmp_path, yaml.safe_dump(trials())).output
    assert said.startswith("Promoted: EveryPairMeetsBar\n")
    for part in ("improve goodput at 8", "+30.0%", "protect decodeRate at 1", "Noise floor:"):
        assert part in said
    head, *lines = said[said.index("REQUIREMENT") :].splitlines()
    assert head.split()[-6:] == ["95%", "INTERVAL", "P", "N", "FLOOR", "ANSWER"]
    # Three pairs of one sign: two of the eight ways to flip them are as far from zero.
    gain = ["+15.0%", "+30.0%", "+30.0%", "to", "+30.0%", "0.25", "3", "0.0%", "Met"]
    assert lines[0].split()[4:-1] == gain
    assert "acceptance length n/a" in said


def test_not_a_number_is_a_missing_number(tmp_path: Path) -> None:
    found = trials()
    for item in found:
        for window in item["status"]["cells"]:
            window["decodeRate"] = float("nan")
    said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json"))
    assert said["outcome"] == "Inconclusive"
    assert said["reason"] == "MetricMissing"


def test_a_bar_written_after_the_measurement_is_noted(tmp_path: Path) -> None:
    said = answer(ask(tmp_path, yaml.safe_dump(trials()), "-o", "json"))
    assert "BarDiffers" in {note["reason"] for note in said["notes"]}


def test_the_bar_that_the_trials_were_planned_under_is_not_noted(tmp_path: Path) -> None:
    found = trials()
    for item in found:
        item["spec"]["barDigest"] = Spec.model_validate(SCHEDULE["spec"]).bar.digest()
    said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json"))
    assert "BarDiffers" not in {note["reason"] for note in said["notes"]}
    asked = copy.deepcopy(SCHEDULE)
    asked["spec"]["bar"]["improve"][0]["by"] = "14%"  # type: ignore[index]
    said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json", schedule=asked))
    assert "BarDiffers" in {note["reason"] for note in said["notes"]}


def test_trials_of_several_runs_need_a_choice(tmp_path: Path) -> None:
    found = trials()
    other = trials(candidate=70.0)
    for item in other:
        item["spec"]["runId"] = "beef"
    text = yaml.safe_dump([*found, *other])
    refused = ask(tmp_path, text)
    assert refused.exit_code == 2
    assert "7f3a, beef" in refused.output
    assert answer(ask(tmp_path, text, "--run", "beef", "-o", "json"))["outcome"] == "NotPromoted"


def broken(**change: Any) -> str:
    found = trials()
    found[0]["status"]["cells"][0] |= change
    return yaml.safe_dump(found)


def first_spec(**change: Any) -> str:
    found = trials()
    found[0]["spec"] |= change
    return yaml.safe_dump(found)


@pytest.mark.parametrize(
    ("claim", "text", "said"),
    [
        ("no trials", "[]", "holds no SpecTrial"),
        ("no YAML", "{", "not YAML"),
        ("something else", "- 1\n- 2", "item 1 is no SpecTrial"),
        ("a window of no length", broken(windowSeconds=0), "cells.0.windowSeconds"),
        ("a negative count", broken(good=-1), "cells.0.good"),
        ("an unknown profile", broken(profile={"kind": "walk"}), "cells.0.profile.kind"),
        (
            "a launch twice",
            yaml.safe_dump([*trials(), *trials()]),
            "launch 1 of arm incumbent is there twice",
        ),
        ("an incumbent that is no config", first_spec(incumbent=[1]), "spec.incumbent"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_bad_trials_get_one_clear_line(tmp_path: Path, claim: str, text: str, said: str) -> None:
    result = ask(tmp_path, text, "-o", "json")
    assert result.exit_code == 2, claim
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_launch_that_is_written_as_text_is_the_same_launch(tmp_path: Path) -> None:
    told = [answer(ask(tmp_path, first_spec(launch=n), "-o", "json")) for n in (1, "1.0")]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("claim", "schedule", "said"),
    [
        ("another kind", {"kind": "Deployment"}, "holds no SpecSchedule"),
        (
            "no bar",
            {**SCHEDULE, "spec": {k: v for k, v in SCHEDULE["spec"].items() if k != "bar"}},
            "spec.bar",
        ),
        ("no spec", {"kind": "SpecSchedule"}, "spec"),
    ],
)
def test_a_bad_manifest_gets_one_clear_line(
    tmp_path: Path, claim: str, schedule: Any, said: str
) -> None:
    result = ask(tmp_path, yaml.safe_dump(trials()), schedule=schedule)
    assert result.exit_code == 2, claim
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["judge", "-f", str(tmp_path / "no"), "--trials", "x"])
    assert result.exit_code == 2
    assert "no: No such file" in result.output


def measured(candidate_draft_tokens: int = 1000) -> list[dict[str, Any]]:
    """Trials with the engine's draft counters; all ended, all agreeing with Prometheus."""
    planned = {"incumbent": (5, 5), "candidate-card": (5, 1), "none": (0, 0)}
    found = trials()
    for item in found:
        arm = item["spec"]["arm"]
        item["status"] |= {"endedAt": "2026-11-29T10:10:00Z", "check": "Agrees"}
        for window, k in zip(item["status"]["cells"], planned[arm], strict=True):
            tokens = candidate_draft_tokens if (arm, k) == ("candidate-card", 1) else 1000 * k
            if arm != "none":
                window |= {"tokens": k, "drafts": 1000, "draftTokens": tokens}
        if arm == "candidate-card":
            item["spec"]["schedule"] = [[1, 2, 5], [3, 16, 1]]
    return found


def test_gates_are_printed_beside_and_unknown_ones_are_noted_only(tmp_path: Path) -> None:
    said = answer(ask(tmp_path, yaml.safe_dump(measured()), "-o", "json"))
    assert (said["outcome"], said["reason"]) == ("Promoted", "EveryPairMeetsBar")
    assert "by these numbers alone: gates are Unknown" in said["message"]
    gates = {gate["gate"]: gate for gate in said["gates"]}
    assert gates["scheduleInEffect"]["answer"] == "Pass"
    assert gates["noneMeasured"]["answer"] == "Pass"
    assert gates["imageId"]["answer"] == "Unknown"
    notes = {note["reason"]: note["message"] for note in said["notes"]}
    assert "imageId (NotRead)" in notes["GatesUnknown"]
    assert "scheduleInEffect" not in notes["GatesUnknown"]
    assert "Gates:" in ask(tmp_path, yaml.safe_dump(measured())).output


def test_a_gate_that_the_operators_own_trials_leave_unknown_withholds_promotion_as_there(
    tmp_path: Path,
) -> None:
    found = measured()
    for item in found:
        item["spec"]["templateHash"] = "4f1c"
    said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json"))
    assert (said["outcome"], said["reason"]) == ("Inconclusive", "NotRead")
    assert said["message"].startswith("gate imageId: ")
    assert said["verdicts"][0]["verdict"] == "Better", "the numbers stay visible"


def test_trials_that_held_no_gpu_leave_no_gate_of_gpus_open(tmp_path: Path) -> None:
    found = measured()
    gate = {}
    for seconds in (0.0, 60.0):
        for item in found:
            item["status"]["gpuSeconds"] = seconds
        said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json"))
        (gate[seconds],) = [each["answer"] for each in said["gates"] if each["gate"] == "gpu"]
    assert gate == {0.0: "NotApplicable", 60.0: "Unknown"}


def test_a_gate_that_fails_withholds_promotion(tmp_path: Path) -> None:
    said = answer(ask(tmp_path, yaml.safe_dump(measured(5000)), "-o", "json"))
    assert (said["outcome"], said["reason"]) == ("NotPromoted", "NotLimited")
    assert said["verdicts"][0]["verdict"] == "Better"
    disabled = measured()
    for item in disabled:
        if item["spec"]["arm"] == "candidate-card":
            item["status"]["receipt"] = {"notes": ["ScheduleDisabled: Disabling it"]}
    said = answer(ask(tmp_path, yaml.safe_dump(disabled), "-o", "json"))
    assert (said["outcome"], said["reason"]) == ("NotPromoted", "SwitchedOff")


def test_trials_that_disagree_with_prometheus_decide_nothing(tmp_path: Path) -> None:
    found = measured()
    found[2]["status"]["check"] = "cell hold8: the record has 3 good, Prometheus 4"
    said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json"))
    assert (said["outcome"], said["reason"]) == ("Inconclusive", "MetricsDisagree")
    assert "Prometheus 4" in said["message"]


def test_a_trial_that_still_runs_beside_ended_ones_does_not_count(tmp_path: Path) -> None:
    found = measured()
    del found[-1]["status"]["endedAt"]
    said = answer(ask(tmp_path, yaml.safe_dump(found), "-o", "json"))
    gates = {gate["gate"]: gate for gate in said["gates"]}
    assert gates["noneMeasured"]["answer"] == "Unknown"
    assert "it has not ended" in gates["noneMeasured"]["message"]


def test_an_override_of_no_gate_is_said(tmp_path: Path) -> None:
    policy = {"overrides": [{"gate": "prefixCahce", "reason": "known"}]}
    schedule = {**SCHEDULE, "spec": {**SCHEDULE["spec"], "policy": policy}}
    said = answer(ask(tmp_path, yaml.safe_dump(measured()), "-o", "json", schedule=schedule))
    assert (said["outcome"], said["reason"]) == ("NotPromoted", "UnknownGate")
    assert "prefixCahce" in said["message"]


SEARCHED = {
    **SCHEDULE,
    "spec": {k: v for k, v in SCHEDULE["spec"].items() if k != "candidates"}  # type: ignore[attr-defined]
    | {"search": {"maxTokens": 5}},
}


def searched() -> list[dict[str, Any]]:
    """Trials of a run that found its candidate, and the screen that found it."""
    found = trials()
    for document in found:
        if document["spec"]["arm"] == "candidate-card":
            document["spec"]["schedule"] = [[1, 2, 5], [3, 16, 1]]
    screen = trial("probe", 90, 0, [cell(8, 900.0)])
    screen["spec"]["visit"] = {"screen": {"batchSizes": [1, 8], "maxTokens": 5, "maxNumSeqs": 16}}
    return [screen, *found]


def test_a_search_is_judged_by_its_tests_alone_like_candidates_written_down(
    tmp_path: Path,
) -> None:
    found = answer(ask(tmp_path, yaml.safe_dump(searched()), "-o", "json", schedule=SEARCHED))
    written = answer(ask(tmp_path, yaml.safe_dump(trials()), "-o", "json"))
    assert found["outcome"] == written["outcome"]
    assert found["verdicts"] == written["verdicts"]


def test_a_search_that_has_tested_nothing_yet_is_told(tmp_path: Path) -> None:
    only = [trial("incumbent", 3, 1, [cell(8, 100.0)])]
    result = ask(tmp_path, yaml.safe_dump(only), schedule=SEARCHED)
    assert result.exit_code == 2
    assert "the search has found none yet" in result.output
