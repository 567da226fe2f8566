"""Ways in which people really type: openers, closers, case, punctuation, slips of the finger."""

import string
from random import Random

from deploy.demo_model.corpus import as_sentence
from deploy.demo_model.corpus.grammar import Pattern, sample


class Typist:
    """Turns a question of the corpus into what somebody might type.

    `openers` and `closers` are patterns of words put before and after one question in five.
    """

    def __init__(self, openers: Pattern, closers: Pattern) -> None:
        self._openers = openers
        self._closers = closers

    def type(self, question: str, rng: Random) -> str:
        """One variation of `question`, never empty."""
        text = self._frame(question, rng)
        text = as_sentence(text) if rng.random() < 0.6 else self._careless(text, rng)
        if rng.random() < 0.12:
            text = _slip(text, rng)
        return text

    def _frame(self, question: str, rng: Random) -> str:
        if rng.random() < 0.2:
            question = f"{sample(self._openers, rng)}{rng.choice((' ', ', '))}{question}"
        if rng.random() < 0.1:
            question = f"{question} {sample(self._closers, rng)}".replace(" ,", ",")
        return question

    @staticmethod
    def _careless(text: str, rng: Random) -> str:
        draw = rng.random()
        if draw < 0.5:
            text = text.lower()
        elif draw < 0.55:
            text = text.upper()
        return text + rng.choice(("", "", "?", "?", ".", "!", " ?", "??"))


def _slip(text: str, rng: Random) -> str:
    """`text` with one letter dropped, doubled, swapped with the next or replaced."""
    if len(text) < 6:
        return text
    at = rng.randrange(1, len(text) - 2)
    before, here, following, after = text[:at], text[at], text[at + 1], text[at + 2 :]
    return rng.choice(
        (
            f"{before}{following}{after}",
            f"{before}{here}{here}{following}{after}",
            f"{before}{following}{here}{after}",
            f"{before}{rng.choice(string.ascii_lowercase)}{following}{after}",
        )
    )
