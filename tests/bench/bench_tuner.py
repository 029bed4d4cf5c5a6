"""What the tuner finds, and what finding it costs, in worlds whose physics it does not know.

Every world is screened in virtual time: one probe launch that switches K between windows, one
launch without speculation. What would be proposed is then compared with the truth: the same world
without noise. Beside it, the cost of knowing as much by launches. Prints two tables; exits 1 when
a promise is not kept.

    python tests/bench/bench_tuner.py [--seeds 5] [--processes 2]
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specschedule.core.budget import ASSUMED_BOOT_S, ROUNDS, WARM_UP_SECONDS
from specschedule.core.chance import shuffled
from specschedule.core.cost import Setting
from specschedule.core.eprocess import E_NEEDED, evidence, rounds_needed
from specschedule.core.evidence import Cell
from specschedule.core.plan import LaunchRecord
from specschedule.core.schedule import EffectiveTable, effective
from specschedule.core.screen import REPEATS, Search, next_windows, none_settings
from specschedule.core.search import next_screens, screening_arms
from specschedule.core.spec import Effort, Spec
from specschedule.core.target import ServerFacts
from specschedule.core.tuner import propose
from specschedule.sim.virtual import Arm, Load, simulate_hold
from specschedule.sim.worlds import WORLDS, Noise
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

    def __init__(self, name: str, max_tokens: int) -> None:
        self.world, self.max_tokens = WORLDS[name], max_tokens
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

    def _window(self, world: object, setting: Setting, arm: str, seed: int, requests: int) -> Cell:
        batch, tokens, context = setting
        prompt = 128 if context is None else context - 64
        load = Load(
            requests=requests,
            prompt_tokens=prompt,
            shared_tokens=0 if context is None else prompt - 16,
        )
        rows = [[1, self.world.max_num_seqs, tokens]]
        cell = simulate_hold(
            world,  # type: ignore[arg-type]
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
    name: str,
    points: Sequence[int],
    max_tokens: int,
    rival: Sequence[Sequence[int]] | None = None,
    **more: object,
) -> World:
    source = Simulated(name, max_tokens)
    search = published.search(points, max_tokens, **more)
    return World(search, source.measure, source.truth, rival)


def tabled(rates: Mapping[int, Sequence[float]]) -> World:
    source = Tabled(rates, noise=0.01)
    search = published.search(published.SGLANG_BATCHES, max(rates))
    return World(search, source.measure, source.truth)


WORLDS_TUNED: dict[str, Callable[[], World]] = {
    "PR 32374, EAGLE": partial(simulated, "pr32374-eagle", (1, 4, 16, 32, 64), 7),
    "PR 32374, EAGLE3": partial(simulated, "pr32374-eagle3", (1, 4, 16, 32, 64), 7),
    "SGLang 22246, Qwen3-235B": partial(tabled, published.QWEN3_235B),
    "SGLang 22246, GLM-4.7": partial(tabled, published.GLM_4_7),
    "SpecDecode-Bench, EAGLE": partial(simulated, "specdecode-bench", (1, 4, 16, 64, 128), 7),
    "roofline with cliffs": partial(simulated, "roofline", (1, 8, 32, 64, 128, 256), 7),
    "PR 48944, contexts": partial(
        simulated,
        "context-axis",
        (64, 128, 256),
        3,
        contexts=published.CONTEXTS,
        max_num_seqs=512,
        kv_cache_tokens=1_600_000,
    ),
    "One Line, experts": partial(
        simulated, "experts", (1, 2, 4, 8, 12, 16), 5, rival=[[1, 2, 5], [3, 16, 1]]
    ),
}
"""Worlds by title, in the order of the table."""


def screen(world: World, seed: int) -> list[Cell]:
    """Return the windows of one screening: a launch without speculation, then the probe."""
    search, base = replace(world.search, seed=seed), 1000 * (seed + 1)
    cells = [
        world.measure(setting, "none", base + at)
        for at, setting in enumerate(shuffled(none_settings(search), seed))
    ]
    while asks := next_windows(search, cells).asks:
        for ask in asks:
            cells.append(world.measure(ask.setting, "probe", base + len(cells)))
    return cells


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="screenings per world")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    click.echo(
        f"{options.seeds} screenings per world; the full grid is every load point (and context) x "
        f"K, {REPEATS} times"
    )
    click.echo(
        f"{'world':26} {'grid':>5} {'windows':>8} {'share':>6} {'launches':>9} {'sweep':>6} "
        f"{'regret':>7} {'worst':>6} {'GPU-s':>7} {'swept':>7} {'share':>6}  schedule"
    )
    broken: list[str] = []
    every: list[float] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for title, make in WORLDS_TUNED.items():
            results = list(pool.map(partial(one_screening, title), range(options.seeds)))
            search = make().search
            broken += report(title, search, results)
            every += [r for result in results for r in result.regrets]
    mean = fmean(every)
    click.echo(f"{'all worlds':26} {'':38} {mean:>7.2%} {max(every):>6.1%}")
    click.echo(
        f"{'promised':26} {'':>5} {'':>8} {SHARE_OF_WINDOWS:>6.0%} {MOST_LAUNCHES:>9} {'':>6} "
        f"{MEAN_REGRET:>7.2%} {WORST_REGRET:>6.1%} {'':>7} {'':>7} {SHARE_OF_SECONDS:>6.0%}"
    )
    if mean > MEAN_REGRET:
        broken.append(f"mean regret {mean:.2%}")
    runs = 2000
    screened, swept = false_promotions(8, runs, 1)
    click.echo(
        f"false promotions where nothing is gained ({runs} runs, looked at after every round): "
        f"screened {screened:.1%}, swept {swept:.1%}, promised {FALSE_PROMOTIONS:.0%}"
    )
    if screened > FALSE_PROMOTIONS + 2 * sqrt(FALSE_PROMOTIONS / runs):
        broken.append("false promotions")
    for line in broken:
        click.echo(f"NOT KEPT: {line}")
    click.echo(f"took {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


def report(title: str, search: Search, results: Sequence[Result]) -> list[str]:
    """Print a world's row and return the promises that it breaks."""
    grid = len(search.points) * max(1, len(search.contexts)) * (search.max_tokens + 1) * REPEATS
    windows = max(r.windows for r in results)
    regrets = [x for r in results for x in r.regrets]
    gain, schedules = median(r.gain for r in results), round(fmean(r.schedules for r in results))
    cost = verdict_cost(search, windows, gain, schedules)
    share, launches = cost.tuned / cost.swept, screening_launches(search)
    click.echo(
        f"{title:26} {grid:>5} {windows:>8} {windows / grid:>6.0%} {launches:>9} "
        f"{(search.max_tokens + 1) * REPEATS:>6} {fmean(regrets):>7.2%} {max(regrets):>6.1%} "
        f"{cost.tuned:>7.0f} {cost.swept:>7.0f} {share:>6.0%}  {results[0].schedule}"
    )
    promises = (
        (windows <= grid * SHARE_OF_WINDOWS, f"{windows} windows of a grid of {grid}"),
        (launches <= MOST_LAUNCHES, f"{launches} launches"),
        (fmean(regrets) <= MEAN_REGRET, f"mean regret {fmean(regrets):.2%}"),
        (max(regrets) <= WORST_REGRET, f"worst regret {max(regrets):.1%}"),
        (share <= SHARE_OF_SECONDS, f"{share:.0%} of the GPU-seconds of a sweep"),
        (not any(r.loses_to_rival for r in results), "loses to the published schedule"),
    )
    return [f"{title}: {message}" for kept, message in promises if not kept]


if __name__ == "__main__":
    sys.exit(main())
