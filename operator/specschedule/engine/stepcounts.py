"""Counters of engine steps, by the K they verify, by graph mode and by what else is in them.

They stand beside the engine's own metrics, so whoever reads those reads these: nothing more
listens, and a window needs two readings instead of a line for each step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from specschedule.core.schedule import effective

SETTLED = 3
"""Steps that belong to a change of K: the one that plans another K than it verifies, and those
after it."""

PROMPT, CHANGE, STABLE = "prompt", "change", "stable"
"""What a step is: one that also computed prompts, one of a change of K, any other."""

EDGES = tuple(float(f"{0.0005 * 2 ** (at / 2):.3g}") for at in range(27))
"""Upper edges of step times in seconds, two to an octave from 0.5 ms to 4 s."""

_LABELS = ("model_name", "engine", "tokens")

Planned = Callable[[int], int]
"""K that a step of so many requests plans for the next."""


def planned(config: Any) -> Planned | None:
    """Return how K is planned; None where that is not known.

    Args:
        config: vLLM's ``VllmConfig``, as resolved: without a schedule where none is in effect.
    """
    if config.scheduler_config.scheduler_cls is not None:
        return None
    speculative = config.speculative_config
    if speculative is None:
        return lambda _: 0
    most = int(speculative.num_speculative_tokens)
    rows = getattr(speculative, "num_speculative_tokens_per_batch_size", None)
    if not rows:
        return lambda _: most
    table = effective(
        [list(row) for row in rows],
        max_tokens=most,
        max_num_seqs=config.scheduler_config.max_num_seqs,
    )
    return None if table.contexts is not None else table.tokens


@dataclass
class _Engine:
    """What is remembered of one engine between two steps."""

    planned: int | None = None
    left: int = 0
    """Steps to come that still belong to a change of K."""


class StepCounts:
    """Counts steps from their lines (``steps.step_line``), of several engines.

    A step is counted when it says how long it took, which it does when a request decoded in it
    and in the one before.
    """

    def __init__(self, plan: Planned | None, model: str, registry: CollectorRegistry) -> None:
        """Register the counters.

        Args:
            plan: How K is planned. Where that is not known K is what was verified, and a change
                begins with the first step that verifies another number.
            model: The name that the engine's own metrics carry.
            registry: Where they are registered.
        """
        self._plan, self._model = plan, model
        kinds = (*_LABELS, "graph_mode", "part")
        self._steps = Counter(
            "specschedule_engine_steps",
            "Steps that followed another at once, by the drafts planned to be verified in them, "
            "by CUDA graph mode of the target's pass, and by part: prompt computed prompts too, "
            f"change is one of {SETTLED} steps of a change of K, stable is any other.",
            kinds,
            registry=registry,
        )
        self._seconds = Counter(
            "specschedule_engine_step_seconds",
            "Seconds of those steps, from the output of the step before to their own.",
            kinds,
            registry=registry,
        )
        self._durations = Histogram(
            "specschedule_engine_step_duration_seconds",
            "Seconds of those steps.",
            _LABELS,
            buckets=EDGES,
            registry=registry,
        )
        self._drafted = Counter(
            "specschedule_engine_draft_tokens",
            "Draft tokens verified in any step.",
            _LABELS,
            registry=registry,
        )
        self._accepted = Counter(
            "specschedule_engine_accepted_tokens",
            "Draft tokens accepted in any step.",
            _LABELS,
            registry=registry,
        )
        self._engines: dict[int, _Engine] = {}
        self._by_tokens: dict[tuple[int, int], tuple[Counter, Counter, Histogram]] = {}
        self._by_kind: dict[tuple[int, int, str, str], tuple[Counter, Counter]] = {}

    def count(self, line: Mapping[str, Any], engine: int) -> None:
        """Count a step; one that does not tell its batch is none.

        Args:
            line: What the engine tells about it.
            engine: Index of the engine.
        """
        if "batchSize" not in line:
            return
        before = self._engines.setdefault(engine, _Engine())
        if self._plan is not None:
            tokens, plans = before.planned, self._plan(line["batchSize"])
        elif line.get("decodes"):
            tokens = plans = line.get("tokens", 0)
        else:
            return
        if before.planned not in (None, plans):
            before.left = SETTLED
        near = before.left > 0
        before.planned, before.left = plans, before.left - near
        if tokens is None:
            return
        drafted, accepted, durations = self._of_tokens(engine, tokens)
        drafted.inc(line.get("draftTokens", 0))
        accepted.inc(line.get("acceptedTokens", 0))
        if "stepMs" not in line:
            return
        seconds = line["stepMs"] / 1e3
        part = PROMPT if line.get("prefills") else CHANGE if near else STABLE
        steps, total = self._of_kind(engine, tokens, line.get("graphMode", ""), part)
        steps.inc()
        total.inc(seconds)
        durations.observe(seconds)

    def _of_tokens(self, engine: int, tokens: int) -> tuple[Counter, Counter, Histogram]:
        key = (engine, tokens)
        if (found := self._by_tokens.get(key)) is None:
            labels = (self._model, str(engine), str(tokens))
            found = self._by_tokens[key] = (
                self._drafted.labels(*labels),
                self._accepted.labels(*labels),
                self._durations.labels(*labels),
            )
        return found

    def _of_kind(self, engine: int, tokens: int, mode: str, part: str) -> tuple[Counter, Counter]:
        key = (engine, tokens, mode, part)
        if (found := self._by_kind.get(key)) is None:
            labels = (self._model, str(engine), str(tokens), mode, part)
            found = self._by_kind[key] = self._steps.labels(*labels), self._seconds.labels(*labels)
        return found
