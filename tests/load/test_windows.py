"""What a window counts: outcomes, quantiles, lags, voids, and a rate without bias."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.core.evidence import Profile
from specschedule.core.spec import Slo
from specschedule.core.visit import Visit, Window
from specschedule.load import windows
from specschedule.load.engine_metrics import EngineDelta
from specschedule.load.records import Prepared, Record, outcome
from specschedule.load.windows import Meter, Occupancy

SLO = Slo(ttft=0.5, tpot=0.04)
WINDOW = Window(cell="r1-hold4-s0", profile=Profile(kind="hold", concurrency=4), tokens=3)


def visit(**changes: object) -> Visit:
    plain = {
        "run": "7f3a",
        "arm": "incumbent",
        "launch": 2,
        "round": 1,
        "url": "http://127.0.0.1:1",
        "windows": [WINDOW],
        "slo": SLO,
    }
    return Visit.model_validate(plain | changes)


def record(
    *chunks: tuple[float, int], due: float = 0.0, sent: float = 0.0, error: str | None = None
) -> Record:
    asked = Prepared(0, None, b"", sum(n for _, n in chunks))
    return Record(asked, "c", due, sent=sent, chunks=list(chunks), error=error)


def closed(*records: Record, opened: float = 0.0, ended: float = 10.0) -> Meter:
    meter = Meter(SLO, opened=opened)
    for item in records:
        meter.finish(item)
    meter.close(ended)
    return meter


@pytest.mark.parametrize(
    ("claim", "request_made", "expected"),
    [
        ("meets both limits", record((0.5, 1), (0.539, 1)), "good"),
        ("first token a millisecond late", record((0.501, 1), (0.54, 1)), "slow"),
        ("time per token a little long", record((0.1, 1), (0.1821, 2)), "slow"),
        ("tokens of one chunk cost one gap, not one gap each", record((0.1, 1), (0.25, 4)), "good"),
        (
            "several tokens in the first chunk are no decode time",
            record((0.1, 4), (0.18, 2)),
            "good",
        ),
        ("all tokens in one chunk have no time per token", record((0.3, 5)), "good"),
        ("an error is a failure, however fast", record((0.1, 1), error="HTTP 500"), "failed"),
        ("no token at all is a failure", record(), "failed"),
        ("latency counts from when it was due", record((0.6, 1), due=0.0, sent=0.3), "slow"),
    ],
)
def test_outcome_of_a_request(claim: str, request_made: Record, expected: str) -> None:
    assert outcome(request_made, SLO) == expected, claim


def test_time_per_output_token_comes_from_token_counts() -> None:
    made = record((1.0, 2), (1.1, 3), (1.3, 1))
    assert made.tpot == pytest.approx(0.3 / 4)
    assert made.e2e == pytest.approx(1.3)


def test_every_offered_request_counts_and_the_stuck_one_is_bad() -> None:
    meter = Meter(SLO, opened=5.0)
    meter.finish(record((0.1, 1), (0.12, 1)))
    meter.finish(record(error="refused"))
    meter.close(9.0, stuck=1)
    cell = windows.cell(visit(), WINDOW, meter, started_at="2026-11-29T10:00:00Z")
    assert (cell.offered, cell.completed, cell.failed, cell.good) == (3, 1, 1, 1)
    assert cell.window_seconds == 4.0


@pytest.mark.parametrize(
    ("claim", "chunks", "now", "slo", "lost"),
    [
        ("no token, still in time", [], 0.4, SLO, False),
        ("no token, too late", [], 0.6, SLO, True),
        ("its first token was late", [(0.6, 1)], 0.7, SLO, True),
        ("fast so far", [(0.1, 1), (0.5, 10)], 0.5, SLO, False),
        ("cannot make up for lost time", [(0.1, 1), (4.2, 10)], 4.2, SLO, True),
        ("too long in all", [(0.1, 1)], 3.0, Slo(e2e=2.0), True),
        ("no limit on the way", [(0.1, 1)], 3.0, Slo(ttft=1.0), False),
    ],
)
def test_a_request_in_flight_is_lost_once_a_limit_is_missed_for_good(
    claim: str, chunks: list[tuple[float, int]], now: float, slo: Slo, lost: bool
) -> None:
    made = Record(Prepared(0, None, b"", 101), "c", 0.0, chunks=chunks)
    assert windows.missed(made, slo, now) == lost, claim


def test_a_cell_has_the_numbers_of_its_requests_and_nothing_that_was_not_measured() -> None:
    meter = closed(*[record((0.1, 1), (0.1 + 0.02 * k, 9)) for k in range(1, 11)])
    meter.tokens(100)
    cell = windows.cell(visit(), WINDOW, meter, started_at="2026-11-29T10:00:00Z")
    plain = cell.plain()
    assert plain["ttftMs"]["p50"] == 100.0
    assert plain["tpotMs"]["p50"] == pytest.approx(5.5 * 20 / 9, abs=1e-3)
    assert plain["decodeRate"] == pytest.approx(9 / (5.5 * 0.02), abs=1e-3)
    assert plain["outputTokens"] == 100
    assert plain["tokens"] == 3
    assert not {"drafts", "prefixCache", "batchSizeMean", "void", "context"} & plain.keys()


@given(st.lists(st.floats(0, 1), min_size=200, max_size=1000))
def test_with_many_sends_at_most_one_in_a_hundred_is_later(lags: list[float]) -> None:
    p99 = windows.late(lags)
    assert p99 is not None
    assert sum(lag > p99 for lag in lags) <= len(lags) / 100


def test_one_late_send_among_few_is_chance_and_two_are_not() -> None:
    assert windows.late([0.001] * 19 + [0.2]) == 0.001
    assert windows.late([0.001] * 18 + [0.2, 0.2]) == 0.2
    assert windows.late([0.2]) == 0.2
    assert windows.late([]) is None


@pytest.mark.parametrize(
    ("claim", "changes", "meter_changes", "engine_delta", "words"),
    [
        ("punctual", {}, {"send_lags": [0.001] * 50}, None, None),
        ("late sends", {}, {"send_lags": [0.006] * 50}, None, "send lag p99 6.0 ms"),
        ("late sends allowed", {"maxSendLag": "10ms"}, {"send_lags": [0.006] * 50}, None, None),
        ("a starved process", {}, {"loop_lags": [0.0, 0.0, 0.03]}, None, "10.0 ms late on average"),
        ("a restarted engine", {}, {}, EngineDelta(fault="went from 9 to 1"), "went from 9 to 1"),
        (
            "unique prompts found in the cache",
            {},
            {},
            EngineDelta(prefix_queries=100, prefix_hits=91),
            "found 91%",
        ),
        (
            "a chat template found in the cache",
            {},
            {},
            EngineDelta(prefix_queries=128, prefix_hits=16),
            None,
        ),
        (
            "warm repeats not found in the cache",
            {"prefixCache": "Warm"},
            {},
            EngineDelta(prefix_queries=100, prefix_hits=2),
            "load.prefixCache Warm does not hold",
        ),
        (
            "a shared beginning not found in the cache",
            {"prefixCache": "Shared"},
            {},
            EngineDelta(prefix_queries=100, prefix_hits=0),
            "at least 5%",
        ),
        ("requests that others gave up", {}, {}, EngineDelta(aborted=2), "aborted 2 requests"),
        ("no cache counters", {"prefixCache": "Warm"}, {}, EngineDelta(), None),
    ],
)
def test_void(
    claim: str,
    changes: dict[str, object],
    meter_changes: dict[str, list[float]],
    engine_delta: EngineDelta | None,
    words: str | None,
) -> None:
    meter = closed(record((0.1, 1), (0.2, 9)))
    for name, value in meter_changes.items():
        setattr(meter, name, value)
    cell = windows.cell(
        visit(**changes), WINDOW, meter, started_at="2026-11-29T10:00:00Z", engine=engine_delta
    )
    if words is None:
        assert cell.void is None, claim
    else:
        assert cell.void is not None, claim
        assert words in cell.void


@given(st.lists(st.tuples(st.floats(0.001, 5), st.integers(0, 4), st.integers(0, 4)), min_size=1))
def test_occupancy_books_all_time_and_no_more(changes: list[tuple[float, int, int]]) -> None:
    account, now, exact = Occupancy(2, 2, 0.0), 0.0, 0.0
    for seconds, in_flight, target in changes:
        if account.in_flight == account.target:
            exact += seconds
        now += seconds
        account.change(now, in_flight=in_flight, target=target)
    assert account.exact + account.other == pytest.approx(now)
    assert account.share == pytest.approx(exact / now)


def held_load(rng: np.random.Generator, streams: int, spread: float, until: float) -> list[float]:
    """Return the ends of requests of mean duration 1, each stream sending again at once."""
    ends: list[float] = []
    for stream in range(streams):
        now = (stream + 0.5) / streams
        while now < until:
            ends.append(now)
            now += max(0.2, rng.normal(1, spread))
    return sorted(ends)


@pytest.mark.parametrize("streams", [1, 8, 16])
@pytest.mark.parametrize("spread", [0.005, 0.13])
def test_the_rate_of_a_window_is_unbiased_and_stopping_at_the_nth_end_is_not(
    streams: int, spread: float
) -> None:
    rng = np.random.default_rng(1)
    gap = 1 / streams
    seconds = windows.length(gap, 20, streams)
    fixed, nth = [], []
    for _ in range(1500):
        ends = np.array(held_load(rng, streams, spread, seconds + 6))
        first = int(np.searchsorted(ends, 1.05))
        opened = ends[first] + gap / 2
        inside = np.searchsorted(ends, opened + seconds) - np.searchsorted(ends, opened)
        fixed.append(inside / seconds * gap)
        nth.append(20 / (ends[first + 20] - ends[first]) * gap)
    assert np.mean(fixed) == pytest.approx(1, abs=0.008)
    if streams == 16 and spread == 0.13:
        assert np.mean(nth) > 1.009
