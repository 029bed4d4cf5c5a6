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
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
"""A speculative config without a model that drafts: the drafts follow what was said before."""


def scenario(
    drafter: str,
    *,
    name: str = "vllm",
    effort: str = "Standard",
    schedule: Sequence[Sequence[int]] = ((1, 2, 2), (3, 16, 1)),
    points: Sequence[int] = (1, 4, 12),
    requests: int = 24,
    output_tokens: int = 24,
) -> Scenario:
    """Return the real input: static K=4 serves, the candidate drafts less the busier it is.

    The limits are wide, so that goodput here is throughput of whole requests: two cores have no
    latency to promise. Prompts are short, because prefill costs every arm the same. At no tokens
    the dynamic path still runs the drafter, so that one token is the better choice here. Effort
    Standard, because the memory of a shared machine may be twice as fast in one minute as in the
    next: three pairs do not see through that, the sequential test does.
    """
    return Scenario(
        name=name,
        title="real vLLM on CPU: static K=4 serves; the candidate drafts 2 tokens, then 1",
        world="",
        incumbent={"method": "draft_model", "model": drafter, "num_speculative_tokens": 4},
        candidates=[{"name": "steps", "schedule": [list(row) for row in schedule], "maxTokens": 4}],
        slo={"ttft": "10s", "tpot": "1s"},
        load={
            "points": list(points),
            "requests": requests,
            "promptTokens": 16,
            "outputTokens": output_tokens,
            "maxSendLag": "250ms",
        },
        bar={
            "improve": [{"metric": "goodput", "at": [12], "by": "10%"}],
            "elsewhere": {"maxLoss": "15%"},
        },
        experiment={"effort": effort, "seed": 3, "deadline": "80m"},
        outcome="Promoted",
        timeout_s=5400,
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
