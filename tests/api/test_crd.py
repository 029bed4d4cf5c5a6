"""The definitions that are generated from the types."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specschedule.api import crd

DEFINITIONS = [crd.definition(kind) for kind in crd.kinds()]


def fields(schema: dict[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{where}.{name}", inner
        yield from fields(inner, f"{where}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{where}[]")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["metadata"]["name"])
def test_every_field_is_described_in_a_users_words(definition: dict[str, Any]) -> None:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        for where, field in fields(schema["properties"][part], part):
            text = field.get("description", "")
            assert text, where
            assert "``" not in text, where
            assert "None" not in text.split(), where


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d["metadata"]["name"])
def test_a_client_side_apply_of_the_definition_fits_its_annotation(
    definition: dict[str, Any],
) -> None:
    assert len(json.dumps(definition)) < 262144


def test_a_rule_for_a_field_that_does_not_exist_is_an_error() -> None:
    schema = crd.kinds()[0].spec
    with pytest.raises(KeyError, match="candidate"):
        crd.add_rules(schema, {("candidate", "[]"): [{"rule": "true", "message": "never"}]})
    with pytest.raises(KeyError, match="point"):
        crd.attach(schema, {("load", "point"): {"x-kubernetes-list-type": "set"}})


def test_the_command_writes_both_forms_of_both_kinds(tmp_path: Path) -> None:
    assert crd.main([str(tmp_path / "crds"), str(tmp_path / "chart")]) == 0
    plain = sorted(path.name for path in (tmp_path / "crds").iterdir())
    assert plain == ["specschedules.yaml", "spectrials.yaml"]
    for name in plain:
        definition = yaml.safe_load((tmp_path / "crds" / name).read_text())
        assert definition in DEFINITIONS
    wrapped = sorted(path.name for path in (tmp_path / "chart" / "templates").iterdir())
    assert wrapped == ["crd-specschedules.yaml", "crd-spectrials.yaml"]


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main([]) == 2
    assert "CRDS_FOLDER CHART_FOLDER" in capsys.readouterr().err


def test_braces_in_a_description_are_not_helms() -> None:
    kind = crd.kinds()[0]
    braced = kind._replace(spec=kind.spec | {"properties": {"x": {"description": "{{ x }}"}}})
    assert '{{ "{{" }} x }}' in crd.chart_text(braced)
