"""Time of the schedule language and of a preflight: ``make bench-core``."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specschedule.core.schedule import effective
from tests.gates.manifests import deployment, specschedule

EFFECTIVE_LIMIT_MS = 10.0
PREFLIGHT_LIMIT_S = 0.3
REPEATS = 9


def main() -> int:
    """Print both times beside their limits; return 1 when one is missed."""
    effective_ms = effective_time()
    preflight_s, interpreter_s = preflight_times()
    beyond = preflight_s - interpreter_s
    lines = (
        f"effective, 256 rows, max_num_seqs 4096: {effective_ms:.2f} ms (limit 10 ms)",
        f"preflight of a 500-line manifest: {preflight_s:.2f} s, interpreter start "
        f"{interpreter_s:.2f} s, beyond it {beyond:.2f} s (limit 0.3 s)",
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return int(effective_ms > EFFECTIVE_LIMIT_MS or beyond > PREFLIGHT_LIMIT_S)


def effective_time() -> float:
    """Return the median time in ms, every batch size looked up."""
    rows = [[1 + 16 * i, 16 + 16 * i, (256 - i) % 6] for i in range(256)]
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        table = effective(rows, max_tokens=5, max_num_seqs=4096)
        for batch in range(1, 4097):
            table.tokens(batch)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def preflight_times() -> tuple[float, float]:
    """Return the best seconds of a preflight and of starting the interpreter alone."""
    with tempfile.TemporaryDirectory() as folder:
        spec, target = Path(folder, "spec.yaml"), Path(folder, "target.yaml")
        spec.write_text(yaml.safe_dump(specschedule()))
        variables = [{"name": f"SETTING_{i}", "value": f"value {i}"} for i in range(250)]
        target.write_text(yaml.safe_dump(deployment(env=variables)))
        lines = len(target.read_text().splitlines())
        assert lines >= 500, lines
        command = [
            *(sys.executable, "-m", "specschedule.cli.main", "preflight"),
            *("-f", str(spec), "--target", str(target), "-o", "json"),
        ]
        # As installed: modules are compiled once, by the first run.
        settings = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        settings["PYTHONPYCACHEPREFIX"] = folder
        return best_of(command, settings), best_of([sys.executable, "-c", "pass"], settings)


def best_of(command: list[str], environment: dict[str, str]) -> float:
    """Return the shortest run of a command, in seconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
