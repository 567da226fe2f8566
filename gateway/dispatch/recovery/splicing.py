"""The place where a continuation is joined to an answer: its events, its text and the usage of both."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from gateway.dispatch.recovery.events import COMMENT, ContinuationEvents, SpliceFailed
from shared.process.server_sent_events import ServerSentEvent
from shared.protocol.messages import Usage

ECHO_EVENTS = 3
"""A text of fewer events is taken for repeated only where the continuation must begin with white space and
does not: a model may well say so little again."""


class CountedText:
    """A text as it came, and how many tokens each front part of it has."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._marks: list[tuple[int, int]] = [(0, 0)]
        """Characters and tokens after each event."""

    def copy(self) -> "CountedText":
        copy = CountedText()
        copy._pieces, copy._marks = self._pieces[:], self._marks[:]
        return copy

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def tokens(self) -> int:
        return self._marks[-1][1]

    @property
    def events(self) -> int:
        return len(self._pieces)

    def add(self, piece: str, tokens_so_far: int | None = None) -> None:
        """One event's text; ``tokens_so_far`` when the engine said how many tokens that makes."""
        if piece:
            chars, tokens = self._marks[-1]
            self._pieces.append(piece)
            self._marks.append((chars + len(piece), max(tokens + 1, tokens_so_far or 0)))

    def tokens_within(self, chars: int) -> int:
        """The tokens of the events that end within the first ``chars`` characters."""
        return self._marks[bisect_right(self._marks, chars, key=itemgetter(0)) - 1][1]


class ContinuationJoiner:
    """The continuation's text, joined to ``text``.

    ``head``: white space at the end of ``text`` that the engine was not sent. It must begin with it; what an
    engine says instead was said to another beginning, and joining it would make a text that nobody wrote.

    ``echo``: what the engine was sent and may send back before it goes on; empty for engines that do not.
    It is taken for repeated only when the first event of the continuation begins with the whole of it. An
    engine that repeats what it was sent has all of it at once, while a model that happens to say the same
    again says it token by token; so the right words of a text that goes round in circles are never dropped,
    and nothing need be held back. (For short texts see :data:`ECHO_EVENTS`; the caller then names no echo.)

    ``stops``: engines look for stop strings in what they write, not in what they were sent. When one lies
    across the seam the answer should have ended before what the client has: then the joining fails. As long
    as one still may, the text is held back.
    """

    def __init__(self, text: str, *, head: str = "", echo: str = "", stops: Sequence[str] = ()) -> None:
        self._head = head
        self._echo = echo
        self._held = ""
        self._rests = [
            stop[size:] for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])
        ]
        """For each stop string that ``text`` may end with the beginning of: the rest of that stop string."""

    def feed(self, piece: str) -> str:
        """Takes the next text; gives what belongs to the answer now. Raises :class:`SpliceFailed`."""
        if self._echo and piece:
            piece, self._echo = piece.removeprefix(self._echo), ""
        self._held += piece
        if self._head and not self._drop_head():
            return ""
        if self._held:
            self._rests = [rest for rest in self._rests if _agree(rest, self._held)]
        if any(self._held.startswith(rest) for rest in self._rests):
            raise SpliceFailed("a stop string lies across the place where the answer was continued")
        if self._rests:
            return ""
        out, self._held = self._held, ""
        return out

    def finish(self) -> str:
        """The continuation's text is over. Raises :class:`SpliceFailed`."""
        if self._head:
            raise SpliceFailed("the engine that went on with the answer ended it before where it had come to")
        out, self._held, self._rests = self._held, "", []
        return out

    def _drop_head(self) -> bool:
        if self._held.startswith(self._head):
            self._held, self._head = self._held[len(self._head) :], ""
            return True
        if not self._head.startswith(self._held):
            raise SpliceFailed("the engine that went on with the answer wrote other white space")
        return False


