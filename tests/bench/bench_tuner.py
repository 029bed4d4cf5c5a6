"""What the tuner finds, and what finding it costs, in worlds whose physics it does not know.

Every world is screened in virtual time: one probe launch that switches K between windows, one
launch without speculation, its windows chosen one by one as the load process does. What would be
proposed is then compared with the truth: the same world without noise. Beside it, the cost of
knowing as much by launches. Prints a table, and writes it down; exits 1 when a promise is not kept.

    python tests/bench/bench_tuner.py [--seeds 5] [--processes 2] [--page PAGE.md]
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.demo.evidence import commit, machine

from specschedule.core.budget import ASSUMED_BOOT_S, ROUNDS, WARM_UP_SECONDS
from specschedule.core.compare import NONE
from specschedule.core.cost import Setting
from specschedule.core.eprocess import E_NEEDED, evidence, rounds_needed
from specschedule.core.evidence import Cell
from specschedule.core.plan import LaunchRecord
from specschedule.core.schedule import EffectiveTable, effective
from specschedule.core.screen import SWEEP_REPEATS
from specschedule.core.screening import PROBE, next_window
from specschedule.core.search import next_screens, screening_arms
from specschedule.core.spec import Effort, Spec
from specschedule.core.target import ServerFacts
from specschedule.core.tuner import propose
from specschedule.core.view import Search
from specschedule.core.visit import Screen, Visit
from specschedule.sim.virtual import Arm, Load, simulate_hold
from specschedule.sim.worlds import WORLDS, Noise
from specschedule.sim.worlds import World as Physics
from tests.tuner import published

MEAN_REGRET, WORST_REGRET = 0.01, 0.05
SHARE_OF_WINDOWS = SHARE_OF_SECONDS = 1 / 5
MOST_LAUNCHES = 2
FALSE_PROMOTIONS = 0.05
WINDOW_SECONDS = 60.0
PAIR_SD = 0.02
BAR_POINTS = 3
FEWEST, MOST = ROUNDS[Effort.STANDARD]

Measure = Callable[[Setting, str, int], Cell]
"""Window of (setting, arm, seed)."""


@dataclass(frozen=True)
class World:
    """Something to tune, and the truth about it."""

    search: Search
    measure: Measure
    truth: Callable[[Setting], float]
    """Tokens per second."""
    rival: Sequence[Sequence[int]] | None = None
    """A schedule that the proposal must not lose to."""


@dataclass(frozen=True)
class Result:
    """One screening of one world."""

    windows: int
    regrets: tuple[float, ...]
    """By load point (and context)."""
    gain: float
    """True gain over static K = the largest, a logarithm, mean over load points."""
    schedule: str
    schedules: int
    """Schedules proposed that differ."""
    loses_to_rival: bool


class Simulated:
    """A world of the simulated engine; contexts are prompts that share all but a few tokens."""

    def __init__(self, world: Physics, max_tokens: int) -> None:
        self.world, self.max_tokens = world, max_tokens
        self._quiet = replace(self.world, noise=Noise(step=0.0, launch=0.0))
        self._known: dict[Setting, float] = {}

    def measure(self, setting: Setting, arm: str, seed: int) -> Cell:
        return self._window(self.world, setting, arm, seed, max(20, 2 * setting.batch))

    def truth(self, setting: Setting) -> float:
        """Return tokens per second without noise, acceptance at its exact mean."""
        if setting not in self._known:
            requests = max(40, 3 * setting.batch)
            cell = self._window(self._quiet, setting, "probe", 9_000, requests)
            rate = (cell.output_tokens or 0) / cell.window_seconds
            if setting.tokens:
                drawn = 1 + (cell.accepted_tokens or 0) / (cell.drafts or 1)
                rate *= self.world.tokens_per_step(setting.tokens) / drawn
            self._known[setting] = rate
        return self._known[setting]

    def _window(self, world: Physics, setting: Setting, arm: str, seed: int, requests: int) -> Cell:
        batch, tokens, context = setting
        prompt = 128 if context is None else context - 64
        load = Load(
            requests=requests,
            prompt_tokens=prompt,
            shared_tokens=0 if context is None else prompt - 16,
        )
        rows = [[1, self.world.max_num_seqs, tokens]]
        cell = simulate_hold(
            world,
            Arm("none") if arm == "none" else Arm(arm, self.max_tokens, rows),
            concurrency=batch,
            load=load,
            seed=seed,
            launch_seed=seed // 1000,
            start=60.0 * (seed % 1000),
        )
        return cell.model_copy(update={"context": context, "tokens": tokens})


class Tabled:
    """A published table of throughput, seen through windows with noise."""

    def __init__(self, rates: Mapping[int, Sequence[float]], noise: float) -> None:
        self._noise = noise
        # Both tables begin at K=1. K=0 has to be measured all the same: made up to lose.
        zero = tuple(0.75 * rate for rate in rates[1])
        self._rates = {0: zero} | dict(rates)

    def truth(self, setting: Setting) -> float:
        """Return tokens per second; between the table's batch sizes, straight by octave."""
        row = np.log(self._rates[setting.tokens])
        at = np.interp(log(setting.batch), np.log(published.SGLANG_BATCHES), row)
        return exp(float(at))

    def measure(self, setting: Setting, arm: str, seed: int) -> Cell:
        chance = np.random.default_rng([seed, setting.batch, setting.tokens])
        length = published.length(published.ANY_SURVIVAL, setting.tokens)
        seconds = setting.batch * length / self.truth(setting)
        seconds *= exp(chance.normal(0.0, self._noise))
        return published.cell(
            setting.batch, setting.tokens, seconds, published.ANY_SURVIVAL, arm=arm
        )


