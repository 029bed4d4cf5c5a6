"""A run that looks for its candidates itself: one pod that switches K, one without, then pairs."""

from dataclasses import dataclass
from typing import Any

import pytest

from .place import INCUMBENT, MEASURED, NAME, QUESTION, Object, Place
from .scenes import of, scene

pytestmark = pytest.mark.e2e

ROWS = "num_speculative_tokens_per_batch_size"
MOST = 4


@dataclass(frozen=True)
class Searched:
    """A run with a search, up to the first launch of what it found."""

    status: Object
    trials: list[Object]
    pods: dict[str, Object]
    """Trial pods as they were created, by arm."""


@scene(launches=4)
def searched(place: Place) -> Searched:
    place.serve(cpu=MEASURED)
    with place.watching("pods") as pods:
        place.ask(
            candidates=None,
            search={"maxTokens": MOST},
            # Far apart, so that no neighbour's burst hides which K is best at which.
            load={**QUESTION["load"], "points": [1, 16]},
            bar={"improve": [{"metric": "goodput", "at": [16], "by": "30%"}]},
        )

        def tested_or_over() -> Any:
            return place.status().get("outcome") or any(
                trial["spec"]["arm"].startswith("candidate-")
                and (trial.get("status") or {}).get("endedAt")
                for trial in place.trials()
            )

        place.until("a launch of what was found is recorded", tested_or_over)
        status, trials = place.status(), place.trials()
        place.kubectl("delete", "specschedule", NAME)
    labelled = [(p, p["metadata"]["labels"]) for p in pods.objects()]
    by_arm = {
        labels["specschedule.dev/arm"]: pod
        for pod, labels in labelled
        if labels.get("specschedule.dev/role") == "trial"
    }
    return Searched(status, trials, by_arm)


@of(searched)
def test_a_screen_is_two_pods_and_only_the_probe_carries_a_scheduler(played: Searched) -> None:
    screens = [t["spec"]["arm"] for t in played.trials if t["spec"]["round"] == 0]
    assert screens == ["probe", "none"]
    arguments = {arm: pod["spec"]["containers"][0]["args"] for arm, pod in played.pods.items()}
    with_scheduler = {arm for arm, said in arguments.items() if "--scheduler-cls" in str(said)}
    assert with_scheduler == {"probe"}
    assert "--speculative-config" not in arguments["none"]


@of(searched)
def test_the_pods_scheduler_switched_k_between_windows(played: Searched) -> None:
    (probe,) = [t for t in played.trials if t["spec"]["arm"] == "probe"]
    assert "void" not in probe["status"]
    assert "failed" not in probe["status"]
    counted = [c for c in probe["status"]["cells"] if "void" not in c and c.get("tokens")]
    for cell in counted:
        assert cell["draftTokens"] / cell["drafts"] == pytest.approx(cell["tokens"], rel=0.1)
    assert len({cell["tokens"] for cell in counted}) >= 2, "in one boot"


@of(searched)
def test_what_was_found_is_tested_as_stock_vllm_serves_it(played: Searched) -> None:
    assert played.status.get("outcome") is None, played.status["message"]
    found = played.status["proposals"]
    assert found["lead"] == "best"
    best = next(each for each in found["proposed"] if each["name"] == "best")
    rows = best["schedule"]
    assert rows[0][2] > rows[-1][2], "in this world drafts pay when alone and cost at load"
    (trial,) = [t for t in played.trials if t["spec"]["arm"] == "candidate-best"]
    assert trial["spec"]["speculative"] == {
        **INCUMBENT,
        "num_speculative_tokens": best["maxTokens"],
        ROWS: rows,
    }
    hold = [c for c in trial["status"]["cells"] if c["profile"]["kind"] == "hold"]
    (full,) = [c for c in hold if c["profile"]["concurrency"] == 16]
    (planned,) = {row[2] for row in rows if row[0] <= 16 <= row[1]}
    if planned:
        assert full["draftTokens"] / full["drafts"] == pytest.approx(planned, rel=0.1)
    else:
        # A request that ends leaves smaller batches now and then, and their K.
        assert full.get("draftTokens", 0) < 0.1 * full["outputTokens"]


@scene(launches=1)
def misfit(place: Place) -> list[Object]:
    """An engine that drafts the most whatever is planned: the trials once the probe is over."""
    place.serve(cpu=MEASURED, extra_args=["--fault", "ignores-k"])
    place.ask(
        candidates=None,
        search={"maxTokens": MOST},
        load={**QUESTION["load"], "points": [2, 8]},
    )
    place.until("another launch follows the probe", lambda: len(place.trials()) > 1)
    trials = place.trials()
    place.kubectl("delete", "specschedule", NAME)
    return trials


@of(misfit)
def test_a_probe_whose_engine_does_otherwise_measures_nothing_and_says_why(
    played: list[Object],
) -> None:
    probe = next(trial["status"] for trial in played if trial["spec"]["arm"] == "probe")
    # The page is on loopback of the pod, so that here the engine's own counters tell.
    finding = f"K=0 was asked for and the engine drafted {MOST}.00 tokens at a time"
    assert probe["failed"] == f"NotSwitched: {finding}"
    assert probe.get("cells", []) == []


@of(misfit)
def test_then_each_k_gets_a_pod(played: list[Object]) -> None:
    assert [trial["spec"]["arm"] for trial in played] == ["probe", "none"]
    assert "secret" not in played[1]["spec"]["visit"]["screen"]
