"""Names that vLLM owns, held against what its real release says."""

import json
from pathlib import Path

from specschedule.core.receipts import SCHEDULE_DISABLED, noted
from specschedule.vllm_facts.failures import start_failure
from specschedule.vllm_facts.flags import ALIASES, NO_VALUE, READ
from specschedule.vllm_facts.metrics import FAMILIES
from specschedule.vllm_facts.receipt import read_receipt

GOLDENS = Path(__file__).parents[1] / "goldens" / "vllm-0.32.0"
ARGUMENTS = json.loads((GOLDENS / "arguments.json").read_text())


def test_the_flags_read_here_exist():
    names = {name for argument in ARGUMENTS for name in argument["names"]}
    assert names >= READ
    assert ALIASES.items() <= aliases().items()


def aliases():
    """Short names with the first long name beside them."""
    return {
        short: next(name for name in argument["names"] if name.startswith("--"))
        for argument in ARGUMENTS
        for short in argument["names"]
        if short.startswith("-") and not short.startswith("--") and short != "-h"
    }


def test_every_short_name_is_known():
    assert aliases() == ALIASES


def test_flags_that_take_no_value_are_known():
    bare = {
        name.removeprefix("--")
        for argument in ARGUMENTS
        for name in argument["names"]
        if not argument["value"] and name.startswith("--") and not name.startswith("--no-")
    }
    assert bare - {"help"} == NO_VALUE


def test_the_metric_families_read_here_exist():
    text = "\n".join(path.read_text() for path in GOLDENS.glob("*metrics*"))
    assert all(family in text for family in FAMILIES)


def receipt(name):
    return read_receipt(log_text=(GOLDENS / f"startup-{name}.log").read_text())


def test_the_start_up_log_of_a_cpu_makes_a_receipt():
    schedule, none = receipt("schedule"), receipt("none")
    for told in (schedule, none):
        assert told.engine_version == "0.32.0"
        assert (told.model_runner, told.graph_mode) == ("V1", "NONE")
        assert (told.attention_backend, told.async_scheduling) == ("CPU_ATTN", False)
        assert told.log_level_hides_warnings is False
    assert schedule.num_speculative_tokens == 4
    assert none.num_speculative_tokens is None


def test_the_schedule_that_data_parallelism_switches_off_is_noted():
    assert noted(receipt("data-parallel"), SCHEDULE_DISABLED)
    assert not noted(receipt("schedule"), SCHEDULE_DISABLED)


def test_a_refused_schedule_is_named_as_such():
    for name in ("refused-by-engine", "refused-by-arguments"):
        failure = start_failure((GOLDENS / f"startup-{name}.log").read_text())
        assert failure.reason == "BadSchedule", name
