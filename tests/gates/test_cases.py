"""Field cases 1-37 as far as they can be answered before a pod, through the command itself.

Each row is a situation that others met and the right behaviour towards it. Rows about a measured
difference belong to the judge, rows about a dying pod to the reconcile.
"""

import json

import pytest
import yaml
from click.testing import CliRunner

from specschedule.cli.main import main
from specschedule.vllm_facts.failures import start_failure
from specschedule.vllm_facts.metrics import read_metrics

from . import manifests
from .manifests import STATIC, deployment

DYNAMIC = (
    "Dynamic speculative decoding changes the target verification length at runtime. Overriding "
    "cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE for reliability."
)


def specschedule(schedule=None, **spec):
    return manifests.specschedule(
        [[1, 4, 4], [5, 16, 0]] if schedule is None else schedule,
        **{"load": {"points": [1, 6, 16]}, **spec},
    )


@pytest.fixture
def preflight(tmp_path):
    """Runs the command on objects and texts; returns its answer."""

    def run(schedule, target, *, log=None, metrics=None):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(schedule))
        (tmp_path / "target.yaml").write_text(yaml.safe_dump(target))
        arguments = ["-f", str(tmp_path / "spec.yaml"), "--target", str(tmp_path / "target.yaml")]
        for name, text in (("log", log), ("metrics", metrics)):
            if text is not None:
                (tmp_path / name).write_text(text)
                arguments += [f"--{name}", str(tmp_path / name)]
        result = CliRunner().invoke(main, ["preflight", *arguments, "-o", "json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.output)

    return run


def line(message, level="WARNING"):
    return f"(EngineCore_DP0 pid=7) {level} 11-29 10:00:00 [vllm.py:1] {message}\n"


BANNER = line(
    "Initializing a V1 LLM engine (v0.32.0) with config: model='m', device_config=cuda, "
    "compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
    "'cudagraph_capture_sizes': [1, 2, 4, 8, 16, 32, 64, 96]}",
    "INFO",
)
IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
STARTED = line("init engine (profile, create kv cache, warmup model) took 9.00 s", "INFO")

FALLBACK = line("Model Runner V2 does not yet support X; using the V1 model runner instead.")
NOT_TOLD = ("servingAlive", "Unknown", "give one scrape")
V1 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}
V2 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "1"}]}
FULL = {"policy": {"graphMode": "RequireFull"}}

