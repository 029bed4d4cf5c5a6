"""What a command that answers at once may not wait for."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["preflight", "effective"])
def test_answering_from_files_loads_no_network_client(command: str) -> None:
    asked = f"import sys, specschedule.cli.{command}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", asked], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "specschedule.core.schedule" in loaded
    assert {"aiohttp", "kubernetes", "kopf", "torch"}.isdisjoint(loaded)
