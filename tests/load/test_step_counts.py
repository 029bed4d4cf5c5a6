"""What the recorder counts of an engine's steps is what a window's cell tells."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from specschedule.engine import deliver
from specschedule.engine.stepcounts import SETTLED, StepCounts
from specschedule.load.engine_metrics import Sample, over, read
from specschedule.vllm_facts.instruments import STEP_FLAGS
from tests.load.test_command import load
from tests.load.test_screen import Bench


class Engine:
    """An engine's page, with what a recorder counted."""

    def __init__(self, engines: int = 1) -> None:
        self._registry = CollectorRegistry()
        self._on = Gauge("specschedule_engine_recorder_on", "", registry=self._registry)
        self._on.set(1)
        self._counts = StepCounts(lambda n: 3 if n <= 2 else 1, "m", self._registry)
        self.steps(2, 1.0)

    def steps(self, batch: int, *times: float, engine: int = 0, **more: Any) -> "Engine":
        for ms in times:
            line = {"batchSize": batch, "stepMs": ms, "graphMode": "FULL", **more}
            self._counts.count({name: v for name, v in line.items() if v is not None}, engine)
        return self

    def off(self) -> "Engine":
        self._on.set(0)
        return self

    def read(self) -> Sample:
        return read(generate_latest(self._registry).decode())


def told(before: Sample, after: Sample) -> list[dict[str, Any]] | None:
    found = over([before, after]).steps
    return None if found is None else [each.plain() for each in found]


def test_a_window_s_steps_are_told_by_k_with_those_of_a_change_apart() -> None:
    engine = Engine().steps(2, *[10.0] * 3)
    before = engine.read()
    engine.steps(2, *[10.0] * 4).steps(8, 20.0, 9.0, 9.0, *[5.0] * 6, 4.0)
    assert told(before, engine.read()) == [
        {
            "tokens": 1,
            "count": 9,
            "meanMs": pytest.approx(52 / 9, abs=1e-3),
            "p99AtMostMs": 11.3,
            "graphModes": {"FULL": 9},
            "stable": {"count": 7, "meanMs": pytest.approx(34 / 7, abs=1e-3)},
            "change": {"count": SETTLED - 1, "meanMs": 9.0},
        },
        {
            "tokens": 3,
            "count": 5,
            "meanMs": 12.0,
            "p99AtMostMs": 22.6,
            "graphModes": {"FULL": 5},
            "stable": {"count": 4, "meanMs": 10.0},
            "change": {"count": 1, "meanMs": 20.0},
        },
    ]


def test_steps_with_prompts_count_as_steps_only() -> None:
    engine = Engine().steps(2, 10.0)
    before = engine.read()
    found = told(before, engine.steps(2, 30.0, prefills=1).read())
    assert found == [
        {"tokens": 3, "count": 1, "meanMs": 30.0, "p99AtMostMs": 32.0, "graphModes": {"FULL": 1}}
    ]


def test_graph_modes_are_told_only_where_each_step_tells_its_own() -> None:
    engine = Engine().steps(2, 10.0)
    before = engine.read()
    engine.steps(2, 10.0).steps(2, 10.0, graphMode="PIECEWISE")
    (told_all,) = told(before, engine.read()) or []
    assert told_all["graphModes"] == {"FULL": 1, "PIECEWISE": 1}
    (not_all,) = told(before, engine.steps(2, 10.0, graphMode=None).read()) or []
    assert "graphModes" not in not_all


def test_several_engines_are_one_window() -> None:
    engine = Engine().steps(2, 10.0).steps(2, 1.0, 30.0, engine=1)
    before = engine.read()
    engine.steps(2, 10.0, engine=0).steps(2, 30.0, engine=1)
    (found,) = told(before, engine.read()) or []
    assert (found["count"], found["meanMs"]) == (2, 20.0)


def test_a_tail_beyond_the_last_edge_has_no_upper_edge() -> None:
    engine = Engine().steps(2, 10.0)
    before = engine.read()
    (found,) = told(before, engine.steps(2, 9000.0).read()) or []
    assert "p99AtMostMs" not in found


def test_a_window_without_steps_has_none_and_an_engine_without_a_recorder_does_not_say() -> None:
    page = Engine().steps(2, 10.0).read()
    assert told(page, page) == []
    assert told({}, {}) is None


def test_a_recorder_that_switched_itself_off_in_the_window_tells_nothing_of_it() -> None:
    engine = Engine().steps(2, 10.0)
    before = engine.read()
    assert told(before, engine.steps(2, 10.0).off().read()) is None


def test_counters_that_shrink_tell_nothing() -> None:
    assert told(Engine().steps(2, 1.0, 1.0).read(), Engine().steps(2, 1.0).read()) is None


def crossed(folder: Path, *flags: str) -> dict[str, Any]:
    """The cell of a window across a boundary, in a launch that carries the recorder."""
    deliver.deliver(folder / "ours")
    bench = Bench(folder)
    bench.environment["PYTHONPATH"] = str(folder / "ours")
    bench.environment["SPECSCHEDULE_STEP_COUNTERS"] = "1"
    swing = {"kind": "crossing", "low": 2, "high": 6, "boundary": 2, "periodSeconds": 0.5}
    plan = {"promptTokens": 16, "outputTokens": 24, "maxSendLag": "5s"}
    profile = folder / "profile.yaml"
    profile.write_text(json.dumps(plan | {"windows": [{"requests": 20, "profile": swing}]}))
    with bench.serving(*flags, rows=[[1, 2, 2], [3, 8, 1]]):
        url = f"http://127.0.0.1:{bench.port}"
        done = load("--url", url, "--profile", str(profile), "--slo", "ttft=5s,tpot=1s")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_crossing_of_an_engine_that_carries_the_recorder_tells_both_kinds_of_step(
    tmp_path: Path,
) -> None:
    cell = crossed(tmp_path, *STEP_FLAGS)
    assert "void" not in cell
    by_k = {each["tokens"]: each for each in cell["steps"]}
    assert set(by_k) == {1, 2}
    changing = sum(each.get("change", {"count": 0})["count"] for each in by_k.values())
    assert 0 < changing < cell["windowSeconds"] / 0.5 * SETTLED + SETTLED
    for each in by_k.values():
        assert each["stable"]["count"] > SETTLED
        assert set(each["graphModes"]) <= {"FULL", "PIECEWISE"}


def test_without_the_engine_s_own_flags_no_step_is_told(tmp_path: Path) -> None:
    assert "steps" not in crossed(tmp_path)
