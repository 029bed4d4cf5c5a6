"""What a run's screening launches propose, as far as the server decides it."""

import pytest

from specschedule.core.evidence import Launch, Receipt
from specschedule.core.search import proposals
from specschedule.core.spec import Spec
from specschedule.core.target import ServerFacts
from tests.tuner.published import EAGLE3, cell

POINTS = [1, 8]
SPEC = Spec.model_validate(
    {
        "target": {"name": "chat"},
        "slo": {"tpot": "10s"},
        "search": {"maxTokens": 2},
        "load": {"points": POINTS},
        "bar": {"improve": [{"by": "5%"}]},
    }
)
CELLS = [cell(b, k, 0.01 * (1 + 0.1 * k), EAGLE3) for b in POINTS for k in range(3)]


def names(server=None, receipt=None, method="eagle3"):
    facts = {
        "container": "vllm",
        "model": "demo/model",
        "gpus": 1,
        "speculative": {"method": method, "num_speculative_tokens": 2},
    } | (server or {})
    screen = Launch(
        arm="probe",
        launch=1,
        round=0,
        receipt=Receipt(**(receipt or {"engine_version": "0.32.0"})),
        cells=CELLS,
    )
    return {each.name for each in proposals(SPEC, ServerFacts(**facts), [screen]).candidates}


ADAPTIVE = {
    "a drafter model on a version that has it": ({}, True),
    "no word of the version": ({"receipt": {"notes": []}}, False),
    "the image's tag tells the version": (
        {"receipt": {"notes": []}, "server": {"image": "vllm/vllm-openai:v0.32.0"}},
        True,
    ),
    "a version before it": ({"receipt": {"engine_version": "0.27.1"}}, False),
    "a method without a drafter model": ({"method": "ngram"}, False),
    "no CUDA graphs": ({"server": {"enforce_eager": True}}, False),
}


@pytest.mark.parametrize(("given", "proposed"), ADAPTIVE.values(), ids=ADAPTIVE)
def test_adaptive_verification_is_proposed_where_the_target_can_run_it(given, proposed):
    assert ("adaptive" in names(**given)) is proposed
