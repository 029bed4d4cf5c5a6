"""Which arms a run has, with which argument, and why."""

from collections.abc import Sequence
from typing import Any

import pytest

from specschedule.core.arms import Arm, arms
from specschedule.core.controls import is_control
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

EAGLE = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 5}


def spec_of(
    effort: str = "Quick", rows: Sequence[Sequence[int]] = ((1, 2, 5), (3, 16, 1)), **more: Any
) -> Spec:
    experiment = {"effort": effort, **more.pop("experiment", {})}
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"tpot": "40ms"},
            "candidates": [{"name": "card", "schedule": [list(row) for row in rows]}],
            "load": {"points": [1, 8]},
            "bar": {"improve": [{"at": [8], "by": "15%"}]},
            "experiment": experiment,
            **more,
        }
    )


def found(spec: Spec, speculative: dict[str, Any] | None = EAGLE) -> dict[str, Arm]:
    server = ServerFacts(container="server", max_num_seqs=16, speculative=speculative)
    return {arm.name: arm for arm in arms(spec, server)}


def launched(ways: dict[str, Arm]) -> list[str]:
    return [name for name, arm in ways.items() if arm.same_as is None]


QUICK = ["incumbent", "candidate-card", "none"]
PATH = ["constant-1", "piecewise-1", "constant-5", "piecewise-5"]


@pytest.mark.parametrize(
    ("effort", "names"),
    [
        ("Quick", QUICK),
        (
            "Standard",
            [*QUICK, "static-1", *PATH],
        ),
        (
            "Thorough",
            [*QUICK, "static-1", *PATH, "twin"],
        ),
    ],
)
def test_arms_by_effort(effort: str, names: list[str]) -> None:
    assert launched(found(spec_of(effort))) == names


def test_the_incumbent_keeps_its_arguments_and_a_candidate_changes_two_keys_only() -> None:
    ways = found(spec_of())
    assert ways["incumbent"].unchanged
    assert ways["incumbent"].speculative == EAGLE
    assert ways["candidate-card"].speculative == {
        **EAGLE,
        "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 1]],
    }
    assert not ways["candidate-card"].unchanged
    assert ways["none"].speculative is None


def test_static_arms_carry_no_schedule_even_where_the_incumbent_has_one() -> None:
    own = {**EAGLE, "num_speculative_tokens_per_batch_size": [[1, 16, 3]]}
    ways = found(spec_of(experiment={"static": [2]}), own)
    assert ways["static-2"].speculative == {**EAGLE, "num_speculative_tokens": 2}
    assert ways["incumbent"].schedule == [[1, 16, 3]]


def test_a_static_k_that_serves_already_is_the_incumbent() -> None:
    ways = found(spec_of(experiment={"static": [1, 5]}))
    assert ways["static-5"].same_as == "incumbent"
    assert ways["static-1"].same_as is None


@pytest.mark.parametrize(
    ("claim", "serving", "same"),
    [
        ("the same rows", [[1, 2, 5], [3, 16, 1]], True),
        ("other rows with the same table", [[1, 2, 5], [3, 8, 1], [12, 16, 1]], True),
        ("another table", [[1, 3, 5], [4, 16, 1]], False),
    ],
)
def test_a_candidate_whose_table_equals_the_incumbents_is_not_launched(
    claim: str, serving: list[list[int]], same: bool
) -> None:
    own = {**EAGLE, "num_speculative_tokens_per_batch_size": serving}
    candidate = found(spec_of(), own)["candidate-card"]
    assert (candidate.same_as == "incumbent") is same, claim
    assert ("equals the incumbent's" in candidate.why) is same


def test_a_candidate_that_is_spelt_in_two_ways_is_launched_once() -> None:
    twice = [
        {"name": "card", "schedule": [[1, 2, 5], [3, 16, 2]]},
        {"name": "again", "schedule": [[1, 2, 5], [3, 8, 2], [9, 16, 2]]},
        {"name": "other", "schedule": [[1, 2, 5], [3, 16, 1]]},
    ]
    ways = found(spec_of(candidates=twice))
    same = {name: ways[f"candidate-{name}"].same_as for name in ("card", "again", "other")}
    assert same == {"card": None, "again": "candidate-card", "other": None}


def test_the_same_k_on_the_dynamic_path_is_not_the_same_thing() -> None:
    assert found(spec_of(rows=[[1, 16, 5]]))["candidate-card"].same_as is None


def test_a_target_without_speculation_is_its_own_none() -> None:
    spec = spec_of(speculative={"method": "ngram"})
    ways = found(spec, None)
    assert ways["none"].same_as == "incumbent"
    assert ways["incumbent"].tokens(8) == 0
    assert ways["candidate-card"].speculative == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 1]],
    }


