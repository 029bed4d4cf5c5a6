"""How often the judge is fooled, and how often it finds a true gain, in worlds of known noise.

Every run is made of launches with a known true effect and goes through the real order of
launches and the real judge, looked at after every round from the fewest to the most of effort
Standard. Beside it, on the same data: counting windows as evidence, an unpaired t-test looked at
as often, and Kayenta's rule. Prints one table; exits 1 when a promise is not kept.

    python tests/bench/bench_judge.py [--runs 400] [--processes 2]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import exp, log1p, sqrt
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, ttest_ind

from specschedule.core.budget import ROUNDS
from specschedule.core.eprocess import E_NEEDED, evidence
from specschedule.core.evidence import Cell, Launch, Profile
from specschedule.core.judge import judge, settled
from specschedule.core.plan import pair_order
from specschedule.core.spec import Effort, Spec

Floats = NDArray[np.float64]
FEWEST, MOST = ROUNDS[Effort.STANDARD]
LAUNCHES = 2 * MOST
CANDIDATE = "candidate-card"
POINT = 8
PAIR = sqrt(2)
"""Pair SD over launch SD."""


DEFAULTS: dict[str, object] = {"improve": [{"at": [POINT], "by": "3%"}]}
NO_MARGIN: dict[str, object] = {"improve": [{"at": [POINT], "by": "0%"}], "minEffect": "0%"}


@dataclass(frozen=True)
class World:
    """A noise of launches, on the log scale."""

    name: str
    draw: Callable[[np.random.Generator, float], Floats]
    """Launch noise in time order, for a launch SD."""
    sd: float = 0.02
    """SD of a pair's difference."""
    windows: int = 1
    window_sd: float = 0.0
    order_bias: float = 0.0
    """Added to the second launch of every pair."""
    effect: float = 0.0
    """True gain of the candidate, as a share."""
    bar: dict[str, object] = field(default_factory=DEFAULTS.copy)


def normal(chance: np.random.Generator, sd: float) -> Floats:
    return chance.normal(0, sd, LAUNCHES)


def heavy(chance: np.random.Generator, sd: float) -> Floats:
    return chance.standard_t(3, LAUNCHES) * sd / sqrt(3)


def outliers(chance: np.random.Generator, sd: float) -> Floats:
    hit = chance.random(LAUNCHES) < 0.05
    return normal(chance, sd) + hit * chance.choice([-0.11, 0.11], LAUNCHES)


def autocorrelated(chance: np.random.Generator, sd: float) -> Floats:
    found = [chance.normal(0, sd)]
    for _ in range(LAUNCHES - 1):
        found.append(0.8 * found[-1] + chance.normal(0, sd * 0.6))
    return np.array(found)


def drifting(chance: np.random.Generator, sd: float) -> Floats:
    return normal(chance, sd) + chance.choice([-0.01, 0.01]) * np.arange(LAUNCHES)


def wandering(chance: np.random.Generator, sd: float) -> Floats:
    return normal(chance, sd / 2) + np.cumsum(chance.normal(0, sd / 2, LAUNCHES))


class Tally(NamedTuple):
    """What each rule said in one run."""

    ours: bool
    inconclusive: bool
    rounds: int
    by_window: bool
    t_test: bool
    kayenta: bool


def spec_of(bar: dict[str, object]) -> Spec:
    return Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"tpot": "40ms"},
            "candidates": [{"name": "card", "schedule": [[1, 16, 1]]}],
            "load": {"points": [POINT]},
            "bar": bar,
        }
    )


def one_run(world: World, seed: int) -> Tally:
    chance = np.random.default_rng([seed, hash_of(world.name)])
    spec = spec_of(world.bar)
    noise = world.draw(chance, world.sd / PAIR)
    levels: dict[str, list[Floats]] = {"incumbent": [], CANDIDATE: []}
    launches: list[Launch] = []
    for number in range(1, MOST + 1):
        for position, arm in enumerate(pair_order(spec, CANDIDATE, number, run=str(seed)), start=1):
            level = noise[len(launches)] + world.order_bias * (position == 2)
            level += log1p(world.effect) * (arm == CANDIDATE)
            windows = level + chance.normal(0, world.window_sd, world.windows)
            levels[arm].append(windows)
            launches.append(launch(arm, len(launches) + 1, number, position, windows))
    verdict, rounds = None, MOST
    for number in range(FEWEST, MOST + 1):
        verdict = settled(judge(spec, launches[: 2 * number]), "card")
        if verdict is not None:
            rounds = number
            break
    ours, theirs = np.array(levels[CANDIDATE]), np.array(levels["incumbent"])
    return Tally(
        ours=verdict == "Better",
        inconclusive=verdict is None,
        rounds=rounds,
        by_window=counts_windows(ours, theirs, spec.bar.min_effect),
        t_test=unpaired(ours, theirs),
        kayenta=kayenta(ours, theirs),
    )


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**at for at, letter in enumerate(name)) % 2**32


