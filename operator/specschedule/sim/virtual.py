"""Launches and load windows in virtual time, for experiments by the thousand."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from specschedule.core.evidence import Cell, Launch, PrefixCache, Profile, Quantiles, Receipt
from specschedule.core.schedule import speculative_config
from specschedule.core.spec import Slo
from specschedule.sim.arguments import Refused
from specschedule.sim.engine import Engine, Request, drive
from specschedule.sim.kv_cache import BLOCK
from specschedule.sim.launch import VERSION, read
from specschedule.sim.launch import Launch as EngineLaunch
from specschedule.sim.startup import captured_sizes
from specschedule.sim.worlds import World


@dataclass(frozen=True)
class Arm:
    """One way to run the engine."""

    name: str
    max_tokens: int = 0
    """num_speculative_tokens; 0 for no speculative config."""
    schedule: Sequence[Sequence[int]] | None = None
    graphs: str | None = None
    """CUDA graph mode asked for; vLLM's default when left out."""

    def arguments(self, world: World) -> list[str]:
        """Return the arm as vLLM's arguments."""
        out = []
        if self.max_tokens:
            config = speculative_config(
                {"method": world.method, "model": "draft"},
                max_tokens=self.max_tokens,
                rows=self.schedule,
            )
            out += ["--speculative-config", json.dumps(config)]
        if self.graphs:
            out += ["--compilation-config.cudagraph_mode", self.graphs]
        return out


@dataclass(frozen=True)
class Load:
    """The requests of a window, alike for all arms."""

    requests: int = 20
    """Finished requests that the window needs."""
    prompt_tokens: int = 128
    output_tokens: int = 128
    shared_tokens: int = 0
    """Leading tokens that all prompts have in common; the rest is unlike in every prompt."""


def launched(world: World, arm: Arm) -> EngineLaunch:
    """Return an arm as vLLM would launch it in this world.

    Raises:
        specschedule.sim.arguments.Refused: vLLM would not start it.
    """
    launch = read(arm.arguments(world), {}, world)
    if launch.late_refusal is not None:
        raise Refused(launch.late_refusal)
    return launch


def simulate_hold(
    world: World,
    arm: Arm,
    *,
    concurrency: int,
    load: Load = Load(),
    seed: int = 0,
    launch_seed: int = 0,
    slo: Slo | None = None,
    start: float = 0.0,
) -> Cell:
    """Hold ``concurrency`` requests in flight on a fresh launch and return the window's cell.

    Args:
        world: Physics.
        arm: How the engine is run.
        concurrency: Requests in flight.
        load: Requests of the window.
        seed: Seed of the prompts; equal seeds are equal prompts in equal order.
        launch_seed: What differs between launches.
        slo: Limits of a good request; the cell's ``good`` is absent without them.
        start: Time at which the launch starts, where the world drifts.
    """
    launch = simulate_launch(
        world,
        arm,
        points=[concurrency],
        load=load,
        seed=seed,
        launch_seed=launch_seed,
        slo=slo,
        start=start,
    )
    return launch.cells[0]


def simulate_launch(
    world: World,
    arm: Arm,
    *,
    points: Sequence[int],
    load: Load = Load(),
    seed: int = 0,
    launch_seed: int = 0,
    slo: Slo | None = None,
    start: float = 0.0,
    launch: int = 1,
    round: int = 1,
    position: int = 1,
) -> Launch:
    """Run one launch through a hold window per load point and return it as evidence.

    Each point starts with requests of staggered lengths and opens its window once as many
    requests have ended as are in flight, so that neither the ramp nor the drain is in it.
    """
    resolved = launched(world, arm)
    engine = Engine(world, resolved.settings, launch_seed=launch_seed)
    now, cells = start, []
    for point in points:
        window = _Window(engine, point, load, seed, slo)
        now = window.run(now)
        cells.append(window.cell(f"r{round}-hold{point}-s{seed}", arm.name, launch, round))
        window.drain()
    receipt = Receipt(
        engine_version=VERSION,
        model=resolved.model,
        model_runner=resolved.runner,
        graph_mode=resolved.graphs_config,
        captured_sizes=captured_sizes(resolved),
        kv_cache_tokens=resolved.settings.kv_tokens,
        schedule=[list(row) for row in arm.schedule] if arm.schedule is not None else None,
        num_speculative_tokens=arm.max_tokens or None,
    )
    return Launch(
        arm=arm.name,
        launch=launch,
        round=round,
        position=position,
        schedule=receipt.schedule,
        receipt=receipt,
        cells=cells,
    )


