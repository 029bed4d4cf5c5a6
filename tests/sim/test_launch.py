"""vLLM's command line is read, resolved and refused as vLLM does it."""

import json
from collections.abc import Mapping

import pytest

from specschedule.sim.arguments import Refused
from specschedule.sim.engine import Graphs
from specschedule.sim.faults import Fault, Planted
from specschedule.sim.launch import Launch, read
from specschedule.sim.worlds import WORLDS

SCHEDULE = [[1, 2, 5], [3, 16, 1]]


def speculative(**fields: object) -> list[str]:
    config = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 5, **fields}
    return ["--speculative-config", json.dumps(config)]


def scheduled(rows: object = SCHEDULE, **fields: object) -> list[str]:
    return speculative(num_speculative_tokens_per_batch_size=rows, **fields)


def launch_of(
    argv: list[str],
    environment: Mapping[str, str] = {},
    world: str = "demo",
    planted: Planted = Planted(),
) -> Launch:
    return read(argv, environment, WORLDS[world], planted=planted)


@pytest.mark.parametrize(
    "argv",
    [
        ["--max-num-seqs", "8", "--model", "m", *scheduled()],
        ["--max_num_seqs=8", "--model=m", *scheduled()],
        ["serve", "m", "--max-num-seqs", "8", *scheduled()],
        ["m", "--max-num-seqs", "8", "-sc", scheduled()[1]],
        [
            *["m", "--max-num-seqs", "8", "--speculative-config.method", "eagle3"],
            *["--speculative-config.model", "draft"],
            *["--speculative-config.num_speculative_tokens=5"],
            *["--speculative_config.num_speculative_tokens_per_batch_size", "[[1,2,5],[3,16,1]]"],
        ],
    ],
)
def test_every_spelling_means_the_same_launch(argv: list[str]) -> None:
    launch = launch_of(argv)
    assert launch.model == "m"
    assert launch.served == ("m",)
    assert launch.settings.max_num_seqs == 8
    assert launch.settings.max_tokens == 5
    assert launch.rows == ((1, 2, 5), (3, 16, 1))
    assert launch.settings.tokens_for is not None
    assert [launch.settings.tokens_for(b, 1) for b in (1, 2, 3, 8)] == [5, 5, 1, 1]


def test_a_config_file_is_read_and_the_command_line_wins() -> None:
    text = (
        "max-num-seqs: 4\nport: 9000\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    launch = read(
        ["m", "--config", "f.yaml", "--port", "9001"],
        {},
        WORLDS["demo"],
        read_file={"f.yaml": text}.__getitem__,
    )
    assert (launch.settings.max_num_seqs, launch.port) == (4, 9001)
    assert launch.settings.max_tokens == 2


def test_other_vllm_flags_are_accepted_and_noted() -> None:
    launch = launch_of(
        ["m", "--gpu-memory-utilization", "0.9", "--trust-remote-code", "-tp", "2", "-O3"]
    )
    assert launch.non_default["gpu_memory_utilization"] == 0.9
    assert launch.non_default["trust_remote_code"] is True
    assert launch.non_default["tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("sentence", "argv", "status", "words"),
    [
        ("an unknown flag", ["--no-such-thing", "3"], 2, "unrecognized arguments: --no-such-thing"),
        ("a stray word", ["m", "n"], 2, "unrecognized arguments: n"),
        ("a word for a number", ["--max-num-seqs", "many"], 2, "invalid int value: 'many'"),
        ("no sequences", ["--max-num-seqs", "0"], 1, "must be greater than 0"),
        ("no JSON", ["--speculative-config", "{oops"], 2, "not JSON"),
        (
            "an unknown key",
            speculative(adaptive_verification=True),
            1,
            "adaptive_verification\n  Unexpected keyword argument",
        ),
        ("no tokens", ["--speculative-config", '{"method":"mtp"}'], 1, "must be provided"),
        ("no drafter", speculative(model=None), 1, "without speculative model"),
        ("tokens of 0", speculative(num_speculative_tokens=0), 1, "greater than 0"),
        ("a mapping for rows", scheduled({"1-8": 3}), 1, "Input should be a valid list"),
        ("rows of two", scheduled([[1, 8]]), 1, "Field required"),
        ("rows of five", scheduled([[1, 16, 1, 256, 4]]), 1, "at most 3 items"),
        ("half a token", scheduled([[1, 8, 2.5]]), 1, "fractional part"),
        ("a cache below one request", ["--num-gpu-blocks-override", "2"], 1, "more KV cache"),
        (
            "a graph mode that is none",
            ["-cc.cudagraph_mode", "SOMETIMES"],
            1,
            "Invalid cudagraph_mode: SOMETIMES",
        ),
    ],
)
def test_refused_before_the_model_is_loaded(
    sentence: str, argv: list[str], status: int, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        launch_of(argv)
    assert refused.value.status == status
    assert words in refused.value.message, sentence


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[8, 1, 3]], "Batch-size range start must be <= end for (8, 1, 3)."),
        ([[0, 8, 3]], "Batch-size range (0, 8) must be positive."),
        ([[1, 8, -1]], "num_speculative_tokens_per_batch_size values must be >= 0."),
        ([[1, 8, 3], [8, 9, 1]], "Batch-size ranges must be non-overlapping and sorted."),
        ([[2, 8, 3]], "The first batch-size range must start at 1 so every runtime batch size"),
        ([], "num_speculative_tokens_per_batch_size must not be empty."),
    ],
)
def test_bad_rows_are_refused_only_when_the_scheduler_is_built(
    rows: list[list[int]], words: str
) -> None:
    launch = launch_of(scheduled(rows))
    assert launch.late_refusal is not None
    assert words in launch.late_refusal


