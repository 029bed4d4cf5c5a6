"""Answers of the lean HTTP client, in whatever pieces they come."""

import asyncio
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.load.http1 import MalformedAnswer, Moment, Parser

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(parts: list[bytes], trailer: bytes = b"") -> bytes:
    frames = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frames + b"0\r\n" + trailer + b"\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([b"", b"Server-Timing: x\r\n"]),
)
def test_a_chunked_body_is_the_same_however_it_is_cut(
    parts: list[bytes], cuts: list[int], trailer: bytes
) -> None:
    parser = Parser()
    body = b"".join(parser.feed(piece) for piece in pieces(chunked(parts, trailer), cuts))
    assert body == b"".join(parts)
    assert (parser.status, parser.complete, parser.reusable) == (200, True, True)


@given(st.binary(min_size=1, max_size=80), st.lists(st.integers(0, 10_000), max_size=8))
def test_a_body_of_given_length_is_the_same_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    parser = Parser()
    data = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert b"".join(parser.feed(piece) for piece in pieces(data, cuts)) == body
    assert parser.complete


def test_a_byte_at_a_time() -> None:
    parser = Parser()
    data = chunked([b"one", b"two" * 30])
    assert b"".join(parser.feed(bytes([byte])) for byte in data) == b"one" + b"two" * 30
    assert parser.complete


def test_a_body_without_length_ends_with_the_connection() -> None:
    parser = Parser()
    assert parser.feed(HEAD + b"\r\nabc") == b"abc"
    assert not parser.complete
    parser.close()
    assert parser.complete
    assert not parser.reusable


@pytest.mark.parametrize(
    ("claim", "head", "reusable"),
    [
        ("HTTP/1.1 keeps", b"HTTP/1.1 200 OK\r\n", True),
        ("the server closes", b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        ("HTTP/1.0", b"HTTP/1.0 200 OK\r\n", False),
    ],
)
def test_whether_the_connection_is_kept(claim: str, head: bytes, reusable: bool) -> None:
    parser = Parser()
    parser.feed(head + b"Content-Length: 0\r\n\r\n")
    assert parser.complete
    assert parser.reusable == reusable, claim


@pytest.mark.parametrize(
    ("claim", "data"),
    [
        ("no HTTP", b"SSH-2.0-OpenSSH\r\n\r\n"),
        ("no status", b"HTTP/1.1 abc\r\n\r\n"),
        ("a length that is none", HEAD + b"Content-Length: -5\r\n\r\n"),
        ("a chunk size that is none", HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
        ("bytes after the end", HEAD + b"Content-Length: 1\r\n\r\nab"),
        ("a head without end", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000),
    ],
)
def test_anything_else_is_refused(claim: str, data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        Parser().feed(data)


def test_an_answer_that_is_cut_off_is_refused() -> None:
    parser = Parser()
    parser.feed(chunked([b"abc"])[:-8])
    with pytest.raises(MalformedAnswer, match="before its answer was complete"):
        parser.close()


def test_all_that_is_read_in_one_turn_of_the_loop_has_one_time() -> None:
    async def run() -> None:
        moment = Moment()
        first = moment.now()
        time.sleep(0.002)
        assert moment.now() == first
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert moment.now() >= first + 0.002

    asyncio.run(run())
