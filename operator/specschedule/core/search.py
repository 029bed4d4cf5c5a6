"""The search of a run: which screening launches to start, and what they give to test.

A function of the launches so far, so a restarted operator goes on where it was. A probe needs the
engine plugins in its pod and the scheduler of its own; where it cannot be, one launch for each K
tells as much and costs more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specschedule.core.arms import Arm, can_verify_adaptively
from specschedule.core.budget import Cost, with_screen
from specschedule.core.compare import NONE
from specschedule.core.context_axis import Follower, by_context, every_k, foreign_scheduler
from specschedule.core.controls import argument
from specschedule.core.cost import Setting
from specschedule.core.device import device_times
from specschedule.core.evidence import Cell, Launch
from specschedule.core.launches import NOT_SWITCHED
from specschedule.core.plan import MAX_ATTEMPTS, LaunchRecord, Slot, Start
from specschedule.core.proposal import Proposal, Proposals, Proposed, kept
from specschedule.core.regime import ServingRegime, weights
from specschedule.core.schedule import ROWS, effective, speculative_config
from specschedule.core.screening import (
    PROBE,
    fixed_arm,
    fixed_tokens,
    launch_windows,
    search,
)
from specschedule.core.spec import Candidate, Effort, SearchLimits, Spec, digest_of
from specschedule.core.stand_in import stand_in
from specschedule.core.target import ServerFacts, TargetFacts
from specschedule.core.tuner import NothingMeasured, propose
from specschedule.core.values import Value
from specschedule.core.view import Search
from specschedule.core.visit import Screen
from specschedule.core.windows import Contexts

MOST_CANDIDATES = 3
"""Proposals that are tested at most, each only if the one before fails."""

_CUT = {
    "accepted_by_position": None,
    "prefix_cache": None,
    "send_lag_ms_p99": None,
    "in_flight_exact": None,
    "started_at": None,
    "notes": None,
    "outputs": None,
}
"""What a later window is not chosen by; a visit's plan travels in one environment variable."""


class Found(Value):
    """What a search comes to."""

    candidates: list[Candidate] = []
    """What to test, in order; empty where nothing is worth it."""
    instead: str | None = None
    """What no schedule is predicted to beat, such as static-3; None where nothing was measured."""
    recommendation: str | None = None
    """The same with its argument, where the target does not serve so already."""
    why: str
    """The same for people."""


@dataclass(frozen=True)
class Look:
    """One look at the search of a run."""

    asked: Spec
    """The question, with its search."""
    spec: Spec
    """The question with what was found as its candidates; with a stand-in before."""
    arms: Sequence[Arm]
    """Arms of the screen."""
    wanted: Start | None
    """Launches to start now; None when the screen is over."""
    proposals: Proposals | None = None
    """What the screen proposes; None before it is over, and where nothing was measured."""
    found: Found | None = None
    """What follows from it; None before the screen is over."""
    contexts: Contexts = field(default_factory=dict)
    """What Confirm holds by context; empty where no candidate has rows by context."""

    def with_cost(self, confirm: Cost, target: TargetFacts) -> Cost:
        """Return what the run costs, screen included."""
        both = [arm for arm in self.arms if arm.name in (PROBE, NONE)]
        screened = both if len(both) == 2 else self.arms
        assert isinstance(target.server, ServerFacts)
        wanted = _search(self.asked, _described(self.asked, target.server, []))
        return with_screen(
            confirm,
            self.asked,
            [(arm, launch_windows(wanted, arm.name)) for arm in screened],
            boot=target.boot_seconds,
            gpus=target.gpus,
        )


