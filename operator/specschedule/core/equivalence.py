"""The gate on outputs: at temperature 0 speculation must not change what the server says.

The same prompts go to every launch, up through every band of the schedules and down again, while
requests of different lengths join and leave. Batches change rounding, so two launches of one arm
may differ too, where two tokens are almost equally likely. How often they do is the tolerance:
measured between launches of ``none``; where only one of it counts, between launches of the
incumbent, which serves now. Prompts are compared band by band, so that a fault in a small band is
not lost among the others.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import comb
from typing import NamedTuple

from specschedule.core.compare import INCUMBENT, NONE
from specschedule.core.evidence import Launch, Outputs
from specschedule.core.gate import Gate, fails, passes, unknown

CHANCE = 0.01
"""Chance that an arm which differs no more often than relaunches do is taken for a faulty one."""

NOT_REPEATABLE = 0.25
"""Relaunches that differ in a larger share of the prompts tell nothing about another arm."""

GATE = "outputEquivalence"


class Answers(NamedTuple):
    """The outputs of one launch."""

    launch: Launch
    outputs: Outputs
    steps: list[list[int]]


class Difference(NamedTuple):
    """Where two launches say something else."""

    prompts: int
    """Prompts compared."""
    differing: float
    """Prompts that differ, a mean over pairs of launches."""
    first: str
    """The first one that differs, for people."""


def output_equivalence(drafting: Sequence[Launch], without: Sequence[Launch]) -> Gate:
    """Hold the candidates' output at temperature 0 against output without speculation.

    Args:
        drafting: Launches that count and speculate.
        without: Launches that count and do not.
    """
    ours = [told for each in drafting if (told := _answers(each))]
    reference = [told for each in without if (told := _answers(each))]
    candidates = {each.arm for each in drafting if each.arm.startswith("candidate-")}
    silent = sorted(candidates - {each.launch.arm for each in ours})
    if silent or not (candidates and reference):
        arms = ", ".join(silent) or (NONE if candidates else "a candidate")
        return unknown(GATE, "NotCompared", f"no counted launch of {arms} tells its outputs")
    asked = {
        (each.outputs.prompts, each.outputs.unit, len(each.outputs.answers))
        for each in [*ours, *reference]
    }
    if len(asked) > 1:
        return unknown(
            GATE,
            "PromptsDiffer",
            "the launches did not get the same prompts, or tell their outputs in different ways; "
            "keep load.prompts as it is during a run",
        )
    share, tolerance = _relaunches(ours, reference)
    if share is not None and share > NOT_REPEATABLE:
        return unknown(
            GATE,
            "OutputNotRepeatable",
            f"{tolerance}: outputs of this server cannot be compared",
        )
    wrong: list[str] = []
    noted: list[str] = []
    for arm in dict.fromkeys(each.launch.arm for each in ours):
        of_arm = [each for each in ours if each.launch.arm == arm]
        for at, found in _by_level(of_arm, reference):
            if found.differing > _allowed(found.prompts, share or 0.0):
                judged = wrong if arm in candidates else noted
                judged.append(
                    f"{arm} in {found.differing:g} of {found.prompts} prompts at {at} in flight "
                    f"({found.first})"
                )
    if wrong and share is None:
        return unknown(
            GATE,
            "NoRelaunchToCompare",
            f"output differs from {NONE} at temperature 0: {'; '.join(wrong)}; no two launches of "
            "one arm show how often that happens without a fault",
        )
    if wrong:
        return fails(
            GATE,
            "OutputDiffers",
            f"output differs from {NONE} at temperature 0: {'; '.join(wrong)}; {tolerance}",
        )
    prompts = len(reference[0].outputs.answers)
    highest = max(level for level, _ in reference[0].steps)
    said = (
        f"output at temperature 0 is that of {NONE} within the tolerance, on {prompts} prompts at "
        f"1 to {highest} in flight; {tolerance}"
    )
    if noted:
        return passes(GATE, f"{said}; not so {'; '.join(noted)}", "HoldsWithNotes")
    return passes(GATE, said)


def _answers(launch: Launch) -> Answers | None:
    for cell in launch.cells:
        if cell.void is None and cell.outputs is not None and cell.profile.steps is not None:
            return Answers(launch, cell.outputs, cell.profile.steps)
    return None


def _relaunches(ours: Sequence[Answers], reference: Sequence[Answers]) -> tuple[float | None, str]:
    """Return in which share of prompts launches of one arm differ, and the same for people."""
    same = reference
    if len(same) < 2:
        same = [each for each in ours if each.launch.arm == INCUMBENT]
    pairs = list(combinations(same, 2))
    if not pairs:
        return None, "no arm was launched twice, so any difference counts"
    found = _difference(pairs, range(len(same[0].outputs.answers)))
    arms = " and ".join(dict.fromkeys(each.launch.arm for each in same))
    share = found.differing / found.prompts
    return share, f"{len(same)} launches of {arms} differ among each other in {share:.1%} of them"


def _by_level(
    ours: Sequence[Answers], reference: Sequence[Answers]
) -> Iterator[tuple[int, Difference]]:
    """Yield each number in flight and what differs among the prompts sent into it."""
    levels: dict[int, list[int]] = {}
    at = 0
    for level, prompts in reference[0].steps:
        levels.setdefault(level, []).extend(range(at, at + prompts))
        at += prompts
    pairs = list(product(ours, reference))
    for level, prompts_of_level in levels.items():
        yield level, _difference(pairs, prompts_of_level)


def _difference(pairs: Sequence[tuple[Answers, Answers]], prompts: Sequence[int]) -> Difference:
    differing = [
        (one.outputs, other.outputs, prompt)
        for one, other in pairs
        for prompt in prompts
        if one.outputs.answers[prompt] != other.outputs.answers[prompt]
    ]
    first = _first_unit(*differing[0]) if differing else ""
    return Difference(len(prompts), len(differing) / len(pairs), first)


def _first_unit(ours: Outputs, theirs: Outputs, prompt: int) -> str:
    """Say where two answers part."""
    said, expected = ours.units(prompt), theirs.units(prompt)
    shorter = min(len(said), len(expected))
    at = next((i for i in range(shorter) if said[i] != expected[i]), shorter)
    ends = [units[at] if at < len(units) else "the end" for units in (said, expected)]
    return f"first in prompt {prompt + 1}, {ours.unit} {at + 1}: {ends[0]} instead of {ends[1]}"


def _allowed(prompts: int, share: float) -> int:
    """Return how many of some prompts differ at most, by chance alone, at a share of them."""
    below = 0.0
    for differing in range(prompts):
        below += comb(prompts, differing) * share**differing * (1 - share) ** (prompts - differing)
        if below >= 1 - CHANCE:
            return differing
    return prompts
