"""``make fuzz`` goes on for five minutes and says how long it did."""

from itertools import count

import pytest
from hack import fuzz


def test_rounds_go_on_with_new_seeds_until_five_minutes_are_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seeds: list[int] = []
    minutes = count(0, 60)  # A look at the clock after each round, and one before and after all.

    def run(seed: int) -> int:
        seeds.append(seed)
        return 0

    assert fuzz.rounds(run, first=7, clock=lambda: float(next(minutes))) == 0
    assert seeds == [7, 8, 9, 10, 11]
    assert capsys.readouterr().out == "fuzz: 5 rounds in 360 s, seeds 7 to 11: no fault\n"


def test_a_round_that_fails_is_the_last_and_its_seed_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fuzz.rounds(lambda seed: int(seed == 8), first=7, clock=lambda: 1.0) == 1
    assert capsys.readouterr().out == "fuzz: 2 rounds in 0 s, seeds 7 to 8: 8 failed\n"
