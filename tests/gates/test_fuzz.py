"""No input makes the preflight command fall over: it answers, or refuses in one line."""

import json
import tempfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specschedule.cli.main import main

SPEC = {
    "target": {"name": "chat"},
    "slo": {"ttft": "500ms"},
    "candidates": [{"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]}],
    "load": {"points": [1, 8]},
    "bar": {"improve": [{"by": "15%"}]},
}
SERVER = {
    "name": "server",
    "image": "vllm/vllm-openai:v0.32.0",
    "args": ["--speculative-config", '{"method":"ngram","num_speculative_tokens":3}'],
}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def object_of(kind, spec):
    return {"kind": kind, "metadata": {"name": "chat"}, "spec": spec}


@st.composite
def schedules(draw):
    """A SpecSchedule with one field replaced by anything."""
    key = draw(st.sampled_from([*SPEC, "policy", "experiment", "speculative", "mode"]))
    return object_of("SpecSchedule", {**SPEC, key: draw(anything)})


@st.composite
def deployments(draw):
    """A Deployment whose server has one field replaced by anything."""
    fields = ["args", "command", "env", "envFrom", "image", "name", "resources", "volumeMounts"]
    server = {**SERVER, draw(st.sampled_from(fields)): draw(anything)}
    pod = {"containers": [server], "volumes": draw(anything)}
    return object_of("Deployment", {"replicas": draw(anything), "template": {"spec": pod}})


texts = st.text(max_size=40) | st.sampled_from(["a: 2026-99-99", "[" * 3000, "- &a [*a]", "\x00"])
manifests = (schedules() | deployments() | anything).map(yaml.safe_dump) | texts
good = st.just(yaml.safe_dump(object_of("SpecSchedule", SPEC)))


@pytest.mark.fuzz
@given(
    good | manifests,
    deployments().map(yaml.safe_dump) | manifests,
    texts | st.none(),
    texts | st.none(),
)
def test_preflight_answers_or_refuses_in_one_line(spec, target, log, metrics):
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["preflight", "-o", "json"]
        for flag, text in (
            ("-f", spec),
            ("--target", target),
            ("--log", log),
            ("--metrics", metrics),
        ):
            if text is not None:
                path = Path(folder, flag.strip("-"))
                path.write_text(text, encoding="utf-8", errors="replace")
                arguments += [flag, str(path)]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (0, 2), result.exception
    if result.exit_code == 0:
        assert json.loads(result.output)["gates"]
    else:
        assert len(result.stderr.strip().splitlines()) == 1
