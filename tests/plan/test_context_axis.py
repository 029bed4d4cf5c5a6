"""Candidates with rows by context: who follows them, what is launched, what is measured."""

import json
from typing import Any

import pytest

from specschedule.core.arms import Arm, arms
from specschedule.core.budget import cost
from specschedule.core.context_axis import CLASS
from specschedule.core.controls import argument
from specschedule.core.gates import before_pods
from specschedule.core.preflight import tables_of
from specschedule.core.spec import Spec
from specschedule.core.target import RolloutFacts, ServerFacts, TargetFacts
from specschedule.core.windows import windows
from specschedule.vllm_facts import matrix

ROWS = [[1, 8, 1, 1024, 1], [1, 8, 1025, 8192, 4], [9, 16, 1, 1024, 0], [9, 16, 1025, 8192, 2]]
EVERY_K = [[1, 1, 4], [2, 2, 3], [3, 3, 2], [4, 4, 1], [5, 16, 0]]
SPEC = Spec.model_validate(
    {
        "target": {"name": "chat"},
        "slo": {"ttft": "500ms"},
        "candidates": [{"name": "deep", "schedule": ROWS}],
        "load": {"points": [8, 16], "promptTokens": 64, "outputTokens": 32},
        "bar": {"improve": [{"at": [8], "by": "15%"}]},
        "experiment": {"effort": "Quick"},
    }
)
ROWS_KEY = "num_speculative_tokens_per_batch_size"


def server(**facts: Any) -> ServerFacts:
    plain = {
        "container": "server",
        "image": "vllm/vllm-openai:v0.32.0",
        "max_num_seqs": 16,
        "max_num_seqs_given": True,
        "max_model_len": 8192,
        "speculative": {"method": "eagle3", "model": "d", "num_speculative_tokens": 3},
    }
    return ServerFacts.model_validate({**plain, **facts})


def candidate(of: ServerFacts, *, delivered: bool = True) -> Arm:
    return next(a for a in arms(SPEC, of, delivered=delivered) if a.name == "candidate-deep")


def gates(of: ServerFacts, *, delivered: bool = True) -> dict[str, Any]:
    target = TargetFacts(
        resource_version="1",
        generation=1,
        template_hash="h",
        server=of,
        rollout=RolloutFacts(complete=True, message=""),
        gpus=1,
        accelerator="nvidia.com/gpu",
    )
    found = before_pods(SPEC, target, matrix=matrix.ROWS, delivered=delivered)
    return {gate.gate: gate for gate in found}


def test_the_engine_is_started_with_every_k_and_the_arm_keeps_its_own_rows() -> None:
    arm = candidate(server())
    assert arm.context_axis
    assert arm.speculative == {
        "method": "eagle3",
        "model": "d",
        "num_speculative_tokens": 4,
        ROWS_KEY: EVERY_K,
    }
    assert arm.schedule == ROWS
    assert [arm.tokens(at, (64, 96)) for at in (8, 16)] == [1, 0]
    assert [arm.tokens(at, (2000, 2032)) for at in (8, 16)] == [4, 2]
    assert arm.tokens(8, (1000, 1032)) is None, "K changes on the way"


def test_no_other_arm_gets_the_scheduler() -> None:
    others = [a for a in arms(SPEC, server(), delivered=True) if a.name != "candidate-deep"]
    assert len(others) >= 2
    assert not any(arm.context_axis for arm in others)


def test_before_any_pod_the_rows_that_the_engine_is_started_with_are_judged() -> None:
    found = gates(server())
    assert found["methodAndSchedule"].answer == "Pass"
    assert "deep: our context-axis scheduler follows its rows" in found["schedule"].message
    assert found["load"].answer == "Pass"


CANNOT: dict[str, tuple[dict[str, Any], bool, str]] = {
    "nothing is delivered": ({}, False, "launches here carry nothing of ours"),
    "a scheduler class of its own": (
        {"scheduler_class": "theirs.S"},
        True,
        "a --scheduler-cls of its own, theirs.S",
    ),
    "a release in which it was not seen to work": (
        {"image": "vllm/vllm-openai:v0.33.0"},
        True,
        "known to work in vLLM 0.32, not in 0.33.0",
    ),
    "batch sizes too few to name every K": ({"max_num_seqs": 4}, True, "max_num_seqs 4"),
}


@pytest.mark.parametrize("why", CANNOT)
def test_where_it_cannot_run_the_refusal_stays_and_the_reason_is_told(why: str) -> None:
    facts, delivered, said = CANNOT[why]
    arm = candidate(server(**facts), delivered=delivered)
    assert not arm.context_axis
    assert arm.speculative is not None
    assert arm.speculative[ROWS_KEY] == ROWS, "as the engine itself would have to take them"
    found = gates(server(**facts), delivered=delivered)
    assert found["methodAndSchedule"].reason == "EngineRefusesSchedule"
    assert "vllm#48944" in found["methodAndSchedule"].message
    assert said in found["schedule"].message


