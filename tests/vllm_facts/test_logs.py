"""Start-up logs in every form, and what they tell."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.engine.settings import DEVICE_LINE, FINDING_LINE
from specschedule.vllm_facts.failures import start_failure
from specschedule.vllm_facts.logs import compiled_at, device_times, read_log, scheduler_finding
from specschedule.vllm_facts.metrics import read_metrics
from specschedule.vllm_facts.receipt import read_receipt, with_gpu_label

DISABLED = (
    "Dynamic speculative decoding is not supported with data parallelism because data-parallel "
    "ranks can select different speculative-token counts, causing DP divergence and deadlocks. "
    "Disabling num_speculative_tokens_per_batch_size and falling back to static "
    "num_speculative_tokens=4."
)
DOWNGRADED = (
    "Dynamic speculative decoding changes the target verification length at runtime. Overriding "
    "cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE for reliability. Use "
    "VLLM_USE_V2_MODEL_RUNNER=1 if you want to use full CUDA graphs."
)
WORKER = (
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend "
    "FLASHINFER (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
    "cudagraph_mode=PIECEWISE"
)
BANNER = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='org/m', speculative_config="
    "SpeculativeConfig(method='eagle3', model='org/d', num_spec_tokens=4), tokenizer='org/m', "
    "revision=None, quantization=fp8, device_config=cuda, enable_prefix_caching=True, "
    "compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
    "'cudagraph_capture_sizes': [1, 2, 4, 8]}"
)
ASKED = (
    "non-default args: {'speculative_config': {'num_speculative_tokens_per_batch_size': "
    "[[1, 8, 2]]}}"
)
STARTED = "init engine (profile, create kv cache, warmup model) took 12.00 s (compilation: 3.00 s)"


def plain(message, level="WARNING", process="EngineCore_DP0"):
    return f"({process} pid=7) {level} 11-29 10:00:00 [vllm.py:725] {message}"


FORMS = {
    "with a process prefix": plain,
    "with the opening bracket lost": lambda m, level="WARNING": plain(m, level)[1:],
    "bare": lambda m, level="WARNING": f"{level} 11-29 10:00:00 [vllm.py:725] {m}",
    "coloured": lambda m, level="WARNING": (
        f"\x1b[0;36m(EngineCore pid=7)\x1b[0;0m \x1b[33m{level}\x1b[0m "
        f"\x1b[90m11-29 10:00:00\x1b[0m {m}"
    ),
    "as one JSON object": lambda m, level="WARNING": json.dumps(
        {"asctime": "2026-11-29 10:00:00", "levelname": level, "name": "vllm", "message": m}
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (DISABLED, "ScheduleDisabled"),
        (DOWNGRADED, "GraphModeOverridden"),
        (WORKER, "GraphModeOverridden"),
        (
            "Model Runner V2 does not yet support suffix; using the V1 model runner instead.",
            "RunnerFallback",
        ),
        (
            "Async scheduling not supported with ngram-based speculative decoding and will be "
            "disabled.",
            "AsyncDisabled",
        ),
        ("Truncating max_cudagraph_capture_size to 40", "CaptureTruncated"),
        ("Compiling a graph for compile range (1, 2048) takes 12.10 s", "Tuned"),
    ],
)
def test_a_warning_is_found_in_every_form(form, message, kind):
    facts = read_log(form(message))
    assert facts.notes == [f"{kind}: {message}"]
    assert facts.level_hides_warnings is False


def test_a_log_without_lines_below_error_hides_warnings():
    assert read_log(plain("something broke", "ERROR")).level_hides_warnings is True
    assert read_log("INFO:     Application startup complete.\n").level_hides_warnings is True
    assert read_log(FORMS["as one JSON object"]("x", "ERROR")).level_hides_warnings is True
    assert read_log("").level_hides_warnings is None
    assert read_log("\x00\x03 what is this\n").level_hides_warnings is None
    assert read_log('{"level":"info","msg":"x"}').level_hides_warnings is False
    assert read_log('{"level":"error","msg":"x"}').level_hides_warnings is True
    assert read_log(plain("hello", "INFO")).level_hides_warnings is False


def test_the_time_of_compiling_and_capturing_is_told_where_the_log_tells_it():
    text = "\n".join(
        plain(said, "INFO")
        for said in (
            "torch.compile took 31.25 s in total",
            "[eagle_head] torch.compile took 4.50 s in total",
            "Graph capturing finished in 7 secs, took 0.53 GiB",
            "Encoder graph capturing finished in 90 secs, took 0.53 GiB (4 graphs)",
        )
    )
    receipt = read_receipt(log_text=text)
    assert (receipt.compile_seconds, receipt.capture_seconds) == (31.25, 7.0)
    silent = read_receipt(log_text=plain("hello", "INFO"))
    assert (silent.compile_seconds, silent.capture_seconds) == (None, None)


def started(*more):
    return "\n".join([plain(BANNER, "INFO"), *(plain(m) for m in more), plain(STARTED, "INFO")])


def test_the_banner_tells_the_configuration():
    facts = read_log(started())
    assert (facts.version, facts.model, facts.quantization) == ("0.32.0", "org/m", "fp8")
    assert (facts.drafter, facts.num_speculative_tokens) == ("org/d", 4)
    assert (facts.graph_mode, facts.captured_sizes) == ("FULL_AND_PIECEWISE", [1, 2, 4, 8])


def test_silence_is_only_taken_from_a_log_that_shows_the_whole_start():
    whole = read_log(started())
    assert (whole.model_runner, whole.async_scheduling) == ("V1", True)
    cut_off = read_log(plain(BANNER, "INFO"))
    assert (cut_off.model_runner, cut_off.async_scheduling, cut_off.graph_mode) == (
        None,
        None,
        None,
    )
    hidden = read_log(plain(STARTED, "INFO"))
    assert (hidden.model_runner, hidden.async_scheduling) == (None, None)
    assert read_log(started("Using V2 Model Runner")).model_runner == "V2"
    assert (
        read_log(
            started("Async scheduling is disabled because the V1 model runner")
        ).async_scheduling
        is False
    )


def test_the_workers_downgrade_counts_before_the_configuration():
    assert read_log(started(WORKER)).graph_mode == "PIECEWISE"
    assert read_log(started(DOWNGRADED)).graph_mode == "PIECEWISE"
    assert read_log(started(DOWNGRADED, WORKER.replace("=PIECEWISE", "=NONE"))).graph_mode == "NONE"


def test_cpu_has_one_backend_and_no_graphs():
    banner = BANNER.replace("device_config=cuda", "device_config=cpu").replace(
        "FULL_AND_PIECEWISE: (2, 1)", "NONE: 0"
    )
    facts = read_log("\n".join([plain(banner, "INFO"), plain(STARTED, "INFO")]))
    assert (facts.attention_backend, facts.graph_mode) == ("CPU_ATTN", "NONE")


CACHE = "/c/flashinfer_autotune_cache/0.6.14/103a/" + "82dc49d0" * 8
STARTS = "2026-08-06 21:07:57,815 - INFO - autotuner.py:651 - flashinfer.jit: [Autotuner]: "
AUTOTUNED = {
    "nothing to load": ([], False, 1),
    "the results of another launch": ([f"[Autotuner]: Loaded 10 configs from {CACHE}"], True, 0),
    "an empty file": ([f"[Autotuner]: Loaded 0 configs from {CACHE}"], False, 1),
}


@pytest.mark.parametrize("claim", AUTOTUNED)
def test_a_launch_that_autotuned_is_not_taken_for_warm(claim):
    loaded, warm, notes = AUTOTUNED[claim]
    facts = read_log(
        started(
            "Directly load AOT compilation from path /c/x",
            f"Using FlashInfer autotune cache file: {CACHE}/autotune_configs_dp0_rank0.json",
            *loaded,
            f"{STARTS}Autotuning process starts ...",
            f"{STARTS}Autotuning process ends",
        )
    )
    assert facts.autotune_hash == "82dc49d0" * 8
    assert facts.caches_warm is warm
    assert len([note for note in facts.notes if note.startswith("Tuned: ")]) == notes


def test_other_lines():
    facts = read_log(
        started(
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']",
            "Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN']",
            "GPU KV cache size: 123,456 tokens, Maximum concurrency for 8,192 tokens: 15.07x",
            "Using cache directory: /c/torch_compile_cache/0123456789/rank_0_0/backbone for vLLM's",
            "Directly load AOT compilation from path /c/x",
            ASKED,
        )
    )
    assert facts.attention_backend == "FLASH_ATTN"
    assert facts.kv_cache_tokens == 123_456
    assert facts.compile_hash == "0123456789"
    assert facts.caches_warm is True
    assert facts.schedule_asked == [[1, 8, 2]]


FAILURES = {
    "division by zero at a row with K=0": (
        [
            "Traceback (most recent call last):",
            "ZeroDivisionError: integer division or modulo by zero",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        ],
        "EngineExited",
        "ZeroDivisionError: integer division or modulo by zero",
    ),
    "an assertion while graphs are captured": (
        ["Capturing CUDA graphs (FULL):  40%", "AssertionError: captured length"],
        "FailedDuringCapture",
        "failed during graph capture",
    ),
    "the token budget": (
        ["ValueError: max_num_scheduled_tokens is set to -1792 based on the spec"],
        "TokenBudget",
        "-1792",
    ),
    "the block size": (
        [
            "ValueError: Qwen3-Omni DSpark requires num_speculative_tokens to match the trained "
            "block_size (7); got 5."
        ],
        "BlockSize",
        "block size",
    ),
    "graph sizes": (
        ["ValueError: No valid cudagraph sizes after rounding to multiple of 3 (num_"],
        "GraphSizes",
        "+ 1 = 3",
    ),
    "out of memory": (
        [
            "Capturing CUDA graphs (FULL)",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
        ],
        "OutOfMemory",
        "out of memory",
    ),
    "a refused option over two lines": (
        [
            "1 validation error for SpeculativeConfig",
            "adaptive_verification",
            "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=True]",
        ],
        "OptionRefused",
        "engine refuses option adaptive_verification",
    ),
    "a refused option in one line": (
        ["TypeError: __init__() got an unexpected keyword argument 'adaptive_verification'"],
        "OptionRefused",
        "adaptive_verification",
    ),
    "a flag that this build does not have": (
        ["usage: vllm serve [model_tag]", "vllm serve: error: unrecognized arguments: --old=1 x"],
        "OptionRefused",
        "engine refuses option --old:",
    ),
    "a flag whose value cannot be read": (
        ["api_server.py: error: argument --speculative-config/-sc: Value {' cannot be converted"],
        "OptionRefused",
        "engine refuses option --speculative-config:",
    ),
    "a forced runner without the method": (
        ["ValueError: Model Runner V2 does not yet support: suffix decoding"],
        "RunnerLacksMethod",
        "VLLM_USE_V2_MODEL_RUNNER",
    ),
    "instruments that the image's own PYTHONPATH hides": (
        ["ModuleNotFoundError: No module named 'specschedule'"],
        "InstrumentsNotFound",
        "without instruments",
    ),
    "an engine that knows no worker extension": (
        ["vllm: error: unrecognized arguments: --worker-extension-cls=specschedule.engine.x"],
        "InstrumentsNotFound",
        "without instruments",
    ),
    "a bad schedule": (
        ["ValueError: Batch-size range start must be <= end for (8, 1, 3)."],
        "BadSchedule",
        "schedule",
    ),
}


@pytest.mark.parametrize(("lines", "reason", "said"), FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("form", ["raw", "prefixed"])
def test_a_failed_start_is_named(lines, reason, said, form):
    text = "\n".join(f"(EngineCore pid=9) {line}" if form == "prefixed" else line for line in lines)
    failure = start_failure(text)
    assert failure.reason == reason
    assert said in failure.message


def test_a_killed_container_is_out_of_memory_and_an_unknown_end_may_be_tried_again():
    assert start_failure("INFO: ok", exit_code=137).reason == "OutOfMemory"
    assert start_failure("").retry is True
    assert start_failure("ValueError: Batch-size range (0, 1) must be positive.").retry is False


METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="74880"} 1.0
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 100.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 3.0
"""


