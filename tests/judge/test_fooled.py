"""How often the judge is fooled: a short version of the bench, with fixed seeds."""

import pytest

from ..bench.bench_judge import Tally, World, autocorrelated, heavy, normal, one_run, share

RUNS = 60
LAUNCH_SD_2 = {"sd": 0.02 * 2**0.5, "windows": 12, "window_sd": 0.01}


def runs_of(world: World, runs: int = RUNS) -> list[Tally]:
    return [one_run(world, seed) for seed in range(runs)]


@pytest.mark.parametrize(
    "world",
    [
        World("normal", normal),
        World("heavy-tailed", heavy),
        World("autocorrelated", autocorrelated),
        World("order-biased", normal, order_bias=-0.03),
        World("noisy", normal, sd=0.05),
    ],
    ids=lambda world: world.name,
)
def test_without_an_effect_nothing_is_promoted(world: World) -> None:
    assert share(runs_of(world), "ours") == 0.0


def test_counting_windows_is_fooled_where_counting_launches_is_not() -> None:
    tallies = runs_of(World("many windows", normal, **LAUNCH_SD_2))
    assert share(tallies, "by_window") >= 0.15
    assert share(tallies, "ours") == 0.0


def test_a_true_gain_of_eight_percent_is_found() -> None:
    tallies = runs_of(World("gain", normal, effect=0.08))
    assert share(tallies, "ours") >= 0.85
