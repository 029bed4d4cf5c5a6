"""What ``screen`` and ``propose`` share: the question without its bar, and files of cells."""

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError

from specschedule.cli.output import BadInput
from specschedule.cli.specs import fault, only
from specschedule.core.evidence import Cell
from specschedule.core.forward import Case
from specschedule.core.spec import Experiment, Load, SearchLimits, Slo, Speculative
from specschedule.core.values import WRITTEN, Value

Item = TypeVar("Item", Cell, Case)


class Question(Value):
    """What a screen needs of a spec; candidates and a bar need not exist yet."""

    model_config = ConfigDict(extra="ignore")
    slo: Slo
    load: Load
    speculative: Speculative | None = None
    experiment: Experiment = Experiment()
    search: SearchLimits | None = None

    @property
    def batch_sizes(self) -> list[int]:
        """Requests in flight at which K is chosen."""
        return (self.search.batch_sizes if self.search else None) or self.load.points


def read_question(path: str) -> Question:
    """Return the question of the one SpecSchedule in a file.

    Raises:
        BadInput: The file holds none, or several, or a spec that is not valid.
    """
    try:
        return Question.model_validate(only(path, "SpecSchedule").get("spec"), context=WRITTEN)
    except ValidationError as error:
        raise BadInput(f"{path}: spec{fault(error)}") from error


def read_cells(path: str) -> list[Cell]:
    """Return the cells of a file: a JSON list, or one JSON object to a line.

    Raises:
        BadInput: It holds no cells, or something else.
    """
    return _items(path, Cell, "cell")


def read_forward(path: str) -> list[Case]:
    """Return the cases that ``vllm bench forward --output-json`` wrote.

    Raises:
        BadInput: The file holds none, or something else.
    """
    return _items(path, Case, "case")


def _items(path: str, kind: type[Item], named: str) -> list[Item]:
    """Return the values in a file.

    Raises:
        BadInput: It holds none, or something else.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        plain = _json(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    if not isinstance(plain, list):
        raise BadInput(f"{path}: must hold a list of {named}s")
    if not plain:
        raise BadInput(f"{path}: holds no {named}")
    found = []
    for at, item in enumerate(plain):
        try:
            found.append(kind.model_validate(item))
        except ValidationError as error:
            raise BadInput(f"{path}: item {at + 1}{fault(error)}") from error
    return found


def _json(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def sizes(text: str) -> tuple[int, ...]:
    """Read captured graph sizes written as ``1,2,4,8``; empty for none.

    Raises:
        BadInput: They are none.
    """
    try:
        found = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise BadInput(f"--graph-sizes: {text!r} is no list of sizes: write 1,2,4,8") from error
    if found and found[0] < 1:
        raise BadInput(f"--graph-sizes: {found[0]} is not above 0")
    return tuple(found)
