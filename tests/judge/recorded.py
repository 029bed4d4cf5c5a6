"""Launches written down by hand: levels per load point, turned into the cells of design 8."""

from collections.abc import Mapping, Sequence
from typing import Any

from specschedule.core.evidence import Launch
from specschedule.core.judge import Judgement, judge
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts

WINDOW_SECONDS = 100.0

At = int | tuple[int, str | int]
"""A load point; or (load point, category); or (load point, mean context in tokens)."""


def spec_of(
    *,
    schedule: Sequence[Sequence[int]] = ((1, 2, 5), (3, 16, 1)),
    points: Sequence[int] = (1, 8, 16),
    improve: Any = ({"metric": "goodput", "at": [8, 16], "by": "15%"},),
    protect: Any = (),
    **more: Any,
) -> Spec:
    bar = {"improve": list(improve), "protect": list(protect), **more.pop("bar", {})}
    experiment = {"effort": "Quick", **more.pop("experiment", {})}
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"tpot": "40ms"},
            "candidates": [{"name": "card", "schedule": [list(row) for row in schedule]}],
            "load": {"points": list(points)},
            "bar": bar,
            "experiment": experiment,
            **more,
        }
    )


def cell(
    at: At, goodput: float | None = None, *, decode: float | None = None, **more: Any
) -> dict[str, Any]:
    """One held window with its rates: good requests/s and tokens/s of one stream."""
    point, detail = at if isinstance(at, tuple) else (at, None)
    plain: dict[str, Any] = {
        "cell": f"hold{point}-{detail or 'mixed'}-{more.get('seed', 0)}",
        "profile": {"kind": "hold", "concurrency": point},
        "windowSeconds": WINDOW_SECONDS,
        "offered": 10_000_000,
        "completed": 10_000_000,
    }
    if isinstance(detail, str):
        plain["category"] = detail
    if isinstance(detail, int):
        plain["context"] = detail
    if goodput is not None:
        plain["good"] = round(goodput * WINDOW_SECONDS)
    if decode is not None:
        plain["decodeRate"] = decode
    return plain | more


class Run:
    """A run's launches, numbered in the order in which they are added."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.launches: list[Launch] = []

    def add(
        self, arm: str, number: int, cells: Sequence[Mapping[str, Any]] = (), **more: Any
    ) -> "Run":
        launch = len(self.launches) + 1
        owner = {"arm": arm, "launch": launch, "round": number}
        if arm.startswith("candidate-"):
            more.setdefault("schedule", self.spec.candidates[0].schedule)
        self.launches.append(
            Launch.model_validate({**owner, "cells": [{**owner, **c} for c in cells], **more})
        )
        return self

    def pairs(
        self,
        values: Sequence[tuple[Mapping[At, float], Mapping[At, float]]],
        *,
        balanced: bool = True,
        **more: Any,
    ) -> "Run":
        """Add rounds of (incumbent, candidate) goodput by load point; orders AB BA AB ..."""
        for number, (incumbent, candidate) in enumerate(values, start=1):
            both = [("incumbent", incumbent), ("candidate-card", candidate)]
            for arm, levels in both if number % 2 or not balanced else both[::-1]:
                self.add(arm, number, [cell(at, level) for at, level in levels.items()], **more)
        return self

    def judge(self, *, speculative: Mapping[str, Any] | None = None) -> Judgement:
        server = None
        if speculative is not None:
            server = ServerFacts(container="server", speculative=dict(speculative))
        return judge(self.spec, self.launches, server=server)