def _agree(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


CONTINUED = "continued_tokens"


class ContinuedUsage:
    """``tokens``: of the answer so far as the engine was sent it. ``whole``: of the whole answer, when the
    engine was asked only what the prompt costs; then what it wrote itself does not count."""

    def __init__(self, tokens: int, *, whole: int | None = None) -> None:
        self._tokens = tokens
        self._whole = whole

    def count_end(self) -> None:
        """The engine did nothing but end the answer once more: what it counted for that, counts."""
        self._whole = None

    def chat(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """A usage object in the names of chat and completions."""
        return self._object(usage, "prompt_tokens", "completion_tokens")

    def responses(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """A usage object in the names of responses."""
        return self._object(usage, "input_tokens", "output_tokens")

    def messages(self, usage: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
        """A usage object of Anthropic's. What the prompt was stands in the ``first`` one already, if its
        engine knew it by then; tokens from a cache are counted apart there."""
        out = dict(usage)
        out["output_tokens"] = self._after(count(out.get("output_tokens")), self._tokens)
        if "input_tokens" in out:
            out["input_tokens"] = count(first.get("input_tokens")) or max(
                0, count(out["input_tokens"]) - self._tokens
            )
        return out

    def add_up(self, usage: Usage) -> Usage:
        prompt, completion = self._divided(usage.prompt_tokens, usage.completion_tokens)
        return Usage(prompt, completion, min(usage.cached_tokens, prompt))

    def _divided(self, prompt: int, completion: int) -> tuple[int, int]:
        tokens = min(self._tokens, prompt)
        return prompt - tokens, self._after(completion, tokens)

    def _after(self, completion: int, tokens: int) -> int:
        return tokens + completion if self._whole is None else max(tokens, self._whole)

    def _object(self, usage: Mapping[str, Any], prompt_name: str, completion_name: str) -> dict[str, Any]:
        out = dict(usage)
        details_name = f"{prompt_name}_details"
        details = out.get(details_name)
        if isinstance(details, dict) and CONTINUED in details:
            details = dict(details)
            self._tokens = count(details.pop(CONTINUED), self._tokens)
            out[details_name] = details or None
        prompt, completion = count(out.get(prompt_name)), count(out.get(completion_name))
        if prompt_name in out or "total_tokens" in out:
            prompt, completion = self._divided(prompt, completion)
            out[prompt_name] = prompt
        else:
            completion = self._after(completion, self._tokens)
        out[completion_name] = completion
        if "total_tokens" in out:
            out["total_tokens"] = prompt + completion
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            out[details_name] = details | {"cached_tokens": min(details["cached_tokens"], prompt)}
        return out


def count(value: Any, default: int = 0) -> int:
    """A count of tokens, if ``value`` is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


class Splicer(ABC):
    """Makes the events of a continuation those of the answer that began elsewhere.

    One id, one role, one run of indices and sequence numbers, no repeated head, usage of the whole. Gives
    out whole events only, so a continuation that breaks too can itself be continued.
    """

    def __init__(self, tally: ContinuedUsage) -> None:
        self._tally = tally
        self._events = ContinuationEvents()

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the continuation; gives those for the client, perhaps none.

        Raises :class:`SpliceFailed`; nothing may be fed after that.
        """
        return b"".join(map(self._join, self._events.feed(data)))

    def finish(self) -> bytes:
        """The continuation is over in order: gives what was held back. Raises like :meth:`feed`."""
        return b"".join(map(self._join, self._events.finish())) + self._rest()

    def add_up(self, usage: Usage) -> Usage:
        """The usage of the whole answer, from what was reported for the continuation."""
        return self._tally.add_up(usage)

    def _join(self, event: ServerSentEvent) -> bytes:
        return COMMENT if event.data is None else self._event(event)

    @abstractmethod
    def _event(self, event: ServerSentEvent) -> bytes:
        """What an event with data becomes."""

    @abstractmethod
    def _rest(self) -> bytes:
        """What was held back of the text."""
