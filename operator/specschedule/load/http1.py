"""A lean HTTP/1.1 client for streamed answers.

Everything rare goes through aiohttp. Streams do not: with hundreds of them, several tokens a
second each, aiohttp's way from socket to coroutine costs more than three times what is needed
here, and the pause between an answer and the next request, in which one too few is in flight,
more than five times. What is not needed is left out: no redirects, cookies, compression,
pipelining or proxies.
"""

import asyncio
import ssl
from collections.abc import Callable

from yarl import URL

READ_BYTES = 16384
"""Bytes read at a time."""
LONGEST_HEAD = 65536
"""Bytes that status line and headers of an answer may have."""


class MalformedAnswer(Exception):
    """The peer does not speak HTTP/1.1 as expected."""


class Parser:
    """One answer, from its bytes in whatever pieces they come."""

    def __init__(self) -> None:
        self.status: int | None = None
        """Status code, once the head is complete."""
        self.complete = False
        """Whether the answer is over."""
        self.reusable = True
        """Whether the connection may serve another request afterwards."""
        self._pending = b""
        self._chunked = False
        self._left = 0
        """Bytes of the present chunk, or of the body, still to come."""
        self._until_close = False
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes and return what they add to the body.

        Raises:
            MalformedAnswer: They are no HTTP/1.1 answer.
        """
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if self.status is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > LONGEST_HEAD:
                    raise MalformedAnswer("the head of the answer does not end")
                self._pending = data
                return b""
            self._head(data[:end])
            data = data[end + 4 :]
        if self._chunked:
            return self._dechunk(data)
        if self._until_close:
            return data
        body, extra = data[: self._left], data[self._left :]
        self._left -= len(body)
        if not self._left:
            self._finish(extra)
        return body

    def close(self) -> None:
        """Take note that the peer closed the connection.

        Raises:
            MalformedAnswer: The answer was not complete.
        """
        if self.complete:
            return
        if not self._until_close:
            raise MalformedAnswer("the server closed the connection before its answer was complete")
        self.complete, self.reusable = True, False

    def _head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        code = rest[:3]
        if not version.startswith(b"HTTP/1.") or not code.isdigit():
            raise MalformedAnswer(f"not an HTTP/1.1 answer: {first[:80]!r}")
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip().lower()
        connection = headers.get(b"connection", b"")
        self.reusable = connection != b"close" and version == b"HTTP/1.1"
        if headers.get(b"transfer-encoding") == b"chunked":
            self._chunked = True
        elif b"content-length" in headers:
            length = headers[b"content-length"]
            if not length.isdigit():
                raise MalformedAnswer(f"content-length {length[:20]!r}")
            self._left = int(length)
        else:
            self._until_close = True
        self.status = int(code)

    def _dechunk(self, data: bytes) -> bytes:
        """Take the frames off a chunked body."""
        pieces = []
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._trailer = True
            if self._trailer:
                # The line end after a chunk's data.
                if len(data) < at + 2:
                    self._pending = data[at:]
                    break
                at += 2
                self._trailer = False
            end = data.find(b"\r\n", at)
            if end < 0:
                self._pending = data[at:]
                break
            try:
                self._left = int(data[at:end].partition(b";")[0], 16)
            except ValueError:
                raise MalformedAnswer(f"chunk size {data[at:end][:20]!r}") from None
            if not self._left:
                self._last_chunk(data[at:])
                break
            at = end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _last_chunk(self, data: bytes) -> None:
        """Take the final chunk; trailers before its empty line are skipped."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._pending = data
        else:
            self._finish(data[end + 4 :])

    def _finish(self, extra: bytes) -> None:
        if extra:
            raise MalformedAnswer("bytes after the end of the answer")
        self.complete = True


class Moment:
    """When the event loop last woke up.

    What is read in one turn of the loop had arrived when the turn began. Stamping it with that
    time, and not with the time at which its own turn comes, keeps the reading of hundreds of
    other streams out of its latency.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._at: float | None = None

    def now(self) -> float:
        """Return the time of the first call in this turn of the loop."""
        if self._at is None:
            self._at = self._loop.time()
            # Runs first thing in the next turn.
            self._loop.call_soon(self._forget)
        return self._at

    def _forget(self) -> None:
        self._at = None


class Connection(asyncio.BufferedProtocol):
    """One connection, one request at a time."""

    def __init__(self, moment: Moment) -> None:
        # A buffer kept for good: asyncio's other protocols allocate 256 KiB for every read.
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._loop = asyncio.get_running_loop()
        self._moment = moment
        self._transport: asyncio.Transport | None = None
        self._parser = Parser()
        self._body: Callable[[float, bytes], None] | None = None
        self._over: asyncio.Future[Parser] | None = None
        self.idle_since = 0.0
        """When the last answer was over."""

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def request(self, data: bytes, body: Callable[[float, bytes], None]) -> asyncio.Future[Parser]:
        """Send a request.

        Args:
            data: Head and body.
            body: Called with time and bytes whenever a part of the answer's body arrives.

        Returns:
            The parsed head, when the answer is over. Fails with OSError or MalformedAnswer.
        """
        assert self._transport is not None
        self._parser, self._body = Parser(), body
        self._over = self._loop.create_future()
        self._transport.write(data)
        return self._over

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what is received."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what belongs to the body; end the exchange when it is complete."""
        now = self._moment.now()
        data = bytes(self._buffer[:nbytes])
        over = self._over
        if over is None or over.done():
            # Nothing was asked for: the server says goodbye, or we gave up on the answer.
            self.abort()
            return
        parser = self._parser
        try:
            part = parser.feed(data)
            if part and self._body is not None:
                self._body(now, part)
        except Exception as error:
            over.set_exception(error)
            self.abort()
            return
        if parser.complete:
            self.idle_since = now
            over.set_result(parser)

    def connection_lost(self, error: Exception | None) -> None:
        """End an exchange that was under way."""
        over = self._over
        if over is None or over.done():
            return
        try:
            if error is not None:
                raise error
            self._parser.close()
            over.set_result(self._parser)
        except Exception as reason:
            over.set_exception(reason)


class Connections:
    """Connections to one server, kept for the next request while they are fresh."""

    def __init__(self, url: URL, *, idle_seconds: float, connect_seconds: float) -> None:
        """Prepare; nothing is connected yet.

        Args:
            url: Where to connect.
            idle_seconds: A connection unused for longer is not used again.
            connect_seconds: How long connecting may take.
        """
        if not url.host or not url.port:
            raise ValueError(f"{url}: not an http or https URL")
        self._host, self._port = url.host, url.port
        self._idle_seconds, self._connect_seconds = idle_seconds, connect_seconds
        self._context = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: list[Connection] = []
        self._clock = asyncio.get_running_loop().time
        self._moment = Moment()

    async def take(self) -> Connection:
        """Return a connection that is ready to be used.

        Raises:
            OSError: There is none to be had.
        """
        while self._idle:
            connection = self._idle.pop()
            fresh = self._clock() - connection.idle_since < self._idle_seconds
            if connection.usable and fresh:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._moment), self._host, self._port, ssl=self._context
                )
        except TimeoutError:
            raise OSError(
                f"no connection to {self._host}:{self._port} within {self._connect_seconds:g} s"
            ) from None
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        self._idle.append(connection)

    def close(self) -> None:
        """Drop all that are kept."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
