"""``specschedule watch``: a run in the terminal, live until its outcome."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from specschedule.adapters.kubernetes import read_schedule
from specschedule.cli.live import Screen
from specschedule.cli.output import BadInput
from specschedule.ports import Unavailable


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
    screen = Screen()
    began = time.monotonic()
    while True:
        seen = status()
        screen.show(seen)
        outcome: str | None = seen.get("outcome")
        if outcome:
            return outcome
        if timeout is not None and time.monotonic() - began > timeout:
            return None
        time.sleep(every)
