"""A picture of an engine's steps over time: what was in them above, what they took below."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

WIDTH, HEIGHT = 1100, 560
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 40
SPLIT = 250
"""Where the lower panel begins."""
COLOURS = {0: "#7f7f7f", 1: "#1f77b4", 2: "#2ca02c", 3: "#d62728", 4: "#9467bd"}
"""By K; beyond, black."""


class Step(Protocol):
    """What is drawn of a step."""

    at: float
    ms: float
    batch: int
    planned: int
    verified: int
    prompt: int


def svg(steps: Sequence[Step], changes: Sequence[float]) -> str:
    """Return the picture.

    Args:
        steps: In order.
        changes: Times, in the steps' clock, at which K changes.
    """
    start, end = steps[0].at, steps[-1].at
    most = max(max(step.batch, step.planned) for step in steps)
    slowest = max(step.ms for step in steps)

    def x(at: float) -> float:
        return LEFT + (at - start) / (end - start) * (WIDTH - LEFT - RIGHT)

    def above(count: float) -> float:
        return SPLIT - 30 - count / most * (SPLIT - 30 - TOP)

    def below(ms: float) -> float:
        return HEIGHT - BOTTOM - ms / slowest * (HEIGHT - BOTTOM - SPLIT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    parts += [_line(x(at), TOP, x(at), HEIGHT - BOTTOM, "#dddddd") for at in changes]
    parts += _axis(x, start, end)
    for count in range(0, most + 1, 2):
        parts.append(_line(LEFT - 4, above(count), LEFT, above(count), "black"))
        parts.append(_text(LEFT - 8, above(count) + 4, str(count), "end"))
    for ms in _ticks(slowest):
        parts.append(_line(LEFT - 4, below(ms), LEFT, below(ms), "black"))
        parts.append(_text(LEFT - 8, below(ms) + 4, f"{ms:g}", "end"))
    parts.append(_stairs([(x(s.at), above(s.batch)) for s in steps], "#555555", 1.2))
    parts.append(_stairs([(x(s.at), above(s.planned)) for s in steps], "#d62728", 2.0))
    for step in steps:
        colour = COLOURS.get(step.verified, "black")
        fill = "none" if step.prompt else colour
        parts.append(
            f'<circle cx="{x(step.at):.1f}" cy="{below(step.ms):.1f}" r="2.6" '
            f'stroke="{colour}" fill="{fill}"/>'
        )
    parts += [
        _text(LEFT, 18, "requests in the step (grey) and K that it plans (red)", "start"),
        _text(
            LEFT,
            SPLIT - 8,
            "milliseconds of the step, coloured by the drafts that a request "
            "verifies in it; hollow: it computes a prompt; grey lines: K changes",
            "start",
        ),
    ]
    for place, k in enumerate(sorted({step.verified for step in steps})):
        left = WIDTH - RIGHT - 60 * (place + 1)
        parts.append(f'<circle cx="{left}" cy="14" r="4" fill="{COLOURS.get(k, "black")}"/>')
        parts.append(_text(left + 8, 18, f"K={k}", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(x: Callable[[float], float], start: float, end: float) -> Iterator[str]:
    for bottom in (SPLIT - 30, HEIGHT - BOTTOM):
        yield _line(LEFT, bottom, WIDTH - RIGHT, bottom, "black")
    yield _line(LEFT, TOP, LEFT, SPLIT - 30, "black")
    yield _line(LEFT, SPLIT, LEFT, HEIGHT - BOTTOM, "black")
    for seconds in range(0, int(end - start) + 1, 5):
        here = x(start + seconds)
        yield _line(here, HEIGHT - BOTTOM, here, HEIGHT - BOTTOM + 4, "black")
        yield _text(here, HEIGHT - BOTTOM + 18, f"{seconds} s", "middle")


def _ticks(most: float) -> list[float]:
    """Return round values from 0 up to the largest, five or so."""
    rough = most / 5
    unit = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 1.0
    step = next(unit * each for each in (1, 2, 5, 10) if unit * each >= rough)
    return [step * each for each in range(int(most / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _stairs(points: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    """A line that stays level from each point to the next."""
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    path += [f"H{x:.1f} V{y:.1f}" for x, y in points[1:]]
    return f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
