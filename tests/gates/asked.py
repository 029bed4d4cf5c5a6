"""A question, a target, and the answers of the gates before any pod."""

from specschedule.core.gates import before_pods
from specschedule.core.spec import Spec
from specschedule.core.target import RolloutFacts, ServerFacts, TargetFacts
from specschedule.vllm_facts import matrix

CARD = [[1, 2, 5], [3, 16, 1]]


def spec(schedule=None, *, candidates=None, **more):
    plain = {
        "target": {"name": "chat"},
        "slo": {"ttft": "500ms"},
        "candidates": candidates or [{"name": "card", "schedule": schedule or CARD}],
        "load": {"points": [1, 8, 16], **more.pop("load", {})},
        "bar": {"improve": [{"by": "15%"}]},
        **more,
    }
    return Spec.model_validate(plain)


def target(
    *,
    gpus=1,
    accelerator="nvidia.com/gpu",
    owner=None,
    can_roll=None,
    roll_unchecked=None,
    **server,
):
    facts = {
        "container": "server",
        "image": "vllm/vllm-openai:v0.32.0",
        "max_num_seqs": 16,
        "max_num_seqs_given": True,
        "speculative": {"method": "eagle3", "model": "d", "num_speculative_tokens": 5},
        **server,
    }
    return TargetFacts(
        resource_version="1",
        generation=1,
        template_hash="h",
        server=ServerFacts.model_validate(facts),
        owner=owner,
        rollout=RolloutFacts(complete=True, message=""),
        gpus=gpus,
        accelerator=accelerator,
        can_roll=can_roll,
        roll_unchecked=roll_unchecked,
    )


def answers(spec_, target_, **more):
    return {gate.gate: gate for gate in before_pods(spec_, target_, matrix=matrix.ROWS, **more)}


def speculative(**config):
    return {"speculative": {"method": "eagle3", "num_speculative_tokens": 5, **config}}


def assert_answered(spec_, target_, gate, answer, reason, said):
    """Require a gate's answer and reason, and that its sentence holds some words."""
    found = answers(spec_, target_)[gate]
    assert (found.answer, found.reason) == (answer, reason)
    assert said in found.message