# Case, schedule and target, log or metrics; then whether it is accepted, the gate, its answer,
# and what its message says.
CASES = {
    "1 data parallelism": (
        specschedule(),
        deployment("--data-parallel-size", "2"),
        {},
        False,
        "dataParallel",
        "Fail",
        "size 2",
    ),
    "1 data parallelism, short": (
        specschedule(),
        deployment("-dp", "2"),
        {},
        False,
        "dataParallel",
        "Fail",
        "size 2",
    ),
    "1 seen in the log": (
        specschedule(),
        deployment(),
        {"log": line("Disabling num_speculative_tokens_per_batch_size and falling back to static")},
        False,
        "scheduleInEffect",
        "Fail",
        "Disabling",
    ),
    "1 a user who quotes the log": (
        specschedule(),
        deployment(),
        {
            "log": BANNER
            + line(
                "Received request cmpl-7: prompt: 'what is: Disabling "
                "num_speculative_tokens_per_batch_size and falling back to static "
                "num_speculative_tokens=4.', params: SamplingParams(stop=['x'])",
                "INFO",
            )
            + line("Generated response cmpl-7: output: 'CUDA out of memory', finish_reason: stop")
            + STARTED
        },
        True,
        "scheduleInEffect",
        "NotApplicable",
        "draft counters",
    ),
    "3 full graphs required": (
        specschedule(**FULL),
        deployment(),
        {"log": BANNER + line(DYNAMIC) + STARTED},
        False,
        "graphMode",
        "Fail",
        "PIECEWISE",
    ),
    "3 full graphs required, before any log": (
        specschedule(**FULL),
        deployment(**V1),
        {},
        False,
        "graphMode",
        "Fail",
        "PIECEWISE",
    ),
    "3 the downgrade is printed by default": (
        specschedule(),
        deployment(),
        {"log": BANNER + line(DYNAMIC) + STARTED},
        True,
        "graphMode",
        "Pass",
        "Overriding cudagraph_mode",
    ),
    "4 no GPU is named for an image that needs one": (
        specschedule(),
        deployment(gpu=False),
        {},
        False,
        "graphMode",
        "Unknown",
        "vllm/vllm-openai:v0.32.0 runs on GPUs only",
    ),
    "4 devices that a claim brings": (
        specschedule(),
        deployment(gpu=False, resources={"claims": [{"name": "gpu"}]}),
        {},
        False,
        "graphMode",
        "Unknown",
        "resourceClaims",
    ),
    "4 a CPU has no graphs": (
        specschedule(**FULL),
        deployment(gpu=False, image="x/vllm-cpu:vllm-0.32.0"),
        {},
        True,
        "graphMode",
        "NotApplicable",
        "no GPU",
    ),
    "4 eager has no graphs": (
        specschedule(**FULL),
        deployment("--enforce-eager"),
        {},
        True,
        "graphMode",
        "NotApplicable",
        "enforce-eager",
    ),
    "5a runner V2 forced on suffix": (
        specschedule(),
        deployment(speculative={"method": "suffix", "num_speculative_tokens": 4}, **V2),
        {},
        False,
        "modelRunner",
        "Fail",
        "suffix",
    ),
    "5b the fallback is labelled": (
        specschedule(),
        deployment(),
        {
            "log": BANNER + FALLBACK + STARTED,
        },
        True,
        "modelRunner",
        "Pass",
        "using the V1 model runner",
    ),
    "5b the fallback takes the full graphs of a schedule": (
        specschedule(**FULL),
        deployment(),
        {"log": BANNER + FALLBACK + STARTED},
        False,
        "graphMode",
        "Fail",
        "V1",
    ),
    "5b the fallback is printed for a schedule where that is allowed": (
        specschedule(),
        deployment(),
        {"log": BANNER + FALLBACK + STARTED},
        True,
        "graphMode",
        "Pass",
        "PIECEWISE (candidate-card); serving has FULL_AND_PIECEWISE",
    ),
    "5b the fallback crashes a drafter of fixed length": (
        specschedule(),
        deployment(speculative={"method": "ngram_gpu", "num_speculative_tokens": 4}),
        {"log": BANNER + FALLBACK + STARTED},
        False,
        "methodAndSchedule",
        "Fail",
        "v1-fixed-length-methods",
    ),
    "9 Ascend loses its padding for full graphs": (
        specschedule([[1, 8, 3], [9, 16, 0]]),
        deployment(gpu=False, resources={"limits": {"huawei.com/Ascend910": 1}}),
        {},
        True,
        "graphMode",
        "Pass",
        "a third of the throughput",
    ),
    "10 suffix takes no schedule": (
        specschedule(),
        deployment(speculative={"method": "suffix", "num_speculative_tokens": 4}),
        {},
        False,
        "methodAndSchedule",
        "Fail",
        "suffix",
    ),
    "11 a division by zero at the start": (
        specschedule(),
        deployment(),
        {"log": BANNER + line("ZeroDivisionError: division by zero", "ERROR")},
        False,
        "start",
        "Fail",
        "ZeroDivisionError",
    ),
    "12 an assertion while capturing": (
        specschedule(),
        deployment(),
        {"log": BANNER + line("Capturing CUDA graphs (FULL)", "INFO") + "AssertionError: shapes\n"},
        False,
        "start",
        "Fail",
        "failed during graph capture",
    ),
    "15 the token budget": (
        specschedule(),
        deployment(),
        {"log": BANNER + "ValueError: max_num_scheduled_tokens is set to -1792 based on\n"},
        False,
        "start",
        "Fail",
        "-1792: the draft slots of num_speculative_tokens x max_num_seqs exceed "
        "max_num_batched_tokens",
    ),
    "17 a capture list that stops short": (
        specschedule([[1, 6, 6]]),
        deployment("--max-num-seqs", "6"),
        {"log": BANNER + line("Truncating max_cudagraph_capture_size to 40") + STARTED},
        False,
        "graphCoverage",
        "Fail",
        "42",
    ),
    "17 a tail that is carried on beyond the captured sizes": (
        specschedule([[1, 6, 6]]),
        deployment(),
        {"log": BANNER + STARTED},
        True,
        "graphCoverage",
        "Pass",
        "up to 112 tokens, captured are 96",
    ),
    "17 a log without a word about graphs": (
        specschedule(),
        deployment(),
        {"log": ""},
        False,
        "graphCoverage",
        "Unknown",
        "VLLM_LOGGING_LEVEL",
    ),
    "18 a prefix": (
        specschedule(**FULL),
        deployment(),
        {"log": line(DYNAMIC)},
        False,
        "graphMode",
        "Fail",
        "PIECEWISE",
    ),
    "18 a lost bracket": (
        specschedule(**FULL),
        deployment(),
        {"log": line(DYNAMIC)[1:]},
        False,
        "graphMode",
        "Fail",
        "PIECEWISE",
    ),
    "18 one JSON object": (
        specschedule(**FULL),
        deployment(),
        {"log": json.dumps({"levelname": "WARNING", "message": DYNAMIC})},
        False,
        "graphMode",
        "Fail",
        "PIECEWISE",
    ),
    "18 a level that hides it": (
        specschedule(**FULL),
        deployment(),
        {"log": "INFO:     Application startup complete.\n"},
        False,
        "logLevel",
        "Unknown",
        "log level hides engine warnings",
    ),
    "18 a level that will hide it": (
        specschedule(),
        deployment(env=[{"name": "VLLM_LOGGING_LEVEL", "value": "ERROR"}]),
        {},
        False,
        "logLevel",
        "Unknown",
        "hide engine warnings",
    ),
    "18 a log in which nothing is told": (
        specschedule(),
        deployment(),
        {"log": "\u0000\ufffd\u0003 no log at all"},
        False,
        "logLevel",
        "Unknown",
        "empty, cut, or not the engine's",
    ),
    "18 JSON with levels in small letters": (
        specschedule(),
        deployment(),
        {"log": json.dumps({"level": "info", "message": "hello"})},
        False,
        "logLevel",
        "Pass",
        "would be seen",
    ),
    "requests beyond the model's length by the log": (
        specschedule(load={"points": [1], "promptTokens": 900_000}),
        deployment(),
        {"log": BANNER.replace("model='m',", "model='m', max_seq_len=4096,") + STARTED},
        False,
        "load",
        "Fail",
        "max_model_len 4096",
    ),
    "20 a drafter that is never right": (
        specschedule(),
        deployment(),
        {
            "metrics": IDLE + "vllm:spec_decode_num_drafts_total 10000\n"
            "vllm:spec_decode_num_draft_tokens_total 50000\n"
            "vllm:spec_decode_num_accepted_tokens_total 200\n"
        },
        False,
        "acceptance",
        "Fail",
        "0.4%",
    ),
    "21 out of memory": (
        specschedule(),
        deployment(),
        {"log": BANNER + "torch.OutOfMemoryError: CUDA out of memory.\n"},
        False,
        "start",
        "Fail",
        "out of memory",
    ),
    "22 a stalled engine that answers": (
        specschedule(),
        deployment(),
        {"metrics": "vllm:num_requests_running 0\nvllm:num_requests_waiting 3\n"},
        False,
        "servingAlive",
        "Fail",
        "3 requests wait",
    ),
    "22 one engine of two is stalled": (
        specschedule(),
        deployment(),
        {
            "metrics": 'vllm:num_requests_running{engine="0"} 9\n'
            'vllm:num_requests_waiting{engine="0"} 0\n'
            'vllm:num_requests_running{engine="1"} 0\n'
            'vllm:num_requests_waiting{engine="1"} 9\n'
        },
        False,
        "servingAlive",
        "Fail",
        "9 requests wait and none runs in engine 1",
    ),
    "22 a page that is empty": (
        specschedule(),
        deployment(),
        {"metrics": ""},
        False,
        *NOT_TOLD,
    ),
    "22 a page that is no metrics": (
        specschedule(),
        deployment(),
        {"metrics": "<html>502</html>"},
        False,
        *NOT_TOLD,
    ),
    "22 a number that is none": (
        specschedule(),
        deployment(),
        {"metrics": "vllm:num_requests_running NaN\nvllm:num_requests_waiting 3\n"},
        False,
        *NOT_TOLD,
    ),
    "20 counters that are no numbers": (
        specschedule(),
        deployment(),
        {
            "metrics": IDLE + "vllm:spec_decode_num_draft_tokens_total +Inf\n"
            "vllm:spec_decode_num_accepted_tokens_total +Inf\n"
        },
        True,
        "acceptance",
        "NotApplicable",
        "the metrics tell no draft counters",
    ),
    "22 an engine that tells only what runs": (
        specschedule(),
        deployment(),
        {"metrics": IDLE + 'vllm:num_requests_running{engine="1"} 4\n'},
        False,
        *NOT_TOLD,
    ),
    "20 more accepted than drafted": (
        specschedule(),
        deployment(),
        {
            "metrics": IDLE + "vllm:spec_decode_num_drafts_total 5\n"
            "vllm:spec_decode_num_draft_tokens_total 10\n"
            "vllm:spec_decode_num_accepted_tokens_total 200\n"
        },
        False,
        "acceptance",
        "Unknown",
        "200 accepted of 10 draft tokens, which cannot be",
    ),
    "25 a build that refuses an old flag": (
        specschedule(),
        deployment(),
        {"log": "vllm serve: error: unrecognized arguments: --old-flag\n"},
        False,
        "start",
        "Fail",
        "engine refuses option --old-flag",
    ),
    "26 joined by an equals sign": (
        specschedule(),
        deployment(f"--speculative-config={json.dumps(STATIC)}", speculative=None),
        {},
        True,
        "arguments",
        "Pass",
        "exactly",
    ),
    "26 two of them, of which an edit leaves one": (
        specschedule(),
        deployment(f"--speculative-config={json.dumps(STATIC)}"),
        {},
        True,
        "arguments",
        "Pass",
        "exactly",
    ),
    "26 JSON with extra quotes": (
        specschedule(),
        deployment("--speculative-config", "'{}'", speculative=None),
        {},
        False,
        "arguments",
        "Fail",
        "quotes",
    ),
    "26 dotted": (
        specschedule(),
        deployment(
            "--speculative-config.method",
            "ngram",
            "--speculative-config.num_speculative_tokens",
            "4",
            speculative=None,
        ),
        {},
        True,
        "arguments",
        "Pass",
        "exactly",
    ),
    "26 inside a shell": (
        specschedule(),
        deployment(
            speculative=None,
            command=["sh", "-c"],
            args=[f"vllm serve m --max-num-seqs 16 --speculative-config '{json.dumps(STATIC)}'"],
        ),
        {},
        True,
        "arguments",
        "Pass",
        "exactly",
    ),
    "27 a map instead of rows": (
        specschedule({"1-8": 3, "9-16": 1}),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "write [[1, 8, 3], [9, 16, 1]]",
    ),
    "28 start past end": (
        specschedule([[8, 1, 3]]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "rows[0]",
    ),
    "28 negative tokens": (
        specschedule([[1, 8, -1]]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "rows[0]",
    ),
    "28 no rows": (
        specschedule([]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "at least one row",
    ),
    "28 two numbers": (
        specschedule([[1, 8]]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "rows[0]",
    ),
    "29 mixed rows": (
        specschedule([[1, 16, 3], [17, 64, 1, 4096, 1]]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "cannot be mixed",
    ),
    "29 three of four cells": (
        specschedule([[1, 8, 1, 4096, 3], [1, 8, 4097, 131072, 5], [9, 16, 1, 4096, 1]]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "3 of 4 cells",
    ),
    "29 a gap of contexts": (
        specschedule([[1, 16, 1, 4096, 3], [1, 16, 5000, 131072, 5]]),
        deployment(),
        {},
        False,
        "schedule",
        "Fail",
        "4097-4999",
    ),
    "30 a second source of tokens": (
        specschedule(),
        deployment(speculative={**STATIC, "num_speculative_tokens_per_seq_len": [[1, 9, 1]]}),
        {},
        False,
        "tokenSource",
        "Fail",
        "num_speculative_tokens_per_seq_len",
    ),
    "35 engines that disagree": (
        specschedule(),
        deployment(),
        {
            "metrics": IDLE + 'vllm:spec_decode_num_drafts_total{engine="0"} 100\n'
            'vllm:spec_decode_num_drafts_total{engine="1"} 100\n'
            'vllm:spec_decode_num_draft_tokens_total{engine="0"} 400\n'
            'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 300\n'
            'vllm:spec_decode_num_accepted_tokens_total{engine="1"} 0\n'
        },
        True,
        "acceptance",
        "Pass",
        "acceptance length 2.500; engines disagree",
    ),
    "36 another engine": (
        specschedule(),
        deployment(image="lmsysorg/sglang:v0.5"),
        {},
        False,
        "engine",
        "Fail",
        "SGLang",
    ),
    "36 a model named after another engine": (
        specschedule(),
        deployment(command=["vllm", "serve", "/models/ollama-x"]),
        {},
        True,
        "engine",
        "Pass",
        "runs vLLM",
    ),
    "36 a drafter of another engine's makers": (
        specschedule(),
        deployment(
            speculative=None,
            args=[
                "--speculative-config",
                json.dumps({**STATIC, "model": "lmsys/sglang-EAGLE3"}),
                "--max-num-seqs=16",
            ],
        ),
        {},
        True,
        "engine",
        "Pass",
        "runs vLLM",
    ),
    "36 another engine behind a wrapper": (
        specschedule(),
        deployment(image="own/llm:1", command=["tini", "--", "text-generation-launcher"]),
        {},
        False,
        "engine",
        "Fail",
        "Text Generation Inference",
    ),
    "37 a key that vLLM does not know": (
        specschedule(),
        deployment(speculative={**STATIC, "adaptive_verification": True}),
        {},
        False,
        "speculative",
        "Fail",
        "refuses to start with: key adaptive_verification is not one of vLLM 0.32; it is "
        "enable_adaptive_verification there",
    ),
    "37 a key that another version may know": (
        specschedule(),
        deployment(
            image="vllm/vllm-openai:v0.33.0", speculative={**STATIC, "adaptive_verification": True}
        ),
        {},
        True,
        "speculative",
        "Pass",
        "another version may take it",
    ),
    "37 a method that vLLM does not know": (
        specschedule(),
        deployment(speculative={**STATIC, "method": "bogus"}),
        {},
        False,
        "speculative",
        "Fail",
        'method "bogus" is not one of vLLM 0.32',
    ),
    "37 several methods": (
        specschedule(),
        deployment(speculative={**STATIC, "method": ["eagle3"]}),
        {},
        False,
        "speculative",
        "Fail",
        'method ["eagle3"]',
    ),
    "37 fewer tokens than none": (
        specschedule(),
        deployment(speculative={**STATIC, "num_speculative_tokens": -1}),
        {},
        False,
        "speculative",
        "Fail",
        "num_speculative_tokens -1 is no whole number from 1",
    ),
    "37 no number of tokens": (
        specschedule(),
        deployment(speculative={**STATIC, "num_speculative_tokens": float("nan")}),
        {},
        False,
        "speculative",
        "Fail",
        "num_speculative_tokens NaN",
    ),
    "37 a number in quotes, which vLLM takes": (
        specschedule(),
        deployment(speculative={**STATIC, "num_speculative_tokens": "4"}),
        {},
        True,
        "speculative",
        "Pass",
        "eagle3",
    ),
    "37 no sequences": (
        specschedule(),
        deployment("--max-num-seqs", "0"),
        {},
        False,
        "arguments",
        "Fail",
        "--max-num-seqs is 0: vLLM wants 1 or more",
    ),
    "37 fewer sequences than none": (
        specschedule(),
        deployment("--max-num-seqs=-5"),
        {},
        False,
        "arguments",
        "Fail",
        "--max-num-seqs is -5",
    ),
    "37 no ranks": (
        specschedule(),
        deployment("-dp", "0"),
        {},
        False,
        "arguments",
        "Fail",
        "-dp is 0",
    ),
    "37 a variable that is no number": (
        specschedule(),
        deployment(env=[{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "true"}]),
        {},
        False,
        "modelRunner",
        "Fail",
        "VLLM_USE_V2_MODEL_RUNNER is 'true': vLLM refuses to start",
    ),
    "37 the start that it fails": (
        specschedule(),
        deployment(),
        {
            "log": "1 validation error for SpeculativeConfig\nadaptive_verification\n"
            "  Unexpected keyword argument [type=unexpected_keyword_argument]\n"
        },
        False,
        "start",
        "Fail",
        "engine refuses option adaptive_verification",
    ),
    "49 nothing drafted is not available": (
        specschedule(),
        deployment(),
        {"metrics": IDLE},
        True,
        "acceptance",
        "NotApplicable",
        "n/a",
    ),
}


@pytest.mark.parametrize(
    ("schedule", "target", "seen", "accepted", "gate", "verdict", "said"),
    CASES.values(),
    ids=CASES.keys(),
)
def test_a_field_case_meets_its_right_behaviour(
    preflight, schedule, target, seen, accepted, gate, verdict, said
):
    answer = preflight(schedule, target, **seen)
    found = next(each for each in answer["gates"] if each["gate"] == gate)
    assert (found["answer"], answer["accepted"]) == (verdict, accepted), answer
    assert said in found["message"]
    assert all(each["reason"].isidentifier() for each in answer["gates"])


def test_another_name_a_version_that_is_none_and_a_bare_number_get_one_line(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(specschedule(target={"name": "other"})))
    (tmp_path / "right.yaml").write_text(yaml.safe_dump(specschedule()))
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(specschedule(slo={"ttft": 500})))
    (tmp_path / "target.yaml").write_text(yaml.safe_dump(deployment()))
    target = ["--target", str(tmp_path / "target.yaml")]
    for arguments, said in (
        (["-f", str(tmp_path / "spec.yaml")], "holds Deployment chat, but spec.target.name is"),
        (["-f", str(tmp_path / "right.yaml"), "--engine-version", "abc"], "--engine-version abc"),
        (["-f", str(tmp_path / "right.yaml"), "--engine-version", "not 0 32 0"], "as 0.32.0"),
        # Seconds or milliseconds? The API server refuses a bare number too.
        (["-f", str(tmp_path / "bare.yaml")], "spec.slo.ttft: Value error, 500 has no unit"),
    ):
        result = CliRunner().invoke(main, ["preflight", *arguments, *target])
        assert result.exit_code == 2
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_the_exit_code_tells_on_request_whether_the_run_is_accepted(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(specschedule()))
    command = ["preflight", "-f", str(tmp_path / "spec.yaml"), "--target"]
    for name, target, code in (("good", deployment(), 0), ("bad", deployment("-dp", "2"), 1)):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(target))
        asked = CliRunner().invoke(main, [*command, str(path), "--exit-code"])
        assert (asked.exit_code, asked.stderr) == (code, "")
        assert "dataParallel" in asked.output
        assert CliRunner().invoke(main, [*command, str(path)]).exit_code == 0


def test_a_drafters_own_files_answer_the_gate_of_its_block_size(tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(specschedule()))
    (tmp_path / "target.yaml").write_text(
        yaml.safe_dump(deployment(speculative=STATIC | {"method": "dspark"}))
    )
    command = ["preflight", "-f", str(tmp_path / "spec.yaml"), "-o", "json"]
    command += ["--target", str(tmp_path / "target.yaml"), "--drafter", str(tmp_path)]
    config = tmp_path / "config.json"
    for text, reason in (('{"block_size": 3}', "BeyondBlock"), ('{"block_size": 4}', "Holds")):
        config.write_text(text)
        gates = json.loads(CliRunner().invoke(main, command).output)["gates"]
        assert next(gate for gate in gates if gate["gate"] == "blockSize")["reason"] == reason
    for text, said in (("{", "not JSON"), ("{}", "names no block_size"), ("[]", "no block_size")):
        config.write_text(text)
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_watch_without_a_usable_kubeconfig_gets_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = CliRunner().invoke(main, ["watch", "chat", "-n", "llm"])
    assert result.exit_code == 2
    assert "specschedule llm/chat cannot be read: no usable kubeconfig" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_14_and_16_name_an_unavailable_number_of_tokens():
    sizes = start_failure(
        "ValueError: No valid cudagraph sizes after rounding to multiple of 3 (num"
    )
    assert (sizes.reason, sizes.retry) == ("GraphSizes", False)
    block = start_failure(
        "ValueError: DSpark requires num_speculative_tokens to match the block_size (7); got 5."
    )
    assert (block.reason, block.retry) == ("BlockSize", False)


def test_35_counters_are_summed_over_engines():
    text = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 100\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 100\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 300\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="1"} 0\n'
    )
    assert read_metrics(text).acceptance_length == 2.5


def test_the_serving_kv_cache_tells_before_the_run_which_points_are_left_out(preflight):
    def asked(tokens, **spec):
        load = {"points": [1, 6, 16], "promptTokens": 256, "outputTokens": 128}
        page = (
            IDLE
            + f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{tokens // 16}"}} 1.0\n'
        )
        answer = preflight(specschedule(load=load, **spec), deployment(), metrics=page)
        (found,) = [each for each in answer["gates"] if each["gate"] == "kvCache"]
        return answer["accepted"], found["answer"], found["reason"], found["message"]

    assert asked(16 * 384)[:3] == (True, "Pass", "Holds")
    accepted, verdict, reason, said = asked(16 * 384 - 16)
    assert (accepted, verdict, reason) == (True, "Pass", "PointsLeftOut")
    assert said.startswith("16 in flight of 384 tokens do not fit")
    bar = {"improve": [{"metric": "goodput", "by": "15%", "at": [16]}]}
    assert asked(16 * 384 - 16, bar=bar)[:3] == (False, "Fail", "BeyondKvCache")
