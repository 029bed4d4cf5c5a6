"""Reads what a running vLLM server says of itself. It never sends a request to generate.

Development endpoints stay off; what answers only there is simply absent.
"""

import http.client
import time
from typing import NamedTuple
from urllib.parse import urlsplit

LONGEST_ANSWER = 8 << 20
"""Bytes; more than any server's metrics."""


class Answers(NamedTuple):
    """Bodies as text; None for what the server does not answer."""

    version: str | None
    server_info: str | None
    metrics: str | None
    models: str | None


def read(base_url: str, *, seconds: float = 3.0) -> Answers:
    """Ask a server for /version, /server_info, /metrics and /v1/models, each within a time."""
    return Answers(
        version=_get(base_url, "/version", seconds),
        server_info=_get(base_url, "/server_info?config_format=json", seconds),
        metrics=_get(base_url, "/metrics", seconds),
        models=models(base_url, seconds=seconds),
    )


def models(base_url: str, *, seconds: float = 3.0) -> str | None:
    """Ask a server which models it serves; None where it does not answer, or wants a key."""
    return _get(base_url, "/v1/models", seconds)


def _get(base_url: str, path: str, seconds: float) -> str | None:
    """Return the body; None for an error, another status than 200, or more than the time given."""
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