def test_metrics_are_summed_over_engines_that_may_disagree():
    scrape = read_metrics(METRICS)
    assert scrape.kv_cache_tokens == 74_880
    assert scrape.acceptance_length == 2.5
    assert scrape.engines_disagree
    assert scrape.requests_by_engine == (("0", 0.0, 3.0),)
    assert scrape.preemptions is None


def test_acceptance_length_pools_counts_and_is_absent_without_drafts():
    one = (
        "vllm:spec_decode_num_drafts_total 1010\nvllm:spec_decode_num_accepted_tokens_total 3000\n"
    )
    assert read_metrics(one).acceptance_length == pytest.approx(3.970, abs=5e-4)
    assert read_metrics("vllm:spec_decode_num_drafts_total 0\n").acceptance_length is None
    assert read_metrics("no metrics { at all").kv_cache_tokens is None


def test_blocks_give_the_cache_size_where_the_engine_does_not():
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1.0\n'
    assert read_metrics(text).kv_cache_tokens == 160


INFO = {
    "vllm_config": {
        "speculative_config": {
            "method": "eagle3",
            "model": "org/d",
            "num_speculative_tokens": 4,
            "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 16, 0]],
            "revision": None,
            "draft_model_config": {"revision": "def", "quantization": "fp8"},
        },
        "model_config": {"model": "org/m", "revision": "abc", "quantization": None},
        "scheduler_config": {"async_scheduling": True},
        "compilation_config": {"cudagraph_mode": [2, 1]},
    },
    "vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_BUILD_COMMIT": "0a1b2c3"},
    "system_env": {"torch_version": "2.13.0"},
}


