"""Payloads that come with each request: decoded and validated in one step (PROTOCOL §4).

They are Structs of msgspec, which takes a seventh of what orjson and pydantic take together. A field's type
says its bounds (:class:`msgspec.Meta`). Members that a payload does not have are ignored, so that a newer
peer may add some; what an ignored member holds is not looked at.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.header_fields import FORBIDDEN_IN_VALUE
from shared.protocol.members import MOST_COUNT, MOST_NUMBER, MOST_SECONDS, MOST_TEXT, Headers, read_object

S = TypeVar("S", bound=Struct)

Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Seconds = Annotated[float, Meta(ge=0.0, le=MOST_SECONDS)]
Name = Annotated[str, Meta(max_length=limits.MODEL_NAME_CHARS)]
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
RanBy = Annotated[str, Meta(max_length=limits.RAN_BY_CHARS, pattern=r"^[^\x00-\x20\x7f]*\Z")]
"""``agent``, or ``gateway/agent`` where there are more gateways between, each by its name as an agent."""

GatewayPath = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")], ...], Meta(max_length=limits.HOPS + 1)
]
"""Ids of gateways; in order, the one that a client asked first or the one nearest to the engine."""

Where = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=limits.LABEL_CHARS)],
        Annotated[
            tuple[Annotated[str, Meta(max_length=limits.LABEL_CHARS)], ...],
            Meta(min_length=1, max_length=limits.WHERE_LABELS),
        ],
    ],
    Meta(max_length=limits.WHERE_LABELS),
]
"""Label → the values that will do."""

ReceivedHeaders = Annotated[Headers, Meta(max_length=limits.HEADERS)]
"""To be looked at by :func:`check_headers` as well."""

NOT_READ = (DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for a payload that is not as it must be."""


def decoder_of(kind: type[S]) -> Callable[[bytes], S]:
    """What decodes a payload of that kind. Raises :data:`NOT_READ`."""
    return Decoder(kind).decode


def read_again(kind: type[S], payload: bytes, change: Callable[[dict[str, object]], None] | None = None) -> S:
    """Reads what a decoder did not; ``change`` mends what another version may say otherwise.

    Raises :class:`FrameMalformed` that says what is wrong.
    """
    value = read_object(payload)
    if change is not None:
        change(value)
    try:
        return convert(value, kind)
    except ValidationError as invalid:
        raise FrameMalformed(_complaint(str(invalid))) from None


def _complaint(text: str) -> str:
    """``member 'usage.prompt_tokens': Expected `int` >= 0``: what msgspec says, as the other payloads do."""
    said, at, where = text.partition(" - at `")
    member = re.sub(r"^key` in `|[$`]", "", where).lstrip(".")
    return f"member {member!r}: {said}" if at and member else said


def check_headers(headers: Headers) -> None:
    """Raises :class:`FrameMalformed` for names and values that no header may have, and for too many bytes."""
    if not headers:
        return
    names, texts = zip(*headers, strict=True)
    text = "".join(texts)
    names_bytes = _names_bytes(names)
    # What is printable has no control characters; only what is not is searched for them.
    if names_bytes is None or not (text.isprintable() or not FORBIDDEN_IN_VALUE.search(text)):
        raise FrameMalformed(
            "member 'headers': a header must have a lower-case name and no control characters"
        )
    if names_bytes + len(text) > limits.HEADER_BYTES:
        raise FrameMalformed(f"member 'headers': headers exceed {limits.HEADER_BYTES} bytes")


@lru_cache(maxsize=64)
def _names_bytes(names: tuple[str, ...]) -> int | None:
    """How long these names of fields are together; None when one is no name. Remembered, because most heads
    have the same names in the same order."""
    for name in names:
        if name == "" or name != name.lower() or FORBIDDEN_IN_VALUE.search(name):
            return None
    return sum(map(len, names))