def test_an_empty_schedule_on_runner_v1_runs_static_and_still_loses_full_graphs() -> None:
    launch = launch_of(scheduled([]), {"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert launch.late_refusal is None
    assert launch.settings.tokens_for is None
    assert launch.settings.graphs is Graphs.PIECEWISE


def test_numeric_strings_in_rows_are_accepted_as_vllm_accepts_them() -> None:
    assert launch_of(scheduled([["1", "16", "2"]])).rows == ((1, 16, 2),)


def test_five_number_rows_work_in_the_world_of_their_pull_request() -> None:
    rows = [[1, 64, 1, 512, 1], [1, 64, 513, 4096, 3]]
    launch = launch_of(scheduled(rows), world="context-axis")
    assert launch.settings.tokens_for is not None
    assert launch.settings.tokens_for(8, 100) == 1
    assert launch.settings.tokens_for(8, 600) == 3


@pytest.mark.parametrize(
    ("sentence", "argv", "environment", "runner", "config", "in_effect"),
    [
        ("V2 keeps full graphs", scheduled(), {}, "V2", "FULL_AND_PIECEWISE", Graphs.FULL),
        (
            "V1 loses them with a schedule",
            scheduled(),
            {"VLLM_USE_V2_MODEL_RUNNER": "0"},
            "V1",
            "PIECEWISE",
            Graphs.PIECEWISE,
        ),
        (
            "V1 keeps them without one",
            speculative(),
            {"VLLM_USE_V2_MODEL_RUNNER": "0"},
            "V1",
            "FULL_AND_PIECEWISE",
            Graphs.FULL,
        ),
        ("eager has none", [*scheduled(), "--enforce-eager"], {}, "V2", "NONE", Graphs.NONE),
        (
            "a mode asked for is kept",
            [*speculative(), "--compilation-config", '{"cudagraph_mode":"PIECEWISE"}'],
            {},
            "V2",
            "PIECEWISE",
            Graphs.PIECEWISE,
        ),
        (
            "V2 lacks suffix, so V1 runs",
            scheduled(method="suffix", model=None),
            {},
            "V1",
            "PIECEWISE",
            Graphs.PIECEWISE,
        ),
    ],
)
def test_runner_and_graph_mode(
    sentence: str,
    argv: list[str],
    environment: dict[str, str],
    runner: str,
    config: str,
    in_effect: Graphs,
) -> None:
    launch = launch_of(argv, environment)
    found = (launch.runner, launch.graphs_config, launch.settings.graphs)
    assert found == (runner, config, in_effect), sentence


def test_v2_forced_for_a_method_it_lacks_is_refused() -> None:
    with pytest.raises(Refused, match="does not yet support"):
        launch_of(speculative(method="suffix"), {"VLLM_USE_V2_MODEL_RUNNER": "1"})


def test_data_parallelism_drops_the_schedule() -> None:
    launch = launch_of([*scheduled(), "-dp", "2"])
    assert launch.rows is None
    assert launch.settings.tokens_for is None
    assert launch.settings.max_tokens == 5


@pytest.mark.parametrize(
    ("method", "runner", "ignores", "dies"),
    [
        ("eagle", "V2", False, False),
        ("draft_model", "V2", True, False),
        ("draft_model", "V1", False, False),
        ("ngram_gpu", "V1", False, True),
        ("suffix", "V1", False, True),
    ],
)
def test_drafters_honour_ignore_or_die_of_the_tokens_chosen(
    method: str, runner: str, ignores: bool, dies: bool
) -> None:
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "V2" else "0"}
    launch = launch_of(scheduled(method=method), environment)
    assert launch.settings.drafter_ignores_tokens is ignores
    assert launch.dies_of_fewer_tokens is dies


def test_faults_concern_the_launches_in_their_scope() -> None:
    stalled = (Fault.STALLED.value,)
    for scope, none, static, schedule in (
        ("schedule", False, False, True),
        ("speculative", False, True, True),
        ("all", True, True, True),
    ):
        planted = Planted.parse(stalled, scope)
        found = [
            launch_of(argv, planted=planted).hits(Fault.STALLED)
            for argv in ([], speculative(), scheduled())
        ]
        assert found == [none, static, schedule]


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="not one of silent-disable"):
        Planted.parse(("gremlins",))


def test_served_names_keys_and_buckets() -> None:
    launch = launch_of(
        [
            *["m", "--served-model-name", "a", "b", "--api-key", "k1", "k2"],
            *["--custom-histogram-buckets", '{"time_to_first_token":[0.25,0.5]}'],
        ],
        {"VLLM_SERVER_DEV_MODE": "1"},
    )
    assert launch.served == ("a", "b")
    assert launch.api_keys == ("k1", "k2")
    assert launch.buckets == {"time_to_first_token": (0.25, 0.5)}
    assert launch.development
    assert launch_of([], {"VLLM_API_KEY": "k"}).api_keys == ("k",)