def test_a_receipt_takes_each_fact_from_who_knows_it():
    receipt = read_receipt(
        version={"version": "0.32.0"},
        server_info=INFO,
        metrics_text=METRICS,
        log_text=started(WORKER),
    )
    assert receipt.engine_version == "0.32.0"
    assert receipt.schedule == [[1, 4, 4], [5, 16, 0]]
    assert receipt.graph_mode == "PIECEWISE"
    assert receipt.kv_cache_tokens == 74_880
    assert (receipt.model, receipt.model_revision, receipt.drafter) == ("org/m", "abc", "org/d")
    assert (receipt.drafter_revision, receipt.drafter_quantization) == ("def", "fp8")
    assert receipt.engine_commit == "0a1b2c3"
    unknown = INFO | {"vllm_env": {"VLLM_BUILD_COMMIT": "unknown"}}
    assert read_receipt(server_info=unknown).engine_commit is None
    assert receipt.torch_version == "2.13.0"


def test_without_a_log_the_resolved_graph_mode_is_not_known():
    assert read_receipt(server_info=INFO).graph_mode is None
    without = json.loads(json.dumps(INFO))
    without["vllm_config"]["compilation_config"]["cudagraph_mode"] = 0
    assert read_receipt(server_info=without).graph_mode == "NONE"


