"""The engine's version, model runner and graphs, and what the matrix says of a schedule."""

import pytest

from specschedule.core.versions import version_of_image
from specschedule.vllm_facts import matrix
from tests.gates.asked import answers, assert_answered, spec, speculative, target

V1 = {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}
V2 = {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}

CASES = {
    "old engines cannot be tuned": (
        spec(),
        target(image="vllm/vllm-openai:v0.31.0"),
        "engineVersion",
        "Fail",
        "VersionTooOld",
        "0.31.0",
    ),
    "very old engines have no schedules": (
        spec(),
        target(image="vllm/vllm-openai:v0.23.0"),
        "engineVersion",
        "Fail",
        "VersionTooOld",
        "0.24.0",
    ),
    "a tag without a version is read from the first launch": (
        spec(),
        target(image="vllm/vllm-openai:latest"),
        "engineVersion",
        "Unknown",
        "ReadFromLaunch",
        "vllm/vllm-openai:latest does not say vLLM's version: the receipts of the launches decide",
    ),
    "a version that nobody has looked at is said to be untested": (
        spec(),
        target(image="vllm/vllm-openai:v0.99.0"),
        "engineVersion",
        "Pass",
        "NotTested",
        "0.99.0 is newer than 0.33",
    ),
    "what a method does in a version that nobody has looked at": (
        spec(),
        target(image="vllm/vllm-openai:v0.99.0"),
        "methodAndSchedule",
        "NotApplicable",
        "NotTested",
        "v2-autoregressive, option num_speculative_tokens_per_batch_size, read or seen in vLLM "
        "0.32.0, 0.33.0",
    ),
    "a context axis in a version that nobody has looked at": (
        spec([[1, 16, 1, 4096, 3]]),
        target(image="vllm/vllm-openai:v0.34.0"),
        "methodAndSchedule",
        "NotApplicable",
        "NotTested",
        "has not been tested on vLLM 0.34.0",
    ),
    "a later patch of a release that was read": (
        spec(),
        target(image="vllm/vllm-openai:v0.33.4"),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "read or seen in vLLM 0.32.0, 0.33.0",
    ),
    "suffix drafting takes no schedule": (
        spec(),
        target(**speculative(method="suffix")),
        "methodAndSchedule",
        "Fail",
        "EngineCrashesSchedule",
        "suffix",
    ),
    "medusa dies at the first other K on 0.32": (
        spec(),
        target(**speculative(method="medusa")),
        "methodAndSchedule",
        "Fail",
        "EngineCrashesSchedule",
        "medusa",
    ),
    "medusa loses its schedule on 0.33": (
        spec(),
        target(image="vllm/vllm-openai:v0.33.0", **speculative(method="medusa")),
        "methodAndSchedule",
        "Fail",
        "EngineDisablesSchedule",
        "switches the schedule off",
    ),
    "an eagle drafter follows K": (
        spec(),
        target(),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "follows",
    ),
    "a draft model on runner V2 only truncates": (
        spec(),
        target(**speculative(method="draft_model")),
        "methodAndSchedule",
        "Pass",
        "DraftingCostStays",
        "cost of drafting stays",
    ),
    "a draft model on a CPU follows K": (
        spec(),
        target(gpus=0, **speculative(method="draft_model")),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "V1",
    ),
    "a CPU samples garbage above temperature 0": (
        spec(load={"sampling": {"temperature": 0.7}}),
        target(gpus=0),
        "methodAndSchedule",
        "Fail",
        "EngineCorruptsSchedule",
        "temperature",
    ),
    "a GPU samples well above temperature 0": (
        spec(load={"sampling": {"temperature": 0.7}}),
        target(),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "follows",
    ),
    "data parallelism is in the matrix too": (
        spec(),
        target(data_parallel_size=2),
        "methodAndSchedule",
        "Fail",
        "EngineDisablesSchedule",
        "vllm#45963",
    ),
    "what a plugin for another device does is not known": (
        spec(),
        target(accelerator="google.com/tpu"),
        "methodAndSchedule",
        "NotApplicable",
        "NotTested",
        "other",
    ),
    "a device that others saw lose its graphs": (
        spec(),
        target(accelerator="huawei.com/Ascend910"),
        "graphMode",
        "Pass",
        "DowngradeExpected",
        "vllm-ascend#16637, option num_speculative_tokens_per_batch_size, reported, not tested",
    ),
    "a proposed form has a name of its own": (
        spec([[1, 16, 1, 4096, 3]]),
        target(),
        "methodAndSchedule",
        "Fail",
        "EngineRefusesSchedule",
        "option speculative_token_schedule",
    ),
    "an untested method is said to be untested": (
        spec(),
        target(**speculative(method="brand_new")),
        "methodAndSchedule",
        "NotApplicable",
        "NotTested",
        "brand_new",
    ),
    "runner V2 forced on a method that it lacks": (
        spec(),
        target(**V2, **speculative(method="suffix")),
        "modelRunner",
        "Fail",
        "RunnerLacksMethod",
        "suffix",
    ),
    "parallel drafting falls back to runner V1": (
        spec(),
        target(**speculative(parallel_drafting=True)),
        "modelRunner",
        "NotApplicable",
        "SeenAtLaunch",
        "V1 is expected",
    ),
    "block drafters draft in parallel on runner V2": (
        spec(),
        target(**speculative(method="dflash", parallel_drafting=True)),
        "modelRunner",
        "NotApplicable",
        "SeenAtLaunch",
        "V2 is expected",
    ),
    "a drafter of another vocabulary falls back to runner V1": (
        spec(),
        target(**speculative(method="draft_model", use_heterogeneous_vocab=True)),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "model runner V1",
    ),
    "split batches fall back to runner V1": (
        spec(policy={"graphMode": "RequireFull"}),
        target(enable_dbo=True),
        "graphMode",
        "Fail",
        "GraphsLostToSchedule",
        "V1",
    ),
    "runner V2 forced on a drafter of another vocabulary": (
        spec(),
        target(**V2, **speculative(method="draft_model", use_heterogeneous_vocab=True)),
        "modelRunner",
        "Fail",
        "RunnerLacksMethod",
        "use_heterogeneous_vocab",
    ),
    "runner V1 forced on a method that it lacks": (
        spec(),
        target(**V1, **speculative(method="dspark")),
        "modelRunner",
        "Fail",
        "RunnerLacksMethod",
        "VLLM_USE_V2_MODEL_RUNNER is 0, which has no method dspark",
    ),
    "a method that only runner V2 has, without a GPU": (
        spec(),
        target(gpus=0, **speculative(method="dspark")),
        "modelRunner",
        "Fail",
        "RunnerLacksMethod",
        "takes model runner V1 here",
    ),
    "adaptive verification on runner V1": (
        spec(),
        target(**V1, **speculative(enable_adaptive_verification=True)),
        "modelRunner",
        "Fail",
        "RunnerLacksMethod",
        "adaptive verification",
    ),
    "MTP on runner V2 hangs on the model's modules": (
        spec(),
        target(**speculative(method="mtp")),
        "methodAndSchedule",
        "Pass",
        "DraftingCostMayStay",
        "num_nextn_predict_layers",
    ),
    "MTP by a model's own name": (
        spec(),
        target(**speculative(method="deepseek_mtp")),
        "methodAndSchedule",
        "Pass",
        "DraftingCostMayStay",
        "num_nextn_predict_layers",
    ),
    "a drafter of one's own is not told K": (
        spec(),
        target(**V1, **speculative(method="custom_class")),
        "methodAndSchedule",
        "Pass",
        "DraftingCostStays",
        "a custom drafter is not told K; its drafts are cut after; the cost of drafting stays "
        "(custom-class",
    ),
    "the MTP of Step 3.5 knows no K=0": (
        spec([[1, 8, 3], [9, 16, 0]]),
        target(**V1, **speculative(method="step3p5_mtp")),
        "methodAndSchedule",
        "Pass",
        "DraftingCostStays",
        "drafts one token there all the same; leave rows of K=0 out",
    ),
    "the MTP of Step 3.5 follows any other K": (
        spec(),
        target(**V1, **speculative(method="step3p5_mtp")),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "follows",
    ),
    "another MTP knows K=0": (
        spec([[1, 8, 3], [9, 16, 0]]),
        target(**V1, **speculative(method="deepseek_mtp")),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "follows",
    ),
    "MTP on runner V1 follows K": (
        spec(),
        target(**V1, **speculative(method="mtp")),
        "methodAndSchedule",
        "Pass",
        "Holds",
        "follows",
    ),
    "full graphs required on runner V1": (
        spec(policy={"graphMode": "RequireFull"}),
        target(**V1),
        "graphMode",
        "Fail",
        "GraphsLostToSchedule",
        "PIECEWISE",
    ),
    "the downgrade on runner V1 is only reported by default": (
        spec(),
        target(**V1),
        "graphMode",
        "Pass",
        "DowngradeExpected",
        "PIECEWISE",
    ),
    "graphs that were piecewise anyway are not lost": (
        spec(policy={"graphMode": "Same"}),
        target(**V1, graph_mode="PIECEWISE"),
        "graphMode",
        "NotApplicable",
        "SeenAtLaunch",
        "launches tell",
    ),
    "an optimization level without full graphs": (
        spec(policy={"graphMode": "Same"}),
        target(**V1, optimization_level=1),
        "graphMode",
        "NotApplicable",
        "SeenAtLaunch",
        "launches tell",
    ),
    "an optimization level without graphs": (
        spec(policy={"graphMode": "RequireFull"}),
        target(**V1, optimization_level=0),
        "graphMode",
        "NotApplicable",
        "NoGraphs",
        "no GPU or mode is NONE",
    ),
    "an attention backend that may lose full graphs to speculation": (
        spec(policy={"graphMode": "RequireFull"}),
        target(attention_backend="FLASHINFER"),
        "graphMode",
        "Pass",
        "DowngradePossible",
        "FLASHINFER",
    ),
    "another backend keeps them": (
        spec(policy={"graphMode": "RequireFull"}),
        target(attention_backend="FLASH_ATTN"),
        "graphMode",
        "NotApplicable",
        "SeenAtLaunch",
        "launches tell",
    ),
    "no graphs on a CPU": (
        spec(policy={"graphMode": "RequireFull"}),
        target(gpus=0),
        "graphMode",
        "NotApplicable",
        "NoGraphs",
        "no GPU",
    ),
    "a pod that may get a GPU without asking for one": (
        spec(),
        target(gpus=0, gpus_untold="its devices come by resourceClaims"),
        "graphMode",
        "Unknown",
        "GpuNotNamed",
        "resourceClaims; whether CUDA graphs are used, the launches decide",
    ),
    "no graphs with enforce-eager": (
        spec(policy={"graphMode": "RequireFull"}),
        target(enforce_eager=True),
        "graphMode",
        "NotApplicable",
        "NoGraphs",
        "enforce-eager",
    ),
}


