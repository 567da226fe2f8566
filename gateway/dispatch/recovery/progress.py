"""What asking to go on has in common, whatever the route."""

from abc import abstractmethod

from gateway.dispatch.recovery.errors import NotContinuable
from gateway.dispatch.recovery.interface import Progress
from gateway.dispatch.recovery.placing import PREFILL, PlacedContent
from gateway.dispatch.recovery.question import Question
from gateway.dispatch.recovery.seam import ECHO_EVENTS, CountedText, Seam
from gateway.dispatch.recovery.tally import ContinuedUsage


class TextProgress(Progress):
    """An answer that is one text. A subclass finds out how far it came and sets ``finished``, ``closing``."""

    limit_name = "max_tokens"

    def __init__(self, question: Question, transcript: CountedText) -> None:
        self.text = transcript.text
        self.tokens = transcript.tokens
        self._question = question
        self._transcript = transcript
        self._way = ""
        self._sent = ""
        self._before = ""

    @abstractmethod
    def _place(self, way: str, text: str) -> PlacedContent:
        """Where ``text`` goes in the request. Raises :class:`NotContinuable`."""

    def ask(self, way: str) -> bytes:
        """White space at the end of the text is not sent as a prefill: Anthropic's API refuses it, and some
        engines cut it off unasked. The continuation has to begin with it then."""
        assert self.closing is None, "nobody needs to be asked"
        self._way = way
        self._sent = self.text.rstrip() if way == PREFILL else self.text
        placed = self._place(way, self._sent) if self._sent else PlacedContent({})
        self._before = placed.before
        if way == PREFILL:
            self._check_unrepeated()
        if self.finished:
            lengths = self._question.shortest(self.limit_name)
        else:
            lengths = self._question.limited(self._sent_tokens)
        if not self.text and not self.finished:
            return self._question.body
        return self._question.changed({**placed.changes, **lengths})

    @property
    def _exhausted(self) -> bool:
        """The answer is as long as it may be: it is finished, though its engine could not say so."""
        most = self._question.most_tokens
        return most is not None and self.tokens >= most

    @property
    def _sent_tokens(self) -> int:
        return self._transcript.tokens_within(len(self._sent))

    def _check_unrepeated(self) -> None:
        """Raises when the first engine may have repeated what the client let it begin with, or may not."""
        if self._before and (self.text.startswith(self._before) or self._before.startswith(self.text)):
            raise NotContinuable("the answer may hold twice what the request lets it begin with")

    def _tally(self) -> ContinuedUsage:
        return ContinuedUsage(self._sent_tokens, whole=self.tokens if self.finished else None)

    def _seam(self) -> Seam | None:
        """None when the text is whole. Only engines that take an assistant's words as a beginning repeat
        them: those that are told to continue have an option of their own for it, completions ``echo``."""
        if self.finished:
            return None
        head, echo = self.text[len(self._sent) :], self._before + self._sent
        told_apart = self._transcript.events >= ECHO_EVENTS or (head and not echo.startswith(head))
        echo = echo if self._way == PREFILL and told_apart else ""
        return Seam(self.text, head=head, echo=echo, stops=self._question.stops)
