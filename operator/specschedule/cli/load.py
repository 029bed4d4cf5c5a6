"""``specschedule load``: put a server under load, as a Job of the operator or by hand."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import click
from pydantic import ValidationError

from specschedule.cli.output import BadInput, read_documents
from specschedule.core.evidence import Profile
from specschedule.core.lengths import described
from specschedule.core.spec import Slo
from specschedule.core.visit import CellClosed, Event, Fitted, Visit, VisitFailed
from specschedule.load.prompts import Pool, PromptsMissing, read_pool
from specschedule.load.readers import as_cell, read_run
from specschedule.load.records import open_records
from specschedule.load.visit import VisitRun, check_profile

DEFAULT_PORT = 9100
INTERRUPTED = 128 + signal.SIGTERM


prompts_option = click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    envvar="SPECSCHEDULE_PROMPTS",
    help="Folder with a file per category, or a ConfigMap in YAML. Synthetic ones when left out.",
)
"""Where prompts come from, for commands that send some."""


@click.command()
@click.option("--url", help="Base URL of the server, such as http://127.0.0.1:8000.")
@click.option(
    "--profile",
    metavar="FILE",
    help="YAML: one profile, a list of profiles, or windows with lengths and prompts; - is "
    "standard input.",
)
@click.option("--slo", metavar="LIMITS", help="Such as ttft=500ms,tpot=40ms.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    envvar="SPECSCHEDULE_RECORDS",
    help="Per-request records, JSONL or .gz.",
)
@prompts_option
@click.option(
    "--read",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Send nothing: make a cell of a run of AIPerf or vllm bench serve; --profile says of "
    "which load.",
)
@click.option(
    "--visit", metavar="FILE", help="Carry out a visit (JSON) and say its events; - is stdin."
)
def command(
    url: str | None,
    profile: str | None,
    slo: str | None,
    out: Path | None,
    prompts: Path | None,
    read: Path | None,
    visit: str | None,
) -> None:
    """Put a server under load and print what was measured, one JSON line per cell.

    With --visit, or SPECSCHEDULE_VISIT set and no --url, carries out one visit of the operator:
    events on standard output, counters for Prometheus on port SPECSCHEDULE_METRICS_PORT (9100) of
    SPECSCHEDULE_METRICS_HOST (all addresses).
    The server's API key is read from SPECSCHEDULE_API_KEY.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    given = visit is not None or (url is None and "SPECSCHEDULE_VISIT" in os.environ)
    if given:
        _finish(_carry_out(_read_visit(visit), prompts, out, events=True))
    if read is not None and profile is not None and slo is not None:
        _convert(read, _plan(str(read), profile, slo))
        return
    if url is None or profile is None or slo is None:
        raise BadInput("load: needs --url, --profile and --slo, or --visit")
    check_url(url)
    _finish(_carry_out(_plan(url, profile, slo), prompts, out, events=False))


def _finish(status: int) -> None:
    raise click.exceptions.Exit(status)


def _convert(path: Path, plan: Visit) -> None:
    """Print the cell that another tool's run amounts to."""
    if len(plan.windows) != 1:
        raise BadInput(f"--read {path}: --profile must describe its one window")
    try:
        cell = as_cell(plan, plan.windows[0], read_run(path))
    except ValueError as error:
        raise BadInput(str(error)) from error
    click.echo(json.dumps(cell.plain()))


def _read_visit(source: str | None) -> Visit:
    """Read a visit from a file, or from the environment when no file is named."""
    try:
        if source is None:
            text = os.environ["SPECSCHEDULE_VISIT"]
        elif source == "-":
            text = sys.stdin.read()
        else:
            text = Path(source).read_text()
        return Visit.model_validate_json(text)
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror}") from error
    except ValidationError as error:
        raise BadInput(f"{source or 'SPECSCHEDULE_VISIT'}: {_fault(error)}") from error


