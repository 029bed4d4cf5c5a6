"""What a person sees in the terminal while a run goes on."""

from typing import Any

from specschedule.report.terminal import render

RUNNING: dict[str, Any] = {
    "stage": "Measuring",
    "reason": "Booting",
    "message": "none boots: loading weights",
    "startedAt": "2026-11-29T10:00:00Z",
    "progress": {"launchesDone": 6, "launchesPlanned": 12},
    "arms": [{"arm": "incumbent", "launches": 3, "cells": 6, "goodput": []}],
    "noiseFloor": [
        {"metric": "goodput", "at": 8, "floor": 0.012, "count": 2},
        {"metric": "attainment", "requestsPerSecond": 2.5, "floor": 0.02, "count": 1},
        {"metric": "decodeRate", "at": 1, "category": "code", "floor": 0.003, "count": 2},
    ],
    "verdict": [
        {
            "candidate": "card",
            "bars": [
                {
                    "kind": "improve",
                    "answer": "Unproven",
                    "message": "goodput at 8: improve +15.0%: evidence 5.2 of 20; at the noise "
                    "seen a true +15.0% needs about 6 rounds; +17.0% over 3 pairs",
                },
                {"kind": "elsewhere", "answer": "Met", "message": "goodput at 1: as it was"},
                {"kind": "elsewhere", "answer": "Lost", "message": "goodput at 4: -9.0%"},
            ],
        }
    ],
}
NOW = 1_796_000_000.0


def test_a_run_shows_its_noise_and_what_the_bar_still_needs_while_it_goes_on() -> None:
    lines = render(RUNNING, NOW)
    assert (
        "  noise floor: goodput at 8 1.2% (n = 2), attainment at 2.5 requests/s 2.0% (n = 1), "
        "decodeRate at 1, code 0.3% (n = 2)"
    ) in lines
    forecast = next(line for line in lines if "improve" in line)
    assert forecast.startswith("  card: Unproven: goodput at 8: improve +15.0%")
    assert "needs about 6 rounds" in forecast


def test_decode_rates_by_category_stand_below_their_arm() -> None:
    rates = [
        {"at": at, "category": name, "tokensPerSecond": rate, "windows": 1}
        for at, name, rate in ((1, "code", 63.51), (1, "prose", 48.2), (8, "code", 40.0))
    ]
    arm = {"arm": "incumbent", "launches": 1, "cells": 4, "goodput": [], "decode": rates}
    text = "\n".join(render({**RUNNING, "arms": [arm]}, NOW))
    assert "tokens/s of one stream at 1: code 63.51, prose 48.2\n" in text
    assert "tokens/s of one stream at 8: code 40\n" in text


def test_decode_rates_by_depth_stand_there_too() -> None:
    rates = [
        {"at": 1, "depth": depth, "tokensPerSecond": rate, "windows": 1}
        for depth, rate in ((512, 63.5), (2048, 48.25))
    ]
    arm = {"arm": "none", "launches": 1, "cells": 4, "goodput": [], "decode": rates}
    text = "\n".join(render({**RUNNING, "arms": [arm]}, NOW))
    assert "tokens/s of one stream at 1: depth 512: 63.5, depth 2048: 48.25\n" in text


def test_elsewhere_is_shown_where_something_was_lost_only() -> None:
    text = "\n".join(render(RUNNING, NOW))
    assert "goodput at 4: -9.0%" in text
    assert "goodput at 1" not in text


def test_before_the_first_relaunch_nothing_is_forecast() -> None:
    young = {k: v for k, v in RUNNING.items() if k not in ("noiseFloor", "verdict")}
    assert [line.split()[0] for line in render(young, NOW)] == [
        "Measuring:",
        "none",
        "arm",
        "incumbent",
    ]


def test_an_ended_run_says_its_outcome_and_makes_no_forecast() -> None:
    ended = RUNNING | {"outcome": "Promoted", "reason": "BarShown", "message": "card: +17.0%"}
    text = "\n".join(render(ended, NOW))
    assert text.startswith("Promoted (BarShown)\n  card: +17.0%")
    assert "needs about" not in text
