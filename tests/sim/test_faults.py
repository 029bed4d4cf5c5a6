"""Each planted fault shows itself as vLLM would show it, and only in the launches it concerns."""

import json
import threading
import time

import pytest
from click.testing import CliRunner

from specschedule.cli.sim import command
from specschedule.sim.worlds import WORLDS

OVERRIDE = (
    "Dynamic speculative decoding changes the target verification length at runtime. Overriding "
    "cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE for reliability."
)
RUNNER_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def ask(number: int = 1, **fields: object) -> dict[str, object]:
    return {
        "prompt": [number] * 16,
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 0,
        **fields,
    }


def held(process, count: int) -> list[tuple[int, object]]:
    """Send requests together and wait for all answers."""
    answers: list[tuple[int, object]] = []

    def one(number: int) -> None:
        answers.append(process.post("/v1/completions", ask(number, max_tokens=64)))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_a_good_start_says_what_vllm_says(start, dynamic) -> None:
    with start("--world", "demo", *dynamic) as process:
        info = process.log
    text = "\n".join(info)
    for message in (
        "vLLM server version 0.32.0, serving model sim/model",
        "non-default args: {",
        "Initializing a V1 LLM engine (v0.32.0) with config: ",
        "SpeculativeConfig(method='eagle3', model='draft', num_spec_tokens=5)",
        "Using V2 Model Runner",
        "Loading drafter model...",
        "GPU KV cache size: 400,000 tokens, Maximum concurrency for 8,192 tokens per request: ",
        "Graph capturing finished in",
        "Starting vLLM server on http://127.0.0.1:",
    ):
        assert message in text, message
    assert "WARNING" not in text
    assert all(line.startswith(("(", "simulated", "INFO:     ", "listening")) for line in info)


def test_runner_v1_says_once_that_it_gives_up_full_graphs_for_a_schedule(
    start, dynamic, static
) -> None:
    with start(*dynamic, **RUNNER_V1) as scheduled, start(*static, **RUNNER_V1) as fixed:
        assert scheduled.text.count(OVERRIDE) == 1
        assert OVERRIDE not in fixed.text
        assert scheduled.get("/sim")[1]["graphs"] == "PIECEWISE"
        assert fixed.get("/sim")[1]["graphs"] == "FULL"
        assert "Using V2 Model Runner" not in scheduled.text + fixed.text


def test_data_parallelism_loses_the_schedule_with_a_warning_only(start, dynamic) -> None:
    with start(*dynamic, "--data-parallel-size", "2", VLLM_SERVER_DEV_MODE="1") as process:
        assert "Disabling num_speculative_tokens_per_batch_size and falling back to static " in (
            process.text
        )
        _, info = process.get("/server_info?config_format=json")
        config = info["vllm_config"]["speculative_config"]
        assert config["num_speculative_tokens_per_batch_size"] is None
        held(process, 6)
        counted = process.metrics()
    drafted = counted["vllm:spec_decode_num_draft_tokens_total"]
    assert drafted == 5 * counted["vllm:spec_decode_num_drafts_total"]


def test_silent_disable_says_nothing_at_all(start, dynamic) -> None:
    with start(*dynamic, "--fault", "silent-disable") as process:
        held(process, 6)
        counted = process.metrics()
    assert "Disabling" not in process.text
    drafted = counted["vllm:spec_decode_num_draft_tokens_total"]
    assert drafted == 5 * counted["vllm:spec_decode_num_drafts_total"]


def test_worker_downgrade_is_in_the_log_and_not_in_server_info(start, dynamic) -> None:
    with start(*dynamic, "--fault", "worker-downgrade", VLLM_SERVER_DEV_MODE="1") as process:
        assert "setting cudagraph_mode=PIECEWISE" in process.text
        _, info = process.get("/server_info?config_format=json")
        assert info["vllm_config"]["compilation_config"]["cudagraph_mode"] == [2, 1]
        assert process.get("/sim")[1]["graphs"] == "PIECEWISE"


def test_a_drafter_that_ignores_k_costs_time_and_no_counter_shows_it(start) -> None:
    zero = {"method": "eagle3", "model": "d", "num_speculative_tokens": 5}
    zero["num_speculative_tokens_per_batch_size"] = [[1, 16, 0]]
    arm = ["--seed", "1", "--speculative-config", json.dumps(zero)]
    with start(*arm, "--fault", "drafter-ignores-k") as process:
        events = process.events("/v1/completions", ask(max_tokens=60, sim_timestamps=True))
        (told,) = events[-1]["sim"]
        assert process.metrics()["vllm:spec_decode_num_drafts_total"] == 0
    # Five drafter passes of 0.8 ms in each step, where a drafter that listens runs one.
    span = told["last_token_written"] - told["arrived"]
    assert span > 60 * (0.0092 + 5 * 0.0008) * 0.98


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("crash-at-capture", "AssertionError"),
        ("oom", "torch.OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_a_start_that_fails_ends_with_status_1_and_its_reason(
    start, dynamic, fault: str, words: str
) -> None:
    with start(*dynamic, "--fault", fault) as process:
        assert process.wait() == 1
        assert process.url == ""
        assert words in process.text
        assert "Engine core initialization failed" in process.log[-1]


