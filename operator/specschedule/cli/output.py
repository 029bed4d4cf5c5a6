"""What all commands share: reading YAML, answering in text or JSON, refusing bad input."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from specschedule.vllm_facts.plain import bounded, items, mapping, read_yaml

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the answer.",
)


class BadInput(click.ClickException):
    """Input that cannot be answered: one clear line on standard error, exit status 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def read_documents(path: str) -> list[Any]:
    """Return the YAML (or JSON) documents of a file, or of standard input for ``-``.

    Kubernetes lists are opened up into their items.

    Raises:
        BadInput: The file cannot be read or is not YAML.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        documents = [document for document in _documents(text) if document is not None]
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except ValueError as error:  # Bytes that are no text too.
        raise BadInput(f"{path}: not YAML: {error}") from error
    return [each for document in documents for each in _opened(document)]


def _documents(text: str) -> list[Any]:
    """Read JSON as such: libyaml refuses the surrogate pairs in its strings."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return read_yaml(text)
    return [bounded(plain)]


def _opened(document: Any) -> list[Any]:
    """Return the items of a Kubernetes list, and anything else as it is.

    Items of a typed list, such as a DeploymentList, do not say their kind themselves.
    """
    kind = str(mapping(document).get("kind", ""))
    if not kind.endswith("List"):
        return [document]
    typed = {"kind": kind.removesuffix("List")} if kind != "List" else {}
    found = items(mapping(document).get("items"))
    return [{**typed, **each} if isinstance(each, dict) else each for each in found]


def emit(answer: dict[str, Any] | list[Any], text: str, output: str) -> None:
    """Print the answer as text, or as JSON that never holds NaN."""
    said = json.dumps(_finite(answer), indent=2) if output == "json" else text
    # JSON that is quoted may hold half a surrogate pair, which no terminal and no file takes.
    click.echo(said.encode("utf-8", "backslashreplace").decode())


def _finite(value: Any) -> Any:
    """Leave out numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {
            k: _finite(v)
            for k, v in value.items()
            if not (isinstance(v, float) and not math.isfinite(v))
        }
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
