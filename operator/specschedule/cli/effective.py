"""``specschedule effective``: what the engine does with a schedule."""

import json

import click

from specschedule.cli.output import BadInput, emit, output_option
from specschedule.core.schedule import EffectiveTable, ScheduleError, effective


@click.command()
@click.argument("rows")
@click.option("--max-tokens", type=int, required=True, help="num_speculative_tokens of the server.")
@click.option("--max-num-seqs", type=int, required=True, help="Largest batch size of the server.")
@output_option
def command(rows: str, max_tokens: int, max_num_seqs: int, output: str) -> None:
    """Say what the engine does with ROWS, a schedule as JSON, at every batch size.

    The batch size is the number of requests scheduled in an engine step, prefills included: it is
    a little more than the requests that decode.
    """
    try:
        plain = json.loads(rows)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"ROWS is not JSON ({error}): write [[1, 8, 3], [9, 16, 1]]") from error
    try:
        table = effective(plain, max_tokens=max_tokens, max_num_seqs=max_num_seqs)
    except ScheduleError as error:
        raise BadInput(f"{error.reason}: {error.message}") from error
    answer = {"ranges": table.ranges, "warnings": [warned.plain() for warned in table.warnings]}
    emit(answer, _text(table), output)


def _context(row: list[int], table: EffectiveTable) -> str:
    """Write a context range; the engine takes the last one for all longer contexts too."""
    last = table.contexts and row[3] == table.contexts[-1][1]
    return f"{row[2]} and longer" if last else f"{row[2]}-{row[3]}"


def _text(table: EffectiveTable) -> str:
    lines = []
    for row in table.ranges:
        context = f"  context {_context(row, table)}" if len(row) == 5 else ""
        lines.append(f"batch size {row[0]}-{row[1]}{context}: K={row[-1]}")
    lines += [f"{warned.reason}: {warned.message}" for warned in table.warnings]
    return "\n".join(lines)
