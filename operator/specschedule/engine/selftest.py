"""The probe scheduler's self test: every K planned, seen to run, and one request round trip each.

Run it once the server is healthy and before the first window counts:
``python -m specschedule.engine.selftest --url http://127.0.0.1:8000 --model NAME``, with the
launch's SPECSCHEDULE_SCHEDULER_PORT and SPECSCHEDULE_PROBE_SECRET in the environment.
"""

import argparse
import http.client
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from specschedule.core import inband
from specschedule.engine import settings
from specschedule.engine.proof import ENOUGH

WINDOW = "self-test-"
PROMPT = "one two three four " * 8
"""Repeats itself, so that a drafter that copies finds something to copy."""
STEPS = ENOUGH + 4
"""Steps that each request takes at least; a step yields up to K + 1 tokens."""


def run(server: str, scheduler: str, model: str, secret: str) -> list[str]:
    """Switch through every K that the server was started with; return what did not hold.

    Args:
        server: Base URL of the API server.
        scheduler: Base URL of the scheduler's page.
        model: The name it serves.
        secret: The launch's secret.

    Raises:
        OSError: One of the two does not answer.
    """
    boot = facts(scheduler)
    if boot.get("kind") != "probe":
        return [f"{scheduler} is the page of {boot.get('kind')!r}, not of a probe scheduler"]
    ks = sorted({row[-1] for row in boot["bootRanges"]})
    findings = [f for k in ks for f in _one(server, scheduler, model, secret, k)]
    found = facts(scheduler)
    missing = sorted(set(ks) - set(found["proven"]))
    if found["finding"]:
        findings.append(found["finding"])
    if missing:
        findings.append(
            f"K={', '.join(map(str, missing))} was planned and not seen often enough: planned and "
            f"observed drafts are {json.dumps(found['observed'])}"
        )
    return findings


def facts(page: str) -> dict[str, Any]:
    """Read a page's facts.

    Raises:
        OSError: Nobody answers, or not with facts.
    """
    return dict(json.loads(_ask(page, "/facts")))


def steps(page: str, since: int = 0) -> list[dict[str, Any]]:
    """Read a page's steps from a number on, all that are kept.

    Raises:
        OSError: Nobody answers, or not with steps.
    """
    found: list[dict[str, Any]] = []
    while lines := _ask(page, f"/steps?since={since}").splitlines():
        found += [json.loads(line) for line in lines]
        since = found[-1]["step"] + 1
    return found


def _one(server: str, scheduler: str, model: str, secret: str, k: int) -> list[str]:
    before = facts(scheduler)
    window = f"{WINDOW}{k}"
    rows = [[1, before["maxNumSeqs"], k]]
    _ask(
        server,
        "/v1/completions",
        {
            "model": model,
            "prompt": PROMPT,
            "max_tokens": STEPS * (k + 1),
            "temperature": 0,
            "ignore_eos": True,
            "vllm_xargs": inband.arguments(secret, rows, window),
        },
    )
    after = facts(scheduler)
    if after["window"] != window:
        return [f"a request to plan K={k} did not switch the table: {after['refused']}"]
    seen = [line for line in steps(scheduler, before["next"]) if line.get("window") == window]
    other = sorted({line["tokens"] for line in seen} - {k})
    if not seen or other:
        return [f"K={k} was asked for and the scheduler planned {other or 'no step'}"]
    return []


def _ask(base: str, path: str, body: Mapping[str, Any] | None = None) -> str:
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=120)
    try:
        headers = {"Content-Type": "application/json"}
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, sent, headers)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", errors="replace")
    except http.client.HTTPException as fault:
        raise OSError(f"{base}{path}: {type(fault).__name__}") from fault
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"{base}{path}: HTTP {answer.status}: {text[:300]}")
    return text


def main(words: Sequence[str] | None = None) -> int:
    """Print the findings as JSON; 0 when there is none, 1 when there is one."""
    parser = argparse.ArgumentParser(prog="specschedule.engine.selftest", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the API server")
    parser.add_argument("--model", required=True, help="the name it serves")
    given = parser.parse_args(words)
    try:
        port = settings.port(os.environ, settings.SCHEDULER_PORT)
        if port is None:
            raise settings.SettingError(f"{settings.SCHEDULER_PORT} is missing")
        page = f"http://127.0.0.1:{port}"
        findings = run(given.url, page, given.model, settings.secret(os.environ))
    except (OSError, settings.SettingError) as fault:
        findings = [str(fault)]
    sys.stdout.write(json.dumps({"passed": not findings, "findings": findings}) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
