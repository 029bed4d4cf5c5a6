"""No input makes a command fall over: it answers, or refuses in one line with status 2.

Schedules, arguments, logs and trials that are right but for one part go through the commands as a
user would run them: what is only a little wrong gets deepest.
"""

import json
import tempfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specschedule.cli.main import main

pytestmark = pytest.mark.fuzz

SPEC = {
    "target": {"name": "chat"},
    "mode": "Auto",
    "slo": {"ttft": "500ms", "tpot": "40ms"},
    "candidates": [
        {"name": "card", "schedule": [[1, 2, 5], [3, 16, 1]]},
        {"name": "long", "schedule": [[1, 16, 1, 4096, 3], [1, 16, 4097, 9999, 5]]},
    ],
    "load": {"points": [1, 8], "prefixCache": "Unique", "requestsPerSecond": [2.5]},
    "bar": {
        "improve": [{"metric": "goodput", "at": [8], "by": "15%"}],
        "protect": [{"metric": "decodeRate", "at": [1], "within": "3%"}],
    },
    "experiment": {"effort": "Quick", "static": [3], "budget": {"gpuHours": 12}, "deadline": "8h"},
    "policy": {"graphMode": "Same", "overrides": [{"gate": "kvCache", "reason": "known"}]},
}
SERVER = {
    "name": "server",
    "image": "vllm/vllm-openai:v0.32.0",
    "command": ["vllm", "serve", "m"],
    "args": ["--speculative-config", '{"method":"ngram","num_speculative_tokens":3}', "-dp", "1"],
    "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "$(LEVEL)"}],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "volumeMounts": [{"name": "config", "mountPath": "/etc/vllm"}],
}
DEPLOYMENT = {
    "replicas": 2,
    "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
    "template": {
        "spec": {
            "containers": [SERVER],
            "volumes": [{"name": "config", "configMap": {"name": "settings"}}],
        }
    },
}
CELL = {
    "cell": "hold8",
    "profile": {"kind": "hold", "concurrency": 8},
    "windowSeconds": 30.0,
    "offered": 20,
    "completed": 20,
    "good": 20,
    "outputTokens": 640,
    "tokens": 1,
    "drafts": 300,
    "draftTokens": 300,
    "acceptedTokens": 200,
    "tpotMs": {"p50": 17.9},
    "prefixCache": {"queries": 100, "hits": 0},
}
TRIAL = {
    "kind": "SpecTrial",
    "metadata": {"name": "chat-1"},
    "spec": {
        "runId": "7f3a",
        "arm": "candidate-card",
        "launch": 1,
        "round": 1,
        "position": 2,
        "schedule": [[1, 2, 5], [3, 16, 1]],
        "incumbent": {"method": "ngram", "num_speculative_tokens": 3},
    },
    "status": {
        "startedAt": "2026-11-29T10:00:00Z",
        "endedAt": "2026-11-29T10:05:00Z",
        "receipt": {"engineVersion": "0.32.0", "graphMode": "PIECEWISE", "notes": ["Tuned: x"]},
        "cells": [CELL],
        "check": "Agrees",
    },
}
LINES = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='m', compilation_config={'mode': 3, "
    "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}",
    "Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE for reliability.",
    "Disabling num_speculative_tokens_per_batch_size and falling back to static",
    "Truncating max_cudagraph_capture_size to 40",
    "Model Runner V2 does not yet support X; using the V1 model runner instead.",
    "ValueError: max_num_scheduled_tokens is set to -1792 based on",
    "torch.OutOfMemoryError: CUDA out of memory.",
    "GPU KV cache size: 1,234 tokens",
    "init engine (profile, create kv cache, warmup model) took 9.00 s",
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
texts = st.text(max_size=40) | st.sampled_from(["a: 2026-99-99", "[" * 3000, "- &a [*a]", "\x00"])
words = st.lists(
    st.sampled_from(
        [
            *["--speculative-config", "-sc", "--config", "/etc/vllm/c", "-dp", "2", "--", "-cc.a"],
            *["--speculative-config.method", "ngram", "{}", "'{\"a\":1}'", "$(LEVEL)", "$HOME"],
            *["--max-num-seqs", "16", "--max-model-len", "8k", "--no-enable-lora", "-O3", "="],
        ]
    )
    | st.text(alphabet="-=.+{}[]\":'$() \\abkM0;|&\n", max_size=20),
    max_size=6,
)


@st.composite
def spoiled(draw, plain, by=anything):
    """Plain data with one part of it, at any depth, replaced or taken away."""
    if not isinstance(plain, dict | list) or not plain or draw(st.integers(0, 4)) == 0:
        return draw(by)
    at = draw(st.sampled_from(sorted(plain) if isinstance(plain, dict) else range(len(plain))))
    part = draw(spoiled(plain[at], by))
    if isinstance(plain, dict):
        kept = {key: value for key, value in plain.items() if key != at}
        return kept if draw(st.booleans()) and part is None else {**kept, at: part}
    return [*plain[:at], part, *plain[at + 1 :]]


def object_of(kind, spec):
    return {"kind": kind, "metadata": {"name": "chat"}, "spec": spec}


def written(documents):
    return yaml.safe_dump_all(documents)


@st.composite
def started(draw):
    """A Deployment whose server is started in some other way."""
    by = draw(words)
    script = draw(st.sampled_from([["sh", "-c"], ["bash", "-ec"], ["python", "-m", "vllm"], []]))
    ways = {"command": script, "args": [" ".join(by)] if script[-1:] in (["-c"], ["-ec"]) else by}
    template = {"spec": {"containers": [{**SERVER, **ways}]}}
    return object_of("Deployment", {**DEPLOYMENT, "template": template})


@st.composite
def logs(draw):
    """A start-up log of known lines in the forms they come in, cut and mixed with anything."""
    prefix = draw(st.sampled_from(["", "(EngineCore_DP0 pid=7) WARNING 11-29 10:00:00 [a.py:1] "]))
    lines = draw(st.lists(st.sampled_from(LINES) | st.text(max_size=40), max_size=8))
    forms = {False: lambda text: prefix + text, True: lambda text: json.dumps({"message": text})}
    log = "\n".join(forms[draw(st.booleans())](text) for text in lines)
    return log[draw(st.integers(0, 30)) :]


def mostly(right, *wrong):
    """Draw what is right three times of four, so that one fault at a time gets deep."""
    return st.integers(0, 3).flatmap(lambda n: st.one_of(*wrong) if n == 3 else right)


def one(kind, specs):
    return specs.map(lambda spec: written([object_of(kind, spec)]))


specs = mostly(one("SpecSchedule", st.just(SPEC)), one("SpecSchedule", spoiled(SPEC)), texts)
targets = mostly(
    one("Deployment", st.just(DEPLOYMENT)) | started().map(lambda each: written([each])),
    one("Deployment", spoiled(DEPLOYMENT)),
    texts,
)


@st.composite
def ledgers(draw):
    """The trials of a run, of which one may be spoiled."""
    arms = draw(st.permutations(["incumbent", "candidate-card", "none", "incumbent", "static-3"]))
    trials = [
        {**TRIAL, "spec": {**TRIAL["spec"], "arm": arm, "launch": at, "round": 1 + at // 2}}
        for at, arm in enumerate(arms[: draw(st.integers(1, 5))], 1)
    ]
    return written([*trials[:-1], draw(mostly(st.just(trials[-1]), spoiled(trials[-1])))])


@st.composite
def ranges(draw):
    """Rows that start at 1 and do not overlap, with gaps, in any order."""
    rows, start = [], 1
    for _ in range(draw(st.integers(1, 5))):
        last = start + draw(st.integers(0, 20))
        rows.append([start, last, draw(st.integers(0, 9))])
        start = last + draw(st.integers(1, 9))
    return draw(st.permutations(rows))


def ask(command, files, *more):
    """Run a command on files, and require an answer or one line."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [command, "-o", "json", *more]
        for flag, text in files.items():
            if text is not None:
                path = Path(folder, flag.strip("-"))
                path.write_text(text, encoding="utf-8", errors="replace")
                arguments += [flag, str(path)]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (0, 2), result.exception
    if result.exit_code:
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert result.stderr.startswith("Error: ")
        return None
    return json.loads(result.output, parse_constant=pytest.fail)


@given(specs, targets, logs() | texts | st.none(), texts | st.none())
def test_preflight_answers_or_refuses(spec, target, log, metrics):
    answer = ask("preflight", {"-f": spec, "--target": target, "--log": log, "--metrics": metrics})
    if answer is not None:
        assert answer["gates"]
        holding = [g for g in answer["gates"] if g["answer"] in ("Fail", "Unknown")]
        assert answer["accepted"] == (not holding)


@given(specs, targets)
def test_plan_answers_or_refuses(spec, target):
    ask("plan", {"-f": spec, "--target": target})


@given(specs, mostly(ledgers(), texts))
def test_trials_are_judged_or_refused(spec, trials):
    ask("facts", {"-f": spec, "--trials": trials})
    ask("judge", {"-f": spec, "--trials": trials})


@given(
    mostly(
        ranges().map(json.dumps),
        ranges().flatmap(spoiled).map(json.dumps),
        anything.map(json.dumps),
        texts,
    ),
    mostly(st.integers(1, 70), st.integers(-1, 0)),
    mostly(st.integers(1, 4096), st.integers(-1, 0)),
)
def test_effective_answers_or_refuses(schedule, tokens, batch):
    limits = ("--max-tokens", str(tokens), "--max-num-seqs", str(batch))
    answer = ask("effective", {}, *limits, "--", schedule)
    if answer is not None:
        assert answer["ranges"][0][0] == 1
        assert answer["ranges"][-1][1] == batch