OWN = {"scheduler_class": CLASS}


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.32.0", "ours/vllm:v0.33.0"])
def test_a_server_that_names_our_scheduler_itself_follows_rows_by_context_as_they_are(
    image: str, delivered: bool
) -> None:
    own = server(**OWN, image=image)
    arm = candidate(own, delivered=delivered)
    assert not arm.context_axis, "nothing is brought along"
    assert arm.speculative is not None
    assert (arm.speculative[ROWS_KEY], arm.schedule) == (ROWS, ROWS)
    found = gates(own, delivered=delivered)
    assert found["schedule"].message.endswith(
        "; deep: our context-axis scheduler follows its rows, as it does in serving"
    )
    assert "vllm#48944" not in found["methodAndSchedule"].message
    assert found["methodAndSchedule"].answer != "Fail"


def test_a_server_of_ours_with_too_few_batch_sizes_is_refused_all_the_same() -> None:
    found = gates(server(**OWN, max_num_seqs=4))
    assert found["methodAndSchedule"].reason == "EngineRefusesSchedule"
    assert "max_num_seqs 4 is too small" in found["schedule"].message


def test_what_serves_rows_by_context_is_the_incumbent_and_no_candidate() -> None:
    config = {"method": "eagle3", "model": "d", "num_speculative_tokens": 4, ROWS_KEY: ROWS}
    incumbent, twin = arms(SPEC, server(**OWN, speculative=config))[:2]
    assert (incumbent.name, incumbent.schedule) == ("incumbent", ROWS)
    assert [incumbent.tokens(8, at) for at in ((64, 96), (2000, 2032))] == [1, 4]
    assert twin.same_as == "incumbent"


def test_advice_to_serve_without_rows_by_context_takes_the_table_away_too() -> None:
    config = {"method": "eagle3", "model": "d", "num_speculative_tokens": 4, ROWS_KEY: ROWS}
    by_context, plain = server(**OWN, speculative=config), server(**OWN)
    away = ", and take specschedule out of --additional-config"
    for name in ("none", "static-2"):
        assert argument(name, SPEC, by_context).endswith(away)
        assert away not in argument(name, SPEC, plain)


def test_a_version_that_nobody_told_is_left_to_the_scheduler_itself() -> None:
    unknown = server(image=None)
    assert candidate(unknown).context_axis
    assert gates(unknown)["methodAndSchedule"].answer != "Fail"


def test_rows_of_three_numbers_are_left_to_the_engine() -> None:
    plain = SPEC.testing([SPEC.candidates[0].model_copy(update={"schedule": [[1, 16, 2]]})])
    (arm,) = (a for a in arms(plain, server(), delivered=True) if a.name == "candidate-deep")
    assert not arm.context_axis
    assert arm.speculative is not None
    assert arm.speculative[ROWS_KEY] == [[1, 16, 2]]


CONTEXTS = {8: [200, 4000], 16: [200]}
"""As a search gives them: at 16 in flight the longer one does not fit."""


def held(name: str) -> dict[str, Any]:
    (arm,) = (a for a in arms(SPEC, server(), delivered=True) if a.name == name)
    found = windows(SPEC, arm, round=1, first=False, contexts=CONTEXTS)
    return {w.cell: w for w in found if w.profile.kind == "hold"}


def test_contexts_are_held_apart_and_mixed() -> None:
    found = held("candidate-deep")
    assert sorted(found) == [
        "r1-hold16-c200-s10",
        "r1-hold16-s10",
        "r1-hold8-c200+4000-s10",
        "r1-hold8-c200-s10",
        "r1-hold8-c4000-s10",
        "r1-hold8-s10",
    ]
    assert found["r1-hold8-c4000-s10"].profile.context == 4000 - 16
    mixed = found["r1-hold8-c200+4000-s10"]
    assert mixed.profile.contexts == [200 - 16, 4000 - 16]
    assert mixed.context == 2100
    assert {cell: window.tokens for cell, window in found.items()} == {
        "r1-hold16-c200-s10": 0,
        "r1-hold16-s10": 0,
        "r1-hold8-c200-s10": 1,
        "r1-hold8-c4000-s10": 4,
        "r1-hold8-c200+4000-s10": None,
        "r1-hold8-s10": 1,
    }


def test_every_arm_of_a_round_has_the_same_windows() -> None:
    def what(name: str) -> dict[str, str]:
        return {cell: json.dumps(w.profile.plain()) for cell, w in held(name).items()}

    assert what("incumbent") == what("candidate-deep") == what("none")
    assert held("incumbent")["r1-hold8-c200+4000-s10"].tokens == 3


def test_what_is_held_by_context_is_in_the_price() -> None:
    ways = arms(SPEC, server(), delivered=True)
    plain, whole = (
        cost(SPEC, ways, boot_seconds=60.0, gpus=1, contexts=contexts)
        for contexts in (None, CONTEXTS)
    )
    assert whole.launches == plain.launches
    assert whole.gpu_hours > plain.gpu_hours


def test_the_load_fits_by_the_candidates_own_table() -> None:
    assert tables_of(SPEC, server())["deep"].tokens(8, 2000) == 4
