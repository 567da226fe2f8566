"""Which known path a client most likely meant that asked for an unknown one. Pure."""

import difflib
import re

from gateway.domain.surface import FIXED
from shared.protocol.routes import PATHS

SLIP = 0.85
"""Words at least so much alike (:mod:`difflib`) differ by a slip of the hand."""

_VERSION = re.compile(r"v\d+|api|openai")
"""What stands before a path's words here and elsewhere."""

_KNOWN = (*PATHS, *FIXED)


def nearest(path: str) -> str | None:
    """The known path that ``path`` is most likely meant for; None when it is most likely meant for none.

    Meant is a path of the same words, each with a slip or two of the hand, or under another prefix than it
    has here. Two words of the language that look alike are no slip: ``/v1/transformations`` is not
    ``/v1/completions``.
    """
    words = _words(path[:100])
    if words[:1] == ["engines"]:
        return "/engines/{model}/…"
    if len(words) > 1 and (below := [known for known in _KNOWN if _words(known)[: len(words)] == words]):
        return min(below, key=len)
    likenesses = {known: _likeness(words, _words(known)) for known in _KNOWN if known not in ("/", "/v2")}
    best = max(likenesses, key=likenesses.__getitem__)
    return best if likenesses[best] else None


def _words(path: str) -> list[str]:
    return [word for word in path.lower().split("/") if word]


def _likeness(words: list[str], known: list[str]) -> float:
    """From 0, not meant, to 1. A version or another prefix before the words is worth a little."""
    if words == known:
        return 1.0
    bare = [word for word in known if not _VERSION.fullmatch(word)]
    ends = [word for word in words if not _VERSION.fullmatch(word)][-len(bare) :]
    if len(ends) < len(bare):
        return 0.0
    worst = min(_word_likeness(*pair) for pair in zip(ends, bare, strict=True))
    prefixed = len(known) > len(bare) and all(word in words for word in known if word not in bare)
    return 0.97 * worst + (0.02 if prefixed else 0.0) if worst else 0.0


def _word_likeness(word: str, known: str) -> float:
    if word == known:
        return 1.0
    likeness = difflib.SequenceMatcher(None, word, known, autojunk=False).ratio()
    return likeness if likeness >= SLIP else 0.0
