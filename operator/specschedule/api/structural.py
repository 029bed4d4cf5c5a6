"""Turns pydantic's JSON schema into the structural schema that Kubernetes accepts.

Kubernetes wants every type spelled out in place: no references, no null, no titles. What it has
no word for (a tuple, a union of objects) is refused here, so that a type that cannot be served
never reaches a cluster.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from specschedule.core.values import DURATION_PATTERN, SHARE_PATTERN

_KEPT = (
    "type",
    "description",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "required",
)
_DROPPED = {"title", "default", "additionalProperties", "properties", "items"}
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
_WRITTEN_AS = {
    DURATION_PATTERN: "write a duration as 500ms, 30s, 10m or 2h",
    SHARE_PATTERN: "write a share as 15%",
}
_QUANTITY_LENGTH = 32


class NotStructural(TypeError):
    """A type that a structural schema has no word for."""


def structural(model: type[BaseModel], *, defaults: bool) -> dict[str, Any]:
    """Return the structural schema of a model, as the model writes itself (camelCase).

    Args:
        model: The type to describe; its docstrings become descriptions.
        defaults: Whether the API server fills in the model's defaults. Not inside list items:
            tools that compare lists as a whole (GitOps controllers) would see a difference in
            every item that the server completed.

    Raises:
        NotStructural: A field has a type that a structural schema has no word for.
    """
    schema = model.model_json_schema(
        by_alias=True, mode="serialization", schema_generator=_Described
    )
    definitions = schema.pop("$defs", {})
    return _translate(schema, definitions, defaults, model.__name__)


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands under each field of a model, by the field's name.

    Read from the source here, because pydantic would read the source of every model whenever a
    command starts.
    """
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, said in pairwise(tree.body):
            match field, said:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
    return found


class _Described(GenerateJsonSchema):
    """JSON schema in which the docstrings of fields are their descriptions."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        model = schema["cls"]
        said = docstrings(model)
        for name, field in model.model_fields.items():
            if name in said:
                found["properties"][field.alias or name].setdefault("description", said[name])
        return found


def _translate(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], defaults: bool, where: str
) -> dict[str, Any]:
    schema = _in_place(schema, definitions, where)
    if set(schema) <= {"title", "description", "default"}:
        return {k: schema[k] for k in ("description",) if k in schema} | _ANYTHING
    unknown = set(schema) - set(_KEPT) - _DROPPED - {"exclusiveMinimum", "exclusiveMaximum"}
    if unknown:
        raise NotStructural(f"{where}: no structural form for {sorted(unknown)}")

    out: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if out["type"] == "integer":
        out["format"] = "int64"
    for bound in ("minimum", "maximum"):
        exclusive = "exclusive" + bound.capitalize()
        if exclusive in schema:
            # JSON schema gives the bound itself here; Kubernetes a flag beside the bound.
            out |= {bound: schema[exclusive], exclusive: True}

    if out.get("pattern") in _WRITTEN_AS:
        # A rule instead of the pattern: it answers with words, not with the pattern. The length
        # bounds what the rule may cost.
        pattern = out.pop("pattern")
        rule = f"self.matches(r'{pattern}')"
        out["maxLength"] = _QUANTITY_LENGTH
        out["x-kubernetes-validations"] = [{"rule": rule, "message": _WRITTEN_AS[pattern]}]

    if "properties" in schema:
        out["properties"] = {
            name: _translate(inner, definitions, defaults, f"{where}.{name}")
            for name, inner in schema["properties"].items()
        }
    elif out["type"] == "object":
        values = schema.get("additionalProperties", True)
        out["additionalProperties"] = (
            dict(_ANYTHING)
            if values is True
            else _translate(values, definitions, False, f"{where}.*")
        )
    if out["type"] == "array":
        out["items"] = _translate(schema.get("items", {}), definitions, False, f"{where}[]")

    if defaults and schema.get("default") is not None:
        # An empty object is enough: the server then fills in what is inside.
        out["default"] = {} if out["type"] == "object" else schema["default"]
    return out


def _in_place(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Resolve references, optional types and constants; what stands beside them wins."""
    plain = dict(schema)
    if "anyOf" in plain:
        variants = [v for v in plain.pop("anyOf") if v != {"type": "null"}]
        if len(variants) != 1:
            raise NotStructural(f"{where}: a union of {len(variants)} types; use optional fields")
        plain = variants[0] | plain
    if "$ref" in plain:
        target = definitions[plain.pop("$ref").removeprefix("#/$defs/")]
        plain = _in_place(target, definitions, where) | plain
    if "const" in plain:
        plain["enum"] = [plain.pop("const")]
    return plain
