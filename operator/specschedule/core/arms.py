"""The arms of an experiment: which ways to run the engine are compared, and why."""

from collections.abc import Sequence
from typing import Any

from specschedule.core.alike import twins
from specschedule.core.compare import INCUMBENT, NONE, TWIN
from specschedule.core.context_axis import Follower, every_k
from specschedule.core.schedule import ROWS, EffectiveTable, effective, speculative_config
from specschedule.core.spec import Candidate, Effort, Spec
from specschedule.core.target import ServerFacts
from specschedule.core.values import Value
from specschedule.core.versions import adaptive_verification, version_of_image

ZERO = "zero"
ADAPTIVE = "adaptive"
PIECEWISE = "piecewise-"
"""Head of the arms that run a static K in the graph mode which a schedule forces on runner V1."""
ADAPTIVE_KEY = "enable_adaptive_verification"


class Arm(Value):
    """One way to run the engine."""

    name: str
    """Such as incumbent, none, static-3, adaptive, constant-3, piecewise-3, zero, twin or
    candidate-card."""
    speculative: dict[str, Any] | None = None
    """Speculative config to serve with; None for none."""
    schedule: list[list[int]] | None = None
    """Its schedule, if it has one."""
    context_axis: bool = False
    """Whether its launches bring a scheduler that follows it; ``speculative`` only names every K
    then."""
    unchanged: bool = False
    """True for arms that keep the target's own arguments byte for byte."""
    graph_mode: str | None = None
    """cudagraph_mode to launch with; None keeps the target's."""
    max_num_seqs: int
    """Largest batch size of the server."""
    max_model_len: int | None = None
    """Longest sequence of the server; None when unknown."""
    why: str
    """What it buys."""
    same_as: str | None = None
    """Arm that does exactly the same; such an arm is not launched."""

    @property
    def table(self) -> EffectiveTable | None:
        """What the engine does at every batch size; None without a schedule."""
        if self.schedule is None:
            return None
        largest = int((self.speculative or {}).get("num_speculative_tokens") or 1)
        return effective(self.schedule, max_tokens=largest, max_num_seqs=self.max_num_seqs)

    def tokens(self, batch: int, contexts: tuple[int, int] | None = None) -> int | None:
        """Return K at a batch size; None where it varies, or is unknown.

        Args:
            batch: Requests in flight.
            contexts: Smallest and largest mean context, in tokens; None when unknown.
        """
        if self.speculative is None:
            return 0
        if self.speculative.get(ADAPTIVE_KEY):
            return None
        table = self.table
        if table is None:
            fixed = self.speculative.get("num_speculative_tokens")
            return int(fixed) if fixed is not None else None
        batch = min(batch, self.max_num_seqs)
        found = {
            band.tokens
            for band in table.bands()
            if band.first <= batch <= band.last
            and (contexts is None or band.context is None or _touch(band.context, contexts, table))
        }
        return found.pop() if len(found) == 1 else None

    def boundaries(self) -> list[int]:
        """Return the last batch size of every band but the last."""
        table = self.table
        if table is None:
            return []
        return sorted({band.last for band in table.bands()} - {table.max_num_seqs})


def _touch(band: tuple[int, int], contexts: tuple[int, int], table: EffectiveTable) -> bool:
    open_ended = table.contexts is not None and band == table.contexts[-1]
    return band[0] <= contexts[1] and (open_ended or contexts[0] <= band[1])


def arms(
    spec: Spec, server: ServerFacts, *, version: str | None = None, delivered: bool = False
) -> list[Arm]:
    """Return the arms of a run: the incumbent, the candidates in order, then the controls.

    Args:
        spec: The question.
        server: The target's server.
        version: vLLM's version, where a launch has told it; else its image's tag may.
        delivered: Whether launches can carry a scheduler of ours, which five-number rows need.

    Raises:
        ScheduleError: A candidate's schedule is none, or the target's own.
    """
    limit = {"max_model_len": server.max_model_len}
    return [arm.model_copy(update=limit) for arm in _arms(spec, server, version, delivered)]


def _arms(spec: Spec, server: ServerFacts, version: str | None, delivered: bool) -> list[Arm]:
    own = server.speculative
    own_rows = own.get(ROWS) if own else None
    incumbent = Arm(
        name=INCUMBENT,
        speculative=own,
        schedule=own_rows,
        unchanged=True,
        max_num_seqs=server.max_num_seqs,
        why="what serves now: gains and losses are against it, and its relaunches show the noise",
    )
    base = own if own is not None else (spec.speculative.plain() if spec.speculative else None)
    candidates = _candidates(spec, base, server, incumbent, delivered)
    found = [incumbent, *candidates, _none(server, incumbent)]
    found.extend(_static(k, base, server, incumbent) for k in _statics(spec, incumbent, candidates))
    if spec.experiment.effort is Effort.QUICK:
        return found
    adaptive = _adaptive(spec, base, server, version)
    if adaptive is not None:
        found.append(adaptive)
    found.extend(_dynamic_path(base, server, incumbent, candidates))
    if spec.experiment.effort is Effort.THOROUGH:
        found.append(
            incumbent.model_copy(
                update={
                    "name": TWIN,
                    "why": "the incumbent once more: any difference between the two is the "
                    "bench's own",
                }
            )
        )
    return found


