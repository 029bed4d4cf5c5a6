"""What launches of one machine carry of ours: the same as pods, or the reason why not."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from specschedule.adapters.local import Command, Ledger, LocalWorld
from specschedule.adapters.prometheus import PrometheusMetrics
from specschedule.core.receipts import NOT_CARRIED, noted
from specschedule.core.target import Unreadable
from specschedule.core.visit import Visit
from specschedule.reconcile import Reconciler
from specschedule.vllm_facts.instruments import FINGERPRINT, PROBE, STEP_FLAGS, Instruments
from tests.local.questions import SPEC, SPECULATIVE, sim, spec

FINGERPRINTED = f"--worker-extension-cls={FINGERPRINT}"
SLO = spec().slo
SERVES = f'exec {sys.executable} -m specschedule.cli.main sim "$@"'
"""The end of a script that starts the simulated engine; the word serve is shifted away before."""


def program(tmp_path: Path, text: str) -> str:
    """A program called vllm, as people put one before the real one."""
    path = tmp_path / "vllm"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def carried(argv: list[str], environment: dict[str, str] | None = None) -> Instruments:
    return Command(argv, environment or {}).instruments(SLO, secret="s", port=4321)


def test_every_arm_gets_the_words_that_a_pod_gets_behind_its_own() -> None:
    command = Command(sim(), {})
    found = command.instruments(SLO)
    drafting = command.with_speculative({**SPECULATIVE, "max_model_len": 9}, instruments=found)
    assert not isinstance(drafting, Unreadable)
    ours = [*STEP_FLAGS, FINGERPRINTED]
    assert command.with_speculative("unchanged", instruments=found) == [*sim(), *ours]
    assert command.with_speculative(None, instruments=found) == [*sim()[:-2], *ours]
    assert drafting[-3:] == ours
    assert (found.variables["SPECSCHEDULE_SLO_TTFT_MS"], found.left_out) == ("5000", ())


def test_a_probe_carries_its_scheduler_secret_and_port_besides() -> None:
    found = carried(sim())
    assert found.arguments == (*STEP_FLAGS, FINGERPRINTED, f"--scheduler-cls={PROBE}")
    assert found.variables["SPECSCHEDULE_PROBE_SECRET"] == "s"
    assert found.variables["SPECSCHEDULE_SCHEDULER_PORT"] == "4321"


VARIABLES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a path of the user's own stays first": (
        {"PYTHONPATH": "/mine:/$HOME"},
        {"PYTHONPATH": "/mine:/$HOME:/a $(b)/plugins"},
    ),
    "an empty path is none": ({"PYTHONPATH": ""}, {"PYTHONPATH": "/a $(b)/plugins"}),
    "a choice of plugins is widened": (
        {"VLLM_PLUGINS": "lora"},
        {"PYTHONPATH": "/a $(b)/plugins", "VLLM_PLUGINS": "lora,specschedule"},
    ),
}


@pytest.mark.parametrize("claim", VARIABLES)
def test_variables_of_the_users_own_are_kept(claim: str) -> None:
    given, expected = VARIABLES[claim]
    command = Command(sim(), given)
    found = command.instruments(SLO)
    assert command.variables(found, Path("/a $(b)/plugins")) == expected | dict(found.variables)


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/sh", *lines, "shift", SERVES, ""])


HIDING = {
    "a script that takes it away": script("unset PYTHONPATH"),
    "a script that sets it anew": script("PYTHONPATH=/elsewhere", "export PYTHONPATH"),
    "a script that starts with no variables": "#!/bin/sh\nexec env -i \\\n  vllm serve $@\n",
    "an isolated Python": "#!/usr/bin/python3 -I\nimport vllm\n",
}


@pytest.mark.parametrize("how", HIDING)
def test_nothing_is_carried_behind_a_script_that_hides_pythonpath(tmp_path: Path, how: str) -> None:
    vllm = program(tmp_path, HIDING[how])
    found = carried([vllm, "serve", "m"])
    assert not found.carried
    assert found.left_out[0].startswith(f"{vllm} ")


KEEPING = {
    "a script that adds to it": script('export PYTHONPATH="/mine:$PYTHONPATH"'),
    "a script of Python": "#!/usr/bin/env python3\nleft = -1\nprint(3 - left)\n",
    "no script at all": "\x7fELF unset PYTHONPATH",
}


@pytest.mark.parametrize("how", KEEPING)
def test_all_is_carried_behind_a_program_that_keeps_it(tmp_path: Path, how: str) -> None:
    found = carried([program(tmp_path, KEEPING[how]), "serve", "m"])
    assert (len(found.arguments), found.left_out) == (4, ())


@contextmanager
def world(
    folder: Path, argv: list[str], *, instruments: bool = True, **changes: Any
) -> Iterator[tuple[Ledger, LocalWorld]]:
    with closing(Ledger(folder, spec(**changes), argv, now=time.time())) as ledger:
        made = LocalWorld(
            ledger,
            Command(argv, {}),
            prometheus=PrometheusMetrics(),
            instruments=instruments,
        )
        with closing(made):
            yield ledger, made


def go_on(ledger: Ledger, of: LocalWorld, until: Callable[[], object]) -> None:
    reconcile = Reconciler(of, time.time)
    give_up = time.monotonic() + 120
    while not until():
        assert time.monotonic() < give_up, ledger.status
        assert not ledger.status.get("outcome"), ledger.status["message"]
        if reconcile(ledger.key):
            of.wait(1.0)


def visits_of(ledger: Ledger, arm: str) -> list[Visit]:
    """What the load processes that live were told, for an arm."""
    found = []
    for record in ledger.folder.glob("processes/*-v*.json"):
        environ = Path(f"/proc/{json.loads(record.read_text())['pid']}/environ")
        for variable in environ.read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == b"SPECSCHEDULE_VISIT":
                found.append(Visit.model_validate_json(value))
    return [visit for visit in found if visit.arm == arm]


SEARCH: dict[str, Any] = {
    "candidates": [],
    "search": {"maxTokens": 2},
    "load": {**SPEC["load"], "points": [4]},
}


def test_a_search_is_two_boots_and_the_scheduler_itself_tells_each_step(tmp_path: Path) -> None:
    pages: list[str | None] = []
    with world(tmp_path / "run", sim(), **SEARCH) as (ledger, of):

        def proposed() -> bool:
            probes = visits_of(ledger, "probe") if not pages else []
            pages.extend(visit.screen.page for visit in probes if visit.screen)
            return "proposals" in ledger.status

        go_on(ledger, of, proposed)
        screens = [pair for pair in ledger.trials().values() if pair[0].screening]
    assert sorted(spec.arm for spec, _ in screens) == ["none", "probe"]
    assert len(pages) == 1
    assert str(pages[0]).startswith("http://127.0.0.1:")
    (probe,) = [status for spec, status in screens if spec.arm == "probe"]
    assert {cell.tokens for cell in probe.cells if cell.void is None} == {0, 1, 2}
    for launch, status in screens:
        assert status.receipt.instruments == ["fingerprint", "counters"]
        for cell in (each for each in status.cells if each.void is None):
            assert cell.steps, (launch.arm, cell.cell)
            most = max(cell.steps, key=lambda each: each.count)
            assert most.tokens == (cell.tokens or 0)
            assert sum((most.graph_modes or {}).values()) == most.count
    assert (tmp_path / "run/plugins/specschedule/engine/probe.py").exists()


WITHOUT = {
    "the user says so": ({"instruments": False}, sim(), None, ""),
    "the command has an extension and a scheduler of its own": (
        {},
        sim("--worker-extension-cls", "theirs.E", "--scheduler-cls", "theirs.S"),
        ["counters"],
        "it has a --worker-extension-cls of its own, theirs.E",
    ),
}


@pytest.mark.parametrize("why", WITHOUT)
def test_what_is_not_carried_is_told_and_each_k_gets_a_boot(tmp_path: Path, why: str) -> None:
    options, argv, carries, said = WITHOUT[why]
    with world(tmp_path / "run", argv, **options, **SEARCH) as (ledger, of):

        def read() -> bool:
            return any(s.receipt.engine_version for _, s in ledger.trials().values())

        go_on(ledger, of, read)
        (first,) = ledger.trials().values()
        observed = of.observe(ledger.key)
    assert observed is not None
    assert not observed.probes
    spec, status = first
    assert spec.arm == "none"
    assert status.receipt.instruments == carries
    notes = noted(status.receipt, NOT_CARRIED)
    assert said in "".join(notes)
    assert bool(notes) == bool(said)


LOSES_IT = f"""#!{sys.executable}
import os, sys
os.environ.pop("PYTHON" "PATH")
os.execv(sys.executable, [sys.executable, "-m", "specschedule.cli.main", "sim", *sys.argv[2:]])
"""


def test_a_program_that_loses_pythonpath_unseen_fails_its_launch_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    argv = [program(tmp_path, LOSES_IT), "serve", *sim()[4:]]
    with world(tmp_path / "run", argv) as (ledger, of):

        def over() -> bool:
            return any(status.ended_at for _, status in ledger.trials().values())

        go_on(ledger, of, over)
        (_, status) = next(iter(ledger.trials().values()))
    assert status.cells == []
    assert "No module named 'specschedule'" in (status.failed or "")
    assert "--no-instruments" in (status.failed or "")