def look(
    asked: Spec,
    server: ServerFacts,
    done: Sequence[LaunchRecord],
    *,
    uid: str,
    run: str,
    probes: bool = True,
    serving: ServingRegime | None = None,
    proposed: Proposals | None = None,
) -> Look:
    """Look at a search.

    Args:
        asked: The question, with a search.
        server: The target's server, as it was when the run began.
        done: Every screening launch of the run so far, running ones too.
        uid: UID of the object; with the run and the launch it makes the probe's secret.
        run: Run id.
        probes: Whether a launch can carry a scheduler of ours.
        serving: What the serving pods did when the run began; None where nobody told.
        proposed: What the run proposed, where that is on record.
    """
    arms = screening_arms(asked, server, probes=probes)
    if proposed is None:
        wanted = next_screens(asked, server, arms, done, uid=uid, run=run, serving=serving)
        if wanted is not None:
            return Look(asked, stand_in(asked, server), arms, wanted)
        try:
            proposed = kept(proposals(asked, server, done, serving=serving))
        except NothingMeasured as error:
            why = f"the screen measured nothing that can be used: {_faults(done) or error}"
            return Look(asked, stand_in(asked, server), arms, None, found=Found(why=why))
    found = found_in(asked, Follower(server, probes, _version(done)), proposed)
    spec = tested(asked, proposed, found) if found.candidates else stand_in(asked, server)
    held = _held(asked, server, done) if any(map(_by_context, found.candidates)) else {}
    return Look(asked, spec, arms, None, proposed, found, held)


def _held(spec: Spec, server: ServerFacts, done: Sequence[Launch]) -> Contexts:
    """Return the contexts of a search that the server can hold, by load point."""
    wanted, limits = _search(spec, _described(spec, server, done)), _limits(spec)
    return {
        at: [
            context
            for context in limits.contexts
            if wanted.possible(Setting(min(at, server.max_num_seqs), limits.max_tokens, context))
        ]
        for at in spec.load.points
    }


def _by_context(candidate: Candidate) -> bool:
    return by_context(candidate.schedule)


def _faults(done: Sequence[LaunchRecord]) -> str:
    said = [f"{each.arm}: {each.failed or each.void}" for each in done if not _well(each)]
    return "; ".join(said[-2:])


def screening_arms(spec: Spec, server: ServerFacts, *, probes: bool) -> list[Arm]:
    """Return the arms of a screen: the probe, the launch without speculation, then one per K.

    Args:
        spec: The question, with a search.
        server: The target's server.
        probes: Whether a launch can carry a scheduler of ours.
    """
    base = _base(spec, server)
    most, largest = _limits(spec).max_tokens, server.max_num_seqs
    fixed = [
        Arm(
            name=fixed_arm(tokens),
            speculative=speculative_config(
                base, max_tokens=tokens or most, rows=[[1, largest, tokens]]
            ),
            schedule=[[1, largest, tokens]],
            max_num_seqs=largest,
            why=f"K={tokens} at every batch size, where K cannot be switched in one launch",
        )
        for tokens in range(most + 1)
    ]
    none = Arm(name=NONE, max_num_seqs=largest, why="no speculation: what a schedule must beat")
    if not probes or foreign_scheduler(server) or largest <= most:
        return [none, *fixed]
    rows = every_k(most, largest)
    probe = Arm(
        name=PROBE,
        speculative=speculative_config(base, max_tokens=most, rows=rows),
        schedule=rows,
        max_num_seqs=largest,
        why="the whole sweep in one boot: K switches between short windows",
    )
    return [probe, none, *fixed]


def next_screens(
    spec: Spec,
    server: ServerFacts,
    arms: Sequence[Arm],
    done: Sequence[LaunchRecord],
    *,
    uid: str,
    run: str,
    serving: ServingRegime | None = None,
) -> Start | None:
    """Say which screening launches to start now; None when the screen is over.

    Args:
        spec: The question, with a search.
        server: The target's server.
        arms: What ``screening_arms`` gave.
        done: Every screening launch of the run so far, running ones too.
        uid: UID of the object; with the run and the launch it makes the probe's secret.
        run: Run id.
        serving: What the serving pods did when the run began; None where nobody told.
    """
    wanted = [arm.name for arm in arms if arm.name in (PROBE, NONE)]
    if PROBE not in wanted or _cannot_probe(done):
        wanted = [arm.name for arm in arms if arm.name != PROBE]
    missing = [name for name in wanted if _needed(name, done)]
    running = [record for record in done if not record.over]
    if not missing and not running:
        return None
    free = max(0, spec.experiment.parallelism - len(running))
    last = max((record.launch for record in done), default=0)
    busy = {record.arm for record in running}
    return Start(
        slots=[
            Slot(
                arm=name,
                launch=last + at,
                round=0,
                position=at,
                attempt=1 + sum(record.arm == name for record in done),
                windows=[],
                screen=_screen(
                    spec, server, name, done, launch=f"{uid}/{run}/{last + at}", serving=serving
                ),
            )
            for at, name in enumerate((m for m in missing if m not in busy), start=1)
            if at <= free
        ]
    )