def _candidates(
    spec: Spec, base: dict[str, Any] | None, server: ServerFacts, incumbent: Arm, delivered: bool
) -> list[Arm]:
    """Return the candidates; one that the engine would treat like an arm before is not launched."""
    same, follower = twins(spec.candidates, server), Follower(server, delivered)
    found = []
    for each in spec.candidates:
        twin = None
        if each.name in same:
            other = same[each.name]
            twin = INCUMBENT if other is None else f"candidate-{other}"
        rows, most = each.schedule, each.largest_tokens
        brought = follower.brought(rows, most)
        if brought:
            rows = every_k(most, server.max_num_seqs)
        arm = Arm(
            name=f"candidate-{each.name}",
            speculative=speculative_config(base, max_tokens=most, rows=rows),
            schedule=each.schedule,
            context_axis=brought,
            max_num_seqs=server.max_num_seqs,
            same_as=twin,
            why="the schedule that must show it is better"
            if twin is None
            else f"its effective table equals the {twin}'s: the same thing, not launched",
        )
        found.append(arm)
    return found


def _none(server: ServerFacts, incumbent: Arm) -> Arm:
    serves_none = incumbent.speculative is None
    return Arm(
        name=NONE,
        max_num_seqs=server.max_num_seqs,
        why="the incumbent already serves without speculation: not launched"
        if serves_none
        else "no speculation at all: guards against a drafter that costs more than it gives",
        same_as=INCUMBENT if serves_none else None,
    )


def _static(tokens: int, base: dict[str, Any] | None, server: ServerFacts, incumbent: Arm) -> Arm:
    fixed = incumbent.tokens(1) if incumbent.schedule is None and server.speculative else None
    return Arm(
        name=f"static-{tokens}",
        speculative=static_config(base, tokens),
        max_num_seqs=server.max_num_seqs,
        why=f"one fixed K={tokens} without a schedule: guards against a schedule that buys nothing",
        same_as=INCUMBENT if fixed == tokens else None,
    )


def static_config(base: dict[str, Any] | None, tokens: int) -> dict[str, Any]:
    """Return the speculative config of one fixed K: no schedule, no adaptive verification."""
    config = speculative_config(base, max_tokens=tokens, rows=None)
    config.pop(ADAPTIVE_KEY, None)
    return config


def adaptive_config(base: dict[str, Any] | None, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Return the speculative config of adaptive verification of the largest K that is in play."""
    own = int((base or {}).get("num_speculative_tokens") or 1)
    largest = max(own, *(each.largest_tokens for each in candidates))
    return static_config(base, largest) | {ADAPTIVE_KEY: True}


def can_verify_adaptively(
    base: dict[str, Any] | None, server: ServerFacts, version: str | None
) -> bool:
    """Say whether this server can run adaptive verification.

    Args:
        base: The speculative config that its method is taken from.
        server: The target's server.
        version: vLLM's version, where a launch has told it; else its image's tag may.
    """
    version = version or version_of_image(server.image)
    full_graphs = server.graph_mode is None or server.graph_mode.upper().startswith("FULL")
    return (
        version is not None
        and adaptive_verification(str((base or {}).get("method") or ""), version)
        and bool(server.gpus)
        and not server.enforce_eager
        and full_graphs
        and not server.enable_lora
        and server.pipeline_parallel_size <= 1
    )


def _adaptive(
    spec: Spec, base: dict[str, Any] | None, server: ServerFacts, version: str | None
) -> Arm | None:
    """Return vLLM's own rival of a schedule, where this server can run it."""
    if not can_verify_adaptively(base, server, version):
        return None
    config = adaptive_config(base, spec.candidates)
    return Arm(
        name=ADAPTIVE,
        speculative=config,
        max_num_seqs=server.max_num_seqs,
        why="vLLM's adaptive verification, which trims drafts step by step: the rival of any "
        "schedule",
        same_as=INCUMBENT if server.speculative == config else None,
    )


def _tokens_of(arm: Arm) -> set[int]:
    table = arm.table
    return {band.tokens for band in table.bands()} if table else set()


def _statics(spec: Spec, incumbent: Arm, candidates: list[Arm]) -> list[int]:
    """Return the fixed Ks to run: those asked for, else the candidates' less the incumbent's."""
    asked = spec.experiment.static
    if asked is not None:
        return sorted(set(asked))
    if spec.experiment.effort is Effort.QUICK:
        return []
    own = incumbent.tokens(1) if incumbent.schedule is None else None
    return sorted({k for arm in candidates for k in _tokens_of(arm)} - {0, own})


def _dynamic_path(
    base: dict[str, Any] | None, server: ServerFacts, incumbent: Arm, candidates: list[Arm]
) -> list[Arm]:
    """Return the arms that take the tax of the dynamic code path apart."""
    used = sorted({k for arm in candidates if not arm.same_as for k in _tokens_of(arm)})
    largest = max([1, *used])
    fixed = incumbent.tokens(1) if incumbent.schedule is None else None
    found = []
    for tokens in used:
        rows = [[1, incumbent.max_num_seqs, tokens]]
        static = INCUMBENT if tokens == fixed else f"static-{tokens}"
        why = (
            "no tokens on the dynamic code path: against none it shows what drafter and "
            "scheduling cost at K=0"
            if tokens == 0
            else f"K={tokens} on the dynamic code path: against {static} it shows what the "
            "path and its graph mode cost"
        )
        found.append(
            Arm(
                name=f"constant-{tokens}" if tokens else ZERO,
                speculative=speculative_config(base, max_tokens=tokens or largest, rows=rows),
                schedule=rows,
                max_num_seqs=incumbent.max_num_seqs,
                why=why,
            )
        )
        if tokens and not server.enforce_eager:
            found.append(
                Arm(
                    name=f"{PIECEWISE}{tokens}",
                    speculative=static_config(base, tokens),
                    graph_mode="PIECEWISE",
                    max_num_seqs=incumbent.max_num_seqs,
                    why=f"K={tokens} without a schedule in the graph mode that a schedule forces "
                    f"on model runner V1: between {static} and constant-{tokens} it tells the "
                    "graph mode's cost from the path's",
                )
            )
    return found
