"""Reads what a running vLLM server says of itself. It never sends a request to generate.

Development endpoints stay off; what answers only there is simply absent.
"""

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic.alias_generators import to_camel

from specschedule.core.evidence import Receipt
from specschedule.vllm_facts.receipt import read_receipt

LONGEST_ANSWER = 8 << 20
"""Bytes; more than any server's metrics."""

LOG_HEAD_BYTES = 1 << 20
"""How much of a log's beginning a receipt is read from."""


def receipt(
    base_url: str | None, *, log_text: str | None, known: Mapping[str, Any]
) -> tuple[Receipt, bool]:
    """Return the facts of a launch, and whether its server answered what it must.

    Args:
        base_url: Where the server answers; None while it has no address.
        log_text: Its log from the beginning.
        known: Facts by field that are known of it from outside; what it tells itself counts first.
    """
    version = _json(get(base_url, "/version"))
    metrics = get(base_url, "/metrics")
    found = read_receipt(
        version=version,
        server_info=_json(get(base_url, "/server_info?config_format=json")),
        metrics_text=metrics,
        models=models(base_url),
        log_text=log_text,
    )
    told = found.plain()
    added = {k: v for k, v in known.items() if v is not None and to_camel(k) not in told}
    return found.model_copy(update=added), version is not None and metrics is not None


def models(base_url: str | None) -> Mapping[str, Any] | None:
    """Ask a server which models it serves; None where it does not answer, or wants a key."""
    return _json(get(base_url, "/v1/models"))


def get(base_url: str | None, path: str, *, seconds: float = 3.0) -> str | None:
    """Return the body; None for an error, another status than 200, or more than the time given."""
    if base_url is None:
        return None
    until = time.monotonic() + seconds
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != 200:
            return None
        body = b""
        while chunk := response.read1(1 << 16):
            body += chunk
            if len(body) > LONGEST_ANSWER or time.monotonic() > until:
                return None
        return body.decode("utf-8", errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _json(text: str | None) -> Mapping[str, Any] | None:
    try:
        answer = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
