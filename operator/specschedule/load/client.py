"""Sends one request at a time to an OpenAI-compatible server and writes down its chunks.

A request that goes wrong is a failed request: it is never sent again and never left out.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from specschedule.load.http1 import Connections, MalformedAnswer
from specschedule.load.prompts import messages
from specschedule.load.records import Record, spread

IDLE_SECONDS = 2.0
"""Idle connections are dropped after this long: uvicorn, which serves vLLM, closes them after 5,
and a request sent into a closing connection would fail through no fault of the server."""
CONNECT_SECONDS = 10.0
_PATHS = {"completions": "v1/completions", "chat": "v1/chat/completions"}
_MARK = b'"completion_tokens":'

log = logging.getLogger(__name__)


class Unanswered(Exception):
    """The server gave no usable answer to a plain question."""


class NotCounted(Exception):
    """The server does not tell how many tokens a text has."""


class ReportedError(Exception):
    """The server reports an error inside a stream that began well."""


@dataclass(frozen=True)
class Served:
    """The first model that a server offers."""

    name: str
    max_model_len: int | None
    """Longest request, in tokens; None where the server does not tell."""


class Client:
    """One server, reached over as many connections as there are requests in flight."""

    def __init__(
        self, url: str, *, endpoint: str, timeout: float, api_key: str | None = None
    ) -> None:
        """Prepare; must be called in a running event loop.

        Args:
            url: Base URL.
            endpoint: ``completions`` or ``chat``.
            timeout: Seconds a request may take.
            api_key: Bearer token.
        """
        self._base = URL(url.rstrip("/") + "/")
        self._endpoint = endpoint
        self._timeout = timeout
        self.keep_answers = False
        """Whether answers are kept in the records."""
        self.on_sent: Callable[[Record], None] = lambda record: None
        """Called when a request's bytes go out."""
        self.on_tokens: Callable[[float, int], None] = lambda now, tokens: None
        """Called with time and number of tokens when a chunk arrives."""
        self._clock = asyncio.get_running_loop().time
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=10),
            headers=key,
        )
        target = self._base / _PATHS[endpoint]
        self._connections = Connections(
            target, idle_seconds=IDLE_SECONDS, connect_seconds=CONNECT_SECONDS
        )
        lines = [
            f"POST {target.raw_path_qs} HTTP/1.1",
            f"Host: {target.host_port_subcomponent}",
            "Accept: text/event-stream",
            "Content-Type: application/json",
            *(f"{name}: {value}" for name, value in key.items()),
            "Content-Length: ",
        ]
        self._head = "\r\n".join(lines).encode()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connections.close()
        await self._session.close()

    async def model(self) -> Served:
        """Return the first model that the server offers.

        Raises:
            Unanswered: It does not answer, or refuses; the message has its words.
        """
        text = await self._get("v1/models")
        try:
            card = json.loads(text)["data"][0]
            longest = card.get("max_model_len")
            return Served(str(card["id"]), longest if isinstance(longest, int) else None)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise Unanswered(f"{self._base}v1/models names no model: {text[:200]}") from error

    async def tokens(self, model: str, text: str) -> int:
        """Return the tokens of a prompt of text, with what the server puts around it.

        That are the special tokens of the model, or its chat template.

        Raises:
            NotCounted: The server does not count tokens; the message has its words.
            Unanswered: It does not answer.
        """
        asked: dict[str, Any] = {"model": model, "prompt": text}
        if self._endpoint == "chat":
            asked = {"model": model, "messages": messages(text)}
        status, answer = await self._ask("POST", "tokenize", asked)
        try:
            if status == 200:
                return int(json.loads(answer)["count"])
        except (ValueError, KeyError, TypeError):
            pass
        raise NotCounted(f"POST /tokenize answers HTTP {status}: {answer[:200]}")

    async def metrics(self) -> str:
        """Return the server's own Prometheus page.

        Raises:
            Unanswered: It has none.
        """
        return await self._get("metrics")

    async def _get(self, path: str) -> str:
        status, text = await self._ask("GET", path)
        if status != 200:
            raise Unanswered(f"{self._base / path}: HTTP {status}: {text[:200]}")
        return text

    async def _ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Return status and text of a plain question.

        Raises:
            Unanswered: It got no answer.
        """
        try:
            async with self._session.request(method, self._base / path, json=body) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unanswered(f"{self._base / path}: {_words(error)}") from error

    async def send(self, record: Record) -> None:
        """Send a record's request and fill the record; only cancellation is raised."""
        body = record.request.body
        stream = Stream(record, self.keep_answers, self.on_tokens)
        connection = None
        try:
            connection = await self._connections.take()
            record.sent = self._clock()
            self.on_sent(record)
            async with asyncio.timeout_at(record.sent + self._timeout):
                answer = await connection.request(
                    b"%b%d\r\n\r\n%b" % (self._head, len(body), body), stream.feed
                )
            if answer.reusable:
                self._connections.give_back(connection)
                connection = None
            stream.end(answer.status)
        except TimeoutError:
            record.error, record.kind = f"no full answer within {self._timeout:g} s", "timeout"
        except (OSError, MalformedAnswer) as error:
            record.error, record.kind = _words(error), "connection"
        except ReportedError as error:
            record.error, record.kind = str(error), "response"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            record.error, record.kind = f"answer not understood: {error}", "response"
        finally:
            if connection is not None:
                connection.abort()
            record.ended = self._clock()