_COUNTED = (
    "drafts",
    "draft_tokens",
    "accepted",
    "generated",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
)


class _Window:
    """A hold window: streams that ask again at once."""

    def __init__(self, engine: Engine, point: int, load: Load, seed: int, slo: Slo | None) -> None:
        self.engine, self.point, self.load, self.slo = engine, point, load, slo
        self._seeds = count((seed * 1_000_003 + point) * 1_000_003)
        self.finished: list[Request] = []
        self.produced = self.seconds = 0.0
        self.before = self._snapshot()
        self.after = self.before
        self.tokens: set[int] = set()

    def run(self, start: float) -> float:
        """Warm up, measure, and return the time at which the window closed."""
        for index in range(self.point):
            self._ask(start, 1 + self.load.output_tokens * (index + 1) // self.point)
        warm, now, opened = self.point, start, start
        for now, outputs in drive(self.engine, start):
            ended = [output.request for output in outputs if output.finished]
            for _ in ended:
                self._ask(now, self.load.output_tokens)
            if warm > 0:
                warm -= len(ended)
                if warm <= 0:
                    opened, self.before = now, self._snapshot()
                continue
            self.tokens.add(self.engine.drafted)
            self.produced += sum(output.tokens for output in outputs)
            self.finished += ended
            if len(self.finished) >= self.load.requests:
                break
        self.seconds, self.after = now - opened, self._snapshot()
        return now

    def drain(self) -> None:
        """Drop what is still in flight."""
        for request in (*self.engine.running, *self.engine.waiting):
            self.engine.abort(request)

    def cell(self, name: str, arm: str, launch: int, round: int) -> Cell:
        """Return the window as evidence."""
        ttft = [request.first_token_at - request.arrived for request in self.finished]
        spans = [
            (request.last_token_at - request.first_token_at, request.output_tokens - 1)
            for request in self.finished
        ]
        tpot = [span / tokens for span, tokens in spans if tokens]
        counts = {key: self.after[key] - self.before[key] for key in self.before}
        speculative = self.engine.settings.speculative
        return Cell(
            cell=name,
            arm=arm,
            launch=launch,
            round=round,
            profile=Profile(kind="hold", concurrency=self.point),
            tokens=next(iter(self.tokens)) if len(self.tokens) == 1 else None,
            window_seconds=self.seconds,
            offered=len(self.finished),
            completed=len(self.finished),
            good=None if self.slo is None else sum(map(self._good, self.finished)),
            output_tokens=int(self.produced),
            ttft_ms=_quantiles(ttft),
            tpot_ms=_quantiles(tpot),
            decode_rate=1.0 / _quantile(sorted(tpot), 0.5) if tpot else None,
            drafts=counts["drafts"] if speculative else None,
            draft_tokens=counts["draft_tokens"] if speculative else None,
            accepted_tokens=counts["accepted"] if speculative else None,
            engine_output_tokens=counts["generated"],
            preemptions=counts["preemptions"],
            prefix_cache=PrefixCache(queries=counts["prefix_queries"], hits=counts["prefix_hits"]),
            batch_size_mean=float(self.point),
        )

    def _ask(self, now: float, output_tokens: int) -> None:
        self.engine.add(
            Request(
                prompt_tokens=self.load.prompt_tokens,
                output_tokens=output_tokens,
                seed=next(self._seeds),
                arrived=now,
                prefix=range(self.load.shared_tokens // BLOCK),
            )
        )

    def _good(self, request: Request) -> bool:
        assert self.slo is not None
        slo, decoded = self.slo, max(1, request.output_tokens - 1)
        return (
            (slo.ttft is None or request.first_token_at - request.arrived <= slo.ttft)
            and (
                slo.tpot is None
                or (request.last_token_at - request.first_token_at) / decoded <= slo.tpot
            )
            and (slo.e2e is None or request.last_token_at - request.arrived <= slo.e2e)
        )

    def _snapshot(self) -> dict[str, int]:
        counts = self.engine.counts
        return {name: getattr(counts, name) for name in _COUNTED}


def _quantiles(seconds: Sequence[float]) -> Quantiles | None:
    if not seconds:
        return None
    ordered = [1000 * value for value in sorted(seconds)]
    return Quantiles(
        p50=_quantile(ordered, 0.5), p90=_quantile(ordered, 0.9), p99=_quantile(ordered, 0.99)
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rates(cells: Iterable[Cell]) -> list[float]:
    """Return output tokens per second, cell by cell."""
    return [(cell.output_tokens or 0) / cell.window_seconds for cell in cells]
