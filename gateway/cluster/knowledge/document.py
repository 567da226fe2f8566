"""What one process tells the others: a JSON document of at most ``MOST_BYTES`` in its row of the store. Pure.

::

    {"version": 1, "incarnation": …, "number": …,
     "work": {"of": [[model, tier, tenant], …], "slices": [[number, [[place in "of", work], …]], …]},
     "speeds": [{"process": …, "incarnation": …, "model": …, "device": …, …}, …],
     "suspects": [{"number": …, "key": …, "reason": …}, …]}

Members that are not known are ignored, so that later versions may add some. A part that cannot be read says
nothing, and the other parts count. ``number`` grows with each document of an incarnation, and both stand in
the first :data:`gateway.storage.processes.HEAD_CHARS` characters, which therefore tell a document from all
others of its process.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from gateway.domain.request import Tier
from gateway.scheduling.queue.foreign import WorkKey

VERSION = 1

MOST_BYTES = 64 * 1024
"""Of a document. What is largest comes first, and what has no room is left out."""

_SUSPECTS_BYTES = 8 * 1024
_WORK_BYTES = 24 * 1024
_FRAME_BYTES = 1024
"""What the suspects and the work may take at most, and what is kept for all that is around the parts. The
speeds have the rest."""

_AMOUNT_BYTES = 32
"""Of the work of one key in one slice, at most."""

MOST_KEYS, MOST_SLICES, MOST_SPEEDS, MOST_SUSPECTS = 1024, 16, 512, 256

Slice = tuple[int, dict[WorkKey, float]]
"""Its number, and the work that was given to each."""

_Name = Annotated[str, Field(max_length=1000)]
_Count = Annotated[int, Field(ge=0, le=2**62)]
_Amount = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
_Sum = Annotated[float, Field(allow_inf_nan=False, ge=-1e15, le=1e15)]

T = TypeVar("T")


class UnreadableKnowledge(ValueError):
    """A document that another version or a broken process has written."""


@dataclass(frozen=True, slots=True)
class ToldEvidence:
    """:class:`gateway.scheduling.learning.evidence.Evidence` as it is told."""

    count: Annotated[int, Field(ge=1, le=2**53)]
    common: Annotated[float, Field(allow_inf_nan=False, gt=0, le=1e6)]
    products: Annotated[list[_Sum], Field(min_length=10, max_length=10)]
    rest: Annotated[list[_Sum], Field(min_length=4, max_length=4)]


@dataclass(frozen=True, slots=True)
class ToldSpeeds:
    """What the outcomes that one process has seen say of a model on a class of device."""

    process: _Name
    incarnation: _Count
    model: _Name
    device: _Name
    reading: ToldEvidence | None = None
    writing: ToldEvidence | None = None
    weight: Annotated[float, Field(allow_inf_nan=False, gt=0, le=1)] = 1.0
    """What it still counts, where its process is no more and another one tells it."""


@dataclass(frozen=True, slots=True)
class ToldSuspect:
    """:class:`gateway.scheduling.health.SuspectHint` as it is told."""

    number: Annotated[int, Field(ge=1, le=2**62)]
    key: _Name
    reason: Annotated[str, Field(max_length=100)] = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What one process tells."""

    incarnation: int
    number: int
    work: Sequence[Slice] = ()
    speeds: Sequence[ToldSpeeds] = ()
    suspects: Sequence[ToldSuspect] = ()
    unread: Sequence[str] = field(default=(), compare=False)
    """Why parts of it could not be read."""


@dataclass(frozen=True, slots=True)
class _Frame:
    version: _Count
    incarnation: _Count
    number: _Count
    work: Any = None
    speeds: Any = None
    suspects: Any = None


@dataclass(frozen=True, slots=True)
class _Work:
    of: Annotated[list[tuple[_Name, Tier, _Name]], Field(max_length=MOST_KEYS)]
    slices: Annotated[
        list[tuple[_Count, Annotated[list[tuple[_Count, _Amount]], Field(max_length=MOST_KEYS)]]],
        Field(max_length=MOST_SLICES),
    ]


_FRAME = TypeAdapter(_Frame)
_WORK = TypeAdapter(_Work)
_SPEEDS = TypeAdapter(Annotated[list[ToldSpeeds], Field(max_length=MOST_SPEEDS)])
_SUSPECTS = TypeAdapter(Annotated[list[ToldSuspect], Field(max_length=MOST_SUSPECTS)])


