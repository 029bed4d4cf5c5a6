"""What a run's screening launches propose, as far as the server decides it."""

import pytest

from specschedule.core.evidence import DeviceStep, DeviceTimes, Launch, Receipt
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


def proposed_by(server=None, receipt=None, method="eagle3", device=None):
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
        device=device,
        cells=CELLS,
    )
    return proposals(SPEC, ServerFacts(**facts), [screen])


def names(**given):
    return {each.name for each in proposed_by(**given).candidates}


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


def taken(requests, drafts, steps, target, drafter):
    return DeviceStep(
        requests=requests, draft_tokens=drafts, steps=steps, target_ms=target, drafter_ms=drafter
    )


TIMED = {
    "steps": (
        DeviceTimes(
            clock="stream",
            steps=[
                taken(1, 2, 40, 12.0, 6.0),
                taken(3, 6, 90, 14.0, 6.5),
                taken(8, 0, 500, 20.0, 0.0),
                taken(8, 8, 30, 21.0, 5.0),
                taken(8, 16, 70, 24.04, 9.0),
            ],
        ),
        "device time of a step by the worker's stream clock: 1 requests with 2 drafts: target 12.0 "
        "ms, drafter 6.0 ms (n = 40); 8 requests with 16 drafts: target 24.0 ms, drafter 9.0 ms "
        "(n = 70)",
    ),
    "a reason": (
        DeviceTimes(absent="the timing failed: no events"),
        "device time of a step: absent (the timing failed: no events)",
    ),
    "silence": (None, "device time of a step: absent (no launch told it)"),
}


@pytest.mark.parametrize(("device", "note"), TIMED.values(), ids=TIMED)
def test_the_device_time_of_steps_is_told_or_why_it_is_absent(device, note):
    assert note in proposed_by(device=device).notes
