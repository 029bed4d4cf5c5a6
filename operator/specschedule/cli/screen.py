"""``specschedule screen``: measure a server at many numbers of draft tokens in one boot."""

import asyncio
import json
import os
import secrets
import time
from pathlib import Path

import click
from pydantic import ValidationError

from specschedule.cli.load import check_url, prompts_option, run_visit
from specschedule.cli.output import BadInput
from specschedule.cli.question import Question, read_cells, read_question, sizes
from specschedule.cli.specs import fault
from specschedule.core.compare import NONE
from specschedule.core.evidence import Cell
from specschedule.core.lengths import described
from specschedule.core.screening import PROBE, fixed_arm
from specschedule.core.values import parse_duration
from specschedule.core.visit import (
    CellClosed,
    Event,
    Fitted,
    Screen,
    Visit,
    VisitFailed,
    as_asked,
)
from specschedule.engine import settings
from specschedule.load.client import Client, Unanswered
from specschedule.load.prompts import Pool, PromptsMissing, read_pool

FRUITLESS = 3
"""Visits in a row without one window that counts, after which it is given up."""
WAIT_SECONDS = 1.0
PASSING = ("ServerUnreachable", "Stalled")
"""Failures that a restart of the engine may mend."""


@click.command()
@click.option("--url", required=True, help="Base URL of the server, such as http://127.0.0.1:8000.")
@click.option("-f", "--file", "path", required=True, help="Manifest of the SpecSchedule.")
@click.option(
    "--cells",
    required=True,
    type=click.Path(path_type=Path),
    help="File that cells are added to; what it holds already is not measured again.",
)
@click.option(
    "--none",
    "without",
    is_flag=True,
    help="The server has no speculative config: measure what every schedule must beat.",
)
@click.option(
    "--tokens",
    type=click.IntRange(0, 64),
    help="The server's K is fixed to this by a schedule of one row: measure that K only.",
)
@click.option(
    "--page",
    help="Base URL of the probe scheduler's page. [port SPECSCHEDULE_SCHEDULER_PORT of loopback]",
)
@click.option(
    "--max-num-seqs", type=click.IntRange(1), help="Of the server. [the largest load point]"
)
@click.option("--max-model-len", type=click.IntRange(1), help="Of the server.")
@click.option("--kv-cache-tokens", type=click.IntRange(1), help="Tokens the KV cache holds.")
@click.option("--graph-sizes", help="Captured graph sizes, such as 1,2,4,8. [vLLM's default]")
@prompts_option
@click.option(
    "--patience",
    default="10m",
    show_default=True,
    help="How long a server that died or hangs may take to come back.",
)
@click.option(
    "--request-timeout",
    default="2m",
    show_default=True,
    help="How long a request may take; a server without a token for this long hangs.",
)
def command(
    url: str,
    path: str,
    cells: Path,
    without: bool,
    tokens: int | None,
    page: str | None,
    max_num_seqs: int | None,
    max_model_len: int | None,
    kv_cache_tokens: int | None,
    graph_sizes: str | None,
    prompts: Path | None,
    patience: str,
    request_timeout: str,
) -> None:
    """Screen one server: short windows at many K, chosen one by one, as cells in a file.

    The server is a probe: started with --scheduler-cls
    specschedule.engine.probe.EitherProbeScheduler, with rows that name every K, and with
    SPECSCHEDULE_PROBE_SECRET and SPECSCHEDULE_SCHEDULER_PORT, which are read from this
    environment too. With --none or --tokens it is a plain server. Run it again after anything:
    only the window that was open is lost. Then: specschedule propose --cells.
    """
    check_url(url)
    question = read_question(path)
    if without and tokens is not None:
        raise BadInput("--tokens: a server without speculation has no K; leave one of the two out")
    probing = not without and tokens is None
    secret = os.environ.get(settings.SECRET) if probing else None
    if probing and not secret:
        raise BadInput(
            f"{settings.SECRET} is not set: it must hold what the probe server was started with; "
            "for a server that is no probe say --none or --tokens"
        )
    if probing and page is None and settings.SCHEDULER_PORT in os.environ:
        page = f"http://127.0.0.1:{os.environ[settings.SCHEDULER_PORT]}"
    arm = NONE if without else PROBE if tokens is None else fixed_arm(tokens)
    limit = _duration("--patience", patience)
    timeout = _duration("--request-timeout", request_timeout)
    try:
        pool = read_pool(prompts) if prompts is not None else None
        screen = Screen(
            batch_sizes=question.batch_sizes,
            contexts=question.search.contexts if question.search else [],
            max_tokens=_largest(question, tokens),
            max_num_seqs=max_num_seqs or max(question.batch_sizes),
            max_model_len=max_model_len,
            kv_cache_tokens=kv_cache_tokens,
            graph_sizes=None if graph_sizes is None else list(sizes(graph_sizes)),
            tokens=tokens,
            secret=secret,
            page=page if probing else None,
            seed=question.experiment.seed,
        )
    except ValidationError as error:
        raise BadInput(f"{path}: spec{fault(error)}") from error
    except PromptsMissing as error:
        raise BadInput(str(error)) from error
    visit = Visit(
        # A name of its own, so that a second run finds none of its prompts in the server's cache.
        run=f"local-{secrets.token_hex(4)}",
        arm=arm,
        launch=1,
        round=1,
        url=url,
        screen=screen,
        **as_asked(question.slo, question.load),
        scrapes=0,
        request_timeout=timeout,
    )
    raise click.exceptions.Exit(_Screening(visit, cells, pool, limit).run())


