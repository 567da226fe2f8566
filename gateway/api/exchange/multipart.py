"""Finds the fields that classification needs in a multipart body, and reads no further than it must."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.domain.errors import BadRequest
from gateway.pipeline.client_body import FORM_MEMBERS

FIELD_BYTES = 1024
"""Longest value of a field that is read here; a model's name is shorter."""

PARTS = 128
"""Most parts looked at before the model must have been named."""


class FormScan:
    """Push parser over the beginning of a multipart/form-data body.

    Python's SDK sends the fields before the file, Node's in the order the program wrote them. So the scan is
    over (``done``) at the first file part after ``model`` is known; until then it goes on through files.
    """

    def __init__(self, content_type: bytes) -> None:
        """Raises :class:`BadRequest` for a content type without a usable boundary."""
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        try:
            if not boundary:
                raise _broken("its Content-Type names no boundary")
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
            raise _broken(str(error)) from None
        self.members: dict[str, str] = {}
        self.done = False
        self._ended = False
        self._parts = 0
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._name: str | None = None
        self._value = bytearray()

    def feed(self, chunk: bytes) -> bool:
        """Take the next piece of the body; True once nothing more is needed. Raises :class:`BadRequest`."""
        if self.done or not chunk:
            return self.done
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _broken(str(error)) from None
        return self.done

    def finish(self) -> None:
        """The body has ended. Raises :class:`BadRequest` if its last boundary never came."""
        if not self.done and not self._ended:
            raise _broken("it ends before its last boundary")

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS:
            raise _broken(f"it has more than {PARTS} parts")
        self._disposition = b""
        self._value.clear()
        self._header_end()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _header_end(self) -> None:
        name, value = self._header
        if name.strip().lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _headers_finished(self) -> None:
        options = parse_options_header(self._disposition)[1]
        name = options.get(b"name", b"").decode(errors="replace")
        is_file = b"filename" in options or b"filename*" in options
        self._name = name if name in FORM_MEMBERS and not is_file else None
        if is_file and "model" in self.members:
            self.done = True

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            return
        self._value.extend(data[start:end])
        if len(self._value) > FIELD_BYTES:
            raise BadRequest(
                f"The form field '{self._name}' is longer than {FIELD_BYTES} bytes.", param=self._name
            )

    def _part_end(self) -> None:
        if self._name is None:
            return
        if self._name == "model" and "model" in self.members:
            raise _broken("it names its model more than once")
        try:
            self.members[self._name] = self._value.decode()
        except UnicodeDecodeError:
            raise BadRequest(f"The form field '{self._name}' is not UTF-8.", param=self._name) from None

    def _end(self) -> None:
        self._ended = True


def _broken(why: str) -> BadRequest:
    return BadRequest(f"The multipart body is broken: {why}.", code="invalid_multipart")