def test_max_tokens_of_a_candidate_clamps_its_rows() -> None:
    spec = spec_of()
    clamped = spec.candidates[0].model_copy(update={"max_tokens": 3})
    arm = found(spec.model_copy(update={"candidates": [clamped]}))["candidate-card"]
    assert arm.speculative is not None
    assert arm.speculative["num_speculative_tokens"] == 3
    assert (arm.tokens(1), arm.tokens(8)) == (3, 1)


@pytest.mark.parametrize(
    ("claim", "contexts", "tokens"),
    [
        ("one context range throughout", (100, 400), 4),
        ("crossing 512 after some tokens", (500, 628), None),
        ("beyond the last range, which has no end", (40000, 40128), 2),
        ("unknown contexts", None, None),
    ],
)
def test_planned_tokens_by_context_are_absent_where_they_vary(
    claim: str, contexts: tuple[int, int] | None, tokens: int | None
) -> None:
    arm = found(spec_of(rows=[[1, 16, 1, 512, 4], [1, 16, 513, 32768, 2]]))["candidate-card"]
    assert arm.tokens(4, contexts) == tokens, claim


def test_zero_is_an_arm_only_where_the_candidate_has_a_k0_row() -> None:
    assert "zero" not in found(spec_of("Standard"))
    zero = found(spec_of("Standard", rows=[[1, 4, 3], [5, 16, 0]]))["zero"]
    assert zero.schedule == [[1, 16, 0]]
    assert zero.speculative is not None
    assert zero.speculative["num_speculative_tokens"] == 3


def test_a_static_k_in_piecewise_graphs_differs_from_the_static_one_in_its_graphs_only() -> None:
    ways = found(spec_of("Standard", experiment={"static": [1]}))
    assert ways["piecewise-1"].speculative == ways["static-1"].speculative
    assert ways["piecewise-1"].schedule is None
    assert ways["piecewise-1"].graph_mode == "PIECEWISE"
    assert {arm.graph_mode for name, arm in ways.items() if "piecewise" not in name} == {None}
    assert not is_control("piecewise-1")


def test_without_graphs_there_is_no_graph_mode_to_vary() -> None:
    server = ServerFacts(container="s", max_num_seqs=16, speculative=EAGLE, enforce_eager=True)
    names = [arm.name for arm in arms(spec_of("Standard"), server)]
    assert "constant-5" in names
    assert "piecewise-5" not in names


CAN_ADAPT = {
    "container": "server",
    "max_num_seqs": 16,
    "speculative": EAGLE,
    "gpus": 1,
    "image": "vllm/vllm-openai:v0.32.0",
}


@pytest.mark.parametrize(
    ("claim", "server", "version", "offered"),
    [
        ("a drafter model on 0.32", {}, None, True),
        ("too old", {"image": "vllm/vllm-openai:v0.29.0"}, None, False),
        ("an image that does not tell", {"image": "own/vllm@sha256:1"}, None, False),
        ("a launch has told", {"image": "own/vllm@sha256:1"}, "0.32.0", True),
        ("n-gram drafts", {"speculative": {**EAGLE, "method": "ngram"}}, None, False),
        ("no GPU", {"gpus": 0}, None, False),
        ("no graphs", {"enforce_eager": True}, None, False),
        ("no full graphs", {"graph_mode": "PIECEWISE"}, None, False),
        ("full graphs of decodes", {"graph_mode": "FULL_DECODE_ONLY"}, None, True),
        ("adapters", {"enable_lora": True}, None, False),
        ("pipeline parallel", {"pipeline_parallel_size": 2}, None, False),
    ],
)
def test_adaptive_verification_is_an_arm_where_the_engine_can_do_it(
    claim: str, server: dict[str, Any], version: str | None, offered: bool
) -> None:
    facts = ServerFacts.model_validate({**CAN_ADAPT, **server})
    ways = {arm.name: arm for arm in arms(spec_of("Standard"), facts, version=version)}
    assert ("adaptive" in ways) is offered, claim
    if offered:
        assert ways["adaptive"].speculative == {**EAGLE, "enable_adaptive_verification": True}
        assert ways["adaptive"].tokens(8) is None
        assert is_control("adaptive")


def test_an_adaptive_target_is_its_own_rival_and_its_static_arms_do_not_adapt() -> None:
    own = {**EAGLE, "enable_adaptive_verification": True}
    facts = ServerFacts.model_validate({**CAN_ADAPT, "speculative": own})
    spec = spec_of("Standard", experiment={"static": [5]})
    ways = {arm.name: arm for arm in arms(spec, facts)}
    assert ways["adaptive"].same_as == "incumbent"
    assert ways["incumbent"].tokens(8) is None
    assert ways["static-5"].same_as is None
    assert ways["static-5"].speculative == EAGLE
