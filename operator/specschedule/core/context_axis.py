"""Five-number rows on an engine that takes three: a scheduler of ours follows them.

The engine is started with rows that name every K, so that it prepares for each, and
``engine/context.py`` looks up in the candidate's table which of them a step drafts. Where serving
has no such scheduler, launches bring it along, and a candidate that wins this way is proposed and
never promoted. Where the target's own arguments name it, the table is one of them too
(``vllm_facts/by_context.py``): then its rows are a schedule like any other.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from specschedule.core.evidence import Cell, Launch
from specschedule.core.schedule import (
    ROWS,
    TABLE_KEY,
    EffectiveTable,
    additional_config,
    effective,
)
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from specschedule.core.versions import numbers, version_of_image

CLASS = "specschedule.engine.context.EitherContextScheduler"
"""The scheduler, as --scheduler-cls names it."""

FOLLOWED_IN = ((0, 32),)
"""Releases of vLLM in which it was seen to set K at every step (``tests/engine``)."""


def every_k(max_tokens: int, max_num_seqs: int) -> list[list[int]]:
    """Return rows that name every K, so that the engine of a scheduler of ours prepares for each.

    Args:
        max_tokens: Largest K.
        max_num_seqs: Largest batch size; with fewer than there are Ks, the smallest are left out.
    """
    ks = list(range(max_tokens, -1, -1))[:max_num_seqs]
    rows = [[at, at, k] for at, k in enumerate(ks, start=1)]
    rows[-1][1] = max_num_seqs
    return rows


def by_context(rows: Sequence[Sequence[int]] | None) -> bool:
    """Say whether rows choose K by context too."""
    return any(len(row) == 5 for row in rows or ())


def has_own(server: ServerFacts) -> bool:
    """Say whether the server's own arguments name the scheduler: then they bring the table too."""
    return server.scheduler_class == CLASS


def foreign_scheduler(server: ServerFacts) -> str | None:
    """Return the scheduler that the server names where it is none of ours, which stays then."""
    return None if has_own(server) else server.scheduler_class


class Follower(NamedTuple):
    """Whether our scheduler follows five-number rows in the launches of a target."""

    server: ServerFacts
    """The target's server."""
    delivered: bool
    """Whether launches can carry a scheduler of ours."""
    version: str | None = None
    """vLLM's version, where it is known otherwise than from the image's tag."""

    def cannot(self, max_tokens: int) -> str | None:
        """Say why it cannot; None where it can.

        Where the version is not known before a launch the scheduler decides: it ends the boot of
        an engine in which it finds no place to set K.

        Args:
            max_tokens: Largest K of the rows.
        """
        if not has_own(self.server) and (why := self._not_brought()) is not None:
            return why
        if self.server.max_num_seqs <= max_tokens:
            return f"max_num_seqs {self.server.max_num_seqs} is too small for rows of every K"
        return None

    def _not_brought(self) -> str | None:
        """Say why launches cannot bring it along."""
        server, version = self.server, self.version or version_of_image(self.server.image)
        if not self.delivered:
            return "launches here carry nothing of ours"
        if theirs := foreign_scheduler(server):
            return f"the server has a --scheduler-cls of its own, {theirs}"
        if version is not None and numbers(version)[:2] not in FOLLOWED_IN:
            known = ", ".join(".".join(map(str, each)) for each in FOLLOWED_IN)
            return f"our context-axis scheduler is known to work in vLLM {known}, not in {version}"
        return None

    def brought(self, rows: Sequence[Sequence[int]] | None, max_tokens: int) -> bool:
        """Say whether a launch with some rows, of this largest K, brings it along."""
        return by_context(rows) and not has_own(self.server) and self.cannot(max_tokens) is None

    def booted(self, tables: Mapping[str, EffectiveTable]) -> dict[str, EffectiveTable]:
        """Return what the engine itself is started with, for each candidate's table."""
        found = {}
        for name, table in tables.items():
            limits = {"max_tokens": table.max_tokens, "max_num_seqs": table.max_num_seqs}
            ours = table.contexts is not None and self.cannot(table.max_tokens) is None
            found[name] = effective(every_k(**limits), **limits) if ours else table
        return found

    def told(self, tables: Mapping[str, EffectiveTable]) -> list[str]:
        """Say of each candidate with five-number rows who follows them."""
        said = {
            name: self.cannot(table.max_tokens)
            for name, table in tables.items()
            if table.contexts is not None
        }
        own = has_own(self.server)
        serving = "as it does in serving" if own else "and serving would need it too"
        return [
            f"{name}: our context-axis scheduler follows its rows, {serving}"
            if why is None
            else f"{name}: the engine itself must follow its rows: {why}"
            for name, why in said.items()
        ]


def serving_needs(spec: Spec, name: str, launches: Sequence[Launch]) -> str:
    """Say what serving needs for a winner beside its argument; empty where that is all.

    Args:
        spec: The question.
        name: The candidate that won.
        launches: Launches of the run.
    """
    if not any(each.context_axis for each in launches if each.arm == f"candidate-{name}"):
        return ""
    won = next(each for each in spec.candidates if each.name == name)
    table = json.dumps(additional_config(won.schedule))
    return (
        f"{name}: serve with num_speculative_tokens {won.largest_tokens} and three-number rows of "
        f"every K, --scheduler-cls {CLASS}, --additional-config '{table}', and on PYTHONPATH the "
        "FOLDER that `python -m specschedule.engine.deliver FOLDER` lays out; or with an engine "
        "that takes five-number rows. Where the target names this scheduler, such a winner is "
        "promoted"
    )


def scheduled_by_ours(launch: Launch, server: ServerFacts) -> bool:
    """Say whether the context-axis scheduler follows a launch's rows by context.

    Args:
        launch: The launch.
        server: The target's server.
    """
    return launch.context_axis or (has_own(server) and by_context(launch.schedule))


def left_behind(server: ServerFacts) -> str:
    """Say what else to take away where a server is to follow no rows by context any more."""
    if not has_own(server) or not by_context((server.speculative or {}).get(ROWS)):
        return ""
    return f", and take {TABLE_KEY} out of --additional-config"


def mixed(cells: Iterable[Cell]) -> list[str]:
    """Say which contexts stand for windows whose requests have several."""
    told = {
        (cell.profile.concurrency, cell.context): cell.profile.contexts
        for cell in cells
        if cell.profile.contexts is not None
    }
    return [
        f"context {context} at {at} in flight stands for requests with prompts of "
        f"{', '.join(map(str, prompts))} tokens in turn: the engine looks at their mean"
        for (at, context), prompts in told.items()
    ]
