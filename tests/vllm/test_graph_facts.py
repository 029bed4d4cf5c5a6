"""What vLLM 0.32 says of CUDA graphs, which the matrix takes for granted."""

import json
import subprocess
from typing import Any

import pytest

from specschedule.core.matrix import asked_graph_mode
from specschedule.core.target import ServerFacts
from specschedule.vllm_facts import matrix

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SCRIPT = """
import json
from pathlib import Path

import vllm
from vllm.config.vllm import OPTIMIZATION_LEVEL_TO_CONFIG
from vllm.v1.attention.backends.registry import AttentionBackendEnum

modes = {
    int(level): config["compilation_config"]["cudagraph_mode"].name
    for level, config in OPTIMIZATION_LEVEL_TO_CONFIG.items()
}
root = Path(vllm.__file__).parent.parent
files = {
    name: root / (backend.value.rpartition(".")[0].replace(".", "/") + ".py")
    for name, backend in AttentionBackendEnum.__members__.items()
    if isinstance(backend.value, str) and backend.value
}
single = [
    name
    for name, file in files.items()
    if file.exists() and "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE" in file.read_text()
]
print(json.dumps({"modes": modes, "single": single, "files": len(files)}))
"""


@pytest.fixture(scope="module")
def said(engine: dict[str, Any]) -> dict[str, Any]:
    answer = subprocess.check_output(
        [engine["python"], "-c", SCRIPT], stderr=subprocess.DEVNULL, text=True
    )
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def test_each_optimization_level_stands_for_the_engines_own_graph_mode(
    said: dict[str, Any],
) -> None:
    ours = {
        str(level): asked_graph_mode(
            ServerFacts(container="server", optimization_level=level), "cuda"
        )
        for level in range(4)
    }
    assert ours == said["modes"]


def test_backends_with_full_graphs_for_one_token_only_are_in_the_matrix(
    said: dict[str, Any],
) -> None:
    named = {backend for row in matrix.ROWS for backend in row.backends}
    assert said["files"] > 10
    assert named <= set(said["single"])
    # FLASH_ATTN_MLA says it of its class for XPUs, HPC_ATTN of launches without speculation.
    assert set(said["single"]) - named == {"FLASH_ATTN_MLA", "HPC_ATTN"}
