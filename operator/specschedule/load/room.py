"""What a server has no room for: found before anything is sent, left out, and named.

A request is its prompt, all that is put before that, and its answer; beyond ``max_model_len`` a
server refuses it, or cuts the answer. What is left out hangs on lengths alone, so that it is the
same in every arm whose server tells the same ``max_model_len``.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specschedule.core.evidence import Fit, Profile, TooLong, WindowLeftOut
from specschedule.core.visit import Visit, Window
from specschedule.load import equivalence
from specschedule.load.client import Client, NotCounted, Served
from specschedule.load.openloop import planned
from specschedule.load.prompts import Pool, Source, Text, made_to_length

SHORTEST = "."
"""A text of one token, or of two where the tokenizer marks its beginning."""
ASKED_AT_ONCE = 8


@dataclass(frozen=True)
class Room:
    """What of a visit can be sent."""

    windows: list[Window]
    """Those that can be measured, in order; of a screen, one for each context."""
    whole: Pool | None
    """Prompts that can be sent as they are."""
    fit: Fit | None
    """What is left out; None where there is nothing to tell."""


async def room(
    client: Client,
    served: Served,
    visit: Visit,
    pool: Pool | None,
    trace: Path | None = None,
) -> Room:
    """Find what of a visit its server has room for; everything where nobody tells lengths.

    Args:
        client: The server.
        served: The model that it offers.
        visit: The visit.
        pool: Prompts; synthetic ones when None.
        trace: Recorded arrivals, for windows that replay them by their digest.

    Raises:
        Unanswered: The server does not answer.
    """
    windows = list(visit.windows) if visit.screen is None else list(_screened(visit))
    limit = served.max_model_len
    why = "/v1/models tells no max_model_len"
    if limit is not None:
        try:
            return await _Search(client, served.name, limit, visit, pool, trace).over(windows)
        except NotCounted as error:
            why = str(error)
    fit = Fit(max_model_len=limit, not_counted=why) if pool is not None else None
    return Room(windows, pool, fit)


def _screened(visit: Visit) -> Iterator[Window]:
    """Yield a window for each context that a screen may choose."""
    assert visit.screen is not None
    contexts: list[int | None] = [*visit.screen.contexts]
    for context in contexts or [None]:
        prompt = None if context is None else max(1, context - visit.output_tokens // 2)
        yield Window(
            cell="screen" if context is None else f"screen at context {context}",
            profile=Profile(kind="hold", concurrency=1, context=prompt),
            context=context,
        )


class _Search:
    """Looks for what one visit's server has no room for."""

    def __init__(
        self,
        client: Client,
        model: str,
        limit: int,
        visit: Visit,
        pool: Pool | None,
        trace: Path | None,
    ) -> None:
        self._client, self._model, self._limit = client, model, limit
        self._visit, self._pool, self._trace = visit, pool, trace
        self._around: int | None = None
        """Tokens that the server puts around a text, and one or two."""
        self._places = asyncio.Semaphore(ASKED_AT_ONCE)

    async def over(self, windows: Sequence[Window]) -> Room:
        """Look at windows and at the prompts that they send.

        Raises:
            NotCounted: The server does not count tokens.
            Unanswered: It does not answer.
        """
        whole = [w for w in windows if self._pool is not None and not made_to_length(w)]
        unfit = await self._too_long(self._pool, whole) if self._pool is not None else {}
        kept = self._pool.without(unfit) if self._pool is not None else None
        out = []
        for window in windows:
            if self._pool is None or kept is None or made_to_length(window):
                longest = await self._longest(window)
            else:
                names = [name for name, _ in self._pool.select(window.category)]
                if not kept.categories.keys().isdisjoint(names):
                    continue
                longest = max(max(unfit[name].values()) for name in names)
            if longest > self._limit:
                out.append(WindowLeftOut(cell=window.cell, longest=longest))
        gone = {window.cell for window in out}
        left = [window for window in windows if window.cell not in gone]
        told = Fit(
            max_model_len=self._limit,
            prompts=self._named(unfit),
            windows=out,
            nothing_left=bool(out) and all(w.profile.kind == "equivalence" for w in left),
        )
        return Room(left, kept, told if self._pool is not None or out else None)

    async def _too_long(self, pool: Pool, windows: Sequence[Window]) -> dict[str, dict[int, int]]:
        """Return the prompts that do not fit: lengths of their requests by category and place."""
        found = {}
        for name in sorted({name for w in windows for name, _ in pool.select(w.category)}):
            source = self._source(windows[0])
            prompts = [source.sized(prompt) for prompt in pool.categories[name]]
            lengths = await self._lengths(prompts, self._visit.output_tokens)
            found[name] = {at: n for at, n in enumerate(lengths) if n > self._limit}
        return found

    def _named(self, unfit: dict[str, dict[int, int]]) -> list[TooLong]:
        return [
            TooLong(
                category=name,
                left_out=len(lengths),
                of=len(self._pool.categories[name]),
                longest=max(lengths.values()),
            )
            for name, lengths in unfit.items()
            if self._pool is not None and lengths
        ]

    async def _longest(self, window: Window) -> int:
        """Return the tokens of the longest request of a window that makes its prompts.

        Prompts made to one length are alike: the first of each category stands for all.
        """
        prompt_tokens, output_tokens = None, self._visit.output_tokens
        if window.profile.kind == "equivalence":
            prompt_tokens, output_tokens = equivalence.longest(self._visit)
        elif window.profile.trace is not None:
            arrivals = planned(window.profile, window.requests, window.seed, self._trace).arrivals
            lengths = [(a.prompt_tokens or 1, a.output_tokens or output_tokens) for a in arrivals]
            prompt_tokens, output_tokens = max(lengths, key=sum)
        samples = self._source(window).samples(prompt_tokens)
        return max(await self._lengths(samples, output_tokens))

    def _source(self, window: Window) -> Source:
        return Source(self._visit, window, pool=self._pool, model=self._model)

    async def _lengths(self, prompts: Sequence[tuple[Text, int]], output_tokens: int) -> list[int]:
        """Return the tokens of requests, given each prompt and what else may lead it."""
        if self._around is None and any(isinstance(prompt, str) for prompt, _ in prompts):
            self._around = await self._client.tokens(self._model, SHORTEST)
        asked = (self._length(prompt, more + output_tokens) for prompt, more in prompts)
        return list(await asyncio.gather(*asked))

    async def _length(self, prompt: Text, more: int) -> int:
        """Return the tokens of a request: at most so many where it surely fits.

        No tokenizer makes more tokens of a text than it has bytes.
        """
        if not isinstance(prompt, str):
            return len(prompt) + more
        assert self._around is not None
        most = len(prompt.encode(errors="surrogatepass")) + self._around + more
        if most <= self._limit:
            return most
        async with self._places:
            return await self._client.tokens(self._model, prompt) + more
