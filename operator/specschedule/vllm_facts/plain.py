"""Plain data from outside, read without trusting its types: what does not fit is absent."""

from collections.abc import Mapping
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C one reads a manifest of 500 lines in 6 ms instead of 44."""

DEEPEST = 100
"""Levels of nesting that are followed; manifests and trials have about a dozen."""
MOST_REPEATED = 100_000
"""Values that the aliases of one document may repeat."""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def read_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text, each of which can be walked to its end.

    Raises:
        ValueError: It is not YAML, or a document is not ``bounded``.
    """
    try:
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except Exception as error:  # A tag that lies, as !!bool x does, raises whatever comes first.
        raise ValueError(str(error)) from error
    return [bounded(document) for document in documents]


def bounded(document: Any) -> Any:
    """Return a document that can be walked to its end.

    Raises:
        ValueError: It nests deeper than ``DEEPEST``, as one that refers to itself does, or its
            aliases repeat more than ``MOST_REPEATED`` values.
    """
    seen: set[int] = set()
    repeated = 0
    rest: list[tuple[Any, int]] = [(document, 0)]
    while rest:
        value, depth = rest.pop()
        inner = list(value.values()) if isinstance(value, Mapping) else value
        if not isinstance(inner, (list, tuple)):
            continue
        if depth == DEEPEST:
            raise ValueError(f"it nests deeper than {DEEPEST} levels, or holds itself by an alias")
        if id(value) in seen:
            repeated += 1 + len(inner)
        if repeated > MOST_REPEATED:
            raise ValueError(f"its aliases repeat more than {MOST_REPEATED} values")
        seen.add(id(value))
        rest.extend((each, depth + 1) for each in inner)
    return document
