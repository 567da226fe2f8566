"""What the server process and the model's processes tell each other.

A message is one of the classes here, pickled, after its length in 4 bytes. Only processes that one agent
started for one model read them, so that a pickle is nothing that somebody else wrote.
"""

import pickle
import struct
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from agent.serve.parcels import Parcel

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


class ModelFacts(NamedTuple):
    """The attributes of a :class:`~agent.serve.model.Model`, checked."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    max_batch: int
    max_wait_s: float
    max_queue: int
    timeout_s: float
    load_timeout_s: float
    max_body_bytes: int
    slots: int | None
    workers: int | None
    capabilities: tuple[str, ...] = ()


class ModelFault(NamedTuple):
    """Why there is no result. ``kind``: refused (by the model's own word), memory, raised or count."""

    kind: str
    words: str
    status: int = 500
    type: str = ""
    code: str = ""
    param: str | None = None


# --- to a model's process


class DecodeOrder(NamedTuple):
    job: int
    path: str
    query: str
    method: str
    headers: dict[str, str]
    model: str
    body: Parcel


class EncodeOrder(NamedTuple):
    job: int
    output: Parcel
    streamed: bool


class PredictOrder(NamedTuple):
    batch: int
    items: tuple[tuple[int, Parcel], ...]


class DropOrder(NamedTuple):
    """Nobody waits for this item any more."""

    item: int


# --- from a model's process


class ProcessFacts(NamedTuple):
    """The class was found. Said first."""

    facts: ModelFacts


class ProcessReady(NamedTuple):
    """It can do its work. Said after loading, with what loading may have set."""

    facts: ModelFacts


class ProcessUnusable(NamedTuple):
    """It ends; ``unrecoverable``: started again it would end the same way."""

    words: str
    unrecoverable: bool


class JobResult(NamedTuple):
    """Of a DecodeOrder the item, of an EncodeOrder the bytes to send."""

    job: int
    result: Parcel | ModelFault
    length: float | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Outputs(NamedTuple):
    """Outputs of a batch: all of them, or of a stream the next, and which items' streams are complete."""

    batch: int
    outputs: tuple[tuple[int, Parcel | ModelFault], ...]
    streamed: bool = False
    complete: tuple[int, ...] = ()


class BatchDone(NamedTuple):
    """A batch is over; ``fault`` concerns all of its items that have no result."""

    batch: int
    fault: ModelFault | None = None


class ProgressReport(NamedTuple):
    items: tuple[int, ...]
    fraction: float | None
    words: str
    preview: bytes | None
    media_type: str = ""
    """The preview's."""


def frame(message: NamedTuple) -> bytes:
    data = pickle.dumps(message, 5)
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """How many bytes follow, from the first :data:`LENGTH_BYTES`."""
    return int(_LENGTH.unpack(head)[0])


def parse(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301  written by a process of the same model


def read_messages(source: IO[bytes], take: Callable[[Any], None]) -> None:
    """Gives each message to ``take`` until ``source`` ends. Blocks."""
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        data = source.read(length := length_of(head))
        if len(data) < length:
            return
        take(parse(data))
