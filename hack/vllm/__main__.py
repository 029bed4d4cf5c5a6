"""Real vLLM on this machine's CPU, for the demo and the tests.

`setup` makes a virtual environment with vLLM and a model pair that really speculates, outside
the repository. `serve` runs the API server so that a person can try it. `goldens` writes down
what the real engine says, for tests/goldens.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import environment
import goldens
import server

_GOLDENS = Path(__file__).resolve().parents[2] / f"tests/goldens/vllm-{environment.VERSION}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/vllm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    setup = commands.add_parser("setup", help="make what is missing; nothing when all is there")
    setup.add_argument("-o", "--output", choices=("text", "json"), default="text")
    commands.add_parser("where", help="print, as JSON, where all of it lies and how a pod uses it")
    serve = commands.add_parser("serve", help="run the API server on this machine")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("extra", nargs=argparse.REMAINDER, metavar="-- VLLM ARGUMENTS")
    write = commands.add_parser("goldens", help="write what the real engine says")
    write.add_argument("--out", type=Path, default=_GOLDENS, metavar="FOLDER")
    write.add_argument("--part", action="append", choices=list(goldens.PARTS), dest="parts")
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _where(here: environment.Environment) -> str:
    pod = {"command": server.program(here), "args": server.arguments(here)}
    return json.dumps({**here.plain(), **pod}, indent=1)


def _main() -> int:
    given = _arguments()
    match given.command:
        case "setup":
            here = environment.setup(_say)
            if given.output == "json":
                print(_where(here))
            else:
                print(f"try it: python3 hack/vllm serve   (Python: {here.python})")
        case "where":
            print(_where(environment.require()))
        case "serve":
            here = environment.require()
            extra = given.extra[1:] if given.extra[:1] == ["--"] else given.extra
            command = server.command(here, given.port, extra)
            _say(server.as_shell(here, command))
            os.execve(command[0], command, {**os.environ, **here.variables})
        case "goldens":
            goldens.write(
                environment.require(), given.out, given.parts or list(goldens.PARTS), _say
            )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(_main())
    except environment.Failure as failure:
        sys.exit(f"error: {failure}")
