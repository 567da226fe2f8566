"""Answers of chat and completions: how far they came, and how they go on."""

from gateway.continuation.chunk_reading import Said
from gateway.continuation.chunk_splicer import ChunkSplicer, Plan
from gateway.continuation.errors import NotContinuable
from gateway.continuation.events import DONE, read_events
from gateway.continuation.interface import Progress
from gateway.continuation.placing import Placed, in_messages, in_prompt
from gateway.continuation.question import Question
from gateway.continuation.seam import Seam, check_unrepeated, echo_of
from gateway.continuation.tally import Tally, count

COMPLETION_TOKENS = 16
"""How long a completion is at many engines, and at others not, when the request does not say."""


class ChunkProgress(Progress):
    """How far a chat or completion came."""

    def __init__(self, question: Question, said: Said, *, chat: bool, usage_wanted: bool) -> None:
        self._question = question
        self._said = said
        self._chat = chat
        self._way = ""
        self._before = ""
        self.text = said.transcript.text
        self.tokens = said.transcript.tokens
        expected = set(range(count(question.members.get("n"), 1) or 1))
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
        """An answer that is as long as it may be is finished, though its engine could not say so."""
        most = self._question.most_tokens
        self._ending = b""
        if not self.finished and most is not None and self.tokens >= most:
            self.finished = True
            self._ending = self._said.ending(chat=self._chat)
            if not usage_wanted:
                self.closing = self._ending + DONE

    def ask(self, way: str) -> bytes:
        assert self.closing is None, "nobody needs to be asked"
        self._way = way
        if not self.text:
            return self._question.body
        placed = self._placed(way)
        self._before = placed.before
        if self.finished:
            lengths = self._question.shortest("max_tokens")
        else:
            lengths = self._question.limited(self.tokens)
        return self._question.changed({**placed.changes, **lengths})

    def _placed(self, way: str) -> Placed:
        if not self._chat:
            return in_prompt(self._question, way, self.text)
        placed = in_messages(self._question, way, self.text)
        check_unrepeated(placed.before, self.text, way)
        return placed

    def splicer(self) -> ChunkSplicer:
        said = self._said
        tally = Tally(self.tokens, whole=self.finished)
        if self.finished:
            return ChunkSplicer(said, Plan(None, tally, self._chat, self._ending))
        echo = echo_of(said.transcript, self._way, self._before + self.text)
        seam = Seam(self.text, echo=echo, stops=self._question.stops)
        return ChunkSplicer(said, Plan(seam, tally, self._chat))


def read_chat(body: bytes, data: bytes, usage_wanted: bool | None) -> ChunkProgress:
    return _read(body, data, usage_wanted, chat=True)


def read_completions(body: bytes, data: bytes, usage_wanted: bool | None) -> ChunkProgress:
    return _read(body, data, usage_wanted, chat=False)


def _read(body: bytes, data: bytes, usage_wanted: bool | None, *, chat: bool) -> ChunkProgress:
    question, said = Question(body), Said()
    for event in read_events(data):
        said.read(event)
    wanted = question.wants_usage if usage_wanted is None else usage_wanted
    return ChunkProgress(question, said, chat=chat, usage_wanted=wanted)
