"""What a line of a batch's file asks for, and what is wrong with it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.domain.batches import BatchError
from gateway.domain.json_members import top_values, value_end
from gateway.domain.surface import is_model_name

CUSTOM_ID_CHARS = 512

_BOM = b"\xef\xbb\xbf"
_ANY_TOKENS = 1 << 40


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line of a file that is not blank."""

    number: int
    """Counted from 1, blank lines included."""
    start: int
    """Where it begins in the file."""
    end: int
    """Where the next line begins."""
    data: bytes


@dataclass(frozen=True, slots=True)
class LineRequest:
    """What a line asks for."""

    line: InputLine
    custom_id: str
    model: str
    start: int
    """Where the bytes of its body are in the file."""
    stop: int

    @property
    def body(self) -> bytes:
        return self.line.data[self.start - self.line.start : self.stop - self.line.start]


class LineTooLong(Exception):
    """Line ``number`` has more bytes than a request may have."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class LineSplitter:
    """Makes lines of the pieces of a file."""

    def __init__(self, most_bytes: int, start: int = 0, number: int = 0) -> None:
        """``most_bytes``: of one line. ``start``: where the first piece begins; ``number``: how many lines
        there are before it."""
        self._most_bytes = most_bytes
        self._at = start
        self._number = number
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[InputLine]:
        """The lines that end in ``piece``. Raises LineTooLong."""
        *whole, rest = piece.split(b"\n")
        for text in whole:
            self._rest += text
            yield from self._line(1)
        self._rest += rest
        self._check()

    def finish(self) -> Iterator[InputLine]:
        """The last line, where no line end follows it. Raises LineTooLong."""
        if self._rest:
            yield from self._line(0)

    def _line(self, ends: int) -> Iterator[InputLine]:
        self._number += 1
        self._check(0)
        data, start = bytes(self._rest), self._at
        self._at += len(data) + ends
        self._rest.clear()
        if start == 0 and data.startswith(_BOM):
            data = data.removeprefix(_BOM)
            start = len(_BOM)
        if data.strip():
            yield InputLine(self._number, start, self._at, data)

    def _check(self, further: int = 1) -> None:
        if len(self._rest) > self._most_bytes:
            raise LineTooLong(self._number + further)


def read_line(line: InputLine, endpoint: str) -> LineRequest | BatchError:
    """What the line asks for, or the first thing that is wrong with it, in OpenAI's words."""
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        return BatchError("invalid_json_line", "This line is not parseable as valid JSON.", line.number)
    wrong = _wrong_envelope(value, endpoint, line.number) or _wrong_body(value["body"], line.number)
    if wrong is not None:
        return wrong
    place = _place_of_body(line.data)
    if place is None:
        return BatchError("invalid_json_line", "This line has more than one 'body'.", line.number, "body")
    start, stop = place
    model = value["body"]["model"]
    return LineRequest(line, value["custom_id"], model, line.start + start, line.start + stop)


def _wrong_envelope(value: dict[str, Any], endpoint: str, number: int) -> BatchError | None:
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) is None:
            return _missing(name, number)
    custom_id = value["custom_id"]
    fits = isinstance(custom_id, str) and 0 < len(custom_id) <= CUSTOM_ID_CHARS
    if not fits or "\0" in custom_id:  # which PostgreSQL cannot store
        message = f"'custom_id' must be a string of 1 to {CUSTOM_ID_CHARS} characters, none of them NUL."
        return BatchError("invalid_value", message, number, "custom_id")
    if value["method"] != "POST":
        return BatchError("invalid_method", "The method of a request must be POST.", number, "method")
    if value["url"] != endpoint:
        message = "The URL provided for this request does not match the batch endpoint."
        return BatchError("invalid_url", message, number, "url")
    if not isinstance(value["body"], dict):
        return BatchError("invalid_value", "'body' must be a JSON object.", number, "body")
    return None


def _wrong_body(body: dict[str, Any], number: int) -> BatchError | None:
    model = body.get("model")
    if model is None:
        return _missing("body.model", number)
    if not isinstance(model, str) or not is_model_name(model):
        return BatchError("invalid_value", "'model' must be the name of a model.", number, "body.model")
    if body.get("stream") not in (None, False):
        return BatchError("invalid_value", "Requests of a batch cannot stream.", number, "body.stream")
    return None


def _missing(name: str, number: int) -> BatchError:
    return BatchError("missing_required_parameter", f"Missing required parameter: '{name}'.", number, name)


def _place_of_body(line: bytes) -> tuple[int, int] | None:
    """Start and end of the value of ``body`` in a line that is a JSON object with that member; None where it
    has two."""
    starts = top_values(line, "body")
    if len(starts) != 1:
        return None
    start, last = starts[0], line.rindex(b"}")
    if _is_object(line[start:last]):  # as most often, nothing stands behind it
        return start, last
    end = value_end(line, start, _ANY_TOKENS)
    return None if end is None else (start, end)


def _is_object(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