def simulated(
    world: Physics,
    points: Sequence[int],
    max_tokens: int,
    rival: Sequence[Sequence[int]] | None = None,
    **more: object,
) -> World:
    source = Simulated(world, max_tokens)
    search = published.search(points, max_tokens, **more)
    return World(search, source.measure, source.truth, rival)


def tabled(rates: Mapping[int, Sequence[float]]) -> World:
    source = Tabled(rates, noise=0.01)
    search = published.search(published.SGLANG_BATCHES, max(rates))
    return World(search, source.measure, source.truth)


WORLDS_TUNED: dict[str, Callable[[], World]] = {
    "PR 32374, EAGLE": partial(simulated, WORLDS["pr32374-eagle"], (1, 4, 16, 32, 64), 7),
    "PR 32374, EAGLE3": partial(simulated, WORLDS["pr32374-eagle3"], (1, 4, 16, 32, 64), 7),
    "PR 32374, low acceptance": partial(
        simulated,
        replace(WORLDS["pr32374-eagle"], acceptance=published.LOW),
        (1, 4, 16, 32, 64),
        7,
    ),
    "SGLang 22246, Qwen3-235B": partial(tabled, published.QWEN3_235B),
    "SGLang 22246, GLM-4.7": partial(tabled, published.GLM_4_7),
    "SpecDecode-Bench, EAGLE": partial(
        simulated, WORLDS["specdecode-bench"], (1, 4, 16, 64, 128), 7
    ),
    "roofline with cliffs": partial(simulated, WORLDS["roofline"], (1, 8, 32, 64, 128, 256), 7),
    "PR 48944, contexts": partial(
        simulated,
        WORLDS["context-axis"],
        (64, 128, 256),
        3,
        contexts=published.CONTEXTS,
        max_num_seqs=512,
        kv_cache_tokens=1_600_000,
    ),
    "One Line, experts": partial(
        simulated, WORLDS["experts"], (1, 2, 4, 8, 12, 16), 5, rival=[[1, 2, 5], [3, 16, 1]]
    ),
}
"""Worlds by title, in the order of the table."""


