"""What the tests against the real engine share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def engine() -> dict[str, object]:
    """Where the real engine lies, as `hack/vllm where` says."""
    command = [sys.executable, "hack/vllm", "where"]
    found: dict[str, object] = json.loads(subprocess.check_output(command, cwd=ROOT))
    return found
