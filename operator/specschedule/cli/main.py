"""The ``specschedule`` command: loads a command's module only when that command is run."""

import importlib
import sys

import click

from specschedule import __version__

COMMANDS = {
    "effective": "What the engine does with a schedule at every batch size.",
    "facts": "Receipts and cells as files, and what differs between launches.",
    "judge": "Verdict over recorded trials.",
    "load": "Put a server under load and print the cells.",
    "operator": "Run the operator.",
    "plan": "What a run will launch, and what it costs.",
    "preflight": "Gates that can be answered before any pod exists.",
    "propose": "Schedules worth testing, from measured cells.",
    "watch": "Follow a run in the terminal until its outcome.",
    "screen": "Measure a server at many numbers of draft tokens in one boot.",
    "sim": "A simulated vLLM engine on a port.",
    "tune": "The whole run on this machine, without Kubernetes.",
}


class _Lazy(click.Group):
    """Commands live in ``specschedule.cli.<name>`` as ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"specschedule.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Find, prove and promote speculative-decoding schedules for vLLM."""


if __name__ == "__main__":
    sys.exit(main())
