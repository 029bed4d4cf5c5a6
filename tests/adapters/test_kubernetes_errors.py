"""The API server at its worst: every answer becomes one of four, in bounded time."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from specschedule.adapters.kubernetes.api import RETRIES, AlreadyExists, Api
from specschedule.ports import Conflict, Refused, Unavailable

Answer = Callable[[BaseHTTPRequestHandler], None]

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}


class Stub(ThreadingHTTPServer):
    daemon_threads = True
    answer: Answer
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        stub = self.server
        assert isinstance(stub, Stub)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        stub.asked.append(f"{self.command} {self.path}")
        stub.answer(self)

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        """The test says what matters."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api(stub: Stub) -> Iterator[Api]:
    settings = client.Configuration(host=f"http://127.0.0.1:{stub.server_port}")
    settings.retries = RETRIES
    with client.ApiClient(settings) as api_client:
        yield Api(api_client, connect_seconds=0.5, read_seconds=0.5)


def says(status: int, reason: str, message: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        text = json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    return answer


def hangs(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)


def breaks_off(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"items": [')
    handler.close_connection = True


def not_json(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "4")
    handler.end_headers()
    handler.wfile.write(b"<ok>")


AWAY: dict[str, Answer] = {
    "it hangs": hangs,
    "it breaks off": breaks_off,
    "it answers no JSON": not_json,
    "the token has expired": says(401, "Unauthorized", "Unauthorized"),
    "it is overloaded": says(429, "TooManyRequests", "try again later"),
    "it fails inside": says(500, "InternalError", "etcdserver: leader changed"),
    "it is starting": says(503, "ServiceUnavailable", "not ready"),
    "it timed out inside": says(504, "Timeout", "etcd"),
}

CALLS: dict[str, Callable[[Api], Any]] = {
    "get": lambda api: api.get("pods", "ns", "p"),
    "list": lambda api: api.list("pods", "ns"),
    "create": lambda api: api.create("pods", dict(POD)),
    "patch": lambda api: api.patch("pods", "ns", "p", {"a": 1}),
    "delete": lambda api: api.delete("pods", dict(POD)),
}


UNREAD = ("it answers no JSON", "it breaks off")
"""A deletion's answer has nothing that is wanted."""


@pytest.mark.parametrize(
    ("case", "call"),
    [(case, call) for case in AWAY for call in CALLS if not (call == "delete" and case in UNREAD)],
)
def test_a_server_that_does_not_answer_is_unavailable(
    stub: Stub, api: Api, case: str, call: str
) -> None:
    stub.answer = AWAY[case]
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        CALLS[call](api)
    assert time.monotonic() - begun < 20
    assert len(stub.asked) <= (2 if call in ("get", "list") else 1), "a write is sent once"


REFUSALS: dict[str, tuple[Answer, type[Exception], str]] = {
    "a quota": (
        says(403, "Forbidden", 'pods "p" is forbidden: exceeded quota: gpus'),
        Refused,
        "exceeded quota: gpus",
    ),
    "an admission webhook": (
        says(400, "BadRequest", "admission webhook denied the request: no"),
        Refused,
        "denied the request",
    ),
    "an invalid object": (says(422, "Invalid", "spec.x: Required value"), Refused, "spec.x"),
    "too large an object": (says(413, "RequestEntityTooLarge", "limit is 3"), Refused, "limit"),
    "a failed precondition": (says(409, "Conflict", "object was modified"), Conflict, "modified"),
    "its parent is gone": (says(404, "NotFound", "namespace not found"), Conflict, "not found"),
    "a name that is taken": (says(409, "AlreadyExists", "exists"), AlreadyExists, "exists"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_write_that_is_refused_says_so_in_the_servers_words(
    stub: Stub, api: Api, case: str
) -> None:
    stub.answer, kind, words = REFUSALS[case]
    with pytest.raises(kind, match=words):
        api.create("pods", dict(POD))


def test_what_may_not_be_read_is_unavailable_not_absent(stub: Stub, api: Api) -> None:
    stub.answer = says(403, "Forbidden", "cannot get resource pods")
    with pytest.raises(Unavailable, match="cannot get resource"):
        api.get("pods", "ns", "p")


def test_what_is_not_there_is_nothing(stub: Stub, api: Api) -> None:
    stub.answer = says(404, "NotFound", "not found")
    assert api.get("pods", "ns", "p") is None
    assert api.log("ns", "p", "c") is None


@pytest.mark.parametrize(
    "answer",
    [says(404, "NotFound", "gone"), says(409, "Conflict", "the UID does not match")],
    ids=["gone already", "another object has the name now"],
)
def test_deleting_what_is_gone_is_done(stub: Stub, api: Api, answer: Answer) -> None:
    stub.answer = answer
    api.delete("pods", dict(POD))


def test_a_long_list_is_read_page_by_page(stub: Stub, api: Api) -> None:
    def page(handler: BaseHTTPRequestHandler) -> None:
        first = "continue=" not in handler.path
        items = [{"n": 1}, {"n": 2}] if first else [{"n": 3}]
        text = json.dumps(
            {"metadata": {"continue": "more"} if first else {}, "items": items}
        ).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    stub.answer = page
    assert [each["n"] for each in api.list("pods", "ns")] == [1, 2, 3]


def test_a_list_whose_next_page_has_expired_is_unavailable_not_short(stub: Stub, api: Api) -> None:
    def page(handler: BaseHTTPRequestHandler) -> None:
        if "continue=" in handler.path:
            says(410, "Expired", "The provided continue parameter is too old")(handler)
            return
        text = json.dumps({"metadata": {"continue": "more"}, "items": [{"n": 1}]}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    stub.answer = page
    with pytest.raises(Unavailable, match="too old"):
        api.list("pods", "ns")


def test_nobody_listening_is_unavailable() -> None:
    settings = client.Configuration(host="http://127.0.0.1:1")
    settings.retries = RETRIES
    with client.ApiClient(settings) as api_client, pytest.raises(Unavailable):
        Api(api_client).get("pods", "ns", "p")