def screen(world: World, seed: int) -> list[Cell]:
    """Return the windows of one screening: a launch without speculation, then the probe."""
    base = 1000 * (seed + 1)
    cells: list[Cell] = []
    for launch, arm in enumerate((NONE, PROBE), 1):
        of = visit(world.search, arm, launch, seed)
        while (window := next_window(of, cells)) is not None:
            assert window.profile.concurrency is not None
            assert window.tokens is not None
            setting = Setting(window.profile.concurrency, window.tokens, window.context)
            cells.append(world.measure(setting, arm, base + len(cells)))
    return cells


def visit(search: Search, arm: str, launch: int, seed: int) -> Visit:
    """Return what the load process is told of a launch of a screen."""
    return Visit(
        run="bench",
        arm=arm,
        launch=launch,
        round=0,
        url="http://127.0.0.1:8000",
        slo=search.slo,
        prompt_tokens=search.prompt_tokens,
        output_tokens=search.output_tokens,
        screen=Screen(
            batch_sizes=list(search.points),
            contexts=list(search.contexts),
            max_tokens=search.max_tokens,
            max_num_seqs=search.max_num_seqs,
            max_model_len=search.max_model_len,
            kv_cache_tokens=search.kv_cache_tokens,
            graph_sizes=list(search.graphs.sizes),
            seed=seed,
        ),
    )


def one_screening(title: str, seed: int) -> Result:
    """Screen a world and hold what would be tested first against the truth."""
    world = WORLDS_TUNED[title]()
    search = world.search
    cells = screen(world, seed)
    found = propose(search, cells)
    by_name = {c.name: c for c in found.candidates}
    proposed = by_name.get("context", by_name["best"])
    assert proposed.schedule is not None
    assert proposed.max_tokens is not None
    table = effective(
        proposed.schedule, max_tokens=proposed.max_tokens, max_num_seqs=search.max_num_seqs
    )
    places = [
        (b, c)
        for b in search.points
        for c in (search.contexts or (None,))
        if search.possible(Setting(b, 0, c))
    ]
    regrets, gains = [], []
    for batch, context in places:
        rates = [world.truth(Setting(batch, k, context)) for k in range(search.max_tokens + 1)]
        ours = rates[tokens(table, batch, context)]
        regrets.append(1 - ours / max(rates))
        gains.append(log(ours / rates[-1]))
    count = sum(c.kind == "schedule" and c.same_as is None for c in found.candidates)
    loses = False
    if world.rival is not None:
        theirs = effective(
            world.rival, max_tokens=search.max_tokens, max_num_seqs=search.max_num_seqs
        )
        rival = [world.truth(Setting(b, tokens(theirs, b, c), c)) for b, c in places]
        own = [world.truth(Setting(b, tokens(table, b, c), c)) for b, c in places]
        loses = fmean(map(log, own)) < fmean(map(log, rival)) - 0.001
    return Result(len(cells), tuple(regrets), fmean(gains), str(proposed.schedule), count, loses)


def tokens(table: EffectiveTable, batch: int, context: int | None) -> int:
    return table.tokens(batch, context if table.contexts else None)


def screening_launches(search: Search) -> int:
    """Count the launches that the operator starts for a screen in which every one goes well."""
    asked = Spec.model_validate(
        {
            "target": {"name": "chat"},
            "slo": {"ttft": "10s"},
            "search": {"maxTokens": search.max_tokens, "contexts": list(search.contexts)},
            "load": {"points": list(search.points)},
            "bar": {"improve": [{"by": "5%"}]},
        }
    )
    config = {"method": "eagle3", "num_speculative_tokens": search.max_tokens}
    server = ServerFacts(
        container="vllm", max_num_seqs=search.max_num_seqs, max_num_seqs_given=True,
        speculative=config,
    )  # fmt: skip
    arms = screening_arms(asked, server, probes=True)
    done: list[LaunchRecord] = []
    while start := next_screens(asked, server, arms, done, uid="uid", run="run"):
        done += [LaunchRecord(arm=each.arm, launch=each.launch, round=0) for each in start.slots]
    return len(done)


