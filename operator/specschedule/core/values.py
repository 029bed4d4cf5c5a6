"""Building blocks of every value in the core: frozen models and the quantities people write.

A quantity keeps the number it means (seconds, a fraction) and is written back in the form
Kubernetes users expect: durations as ``500ms`` or ``10m``, shares as ``15%``.
"""

import re
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel


class Value(BaseModel):
    """A frozen value whose fields are written in camelCase outside and snake_case inside."""

    model_config = ConfigDict(
        frozen=True,
        # A command uses few of the many types: each is put together when it is first used.
        defer_build=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    def plain(self) -> dict[str, Any]:
        """Return JSON-ready plain data, camelCase, without absent fields (never null)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
SHARE_PATTERN = r"^[0-9]+(\.[0-9]+)?%$"


def parse_duration(text: object) -> float:
    """Return seconds for a duration such as ``500ms``, ``1.5s``, ``10m`` or ``1h30m``.

    Raises:
        ValueError: The text has no unit or an unknown one.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    if not isinstance(text, str) or not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: write it as 500ms, 30s, 10m or 2h")
    return sum(
        float(number) * _UNIT_SECONDS[unit]
        for number, unit in re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    )


def format_duration(seconds: float) -> str:
    """Write seconds in the largest unit that keeps the number whole."""
    milliseconds = round(seconds * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def parse_share(text: object) -> float:
    """Return the fraction for a share such as ``15%`` (0.15).

    Raises:
        ValueError: The text is not a percentage.
    """
    if isinstance(text, float):
        return text
    if not isinstance(text, str) or not re.match(SHARE_PATTERN, text):
        raise ValueError(f"{text!r} is not a share: write it as 15%")
    return float(text[:-1]) / 100


def format_share(fraction: float) -> str:
    """Write a fraction as a percentage: 0.15 becomes ``15%``."""
    return f"{round(fraction * 100, 6):g}%"


WRITTEN = {"written": True}
"""Validation context of what people write: a duration or share is text with its unit there."""


def _duration(value: object, info: ValidationInfo) -> float:
    _need_unit(value, info, "500ms, 30s, 10m or 2h")
    return parse_duration(value)


def _share(value: object, info: ValidationInfo) -> float:
    _need_unit(value, info, "15%")
    return parse_share(value)


def _need_unit(value: object, info: ValidationInfo, forms: str) -> None:
    if info.context == WRITTEN and not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit: write it as {forms}")


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
"""Seconds; written as ``500ms``, ``30s``, ``10m``, ``2h``."""

Share = Annotated[
    float,
    BeforeValidator(_share),
    PlainSerializer(format_share, return_type=str),
    WithJsonSchema({"type": "string", "pattern": SHARE_PATTERN}),
]
"""A fraction; written as ``15%``."""
