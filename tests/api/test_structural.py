"""The schema generator says what Kubernetes understands, or refuses."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from specschedule.api.structural import NotStructural, structural
from specschedule.core.values import Duration, Share, Value


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


class Inner(Value):
    """About the type."""

    size: Annotated[int, Field(ge=1, le=9)] = 4
    """How big."""


class Described(Value):
    """A type with one field of each kind."""

    colour: Colour = Colour.RED
    wait: Duration = 600.0
    share: Share | None = None
    inner: Inner = Inner()
    """About the field,
    in two lines."""
    maybe: Inner | None = None
    one: Literal["a"] = "a"
    above: Annotated[float, Field(gt=0)]
    rows: list[list[int]] = []
    items_: Annotated[list[Inner], Field(alias="items", max_length=3)]
    free: dict[str, Any] = {}
    words: dict[str, str] = {}
    anything: Any = None


SCHEMA = structural(Described, defaults=True)["properties"]

CASES = {
    "an enumeration": (
        "colour",
        {"type": "string", "enum": ["Red", "Blue"], "default": "Red"},
    ),
    "a duration": (
        "wait",
        {
            "type": "string",
            "maxLength": 32,
            "default": "10m",
            "x-kubernetes-validations": [
                {
                    "rule": r"self.matches(r'^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$')",
                    "message": "write a duration as 500ms, 30s, 10m or 2h",
                }
            ],
        },
    ),
    "an optional share": (
        "share",
        {
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [
                {
                    "rule": r"self.matches(r'^[0-9]+(\.[0-9]+)?%$')",
                    "message": "write a share as 15%",
                }
            ],
        },
    ),
    "an object, with its defaults inside": (
        "inner",
        {
            "type": "object",
            "description": "About the field, in two lines.",
            "properties": {
                "size": {
                    "type": "integer",
                    "description": "How big.",
                    "minimum": 1,
                    "maximum": 9,
                    "format": "int64",
                    "default": 4,
                }
            },
            "default": {},
        },
    ),
    "a constant": ("one", {"type": "string", "enum": ["a"], "default": "a"}),
    "an open bound": ("above", {"type": "number", "minimum": 0, "exclusiveMinimum": True}),
    "lists in lists": (
        "rows",
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "format": "int64"}},
            "default": [],
        },
    ),
    "a list item, without defaults": (
        "items",
        {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "description": "About the type.",
                "properties": {
                    "size": {
                        "type": "integer",
                        "description": "How big.",
                        "minimum": 1,
                        "maximum": 9,
                        "format": "int64",
                    }
                },
            },
        },
    ),
    "free keys and values": (
        "free",
        {
            "type": "object",
            "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
            "default": {},
        },
    ),
    "free keys": (
        "words",
        {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
    ),
    "anything": ("anything", {"x-kubernetes-preserve-unknown-fields": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_field(case: str) -> None:
    field, want = CASES[case]
    assert SCHEMA[field] == want


def test_only_what_has_no_default_is_required() -> None:
    assert structural(Described, defaults=True)["required"] == ["above", "items"]


def test_without_defaults_there_are_none() -> None:
    text = str(structural(Described, defaults=False))
    assert "'default'" not in text


class WithUnion(Value):
    """Two types in one place."""

    either: int | str


class WithTuple(Value):
    """A tuple."""

    pair: tuple[int, str]


@pytest.mark.parametrize("model", [WithUnion, WithTuple])
def test_what_has_no_structural_form_is_refused_by_name(model: type[Value]) -> None:
    with pytest.raises(NotStructural, match=rf"{model.__name__}\.(either|pair)"):
        structural(model, defaults=True)