@dataclass(frozen=True)
class Cost:
    """GPU-seconds to a verdict on a schedule, screened or swept by launches."""

    tuned: float
    swept: float


def verdict_cost(search: Search, windows: float, gain: float, schedules: int) -> Cost:
    """Return what a verdict costs, windows of equal length, one GPU.

    Screened: its launches with the windows counted, then Confirm in pairs, the full load in each
    arm's first launch and the bar's points and a crossing in later ones, and one launch each of
    two controls. Everything by launches: no speculation, every K and every schedule worth testing
    launched beside the incumbent in every round, at every load point, until the best is shown.
    Choosing the best among so many asks for that many times the evidence at the same
    false-promotion rate.
    """
    points = len(search.points) * max(1, len(search.contexts))
    launch = ASSUMED_BOOT_S + WARM_UP_SECONDS
    full = launch + points * WINDOW_SECONDS
    later = launch + (min(points, BAR_POINTS) + 1) * WINDOW_SECONDS
    confirm = 4 * full + 2 * (_rounds(gain, 1) - 1) * later
    arms = search.max_tokens + 1 + schedules
    everything = (arms + 2) * _rounds(gain, arms) * full
    screen = screening_launches(search) * launch + windows * WINDOW_SECONDS
    return Cost(screen + confirm, everything)


def _rounds(gain: float, arms: int) -> int:
    found = rounds_needed(gain, margin=0.0, sd=PAIR_SD, needed=E_NEEDED * arms)
    return max(FEWEST, min(found or MOST, MOST))


def false_promotions(arms: int, runs: int, seed: int) -> tuple[float, float]:
    """Return the share of runs that promote where nothing is gained: screened, and swept.

    Screening data never enters Confirm, so one test is made; a sweep makes one per arm.
    """
    chance = np.random.default_rng(seed)
    screened = swept = 0
    for _ in range(runs):
        differences = chance.normal(0.0, PAIR_SD, (arms, MOST))
        shown = [evidence(list(d), scale=PAIR_SD) for d in differences]
        screened += shown[0] >= E_NEEDED
        swept += max(shown) >= E_NEEDED * arms
    return screened / runs, swept / runs


HEAD = ("world", "grid", "windows", "share", "launches", "sweep", "regret", "worst", "GPU-s",
        "swept", "share", "schedule")  # fmt: skip
WIDTHS = (26, 5, 8, 6, 9, 6, 7, 6, 7, 7, 6, 0)


@dataclass(frozen=True)
class Row:
    """A line of the table, and the promises that it breaks."""

    cells: tuple[str, ...]
    broken: tuple[str, ...] = ()

    def __str__(self) -> str:
        first, *others = zip(self.cells, WIDTHS, strict=True)
        return " ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)])


def row(title: str, search: Search, results: Sequence[Result]) -> Row:
    """Return a world's line."""
    full = (search.max_tokens + 1) * SWEEP_REPEATS
    grid = len(search.points) * max(1, len(search.contexts)) * full
    windows = max(r.windows for r in results)
    regrets = [x for r in results for x in r.regrets]
    gain, schedules = median(r.gain for r in results), round(fmean(r.schedules for r in results))
    cost = verdict_cost(search, windows, gain, schedules)
    share, launches = cost.tuned / cost.swept, screening_launches(search)
    promises = (
        (windows <= grid * SHARE_OF_WINDOWS, f"{windows} windows of a grid of {grid}"),
        (launches <= MOST_LAUNCHES, f"{launches} launches"),
        (fmean(regrets) <= MEAN_REGRET, f"mean regret {fmean(regrets):.2%}"),
        (max(regrets) <= WORST_REGRET, f"worst regret {max(regrets):.1%}"),
        (share <= SHARE_OF_SECONDS, f"{share:.0%} of the GPU-seconds of a sweep"),
        (not any(r.loses_to_rival for r in results), "loses to the published schedule"),
    )
    cells = (
        title, str(grid), str(windows), f"{windows / grid:.1%}", str(launches), str(full),
        f"{fmean(regrets):.2%}", f"{max(regrets):.1%}", f"{cost.tuned:.0f}", f"{cost.swept:.0f}",
        f"{share:.0%}", results[0].schedule,
    )  # fmt: skip
    return Row(cells, tuple(f"{title}: {message}" for kept, message in promises if not kept))


