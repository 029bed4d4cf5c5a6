"""Continuous batching as vLLM's scheduler does it, as a pure event engine.

The caller owns the clock: ``begin`` schedules a step and says how long it takes, ``finish`` ends
it and hands out the tokens. Virtual time adds the durations up; the HTTP shell sleeps through
them.

The number of draft tokens follows vLLM 0.32: it is looked up by the number of requests scheduled
in a step, prefills included, and the drafts made at the end of that step are verified in the next.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from specschedule.sim.kv_cache import BLOCK, KvCache
from specschedule.sim.physics import Step
from specschedule.sim.worlds import World


class Graphs(StrEnum):
    """How steps are replayed."""

    FULL = "FULL"
    PIECEWISE = "PIECEWISE"
    NONE = "NONE"


TokensFor = Callable[[int, int], int]
"""Draft tokens for (requests scheduled, mean context)."""


@dataclass(frozen=True)
class Settings:
    """How the engine was launched, as far as its steps depend on it."""

    max_tokens: int = 0
    """num_speculative_tokens; 0 without a speculative config."""
    tokens_for: TokensFor | None = None
    """The schedule in effect, if there is one."""
    graphs: Graphs = Graphs.FULL
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_tokens: int = 400_000
    prefix_caching: bool = True
    drafter_ignores_tokens: bool = False
    """The drafter always proposes ``max_tokens`` and the surplus is thrown away."""

    @property
    def speculative(self) -> bool:
        """Whether a drafter is loaded."""
        return self.max_tokens > 0


@dataclass(eq=False, slots=True)
class Request:
    """One sequence in the engine."""

    prompt_tokens: int
    output_tokens: int
    """Tokens after which it ends."""
    seed: int
    """Seed of what the drafter guesses right: the same prompt is guessed alike everywhere."""
    arrived: float
    prefix: Sequence[int] = ()
    """Keys of the prompt's full blocks; equal keys are equal prefixes."""
    produced: int = 0
    first_token_at: float = math.nan
    last_token_at: float = math.nan
    scheduled_at: float = math.nan
    prefilled_at: float = math.nan
    preemptions: int = 0
    cached: int = 0
    """Prompt tokens found in the prefix cache when first scheduled."""
    computed: int = 0
    to_compute: int = 0
    own_blocks: int = 0
    guesses: random.Random = field(default_factory=random.Random)
    ease: float = 1.0

    @property
    def decoding(self) -> bool:
        """Whether it is past prefill."""
        return self.computed >= self.to_compute > 0


@dataclass(slots=True)
class Counts:
    """What vLLM's counters count, from 0 at the start of the engine."""

    steps: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Accepted tokens by draft position."""
    prompt_tokens: int = 0
    generated: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


@dataclass(slots=True)
class Output:
    """Tokens that one request gained in a step."""

    request: Request
    tokens: int
    finished: bool
    before: float
    """When it gained tokens before; NaN for its first."""


class StepFault(Exception):
    """The engine died in a step; the message is the engine's own."""


