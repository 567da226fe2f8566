"""A request's body as it arrives: counted, digested, and kept only when it is JSON."""

import hashlib
from typing import Any

import orjson
from python_multipart.multipart import MultipartParser, parse_options_header


class Upload:
    """One body. ``sha256`` is of the file when it was multipart, else of the whole."""

    def __init__(self, content_type: str) -> None:
        self.size_bytes = 0
        self.fields: dict[str, str] = {}
        self._digest = hashlib.sha256()
        self._kept = bytearray()
        self._part: dict[str, str] = {}
        self._header = [b"", b""]
        self._value = bytearray()
        kind, options = parse_options_header(content_type)
        self._is_json = kind == b"application/json" or not kind
        self._parser: MultipartParser | None = None
        if kind == b"multipart/form-data" and b"boundary" in options:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                },
            )

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def body(self) -> bytes:
        """The whole body when it was JSON, else nothing."""
        return bytes(self._kept)

    def feed(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self._parser is not None:
            self._parser.write(data)
            return
        self._digest.update(data)
        if self._is_json:
            self._kept += data

    def json(self) -> dict[str, Any]:
        """The JSON object of the body; of the field ``script`` when it was multipart; else an empty one."""
        if self._parser is not None:
            return {"script": orjson.loads(self.fields["script"])} if "script" in self.fields else {}
        try:
            value = orjson.loads(self._kept)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _on_header_end(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            _, options = parse_options_header(self._header[1])
            self._part = {key.decode(): value.decode() for key, value in options.items()}
        self._header = [b"", b""]

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if "filename" in self._part:
            self._digest.update(data[start:end])
        else:
            self._value += data[start:end]

    def _on_part_end(self) -> None:
        if "filename" not in self._part and "name" in self._part:
            self.fields[self._part["name"]] = self._value.decode()
        self._part, self._value = {}, bytearray()
