"""A small streaming server on loopback that does what a script says, for tests of the client."""

import asyncio
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass
class Script:
    """How one request is answered."""

    status: int = 200
    chunks: list[int] | None = None
    """Tokens of each chunk; one token each, as many as asked for, when None."""
    pause: float = 0.002
    """Seconds before each chunk."""
    continuous: bool = True
    """Whether every chunk says how many tokens there are so far."""
    separator: bytes = b"\n\n"
    cut: int | None = None
    """Bytes after which each write is cut in two."""
    breaks_after: int | None = None
    """Chunks after which the stream reports an error."""
    hangs_after: int | None = None
    """Chunks after which nothing more comes."""
    drops_after: int | None = None
    """Chunks after which the connection is cut."""
    text: str = " tok"
    varied: bool = False
    """Whether every token has a text of its own."""
    cached: int | None = None
    ids: bool = False
    """Whether the ids of the tokens are told: 0, 1, 2 and so on."""


@dataclass
class Scripted:
    """The server; every attribute may be looked at while it runs."""

    script: Callable[[int, dict[str, Any]], Script] = lambda number, body: Script()
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    seen_in_flight: list[int] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    """Requests in flight as each request came in, itself included."""
    tokens: int = 0
    max_model_len: int | None = None
    counts: bool = False
    """Whether it counts tokens at /tokenize, one for each word."""
    metrics_fault: bool = False
    processes: int = 1
    """API processes that answer in turn, each with counters of its own."""
    pages: int = 0
    url: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/v1/models", self._models)
        if self.counts:
            app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls).start()
        scheme = "https" if self.tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        card = {"id": "scripted", "max_model_len": self.max_model_len}
        return web.json_response({"data": [card]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"count": len((await request.json())["prompt"].split())})

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.metrics_fault:
            return web.Response(status=404)
        self.pages += 1
        tokens = self.tokens if self.pages % self.processes == 0 else self.tokens // 10
        return web.Response(
            text=f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n'
            f'vllm:num_requests_running{{engine="0"}} {self.in_flight}\n'
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        script = self.script(len(self.bodies), body)
        self.bodies.append(body)
        if script.status != 200:
            return web.json_response({"error": {"message": "as scripted"}}, status=script.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.in_flight += 1
        self.entered.append(self.in_flight)
        try:
            await response.prepare(request)
            await self._stream(response, request, script, body)
        finally:
            self.in_flight -= 1
        return response

    async def _stream(
        self,
        response: web.StreamResponse,
        request: web.Request,
        script: Script,
        body: dict[str, Any],
    ) -> None:
        chat = "messages" in body
        sizes = script.chunks if script.chunks is not None else [1] * body["max_tokens"]
        total = 0

        async def write(event: object) -> None:
            text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
            data = b"data: " + text.encode() + script.separator
            if script.cut is not None:
                await response.write(data[: script.cut])
                await asyncio.sleep(0.001)
                data = data[script.cut :]
            await response.write(data)

        def usage() -> dict[str, Any]:
            counts: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": total}
            if script.cached is not None:
                counts["prompt_tokens_details"] = {"cached_tokens": script.cached}
            return counts

        def piece(text: str, size: int = 0) -> dict[str, Any]:
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            if script.ids:
                choice["token_ids"] = list(range(total - size, total))
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            return {"choices": [choice]} | ({"usage": usage()} if script.continuous else {})

        if chat:
            await write(piece(""))
        for number, size in enumerate(sizes):
            if number == script.breaks_after:
                await write({"error": {"message": "engine died"}})
                return
            if number == script.hangs_after:
                await asyncio.sleep(3600)
            if number == script.drops_after:
                assert request.transport is not None
                request.transport.abort()
                return
            await asyncio.sleep(script.pause)
            self.seen_in_flight.append(self.in_flight)
            words = [secrets.token_hex(3) if script.varied else script.text for _ in range(size)]
            total += size
            self.tokens += size
            await write(piece("".join(words), size))
        await write({"choices": [], "usage": usage()})
        await write("[DONE]")


@contextmanager
def serving(server: Scripted) -> Iterator[Scripted]:
    """Run a server in a thread of its own, for clients in other processes."""
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with server:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
