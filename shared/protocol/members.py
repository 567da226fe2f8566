"""The members of JSON payloads that a peer sends, as types that pydantic validates (PROTOCOL §4).

A payload is a dataclass whose fields have these types. Members that it does not have are ignored, so that a
newer peer may add some. Payloads that come with each request are Structs (:mod:`shared.protocol.structs`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, ClassVar, Self, TypeVar

import orjson
from pydantic import AfterValidator, AllowInfNan, Field, PlainValidator, Strict, TypeAdapter, ValidationError

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed, TrunklineError

T = TypeVar("T")

MOST_COUNT, MOST_NUMBER, MOST_SECONDS, MOST_TEXT = 2**53, 1e15, 1e9, 4096
"""Bounds, of Structs as well (:mod:`shared.protocol.structs`)."""

Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, le=MOST_COUNT)]
Level = Annotated[int, Strict(), Field(ge=0, le=1_000_000)]
"""How many requests run, wait or may run somewhere."""
Amount = Annotated[int, Strict(), Field(gt=0, le=MOST_COUNT)]
Number = Annotated[float, Strict(), AllowInfNan(False), Field(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Seconds = Annotated[float, Strict(), AllowInfNan(False), Field(ge=0.0, le=MOST_SECONDS)]
Share = Annotated[float, Strict(), AllowInfNan(False), Field(ge=0.0, le=1.0)]

Text = Annotated[str, Field(max_length=MOST_TEXT)]
Name = Annotated[str, Field(max_length=limits.MODEL_NAME_CHARS)]
Identifier = Annotated[str, Field(max_length=limits.MODEL_NAME_CHARS, pattern=r"^[^\x00-\x20\x7f]+$")]
"""A name that is not empty and holds no blanks or control characters."""
Reason = Annotated[Text, AfterValidator(lambda text: text[: limits.REASON_CHARS])]
"""A text for people; one that is too long is cut."""


def one_line(text: str) -> str:
    """``text`` with a blank in the place of each character that cannot be printed."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


Headers = tuple[tuple[str, str], ...]
"""Lower-case names, hop-by-hop headers removed, order kept."""


def _usable_labels(labels: Any) -> dict[str, str]:
    """Leaves out what cannot be a label, and what there is no room for."""
    if not isinstance(labels, dict):
        raise ValueError("must be an object")  # noqa: TRY004 (what pydantic takes)
    usable = (
        (name, text)
        for name, text in labels.items()
        if isinstance(text, str)
        and max(len(name), len(text)) <= limits.LABEL_CHARS
        and (name + text).isprintable()
    )
    return dict(islice(usable, limits.LABELS))


Labels = Annotated[Mapping[str, str], PlainValidator(_usable_labels)]


GatewayPath = Annotated[
    tuple[Annotated[str, Field(pattern="^[0-9a-f]{16}$")], ...], Field(max_length=limits.HOPS + 1)
]
"""Ids of gateways; in order, the one that a client asked first or the one nearest to the engine."""


def read_object(payload: bytes) -> dict[str, Any]:
    """The JSON object in ``payload``. Raises :class:`FrameMalformed` for anything else."""
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise FrameMalformed(f"payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameMalformed("payload is not a JSON object")
    return value


_MEMBER_CHARS = 100
"""How much of a member's name stands in a complaint; the peer may have chosen it."""


def read(
    adapter: TypeAdapter[T], value: object, malformed: Callable[[str], TrunklineError] = FrameMalformed
) -> T:
    """What a JSON value says, as the adapter's type. Raises what ``malformed`` makes of a complaint."""
    try:
        return adapter.validate_python(value)
    except ValidationError as invalid:
        complaint = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
        member = ".".join(map(str, complaint["loc"]))[:_MEMBER_CHARS]
        text = complaint["msg"].removeprefix("Value error, ")
        raise malformed(f"member {member!r}: {text}" if member else text) from None


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
_VALIDATORS: dict[type, Callable[[object], Any]] = {}
"""What reads each kind that has an adapter."""


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """What reads ``kind``. Made once for each, which takes a millisecond."""
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
        _VALIDATORS[kind] = adapter.validator.validate_python
    return adapter


class Payload:
    """A dataclass that is the payload of a frame."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_payload(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """What a JSON object says. Raises :class:`FrameMalformed`."""
        return read(adapter_of(cls), value)

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """What a frame's payload says. Raises :class:`FrameMalformed`."""
        try:
            message: Self = _VALIDATORS[cls](orjson.loads(payload))
        except (orjson.JSONDecodeError, KeyError, ValidationError):
            return cls.read(read_object(payload))  # says what is wrong
        return message
