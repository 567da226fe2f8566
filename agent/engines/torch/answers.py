"""The texts of one request, read together: what was added to any of them, in chunks by choice."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.engines.torch.generation import Generation, Prompt, TextGenerator, TextPiece
from agent.engines.torch.logprobs import TokenLogprob
from agent.engines.torch.shapes import ChoiceChunk, TokenUsage
from agent.engines.torch.tool_calls import ToolCallReader


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """What a request asks for: a prompt for each choice, ``n`` of them alike, one after the other."""

    prompts: tuple[Prompt, ...]
    n: int = 1
    echoes: tuple[TextPiece, ...] = ()
    """What each choice begins with, if the request asked for its prompt."""
    reader: Callable[[], ToolCallReader] | None = None
    """Makes what finds the calls of tools in a text."""


class TextAnswer:
    """The texts of one request. Belongs to one reader, who closes it whatever happens."""

    def __init__(self, texts: TextGenerator, prepared: PreparedTexts) -> None:
        """Begins the texts. Raises a RequestError."""
        self._news = asyncio.Event()
        self._n = prepared.n
        self.generations: list[Generation] = []
        try:
            for prompt in prepared.prompts:
                self.generations.append(texts.submit(prompt, self._news))
        except BaseException:
            self.close()
            raise
        self._choices = [
            _Choice(index, generation, prepared.reader() if prepared.reader is not None else None)
            for index, generation in enumerate(self.generations)
        ]
        self._open = list(self._choices)
        self._first = [
            ChoiceChunk(index, piece.text, piece.logprobs)
            for index, piece in enumerate(prepared.echoes)
            if piece.text or piece.logprobs
        ]
        for choice, echo in zip(self._choices, prepared.echoes, strict=False):
            choice.offset = len(echo.text)

    @property
    def choices(self) -> int:
        return len(self._choices)

    @property
    def ended(self) -> bool:
        """All that there is was given out by :meth:`next`."""
        return not self._open and not self._first

    @property
    def usage(self) -> TokenUsage:
        """Prompts count once, however many choices they have."""
        return TokenUsage(
            sum(generation.usage.prompt_tokens for generation in self.generations[:: self._n]),
            sum(generation.usage.completion_tokens for generation in self.generations),
            self.generations[0].usage.continued_tokens,
        )

    async def next(self) -> list[ChoiceChunk]:
        """What was added since the last call, at least one chunk; [] when all texts are whole.

        Raises a RequestError when one of them never will be.
        """
        chunks, self._first = self._first, []
        while True:
            self._news.clear()
            for choice in self._open[:]:
                chunks += choice.take()
                if choice.ended:
                    self._open.remove(choice)
            if chunks or not self._open:
                return chunks
            await self._news.wait()

    def close(self) -> None:
        """Stop computing them, where they still are. Idempotent."""
        for generation in self.generations:
            generation.close()


class _Choice:
    def __init__(self, index: int, generation: Generation, reader: ToolCallReader | None) -> None:
        self.ended = False
        self.offset = 0
        """Where in the choice the generated text begins."""
        self._index = index
        self._generation = generation
        self._reader = reader
        self._unsaid: tuple[TokenLogprob, ...] = ()

    def take(self) -> list[ChoiceChunk]:
        chunks: list[ChoiceChunk] = []
        for text, logprobs in self._generation.take():
            placed = _moved(logprobs, self.offset)
            if self._reader is None:
                chunks.append(ChoiceChunk(self._index, text, placed))
            else:
                chunks += self._read(text, placed)
        reason = self._generation.finish_reason
        if self._reader is not None and self._reader.complete:
            self._generation.close()
            reason = "stop"
        if reason is not None:
            chunks += self._end(reason)
        return chunks

    def _read(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[ChoiceChunk]:
        assert self._reader is not None
        self._unsaid += logprobs
        found = self._reader.push(text)
        if not found:
            return []
        first, self._unsaid = self._unsaid, ()
        return [
            ChoiceChunk(self._index, delta.text, first if place == 0 else (), delta.calls)
            for place, delta in enumerate(found)
        ]

    def _end(self, reason: str) -> list[ChoiceChunk]:
        self.ended = True
        chunks = []
        if self._reader is not None:
            rest = self._reader.finish()
            if rest.text or self._unsaid:
                chunks.append(ChoiceChunk(self._index, rest.text, self._unsaid, rest.calls))
            reason = self._reader.finish_reason(reason)
        return [*chunks, ChoiceChunk(self._index, finish_reason=reason)]


def _moved(entries: Sequence[TokenLogprob], by: int) -> tuple[TokenLogprob, ...]:
    return tuple(entry._replace(offset=entry.offset + by) for entry in entries) if by else tuple(entries)
