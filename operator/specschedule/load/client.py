"""Sends one request at a time to an OpenAI-compatible server and writes down its chunks.

A request that goes wrong is a failed request: it is never sent again and never left out.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from specschedule.load.records import Record

IDLE_SECONDS = 2.0
"""Idle connections are dropped after this long: uvicorn, which serves vLLM, closes them after 5,
and a request sent into a closing connection would fail through no fault of the server."""
_PATHS = {"completions": "v1/completions", "chat": "v1/chat/completions"}
_COUNT = b'"completion_tokens":'
_DIGITS = frozenset(b"0123456789")

log = logging.getLogger(__name__)


class Unanswered(Exception):
    """The server gave no usable answer to a plain question."""


class ReportedError(Exception):
    """The server reports an error inside a stream that began well."""


class Client:
    """One server, reached over as many connections as there are requests in flight."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str,
        timeout: float,
        api_key: str | None = None,
    ) -> None:
        """Prepare; must be called in a running event loop.

        Args:
            url: Base URL.
            endpoint: ``completions`` or ``chat``.
            timeout: Seconds a request may take.
            api_key: Bearer token.
        """
        self._base = URL(url.rstrip("/") + "/")
        self._target = self._base / _PATHS[endpoint]
        self._timeout = timeout
        self.keep_text = False
        """Whether answers are kept in the records."""
        self.on_sent: Callable[[Record], None] = lambda record: None
        """Called when a request's bytes go out."""
        self.on_tokens: Callable[[float, int], None] = lambda now, tokens: None
        """Called with time and number of tokens when a chunk arrives."""
        self._clock = asyncio.get_running_loop().time
        tracing = aiohttp.TraceConfig()
        tracing.on_request_chunk_sent.append(self._bytes_sent)
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            headers=headers,
            trace_configs=[tracing],
            read_bufsize=2**20,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def model(self) -> str:
        """Return the first model that the server offers.

        Raises:
            Unanswered: It does not answer, or refuses; the message has its words.
        """
        text = await self._get("v1/models")
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Unanswered(f"{self._base}v1/models names no model: {text[:200]}") from error

    async def metrics(self) -> str:
        """Return the server's own Prometheus page.

        Raises:
            Unanswered: It has none.
        """
        return await self._get("metrics")

    async def _get(self, path: str) -> str:
        try:
            async with asyncio.timeout(10), self._session.get(self._base / path) as response:
                text = await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unanswered(f"{self._base / path}: {_words(error)}") from error
        if response.status != 200:
            raise Unanswered(f"{self._base / path}: HTTP {response.status}: {text[:200]}")
        return text

    async def send(self, record: Record) -> None:
        """Send a record's request and fill the record; only cancellation is raised."""
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(
                    self._target,
                    data=record.request.body,
                    trace_request_ctx=record,
                ) as response,
            ):
                if response.status != 200:
                    text = (await response.text())[:400]
                    record.error = f"HTTP {response.status}: {text}"
                    record.kind = "refused" if 400 <= response.status < 500 else "response"
                else:
                    await self._read(response.content, record)
        except TimeoutError:
            record.error, record.kind = f"no full answer within {self._timeout:g} s", "timeout"
        except (aiohttp.ClientError, OSError) as error:
            record.error, record.kind = _words(error), "connection"
        except ReportedError as error:
            record.error, record.kind = str(error), "response"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            record.error, record.kind = f"answer not understood: {error}", "response"
        record.ended = self._clock()

    async def _bytes_sent(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        parameters: aiohttp.TraceRequestChunkSentParams,
    ) -> None:
        record = context.trace_request_ctx
        if record is not None and record.sent is None:
            record.sent = self._clock()
            self.on_sent(record)

    async def _read(self, stream: aiohttp.StreamReader, record: Record) -> None:
        """Read server-sent events until the end.

        The number of tokens so far is looked for in the bytes: every chunk has it when the
        server honours ``continuous_usage_stats``, and parsing all chunks as JSON would cost
        more than all the rest. Quotes inside texts are escaped, so the mark cannot occur there.
        """
        rest = b""
        seen = 0
        last = b""
        texts: list[str] = []
        silent: list[float] = []
        while data := await stream.readany():
            now = self._clock()
            data = rest + data
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n")
            events = data.split(b"\n\n")
            rest = events.pop()
            before = seen
            for event in events:
                place = event.rfind(_COUNT)
                if place >= 0:
                    seen = _number(event, place + len(_COUNT)) or seen
                    last = event
                    if self.keep_text:
                        texts.append(_text(event))
                elif event.startswith(b"data:") and not event.endswith(b"[DONE]"):
                    text = _text(event)
                    texts.append(text)
                    if text:
                        silent.append(now)
            if seen > before and not silent:
                record.chunks.append((now, seen - before))
                self.on_tokens(now, seen - before)
        if silent:
            # Which tokens came when is a guess here, so throughput counts them all at the end.
            record.chunks = _spread(silent, seen)
            record.counts_estimated = True
            self.on_tokens(self._clock(), seen)
        usage = json.loads(last.removeprefix(b"data:"))["usage"] if last else {}
        record.prompt_tokens = usage.get("prompt_tokens")
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        record.text = "".join(texts) if self.keep_text else None
        if seen != record.request.output_tokens:
            record.error = f"{seen} tokens instead of {record.request.output_tokens}"
            record.kind = "length"


def _number(event: bytes, place: int) -> int:
    """Read the integer at a place, after optional spaces."""
    end = place
    while event[end : end + 1] == b" ":
        end += 1
    place = end
    while end < len(event) and event[end] in _DIGITS:
        end += 1
    return int(event[place:end])


def _text(event: bytes) -> str:
    """Return the text of a chunk.

    Raises:
        ReportedError: It is an error report.
        ValueError: It is no JSON.
    """
    data: dict[str, Any] = json.loads(event.removeprefix(b"data:"))
    if "error" in data:
        raise ReportedError(f"the server reports: {str(data['error'])[:300]}")
    text = ""
    for choice in data.get("choices") or ():
        text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return text


def _spread(times: list[float], tokens: int) -> list[tuple[float, int]]:
    """Share tokens out over chunks as evenly as whole numbers allow."""
    marks = [round(tokens * i / len(times)) for i in range(len(times) + 1)]
    return [(at, b - a) for at, (a, b) in zip(times, pairwise(marks), strict=True) if b > a]


def _words(error: BaseException) -> str:
    """Return an error's own words; its name where it has none."""
    return str(error) or type(error).__name__
