"""``specschedule propose`` as a user runs it."""

import json

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main
from specschedule.core.versions import adaptive_verification
from tests.tuner import published

POINTS = (1, 16, 32, 64)
SPEC = {
    "target": {"name": "chat"},
    "slo": {"tpot": "40ms"},
    "candidates": [{"name": "card", "schedule": [[1, 16, 3]]}],
    "load": {"points": list(POINTS)},
    "bar": {"improve": [{"by": "5%"}]},
}
CELLS = [c.plain() for c in published.from_steps(published.PR_32374_MS, published.EAGLE)]


@pytest.fixture
def run(tmp_path):
    def invoke(cells=CELLS, *options, spec=SPEC, text=None):
        manifest, file = tmp_path / "specschedule.yaml", tmp_path / "cells.json"
        manifest.write_text(yaml.safe_dump({"kind": "SpecSchedule", "spec": spec}))
        file.write_text(json.dumps(cells) if text is None else text)
        arguments = ["propose", "-f", str(manifest), "--cells", str(file), *options]
        return CliRunner().invoke(main, arguments)

    return invoke


def test_the_answer_in_json(run):
    result = run(CELLS, "-o", "json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    best = answer["candidates"][0]
    assert best["name"] == "best"
    assert best["maxTokens"] == max(row[2] for row in best["schedule"])
    assert [p["at"] for p in best["predicted"]] == list(POINTS)
    assert {"value", "low", "high"} == best["predicted"][0]["tpotMs"].keys()
    assert [c["best"] for c in answer["choices"]] == [3, 3, 3, 2]
    assert {"static-3", "none", "conservative", "no-zero"} <= {
        c["name"] for c in answer["candidates"]
    }


def test_the_answer_in_words(run):
    result = run(CELLS, "--method", "eagle", "--engine-version", "0.32.0")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Test first: ")
    for word in ("best: [[1, ", "TOKENS/S", "over static", "expected regret", "adaptive:"):
        assert word in result.output


def test_one_cell_to_a_line_is_read_too(run):
    lines = "\n".join(json.dumps(c) for c in CELLS)
    assert run(CELLS, "-o", "json", text=lines).stdout == run(CELLS, "-o", "json").stdout


def test_a_spec_that_leaves_the_candidates_to_the_search_is_read(run):
    spec = {k: v for k, v in SPEC.items() if k != "candidates"} | {"search": {"maxTokens": 2}}
    answer = json.loads(run(CELLS, "-o", "json", spec=spec).stdout)
    assert max(row[2] for c in answer["candidates"] for row in c.get("schedule", [])) == 2


def test_the_server_s_batch_sizes_are_covered(run):
    answer = json.loads(run(CELLS, "--max-num-seqs", "256", "-o", "json").stdout)
    assert answer["candidates"][0]["schedule"][-1][1] == 256


def test_a_wider_noise_floor_makes_more_ks_alike(run):
    narrow, wide = (
        json.loads(run(CELLS, *options, "-o", "json").stdout)["choices"]
        for options in ((), ("--noise-floor", "8%"))
    )
    assert sum(len(c["near"]) for c in wide) > sum(len(c["near"]) for c in narrow)


def test_load_points_weigh_by_the_time_that_is_told(run):
    def answer(*options):
        found = json.loads(run(CELLS, *options, "-o", "json").stdout)
        static = next(c for c in found["candidates"] if c["kind"] == "static")
        return found["notes"][0], static["maxTokens"]

    said, alone = answer("--time-at", "1=70%")
    assert said == "load points weigh by --time-at: 1: 70%, 16: 10%, 32: 10%, 64: 10%"
    _, crowded = answer("--time-at", "64=100%")
    assert alone > crowded
    assert "weigh alike" in answer()[0]


BAD = {
    "no JSON": ({"text": "cells"}, "not JSON"),
    "no list": ({"text": "7"}, "must hold a list"),
    "an empty list": ({"cells": []}, "holds no cell"),
    "a cell without its window": ({"cells": [{"cell": "a"}]}, "item 1"),
    "not a number": (
        {"text": json.dumps([CELLS[0] | {"windowSeconds": float("nan")}])},
        "windowSeconds",
    ),
    "only void cells": ({"cells": [c | {"void": "lag"} for c in CELLS]}, "no cell can be used"),
    "a spec without limits": ({"spec": SPEC | {"slo": {}}}, "slo needs at least one"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_exit_2(run, given, message):
    result = run(**given)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noise-floor", "3"), "--noise-floor"),
        (("--noise-floor", "100%"), "--noise-floor"),
        (("--time-at", "16"), "--time-at"),
        (("--time-at", "16=half"), "--time-at"),
        (("--time-at", "7=50%"), "load points 1, 16, 32, 64"),
        (("--time-at", "1=50%", "--time-at", "1=20%"), "once at most"),
        (("--time-at", "1=70%", "--time-at", "16=40%"), "add up to 110%"),
        (("--graph-sizes", "1,x"), "--graph-sizes"),
        (("--graph-sizes", "0,4"), "--graph-sizes"),
        (("--cells", "nowhere.json"), "nowhere.json"),
    ],
)
def test_a_bad_option_is_named(run, options, message):
    result = run(CELLS, *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("method", "version", "supported"),
    [
        ("dspark", "0.28.0", True),
        ("eagle3", "0.29.1", False),
        ("eagle3", "0.32.0", True),
        ("ngram", "0.33.0", False),
        ("dspark", "0.27.0", False),
    ],
)
def test_where_adaptive_verification_works(method, version, supported):
    assert adaptive_verification(method, version) is supported
