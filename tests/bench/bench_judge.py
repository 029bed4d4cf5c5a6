"""How often the judge is fooled, and how often it finds a true gain, in worlds of known noise.

Every run is made of launches with a known true effect and goes through the real order of
launches and the real judge, looked at after every round from the fewest to the most of effort
Standard. Beside it, on the same data: counting windows as evidence, an unpaired t-test looked at
as often, and Kayenta's rule. Prints one table; exits 1 when a promise is not kept, and 3 when
worlds are left.

    python tests/bench/bench_judge.py [--runs 400] [--processes 2]

It can be done in pieces: with a state file, worlds that were run by the same code are not run
again. With a page, the finished table is written there.

    python tests/bench/bench_judge.py --state STATE --seconds 240 --page PAGE
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from math import exp, log1p, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, ttest_ind

from specschedule import core
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


def summary(tallies: list[Tally]) -> dict[str, float]:
    """Return what is shown of a world: shares of its runs, and the median of the rounds."""
    names = ("ours", "inconclusive", "by_window", "t_test", "kayenta")
    shares = {name: share(tallies, name) for name in names}
    return shares | {"rounds": float(np.median([tally.rounds for tally in tallies]))}


class Row(NamedTuple):
    """One world with its promise and what came out."""

    world: World
    promise: str
    limit: float
    seen: dict[str, float]
    runs: int

    @property
    def kept(self) -> bool:
        """Whether the promise is kept, but for two standard errors of so many runs."""
        slack = 2 * sqrt(self.limit * (1 - self.limit) / self.runs)
        ours = self.seen["ours"]
        return (
            ours <= self.limit + slack
            if self.promise == "at most"
            else (ours >= self.limit - slack)
        )

    def cells(self) -> list[str]:
        """Return the row's texts."""
        seen = self.seen
        return [
            self.world.name,
            f"{self.world.sd:.1%}",
            f"{seen['ours']:.1%}",
            (f"{self.promise} {self.limit:.0%}" if self.limit else "-")
            + ("" if self.kept else " NOT KEPT"),
            f"{seen['inconclusive']:.0%}",
            f"{seen['rounds']:.0f}",
            f"{seen['by_window']:.1%}",
            f"{seen['t_test']:.1%}",
            f"{seen['kayenta']:.1%}",
        ]


HEAD = ["world", "pair SD", "ours", "promise", "open", "rounds", "windows", "t-test", "Kayenta"]


class State:
    """What earlier pieces came to, by world, as far as the same code ran them."""

    def __init__(self, path: Path | None, runs: int) -> None:
        files = sorted([*Path(core.__path__[0]).glob("*.py"), Path(__file__)])
        code = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
        self._path, self._owner = path, {"code": code, "runs": runs}
        self._rows: dict[str, dict[str, float]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                stored = json.loads(line)
                if stored["owner"] == self._owner:
                    self._rows[stored["world"]] = stored["seen"]

    def get(self, world: World) -> dict[str, float] | None:
        return self._rows.get(self._name(world))

    def put(self, world: World, seen: dict[str, float]) -> None:
        self._rows[self._name(world)] = seen
        if self._path is not None:
            line: dict[str, Any] = {"owner": self._owner, "world": self._name(world), "seen": seen}
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    @staticmethod
    def _name(world: World) -> str:
        return f"{world.name} {world.sd:g}"


def page(rows: list[Row], runs: int) -> str:
    """Return the table as a page of Markdown."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    packages = ", ".join(f"{name} {version(name)}" for name in ("specschedule", "numpy", "scipy"))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = all(row.kept for row in rows)
    lines = [
        "# make bench-judge",
        "",
        f"Written by that command on {now}; {packages}, Python {platform.python_version()}; "
        f"{os.cpu_count()} cores ({models[0] if models else 'unknown'}).",
        "",
        f"{runs} runs per world in virtual time; shares of runs that promoted the candidate. Ours "
        f"is looked at after every round from {FEWEST} to {MOST}, as effort Standard is. Every "
        f"promise is {'kept' if kept else 'NOT kept'}, within two standard errors. *open*: no "
        "answer by the last round; *rounds*: median. Beside it on the same data: every window "
        "counted as evidence, Welch's t-test looked at as often, and Kayenta's rule.",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|---|{'---:|' * (len(HEAD) - 1)}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=400, help="runs per world")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--state", type=Path, help="file that keeps finished worlds")
    parser.add_argument("--seconds", type=float, help="begin no further world after this long")
    parser.add_argument("--page", type=Path, help="where to write the finished table")
    options = parser.parse_args()
    began = time.monotonic()
    state = State(options.state, options.runs)
    rows: list[Row] = []
    left = 0
    widths = (32, 8, 7, 24, 6, 7, 8, 7, 8)
    click.echo(f"{options.runs} runs per world; share promoted (ours also: no answer, rounds)")
    click.echo(" ".join(text.ljust(width) for text, width in zip(HEAD, widths, strict=True)))
    with ProcessPoolExecutor(options.processes) as pool:
        for world, promise, limit in worlds():
            seen = state.get(world)
            if seen is None:
                if options.seconds and time.monotonic() - began > options.seconds:
                    left += 1
                    continue
                runs = pool.map(partial(one_run, world), range(options.runs), chunksize=8)
                seen = summary(list(runs))
                state.put(world, seen)
            row = Row(world, promise, limit, seen, options.runs)
            rows.append(row)
            texts = zip(row.cells(), widths, strict=True)
            click.echo(" ".join(text.ljust(width) for text, width in texts))
    click.echo(f"took {time.monotonic() - began:.0f} s; {left} worlds left")
    if left:
        return 3
    if options.page is not None:
        options.page.write_text(page(rows, options.runs))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