def test_a_schedule_that_was_asked_for_and_is_gone_is_noted():
    gone = json.loads(json.dumps(INFO))
    gone["vllm_config"]["speculative_config"]["num_speculative_tokens_per_batch_size"] = None
    receipt = read_receipt(server_info=gone, log_text=started(ASKED))
    assert any(note.startswith("ScheduleDisabled") for note in receipt.notes)
    assert receipt.schedule is None


FACTS = {
    "modelRunner": "V1",
    "graphMode": "FULL_AND_PIECEWISE",
    "capturedSizes": [1, 8],
    "graphsCaptured": 4,
    "attentionBackend": "FLASH_ATTN, TRITON_ATTN",
    "drafterClass": "EagleProposer",
    "asyncScheduling": True,
    "schedule": [[1, 4, 4], [5, 16, 0]],
    "numSpeculativeTokens": 4,
    "enforceEager": False,
    "gpu": "NVIDIA H200",
    "gpuMemoryBytes": 150_000_000_000,
    "torchVersion": "2.13.0",
}


def printed(**facts):
    return "specschedule.engine.fingerprint: " + json.dumps(FACTS | facts)


def test_the_worker_tells_what_no_log_does():
    receipt = read_receipt(log_text=f"{started(BANNER)}\n{printed()}")
    assert receipt.model == "org/m"
    assert receipt.schedule == [[1, 4, 4], [5, 16, 0]]
    assert (receipt.captured_sizes, receipt.graphs_captured) == ([1, 8], 4)
    assert (receipt.drafter, receipt.drafter_class) == ("org/d", "EagleProposer")
    assert (receipt.gpu, receipt.gpu_memory_bytes) == ("NVIDIA-H200", 150_000_000_000)
    assert receipt.instruments == ["fingerprint"]


@pytest.mark.parametrize("form", FORMS)
def test_the_workers_line_is_found_in_every_form_of_log(form):
    assert read_log(FORMS[form](printed())).fingerprint.graph_mode == "FULL_AND_PIECEWISE"


def test_only_the_first_line_counts_as_later_ones_may_be_a_users_words():
    text = f"{printed()}\n{printed(graphMode='FULL')}"
    assert read_log(text).fingerprint.graph_mode == "FULL_AND_PIECEWISE"


@pytest.mark.parametrize("line", ['{"graphMode": ["x"]}', '{"graphMode": "FUL', "{}}", "{"])
def test_a_line_that_cannot_be_read_is_no_fingerprint(line):
    receipt = read_receipt(log_text=f"specschedule.engine.fingerprint: {line}")
    assert (receipt.instruments, receipt.graph_mode) == (None, None)