def _duration(option: str, text: str) -> float:
    """Read an option's duration, in seconds.

    Raises:
        BadInput: It is none.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from error


def _largest(question: Question, tokens: int | None) -> int:
    limits = question.search.max_tokens if question.search else 5
    return max(limits, tokens or 0)


class _Screening:
    """Visits one after another, until the screen is over."""

    def __init__(self, visit: Visit, path: Path, pool: Pool | None, patience: float) -> None:
        self._visit, self._path, self._pool, self._patience = visit, path, pool, patience
        kept = path.exists() and path.stat().st_size > 0
        self._cells: list[Cell] = read_cells(str(path)) if kept else []
        self._failure: VisitFailed | None = None

    def run(self) -> int:
        """Return the exit status."""
        fruitless = 0
        while True:
            before = self._counted()
            status = self._once()
            if status != 1:
                return status
            assert self._failure is not None
            click.echo(f"screen: {self._failure.reason}: {self._failure.message}", err=True)
            fruitless = 0 if self._counted() > before else fruitless + 1
            if self._failure.reason not in PASSING or fruitless == FRUITLESS:
                return 1
            click.echo("screen: waiting for the server; only the open window is lost", err=True)
            if not asyncio.run(self._is_back()):
                click.echo(f"screen: no answer within {self._patience:g} s", err=True)
                return 1

    def _counted(self) -> int:
        return sum(cell.void is None for cell in self._cells)

    def _once(self) -> int:
        """Carry out one visit; 0 at the end of the screen, 1 when the visit failed."""
        assert self._visit.screen is not None
        visits = [cell.visit for cell in self._cells if cell.arm == self._visit.arm]
        screen = self._visit.screen.model_copy(update={"done": list(self._cells)})
        visit = self._visit.model_copy(
            update={"screen": screen, "visit": 1 + max(visits, default=0)}
        )
        with self._path.open("a") as file:

            def say(event: Event) -> None:
                if isinstance(event, CellClosed):
                    self._cells.append(event.cell)
                    line = json.dumps(event.cell.plain())
                    file.write(line + "\n")
                    file.flush()
                    click.echo(line)
                elif isinstance(event, Fitted):
                    click.echo(f"screen: {described(event.fit)}", err=True)
                elif isinstance(event, VisitFailed):
                    self._failure = event

            return asyncio.run(run_visit(visit, self._pool, say))

    async def _is_back(self) -> bool:
        """Wait until the server answers; False when it does not in time."""
        give_up = time.monotonic() + self._patience
        key = os.environ.get("SPECSCHEDULE_API_KEY")
        while time.monotonic() < give_up:
            async with Client(
                self._visit.url, endpoint=self._visit.endpoint, timeout=10.0, api_key=key
            ) as client:
                try:
                    await client.model()
                except Unanswered:
                    await asyncio.sleep(WAIT_SECONDS)
                else:
                    return True
        return False