def head(incarnation: int, number: int) -> str:
    """What a document begins with."""
    return f'{{"version":{VERSION},"incarnation":{incarnation},"number":{number},'


def encode(told: Told) -> str:
    """The document, at most ``MOST_BYTES`` long in UTF-8."""
    suspects = _fitting(told.suspects[:MOST_SUSPECTS], _SUSPECTS_BYTES)
    work = _work(told.work)
    room = MOST_BYTES - _FRAME_BYTES - len(suspects) - len(work)
    speeds = _fitting(told.speeds[:MOST_SPEEDS], room)
    parts = b'"work":%b,"speeds":%b,"suspects":%b}' % (work, speeds, suspects)
    return head(told.incarnation, told.number) + parts.decode()


def read(text: str) -> Told:
    """Raises UnreadableKnowledge for what is no document of this version."""
    if len(text) > MOST_BYTES:
        raise UnreadableKnowledge(f"it is longer than {MOST_BYTES} characters")
    try:
        frame = _FRAME.validate_python(orjson.loads(text))
    except ValidationError as error:
        raise UnreadableKnowledge(_first(error)) from error
    except ValueError as error:
        raise UnreadableKnowledge(str(error)) from error
    if frame.version != VERSION:
        raise UnreadableKnowledge(f"it is of version {frame.version}")
    unread: list[str] = []
    work = _slices(frame.work, unread)
    speeds, suspects = _part(_SPEEDS, frame.speeds, unread), _part(_SUSPECTS, frame.suspects, unread)
    return Told(frame.incarnation, frame.number, work, speeds or (), suspects or (), unread)


def _part(adapter: TypeAdapter[T], part: object, unread: list[str]) -> T | None:
    """None: there is none, or it cannot be read."""
    if part is None:
        return None
    try:
        return adapter.validate_python(part)
    except ValidationError as error:
        unread.append(_first(error))
        return None


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"[:200]


def _slices(part: object, unread: list[str]) -> list[Slice]:
    found = _part(_WORK, part, unread)
    if found is None:
        return []
    slices: list[Slice] = []
    for number, amounts in found.slices:
        given: dict[WorkKey, float] = {}
        for place, amount in amounts:
            if place >= len(found.of):
                unread.append(f"work: there is no place {place}")
                return []
            key = found.of[place]
            given[key] = given.get(key, 0.0) + amount
        slices.append((number, given))
    return slices


def _fitting(parts: Iterable[object], room: int) -> bytes:
    """As many of the first as there is room for, as a list."""
    written: list[bytes] = []
    room -= 2
    for part in parts:
        one = _json(part)
        room -= 0 if one is None else len(one) + 1
        if room < 0:
            break
        if one is not None:
            written.append(one)
    return b"[%b]" % b",".join(written)


def _work(slices: Sequence[Slice]) -> bytes:
    """Of those with the most work as many as there is room for."""
    slices = slices[-MOST_SLICES:]
    sums: dict[WorkKey, float] = {}
    times: dict[WorkKey, int] = {}
    for _, given in slices:
        for key, amount in given.items():
            sums[key] = sums.get(key, 0.0) + abs(amount)
            times[key] = times.get(key, 0) + 1
    room, places, keys = _WORK_BYTES - _AMOUNT_BYTES * (2 + len(slices)), dict[WorkKey, int](), list[bytes]()
    for key in sorted(sums, key=lambda each: (-sums[each], each))[:MOST_KEYS]:
        written = _json(key)
        room -= 0 if written is None else len(written) + 1 + _AMOUNT_BYTES * times[key]
        if room < 0:
            break
        if written is not None:
            places[key] = len(keys)
            keys.append(written)
    told = [
        (number, [(places[key], round(amount, 1)) for key, amount in given.items() if key in places])
        for number, given in slices
    ]
    return b'{"of":[%b],"slices":%b}' % (b",".join(keys), orjson.dumps(told))


def _json(part: object) -> bytes | None:
    """None for what JSON cannot say, as half of a pair of surrogates."""
    try:
        return orjson.dumps(part)
    except orjson.JSONEncodeError:
        return None