@pytest.mark.parametrize("claim", CASES)
def test_each_gate_has_its_answer_and_reason(claim):
    assert_answered(*CASES[claim])


def test_a_known_version_counts_before_the_tag():
    found = answers(spec(), target(image="vllm/vllm-openai:v0.31.0"), engine_version="0.32.1")
    assert found["engineVersion"].answer == "Pass"


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("mirror.example:5000/vllm/vllm-openai:0.32.0-cu129@sha256:ab", "0.32.0"),
        ("vllm/vllm-openai-cpu:v0.32.0", "0.32.0"),
        ("rocm/vllm:rocm6.4_vllm_0.33.0", "0.33.0"),
        ("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909", "0.10.1"),
        ("registry.example:5000/vllm:1.31.0-vllm0.20.1", "0.20.1"),
        # What these count is not vLLM.
        ("own/vllm-serve:1.4.2", None),
        ("lmcache/vllm-openai:v0.3.11", None),
        ("llm-d/llm-d-vllm:v0.4.0", None),
        ("own/vllm/vllm-openai-lmcache/server:v0.32.0", None),
        ("registry.example:5000/vllm:0.32.0", None),
        ("vllm/vllm-openai:cu128-nightly-0.33.0", None),
        ("registry.example:5000/vllm/vllm-openai", None),
        ("registry.example:5000/vllm", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm@sha256:0.32.0", None),
        (None, None),
    ],
)
def test_the_version_in_an_image_tag(image, version):
    assert version_of_image(image) == version


def test_every_row_of_the_matrix_says_what_it_was_tested_on():
    assert all(row.symptom for row in matrix.ROWS)
    # What was only reported names the report and claims no version.
    assert [row.id for row in matrix.ROWS if not row.tested] == ["vllm-ascend#16637"]
    assert len({row.id for row in matrix.ROWS}) == len(matrix.ROWS)
