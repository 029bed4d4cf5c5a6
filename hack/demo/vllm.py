"""The main job with the real engine: vLLM on CPU inside the pods, a model pair made on the spot."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hack.demo import __main__ as demo
from hack.demo.evidence import write_evidence
from hack.demo.scenarios import Scenario, Shown
from hack.demo.stage import ROOT, Stage, Steps

NAME = "chat"


def scenario(
    drafter: str,
    *,
    name: str = "vllm",
    points: Sequence[int] = (1, 4, 12),
    requests: int = 48,
    output_tokens: int = 48,
) -> Scenario:
    """Return the real input: static K=4 serves, the candidate drafts less the busier it is.

    The limits are wide, so that goodput here is throughput of whole requests: two cores have no
    latency to promise. Prompts are short, because prefill costs every arm the same.
    """
    return Scenario(
        name=name,
        title="real vLLM on CPU: static K=4 serves; the candidate drafts 2, 1 and 0 tokens",
        world="",
        incumbent={"method": "draft_model", "model": drafter, "num_speculative_tokens": 4},
        candidates=[
            {"name": "steps", "schedule": [[1, 2, 2], [3, 6, 1], [7, 16, 0]], "maxTokens": 4}
        ],
        slo={"ttft": "20s", "tpot": "2s"},
        load={
            "points": list(points),
            "requests": requests,
            "promptTokens": 16,
            "outputTokens": output_tokens,
            "maxSendLag": "250ms",
        },
        bar={
            "improve": [{"metric": "goodput", "at": [12], "by": "15%"}],
            "protect": [{"metric": "goodput", "at": [1], "within": "15%"}],
            "elsewhere": {"maxLoss": "15%"},
        },
        experiment={"effort": "Quick", "seed": 3, "deadline": "50m"},
        outcome="Promoted",
        timeout_s=3600,
    )


def serve(stage: Stage, asked: Scenario, engine: dict[str, Any], *, replicas: int) -> None:
    """Deploy the serving pods and wait until they are Ready."""
    stage.apply(
        "serving-vllm.yaml",
        namespace=asked.namespace,
        name=NAME,
        replicas=replicas,
        speculative=asked.incumbent,
        vllm=engine,
    )
    stage.await_deployment(asked.namespace, NAME, 900)


def engine_facts() -> dict[str, Any]:
    """Make vLLM's virtual environment and the model pair, and say where they are."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack/vllm"), "setup", "-o", "json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def show(cluster: str) -> int:
    """Show the scenario and write what came out into docs/evidence."""
    if cluster != "embedded":
        raise demo.StageError(
            "ENGINE=vllm mounts this machine's files into the pods: use CLUSTER=embedded"
        )
    steps = Steps(6)
    steps.start("real vLLM on CPU and its model pair (the first time installs about 6 GB)")
    engine = engine_facts()
    steps.done()
    stage = demo.prepare(steps, cluster)
    asked = scenario(engine["drafter"])
    steps.start("serving Deployment with two replicas of real vLLM")
    serve(stage, asked, engine, replicas=2)
    steps.done()
    steps.start(f"scenario {asked.name}: {asked.title}")
    shown: Shown = demo.ask(stage, asked, NAME)
    steps.done()
    for path in write_evidence(stage, shown, engine["version"]):
        print(f"evidence: {path.relative_to(ROOT)}")
    return demo.say_goodbye(stage, [shown])
