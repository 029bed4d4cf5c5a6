"""Arrivals of an open loop: drawn beforehand, shared by all arms, without ramp or drain."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.load.arrivals import draw, read_trace


@given(st.floats(0.1, 100), st.integers(1, 300), st.integers(0, 2**31))
def test_a_turn_offers_exactly_the_rate_asked_for(rate: float, requests: int, seed: int) -> None:
    turn = draw(rate, requests, seed)
    times = [arrival.at for arrival in turn.arrivals]
    assert len(times) / turn.seconds == pytest.approx(rate)
    assert times == sorted(times)
    assert all(0 <= at <= turn.seconds for at in times)


def test_the_same_seed_gives_every_arm_the_same_arrivals() -> None:
    assert draw(3, 50, 7) == draw(3, 50, 7)
    assert draw(3, 50, 7) != draw(3, 50, 8)


def test_gaps_are_those_of_a_poisson_process() -> None:
    turn = draw(10, 20_000, 1)
    gaps = [b.at - a.at for a, b in itertools.pairwise(turn.arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.05)


def test_a_peak_is_reached_half_way_and_left_again() -> None:
    turn = draw(2, 40_000, 1, peak=10)
    assert 40_000 / turn.seconds == pytest.approx(6)
    eighths = [0] * 8
    for arrival in turn.arrivals:
        eighths[min(7, int(arrival.at / turn.seconds * 8))] += 1
    rates = [count / (turn.seconds / 8) for count in eighths]
    assert rates == pytest.approx([3, 5, 7, 9, 9, 7, 5, 3], rel=0.05)


@given(st.integers(2, 40), st.floats(0, 30), st.integers(0, 1000))
def test_the_stream_counts_one_turn_and_goes_on_around_it(
    requests: int, lead: float, seed: int
) -> None:
    turn = draw(1.5, requests, seed)
    places, due_times = [], []
    for due, place, arrival in turn.stream(lead):
        if due > 2 * turn.seconds:
            break
        due_times.append(due)
        places.append(place)
        assert arrival is turn.arrivals[place % requests]
        assert (0 <= place < requests) == (0 <= due < turn.seconds) or due == turn.seconds
    assert places == list(range(places[0], places[-1] + 1)), "the same whatever the lead"
    assert set(range(requests)) <= set(places)
    assert due_times == sorted(due_times)
    assert due_times[0] >= -lead - 1e-9
    expected = sum(
        1
        for start in range(-40, 2)
        for arrival in turn.arrivals
        if -lead <= start * turn.seconds + arrival.at <= 2 * turn.seconds
    )
    assert abs(len(due_times) - expected) <= 1


def test_a_published_trace_is_replayed_with_its_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [1]}\n'
        '{"timestamp": 27500, "input_length": 10, "output_length": 1}\n'
        '\n{"timestamp": 28000, "input_length": 20, "output_length": 30}\n'
    )
    turn = read_trace(trace)
    assert turn.seconds == pytest.approx(1.5)
    assert [(a.at, a.prompt_tokens, a.output_tokens) for a in turn.arrivals] == [
        (0.0, 6955, 52),
        (0.5, 10, 2),
        (1.0, 20, 30),
    ]


@pytest.mark.parametrize(
    ("claim", "text", "words"),
    [
        ("not JSON", "nonsense\n", "t.jsonl:1"),
        ("a length is missing", '{"timestamp": 1, "input_length": 5}\n', "output_length"),
        (
            "one arrival only",
            '{"timestamp":1,"input_length":5,"output_length":5}\n',
            "two arrivals",
        ),
        (
            "an empty prompt",
            '{"timestamp":1,"input_length":0,"output_length":5}\n',
            "1 at least",
        ),
        (
            "a time that is none",
            '{"timestamp":NaN,"input_length":5,"output_length":5}\n',
            "must be finite",
        ),
    ],
)
def test_a_bad_trace_is_refused(claim: str, text: str, words: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_trace(trace)
