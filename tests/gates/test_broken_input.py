"""Input that is broken, hostile or in another form than usual: an answer, or one clear line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from specschedule.cli.main import main

from .manifests import deployment, specschedule

Ask = Callable[..., Result]
HALF = "\ud800"
"""Half a surrogate pair: JSON can say it, and no encoding can write it."""


@pytest.fixture
def preflight(tmp_path: Path) -> Ask:
    """Runs the command on texts of manifests, or on plain ones."""

    def run(schedule: Any, target: Any, *more: str, output: str = "json", **files: str) -> Result:
        texts = {"file": schedule, "target": target, **files}
        arguments = []
        for name, given in texts.items():
            path = tmp_path / name
            path.write_text(given if isinstance(given, str) else yaml.safe_dump(given))
            arguments += [f"--{name}", str(path)]
        return CliRunner().invoke(main, ["preflight", *arguments, "-o", output, *more])

    return run


def refused(result: Result) -> str:
    """Return the one line of a refusal."""
    assert result.exit_code == 2, result.exception
    (line,) = result.stderr.strip().splitlines()
    return line


def gate(result: Result, name: str) -> dict[str, Any]:
    assert result.exit_code == 0, result.exception or result.stderr
    (found,) = [each for each in json.loads(result.output)["gates"] if each["gate"] == name]
    plain: dict[str, Any] = found
    return plain


def anchored(lines: str) -> str:
    """A Deployment whose annotations say what they say by aliases."""
    return yaml.safe_dump(deployment()) + f"anchors: {lines}\n"


LOOPS = {
    "a manifest that holds itself": ("&a {b: *a}", "holds itself"),
    "one whose aliases say far more than is written": (
        "{" + ", ".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" if n else "a0: &a0 [x]"
                        for n in range(9)) + "}",
        "aliases repeat",
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", LOOPS)
def test_aliases_without_end_are_refused(preflight: Ask, claim: str) -> None:
    lines, words = LOOPS[claim]
    assert words in refused(preflight(specschedule(), anchored(lines)))


def test_a_drafters_file_of_brackets_is_refused(preflight: Ask) -> None:
    result = preflight(specschedule(), deployment(), drafter="[" * 100_000)
    assert "not JSON" in refused(result)


@pytest.mark.parametrize("output", ["text", "json"])
def test_half_a_surrogate_pair_is_shown_as_it_is_written(preflight: Ask, output: str) -> None:
    target = deployment("--kv-transfer-config", json.dumps({"kv_role": HALF}))
    said = f"Disabling num_speculative_tokens_per_batch_size {HALF}"
    result = preflight(specschedule(), target, log=json.dumps({"message": said}), output=output)
    assert result.exit_code == 0, result.exception
    assert "\\ud800" in result.output


def test_json_with_surrogate_pairs_is_read(preflight: Ask) -> None:
    target = deployment()
    target["metadata"]["annotations"] = {"team": "\N{ROCKET}"}
    text = json.dumps(target)
    assert "\\ud83d\\ude80" in text
    assert gate(preflight(json.dumps(specschedule()), text), "engine")["answer"] == "Pass"


def test_items_of_a_typed_list_need_not_say_their_kind(preflight: Ask) -> None:
    item = {key: value for key, value in deployment().items() if key not in ("apiVersion", "kind")}
    listed = {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [item]}
    assert gate(preflight(specschedule(), listed), "engine")["answer"] == "Pass"


def of_namespace(namespace: str | None, *args: str) -> dict[str, Any]:
    found = deployment(*args)
    if namespace is None:
        del found["metadata"]["namespace"]
    else:
        found["metadata"]["namespace"] = namespace
    return found


def test_a_target_of_another_namespace_is_not_the_target(preflight: Ask) -> None:
    assert "of namespace other, but the SpecSchedule is of namespace llm" in refused(
        preflight(specschedule(), of_namespace("other"))
    )
    # A manifest that says none is of the namespace that it is applied to.
    unsaid = preflight(specschedule(), of_namespace(None))
    assert gate(unsaid, "engine")["answer"] == "Pass"


def test_targets_of_one_name_are_told_apart_by_their_namespace(preflight: Ask) -> None:
    both = [of_namespace("other", "-dp", "2"), of_namespace("llm")]
    assert (
        gate(preflight(specschedule(), yaml.safe_dump_all(both)), "dataParallel")["answer"]
        == "Pass"
    )
    twins = [of_namespace("llm"), of_namespace("llm")]
    assert "holds 2 Deployment" in refused(preflight(specschedule(), yaml.safe_dump_all(twins)))


def test_a_row_of_more_tokens_than_any_launch_may_draft_is_refused(preflight: Ask) -> None:
    line = refused(preflight(specschedule([[1, 16, 99999999999999999]]), deployment()))
    assert "spec.candidates.0.schedule" in line
    assert "rows[0] [1, 16, 99999999999999999]: a row drafts 64 tokens at most" in line
    assert gate(preflight(specschedule([[1, 16, 64]]), deployment()), "schedule")["answer"] == (
        "Pass"
    )


def test_a_build_from_sources_says_no_version(preflight: Ask) -> None:
    for version in ("dev", "0.1.dev1+g0123abc", "0.0.0+unknown"):
        banner = f"INFO 11-29 10:00:00 Initializing a V1 LLM engine (v{version}) with config: x\n"
        target = deployment(image="registry.example/vllm:nightly", command=["vllm", "serve"])
        found = gate(preflight(specschedule(), target, log=banner), "engineVersion")
        assert (found["answer"], found["reason"]) == ("Unknown", "SourceBuild"), version