def test_bad_rows_cost_a_whole_load_before_they_are_refused(start) -> None:
    config = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    config["num_speculative_tokens_per_batch_size"] = [[8, 1, 3]]
    began = time.monotonic()
    with start("--boot", "700ms", "--speculative-config", json.dumps(config)) as process:
        assert process.wait() == 1
    assert time.monotonic() - began > 0.7
    assert "Starting to load model" in process.text
    assert "ValueError: Batch-size range start must be <= end for (8, 1, 3)." in process.text


def test_a_crash_at_the_boundary_takes_the_server_down_in_the_window(start, dynamic) -> None:
    with start(*dynamic, "--fault", "crash-at-boundary") as process:
        status, _ = process.post("/v1/completions", ask())
        assert status == 200
        held_or_dead(process)
        assert process.wait() == 1
    assert "The size of tensor a (2) must match the size of tensor b (6)" in process.text
    assert "EngineDeadError" in process.text


def held_or_dead(process) -> None:
    """Send six requests whose connections may be cut."""

    def one(number: int) -> None:
        try:
            process.post("/v1/completions", ask(number, max_tokens=64))
        except OSError:
            return

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_methods_that_insist_on_their_full_length_die_on_runner_v1(start) -> None:
    config = {"method": "ngram_gpu", "num_speculative_tokens": 3}
    config["num_speculative_tokens_per_batch_size"] = [[1, 1, 3], [2, 16, 1]]
    arguments = ["--speculative-config", json.dumps(config)]
    with start(*arguments, **RUNNER_V1) as process:
        held_or_dead(process)
        assert process.wait() == 1
    assert "AssertionError: num_speculative_tokens == self.num_speculative_tokens" in process.text


def test_hidden_warning_hides_the_warning_and_everything_below(start, dynamic) -> None:
    with start(*dynamic, "--fault", "hidden-warning", **RUNNER_V1) as process:
        assert process.get("/sim")[1]["graphs"] == "PIECEWISE"
        assert [line for line in process.log if line.startswith("(")] == []


def test_json_logs_carry_the_same_messages(start, dynamic) -> None:
    with start(*dynamic, "--fault", "json-logs", **RUNNER_V1) as process:
        records = [json.loads(line) for line in process.log if line.startswith("{")]
    assert any(record["message"].startswith(OVERRIDE) for record in records)
    assert {"levelname", "message", "name", "processName", "process"} <= set(records[0])
    with start("--logging-config.formatter", "json") as process:
        assert any(line.startswith("{") for line in process.log)


def test_a_stalled_engine_answers_health_and_makes_no_token(start, dynamic) -> None:
    with start(*dynamic, "--fault", "stalled@2") as process:
        for number in range(2):
            assert process.post("/v1/completions", ask(number))[0] == 200
        threads = [threading.Thread(target=hopeless, args=(process, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        while process.metrics()["vllm:num_requests_waiting"] < 3:
            time.sleep(0.02)
        before = process.metrics()
        time.sleep(0.3)
        after = process.metrics()
        assert process.get("/health")[0] == 200
        assert after["vllm:num_requests_running"] == 0
        assert after["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"] == 48
        assert process.end() == 0
        for thread in threads:
            thread.join()


def hopeless(process, number: int) -> None:
    """Ask what will never be answered."""
    try:
        process.post("/v1/completions", ask(number))
    except OSError:
        return


def test_equivalence_differs_from_the_third_token_on(start, dynamic, static) -> None:
    texts = []
    for arm in (dynamic, static):
        with start(*arm, "--fault", "equivalence") as process:
            whole = process.post("/v1/completions", ask())[1]["choices"][0]["text"]
            events = process.events("/v1/completions", ask())
            streamed = "".join(event["choices"][0]["text"] for event in events)
            assert streamed == whole
            texts.append(whole)
    wrong, right = texts
    assert wrong[:8] == right[:8]
    assert wrong[8:12] != right[8:12]
    assert len(wrong) == len(right)


def test_errors_fail_every_completion_while_health_is_fine(start, dynamic) -> None:
    with start(*dynamic, "--fault", "errors") as process:
        assert process.get("/health")[0] == 200
        status, answer = process.post("/v1/completions", ask())
    assert status == 500
    assert answer["error"]["type"] == "InternalServerError"


def test_slow_start_boots_twenty_times_slower(start, dynamic) -> None:
    began = time.monotonic()
    with start("--boot", "100ms", *dynamic, "--fault", "slow-start") as process:
        assert process.url
    assert time.monotonic() - began > 2.0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--fault", "gremlins"], "--fault gremlins: not one of"),
        (["--fault", "stalled@soon"], "--fault stalled@soon"),
        (["--boot", "soon"], "'soon' is not a duration"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--world", "nowhere"], "'nowhere' is not one of"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(argv: list[str], words: str) -> None:
    result = CliRunner().invoke(command, argv)
    assert result.exit_code == 2
    assert words in result.output.splitlines()[-1]


def test_the_worlds_are_listed_with_their_sources() -> None:
    result = CliRunner().invoke(command, ["--worlds"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(WORLDS)
    assert "vLLM issue 49548" in result.output