def totals(regrets: Sequence[float]) -> list[Row]:
    """Return the lines below the worlds: their mean and worst, and what is promised."""
    mean = fmean(regrets)
    broken = (f"mean regret {mean:.2%}",) if mean > MEAN_REGRET else ()
    gap = ("",) * 5
    every = ("all worlds", *gap, f"{mean:.2%}", f"{max(regrets):.1%}", "", "", "", "")
    promised = (
        "promised", "", "", f"{SHARE_OF_WINDOWS:.0%}", str(MOST_LAUNCHES), "", f"{MEAN_REGRET:.2%}",
        f"{WORST_REGRET:.1%}", "", "", f"{SHARE_OF_SECONDS:.0%}", "",
    )  # fmt: skip
    return [Row(every, broken), Row(promised)]


def of_chance(runs: int) -> tuple[str, list[str]]:
    """Return what is said of false promotions, and whether that breaks the promise."""
    screened, swept = false_promotions(8, runs, 1)
    broken = screened > FALSE_PROMOTIONS + 2 * sqrt(FALSE_PROMOTIONS / runs)
    return (
        f"False promotions where nothing is gained ({runs} runs, looked at after every round): "
        f"screened {screened:.1%}, swept {swept:.1%}, promised {FALSE_PROMOTIONS:.0%}.",
        ["false promotions"] if broken else [],
    )


def explained(seeds: int) -> list[str]:
    """Say what the columns are."""
    return [
        f"{seeds} screenings per world. *grid*: every load point (and context) x K, "
        f"{SWEEP_REPEATS} times; *windows*: the most that a screening took, those without "
        "speculation included. *launches*: of the screen, against *sweep*: one for each K and "
        "repeat.",
        "",
        "*GPU-s* to a verdict at one false-promotion rate, against *swept*: no speculation, every "
        "K and every schedule worth testing launched beside the incumbent in every round, at every "
        "load point. A sweep that drops losers early would cost less than that.",
    ]


def page(rows: Sequence[Row], chance: str, broken: Sequence[str], seeds: int) -> str:
    """Return the table as a page."""
    here = machine()
    lines = [
        "# make bench-tuner",
        "",
        f"Written by that command on {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}; numpy "
        f"{np.__version__}, Python {platform.python_version()}; {here['cpus']} cores "
        f"({here['cpu']}), specschedule {commit()}.",
        "",
        *explained(seeds),
        "",
        f"| {' | '.join(HEAD)} |",
        f"|---|{'---:|' * (len(HEAD) - 2)}---|",
        *(f"| {' | '.join(each.cells)} |" for each in rows),
        "",
        chance,
        "",
        *(f"- NOT KEPT: {each}" for each in broken),
        *([] if broken else ["Every promise is kept."]),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="screenings per world")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", type=Path, help="where to write the page")
    options = parser.parse_args()
    began = time.monotonic()
    rows: list[Row] = []
    every: list[float] = []
    click.echo(Row(HEAD))
    with ProcessPoolExecutor(options.processes) as pool:
        for title, make in WORLDS_TUNED.items():
            results = list(pool.map(partial(one_screening, title), range(options.seeds)))
            rows.append(row(title, make().search, results))
            every += [r for result in results for r in result.regrets]
            click.echo(rows[-1])
    rows += totals(every)
    chance, broken = of_chance(2000)
    broken = [*(line for each in rows for line in each.broken), *broken]
    for line in (*rows[-2:], chance, *(f"NOT KEPT: {each}" for each in broken)):
        click.echo(line)
    click.echo(f"took {time.monotonic() - began:.0f} s")
    if options.page is not None:
        options.page.write_text(page(rows, chance, broken, options.seeds))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