def launch(arm: str, number: int, round_: int, position: int, windows: Floats) -> Launch:
    cells = [
        Cell.model_construct(
            cell=f"hold{POINT}-{at}",
            arm=arm,
            launch=number,
            round=round_,
            profile=Profile.model_construct(kind="hold", concurrency=POINT),
            window_seconds=1.0,
            offered=100_000,
            completed=100_000,
            good=1000 * exp(value),
            tokens=None,
        )
        for at, value in enumerate(windows)
    ]
    return Launch.model_construct(
        arm=arm, launch=number, round=round_, position=position, cells=cells
    )


def counts_windows(ours: Floats, theirs: Floats, margin: float) -> bool:
    """The same test fed with every window as if it were evidence of its own, margin none."""
    differences = (ours - theirs).reshape(-1)
    scale = float(np.abs(differences[: ours.shape[1] * 2]).mean())
    return evidence(list(differences), scale=scale) >= E_NEEDED


def unpaired(ours: Floats, theirs: Floats) -> bool:
    """Welch's t-test of launch means, looked at after every round, as one does."""
    a, b = ours.mean(axis=1), theirs.mean(axis=1)
    return any(
        ttest_ind(a[:n], b[:n], equal_var=False, alternative="greater").pvalue < 0.05
        for n in range(FEWEST, MOST + 1)
    )


def kayenta(ours: Floats, theirs: Floats) -> bool:
    """Mann-Whitney on time points: the 95 % interval of the shift clears 0.25 x the shift."""
    shifts = np.sort((ours.reshape(-1, 1) - theirs.reshape(1, -1)).reshape(-1))
    n = ours.size
    half = norm.ppf(0.975) * sqrt(n * n * (2 * n + 1) / 12)
    low = shifts[max(0, int(n * n / 2 - half))]
    return bool(low > 0.25 * abs(np.median(shifts)))


SHAPES = (
    ("normal", normal, 0.0),
    ("heavy-tailed", heavy, 0.0),
    ("5 % outliers", outliers, 0.0),
    ("autocorrelated", autocorrelated, 0.0),
    ("linear drift", drifting, 0.0),
    ("random walk", wandering, 0.0),
    ("order-biased -3 %", normal, -0.03),
)


def worlds() -> Iterable[tuple[World, str, float]]:
    """Yield each world with what is promised of the share promoted: at most or at least."""
    many = {"windows": 12, "window_sd": 0.01, "sd": 0.02 * PAIR}
    for suffix, bar, limit in (("no effect", DEFAULTS, 0.01), ("no margin", NO_MARGIN, 0.05)):
        for name, draw, bias in SHAPES:
            for sd in (0.01, 0.02, 0.05):
                world = World(f"{name}, {suffix}", draw, sd=sd, order_bias=bias, bar=bar)
                yield world, "at most", limit
        yield World(f"12 windows a launch, {suffix}", normal, bar=bar, **many), "at most", limit
    yield World("normal, +3 %: at the margin", normal, effect=0.03), "at most", 0.05
    yield World("normal, +5 %", normal, effect=0.05), "at least", 0.0
    yield World("normal, +8 %", normal, effect=0.08), "at least", 0.90
    yield World("normal, +15 %", normal, effect=0.15), "at least", 0.99
    yield World("heavy-tailed, +8 %", heavy, effect=0.08), "at least", 0.0
    yield World("linear drift, +8 %", drifting, effect=0.08), "at least", 0.0


def share(tallies: list[Tally], name: str) -> float:
    return sum(bool(getattr(tally, name)) for tally in tallies) / len(tallies)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="runs per world")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    click.echo(f"{options.runs} runs per world; share promoted (ours also: no answer, rounds)")
    click.echo(
        f"{'world':32} {'pair SD':>7} {'ours':>7} {'promise':>14} {'open':>6} {'rounds':>7}"
        f" | {'windows':>7} {'t-test':>7} {'Kayenta':>7}"
    )
    kept = True
    pool = ProcessPoolExecutor(options.processes)
    for world, promise, limit in worlds():
        tallies = list(pool.map(partial(one_run, world), range(options.runs), chunksize=8))
        ours = share(tallies, "ours")
        slack = 2 * sqrt(limit * (1 - limit) / options.runs)
        good = ours <= limit + slack if promise == "at most" else ours >= limit - slack
        kept = kept and good
        said = f"{promise} {limit:.0%}" if limit else "-"
        click.echo(
            f"{world.name:32} {world.sd:>7.1%} {ours:>7.1%} {said:>14} "
            f"{share(tallies, 'inconclusive'):>6.0%} "
            f"{np.median([tally.rounds for tally in tallies]):>7.0f} | "
            f"{share(tallies, 'by_window'):>7.1%} {share(tallies, 't_test'):>7.1%} "
            f"{share(tallies, 'kayenta'):>7.1%}" + ("" if good else "  NOT KEPT"),
        )
    pool.shutdown()
    click.echo(f"took {time.monotonic() - began:.0f} s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