APART = {
    "graph mode": (BANNER, {"graphMode": "PIECEWISE"}, "graphMode"),
    "model runner": ("Using V2 Model Runner", {}, "modelRunner"),
    "backend": ("Using FLASHINFER attention backend out of", {}, "attentionBackend"),
    "scheduling": ("Async scheduling is not supported with x", {}, "asyncScheduling"),
}


@pytest.mark.parametrize("fact", APART)
def test_worker_and_log_that_disagree_are_a_finding_and_the_worker_counts(fact):
    line, facts, name = APART[fact]
    receipt = read_receipt(log_text=f"{started(line)}\n{printed(**facts)}")
    (note,) = [note for note in receipt.notes if note.startswith("SourcesDisagree")]
    assert note.startswith(f"SourcesDisagree: {name} is {json.dumps((FACTS | facts)[name])}")
    assert receipt.plain()[name] == (FACTS | facts)[name]


def test_what_the_log_tells_by_silence_is_no_second_source():
    receipt = read_receipt(log_text=f"{started()}\n{printed(modelRunner='V2')}")
    assert receipt.model_runner == "V2"
    quiet = read_receipt(log_text=f"{started()}\n{printed(asyncScheduling=False)}")
    assert quiet.async_scheduling is False
    assert not [n for n in [*(receipt.notes or []), *(quiet.notes or [])] if "Disagree" in n]


def test_server_info_that_names_another_schedule_than_the_worker_is_a_finding():
    text = f"{started()}\n{printed(schedule=[[1, 16, 2]])}"
    receipt = read_receipt(server_info=INFO, log_text=text)
    assert receipt.schedule == [[1, 16, 2]]
    assert any("schedule is [[1, 16, 2]] in the worker" in note for note in receipt.notes)


def test_a_worker_that_knows_of_no_schedule_that_was_asked_for_is_noted():
    receipt = read_receipt(log_text=f"{started(ASKED)}\n{printed(schedule=[])}")
    assert any(note.startswith("ScheduleDisabled") for note in receipt.notes)
    assert receipt.schedule == []
    other = read_receipt(log_text=f"{started()}\n{printed(schedule=[])}")
    assert not any(note.startswith("ScheduleDisabled") for note in other.notes or [])


COUNTS = {"on": ("1.0", ["counters"]), "switched off": ("0.0", None)}


@pytest.mark.parametrize("state", COUNTS)
def test_counters_are_carried_while_the_recorder_counts(state):
    value, carried = COUNTS[state]
    text = (
        f"# TYPE specschedule_engine_recorder_on gauge\nspecschedule_engine_recorder_on {value}\n"
    )
    assert read_receipt(metrics_text=text).instruments == carried


LABELS = {
    "the same": ("NVIDIA-H200", "NVIDIA-H200", False),
    "one that is shared": ("NVIDIA-H200-SHARED", "NVIDIA-H200-SHARED", False),
    "one without the maker": ("H200", "H200", False),
    "another product": ("NVIDIA-A100", "NVIDIA-H200", True),
    "none": (None, "NVIDIA-H200", False),
}


@pytest.mark.parametrize("label", LABELS)
def test_a_nodes_label_is_held_against_the_device(label):
    text, product, apart = LABELS[label]
    receipt = with_gpu_label(read_receipt(log_text=printed()), text)
    assert receipt.gpu == product
    assert any("gpu is NVIDIA-H200 in the worker" in n for n in receipt.notes or []) is apart


def test_without_a_fingerprint_the_label_is_all_there_is():
    assert with_gpu_label(read_receipt(), "NVIDIA-A100").gpu == "NVIDIA-A100"


def test_nothing_read_is_nothing_known():
    assert read_receipt().plain() == {}


logs = st.lists(
    st.text(max_size=60)
    | st.sampled_from([DISABLED, DOWNGRADED, WORKER, BANNER, STARTED, METRICS])
    | st.sampled_from([f(m) for f in FORMS.values() for m in (DISABLED, BANNER)]),
    max_size=8,
).map("\n".join)


@pytest.mark.fuzz
@given(logs)
def test_any_log_is_read_without_a_fault(text):
    facts = read_log(text)
    assert facts.level_hides_warnings in (True, False, None)
    start_failure(text)
    read_metrics(text)
    assert read_receipt(log_text=text, metrics_text=text).plain() is not None


