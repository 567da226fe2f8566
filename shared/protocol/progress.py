"""How far an engine has come with a request, as PROGRESS says it (PROTOCOL §4.12)."""

import binascii
from base64 import b64decode, b64encode
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from shared.process.frozen import frozen
from shared.protocol import limits
from shared.protocol.members import Payload, Share, adapter_of, one_line


def _line(text: str) -> str:
    """One line of a log or an event, cut at the limit."""
    return one_line(text[: limits.PROGRESS_TEXT_CHARS])


def _decoded(value: Any) -> Any:
    """The bytes that base64 stands for; what is no text is left for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64") from None


@frozen
class Preview:
    """A small picture, or the like, of what there is so far."""

    type: Annotated[str, Field(pattern=r"^[a-z0-9.+-]+/[a-z0-9.+-]+$", max_length=limits.MEDIA_TYPE_CHARS)]
    """Its media type: ``image/jpeg``."""
    data: Annotated[bytes, BeforeValidator(_decoded), Field(max_length=limits.PREVIEW_BYTES)]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {"type": self.type, "data": b64encode(self.data).decode("ascii")}


@frozen
class Progress(Payload):
    """PROGRESS: how far a request has come, whole each time. Whoever makes one keeps to the limits of
    :mod:`shared.protocol.limits`; :func:`progress` makes one of whatever an engine says."""

    fraction: Share | None = None
    """0 to 1; None: not known."""
    text: Annotated[str, Field(max_length=4096), AfterValidator(_line)] = ""
    """A line for people: ``step 12 of 30``."""
    preview: Preview | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, without members at their defaults."""
        said: dict[str, Any] = {}
        if self.fraction is not None:
            said["fraction"] = self.fraction
        if self.text:
            said["text"] = self.text
        if self.preview is not None:
            said["preview"] = self.preview.to_dict()
        return said

    def to_payload(self) -> bytes:
        return orjson.dumps(self.to_dict())


def progress(fraction: float | None = None, text: str = "", preview: Preview | None = None) -> Progress:
    """What an engine says, within the limits: a fraction beyond 0 and 1 is brought there, one that is no
    number is left out, a text is cut, and a preview that is too long is left out."""
    if fraction is not None:
        fraction = min(max(float(fraction), 0.0), 1.0) if fraction == fraction else None
    if preview is not None and len(preview.data) > limits.PREVIEW_BYTES:
        preview = None
    return Progress(fraction, _line(text), preview)


def newest(before: Progress | None, progress: Progress) -> Progress:
    """What is to be said of ``progress`` where ``before`` was not said yet: a preview stays the newest until
    there is a newer one."""
    if before is None or progress.preview is not None or before.preview is None:
        return progress
    return Progress(progress.fraction, progress.text, before.preview)


adapter_of(Progress)  # made now, so that the first frame does not wait for it
