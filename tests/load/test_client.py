"""One request on the wire: tokens per chunk, every way to fail, keys, chat and TLS."""

import asyncio
import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specschedule.load.client import Client, Stream, Unanswered
from specschedule.load.records import Prepared, Record
from tests.load.scripted import Script, Scripted

GOLDENS = Path(__file__).parents[1] / "goldens" / "vllm-0.32.0"


def ask(
    script: Script, *, tokens: int = 6, endpoint: str = "completions", timeout: float = 5.0
) -> Record:
    """Send one request to a server that answers by the script."""

    async def run() -> Record:
        async with (
            Scripted(lambda number, body: script) as server,
            Client(server.url, endpoint=endpoint, timeout=timeout) as client,
        ):
            prompt = {"messages": []} if endpoint == "chat" else {"prompt": "hello"}
            body = json.dumps({"max_tokens": tokens} | prompt).encode()
            clock = asyncio.get_running_loop().time
            record = Record(Prepared(0, None, body, tokens), "c", clock())
            client.keep_answers = True
            await client.send(record)
            return record

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("claim", "script", "endpoint"),
    [
        ("one write per chunk", Script(chunks=[1, 3, 2]), "completions"),
        ("chat begins with a chunk without tokens", Script(chunks=[1, 3, 2]), "chat"),
        ("lines end as in HTTP", Script(chunks=[1, 3, 2], separator=b"\r\n\r\n"), "completions"),
        ("events arrive in pieces", Script(chunks=[1, 3, 2], cut=20), "completions"),
        ("events are cut inside the separator", Script(chunks=[1, 3, 2], cut=-1), "completions"),
        (
            "the text looks like a count",
            Script(chunks=[1, 3, 2], text='"completion_tokens":99'),
            "completions",
        ),
    ],
)
def test_tokens_are_counted_chunk_by_chunk(claim: str, script: Script, endpoint: str) -> None:
    record = ask(script, endpoint=endpoint)
    assert record.error is None, claim
    assert [tokens for _, tokens in record.chunks] == [1, 3, 2]
    times = [at for at, _ in record.chunks]
    assert times == sorted(times)
    assert record.sent is not None
    assert record.ended is not None
    assert record.scheduled <= record.sent <= times[0]
    assert times[-1] <= record.ended
    assert record.prompt_tokens == 7
    assert record.text == script.text * 6
    assert not record.counts_estimated


@given(st.lists(st.integers(0, 5000), max_size=10))
@pytest.mark.parametrize(
    ("golden", "sizes", "prompt"),
    [("completion-stream.txt", [1, 3, 1, 3, 3], 5), ("chat-stream.txt", [1, 3], 23)],
)
def test_the_real_engines_stream_is_read_however_it_is_cut(
    golden: str, sizes: list[int], prompt: int, cuts: list[int]
) -> None:
    head, _, body = (GOLDENS / golden).read_bytes().partition(b"\n")
    assert head == b"HTTP 200"
    body = body.replace(b":TIME,", b":0,").rstrip() + b"\n\n"
    tokens = int(re.findall(rb'"completion_tokens":(\d+)', body)[-1])
    record = Record(Prepared(0, None, b"", tokens), "c", 0.0)
    stream = Stream(record, False, lambda now, count: None)
    marks = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    for number, (a, b) in enumerate(itertools.pairwise(marks)):
        stream.feed(float(number), body[a:b])
    stream.end(200)
    assert record.error is None
    assert record.tokens == tokens
    assert record.prompt_tokens == prompt
    assert not record.counts_estimated
    whole = Record(Prepared(0, None, b"", tokens), "c", 0.0)
    by_event = Stream(whole, False, lambda now, count: None)
    for event in body.split(b"\n\n")[:-1]:
        by_event.feed(0.0, event + b"\n\n")
    assert [count for _, count in whole.chunks][: len(sizes)] == sizes


def test_without_counts_per_chunk_tokens_are_spread_and_it_is_said() -> None:
    record = ask(Script(chunks=[1, 3, 2], continuous=False))
    assert record.error is None
    assert [tokens for _, tokens in record.chunks] == [2, 2, 2]
    assert record.counts_estimated
    assert record.text == " tok" * 6


@pytest.mark.parametrize(
    ("claim", "script", "kind", "words"),
    [
        ("a refusal is quoted", Script(status=400), "refused", "HTTP 400: .*as scripted"),
        ("a fault of the server is quoted", Script(status=500), "response", "HTTP 500"),
        ("too few tokens", Script(chunks=[1, 2]), "length", "3 tokens instead of 6"),
        ("an empty answer", Script(chunks=[]), "length", "0 tokens instead of 6"),
        ("an error inside the stream", Script(breaks_after=2), "response", "engine died"),
        ("a cut connection", Script(drops_after=2), "connection", ""),
        ("silence", Script(hangs_after=2), "timeout", "no full answer within 0.5 s"),
    ],
)
def test_every_failure_is_a_failed_request(
    claim: str, script: Script, kind: str, words: str
) -> None:
    record = ask(script, timeout=0.5)
    assert record.error, claim
    assert record.kind == kind, record.error
    assert record.ended is not None
    assert re.search(words, record.error)


@pytest.mark.parametrize(
    "script",
    [Script(status=500), Script(status=429), Script(drops_after=0), Script(drops_after=2)],
    ids=["a fault", "too many requests", "cut before the first chunk", "cut on the way"],
)
def test_a_failed_request_is_sent_once(script: Script) -> None:
    async def run() -> int:
        async with (
            Scripted(lambda number, body: script) as server,
            Client(server.url, endpoint="completions", timeout=2) as client,
        ):
            body = json.dumps({"max_tokens": 6, "prompt": "hello"}).encode()
            record = Record(Prepared(0, None, body, 6), "c", 0.0)
            await client.send(record)
            assert record.error
            await asyncio.sleep(0.2)
            return len(server.bodies)

    assert asyncio.run(run()) == 1


def test_a_server_that_is_not_there_is_a_failed_request_that_was_never_sent() -> None:
    async def run() -> Record:
        async with Client("http://127.0.0.1:9", endpoint="completions", timeout=5) as client:
            record = Record(Prepared(0, None, b"{}", 6), "c", 0.0)
            await client.send(record)
            return record

    record = asyncio.run(run())
    assert (record.kind, record.sent) == ("connection", None)


def test_the_key_is_sent_and_a_missing_one_is_told() -> None:
    async def run(key: str | None) -> str:
        async with (
            Scripted(api_key="s3cret") as server,
            Client(server.url, endpoint="chat", timeout=5, api_key=key) as client,
        ):
            return (await client.model()).name

    assert asyncio.run(run("s3cret")) == "scripted"
    with pytest.raises(Unanswered, match="HTTP 401"):
        asyncio.run(run(None))
