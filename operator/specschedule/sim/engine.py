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
    preemptions: int = 0
    cached: int = 0
    """Prompt tokens found in the prefix cache when first scheduled."""
    decoding: bool = False
    """Whether it is past prefill."""
    computed: int = 0
    to_compute: int = 0
    """Tokens of its prefill: the prompt, and after a preemption the output so far too."""
    room: int = 0
    """Tokens that its blocks hold; negative once it has left the engine."""
    own_blocks: int = 0
    guesses: random.Random = field(default_factory=random.Random)
    ease: float = 1.0


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
    verified: int | None
    """Draft tokens that the step verified for it; None at the end of its prefill."""


@dataclass(slots=True)
class _Plan:
    """What a step computes, as it is put together."""

    budget: int
    verified: int
    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    decoding: int = 0
    context: int = 0
    prefill: int = 0
    finishing: int = 0
    """Requests whose prefill this step completes."""
    preempted: bool = False

    def add_prefill(self, request: Request) -> None:
        """Give a request as much of its prefill as the budget allows."""
        left = request.to_compute - request.computed
        tokens = min(self.budget, left)
        self.scheduled.append((request, tokens))
        self.prefill += tokens
        self.budget -= tokens
        self.finishing += tokens == left


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
        self.step: Step | None = None
        """The step under way, or the last one."""
        self._random = random.Random(launch_seed)
        self.launch_factor = math.exp(self._random.gauss(0.0, world.noise.launch))
        """Factor of this launch on every step."""
        self._collapse = 1.0
        if (collapse := world.collapse) is not None:
            drawn = collapse.median * math.exp(self._random.gauss(0.0, collapse.sigma))
            self._collapse = max(1.0, drawn)
        self._survival = [world.survival(position) for position in range(settings.max_tokens)]
        self._verified_before = first
        self._seen = {first}
        self._on_change = on_change
        self._plan = _Plan(0, first)
        self._next_drafted = first

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
        plan = _Plan(settings.max_num_batched_tokens, self.drafted)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan, now)
        if not plan.scheduled:
            return None
        self._plan = plan
        self._next_drafted = self._tokens(plan)
        self.step = step = Step(
            decoding=plan.decoding,
            verified=plan.verified if plan.decoding else 0,
            drafting=plan.decoding + plan.finishing,
            drafted=settings.max_tokens if settings.drafter_ignores_tokens else self._next_drafted,
            prefill=plan.prefill,
            context=plan.context,
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
        verified, outputs = self._plan.verified, []
        for request, tokens in self._plan.scheduled:
            if request.room < 0:  # aborted during the step
                continue
            decoding = request.decoding
            if not decoding:
                request.computed += tokens
                if request.computed < request.to_compute:
                    continue
                request.decoding = True
                gained = 1
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
            outputs.append(
                Output(request, gained, finished, before, verified if decoding else None)
            )
        if self._next_drafted != self.drafted:
            if self._on_change is not None:
                self._on_change(self.drafted, self._next_drafted)
            self.drafted = self._next_drafted
        return outputs

    def _schedule_running(self, plan: _Plan) -> None:
        """Give every running request its tokens, taking room from the youngest where it lacks."""
        at, tokens = 0, 1 + plan.verified
        while at < len(self.running) and plan.budget > 0:
            request = self.running[at]
            if request.decoding:
                if tokens > plan.budget:
                    return
                length = request.prompt_tokens + request.produced
                while length + tokens > request.room and not self._grow(request, length + tokens):
                    self._preempt(self.running[-1])
                    plan.preempted = True
                    if at == len(self.running):
                        return
                plan.scheduled.append((request, tokens))
                plan.decoding += 1
                plan.context += length
                plan.budget -= tokens
            else:
                plan.add_prefill(request)
            at += 1

    def _schedule_waiting(self, plan: _Plan, now: float) -> None:
        while self.waiting and plan.budget > 0 and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if not self._admit(request, now):
                return
            self.waiting.popleft()
            self.running.append(request)
            plan.add_prefill(request)

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
        request.room = (len(request.prefix) + own) * BLOCK
        request.computed, request.to_compute = hits, length
        if math.isnan(request.scheduled_at):
            request.scheduled_at = now
            request.cached = hits
            if self.cache.prefix_caching:
                self.counts.prefix_queries += length
                self.counts.prefix_hits += hits
        return True

    def _grow(self, request: Request, tokens: int) -> bool:
        missing = -(-(tokens - request.room) // BLOCK)
        if not self.cache.take(missing):
            return False
        request.own_blocks += missing
        request.room += missing * BLOCK
        return True

    def _preempt(self, request: Request) -> None:
        """Send a request back to be computed anew, prompt and output together."""
        self.running.remove(request)
        self._release(request)
        request.decoding = False
        request.room = request.computed = request.to_compute = 0
        request.preemptions += 1
        self.counts.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.cache.release(request.prefix, request.own_blocks)
        request.own_blocks, request.room = 0, -1

    def _tokens(self, plan: _Plan) -> int:
        """Return the draft tokens that a step proposes for the next."""
        tokens_for = self.settings.tokens_for
        if tokens_for is None:
            return self.settings.max_tokens
        if plan.decoding:
            mean = plan.context // plan.decoding
        else:
            mean = sum(request.computed for request, _ in plan.scheduled) // len(plan.scheduled)
        return tokens_for(len(plan.scheduled), max(1, mean))

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