def _cannot_probe(done: Sequence[LaunchRecord]) -> bool:
    """Say whether probes are given up: one that never measured anything, or died too often."""
    probes = [record for record in done if record.arm == PROBE and record.over]
    failed = [record for record in probes if record.failed is not None]
    hopeless = (not _counted(each) or _not_switched(each) for each in failed)
    return any(hopeless) or (
        len(probes) >= MAX_ATTEMPTS and not any(_well(record) for record in probes)
    )


def _needed(name: str, done: Sequence[LaunchRecord]) -> bool:
    """Say whether an arm wants one more launch."""
    own = [record for record in done if record.arm == name]
    if any(_well(record) or not record.over for record in own) or len(own) >= MAX_ATTEMPTS:
        return False
    # The fault of a plain server is its own; a probe that died under way goes on where it was.
    return name == PROBE or all(record.failed is None for record in own)


def _well(record: LaunchRecord) -> bool:
    return record.over and record.void is None and record.failed is None


def _not_switched(record: Launch) -> bool:
    return (record.failed or "").startswith(NOT_SWITCHED)


def _counted(record: LaunchRecord) -> list[Cell]:
    return [cell for cell in record.cells if cell.void is None]


def _screen(
    spec: Spec,
    server: ServerFacts,
    arm: str,
    done: Sequence[LaunchRecord],
    *,
    launch: str,
    serving: ServingRegime | None,
) -> Screen:
    own = [record for record in done if record.arm == arm]
    return _described(spec, server, own, serving).model_copy(
        update={
            "tokens": fixed_tokens(arm),
            "secret": digest_of(["probe", launch])[:32] if arm == PROBE else None,
            "done": [cell.model_copy(update=_CUT) for record in own for cell in record.cells],
        }
    )


def _described(
    spec: Spec,
    server: ServerFacts,
    launches: Sequence[Launch],
    serving: ServingRegime | None = None,
) -> Screen:
    """Return what is searched, within what the server and the receipts of its launches allow."""
    limits = _limits(spec)
    eager = server.enforce_eager or server.graph_mode == "NONE"
    screen = Screen(
        batch_sizes=spec.searched,
        weights=weights(spec.searched, serving) or [],
        contexts=limits.contexts,
        max_tokens=limits.max_tokens,
        max_num_seqs=server.max_num_seqs,
        max_model_len=server.max_model_len,
        graph_sizes=[] if eager else None,
        seed=spec.experiment.seed,
    )
    # Rows end on the graphs of launches that draft, so theirs are told last.
    for launch in sorted(launches, key=lambda each: each.arm != NONE):
        screen = screen.within(launch.receipt)
    return screen


def proposals(
    spec: Spec,
    server: ServerFacts,
    screens: Sequence[Launch],
    *,
    serving: ServingRegime | None = None,
) -> Proposal:
    """Return what the screening launches propose.

    Args:
        spec: The question, with a search.
        server: The target's server.
        screens: Launches of the screen.
        serving: What the serving pods did when the run began; None where nobody told.

    Raises:
        NothingMeasured: No window of theirs can be used.
    """
    wanted = _search(spec, _described(spec, server, screens, serving))
    # What an engine ran that does not do as planned is not known.
    told = [launch for launch in screens if not _not_switched(launch)]
    return propose(
        replace(wanted, unavailable=_unavailable(told)),
        [cell for launch in told for cell in launch.cells],
        adaptive=can_verify_adaptively(_base(spec, server), server, _version(screens)),
        told=[device_times(screens, spec.searched)],
    )


def _version(launches: Sequence[Launch]) -> str | None:
    """Return vLLM's version as launches tell it; None where none does."""
    return next(filter(None, (each.receipt.engine_version for each in launches)), None)


