"""The text the demo model is trained on, and the reader of its files.

A topic file is a list of entries:

    = name                     of the entry, unique in the corpus
    Q: pattern                 ways to ask (`grammar`); the first is the canonical one
    A: text                    the answer, up to the next entry or mark; may have many lines
    M: text                    optional: the answer to "tell me more" after A
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from deploy.demo_model.corpus.grammar import GrammarError, Pattern, first, parse, sample

CORPUS_DIR: Final = Path(__file__).resolve().parent
KNOWN_TOPICS: Final = (
    "about",
    "concepts",
    "setup",
    "engines",
    "clients",
    "errors",
    "operations",
    "scheduling",
    "security",
    "long",
)
SMALL_TALK: Final = "smalltalk"
FOREIGN: Final = "foreign"
ASKING_WORDS: Final = """
what what's whats how why who where when which is are was does do did can could may will would should am must
has have under for
"""
ASKING: Final = frozenset(ASKING_WORDS.split())
"""First words after which a question mark stands."""


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    """One thing the model can say and the ways to ask for it."""

    name: str
    questions: tuple[Pattern, ...]
    answer: str
    more: str | None

    @property
    def canonical(self) -> str:
        return as_sentence(first(self.questions[0]))

    def ask(self, rng: Random) -> str:
        """One of the ways to ask, without its final mark and in the case it was written in."""
        return sample(rng.choice(self.questions), rng)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything that is read from the folder.

    known: entries about Trunkline; small_talk: greetings and the like; foreign: questions from
    elsewhere with the answer that declines them; prose: paragraphs of plain text; systems: system
    prompts; openers and closers: words before and after a question; alike: groups of sentences that
    say the same; held_out: (entry name, question) pairs never trained on.
    """

    known: tuple[CorpusEntry, ...]
    small_talk: tuple[CorpusEntry, ...]
    foreign: tuple[CorpusEntry, ...]
    prose: tuple[str, ...]
    systems: tuple[str, ...]
    openers: Pattern
    closers: Pattern
    alike: tuple[tuple[str, ...], ...]
    held_out: tuple[tuple[str, str], ...]

    @property
    def entries(self) -> tuple[CorpusEntry, ...]:
        return self.known + self.small_talk + self.foreign


def as_sentence(question: str) -> str:
    """A question with a capital letter and, if it has no final mark, the one that fits its first word."""
    text = question[:1].upper() + question[1:]
    if text[-1:] in "?.!:":
        return text
    return text + ("?" if text.split()[0].lower() in ASKING else ".")


def load() -> Corpus:
    """Read the folder. Raises GrammarError for a file that does not follow its format."""
    words = (CORPUS_DIR / "words.txt").read_text("utf-8").split()
    phrases = dict(_phrases((CORPUS_DIR / "phrases.txt").read_text("utf-8"))) | {"word": "|".join(words)}
    topics = {name: _entries(name, phrases) for name in (*KNOWN_TOPICS, SMALL_TALK, FOREIGN)}
    corpus = Corpus(
        known=tuple(entry for name in KNOWN_TOPICS for entry in topics[name]),
        small_talk=topics[SMALL_TALK],
        foreign=topics[FOREIGN],
        prose=tuple(_blocks("prose.txt")),
        systems=tuple(_blocks("systems.txt")),
        openers=parse("<opener>", phrases),
        closers=parse("<closer>", phrases),
        alike=tuple(tuple(block.splitlines()) for block in _blocks("alike.txt")),
        held_out=tuple(_held_out()),
    )
    names = [entry.name for entry in corpus.entries]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise GrammarError(f"entry names used twice: {sorted(doubled)}")
    unknown = {name for name, _ in corpus.held_out} - set(names)
    if unknown:
        raise GrammarError(f"held-out questions for entries that do not exist: {sorted(unknown)}")
    return corpus


def digest() -> str:
    """SHA-256 over the names and bytes of every text file of the corpus."""
    whole = hashlib.sha256()
    for path in sorted(CORPUS_DIR.glob("*.txt")):
        content = path.read_bytes()
        whole.update(f"{path.name} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def _blocks(file_name: str) -> Iterator[str]:
    for block in (CORPUS_DIR / file_name).read_text("utf-8").split("\n\n"):
        if block.strip():
            yield block.strip("\n")


def _phrases(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, mark, body = line.partition(" = ")
        if mark and not line.startswith("#"):
            yield name.strip(), body.strip()


def _held_out() -> Iterator[tuple[str, str]]:
    for line in (CORPUS_DIR / "heldout.txt").read_text("utf-8").splitlines():
        name, mark, question = line.partition(": ")
        if mark and not line.startswith("#"):
            yield name, question


def _entries(topic: str, phrases: dict[str, str]) -> tuple[CorpusEntry, ...]:
    text = (CORPUS_DIR / f"{topic}.txt").read_text("utf-8")
    return tuple(_entry(chunk, phrases) for chunk in ("\n" + text).split("\n= ")[1:])


def _entry(chunk: str, phrases: dict[str, str]) -> CorpusEntry:
    name, _, body = chunk.partition("\n")
    fields: dict[str, list[str]] = {"Q": [], "A": [], "M": []}
    current = ""
    for line in body.splitlines():
        if line[:2] in ("Q:", "A:", "M:"):
            current = line[0]
            fields[current].append(line[2:].strip())
        elif current in ("A", "M"):
            fields[current][-1] += "\n" + line
        elif line.strip():
            raise GrammarError(f"{name}: cannot read the line {line!r}")
    if not fields["Q"] or len(fields["A"]) != 1 or len(fields["M"]) > 1:
        raise GrammarError(f"{name}: an entry has some Q, one A and at most one M")
    return CorpusEntry(
        name=name.strip(),
        questions=tuple(parse(question, phrases) for question in fields["Q"]),
        answer=fields["A"][0].strip(),
        more=fields["M"][0].strip() if fields["M"] else None,
    )
