"""Holds the replies of a queue's messages against what was asked. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.chaos.jobs.lines import BatchLine

_SHOWN = 10


@dataclass(slots=True)
class ReplyFindings:
    """Of one source. A reply may come again as it is (at least once); a reader drops what has a sequence
    that it has seen. What it would not drop is doubled in effect."""

    asked: Mapping[str, BatchLine]
    """By the ids of the messages."""
    computed: int = 0
    """Tokens, by the engines."""
    took_s: float = 0.0
    wrong_answers: list[str] = field(default_factory=list)
    repeated: int = 0
    """Replies that came again and are dropped."""
    others: Counter[str] = field(default_factory=Counter)
    """What else is wrong, and how often."""
    _seen: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """Jobs and sequences by the id of the message."""

    def take(self, reply: bytes) -> None:
        """One came."""
        said = orjson.loads(reply)
        name = str(said.get("id"))
        if name not in self.asked:
            self.others["replies to nothing"] += 1
            return
        mark = (str(said.get("job", "")), int(said.get("sequence", 0)))
        seen = self._seen.setdefault(name, set())
        if mark in seen:
            self.repeated += 1
            return
        seen.add(mark)
        if not _is_right(self.asked[name], said):
            self.wrong_answers.append(f"{name}: {said}"[:300])

    def note(self, what: str, times: int) -> None:
        """Something else is wrong, if ``times`` is not 0."""
        if times:
            self.others[what] += times

    @property
    def answered(self) -> int:
        return len(self._seen)

    @property
    def is_complete(self) -> bool:
        return len(self._seen) == len(self.asked)

    @property
    def lost(self) -> list[str]:
        return [name for name in self.asked if name not in self._seen]

    @property
    def doubled(self) -> list[str]:
        """Messages with two results."""
        return [name for name, seen in self._seen.items() if len(seen) > 1]

    @property
    def wrong(self) -> list[str]:
        """In words; empty when nothing is."""
        lists = {"lost": self.lost, "doubled in effect": self.doubled, "wrong": self.wrong_answers}
        found = [f"{len(names)} {what}: {names[:_SHOWN]}" for what, names in lists.items() if names]
        return found + [f"{count} × {what}" for what, count in self.others.items()]

    def __str__(self) -> str:
        tokens = sum(line.tokens for line in self.asked.values())
        return (
            f"{len(self.asked)} messages, {len(self.lost)} lost, {len(self.doubled)} doubled in effect, "
            f"{len(self.wrong_answers)} wrong; {self.repeated} replies came again, {self.computed} tokens "
            f"computed for {tokens}; {self.took_s:.0f} s until the last reply"
        )


def _is_right(line: BatchLine, said: Mapping[str, Any]) -> bool:
    """Whether a result says what it must."""
    try:
        return said["type"] == "result" and bool(
            said["body"]["choices"][0]["message"]["content"] == line.text
        )
    except (KeyError, IndexError, TypeError):
        return False