def _unavailable(launches: Sequence[Launch]) -> Mapping[int, str]:
    """Return the Ks whose own launch failed before any window of theirs counted, and why."""
    measured = {
        cell.tokens
        for launch in launches
        for cell in launch.cells
        if launch.arm != NONE and cell.void is None
    }
    return {
        tokens: launch.failed
        for launch in launches
        if launch.failed is not None
        and (tokens := fixed_tokens(launch.arm)) is not None
        and tokens not in measured
    }


def _search(spec: Spec, screen: Screen) -> Search:
    load = spec.load
    return search(
        screen, slo=spec.slo, output_tokens=load.output_tokens, prompt_tokens=load.prompt_tokens
    )


def found_in(spec: Spec, follower: Follower, proposed: Proposals) -> Found:
    """Return what to test of what is proposed.

    Rows by context are tested behind the best rows of three numbers, or alone where a control is as
    good as those; where no scheduler of ours can follow them they are shown only.
    """
    server = follower.server
    rows = [each for each in proposed.proposed if _testable(each, follower)]
    first = next(each for each in proposed.proposed if each.name == proposed.lead)
    if first.kind != "schedule":
        rows = [each for each in rows if by_context(each.schedule) and _gains(each)]
        first = rows[0] if rows else first
    if first.kind != "schedule":
        own = _serves(server, first)
        why = f"the screen predicts that no schedule beats {first.name}"
        if own:
            return Found(instead=first.name, why=f"{why}, which the target serves already")
        return Found(
            instead=first.name,
            recommendation=f"{first.name}: {argument(first.name, spec, server)} (predicted by a "
            "screen, not confirmed)",
            why=f"{why}: {first.why}",
        )
    new = [each for each in rows if not _serves(server, each)][:MOST_CANDIDATES]
    if not new:
        return Found(
            instead=first.name,
            why=f"the screen proposes {first.name}, which the target serves already",
        )
    return Found(
        candidates=[
            Candidate(name=each.name, schedule=each.schedule or [], max_tokens=each.max_tokens)
            for each in new
        ],
        why=f"the screen proposes {', '.join(each.name for each in new)}",
    )


def _testable(proposed: Proposed, follower: Follower) -> bool:
    rows = proposed.schedule or []
    several = len({row[-1] for row in rows}) > 1
    can = not by_context(rows) or follower.cannot(proposed.max_tokens or 1) is None
    return several and proposed.same_as is None and can


def _gains(proposed: Proposed) -> bool:
    """Say whether a proposal is predicted to beat every control that it is compared with."""
    gains = (proposed.over_none, proposed.over_static)
    return all(gain is None or gain.value > 0 for gain in gains)


def tested(spec: Spec, proposed: Proposals, found: Found) -> Spec:
    """Return the question with its candidates; in Quick, with the best static K as a control."""
    spec = spec.testing(found.candidates)
    static = next((each for each in proposed.proposed if each.kind == "static"), None)
    if static is None or spec.experiment.effort is not Effort.QUICK or spec.experiment.static:
        return spec
    experiment = spec.experiment.model_copy(update={"static": [static.max_tokens]})
    return spec.model_copy(update={"experiment": experiment})


def _serves(server: ServerFacts, proposed: Proposed) -> bool:
    """Say whether the target serves what is proposed already."""
    config = server.speculative
    if config is None or proposed.kind == "none":
        return config is None and proposed.kind == "none"
    rows, largest = config.get(ROWS), int(config.get("num_speculative_tokens") or 1)
    if not rows or proposed.schedule is None:
        return not rows and proposed.kind == "static" and proposed.max_tokens == largest
    ours, theirs = (
        effective(table, max_tokens=most, max_num_seqs=server.max_num_seqs).identity
        for table, most in ((proposed.schedule, proposed.max_tokens or 1), (rows, largest))
    )
    return ours == theirs


def _base(spec: Spec, server: ServerFacts) -> dict[str, Any] | None:
    """Return the speculative config that method and drafter are taken from."""
    return server.speculative or (spec.speculative.plain() if spec.speculative else None)


def _limits(spec: Spec) -> SearchLimits:
    assert spec.search is not None
    return spec.search
