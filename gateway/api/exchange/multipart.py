"""Finds the fields that classification needs in a multipart body, and reads no further than it must."""

from collections.abc import Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.domain.errors import BadRequest
from gateway.pipeline.client_body import FORM_MEMBERS

FIELD_BYTES = 1024
"""Longest value of a field that is read here; a model's name is shorter."""

PARTS = 128
"""Most parts looked at before the model must have been named."""


class FormParts:
    """Push parser of a multipart/form-data body (RFC 7578): finds parts, and the values of some fields."""

    def __init__(self, content_type: bytes, parts: int, field_bytes: int) -> None:
        """``parts`` and ``field_bytes``: how many parts are taken, and how long a value. Raises BadRequest
        for a content type without a usable boundary."""
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        try:
            if not boundary:
                raise broken("its Content-Type names no boundary")
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begin,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_end,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise broken(str(error)) from None
        self.ended = False
        """Its last boundary has come."""
        self._most_parts, self._field_bytes = parts, field_bytes
        self._parts = 0
        self._header = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}
        self._name: str | None = None
        self._value = bytearray()

    def write(self, chunk: bytes) -> None:
        """Take the next piece of the body. Raises BadRequest."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise broken(str(error)) from None

    def part_begins(self, name: str, filename: bytes | None, headers: Mapping[bytes, bytes]) -> bool:
        """A part's head is there; ``filename`` is None for a field. Whether its value is to be kept."""
        raise NotImplementedError

    def other_data(self, data: bytes) -> None:
        """Bytes of a part whose value is not kept."""

    def field_ends(self, name: str, value: str) -> None:
        """A field whose value was kept is there."""
        raise NotImplementedError

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._most_parts:
            raise broken(f"it has more than {self._most_parts} parts")
        self._headers.clear()
        self._value.clear()
        self._name = None

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _header_end(self) -> None:
        name, value = self._header
        self._headers[bytes(name).strip().lower()] = bytes(value)
        name.clear()
        value.clear()

    def _headers_finished(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition", b""))[1]
        name = options.get(b"name", b"").decode(errors="replace")
        filename = options.get(b"filename", options.get(b"filename*"))
        self._name = name if self.part_begins(name, filename, self._headers) else None

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self.other_data(data[start:end])
            return
        self._value.extend(data[start:end])
        if len(self._value) > self._field_bytes:
            message = f"The form field '{self._name}' is longer than {self._field_bytes} bytes."
            raise BadRequest(message, param=self._name)

    def _part_end(self) -> None:
        if self._name is None:
            return
        try:
            value = self._value.decode()
        except UnicodeDecodeError:
            raise BadRequest(f"The form field '{self._name}' is not UTF-8.", param=self._name) from None
        self.field_ends(self._name, value)

    def _end(self) -> None:
        self.ended = True


class FormScan(FormParts):
    """Reads the beginning of a form until the model is known.

    Python's SDK sends the fields before the file, Node's in the order the program wrote them. So the scan is
    over (``done``) at the first file part after ``model`` is known; until then it goes on through files.
    """

    def __init__(self, content_type: bytes) -> None:
        """Raises :class:`BadRequest` for a content type without a usable boundary."""
        super().__init__(content_type, PARTS, FIELD_BYTES)
        self.members: dict[str, str] = {}
        self.done = False

    def feed(self, chunk: bytes) -> bool:
        """Take the next piece of the body; True once nothing more is needed. Raises :class:`BadRequest`."""
        if not self.done and chunk:
            self.write(chunk)
        return self.done

    def finish(self) -> None:
        """The body has ended. Raises :class:`BadRequest` if its last boundary never came."""
        if not self.done and not self.ended:
            raise broken("it ends before its last boundary")

    def part_begins(self, name: str, filename: bytes | None, headers: Mapping[bytes, bytes]) -> bool:
        if filename is not None and "model" in self.members:
            self.done = True
        return name in FORM_MEMBERS and filename is None

    def field_ends(self, name: str, value: str) -> None:
        if name == "model" and "model" in self.members:
            raise broken("it names its model more than once")
        self.members[name] = value


def broken(why: str) -> BadRequest:
    """A refusal of a form."""
    return BadRequest(f"The multipart body is broken: {why}.", code="invalid_multipart")
