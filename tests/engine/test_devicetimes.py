"""Times of target and drafter: by shape, taken without waiting, never in the engine's way."""

from types import SimpleNamespace

import pytest

from specschedule.engine import devicetimes, settings
from specschedule.engine.devicetimes import DeviceTimes


class Clock:
    """A device whose work takes as long as a test says, and which comes by a mark later."""

    name = "stream"

    def __init__(self) -> None:
        self.now, self.behind = 0.0, 0.0
        self.broken = False

    def mark(self) -> float:
        if self.broken:
            raise RuntimeError("no events")
        return self.now

    def passed(self, mark: float) -> bool:
        return mark <= self.now - self.behind

    def milliseconds(self, first: float, then: float) -> float:
        return then - first


class Bench:
    """A runner and its drafter under the times."""

    def __init__(self) -> None:
        self.clock, self.said, self.seconds = Clock(), [], 0.0
        self.times = DeviceTimes(self.clock, self.said.append, lambda: self.seconds)
        self.target = self.times.of_target(self._works)
        self.drafter = self.times.of_drafter(self._works)

    def _works(self, *given, takes, **named):
        self.clock.now += takes
        return ("done", given, named)

    def step(self, requests, drafts, target=20.0, drafter=5.0, prefill=0):
        self.target(scheduled(requests, drafts, prefill), takes=target)
        if drafter:
            self.drafter("hidden", takes=drafter)


def scheduled(requests, drafts, prefill=0):
    each = {str(n): [0] * drafts for n in range(requests) if drafts}
    tokens = {str(n): 1 + drafts for n in range(requests)}
    if prefill:
        tokens["new"] = prefill
    return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_spec_decode_tokens=each)


def test_steps_are_counted_by_requests_and_drafts() -> None:
    bench = Bench()
    for takes in (20.0, 22.0):
        bench.step(4, 3, target=takes, drafter=9.0)
    bench.step(4, 0, target=15.0, drafter=0)
    bench.step(1, 3, target=12.0, drafter=6.0)
    bench.step(2, 1)
    assert bench.times.plain() == {
        "clock": "stream",
        "steps": [[1, 3, 1, 12.0, 6.0], [4, 0, 1, 15.0, 0.0], [4, 12, 2, 21.0, 9.0]],
    }, "the step under way is not counted"


def test_prefills_and_dummy_runs_are_not_counted() -> None:
    bench = Bench()
    bench.step(3, 2, prefill=100)
    bench.step(0, 0)
    bench.target(scheduled(8, 3), takes=1.0, dummy_run=True)
    bench.step(1, 2)
    bench.step(1, 2)
    assert bench.times.plain()["steps"] == [[1, 2, 1, 20.0, 5.0]]


def test_a_step_counts_once_the_device_has_come_by_it() -> None:
    bench = Bench()
    bench.clock.behind = 60.0
    for _ in range(3):
        bench.step(2, 1)
    assert bench.times.plain()["steps"] == []
    bench.clock.behind = 0.0
    bench.step(2, 1)
    assert bench.times.plain()["steps"] == [[2, 2, 3, 20.0, 5.0]]


def test_what_the_engine_calls_gets_and_gives_the_same() -> None:
    bench = Bench()
    step = scheduled(1, 1)
    assert bench.target(step, takes=1.0, intermediate=None) == (
        "done",
        (step,),
        {"intermediate": None},
    )
    assert bench.drafter(1, 2, takes=1.0, kept=3) == ("done", (1, 2), {"kept": 3})


def test_a_line_is_said_now_and_then_and_holds_all_so_far() -> None:
    bench = Bench()
    for second in range(25):
        bench.seconds = float(second)
        bench.step(1, 1)
    assert [told["steps"] for told in bench.said] == [
        [[1, 1, 10, 20.0, 5.0]],
        [[1, 1, 20, 20.0, 5.0]],
    ]


@pytest.mark.parametrize("when", ["mark", "shape"])
def test_a_fault_ends_the_timing_and_not_the_step(when: str) -> None:
    bench = Bench()
    bench.step(1, 1)
    bench.clock.broken = when == "mark"
    odd = scheduled(1, 1) if when == "mark" else SimpleNamespace()
    assert bench.target(odd, takes=1.0)[0] == "done"
    assert bench.drafter(takes=1.0)[0] == "done"
    (told,) = bench.said
    assert told["absent"].startswith("the timing failed: ")
    bench.seconds = 100.0
    bench.step(1, 1)
    assert len(bench.said) == 1


def test_shapes_are_bounded() -> None:
    bench = Bench()
    for requests in range(1, devicetimes.MOST_SHAPES + 20):
        bench.step(requests, 0)
    bench.step(1, 0)
    bench.step(1, 0)
    steps = bench.times.plain()["steps"]
    assert len(steps) == devicetimes.MOST_SHAPES
    assert steps[0][:3] == [1, 0, 2]


WORKERS = {
    "a CPU": ("cpu", "host"),
    "a GPU": ("cuda", "stream"),
}


class Event:
    """torch.cuda.Event, of a stream that is always done; each mark is a millisecond later."""

    marks = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.marks += 1
        self.at = Event.marks

    def query(self) -> bool:
        return True

    def elapsed_time(self, then: "Event") -> float:
        return float(then.at - self.at)


@pytest.mark.parametrize("drafts_by", ["drafter", "speculator"])
@pytest.mark.parametrize("of", WORKERS)
def test_a_worker_is_timed_by_its_devices_clock(of, drafts_by, capsys, monkeypatch) -> None:
    kind, clock = WORKERS[of]
    monkeypatch.setattr(devicetimes, "SAY_SECONDS", 0.0)
    drafter = SimpleNamespace(propose=lambda *_: "drafts")
    runner = SimpleNamespace(execute_model=lambda _: "output", **{drafts_by: drafter})
    torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event))
    worker = SimpleNamespace(model_runner=runner, device=SimpleNamespace(type=kind))
    devicetimes.watch(worker, torch)
    for _ in range(2):
        assert runner.execute_model(scheduled(2, 1)) == "output"
        assert drafter.propose("state") == "drafts"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f'{settings.DEVICE_LINE}{{"clock": "{clock}", "steps": [[2, 2, 1, ')
    if kind == "cuda":
        assert line.endswith("1.0, 1.0]]}")


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (SimpleNamespace(), "no model runner"),
        (
            SimpleNamespace(
                model_runner=SimpleNamespace(execute_model=print),
                device=SimpleNamespace(type="xpu"),
            ),
            "type xpu",
        ),
    ],
)
def test_where_there_is_no_clock_that_is_said(worker, why, capsys) -> None:
    devicetimes.watch(worker, None)
    out = capsys.readouterr().out
    assert out.startswith(f'{settings.DEVICE_LINE}{{"absent": "')
    assert why in out
