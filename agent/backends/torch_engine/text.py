"""From tokens to text as they come: no half characters, no text past a stop string. Pure."""

from collections.abc import Callable, Iterable, Sequence

_REPLACEMENT = "\ufffd"

_HELD_TOKENS = 8
"""A UTF-8 character has at most 4 bytes, so at most 4 byte tokens: more held tokens than that are not half a
character but bytes that are none, or real U+FFFD, and holding them longer would help nobody."""


class IncrementalDecoder:
    """Turns token ids into text piece by piece; the pieces joined are the text of all ids.

    ``decode`` gives the text of a run of ids. As tokenizers decode a token by its neighbours (spaces, bytes
    of one character), each step decodes the last piece's ids again and emits what was added.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that can be said now; empty while a character is incomplete."""
        self._held.extend(token_ids)
        if not self._held:
            return ""
        text = self._new_text()
        incomplete = not text or text.endswith(_REPLACEMENT)
        if incomplete and len(self._held) <= _HELD_TOKENS:
            return ""
        self._context, self._held = self._held, []
        return text

    def finish(self) -> str:
        """What was held back, without the incomplete character at its end."""
        if not self._held:
            return ""
        text = self._new_text().rstrip(_REPLACEMENT)
        self._context, self._held = [], []
        return text

    def _new_text(self) -> str:
        before = self._decode(self._context) if self._context else ""
        return self._decode(self._context + self._held)[len(before) :]


class StopStrings:
    """Passes text through up to, and without, the stop string in it that is whole first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that can be said now; what may be the beginning of a stop string is held back."""
        if self.found:
            return ""
        text = self._held + text
        spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text]
        if spans:
            self.found, self._held = True, ""
            return text[: min(spans)[1]]
        held = self._partial_length(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, as no stop string came of it."""
        held, self._held = self._held, ""
        return "" if self.found else held

    def _partial_length(self, text: str) -> int:
        """The length of the longest end of ``text`` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


class TextAssembler:
    """Decoder and stop strings in one: token ids in, sayable text out."""

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self._decoder = IncrementalDecoder(decode)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing more will be said."""
        return self._stops.found

    def push(self, token_ids: Iterable[int]) -> str:
        return self._stops.push(self._decoder.push(token_ids))

    def finish(self) -> str:
        return self._stops.push(self._decoder.finish()) + self._stops.finish()
