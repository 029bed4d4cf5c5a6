"""``specschedule sim``: a simulated vLLM engine on a port."""

import asyncio
import os
import secrets
import sys
from datetime import datetime
from pathlib import Path

import click

from specschedule.cli.output import BadInput
from specschedule.core.values import format_duration, parse_duration
from specschedule.sim import launch as launches
from specschedule.sim.arguments import Refused
from specschedule.sim.faults import Planted, Scope
from specschedule.sim.logs import EngineLog
from specschedule.sim.server import Server
from specschedule.sim.worlds import WORLDS


def _list_worlds(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        for world in WORLDS.values():
            click.echo(f"{world.name:<18}{world.source}")
        context.exit()


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--world",
    "name",
    type=click.Choice(sorted(WORLDS)),
    default="demo",
    show_default=True,
    help="Physics of the simulated engine.",
)
@click.option(
    "--seed",
    type=int,
    help="Seed of what differs between launches; drawn anew for each launch when left out.",
)
@click.option("--boot", default="2s", show_default=True, help="How long loading takes.")
@click.option(
    "--fault", "faults", multiple=True, metavar="NAME[@N]", help="Plant a fault, after N requests."
)
@click.option(
    "--fault-scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.SCHEDULE.value,
    show_default=True,
    help="Launches that faults concern: those with a schedule, with speculation, or all.",
)
@click.option(
    "--worlds",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_worlds,
    help="List the worlds with the sources of their numbers.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    name: str,
    seed: int | None,
    boot: str,
    faults: tuple[str, ...],
    fault_scope: str,
    arguments: tuple[str, ...],
) -> None:
    """Serve vLLM's API from a simulated engine. ARGUMENTS are vLLM's own.

    Example: specschedule sim --world demo --port 8000 --speculative-config
    '{"method":"eagle3","model":"draft","num_speculative_tokens":5}'
    """
    world = WORLDS[name]
    try:
        seconds = parse_duration(boot)
        planted = Planted.parse(faults, fault_scope)
    except ValueError as error:
        raise BadInput(str(error)) from error
    try:
        launch = launches.read(
            arguments,
            os.environ,
            world,
            planted=planted,
            read_file=lambda path: Path(path).read_text(),
        )
    except Refused as refused:
        click.echo(refused.message, err=True)
        sys.exit(refused.status)
    seed = secrets.randbits(31) if seed is None else seed
    click.echo(
        f"simulated engine: world {world.name} ({world.source}), seed {seed}, "
        f"boot {format_duration(seconds)}"
    )
    log = EngineLog(
        lambda line: click.echo(line, nl=False),
        level=launch.log_level,
        as_json=launch.json_logs,
        now=datetime.now,
        pid=os.getpid(),
    )

    async def serve() -> int:
        server = Server(launch, seed=seed, log=log)
        return await server.run(
            boot=seconds, announce=lambda address: click.echo(f"listening on {address}")
        )

    try:
        status = asyncio.run(serve())
    except OSError as error:
        raise BadInput(f"--port {launch.port}: {error.strerror or error}") from error
    sys.exit(status)
