"""The gate on outputs: at temperature 0 speculation must not change what the server says.

The same prompts go to every launch, up through every band of the schedules and down again, while
requests of different lengths join and leave. Batches change rounding, so two launches of one arm
may differ too, where two tokens are almost equally likely. How often they do is the tolerance:
measured between launches of ``none``; where only one of it counts, between launches of the
incumbent, which serves now. Relaunches without a difference do not show that there never is one,
so a launch fails only when chance can no longer make its prompts the ones that differ (Fisher's
exact test). Each launch is held against it band by band: a fault in a small band, or of one launch,
is not lost among the others.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

from specschedule.core.compare import INCUMBENT, NONE
from specschedule.core.evidence import Launch, Outputs
from specschedule.core.gate import Gate, fails, passes, unknown

CHANCE = 0.01
"""Chance that a launch which differs no more often than relaunches do is taken for a faulty one."""

NOT_REPEATABLE = 0.25
"""Relaunches that differ in a larger share of the prompts tell nothing about another arm."""

GATE = "outputEquivalence"


class Answers(NamedTuple):
    """The outputs of one launch."""

    launch: Launch
    outputs: Outputs
    steps: list[list[int]]


class Difference(NamedTuple):
    """Where a launch says something else than others."""

    launch: int
    """Number of the launch."""
    prompts: int
    """Prompts compared."""
    differing: float
    """Prompts that differ, a mean over the launches it is compared with."""
    first: str
    """The first one that differs, for people."""


class Relaunches(NamedTuple):
    """How often launches of one arm differ among each other."""

    arms: str
    """Arms that were launched more than once."""
    launches: int
    """Launches compared."""
    prompts: int
    """Prompts compared: those of every launch but the first."""
    differing: int
    """Prompts of them that differ."""

    @property
    def share(self) -> float:
        """Share of prompts that differ."""
        return self.differing / self.prompts

    def __str__(self) -> str:
        return (
            f"{self.launches} launches of {self.arms} differ among each other in {self.share:.1%} "
            f"of them (n = {self.prompts})"
        )

    def allow(self, prompts: int) -> int:
        """Return how many of some prompts may differ at most by chance alone."""
        allowed = 0
        while allowed < prompts and self._chance(prompts, allowed + 1) >= CHANCE:
            allowed += 1
        return allowed

    def _chance(self, prompts: int, differing: int) -> float:
        """Return the chance that so many of the differing prompts, or more, are among these."""
        both = self.differing + differing
        ways = sum(
            comb(prompts, here) * comb(self.prompts, both - here)
            for here in range(differing, min(prompts, both) + 1)
        )
        return ways / comb(self.prompts + prompts, both)


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
    relaunches = _relaunches(ours, reference)
    if relaunches is not None and relaunches.share > NOT_REPEATABLE:
        return unknown(
            GATE,
            "OutputNotRepeatable",
            f"{relaunches}: outputs of this server cannot be compared",
        )
    wrong: list[str] = []
    noted: list[str] = []
    allowed: list[str] = []
    for where, prompts in _groups(reference):
        most = relaunches.allow(len(prompts)) if relaunches else 0
        allowed.append(f"{most} of {len(prompts)} {where}")
        for arm in dict.fromkeys(each.launch.arm for each in ours):
            worst = max(
                (_difference(each, reference, prompts) for each in ours if each.launch.arm == arm),
                key=lambda found: found.differing,
            )
            if not worst.differing:
                continue
            judged = wrong if arm in candidates and round(worst.differing) > most else noted
            judged.append(
                f"{arm} launch {worst.launch} in {worst.differing:g} of {worst.prompts} prompts "
                f"{where} ({worst.first})"
            )
    if wrong and relaunches is None:
        return unknown(
            GATE,
            "NoRelaunchToCompare",
            f"output differs from {NONE} at temperature 0: {'; '.join(wrong)}; no two launches of "
            "one arm show how often that happens without a fault",
        )
    tolerance = "no arm was launched twice"
    if relaunches is not None:
        tolerance = f"{relaunches}, so by chance may differ up to {', '.join(allowed)}"
    besides = f"; not the same, and no fault of a candidate: {'; '.join(noted)}" if noted else ""
    if wrong:
        return fails(
            GATE,
            "OutputDiffers",
            f"output differs from {NONE} at temperature 0: {'; '.join(wrong)}; {tolerance}"
            f"{besides}",
        )
    said = (
        f"output at temperature 0 is that of {NONE} within the tolerance, on "
        f"{len(reference[0].outputs.answers)} prompts; {tolerance}{besides}"
    )
    return passes(GATE, said, "HoldsWithNotes" if noted else "Holds")


def _answers(launch: Launch) -> Answers | None:
    for cell in launch.cells:
        if cell.void is None and cell.outputs is not None and cell.profile.steps is not None:
            return Answers(launch, cell.outputs, cell.profile.steps)
    return None


def _relaunches(ours: Sequence[Answers], reference: Sequence[Answers]) -> Relaunches | None:
    """Return how often launches of one arm differ; None where no arm was launched twice."""
    same = reference
    if len(same) < 2:
        same = [each for each in ours if each.launch.arm == INCUMBENT]
    if len(same) < 2:
        return None
    everything = range(len(same[0].outputs.answers))
    pairs = list(combinations(same, 2))
    # Pairs share launches: there is no more to learn from them than from one launch less.
    differing = sum(_difference(one, [other], everything).differing for one, other in pairs)
    prompts = len(everything) * (len(same) - 1)
    return Relaunches(
        arms=" and ".join(dict.fromkeys(each.launch.arm for each in same)),
        launches=len(same),
        prompts=prompts,
        differing=round(prompts * differing / (len(pairs) * len(everything))),
    )


def _groups(reference: Sequence[Answers]) -> list[tuple[str, list[int]]]:
    """Return the prompts by the number in flight that they were sent into, and all of them."""
    levels: dict[int, list[int]] = {}
    at = 0
    for level, prompts in reference[0].steps:
        levels.setdefault(level, []).extend(range(at, at + prompts))
        at += prompts
    groups = [(f"at {level} in flight", prompts) for level, prompts in levels.items()]
    return [*groups, ("in all", list(range(at)))] if len(groups) > 1 else groups


def _difference(one: Answers, others: Sequence[Answers], prompts: Sequence[int]) -> Difference:
    differing = [
        (other.outputs, prompt)
        for other in others
        for prompt in prompts
        if one.outputs.answers[prompt] != other.outputs.answers[prompt]
    ]
    first = _first_unit(one.outputs, *differing[0]) if differing else ""
    return Difference(one.launch.launch, len(prompts), len(differing) / len(others), first)


def _first_unit(ours: Outputs, theirs: Outputs, prompt: int) -> str:
    """Say where two answers part."""
    said, expected = ours.units(prompt), theirs.units(prompt)
    shorter = min(len(said), len(expected))
    at = next((i for i in range(shorter) if said[i] != expected[i]), shorter)
    ends = [units[at] if at < len(units) else "the end" for units in (said, expected)]
    return f"first in prompt {prompt + 1}, {ours.unit} {at + 1}: {ends[0]} instead of {ends[1]}"