def test_what_is_compiled_while_serving_has_a_time():
    said = "Triton kernel JIT compilation during inference: k. This causes a latency spike; x"
    lines = [
        "2026-11-29T10:00:00.123456789Z INFO 11-29 10:00:00 [a.py:1] Application startup complete.",
        f"2026-11-29T10:00:05.5Z (EngineCore pid=7) WARNING 11-29 10:00:05 [jit.py:9] {said}",
        "2026-11-29T12:00:06+02:00 " + json.dumps({"message": said}),
    ]
    start = datetime(2026, 11, 29, 10, tzinfo=UTC).timestamp()
    assert compiled_at("\n".join(lines)) == [start + 5.5, start + 6.0]
    assert compiled_at("") == []


def test_an_acceptance_rate_of_nan_tells_nothing_and_breaks_nothing():
    """vLLM divides by the tokens drafted in an interval, also where there were none."""
    told = plain(
        "SpecDecoding metrics: Mean acceptance length: nan, Accepted throughput: 0.00 tokens/s, "
        "Drafted throughput: 0.00 tokens/s, Accepted: 0 tokens, Drafted: 0 tokens, "
        "Per-position acceptance rate: nan, nan, Avg Draft acceptance rate: nan%",
        "INFO",
        "APIServer",
    )
    before = "\n".join(plain(line, "INFO") for line in (BANNER, STARTED))
    assert read_log(f"{before}\n{told}\n") == read_log(before)
    json.dumps(read_receipt(log_text=f"{before}\n{told}\n").plain(), allow_nan=False)


@pytest.mark.parametrize(
    "quoting",
    [
        f"Received request c-1: prompt: '{DISABLED}', params: SamplingParams()",
        f"Request c-1 details: prompt: {DISABLED!r}, prompt_token_ids: None",
        f"Generated response c-1 (streaming): output: '{DISABLED}', finish_reason: stop",
    ],
)
def test_a_user_who_quotes_the_engine_is_not_the_engine(quoting):
    for line in (
        f"(APIServer pid=1) INFO 11-29 10:00:00 [request_logger.py:66] {quoting}",
        f"INFO 11-29 10:00:00 request_logger.py:66] {quoting}",
        json.dumps({"levelname": "INFO", "message": f"{quoting}"}),
    ):
        assert read_log(line).notes == [], line
    assert read_log(f"WARNING 11-29 10:00:00 [vllm.py:1] {DISABLED}").notes


FOUND = "K=2 was planned and 4 drafts were scheduled"
SAID = {
    "text": f"(EngineCore pid=7) ERROR 11-29 10:00:05 [scheduling.py:66] {FINDING_LINE}{FOUND}",
    "JSON": json.dumps({"levelname": "ERROR", "message": f"{FINDING_LINE}{FOUND}"}),
}


@pytest.mark.parametrize("form", SAID)
def test_what_a_scheduler_of_ours_found_is_read_from_the_log(form):
    before = "2026-11-29T10:00:00Z INFO 11-29 10:00:00 [a.py:1] Application startup complete."
    assert scheduler_finding(f"{before}\n2026-11-29T10:00:05.5Z {SAID[form]}\n") == FOUND
    assert scheduler_finding(before) is None


def timed(*told):
    return "\n".join(
        f"2026-11-29T10:00:0{at}Z (EngineCore pid=7) {DEVICE_LINE}{each}"
        for at, each in enumerate(told)
    )


def test_of_device_times_the_last_line_stands():
    first = json.dumps({"clock": "stream", "steps": [[4, 12, 10, 20.5, 9.25]]})
    last = json.dumps({"clock": "stream", "steps": [[4, 0, 30, 18.0, 0.0], [4, 12, 40, 20, 9.5]]})
    found = device_times(timed(first, last))
    assert found is not None
    assert (found.clock, found.absent) == ("stream", None)
    assert [tuple(step.plain().values()) for step in found.steps] == [
        (4, 0, 30, 18.0, 0.0),
        (4, 12, 40, 20.0, 9.5),
    ]
    absent = device_times(timed(first, json.dumps({"absent": "the timing failed: x"})))
    assert absent is not None
    assert (absent.steps, absent.absent) == ([], "the timing failed: x")


@pytest.mark.parametrize(
    "line",
    ["{}}", "[1]", '{"steps": [[1, 2]]}', '{"steps": [["a", 0, 1, 1, 1]]}', '{"steps": 3}'],
)
def test_device_times_that_cannot_be_read_are_none(line):
    assert device_times(timed(line)) is None
    assert device_times("") is None
