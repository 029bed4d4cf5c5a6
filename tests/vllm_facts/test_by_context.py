"""A container whose scheduler is ours: the table in its additional config is part of one config."""

import json
from typing import Any

import pytest

from specschedule.core.context_axis import CLASS
from specschedule.core.target import ServerFacts, TargetFacts, Unreadable
from specschedule.engine import settings
from specschedule.vllm_facts.arguments import (
    ArgumentEdit,
    edited_container,
    read_container,
    with_speculative,
)
from specschedule.vllm_facts.instruments import PROBE, Instruments, arm_arguments, scheduled
from specschedule.vllm_facts.target import target_facts
from tests.vllm_facts.containers import CARD, STATIC, container, script, vllm

KEY = "num_speculative_tokens_per_batch_size"
ROWS = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 5]]
OTHER = [[1, 16, 1, 2048, 0], [1, 16, 2049, 8192, 4]]
EVERY_K = [[1, 1, 5], [2, 2, 4], [3, 3, 3], [4, 4, 2], [5, 5, 1], [6, 6, 0]]
DEEP, DEEPER = {**STATIC, KEY: ROWS}, {**STATIC, KEY: OTHER}
BOOT = {**STATIC, KEY: EVERY_K}
OURS = ["--scheduler-cls", CLASS]
ADDITIONAL = "--additional-config"


def text(plain: object) -> str:
    return json.dumps(plain, separators=(",", ":"))


def table(rows: list[list[int]], **more: Any) -> str:
    return text({**more, "specschedule": {"rows": rows}})


def read(of: dict[str, Any]) -> ServerFacts:
    facts = read_container(of)
    assert isinstance(facts, ServerFacts), facts
    return facts


def edited(of: dict[str, Any], wanted: dict[str, Any] | None) -> list[str]:
    edit = with_speculative(of, wanted)
    assert isinstance(edit, ArgumentEdit), edit
    assert read(edited_container(of, edit)).speculative == wanted
    return edit.new


def hashed(of: dict[str, Any]) -> str:
    facts = target_facts({"spec": {"template": {"spec": {"containers": [of]}}}})
    assert isinstance(facts, TargetFacts)
    return facts.template_hash


FORMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing else in it": (
        vllm(*OURS, "-sc", text(BOOT), ADDITIONAL, table(ROWS), "--port", "80"),
        [*OURS, "-sc", text(BOOT), ADDITIONAL, table(OTHER), "--port", "80"],
    ),
    "keys of others, in one word": (
        vllm(f"--additional-config={table(ROWS, a=[1], b='$$x')}", *OURS, "-sc", text(BOOT)),
        [f"--additional-config={table(OTHER, a=[1], b='$$x')}", *OURS, "-sc", text(BOOT)],
    ),
    "more than once, of which the last counts": (
        vllm(*OURS, "-sc", text(BOOT), "--additional_config={}", ADDITIONAL, table(ROWS)),
        [*OURS, "-sc", text(BOOT), ADDITIONAL, table(OTHER)],
    ),
    "in a script": (
        script(
            f"vllm serve m --scheduler-cls={CLASS} --additional-config '{table(ROWS)}' "
            f"-sc '{text(BOOT)}' --port 80"
        ),
        [
            *("sh", "-c"),
            f"vllm serve m --scheduler-cls={CLASS} --additional-config '{table(OTHER)}' "
            f"-sc '{text(BOOT)}' --port 80",
        ],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_table_is_read_as_the_rows_and_changed_where_it_stands(form: str) -> None:
    of, expected = FORMS[form]
    assert read(of).speculative == DEEP
    assert edited(of, DEEPER) == expected


@pytest.mark.parametrize("wanted", [CARD, STATIC, None], ids=["three numbers", "one K", "none"])
def test_without_rows_by_context_the_table_goes_and_all_else_stays(
    wanted: dict[str, Any] | None,
) -> None:
    of = FORMS["nothing else in it"][0]
    speculative = [] if wanted is None else ["-sc", text(wanted)]
    assert edited(of, wanted) == [*OURS, *speculative, "--port", "80"]
    beside = FORMS["keys of others, in one word"][0]
    assert edited(beside, wanted) == [
        f"--additional-config={text({'a': [1], 'b': '$$x'})}",
        *OURS,
        *speculative,
    ]


def test_rows_by_context_come_as_two_arguments_and_go_again() -> None:
    of = vllm(*OURS, "-sc", text(CARD))
    assert read(of).speculative == CARD
    arguments = edited(of, DEEP)
    assert arguments == [*OURS, "-sc", text(BOOT), ADDITIONAL, table(ROWS)]
    assert edited(vllm(*arguments), CARD) == of["args"]


def test_a_script_without_speculation_gets_both_behind_its_own() -> None:
    of = script(f"vllm serve m --scheduler-cls {CLASS} & wait")
    assert edited(of, DEEP)[-1] == (
        f"vllm serve m --scheduler-cls {CLASS} --speculative-config '{text(BOOT)}' "
        f"--additional-config '{table(ROWS)}' & wait"
    )


@pytest.mark.parametrize("own", [[], [ADDITIONAL, '{"a": 1}'], [f"{ADDITIONAL}={{}}"]])
def test_the_template_is_the_same_whichever_config_it_serves(own: list[str]) -> None:
    of = vllm("--port", "80", *own, *OURS, "-sc", text(CARD))
    found = {hashed(of)}
    for wanted in (DEEP, DEEPER, STATIC, None):
        of = vllm(*edited(of, wanted))
        found.add(hashed(of))
    assert len(found) == 1
    another = vllm("--port", "80", ADDITIONAL, '{"a": 2}', *OURS, "-sc", text(CARD))
    assert hashed(another) not in found


def test_another_scheduler_or_none_has_no_table() -> None:
    for scheduler in ([], ["--scheduler-cls", "theirs.S"], [*OURS, "--scheduler-cls", "theirs.S"]):
        of = vllm(*scheduler, "-sc", text(BOOT), ADDITIONAL, table(ROWS, a=1))
        assert read(of).speculative == BOOT
        assert edited(of, DEEP) == [
            *scheduler,
            *("-sc", text(DEEP)),
            *(ADDITIONAL, table(ROWS, a=1)),
        ]


REFUSED = {
    "a table without rows to boot with": (
        vllm(*OURS, "-sc", text(STATIC), ADDITIONAL, table(ROWS)),
        "the scheduler refuses to start so",
    ),
    "no speculation at all": (
        vllm(*OURS, ADDITIONAL, table(ROWS)),
        "the scheduler refuses to start so",
    ),
    "dotted keys": (
        vllm(*OURS, "-sc", text(BOOT), "--additional-config.specschedule.rows", text(ROWS)),
        "write that as one object",
    ),
    "no JSON": (vllm(*OURS, ADDITIONAL, "rows"), "is not JSON"),
    "a file": (
        {
            **vllm(*OURS, "-sc", text(BOOT)),
            "env": [{"name": settings.TABLE, "value": "/tables/rows.json"}],
        },
        "SPECSCHEDULE_TABLE names",
    ),
    "a file that is named elsewhere": (
        {
            **vllm(*OURS, "-sc", text(BOOT)),
            "env": [{"name": settings.TABLE, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        },
        "SPECSCHEDULE_TABLE names",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_table_that_cannot_be_changed_is_refused_by_name(why: str) -> None:
    of, said = REFUSED[why]
    facts = read_container(of)
    assert isinstance(facts, Unreadable)
    assert said in facts.message


@pytest.mark.parametrize(
    "file", [f"scheduler-cls: {CLASS}\n", f"additional-config: {{}}\nscheduler-cls: {CLASS}\n"]
)
def test_a_scheduler_or_table_in_a_config_file_is_refused(file: str) -> None:
    facts = read_container(vllm("--config", "/c.yaml"), config_files={"/c.yaml": file})
    assert isinstance(facts, Unreadable)
    assert facts.reason == "SpeculativeConfigInFile"


def test_rows_that_are_no_schedule_are_left_to_the_engine_to_refuse() -> None:
    wrong = {**STATIC, KEY: [[1, 16, 1025, 8192, 5]]}
    assert edited(vllm(*OURS), wrong) == [*OURS, "--speculative-config", text(wrong)]


def test_an_arm_keeps_its_table_beside_instruments_and_a_probe_goes_without() -> None:
    of = container(
        image="vllm/vllm-openai:v0.32.0",
        args=["--model", "m", *OURS, "-sc", text(BOOT), ADDITIONAL, table(ROWS)],
    )
    carried = Instruments(("--worker-extension-cls=x.Y",))
    kept = arm_arguments(of, speculative="unchanged", instruments=carried)
    assert isinstance(kept, ArgumentEdit)
    assert kept.new == [*of["args"], *carried.arguments]
    probing = scheduled(carried, of, read(of), PROBE, {})
    assert isinstance(probing, Instruments)
    probe = arm_arguments(of, speculative=BOOT, instruments=probing)
    assert isinstance(probe, ArgumentEdit)
    assert probe.new == ["--model", "m", *OURS, "-sc", text(BOOT), *probing.arguments]
    assert probe.new[-1] == f"--scheduler-cls={PROBE}"
