"""Answers of chat and completions: how far they came, and how they go on."""

from dataclasses import replace

from gateway.continuation.chunk_reading import Said
from gateway.continuation.chunk_splicer import ChunkSplicer, Plan
from gateway.continuation.errors import NotContinuable
from gateway.continuation.events import DONE, read_events
from gateway.continuation.placing import FINAL_MESSAGE, Placed, in_messages, in_prompt
from gateway.continuation.progress import TextProgress
from gateway.continuation.question import Question
from gateway.continuation.tally import count

COMPLETION_TOKENS = 16
"""How long a completion is at many engines, and at others not, when the request does not say."""

WHOLE_LIMIT = "continued_max_tokens"
"""How long the whole answer may be. An event may hold several tokens, and how many it does not say: engines
that count what they continue (the built-in one) need not rely on our count. Others look at ``max_tokens``
only; sent to those that are told to continue, by a member that is no more of OpenAI's than this one."""


class ChunkProgress(TextProgress):
    """How far a chat or completion came."""

    def __init__(self, question: Question, said: Said, *, chat: bool, usage_wanted: bool) -> None:
        super().__init__(question, said.transcript)
        self._said = said
        self._chat = chat
        self._ending = b""
        expected = set(range(_choices(question)))
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

    def _place(self, way: str, text: str) -> Placed:
        if not self._chat:
            return in_prompt(self._question, way, text)
        placed = in_messages(self._question, way, text)
        most = self._question.most_tokens
        if way != FINAL_MESSAGE or most is None or self.finished:
            return placed
        return replace(placed, changes={**placed.changes, WHOLE_LIMIT: b"%d" % most})

    def splicer(self) -> ChunkSplicer:
        return ChunkSplicer(self._said, Plan(self._seam(), self._tally(), self._chat, self._ending))


def _choices(question: Question) -> int:
    """How many choices the request asks for: ``n`` of each prompt. A list of numbers is one prompt."""
    prompt = question.members.get("prompt")
    listed = prompt if isinstance(prompt, list) else []
    prompts = [each for each in listed if isinstance(each, str | list)]
    return (count(question.members.get("n"), 1) or 1) * (len(prompts) or 1)


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