class Engine:
    """One replica of a world, launched with settings.

    Args:
        world: Physics.
        settings: How it was launched.
        launch_seed: Draws what differs between launches and the jitter of this one.
        on_change: Called with (tokens before, tokens now) when a schedule moves; may raise
            ``StepFault``.
    """

    def __init__(
        self,
        world: World,
        settings: Settings,
        *,
        launch_seed: int,
        on_change: Callable[[int, int], None] | None = None,
    ) -> None:
        self.world = world
        self.settings = settings
        self.counts = Counts(accepted_at=[0] * settings.max_tokens)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.cache = KvCache(settings.kv_tokens, prefix_caching=settings.prefix_caching)
        first = settings.max_tokens if settings.tokens_for is None else settings.tokens_for(1, 1)
        self.drafted = first
        """Draft tokens that the next step verifies."""
        self._random = random.Random(launch_seed)
        self.launch_factor = math.exp(self._random.gauss(0.0, world.noise.launch))
        """Factor of this launch on every step."""
        collapse = world.collapse
        self._collapse = (
            collapse.median * math.exp(self._random.gauss(0.0, collapse.sigma)) if collapse else 1.0
        )
        self._survival = [world.survival(position) for position in range(settings.max_tokens)]
        self._verified_before = first
        self._seen = {first}
        self._on_change = on_change
        self._scheduled: list[tuple[Request, int]] = []
        self._verified = 0
        self._next_drafted = first
        self._preempted = False

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.guesses.seed(request.seed)
        if not self.cache.prefix_caching:
            request.prefix = ()
        if self.world.spread:
            request.ease = math.exp(self.world.spread * request.guesses.gauss(0.0, 1.0))
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request, wherever it is; its tokens of a running step are dropped."""
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def begin(self, now: float) -> float | None:
        """Schedule a step and return its seconds; None when there is nothing to do."""
        settings = self.settings
        verified = self.drafted
        budget = settings.max_num_batched_tokens
        scheduled = self._schedule_running(budget, verified)
        budget -= sum(tokens for _, tokens in scheduled)
        if not self._preempted:
            self._schedule_waiting(now, budget, scheduled)
        if not scheduled:
            return None
        self._scheduled = scheduled
        self._verified = verified
        decoding = [request for request, _ in scheduled if request.decoding]
        context = sum(request.prompt_tokens + request.produced for request in decoding)
        self._next_drafted = self._tokens(scheduled, decoding, context)
        finishing = sum(
            request.computed + tokens >= request.to_compute
            for request, tokens in scheduled
            if not request.decoding
        )
        proposed = settings.max_tokens if settings.drafter_ignores_tokens else self._next_drafted
        step = Step(
            decoding=len(decoding),
            verified=verified if decoding else 0,
            drafting=len(decoding) + finishing,
            drafted=proposed,
            prefill=sum(tokens for request, tokens in scheduled if not request.decoding),
            context=context,
            speculative=settings.speculative,
            dynamic=settings.tokens_for is not None,
        )
        return self._seconds(step, now)

    def finish(self, now: float) -> list[Output]:
        """End the step begun before and return its tokens, by request in scheduling order.

        Raises:
            StepFault: The engine died, where ``on_change`` says so.
        """
        counts = self.counts
        counts.steps += 1
        verified, outputs = self._verified, []
        for request, tokens in self._scheduled:
            if request.own_blocks < 0:  # aborted during the step
                continue
            if not request.decoding:
                request.computed += tokens
                if not request.decoding:
                    continue
                gained = 1
                if math.isnan(request.prefilled_at):
                    request.prefilled_at = now
            elif verified:
                accepted = self._accepted(request, verified)
                counts.drafts += 1
                counts.draft_tokens += verified
                counts.accepted += accepted
                for position in range(accepted):
                    counts.accepted_at[position] += 1
                gained = 1 + accepted
            else:
                gained = 1
            gained = min(gained, request.output_tokens - request.produced)
            request.produced += gained
            counts.generated += gained
            if math.isnan(request.first_token_at):
                request.first_token_at = now
                counts.prompt_tokens += request.prompt_tokens
            before, request.last_token_at = request.last_token_at, now
            finished = request.produced >= request.output_tokens
            if finished:
                self.running.remove(request)
                self._release(request)
            outputs.append(Output(request, gained, finished, before))
        if self._next_drafted != self.drafted:
            if self._on_change is not None:
                self._on_change(self.drafted, self._next_drafted)
            self.drafted = self._next_drafted
        self._scheduled = []
        return outputs

    def _schedule_running(self, budget: int, verified: int) -> list[tuple[Request, int]]:
        """Give every running request its tokens, taking room from the youngest where it lacks."""
        self._preempted = False
        scheduled: list[tuple[Request, int]] = []
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            if request.decoding:
                tokens = 1 + verified
                if tokens > budget:
                    break
                while not self._grow(request, request.prompt_tokens + request.produced + tokens):
                    self._preempt(self.running[-1])
                    if at >= len(self.running):
                        return scheduled
            else:
                tokens = min(budget, request.to_compute - request.computed)
            scheduled.append((request, tokens))
            budget -= tokens
            at += 1
        return scheduled

    def _schedule_waiting(
        self, now: float, budget: int, scheduled: list[tuple[Request, int]]
    ) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if not self._admit(request, now):
                return
            self.waiting.popleft()
            self.running.append(request)
            tokens = min(budget, request.to_compute - request.computed)
            scheduled.append((request, tokens))
            budget -= tokens

    def _admit(self, request: Request, now: float) -> bool:
        """Take blocks for the whole prompt, reusing what the prefix cache holds."""
        length = request.prompt_tokens + request.produced
        hits = 0
        if self.cache.prefix_caching:
            # The last token is always computed, so a prompt is never found whole.
            most = (length - 1) // BLOCK
            hits = min(self.cache.cached_prefix(request.prefix), most) * BLOCK
        if not self.cache.share(request.prefix):
            return False
        own = -(-length // BLOCK) - len(request.prefix)
        if not self.cache.take(own):
            self.cache.release(request.prefix, 0)
            return False
        request.own_blocks = own
        request.computed, request.to_compute = hits, length
        if math.isnan(request.scheduled_at):
            request.scheduled_at = now
            request.cached = hits
            if self.cache.prefix_caching:
                self.counts.prefix_queries += length
                self.counts.prefix_hits += hits
        return True

    def _grow(self, request: Request, tokens: int) -> bool:
        missing = -(-tokens // BLOCK) - len(request.prefix) - request.own_blocks
        if missing <= 0:
            return True
        if not self.cache.take(missing):
            return False
        request.own_blocks += missing
        return True

    def _preempt(self, request: Request) -> None:
        """Send a request back to be computed anew, prompt and output together."""
        self.running.remove(request)
        self._release(request)
        request.own_blocks = request.computed = request.to_compute = 0
        request.preemptions += 1
        self.counts.preemptions += 1
        self.waiting.appendleft(request)
        self._preempted = True

    def _release(self, request: Request) -> None:
        self.cache.release(request.prefix, request.own_blocks)
        request.own_blocks = -1

    def _tokens(
        self, scheduled: Sequence[tuple[Request, int]], decoding: Sequence[Request], context: int
    ) -> int:
        """Return the draft tokens that this step proposes."""
        tokens_for = self.settings.tokens_for
        if tokens_for is None:
            return self.settings.max_tokens
        if decoding:
            mean = context // len(decoding)
        else:
            mean = sum(request.computed for request, _ in scheduled) // len(scheduled)
        return tokens_for(len(scheduled), max(1, mean))

    def _seconds(self, step: Step, now: float) -> float:
        world = self.world
        seconds = world.step_time(step)
        if self.settings.graphs is Graphs.PIECEWISE:
            seconds += world.piecewise
        elif self.settings.graphs is Graphs.NONE:
            seconds += world.eager
        collapse = world.collapse
        if collapse and step.dynamic and step.drafted == 0 and step.decoding >= collapse.from_batch:
            seconds *= self._collapse
        if step.decoding and step.verified != self._verified_before:
            seconds += world.change
            if step.verified not in self._seen:
                self._seen.add(step.verified)
                seconds += world.first_change
            self._verified_before = step.verified
        noise = world.noise
        wander = noise.drift * math.sin(2 * math.pi * now / noise.drift_period)
        jitter = self._random.gauss(0.0, noise.step) if noise.step else 0.0
        return seconds * self.launch_factor * math.exp(wander + jitter)

    def _accepted(self, request: Request, verified: int) -> int:
        """Draw how many of the draft tokens of one sequence are accepted."""
        draw = request.guesses.random()
        if request.ease != 1.0:
            draw **= 1.0 / request.ease
        survival = self._survival
        accepted = 0
        while accepted < verified and draw < survival[accepted]:
            accepted += 1
        return accepted


def drive(engine: Engine, now: float) -> Iterable[tuple[float, list[Output]]]:
    """Yield (time, outputs) step by step in virtual time, until the engine is idle."""
    while (seconds := engine.begin(now)) is not None:
        now += seconds
        yield now, engine.finish(now)
