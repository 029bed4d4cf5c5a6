"""Answers as they are produced: server-sent events with as little work per chunk as possible.

Chunks are written straight to the transport, already framed for chunked transfer encoding: one
system call per stream and step, no task switch. The text needs no JSON escaping by construction.
"""

import asyncio
import json
import time
from typing import Any

from specschedule.sim import text
from specschedule.sim.api import Asked
from specschedule.sim.engine import Output, Request

BACKLOG = 4 * 2**20
"""Bytes that a client may leave unread before its request is dropped."""


class Answer:
    """One request's answer, of one or more sequences.

    Args:
        asked: The request.
        name: Its id.
        transport: Where chunks go; None when the answer is given whole.
        fingerprint: vLLM's name for how it was launched.
        differs: Whether the output is wrong from the third token on (a planted fault).
        differs_at: Draft tokens of the steps that make it wrong (a planted fault).
    """

    def __init__(
        self,
        asked: Asked,
        name: str,
        transport: asyncio.Transport | None,
        *,
        fingerprint: str,
        differs: bool,
        differs_at: int | None,
    ) -> None:
        self.asked = asked
        self.fingerprint = fingerprint
        self.name = name
        self.created = int(time.time())
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sequences: list[Sequence] = []
        self.open = len(asked.prompts)
        self._transport = transport
        self.differs, self.differs_at = differs, differs_at
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        self.head = (
            f'data: {{"id":"{name}","object":"{kind}","created":{self.created},'
            f'"model":{json.dumps(asked.model)},'
        )

    def send(self, payload: str) -> bool:
        """Write events; False when the client is gone or does not read."""
        transport = self._transport
        if transport is None:
            return True
        if transport.is_closing() or transport.get_write_buffer_size() > BACKLOG:
            return False
        body = payload.encode()
        transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def usage(self) -> dict[str, int]:
        """Return the usage over all sequences."""
        prompt = sum(sequence.request.prompt_tokens for sequence in self.sequences)
        output = sum(sequence.request.produced for sequence in self.sequences)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
        }

    def timestamps(self) -> list[dict[str, float | int]]:
        """Return when tokens were written, per sequence; seconds of the machine's monotonic clock.

        ``tokens_in_first_chunk`` completes what a client needs to compute TPOT.
        """
        return [
            {
                "arrived": sequence.request.arrived,
                "first_token_written": sequence.first_written,
                "last_token_written": sequence.last_written,
                "tokens_in_first_chunk": sequence.first_tokens,
            }
            for sequence in self.sequences
        ]

    def last_events(self) -> bytes:
        """Return the usage chunk, where it is wanted, and the end of the stream."""
        events = ""
        if self.asked.usage or self.asked.timestamps:
            last: dict[str, Any] = {"choices": []}
            if self.asked.usage:
                last["usage"] = self.usage()
                last["system_fingerprint"] = self.fingerprint
            if self.asked.timestamps:
                last["sim"] = self.timestamps()
            events = self.head + json.dumps(last, separators=(",", ":"))[1:] + "\n\n"
        return (events + "data: [DONE]\n\n").encode()

    def whole(self) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        answer: dict[str, Any] = {
            "id": self.name,
            "object": "chat.completion" if self.asked.chat else "text_completion",
            "created": self.created,
            "model": self.asked.model,
            "choices": [sequence.choice() for sequence in self.sequences],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {**self.usage(), "prompt_tokens_details": None},
            "kv_transfer_params": None,
        }
        if self.asked.timestamps:
            answer["sim"] = self.timestamps()
        return answer


class Sequence:
    """One sequence of an answer: turns the engine's outputs into chunks."""

    def __init__(self, answer: Answer, index: int, request: Request, seed: int, end: str) -> None:
        self.answer, self.index, self.request = answer, index, request
        self.end = end
        """finish_reason when it is complete."""
        self.seed = seed
        self.first_written = self.last_written = 0.0
        self.first_tokens = 0
        self._written = 0
        self._right: int | None = 2 if answer.differs else None
        """Tokens after which the output is wrong."""
        asked = answer.asked
        delta = '"delta":{"content":"' if asked.chat else '"text":"'
        self._head = f'{answer.head}"choices":[{{"index":{index},{delta}'
        close = '"}' if asked.chat else '"'
        ids = (
            '"token_ids":'
            if asked.chat
            else '"stop_reason":null,"prompt_token_ids":null,"token_ids":'
        )
        self._tail = f'{close},"logprobs":null,"finish_reason":null,{ids}'
        stop = '"stop_reason":null,' if asked.chat else ""
        self._last_tail = f'{close},"logprobs":null,"finish_reason":"{end}",{stop}{ids}'
        self._last_end = "}]"
        if not asked.usage:
            self._last_end += f',"system_fingerprint":"{answer.fingerprint}"'

    def write(self, output: Output) -> bool:
        """Send the tokens of a step; False when the client is gone or does not read."""
        answer, first = self.answer, self._written
        self._written = first + output.tokens
        if output.verified is not None and output.verified == answer.differs_at:
            self._right = first if self._right is None else min(first, self._right)
        if not answer.asked.stream:
            self._stamp(first)
            return True
        said = self._text(first, output.tokens)
        tail = self._last_tail if output.finished else self._tail
        ids = "null"
        if answer.asked.token_ids:
            ids = json.dumps(self._ids(first, output.tokens), separators=(",", ":"))
        end = self._last_end if output.finished else "}]"
        payload = f"{self._head}{said}{tail}{ids}{end}{self._usage(self._written)}}}\n\n"
        if not first:
            self.first_tokens = output.tokens
            if answer.asked.chat:
                payload = self._role() + payload
        sent = answer.send(payload)
        self._stamp(first)
        return sent

    def choice(self) -> dict[str, Any]:
        """Return the complete sequence."""
        content = self._text(0, self._written)
        if self.answer.asked.chat:
            said: dict[str, Any] = {"message": {"role": "assistant", "content": content}}
        else:
            said = {"text": content}
        if self.answer.asked.token_ids:
            said["token_ids"] = self._ids(0, self._written)
        return {
            "index": self.index,
            **said,
            "logprobs": None,
            "finish_reason": self.end,
            "stop_reason": None,
        }

    def _stamp(self, first: int) -> None:
        self.last_written = time.monotonic()
        if not first:
            self.first_written = self.last_written

    def _text(self, first: int, tokens: int) -> str:
        right = self._right_of(first, tokens)
        if right == tokens:
            return text.output_text(self.seed, first, tokens)
        return text.output_text(self.seed, first, right) + text.output_text(
            self.seed + 7, first + right, tokens - right
        )

    def _ids(self, first: int, tokens: int) -> list[int]:
        right = self._right_of(first, tokens)
        return text.output_ids(self.seed, first, right) + text.output_ids(
            self.seed + 7, first + right, tokens - right
        )

    def _right_of(self, first: int, tokens: int) -> int:
        """Return how many of some tokens come before the output goes wrong."""
        return tokens if self._right is None else min(tokens, max(0, self._right - first))

    def _usage(self, produced: int) -> str:
        if not self.answer.asked.running_usage:
            return ""
        prompt = self.request.prompt_tokens
        details = ',"completion_tokens_details":null' if self.answer.asked.chat else ""
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + produced},'
            f'"completion_tokens":{produced}{details}}}'
        )

    def _role(self) -> str:
        return (
            f'{self.answer.head}"choices":[{{"index":{self.index},"delta":'
            f'{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]'
            f'{self._usage(0)},"prompt_token_ids":null,"prompt_text":null}}\n\n'
        )
