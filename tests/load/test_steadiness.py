"""When throughput counts as steady, and when it must not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.load.steadiness import Throughput


def run(rates: list[tuple[float, float]], *, tokens: int = 1, start: float = 100.0) -> Throughput:
    """Return throughput after (seconds, chunks per second) one after the other."""
    seen, now = Throughput(start), start
    for seconds, rate in rates:
        end = now + seconds
        while now < end:
            now += 1 / rate
            seen.add(now, tokens)
    return seen


@given(st.floats(5, 500), st.integers(1, 6), st.floats(2, 60))
def test_a_constant_rate_is_steady(rate: float, tokens: int, seconds: float) -> None:
    seen = run([(seconds, rate)], tokens=tokens)
    assert seen.steady(100.0 + seconds)
    assert seen.rate(100.0 + seconds) == pytest.approx(
        rate * tokens, rel=3 / (rate * seconds * 0.75)
    )


def test_a_slow_start_is_unsteady_until_it_is_a_quarter_of_the_time() -> None:
    started = [(4.0, 20.0), (40.0, 200.0)]
    seen = run(started)
    assert [seconds for seconds in (5, 6, 8, 12, 17, 30) if seen.steady(100.0 + seconds)] == [
        17,
        30,
    ]


def test_noise_of_chunk_sizes_is_no_trend() -> None:
    dice = random.Random(3)
    steady = 0
    for _ in range(200):
        seen, now = Throughput(0.0), 0.0
        while now < 8:
            now += 0.05
            seen.add(now, dice.choice([1, 1, 2, 3, 5]))
        steady += seen.steady(8.0)
    assert steady >= 190


def test_a_drop_by_a_fifth_is_seen_under_the_same_noise() -> None:
    dice = random.Random(3)
    unsteady = 0
    for _ in range(200):
        seen, now = Throughput(0.0), 0.0
        while now < 60:
            now += 0.05 if now < 45 else 0.0625
            seen.add(now, dice.choice([1, 1, 2, 3, 5]))
        unsteady += not seen.steady(60.0)
    assert unsteady >= 150


def test_nothing_is_steady_before_anything_came() -> None:
    seen = Throughput(10.0)
    assert not seen.steady(10.0)
    assert not seen.steady(20.0)
