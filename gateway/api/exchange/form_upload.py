"""A multipart/form-data body with one file (RFC 7578), which is passed on while it comes."""

from collections import deque
from collections.abc import AsyncIterator, Mapping

from python_multipart.multipart import parse_options_header

from gateway.api.exchange.multipart import FormParts, broken
from gateway.domain.errors import BadRequest

FIELD_BYTES = 4096
"""Longest value of a field."""
PARTS = 32


class FormUpload(FormParts):
    """Reads ``pieces`` no faster than the file is taken, whatever order the parts have."""

    def __init__(self, content_type: bytes, pieces: AsyncIterator[bytes], file_field: str = "file") -> None:
        """Raises BadRequest for a content type that is none of a form."""
        if parse_options_header(content_type)[0] != b"multipart/form-data":
            raise BadRequest("Send this as multipart/form-data, with a boundary.", param="content-type")
        super().__init__(content_type, PARTS, FIELD_BYTES)
        self.fields: dict[str, str] = {}
        """Those whose parts have come."""
        self.filename: str | None = None
        """None until its part has begun."""
        self.file_type: str | None = None
        self._pieces = pieces
        self._file_field = file_field
        self._chunks: deque[bytes] = deque()

    async def file(self) -> AsyncIterator[bytes]:
        """The file's bytes, in pieces; afterwards the whole form was read. Raises BadRequest where the form
        is broken or has no file, and whatever the pieces raise."""
        async for piece in self._pieces:
            self.write(piece)
            while self._chunks:
                yield self._chunks.popleft()
        if not self.ended:
            raise broken("it ends before its last boundary")
        if self.filename is None:
            raise BadRequest(f"The form has no file in a field '{self._file_field}'.", param=self._file_field)

    def part_begins(self, name: str, filename: bytes | None, headers: Mapping[bytes, bytes]) -> bool:
        if name != self._file_field:
            return True
        if self.filename is not None:
            raise broken(f"it has more than one file in the field '{name}'")
        self.filename = (filename or b"").decode(errors="replace")
        self.file_type = headers.get(b"content-type", b"").decode("latin-1") or None
        return False

    def other_data(self, data: bytes) -> None:
        self._chunks.append(data)

    def field_ends(self, name: str, value: str) -> None:
        if name in self.fields:
            raise broken(f"it has the field '{name}' more than once")
        self.fields[name] = value
