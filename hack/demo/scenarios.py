"""The demo's scenarios, as data: what serves, what is asked, and what must come out."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """One serving Deployment and one SpecSchedule on it."""

    name: str
    title: str
    world: str
    incumbent: dict[str, Any] | None
    candidates: list[dict[str, Any]]
    slo: dict[str, str]
    load: dict[str, Any]
    bar: dict[str, Any]
    experiment: dict[str, Any]
    outcome: str
    timeout_s: int = 900

    @property
    def namespace(self) -> str:
        """Namespace of its own."""
        return f"specschedule-demo-{self.name}"


def eagle(tokens: int) -> dict[str, Any]:
    """Return a static speculative config."""
    return {"method": "eagle3", "model": "demo/drafter", "num_speculative_tokens": tokens}


QUICK = {"effort": "Quick", "seed": 7, "deadline": "20m"}
LOAD = {
    "points": [1, 8, 16],
    "requests": 24,
    "outputTokens": 32,
    "promptTokens": 64,
    "maxSendLag": "25ms",
}
"""On two cores that also run the cluster, a send may be late by some milliseconds; the simulated
steps take 10 to 130."""

SIM = [
    Scenario(
        name="better",
        title="static K=5 serves; the candidate drafts 5 tokens up to batch size 2, then 1",
        world="demo",
        incumbent=eagle(5),
        candidates=[{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
        slo={"ttft": "1s", "tpot": "150ms"},
        load=LOAD,
        bar={
            "improve": [{"metric": "goodput", "at": [16], "by": "40%"}],
            "protect": [{"metric": "decodeRate", "at": [1], "within": "10%"}],
        },
        experiment=QUICK,
        outcome="Promoted",
    ),
    Scenario(
        name="loses",
        title="a schedule that beats static K=5 but loses to having no speculation",
        world="demo-loses",
        incumbent=eagle(5),
        candidates=[{"name": "card", "schedule": [[1, 2, 3], [3, 16, 1]]}],
        slo={"ttft": "1s", "tpot": "150ms"},
        load={**LOAD, "points": [16]},
        bar={"improve": [{"metric": "goodput", "at": [16], "by": "20%"}]},
        experiment=QUICK,
        outcome="NotPromoted",
    ),
]


@dataclass(frozen=True)
class Shown:
    """What a scenario came to."""

    scenario: Scenario
    outcome: str | None
    status: dict[str, Any] = field(default_factory=dict)
    arguments_before: list[list[str]] = field(default_factory=list)
    arguments_after: list[list[str]] = field(default_factory=list)
