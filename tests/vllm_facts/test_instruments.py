"""What launches carry: the same in every arm, nothing of the target's overwritten."""

from typing import Any

import pytest

from specschedule.core import context_axis
from specschedule.core.spec import Slo
from specschedule.core.target import ServerFacts, Unreadable
from specschedule.engine.deliver import table_file
from specschedule.engine.fingerprint import Fingerprint
from specschedule.vllm_facts import instruments
from specschedule.vllm_facts.arguments import ArgumentEdit, edited_container, read_container
from specschedule.vllm_facts.instruments import (
    Instruments,
    arm_arguments,
    following,
    observing,
    probing,
    scheduled,
    timing,
    variables_with,
)
from specschedule.vllm_facts.launch import launch_of

SLO = Slo(ttft="500ms", tpot="12.5ms")
STEPS = ("--enable-logging-iteration-details", "--cudagraph-metrics")
FLAG = "--worker-extension-cls=specschedule.engine.fingerprint.Fingerprint"
DRAFTING = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}


def container(*args: str, **fields: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": list(args), **fields}


def server(of: dict[str, Any]) -> ServerFacts:
    facts = read_container(of)
    assert isinstance(facts, ServerFacts), facts
    return facts


def carried(of: dict[str, Any]) -> Instruments:
    return observing(of, server(of), SLO)


def words(of: dict[str, Any], **arm: Any) -> list[str]:
    edit = arm_arguments(of, instruments=carried(of), **arm)
    assert isinstance(edit, ArgumentEdit), edit
    launch = launch_of(edited_container(of, edit))
    assert not isinstance(launch, Unreadable), launch
    return [token.text for token in launch.tokens]


def test_the_class_is_the_one_that_is_delivered() -> None:
    named = f"{Fingerprint.__module__}.{Fingerprint.__qualname__}"
    assert named == instruments.FINGERPRINT


FORMS = {
    "list items": container("--model", "m", "--speculative-config", '{"method":"eagle3"}'),
    "one word": container("--model=m", '--speculative-config={"method":"eagle3"}'),
    "dotted": container("--model", "m", "--speculative-config.method", "eagle3"),
    "a shell": container(
        command=["sh", "-c", 'exec vllm serve m --speculative-config \'{"method":"eagle3"}\'']
    ),
    "no speculation": container("--model", "m"),
    "everything in the command": container(command=["vllm", "serve", "m", "--port", "80"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_arm_gets_the_same_words_behind_its_own(form: str) -> None:
    of = FORMS[form]
    plain = launch_of(of)
    assert not isinstance(plain, Unreadable)
    theirs = [token.text for token in plain.tokens]
    assert words(of, speculative="unchanged") == [*theirs, *STEPS, FLAG]
    without, drafting = words(of, speculative=None), words(of, speculative=DRAFTING)
    assert without[-3:] == drafting[-3:] == [*STEPS, FLAG]
    assert not any("speculative" in word for word in without)
    assert any("eagle3" in word for word in drafting)
    graphs = words(of, speculative=DRAFTING, graph_mode="PIECEWISE")
    assert graphs[-3:] == [*STEPS, FLAG]
    assert any("PIECEWISE" in word for word in graphs)


def test_the_limits_go_along_in_milliseconds() -> None:
    assert carried(container("--model", "m")).variables == {
        "SPECSCHEDULE_SLO_TTFT_MS": "500",
        "SPECSCHEDULE_SLO_TPOT_MS": "12.5",
        "SPECSCHEDULE_FINGERPRINT_LOG": "1",
        "SPECSCHEDULE_STEP_COUNTERS": "1",
    }


def test_without_instruments_an_unchanged_arm_is_not_edited() -> None:
    assert arm_arguments(container("--model", "m"), speculative="unchanged") is None


@pytest.mark.parametrize("form", ["--worker-extension-cls", "--worker_extension_cls"])
def test_a_worker_extension_of_the_targets_own_stays_and_the_counters_still_go_along(
    form: str,
) -> None:
    found = carried(container("--model", "m", form, "theirs.Extension"))
    assert found.arguments == STEPS
    assert set(found.variables) == {
        "SPECSCHEDULE_SLO_TTFT_MS",
        "SPECSCHEDULE_SLO_TPOT_MS",
        "SPECSCHEDULE_STEP_COUNTERS",
    }
    assert "theirs.Extension" in found.left_out[0]


def test_a_worker_extension_in_a_config_file_stays_too() -> None:
    of = container("--config", "/c.yaml")
    facts = read_container(of, config_files={"/c.yaml": "worker-extension-cls: theirs.E\n"})
    assert isinstance(facts, ServerFacts)
    assert observing(of, facts, SLO).arguments == STEPS


def test_arguments_that_some_arm_could_not_be_given_are_given_to_none() -> None:
    # The speculative config stands in command, what is added would stand in args.
    of = container("--port", "80", command=["vllm", "serve", "m", "-sc", '{"method":"eagle3"}'])
    assert not isinstance(arm_arguments(of, speculative=None), Unreadable)
    found = carried(of)
    assert found.arguments == ()
    assert "SPECSCHEDULE_STEP_COUNTERS" not in found.variables
    assert "command and args" in found.left_out[0]


HIDDEN = {
    "a script that sets it anew": ["sh", "-c", "export PYTHONPATH=/a; vllm serve m"],
    "a prefix that sets it anew": ["sh", "-c", "PYTHONPATH=/a vllm serve m"],
    "env that sets it anew": ["env", "PYTHONPATH=/a", "vllm", "serve", "m"],
    "env that starts empty": ["env", "-i", "vllm", "serve", "m"],
    "env that takes it away": ["env", "-u", "PYTHONPATH", "vllm", "serve", "m"],
    "a script that takes it away": ["sh", "-c", "unset PYTHONPATH; vllm serve m"],
    "an isolated Python": ["python3", "-I", "-m", "vllm.entrypoints.openai.api_server"],
    "a Python without environment": ["python3", "-u", "-E", "-m", "vllm.entrypoints.cli.main"],
}


@pytest.mark.parametrize("how", HIDDEN)
def test_nothing_is_carried_where_pythonpath_would_not_be_seen(how: str) -> None:
    of = container(command=HIDDEN[how])
    found = observing(of, ServerFacts(container="vllm"), SLO)
    assert not found.carried
    assert "container vllm: its command" in found.left_out[0]


SEEN = {
    "a script that adds to it": ["sh", "-c", "export PYTHONPATH=/a:$PYTHONPATH; vllm serve m"],
    "a script that adds to it in braces": [
        "sh",
        "-c",
        'PYTHONPATH="/a:${PYTHONPATH}" vllm serve m',
    ],
    "env with another variable": ["env", "A=b", "vllm", "serve", "m"],
    "an argument that looks like an option": ["vllm", "serve", "m", "-ep"],
    "a Python with options": ["python3", "-u", "-m", "vllm.entrypoints.openai.api_server"],
}


@pytest.mark.parametrize("how", SEEN)
def test_a_command_that_keeps_pythonpath_carries_all(how: str) -> None:
    of = container(command=SEEN[how])
    found = observing(of, ServerFacts(container="vllm"), SLO)
    assert (found.arguments, found.left_out) == ((*STEPS, FLAG), ())


def environment(env: list[dict[str, Any]], sourced: dict[str, str] | None = None) -> Any:
    return variables_with(container(env=env), Instruments((FLAG,)), "/ours", sourced)


REFERENCE = {"configMapKeyRef": {"name": "c", "key": "k"}}
PATHS = {
    "none": ([], [{"name": "PYTHONPATH", "value": "/ours"}]),
    "a value": (
        [{"name": "PYTHONPATH", "value": "/a:$(B)"}],
        [{"name": "PYTHONPATH", "value": "/a:$(B):/ours"}],
    ),
    "an empty value": (
        [{"name": "PYTHONPATH", "value": ""}],
        [{"name": "PYTHONPATH", "value": "/ours"}],
    ),
    "two values, of which the last counts": (
        [{"name": "PYTHONPATH", "value": "/a"}, {"name": "PYTHONPATH", "value": "/b"}],
        [{"name": "PYTHONPATH", "value": "/a"}, {"name": "PYTHONPATH", "value": "/b:/ours"}],
    ),
    "a reference": (
        [{"name": "PYTHONPATH", "valueFrom": REFERENCE}, {"name": "A", "value": "$(PYTHONPATH)"}],
        [
            {"name": "SPECSCHEDULE_THEIR_PYTHONPATH", "valueFrom": REFERENCE},
            {"name": "PYTHONPATH", "value": "$(SPECSCHEDULE_THEIR_PYTHONPATH):/ours"},
            {"name": "A", "value": "$(PYTHONPATH)"},
        ],
    ),
}


@pytest.mark.parametrize("given", PATHS)
def test_pythonpath_keeps_what_the_template_gives_it(given: str) -> None:
    env, expected = PATHS[given]
    assert environment(env) == expected


def test_pythonpath_from_a_config_map_as_a_whole_is_kept() -> None:
    assert environment([], {"PYTHONPATH": "/a"}) == [{"name": "PYTHONPATH", "value": "/a:/ours"}]


def test_a_choice_of_plugins_is_widened_and_none_is_made_where_there_was_none() -> None:
    chosen = environment([{"name": "VLLM_PLUGINS", "value": "lora"}])
    assert {"name": "VLLM_PLUGINS", "value": "lora,specschedule"} in chosen
    assert "VLLM_PLUGINS" not in {entry["name"] for entry in environment([])}


def test_a_limit_that_the_template_sets_is_the_runs_own() -> None:
    name = "SPECSCHEDULE_SLO_TTFT_MS"
    of = container("--model", "m", env=[{"name": name, "value": "1"}])
    entries = variables_with(of, carried(of), "/ours")
    assert [entry["value"] for entry in entries if entry["name"] == name] == ["500"]


def test_an_arm_with_a_scheduler_of_ours_carries_the_rest_as_well() -> None:
    of = container("--model", "m")
    found = scheduled(carried(of), of, server(of), instruments.PROBE, {"SECRET": "s"})
    assert isinstance(found, Instruments)
    assert found.arguments == (*STEPS, FLAG, f"--scheduler-cls={instruments.PROBE}")
    assert found.variables == {**carried(of).variables, "SECRET": "s"}


def test_a_scheduler_of_ours_makes_way_for_another_of_ours() -> None:
    of = container("--model", "m", "--scheduler-cls", context_axis.CLASS)
    found = scheduled(Instruments(), of, server(of), instruments.PROBE, {})
    assert isinstance(found, Instruments)
    assert found.arguments == (f"--scheduler-cls={instruments.PROBE}",)


TAKEN = {
    "a scheduler of its own": (container("--scheduler-cls", "theirs.S"), "SchedulerTaken"),
    "a hidden PYTHONPATH": (container(command=HIDDEN["env that starts empty"]), "PythonPathHidden"),
}


@pytest.mark.parametrize("why", TAKEN)
def test_a_scheduler_is_refused_by_name_where_it_cannot_run(why: str) -> None:
    of, reason = TAKEN[why]
    found = scheduled(Instruments(), of, server(of), instruments.PROBE, {})
    assert isinstance(found, Unreadable)
    assert found.reason == reason


def test_a_probe_carries_its_secret_and_a_page_on_loopback() -> None:
    of = container("--model", "m")
    found = probing(carried(of), of, server(of), "s3cret")
    assert found.arguments == (*STEPS, FLAG, f"--scheduler-cls={instruments.PROBE}")
    assert found.variables["SPECSCHEDULE_PROBE_SECRET"] == "s3cret"
    assert found.variables["SPECSCHEDULE_SCHEDULER_PORT"] == str(instruments.PROBE_PORT)
    assert found.left_out == carried(of).left_out


def test_a_screening_launch_times_its_device_where_the_worker_speaks() -> None:
    of = container("--model", "m")
    observed = carried(of)
    found = timing(observed)
    assert found.arguments == observed.arguments
    assert found.variables == {**observed.variables, "SPECSCHEDULE_DEVICE_TIMES": "1"}
    theirs = container("--model", "m", "--worker-extension-cls", "theirs.W")
    assert timing(carried(theirs)) == carried(theirs)


@pytest.mark.parametrize("why", TAKEN)
def test_a_probe_that_cannot_be_carried_is_launched_without_and_told(why: str) -> None:
    of, _ = TAKEN[why]
    found = probing(Instruments(), of, server(of), "s3cret")
    assert found.arguments == ()
    assert found.variables == {}
    assert len(found.left_out) == 1


BY_CONTEXT = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]


def test_an_arm_with_rows_by_context_carries_the_scheduler_and_its_table() -> None:
    of = container("--model", "m")
    found = following(carried(of), of, server(of), BY_CONTEXT, "/ours")
    assert isinstance(found, Instruments)
    scheduler = "--scheduler-cls=specschedule.engine.context.EitherContextScheduler"
    assert found.arguments == (*STEPS, FLAG, scheduler)
    file = f"/ours/{table_file(BY_CONTEXT)}"
    assert found.variables == {**carried(of).variables, "SPECSCHEDULE_TABLE": file}
    assert found.table == BY_CONTEXT


@pytest.mark.parametrize("why", TAKEN)
def test_rows_by_context_are_never_launched_without_what_follows_them(why: str) -> None:
    of, reason = TAKEN[why]
    found = following(Instruments(), of, server(of), BY_CONTEXT, "/ours")
    assert isinstance(found, Unreadable)
    assert found.reason == reason
