"""Bodies of requests for videos: what they ask for, and the same with another prompt. Pure.

They are JSON, or forms (multipart/form-data), as OpenAI's SDKs send them.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from python_multipart.multipart import parse_options_header

from gateway.api.exchange.multipart import FormParts
from gateway.domain.errors import BadRequest
from shared.process.frozen import frozen

PARTS = 128
PROMPT_BYTES = 128 * 1024
"""Longest prompt, in a form; other fields that are looked at are shorter."""
_LOOKED_AT = frozenset(("prompt", "seconds", "size"))


@frozen
class AskedVideo:
    """What a request says of its video."""

    prompt: str | None = None
    seconds: str | None = None
    size: str | None = None


def is_form(content_type: str) -> bool:
    return content_type.strip().lower().startswith("multipart/form-data")


def asked_video(content_type: str, data: bytes) -> AskedVideo:
    """What the first bytes of a body say. A form is read as far as they go; of JSON that is cut off nothing
    is known."""
    members: Mapping[str, Any] = {}
    if is_form(content_type):
        fields = _Fields(content_type.encode("latin-1"))
        try:
            fields.write(data)
        except BadRequest:  # what came before what is wrong was read
            pass
        members = fields.found
    else:
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = None
        members = value if isinstance(value, dict) else {}
    return AskedVideo(*(_text(members.get(name)) for name in ("prompt", "seconds", "size")))


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


class _Fields(FormParts):
    """Finds the fields that say what video is meant."""

    def __init__(self, content_type: bytes) -> None:
        super().__init__(content_type, PARTS, PROMPT_BYTES)
        self.found: dict[str, str] = {}

    def part_begins(self, name: str, filename: bytes | None, headers: Mapping[bytes, bytes]) -> bool:
        return filename is None and name in _LOOKED_AT

    def field_ends(self, name: str, value: str) -> None:
        self.found.setdefault(name, value)


def json_with_prompt(data: bytes, prompt: str) -> bytes:
    """The JSON object ``data`` with another prompt. Raises BadRequest where it is no object."""
    value = orjson.loads(data)
    if not isinstance(value, dict):
        raise BadRequest("The source video's request is no JSON object.")
    return orjson.dumps(value | {"prompt": prompt})


async def form_with_prompt(
    content_type: str, pieces: AsyncIterator[bytes], prompt: str
) -> AsyncIterator[bytes]:
    """The form with another prompt, under the same boundary, in pieces. Raises BadRequest."""
    form = _Rewritten(content_type.encode("latin-1"), prompt)
    async for piece in pieces:
        form.write(piece)
        yield form.take()
    yield form.finish()


class _Rewritten(FormParts):
    """Writes every part again but the prompt's, which stands first and is another."""

    def __init__(self, content_type: bytes, prompt: str) -> None:
        super().__init__(content_type, PARTS, PROMPT_BYTES)
        self._delimiter = b"--" + parse_options_header(content_type)[1][b"boundary"]
        self._written: list[bytes] = []
        self._part(b'content-disposition: form-data; name="prompt"\r\n')
        self._written.append(prompt.encode())

    def take(self) -> bytes:
        """What was written since the last call."""
        written, self._written = self._written, []
        return b"".join(written)

    def finish(self) -> bytes:
        """The end. Raises BadRequest for a form that was cut off."""
        if not self.ended:
            raise BadRequest("The source video's form is broken.", code="invalid_multipart")
        self._written.append(b"\r\n" + self._delimiter + b"--\r\n")
        return self.take()

    def part_begins(self, name: str, filename: bytes | None, headers: Mapping[bytes, bytes]) -> bool:
        if filename is None and name == "prompt":
            return True
        self._written.append(b"\r\n")
        self._part(b"".join(b"%b: %b\r\n" % field for field in headers.items()))
        return False

    def other_data(self, data: bytes) -> None:
        self._written.append(data)

    def field_ends(self, name: str, value: str) -> None:
        """The old prompt is left out."""

    def _part(self, head: bytes) -> None:
        self._written.append(self._delimiter + b"\r\n" + head + b"\r\n")
