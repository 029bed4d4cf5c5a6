"""``specschedule watch``: a run in the terminal, live until its outcome."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from specschedule.adapters.kubernetes import read_schedule
from specschedule.cli.output import BadInput
from specschedule.ports import Unavailable
from specschedule.report.terminal import render

QUIET_S = 15.0
"""Without a terminal, an unchanged screen is repeated this often at most."""


@click.command("watch", help="Follow a run in the terminal until its outcome.")
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="Its namespace.")
@click.option("--timeout", default=None, type=float, help="Give up after this many seconds.")
def command(name: str, namespace: str, timeout: float | None) -> None:
    """Exit 0 at an outcome, 1 when the time ran out first."""

    def status() -> Mapping[str, Any]:
        try:
            found = read_schedule(namespace, name)
        except Unavailable as error:
            raise BadInput(f"specschedule {namespace}/{name} cannot be read: {error}") from error
        if found is None:
            raise BadInput(f"specschedule {namespace}/{name}: not found")
        return found.get("status") or {}

    if follow(status, timeout=timeout) is None:
        raise SystemExit(1)


def follow(
    status: Callable[[], Mapping[str, Any]], *, timeout: float | None = None, every: float = 1.0
) -> str | None:
    """Show a status until it has an outcome; return the outcome, or None at the time-out."""
    live = sys.stdout.isatty()
    began = time.monotonic()
    shown: list[str] = []
    shown_at = 0.0
    while True:
        seen = status()
        lines = render(seen, time.time())
        if live:
            if shown:
                click.echo(f"\x1b[{len(shown)}F\x1b[J", nl=False)
            click.echo("\n".join(lines))
            shown = lines
        elif lines != shown and (not shown or lines[3:] != shown[3:] or _due(shown_at)):
            click.echo("\n".join(lines))
            shown, shown_at = lines, time.monotonic()
        outcome: str | None = seen.get("outcome")
        if outcome:
            if not live and shown != lines:
                click.echo("\n".join(lines))
            return outcome
        if timeout is not None and time.monotonic() - began > timeout:
            return None
        time.sleep(every)


def _due(shown_at: float) -> bool:
    return time.monotonic() - shown_at >= QUIET_S
