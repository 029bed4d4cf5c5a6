"""``specschedule tune --local`` with rows by context: followed by our scheduler, and proposed.

Where the command that serves names the scheduler itself, its arguments are all that serving needs.
"""

import json
import shlex
from pathlib import Path
from typing import Any

from specschedule.adapters.local.command import Command
from specschedule.core.context_axis import CLASS, every_k
from specschedule.core.schedule import additional_config
from specschedule.core.target import ServerFacts
from specschedule.engine.deliver import table_file
from tests.local.questions import SPEC, SPECULATIVE, sim
from tests.local.test_tune import Run

ROWS = [[1, 16, 1, 64, 1], [1, 16, 65, 8192, 5]]
ARMS = ("incumbent", "candidate-deep", "none")
LONG = 80
"""Mean context of requests whose answers begin beyond the boundary; prompts as they are do not."""
DEEP: dict[str, Any] = {
    "candidates": [{"name": "deep", "schedule": ROWS}],
    "load": {**SPEC["load"], "points": [12], "outputTokens": 21},
    "bar": {"improve": [{"metric": "goodput", "at": [12], "context": LONG, "by": "50%"}]},
}


def test_a_whole_run_of_five_numbers_ends_proposed_with_what_serving_needs(tmp_path: Path) -> None:
    # Every step takes 50 ms and every draft is accepted: only longer contexts get more than K=1.
    run = Run(tmp_path, sim("--world", "steady", "--max-num-seqs", "16", tokens=1), **DEEP)
    code, said = run.finish()
    assert code == 0, said
    assert (run.status["outcome"], run.status["reason"]) == ("Proposed", "EveryPairMeetsBar"), said
    assert "Serve with:" not in said, "no argument alone serves so"
    assert "Recommendation: deep: serve with num_speculative_tokens 5" in said
    assert CLASS in run.status["recommendation"]

    trials = [t for t in run.trials if t["spec"]["arm"] == "candidate-deep"]
    assert len(trials) == 3
    for trial in trials:
        spec, receipt = trial["spec"], trial["status"]["receipt"]
        assert (spec["schedule"], spec["contextAxis"]) == (ROWS, True)
        rows = spec["speculative"]["num_speculative_tokens_per_batch_size"]
        assert rows == every_k(5, 16)
        assert receipt["scheduler"] == "context-axis"
        assert receipt["schedule"] == ROWS
        assert f"--scheduler-cls={CLASS}" in receipt["arguments"]
        held = {c["context"]: c for c in trial["status"]["cells"] if c.get("context")}
        assert held[LONG]["draftTokens"] / held[LONG]["drafts"] > 4.5
        (plain,) = (
            cell
            for cell in trial["status"]["cells"]
            if cell["profile"]["kind"] == "hold" and "context" not in cell
        )
        assert plain["draftTokens"] == plain["drafts"]
        assert {each["tokens"] for each in plain["steps"]} == {1}
    others = [t for t in run.trials if t not in trials]
    assert not any(t["spec"]["contextAxis"] for t in others)
    assert not any("scheduler" in t["status"]["receipt"] for t in others)
    assert json.loads((run.folder / "plugins" / table_file(ROWS)).read_text()) == ROWS

    gates = {gate["gate"]: gate for gate in run.status["gates"]}
    assert gates["instruments"]["answer"] == "Pass"
    assert gates["scheduleInEffect"]["answer"] == "Pass"
    judged = run.judged()
    assert (judged["outcome"], judged["recommendation"]) == (
        "Proposed",
        run.status["recommendation"],
    )
    assert judged["verdicts"] == run.status["verdict"]
    assert run.processes() == []


def test_where_the_command_names_our_scheduler_the_winner_is_served_by_its_arguments(
    tmp_path: Path,
) -> None:
    options = ("--world", "steady", "--max-num-seqs", "16", "--scheduler-cls", CLASS)
    # A window of two turns ends with a part of one, which is a sixth of it and noise.
    asked = {**DEEP, "load": {**DEEP["load"], "requests": 90}}
    run = Run(tmp_path, sim(*options, tokens=1), **asked)
    code, said = run.finish()
    assert code == 0, said
    assert (run.status["outcome"], run.status["reason"]) == ("Proposed", "EveryPairMeetsBar"), said
    assert "recommendation" not in run.status
    command = shlex.split(said.split("Serve with:")[1].split("The verdict")[0])
    server = Command(command, {}).server()
    assert isinstance(server, ServerFacts)
    assert server.speculative == {
        **SPECULATIVE,
        "num_speculative_tokens_per_batch_size": ROWS,
    }
    assert json.loads(command[-1]) == additional_config(ROWS)

    by_arm = {arm: [t for t in run.trials if t["spec"]["arm"] == arm] for arm in ARMS}
    for trial in by_arm["candidate-deep"]:
        spec, receipt = trial["spec"], trial["status"]["receipt"]
        assert (spec["schedule"], spec["contextAxis"]) == (ROWS, False)
        assert (receipt["scheduler"], receipt["schedule"]) == ("context-axis", ROWS)
        held = {c["context"]: c for c in trial["status"]["cells"] if c.get("context")}
        assert held[LONG]["draftTokens"] / held[LONG]["drafts"] > 4.5
    # One fixed K and none are served by vLLM's own scheduler, under the same class.
    for trial in [*by_arm["incumbent"], *by_arm["none"]]:
        assert "scheduler" not in trial["status"]["receipt"]
        assert CLASS in trial["status"]["receipt"]["arguments"]
    assert not any("additional-config" in str(t["status"]["receipt"]["arguments"])
                   for t in by_arm["none"])  # fmt: skip
    gates = {gate["gate"]: gate for gate in run.status["gates"]}
    assert gates["scheduleInEffect"]["answer"] == gates["instruments"]["answer"] == "Pass"
    assert run.processes() == []
