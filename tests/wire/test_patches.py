"""Patches: the target's one argument under tests, statuses by difference."""

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.wire import patches, promql, statuses

from .objects import deployment

OLD = ["--port", "8000", "--speculative-config", '{"method":"eagle3"}']


def patched(new: list[str], serving: Any = None) -> Any:
    serving = serving or deployment()
    patch = patches.argument_patch(serving, "vllm", "args", OLD, new)
    return jsonpatch.apply_patch(copy.deepcopy(serving), patch), patch


def test_one_changed_element_is_the_only_thing_replaced() -> None:
    new = [*OLD[:3], '{"method":"eagle3","num_speculative_tokens":2}']
    after, patch = patched(new)
    assert [step for step in patch if step["op"] != "test"] == [
        {"op": "replace", "path": "/spec/template/spec/containers/0/args/3", "value": new[3]}
    ]
    after["spec"]["template"]["spec"]["containers"][0]["args"] = OLD
    assert after == deployment()


@pytest.mark.parametrize(
    "new",
    [OLD[:2], [*OLD, "--x"], []],
    ids=["the argument goes", "an argument comes", "the list empties"],
)
def test_a_list_of_another_length_is_replaced_whole(new: list[str]) -> None:
    after, _ = patched(new)
    assert after["spec"]["template"]["spec"]["containers"][0]["args"] == new


def test_no_difference_is_no_patch() -> None:
    assert patched(list(OLD))[1] == []


def test_a_container_without_the_list_gets_one() -> None:
    serving = deployment()
    del serving["spec"]["template"]["spec"]["containers"][0]["args"]
    patch = patches.argument_patch(serving, "vllm", "args", [], ["--x"])
    after = jsonpatch.apply_patch(serving, patch)
    assert after["spec"]["template"]["spec"]["containers"][0]["args"] == ["--x"]


def _foreign_args(serving: Any) -> None:
    serving["spec"]["template"]["spec"]["containers"][0]["args"][1] = "8001"


def _newer(serving: Any) -> None:
    serving["metadata"]["resourceVersion"] = "42"


def _reordered(serving: Any) -> None:
    serving["spec"]["template"]["spec"]["containers"].reverse()


@pytest.mark.parametrize("edit", [_foreign_args, _newer, _reordered])
def test_a_deployment_that_changed_meanwhile_refuses_the_patch(edit: Any) -> None:
    serving = deployment()
    patch = patches.argument_patch(serving, "vllm", "args", OLD, [*OLD[:3], "{}"])
    edit(serving)
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(serving, patch)


def test_replicas_are_never_in_a_patch() -> None:
    assert "replicas" not in str(patched([*OLD, "--x"])[1])


PLAIN = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=2), PLAIN, max_size=4)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as the API server applies it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_turns_the_old_into_the_new(old: Any, new: Any) -> None:
    patch = patches.merge_patch(old, new)
    assert merged(old, patch) == new
    assert (patch == {}) == (old == new)


def test_null_means_absent() -> None:
    assert patches.merge_patch({"a": 1, "b": 2}, {"a": 1, "b": None}) == {"b": None}
    assert patches.merge_patch({}, {"a": {"b": None, "c": 1}}) == {"a": {"c": 1}}


def test_a_query_quotes_what_it_is_given() -> None:
    assert (
        promql.final_counts(run='7f"a\\', launch=5, visit=1)
        == 'specschedule_requests_total{run="7f\\"a\\\\",launch="5",visit="1"}'
    )


def run(number: int) -> dict[str, Any]:
    return {"runId": str(number), "reason": "x" * 9000}


def test_a_status_that_is_too_large_loses_its_oldest_runs_and_says_so() -> None:
    status = {"message": "fine", "verdict": [{"v": "y" * 30000}], "history": [*map(run, range(8))]}
    small = statuses.fitted(status)
    assert [each["runId"] for each in small["history"]] == ["0", "1", "2"]
    assert small["verdict"] == status["verdict"]
    assert small["message"].startswith("fine (left out of the status")
    assert small["message"].endswith(": older runs of history)")
    assert statuses.fitted(small | {"history": status["history"]}) == small


def test_a_small_status_is_stored_as_it_is_without_nulls() -> None:
    assert statuses.fitted({"a": None, "b": [{"c": None, "d": 0}]}) == {"b": [{"d": 0}]}


NEVER_CUT = {
    "outcome": "Promoted",
    "reason": "BarShown",
    "conditions": [{"type": "Ready", "message": "m" * 900}],
    "promotion": {"candidate": "card", "previousArguments": ["a" * 900]},
}


def large(size: int) -> dict[str, Any]:
    """A status of about 20 x size bytes in each of its parts."""
    texts = [{"reason": "R", "message": "x" * size}] * 20
    bars = [
        {"metric": "goodput", "at": at, "answer": "Met" if at else "Lost", "message": "b" * size,
         "pairs": [0.1] * (size // 5)}
        for at in range(20)
    ]  # fmt: skip
    floors = [{"metric": "goodput", "at": at, "floor": 0.01} for at in (0, 99)]
    return {
        **NEVER_CUT, "message": "fine", "tax": texts, "watch": texts, "notes": texts,
        "noiseFloor": floors, "gates": [{"answer": "Pass", "message": "g" * size}] * 20,
        "verdict": [{"candidate": "card", "bars": bars}], "arms": [{"arm": "a" * size}] * 20,
    }  # fmt: skip


@pytest.mark.parametrize("size", [10, 500, 700, 1000, 3000, 100_000])
def test_no_status_is_above_the_limit_and_what_decides_is_never_cut(size: int) -> None:
    status = large(size) | {"history": [*map(run, range(8))]}
    small = statuses.fitted(status)
    assert len(json.dumps(small, separators=(",", ":")).encode()) <= statuses.LARGEST
    assert {name: small[name] for name in NEVER_CUT} == NEVER_CUT
    assert "older runs of history" in small["message"]
    assert statuses.fitted(small) == small


def test_predictions_stay_while_there_is_room() -> None:
    predicted = [{"at": at, "tokens": 1} for at in range(9)]
    proposals = {"lead": "best", "proposed": [{"name": "best", "predicted": predicted}]}
    assert statuses.fitted(large(10) | {"proposals": proposals})["proposals"] == proposals
    small = statuses.fitted(large(900) | {"proposals": proposals})
    assert small["proposals"] == {"lead": "best", "proposed": [{"name": "best"}]}
    assert "notes, predictions by load point, noise floors" in small["message"]


def test_what_loses_least_goes_first_and_is_named() -> None:
    small = statuses.fitted(large(900))
    assert small["message"].endswith(
        ": tax, watch, notes, noise floors that no requirement names, pairs of requirements)"
    )
    assert [floor["at"] for floor in small["noiseFloor"]] == [0]
    bars = small["verdict"][0]["bars"]
    assert len(bars) == 20
    assert not any("pairs" in bar for bar in bars)
    smaller = statuses.fitted(large(1500))
    answers = [bar["answer"] for bar in smaller["verdict"][0]["bars"]]
    assert answers == ["Lost", *["Met"] * statuses.MET_KEPT]
