"""Where in a JSON text an answer is, and which tokens bring it nearer to its end.

A grammar of JSON allows strings, and digits of numbers, without end. What keeps an answer finite is what the
model wants: see :mod:`agent.engines.torch.sampling`.
"""

from collections.abc import Iterable, Sequence

import torch

INTEGER_DIGITS = 19
"""Most digits of an integer: all that have so many fit 64 bits."""

NUMBER_CHARS = 24
"""Longest number: that of -2.2250738585072014e-308, which of all 64-bit numbers takes the most."""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_DIGITS = b"0123456789"
_NUMBER = b"+-.Ee" + _DIGITS


class TokenStarts:
    """The tokens of a vocabulary by what they begin with: booleans of shape (vocabulary,)."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.quotes = self._beginning(b'"')
        self.brackets = self._beginning(b"}]")
        self.commas = self._beginning(b",")
        self.digits = self._beginning(_DIGITS)
        self.numbers = self._beginning(_NUMBER)

    def is_plain(self, token: int) -> bool:
        """Whether it changes nothing of where in JSON a text is, if it is in a string and between two
        characters."""
        text = self.tokens[token]
        return bool(text) and _QUOTE not in text and _BACKSLASH not in text and _is_whole(text)

    def _beginning(self, characters: bytes) -> torch.Tensor:
        return torch.tensor([bool(token) and token[0] in characters for token in self.tokens])


class JSONPosition:
    """After the tokens that it has followed. What comes before and after JSON must have no quotes."""

    def __init__(self, starts: TokenStarts) -> None:
        self._starts = starts
        self._in_string = False
        self._escaped = False
        self._number = b""
        """As far as it is written."""

    @property
    def in_text(self) -> bool:
        """Within a string."""
        return self._in_string

    def copy(self) -> "JSONPosition":
        position = JSONPosition(self._starts)
        position._in_string, position._escaped = self._in_string, self._escaped
        position._number = self._number
        return position

    def follow(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            for character in self._starts.tokens[token]:
                self._step(character)

    def _step(self, character: int) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = character == _BACKSLASH
            self._in_string = character != _QUOTE
        else:
            self._in_string = character == _QUOTE
            self._number = self._number + bytes((character,)) if character in _NUMBER else b""

    def without_long_numbers(self, allowed: torch.Tensor) -> torch.Tensor:
        """``allowed`` without what makes a number longer than :data:`INTEGER_DIGITS` or
        :data:`NUMBER_CHARS`; all of it, if the grammar wants such a number."""
        if len(self._number) >= NUMBER_CHARS:
            longer = self._starts.numbers
        elif len(self._number.lstrip(b"-")) >= INTEGER_DIGITS and self._number.lstrip(b"-").isdigit():
            longer = self._starts.digits
        else:
            return allowed
        shorter = allowed & ~_sized(longer, allowed)
        return shorter if shorter.any() else allowed

    def closing(self, allowed: torch.Tensor) -> torch.Tensor | None:
        """Those of ``allowed`` that end the innermost string, object or list; else, outside strings, those
        that end a value of it. None: there are none."""
        starts = self._starts
        if self._escaped:
            return None
        for kind in (starts.quotes,) if self._in_string else (starts.brackets, starts.commas):
            found = allowed & _sized(kind, allowed)
            if found.any():
                return found
        return None


def _is_whole(text: bytes) -> bool:
    """Whether it has no half characters."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sized(starts: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """``starts`` in the size of ``allowed``, which is that of the logits: often a round number."""
    missing = allowed.size(0) - starts.size(0)
    return torch.nn.functional.pad(starts, (0, missing)) if missing > 0 else starts[: allowed.size(0)]
