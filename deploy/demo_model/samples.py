"""What the demo model learns from: conversations and texts drawn from the corpus with a seeded generator,
in the ways in which people really type: openers, closers, case, punctuation, slips of the finger.
"""

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from deploy.demo_model.corpus import Corpus, CorpusEntry, as_sentence
from deploy.demo_model.corpus.grammar import Pattern, sample
from deploy.demo_model.vocabulary import ASSISTANT, CONTEXT_TOKENS, SYSTEM, TEXT, USER, Encoder


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


TELL_MORE: Final = "tell-more"
REPEAT: Final = "repeat-that"
STRANGE_END: Final = " ... and there my knowledge ends: I am a tiny demo model and only know about Trunkline."
"""How a raw text from elsewhere is continued."""

OPENING_TOKENS: Final = 24
"""Half of the samples stop here in their last answer: the hard part is to find the right beginning."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids, and for each whether the model shall learn to predict it."""

    ids: list[int]
    learn: list[bool]

    def add(self, ids: Sequence[int], *, learn: bool) -> None:
        self.ids.extend(ids)
        self.learn.extend([learn] * len(ids))


class Sampler:
    """An endless source of samples; the same seed gives the same ones in the same order."""

    def __init__(self, corpus: Corpus, encoder: Encoder, typist: Typist, rng: Random) -> None:
        self._corpus = corpus
        self._encoder = encoder
        self._typist = typist
        self._rng = rng
        self._secret = {plain(question) for _, question in corpus.held_out}
        self._by_name = {entry.name: entry for entry in corpus.entries}

    def sample(self) -> Sample:
        """One sample of at most CONTEXT_TOKENS tokens."""
        draw = self._rng.random()
        if draw < 0.09:
            drawn = self._prose()
        elif draw < 0.11:
            drawn = self._strange_text()
        elif draw < 0.14:
            drawn = self._written_dialogue()
        else:
            drawn = self._conversation()
        return Sample(drawn.ids[:CONTEXT_TOKENS], drawn.learn[:CONTEXT_TOKENS])

    def batches(self, pool_samples: int, batch_tokens: int) -> Iterator[list[Sample]]:
        """Samples of similar length together; a batch padded to its longest has at most `batch_tokens`."""
        while True:
            pool = sorted((self.sample() for _ in range(pool_samples)), key=lambda one: len(one.ids))
            batches: list[list[Sample]] = [[]]
            for one in pool:
                if len(one.ids) * (len(batches[-1]) + 1) > batch_tokens:
                    batches.append([])
                batches[-1].append(one)
            self._rng.shuffle(batches)
            yield from batches

    def alike(self, count: int) -> list[tuple[list[int], list[int]]]:
        """`count` pairs of texts that mean the same, no two pairs of one meaning; for the embeddings."""
        groups: list[CorpusEntry | tuple[str, ...]] = [*self._corpus.entries[:-1], *self._corpus.alike * 2]
        pairs = []
        for group in self._rng.sample(groups, count):
            if isinstance(group, CorpusEntry):
                left, right = self.question(group), self.question(group)
                if self._rng.random() < 0.3:
                    right = group.answer.partition("\n")[0]
            else:
                left, right = self._rng.sample(group, 2)
            pairs.append(
                (self._encoder.text(left)[:OPENING_TOKENS], self._encoder.text(right)[:OPENING_TOKENS])
            )
        return pairs

    def question(self, entry: CorpusEntry) -> str:
        """One way to ask for `entry` that is not among the held-out ones."""
        while True:
            asked = entry.ask(self._rng)
            if plain(asked) not in self._secret:
                return self._typist.type(asked, self._rng)

    def _entry(self, previous: CorpusEntry | None) -> CorpusEntry:
        draw = self._rng.random()
        if previous is not None and draw < (0.3 if previous.more else 0.06):
            return self._by_name[TELL_MORE]
        if previous is not None and draw > 0.97:
            return self._by_name[REPEAT]
        draw = self._rng.random()
        if draw < 0.74:
            return self._rng.choice(self._corpus.known)
        return self._rng.choice(self._corpus.small_talk if draw < 0.85 else self._corpus.foreign)

    def _conversation(self) -> Sample:
        drawn = Sample([], [])
        if self._rng.random() < 0.35:
            system = self._encoder.text(self._rng.choice(self._corpus.systems))
            drawn.add(self._encoder.turn(SYSTEM, system), learn=False)
        turns = self._rng.choices((1, 2, 3, 5), (62, 22, 12, 4))[0]
        previous: CorpusEntry | None = None
        answer = ""
        for turn in range(turns):
            entry = self._entry(previous)
            answer, topic = follow(entry, previous, answer)
            drawn.add(self._encoder.turn(USER, self._encoder.text(self.question(entry))), learn=False)
            self._answer(drawn, answer, last=turn == turns - 1)
            previous = topic
        return drawn

    def _answer(self, drawn: Sample, answer: str, *, last: bool) -> None:
        ids = [*self._encoder.fixed(answer), self._encoder.end]
        if last and self._rng.random() < 0.5:
            ids = ids[:OPENING_TOKENS]
        drawn.add([self._encoder.special(ASSISTANT)], learn=False)
        drawn.add(ids, learn=True)

    def _prose(self) -> Sample:
        paragraph = self._rng.choice(self._corpus.prose)
        sentences = paragraph.replace(". ", ".\n").split("\n")
        text = " ".join(
            sentences[self._rng.randrange(len(sentences)) :] if self._rng.random() < 0.3 else sentences
        )
        drawn = Sample([], [])
        if self._rng.random() < 0.4:
            drawn.add([self._encoder.special(TEXT)], learn=False)
        drawn.add([*self._encoder.text(text), self._encoder.end], learn=True)
        return drawn

    def _strange_text(self) -> Sample:
        text = self.question(self._rng.choice(self._corpus.foreign)).rstrip("?.! ")
        drawn = Sample([], [])
        drawn.add(self._encoder.text(text), learn=False)
        drawn.add([*self._encoder.fixed(STRANGE_END), self._encoder.end], learn=True)
        return drawn

    def _written_dialogue(self) -> Sample:
        entry = self._rng.choice(self._corpus.known)
        asking, answering = self._rng.choice(
            (("Q: ", "A:"), ("Question: ", "Answer:"), ("User: ", "Assistant:"))
        )
        drawn = Sample([], [])
        drawn.add(self._encoder.text(f"{asking}{self.question(entry)}\n{answering}"), learn=False)
        drawn.add([*self._encoder.text(" " + entry.answer), self._encoder.end], learn=True)
        return drawn


def follow(entry: CorpusEntry, previous: CorpusEntry | None, said: str) -> tuple[str, CorpusEntry | None]:
    """The answer to `entry` after `previous` was answered with `said`, and what is spoken about then."""
    if entry.name == TELL_MORE:
        more = previous.more if previous is not None else None
        return (more, None) if more else (entry.answer, None)
    if entry.name == REPEAT and said:
        return said, previous
    return entry.answer, entry


def plain(question: str) -> str:
    """`question` without case and final marks, to compare it with others."""
    return question.lower().rstrip("?.! ")
