"""A page on loopback from which what was recorded is read."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from specschedule.engine.ring import Ring

MOST_LINES = 4096
"""Lines per answer: writing them holds the interpreter for some 20 ms, in between the engine's
own steps; a reader asks again for the rest."""

Facts = Callable[[], Mapping[str, Any]]


def serve(port: int, facts: Facts, ring: Ring | None = None) -> None:
    """Answer on a port of loopback from a thread of its own, until the process ends.

    ``GET /facts`` is one JSON object: the facts, both clocks, and which steps are kept.
    ``GET /steps?since=N&limit=M`` is JSON lines, from step N on.

    Args:
        port: The port.
        facts: Called for each answer.
        ring: The steps.

    Raises:
        OSError: The port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if asked.path == "/facts":
                clocks = {"monotonic": time.monotonic(), "unix": time.time()}
                kept = ring.plain() if ring else {}
                self._answer(200, json.dumps({**facts(), **clocks, **kept}) + "\n")
            elif asked.path == "/steps" and ring:
                self._steps(ring, parse_qs(asked.query))
            else:
                self._answer(404, "ask for /facts or /steps?since=0\n")

        def _steps(self, kept: Ring, query: Mapping[str, list[str]]) -> None:
            since, limit = (query.get(name, ["0"])[-1] for name in ("since", "limit"))
            if not (since.isdecimal() and limit.isdecimal()):
                return self._answer(400, "since and limit are whole numbers from 0\n")
            lines = kept.since(int(since), min(int(limit) or MOST_LINES, MOST_LINES))
            return self._answer(200, "".join(json.dumps(line) + "\n" for line in lines))

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Stay silent: the engine's log is evidence."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="specschedule", daemon=True).start()
