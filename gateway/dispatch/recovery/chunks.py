"""Answers of chat and completions: how far they came, and how they go on."""

from dataclasses import replace

from gateway.dispatch.recovery.chunk_reading import ChunksRead
from gateway.dispatch.recovery.chunk_splicer import ChunkSplicer, SplicePlan
from gateway.dispatch.recovery.errors import NotContinuable
from gateway.dispatch.recovery.events import DONE
from gateway.dispatch.recovery.placing import FINAL_MESSAGE, PlacedContent, in_messages, in_prompt
from gateway.dispatch.recovery.progress import TextProgress
from gateway.dispatch.recovery.question import WHOLE_LIMIT, Question

COMPLETION_TOKENS = 16
"""How long a completion is at many engines, and at others not, when the request does not say."""


class ChunkProgress(TextProgress):
    """How far a chat or completion came."""

    def __init__(self, question: Question, said: ChunksRead, *, chat: bool, usage_wanted: bool) -> None:
        super().__init__(question, said.transcript)
        self._said = said
        self._chat = chat
        self._ending = b""
        expected = set(range(question.choices))
        self.finished = said.done or expected <= said.finished
        self.closing = None
        if said.done:
            self.closing = b""
        elif self.finished and (said.usage or not usage_wanted):
            self.closing = DONE
        else:
            self._check()
            self._exhaust(usage_wanted)

    def _check(self) -> None:
        """Raises :class:`NotContinuable`."""
        if self._said.trouble is not None:
            raise NotContinuable(self._said.trouble)
        self._question.check(begun=bool(self.text))
        unlimited = self._question.most_tokens is None and not self._chat
        if unlimited and self.text and not self.finished and self.tokens <= COMPLETION_TOKENS:
            raise NotContinuable("the request does not say how long the answer may be (max_tokens)")

    def _exhaust(self, usage_wanted: bool) -> None:
        if not self.finished and self._exhausted:
            self.finished = True
            self._ending = self._said.ending(chat=self._chat)
            if not usage_wanted:
                self.closing = self._ending + DONE

    def _place(self, way: str, text: str) -> PlacedContent:
        if not self._chat:
            return in_prompt(self._question, way, text)
        placed = in_messages(self._question, way, text)
        most = self._question.most_tokens
        if way != FINAL_MESSAGE or most is None or self.finished:
            return placed
        return replace(placed, changes={**placed.changes, WHOLE_LIMIT: b"%d" % most})

    def splicer(self) -> ChunkSplicer:
        return ChunkSplicer(self._said, SplicePlan(self._seam(), self._tally(), self._chat, self._ending))


def chat_progress(question: Question, said: ChunksRead, usage_wanted: bool | None) -> ChunkProgress:
    wanted = question.wants_usage if usage_wanted is None else usage_wanted
    return ChunkProgress(question, said, chat=True, usage_wanted=wanted)


def completions_progress(question: Question, said: ChunksRead, usage_wanted: bool | None) -> ChunkProgress:
    wanted = question.wants_usage if usage_wanted is None else usage_wanted
    return ChunkProgress(question, said, chat=False, usage_wanted=wanted)
