"""The audit command tells each request that changed something once, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
READER = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import audit
for event in audit.events(pathlib.Path(sys.argv[2]), sys.argv[3], reads=bool(sys.argv[4])):
    print(event["verb"], event["resource"], event["name"], event["code"])
"""


def event(verb: str, stage: str, time: str = "2026-11-29T10:00:00.000000Z") -> dict[str, object]:
    return {
        "stage": stage,
        "verb": verb,
        "requestReceivedTimestamp": time,
        "user": {"username": "someone"},
        "objectRef": {"resource": "pods", "name": "one", "namespace": "default"},
        "responseStatus": {"code": 200},
    }


def lines(*events: dict[str, object]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in events)


WRITE = event("patch", "ResponseComplete")
LATER = event("delete", "ResponseComplete", "2026-11-29T10:00:01.000000Z")
READ = event("get", "ResponseComplete")
WATCH = (event("watch", "ResponseStarted"), event("watch", "ResponseComplete"))
PATCHED, DELETED = "patch pods one 200", "delete pods one 200"
CASES = {
    "a write is told": (lines(WRITE), "", False, [PATCHED]),
    "a read is no write": (lines(WRITE, READ, *WATCH), "", False, [PATCHED]),
    "a read is told when asked for": (lines(READ), "", True, ["get pods one 200"]),
    "a watch counts once, when it starts": (lines(*WATCH), "", True, ["watch pods one 200"]),
    "the moment given is included": (
        lines(WRITE, LATER),
        "2026-11-29T10:00:01Z",
        False,
        [DELETED],
    ),
    "a moment of another time zone is the same moment": (
        lines(WRITE, LATER),
        "2026-11-29T11:00:00.5+01:00",
        False,
        [DELETED],
    ),
    "a line that is still being written is left for the next time": (
        lines(WRITE) + lines(LATER)[:40],
        "",
        False,
        [PATCHED],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_audit(case: tuple[str, str, bool, list[str]], tmp_path: Path) -> None:
    log, since, reads, told = case
    (tmp_path / "audit.log").write_text(log)
    done = subprocess.run(
        [
            *(sys.executable, "-c", READER, REPOSITORY / "hack" / "cluster"),
            *(tmp_path / "audit.log", since, "yes" if reads else ""),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == told
