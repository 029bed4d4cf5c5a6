"""What of a screen's proposals is tested, where one of them has rows by context."""

from typing import Any

import pytest

from specschedule.core.context_axis import Follower
from specschedule.core.proposal import Proposals
from specschedule.core.search import found_in
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

THREE = [[1, 8, 4], [9, 16, 1]]
FIVE = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]
SPEC = Spec.model_validate(
    {
        "target": {"name": "chat"},
        "slo": {"ttft": "500ms"},
        "search": {"maxTokens": 4, "contexts": [400, 4000]},
        "load": {"points": [8, 16]},
        "bar": {"improve": [{"by": "15%"}]},
    }
)
SERVER = ServerFacts(
    container="server",
    max_num_seqs=16,
    speculative={"method": "eagle3", "model": "d", "num_speculative_tokens": 3},
)


def gain(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def schedule(name: str, rows: list[list[int]], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "schedule",
        "schedule": rows,
        "maxTokens": 4,
        "why": "predicted",
        **more,
    }


def proposals(lead: str, *schedules: dict[str, Any]) -> Proposals:
    controls = [
        {"name": "static-4", "kind": "static", "maxTokens": 4, "why": "the best single K"},
        {"name": "none", "kind": "none", "why": "no speculation"},
    ]
    return Proposals.model_validate(
        {
            "lead": lead,
            "proposed": [*schedules, *controls],
            "windows": 40,
            "expectedRegret": 0.004,
        }
    )


def chosen(found: Proposals, **follower: Any) -> list[str]:
    by = Follower(SERVER, **{"delivered": True, "version": "0.32.0", **follower})
    return [each.name for each in found_in(SPEC, by, found).candidates]


BOTH = proposals("best", schedule("best", THREE), schedule("context", FIVE))
ONE_ROW = [[1, 16, 4]]


def test_rows_by_context_are_tested_behind_the_best_of_three_numbers() -> None:
    assert chosen(BOTH) == ["best", "context"]


@pytest.mark.parametrize("why", [{"delivered": False}, {"version": "0.33.0"}])
def test_where_nothing_follows_them_they_are_shown_only(why: dict[str, Any]) -> None:
    assert chosen(BOTH, **why) == ["best"]


def test_where_a_control_is_as_good_as_any_k_by_batch_size_they_alone_are_tested() -> None:
    ahead = {"overNone": gain(0.3), "overStatic": gain(0.08)}
    found = proposals("static-4", schedule("best", ONE_ROW), schedule("context", FIVE, **ahead))
    assert chosen(found) == ["context"]
    assert chosen(found, delivered=False) == []


@pytest.mark.parametrize("control", ["overNone", "overStatic"])
def test_rows_that_are_not_predicted_to_beat_every_control_are_not(control: str) -> None:
    ahead = {"overNone": gain(0.3), "overStatic": gain(0.08), control: gain(-0.02)}
    found = proposals("none", schedule("best", ONE_ROW), schedule("context", FIVE, **ahead))
    assert chosen(found) == []
