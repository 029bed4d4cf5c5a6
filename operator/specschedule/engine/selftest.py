"""The probe scheduler's self test: every K planned, seen to run, and one request round trip each.

The load process of a screen runs it before its first window (``load/selftest.py``). By hand, once
the server is healthy: ``python -m specschedule.engine.selftest --url http://127.0.0.1:8000
--model NAME``, with the launch's SPECSCHEDULE_SCHEDULER_PORT and SPECSCHEDULE_PROBE_SECRET in the
environment.
"""

import argparse
import http.client
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
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
    findings = [_one(server, scheduler, model, secret, k) for k in ks]
    return [each for each in (*findings, unproven(facts(scheduler), ks)) if each is not None]


def output_tokens(k: int) -> int:
    """Return the output length of a request that takes at least ``STEPS`` steps at a K."""
    return STEPS * (k + 1)


def otherwise(
    k: int, before: Mapping[str, Any], after: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> str | None:
    """Say what a scheduler did that a request for a K did not ask for; None if nothing.

    Args:
        k: The K; the request's window is ``WINDOW`` with it.
        before: The page's facts before the request.
        after: Its facts after the answer.
        lines: Its steps from ``before["next"]`` on.
    """
    window = f"{WINDOW}{k}"
    if after["finding"]:
        return str(after["finding"])
    if after["window"] != window:
        return f"a request to plan K={k} did not switch the table: {after['refused']}"
    planned = {line["tokens"] for line in lines if line.get("window") == window}
    if planned == {k}:
        return None
    return f"K={k} was asked for and the scheduler planned {sorted(planned - {k}) or 'no step'}"


def unproven(found: Mapping[str, Any], ks: Collection[int]) -> str | None:
    """Say which K a scheduler has not seen run as planned; None when it has seen all.

    Args:
        found: The page's facts.
        ks: Every K that was asked for.
    """
    if found["finding"]:
        return str(found["finding"])
    missing = sorted(set(ks) - set(found["proven"]))
    if not missing:
        return None
    return (
        f"K={', '.join(map(str, missing))} was planned and not seen often enough: planned and "
        f"observed drafts are {json.dumps(found['observed'])}"
    )


def uncounted(k: int, drafts: int, draft_tokens: int) -> str | None:
    """Say how the engine's own counters over one request differ from its K; None if they do not.

    Args:
        k: The K asked for.
        drafts: How often the engine drafted.
        draft_tokens: How many tokens it drafted in all.
    """
    mean = draft_tokens / drafts if drafts else 0.0
    if draft_tokens > k * drafts:
        return f"K={k} was asked for and the engine drafted {mean:.2f} tokens at a time"
    # All but so many drafts, at the least, were shorter.
    if k and draft_tokens - (k - 1) * drafts < ENOUGH:
        return (
            f"K={k} was asked for and not seen often enough: the engine drafted {drafts} times, "
            f"{mean:.2f} tokens at a time"
        )
    return None


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


def _one(server: str, scheduler: str, model: str, secret: str, k: int) -> str | None:
    before = facts(scheduler)
    rows = [[1, before["maxNumSeqs"], k]]
    _ask(
        server,
        "/v1/completions",
        {
            "model": model,
            "prompt": PROMPT,
            "max_tokens": output_tokens(k),
            "temperature": 0,
            "ignore_eos": True,
            "vllm_xargs": inband.arguments(secret, rows, f"{WINDOW}{k}"),
        },
    )
    return otherwise(k, before, facts(scheduler), steps(scheduler, before["next"]))


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
