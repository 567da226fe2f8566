"""Answers that an engine gives by and by (PROTOCOL §5.6): it takes a request at once, works on it by itself,
and is asked how far it is. The agent follows the work and tells the gateway all of it as one answer. Pure.

The body of such an answer is lines of JSON, each ended by a line feed: ``{"progress": 0.25}`` any number of
times, then once ``{"answer": {"status": 200, "headers": [[name, value], …], "facts": {…}}}``. All that comes
behind that line is the body of the answer proper.
"""

from collections.abc import Mapping

import orjson

from shared.process.frozen import frozen
from shared.protocol.messages import Headers

FOLLOWED = "application/vnd.trunkline.followed"
"""The content type of such an answer; who takes one names it in ``accept``."""

LINE_BYTES = 64 * 1024
"""Longest line that is read."""


class NotFollowed(ValueError):
    """The lines are not those of a followed answer."""


@frozen
class FollowedAnswer:
    """The head of the answer proper."""

    status: int
    headers: Headers = ()
    facts: Mapping[str, str] | None = None
    """What the engine says of its work, in words of its route: ``seconds`` and ``size`` of a video."""


def progress_line(progress: float) -> bytes:
    """``progress`` is from 0 to 1."""
    return orjson.dumps({"progress": progress}) + b"\n"


def answer_line(answer: FollowedAnswer) -> bytes:
    """The last line; the body follows."""
    said = {"status": answer.status, "headers": answer.headers, "facts": answer.facts or {}}
    return orjson.dumps({"answer": said}) + b"\n"


class FollowedReader:
    """Reads a followed answer as it comes."""

    def __init__(self) -> None:
        self.progress: float | None = None
        """What was told last, from 0 to 1."""
        self.answer: FollowedAnswer | None = None
        """There once its line has come; nothing is to be fed any more then."""
        self._line = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes. What is returned is of the answer's body. Raises NotFollowed."""
        self._line += data
        while self.answer is None and (end := self._line.find(b"\n")) >= 0:
            self._read(bytes(self._line[:end]))
            del self._line[: end + 1]
        if self.answer is None:
            if len(self._line) > LINE_BYTES:
                raise NotFollowed(f"a line is longer than {LINE_BYTES} bytes")
            return b""
        rest = bytes(self._line)
        self._line.clear()
        return rest

    def _read(self, line: bytes) -> None:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise NotFollowed("a line is no JSON") from None
        if not isinstance(value, dict):
            raise NotFollowed("a line is no object")
        progress = value.get("progress")
        if isinstance(progress, int | float) and not isinstance(progress, bool):
            self.progress = min(1.0, max(0.0, float(progress)))
        answer = value.get("answer")
        if answer is not None:
            self.answer = _answer(answer)


def _answer(value: object) -> FollowedAnswer:
    status = value.get("status") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(status, int) or not 200 <= status <= 599:
        raise NotFollowed("the answer has no status")
    headers, facts = value.get("headers", []), value.get("facts", {})
    if not isinstance(headers, list) or not isinstance(facts, dict):
        raise NotFollowed("the answer's head cannot be read")
    fields = tuple((each[0].lower(), each[1]) for each in headers if _is_field(each))
    if len(fields) != len(headers):
        raise NotFollowed("a header field of the answer is no pair of strings")
    return FollowedAnswer(status, fields, {str(name): str(text) for name, text in facts.items()})


def _is_field(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(each, str) for each in value)
