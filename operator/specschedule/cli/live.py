"""A run on a screen that renews itself, or line by line where there is no terminal."""

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import click

from specschedule.report.terminal import render

QUIET_S = 15.0
"""Without a terminal, an unchanged screen is repeated this often at most."""


class Screen:
    """Shows the status of a run again and again."""

    def __init__(self, file: TextIO | None = None) -> None:
        """Make a screen on a file; standard output by default."""
        self._file = file or sys.stdout
        self._live = self._file.isatty()
        self._shown: list[str] = []
        self._shown_at = 0.0

    def show(self, status: Mapping[str, Any]) -> None:
        """Show where a run is. Its outcome is always shown."""
        lines = render(status, time.time())
        if self._live:
            if self._shown:
                click.echo(f"\x1b[{_rows(self._shown)}F\x1b[J", nl=False, file=self._file)
        elif not self._is_news(lines, ended="outcome" in status):
            return
        click.echo("\n".join(lines), file=self._file)
        self._shown, self._shown_at = lines, time.monotonic()

    def _is_news(self, lines: list[str], *, ended: bool) -> bool:
        """Say whether lines differ by more than the time left and the message."""
        if lines == self._shown:
            return False
        due = time.monotonic() - self._shown_at >= QUIET_S
        return ended or due or not self._shown or lines[3:] != self._shown[3:]


def _rows(lines: list[str]) -> int:
    """Return the rows that lines take on the terminal; long ones go over several."""
    columns = shutil.get_terminal_size().columns
    return sum(max(1, -(-len(line) // columns)) for line in lines)
