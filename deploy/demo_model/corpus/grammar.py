"""The question grammar: one line stands for many ways to ask the same thing.

{a|b}      one of the alternatives, which may nest
[a]        a or nothing
<name>     one line of the phrase list `name`
@name(x)   the phrase `name` with `x` in the place of its `$`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random


class GrammarError(ValueError):
    """A corpus line that does not follow the grammar; the message quotes it."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of `options`, each a sequence of literal text and further choices."""

    options: tuple[tuple["str | Alternatives", ...], ...]


Part = str | Alternatives
Pattern = tuple[Part, ...]


def parse(text: str, phrases: Mapping[str, str]) -> Pattern:
    """Parse one pattern. Raises GrammarError for unbalanced brackets and unknown phrases."""
    parser = _Parser(text, phrases)
    pattern = parser.sequence(end="|}]")
    if parser.position != len(text):
        raise GrammarError(f"stray {text[parser.position]!r} in {text!r}")
    return pattern


def sample(pattern: Pattern, rng: Random) -> str:
    """One sentence of `pattern`, with runs of blanks made one."""
    return " ".join("".join(_walk(pattern, rng)).split())


def first(pattern: Pattern) -> str:
    """The sentence made of every first alternative: the question as its author would put it."""
    return " ".join("".join(_walk(pattern, None)).split())


def _walk(pattern: Pattern, rng: Random | None) -> list[str]:
    out: list[str] = []
    for part in pattern:
        if isinstance(part, str):
            out.append(part)
        else:
            option = part.options[0] if rng is None else rng.choice(part.options)
            out.extend(_walk(option, rng))
    return out


class _Parser:
    def __init__(self, text: str, phrases: Mapping[str, str]) -> None:
        self._text = text
        self._phrases = phrases
        self.position = 0

    def sequence(self, end: str) -> Pattern:
        """Parts up to a character of `end`, which stays unread."""
        parts: list[Part] = []
        while self.position < len(self._text) and self._text[self.position] not in end:
            parts.append(self._part(end))
        return tuple(parts)

    def _part(self, end: str) -> Part:
        char = self._text[self.position]
        if char == "{":
            return Alternatives(self._alternatives("{", "}"))
        if char == "[":
            return Alternatives((*self._alternatives("[", "]"), ()))
        if char == "<":
            return self._phrase(self._enclosed("<", ">"), "")
        if char == "@":
            opening = self._text.find("(", self.position)
            if opening < 0:
                raise GrammarError(f"@ without ( in {self._text!r}")
            name = self._text[self.position + 1 : opening]
            self.position = opening
            return self._phrase(name, self._enclosed("(", ")"))
        return self._literal(end)

    def _literal(self, end: str) -> str:
        start = self.position
        while self.position < len(self._text) and self._text[self.position] not in "{[<@" + end:
            self.position += 1
        return self._text[start : self.position]

    def _alternatives(self, opening: str, closing: str) -> tuple[Pattern, ...]:
        options: list[Pattern] = []
        while not options or self._text[self.position] == "|":
            self.position += 1
            options.append(self.sequence("|" + closing))
            if self.position >= len(self._text):
                raise GrammarError(f"{opening} is not closed in {self._text!r}")
        self.position += 1
        return tuple(options)

    def _enclosed(self, opening: str, closing: str) -> str:
        depth = 0
        for end in range(self.position, len(self._text)):
            depth += (self._text[end] == opening) - (self._text[end] == closing)
            if depth == 0:
                inner = self._text[self.position + 1 : end]
                self.position = end + 1
                return inner
        raise GrammarError(f"{opening} is not closed in {self._text!r}")

    def _phrase(self, name: str, argument: str) -> Alternatives:
        if name not in self._phrases:
            raise GrammarError(f"unknown phrase {name!r} in {self._text!r}")
        filled = self._phrases[name].replace("$", "{" + argument + "}")
        return Alternatives((parse("{" + filled + "}", self._phrases),))