def check_url(url: str) -> None:
    """Refuse what is no base URL of a server.

    Raises:
        BadInput: It is none.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BadInput(f"--url {url}: write it as http://127.0.0.1:8000")


def _limits(slo: str) -> Slo:
    """Read the limits of a good request."""
    try:
        return Slo.model_validate(dict(limit.split("=", 1) for limit in slo.split(",")))
    except ValidationError as error:
        raise BadInput(f"--slo {slo}: {_fault(error)}") from error
    except ValueError as error:
        raise BadInput(f"--slo {slo}: write limits as ttft=500ms,tpot=40ms") from error


def _plan(url: str, profile: str, slo: str) -> Visit:
    """Make a visit out of the options of a run by hand."""
    documents = read_documents(profile)
    entries: list[Any] = []
    settings: dict[str, Any] = {}
    for document in documents:
        if isinstance(document, dict) and "windows" in document:
            settings |= {key: value for key, value in document.items() if key != "windows"}
            document = document["windows"]
        entries.extend(document if isinstance(document, list) else [document])
    windows = [_window(entry, number, profile) for number, entry in enumerate(entries, start=1)]
    # A name of its own, so that a second run finds none of its prompts in the server's cache.
    run = f"local-{secrets.token_hex(4)}"
    limits = _limits(slo)
    try:
        visit = Visit.model_validate(
            {"run": run, "arm": "local", "launch": 1, "round": 1, "scrapes": 0}
            | settings
            | {"url": url, "windows": windows, "slo": limits}
        )
    except ValidationError as error:
        raise BadInput(f"{profile}: {_fault(error)}") from error
    for window in visit.windows:
        try:
            check_profile(window)
        except ValueError as error:
            raise BadInput(f"{profile}: window {window.cell}: {error}") from error
    return visit


def _window(entry: Any, number: int, source: str) -> dict[str, Any]:
    """Complete one window: a bare profile gets a name."""
    if not isinstance(entry, dict) or not ("kind" in entry or "profile" in entry):
        raise BadInput(f"{source}: window {number}: needs a profile such as {{kind: hold, ...}}")
    window = entry if "profile" in entry else {"profile": entry}
    profile = window["profile"]
    kind = profile.get("kind") if isinstance(profile, dict) else "window"
    # A profile in a record may hold fields of a later version; one written by hand may not.
    known = {field.alias for field in Profile.model_fields.values()}
    if isinstance(profile, dict) and (unknown := sorted(set(profile) - known)):
        raise BadInput(
            f"{source}: window {number}: a profile has no field {unknown[0]}; lengths, sampling "
            "and requests stand beside windows: {promptTokens: 64, windows: [{requests: 40, "
            "profile: {kind: hold, concurrency: 8}}]}"
        )
    return {"cell": f"{kind}-{number}"} | window


def _fault(error: ValidationError) -> str:
    """Return the first fault of a value in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def _carry_out(visit: Visit, prompts: Path | None, out: Path | None, *, events: bool) -> int:
    """Run a visit and return the exit status."""

    def say(event: Event) -> None:
        if events:
            click.echo(json.dumps(event.plain()))
        elif isinstance(event, CellClosed):
            click.echo(json.dumps(event.cell.plain()))
        elif isinstance(event, Fitted):
            click.echo(f"load: {described(event.fit)}", err=True)
        elif isinstance(event, VisitFailed):
            click.echo(f"load: {event.reason}: {event.message}", err=True)

    try:
        pool = read_pool(prompts) if prompts is not None else None
    except PromptsMissing as error:
        if not events:
            raise BadInput(str(error)) from error
        say(VisitFailed(reason="PromptsMissing", message=str(error)))
        return 1
    with contextlib.ExitStack() as stack:
        records = None
        if out is not None:
            try:
                records = open_records(out)
            except OSError as error:
                if not events:
                    raise BadInput(f"{out}: {error.strerror}") from error
                why = f"load.records: {out}: {error.strerror}; user {os.getuid()} must be able to"
                say(VisitFailed(reason="BadPlan", message=f"{why} write to the volume"))
                return 1
            stack.callback(_close, records)
        port = int(os.environ.get("SPECSCHEDULE_METRICS_PORT", DEFAULT_PORT)) if events else None
        return asyncio.run(run_visit(visit, pool, say, port=port, records=records))


def _close(records: TextIO) -> None:
    """End the records; what is lost with them takes nothing from the cells."""
    try:
        records.close()
    except OSError as error:
        logging.getLogger(__name__).warning("the records are cut off: %s", error.strerror)


async def run_visit(
    visit: Visit,
    pool: Pool | None,
    say: Callable[[Event], None],
    *,
    port: int | None = None,
    records: TextIO | None = None,
) -> int:
    """Run until the end or until SIGTERM or SIGINT, which leave an open window without a cell.

    Args:
        visit: What to do.
        pool: Prompts; synthetic ones when None.
        say: Takes the events.
        port: Where to offer counters; none are offered when None.
        records: Where to write what became of every request.

    Returns:
        0 when the visit ended well, 1 when it failed, ``INTERRUPTED`` after a signal.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    trace = os.environ.get("SPECSCHEDULE_TRACE")
    run = VisitRun(
        visit,
        pool=pool,
        say=say,
        api_key=os.environ.get("SPECSCHEDULE_API_KEY"),
        port=port,
        host=os.environ.get("SPECSCHEDULE_METRICS_HOST"),
        records=records,
        trace=Path(trace) if trace else None,
    )
    try:
        return 0 if await run.run() else 1
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("interrupted; the open window is dropped")
        return INTERRUPTED