class Stream:
    """The server-sent events of one answer, as they come in.

    The number of tokens so far is looked for in the bytes: every chunk has it when the server
    honours ``continuous_usage_stats``, and parsing all chunks as JSON would cost more than all
    the rest. Quotes inside texts are escaped, so the mark cannot occur there.
    """

    def __init__(
        self, record: Record, keep_answer: bool, on_tokens: Callable[[float, int], None]
    ) -> None:
        self._record, self._keep_answer, self._on_tokens = record, keep_answer, on_tokens
        self._rest = b""
        self._seen = 0
        self._last = b""
        self._texts: list[str] = []
        self._ids: list[int] = []

    def feed(self, now: float, data: bytes) -> None:
        """Take bytes of the body.

        An event is one line here, as every server writes it; a line break is sought because that
        costs a third of seeking an empty line.

        Raises:
            ReportedError: The server reports an error.
            ValueError: An event is no JSON.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        before = self._seen
        for line in lines:
            _, mark, tail = line.rpartition(_MARK)
            if mark:
                self._seen = int(tail.partition(b"}")[0].partition(b",")[0])
                self._last = line
                if self._keep_answer:
                    self._keep(line)
            elif line.startswith(b"data:") and line[5:].strip() != b"[DONE]" and self._keep(line):
                # One token for now; spread anew when the total is known.
                self._record.counts_estimated = True
                self._record.chunks.append((now, 1))
        if self._seen > before and not self._record.counts_estimated:
            self._record.chunks.append((now, self._seen - before))
            self._on_tokens(now, self._seen - before)

    def _keep(self, event: bytes) -> bool:
        """Keep text and token ids of a chunk; say whether it has text.

        Raises:
            ReportedError: It is an error report.
            ValueError: It is no JSON.
        """
        data: dict[str, Any] = json.loads(event.removeprefix(b"data:"))
        if "error" in data:
            raise ReportedError(f"the server reports: {str(data['error'])[:300]}")
        said = ""
        for choice in data.get("choices") or ():
            said += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            self._ids += choice.get("token_ids") or ()
        self._texts.append(said)
        return bool(said)

    def end(self, status: int | None) -> None:
        """Complete the record; whatever is wrong with the answer becomes its error."""
        record = self._record
        if status != 200:
            words = self._rest.decode(errors="replace").strip()[:400]
            record.error = f"HTTP {status}: {words}"
            refused = status is not None and 400 <= status < 500 and status not in (408, 429)
            record.kind = "refused" if refused else "response"
            return
        if record.counts_estimated:
            # Which tokens came when is a guess here, so throughput counts them all at the end.
            times = [at for at, _ in record.chunks]
            record.chunks = spread(times, self._seen)
            self._on_tokens(times[-1], self._seen)
        usage = json.loads(self._last.removeprefix(b"data:"))["usage"] if self._last else {}
        record.prompt_tokens = usage.get("prompt_tokens")
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if self._keep_answer:
            record.text, record.token_ids = "".join(self._texts), self._ids or None
        asked = record.request
        early = asked.may_end_early and 0 < self._seen < asked.output_tokens
        if self._seen != asked.output_tokens and not early:
            record.error = f"{self._seen} tokens instead of {asked.output_tokens}"
            record.kind = "length"


def _words(error: BaseException) -> str:
    """Return an error's own words; its name where it has none."""
    return str(error) or type(error).__name__
