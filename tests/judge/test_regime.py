"""The regime that a verdict holds for, and where serving is otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main
from specschedule.core.judge import Judgement, judge
from specschedule.core.regime import ServingRegime

from .recorded import Run, cell, spec_of
from .test_judge_command import SCHEDULE, trials

CACHE = {"prefixCache": {"queries": 20_000, "hits": 400}, "offered": 100, "completed": 100}


def run_of(**load: Any) -> Run:
    """Launches that found 2 % of prompts of 200 tokens cached, with 1 and 8 in flight."""
    points = {"points": [1, 8], "outputTokens": 128, **load}
    run = Run(spec_of(load=points, improve=[{"at": [8], "by": "5%"}]))
    for number in (1, 2):
        for arm in ("incumbent", "candidate-card"):
            run.add(arm, number, [cell(at, 0.5, **CACHE) for at in (1, 8)])
    return run


def judged(run: Run, **serving: float) -> Judgement:
    told = ServingRegime.model_validate({"seconds": 3600, **serving}) if serving else None
    return judge(run.spec, run.launches, serving=told)


def said(answer: Judgement, reason: str) -> str:
    return " ".join(note.message for note in answer.notes if note.reason == reason)


def test_the_verdict_names_the_regime_that_it_holds_for() -> None:
    assert said(judged(run_of()), "Regime") == (
        "the verdict holds for prefix cache Unique (2% of prompt tokens found), prompts of about "
        "200 tokens, answers of 128 tokens, 1, 8 in flight per replica"
    )


def test_without_counters_the_declared_lengths_are_named() -> None:
    load = {"points": [8], "promptTokens": 300}
    run = Run(spec_of(load=load, improve=[{"at": [8], "by": "5%"}]))
    run.add("incumbent", 1, [cell(8, 0.5)]).add("candidate-card", 1, [cell(8, 0.6)])
    assert "prefix cache Unique, prompts of about 300 tokens" in said(judged(run), "Regime")


ALIKE = {
    "prefixHitShare": 0.05,
    "promptTokens": 240.0,
    "outputTokens": 100.0,
    "batchSize": 3.2,
    "batchSizeP95": 8.0,
}


def test_serving_that_is_alike_is_not_remarked_upon() -> None:
    assert said(judged(run_of(), **ALIKE), "RegimeDiffers") == ""


def test_what_prometheus_does_not_tell_is_no_difference() -> None:
    assert said(judged(run_of(), batchSize=3.0), "RegimeDiffers") == ""


@pytest.mark.parametrize(
    ("claim", "serving", "words"),
    [
        (
            "prefixes are shared",
            {"prefixHitShare": 0.45},
            "45% of prompt tokens found in the prefix cache, the workload 2% (load.prefixCache)",
        ),
        ("long prompts", {"promptTokens": 1840.0}, "prompts of 1840 tokens, the workload 200"),
        ("short answers", {"outputTokens": 40.0}, "answers of 40 tokens, the workload 128"),
        ("busier", {"batchSizeP95": 30.0}, "up to 30 requests running in a pod, beyond every"),
        (
            "idle",
            {"batchSize": 0.2, "batchSizeP95": 0.9},
            "0.2 requests running in a pod on average, below every load point",
        ),
    ],
)
def test_serving_that_does_otherwise_is_said(
    claim: str, serving: dict[str, float], words: str
) -> None:
    differing = said(judged(run_of(), **{**ALIKE, **serving}), "RegimeDiffers")
    assert words in differing, claim
    assert "in the last 1 h" in differing
    assert ";" not in differing


def test_the_ledger_keeps_what_serving_did_so_that_a_replay_says_the_same(tmp_path: Path) -> None:
    ledger = trials()
    ledger[0]["spec"]["serving"] = {"seconds": 3600, "batchSizeP95": 64.0}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCHEDULE))
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(ledger))
    paths = ["-f", str(tmp_path / "s.yaml"), "--trials", str(tmp_path / "t.yaml")]
    notes = json.loads(CliRunner().invoke(main, ["judge", *paths, "-o", "json"]).output)["notes"]
    assert any("up to 64 requests" in note["message"] for note in notes)
    ledger[0]["spec"]["serving"] = {"seconds": "soon"}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(ledger))
    result = CliRunner().invoke(main, ["judge", *paths])
    assert result.exit_code == 2
    assert "spec.serving.seconds" in result.output
