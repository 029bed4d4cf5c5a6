"""A run in the terminal: one screen of text from a SpecSchedule's status.

Pure: status and the time go in, lines come out.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


def render(status: Mapping[str, Any], now: float) -> list[str]:
    """Return the lines that show where a run is.

    Args:
        status: ``.status`` of a SpecSchedule, possibly still empty.
        now: Unix seconds, for the time left.
    """
    if not status:
        return ["no status yet: is the operator running?"]
    lines = [_headline(status, now)]
    message = status.get("message")
    if message:
        lines.append(f"  {message}")
    arms = status.get("arms") or []
    if arms:
        lines.extend(_table(arms))
    if not status.get("outcome"):
        lines.extend(_so_far(status))
    return lines


def _headline(status: Mapping[str, Any], now: float) -> str:
    outcome = status.get("outcome")
    reason = status.get("reason", "")
    if outcome:
        return f"{outcome} ({reason})"
    stage = status.get("stage", "?")
    parts = [stage if reason == stage else f"{stage}: {reason}"]
    progress = status.get("progress") or {}
    if progress.get("launchesPlanned"):
        parts.append(f"{progress['launchesDone']} of {progress['launchesPlanned']} launches")
    left = time_left(status, now)
    if left is not None:
        about = "about" if progress.get("launchesDone") else "at most"
        parts.append(f"{about} {max(1, round(left / 60))} min left")
    return ", ".join(parts)


def time_left(status: Mapping[str, Any], now: float) -> float | None:
    """Return seconds to the end of the measuring, from the launches done so far or the plan."""
    progress = status.get("progress") or {}
    started = status.get("startedAt")
    planned = progress.get("launchesPlanned", 0)
    if not started or not planned:
        return None
    elapsed: float = now - datetime.fromisoformat(started).timestamp()
    done: int = progress.get("launchesDone", 0)
    if done:
        return elapsed / done * int(planned - done)
    minutes = (status.get("plan") or {}).get("minutes")
    return max(0.0, minutes * 60 - elapsed) if minutes else None


def _table(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    points = sorted({g["at"] for arm in arms for g in arm.get("goodput") or []})
    width = max(len(arm["arm"]) for arm in arms)
    head = f"  {'arm':<{width}}  launches  cells"
    head += "".join(f"  {f'good/s at {point}':>13}" for point in points)
    lines = [head]
    for arm in arms:
        by_point = {g["at"]: g for g in arm.get("goodput") or []}
        line = f"  {arm['arm']:<{width}}  {arm['launches']:>8}  {arm['cells']:>5}"
        for point in points:
            value = by_point.get(point)
            line += f"  {value['perSecond']:>13.3f}" if value else f"  {'-':>13}"
        lines.append(line)
        told = [*_decode(arm), *(f"! {fault}" for fault in arm.get("faults") or [])]
        lines.extend(f"  {'':<{width}}  {text}" for text in told)
    return lines


def _decode(arm: Mapping[str, Any]) -> list[str]:
    """Return how fast one stream decodes, a line for each load point."""
    by_load: dict[int, list[str]] = {}
    for rate in arm.get("decode") or []:
        what = rate["category"] if "category" in rate else f"depth {rate['depth']}:"
        by_load.setdefault(rate["at"], []).append(f"{what} {rate['tokensPerSecond']:.4g}")
    return [f"tokens/s of one stream at {at}: {', '.join(said)}" for at, said in by_load.items()]


def _so_far(status: Mapping[str, Any]) -> list[str]:
    """Return the noise seen, and what each requirement of the bar has shown and still needs."""
    floors = [
        f"{_place(floor)} {floor['floor']:.1%} (n = {floor['count']})"
        for floor in status.get("noiseFloor") or []
    ]
    lines = [f"  noise floor: {', '.join(floors)}"] if floors else []
    for verdict in status.get("verdict") or []:
        lines.extend(
            f"  {verdict['candidate']}: {bar['answer']}: {bar['message']}"
            for bar in verdict.get("bars") or []
            if bar["kind"] != "elsewhere" or bar["answer"] == "Lost"
        )
    return lines


def _place(floor: Mapping[str, Any]) -> str:
    if floor.get("trace"):
        load = "trace"
    elif "requestsPerSecond" in floor:
        load = f"{floor['requestsPerSecond']:g} requests/s"
    else:
        load = f"{floor['at']}"
    category = f", {floor['category']}" if "category" in floor else ""
    context = f", context {floor['context']}" if "context" in floor else ""
    return f"{floor['metric']} at {load}{category}{context}"
