"""Types of the native twins; see the modules of their names."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=tuple[int, int, bytes])

INTERFACE: int

def cut_frames(
    message: bytes, start: int, rules: bytes, frame_class: type[F], stop_type: int
) -> tuple[list[F], int]: ...
def cut_messages(data: bytes, start: int, masked: bool, most_bytes: int) -> tuple[list[bytes], int]: ...
def frame_messages(messages: list[bytes], masks: bytes) -> bytes: ...
def read_ready(
    poll: Any, members: Mapping[int, Any], most_events: int, most_bytes: int
) -> tuple[list[tuple[Any, bytes | None]], int, int]: ...

class ReceivedBytes:
    granted: int
    received: int

class BodyPath:
    write: Callable[[bytes], object]
    flow: Any
    waiting: list[bytes]
    fresh: list[bytes]
    last: bytes
    descriptor: int
    buffered_bytes: Callable[[], int] | None
    open: bool
    on_unsaid: Callable[[], None] | None
    sent_bytes: int
    pieces: int
    taken_bytes: int
    unsaid_bytes: int
    step_bytes: int
    waiting_bytes: int
    def __init__(self, write: Callable[[bytes], object], flow: Any) -> None: ...
    def take(self, data: bytes) -> bool: ...
    def flush(self) -> None: ...

def receive_bodies(
    message: bytes,
    start: int,
    streams: dict[int, Any],
    session: Any,
    events: list[Any],
    event_type: type,
    states: tuple[object, object, object],
    frame_type: int,
    most_bytes: int,
    later: list[BodyPath] | None = None,
) -> tuple[int, list[BodyPath]]: ...
def write_bodies(touched: list[BodyPath]) -> list[BodyPath]: ...

class OutPath:
    open: bool
    def __init__(
        self,
        stream: Any,
        session: Any,
        endpoint: Any,
        ready: deque[Any],
        states: tuple[object, object],
        most_bytes: int,
    ) -> None: ...
    def take(self, data: bytes) -> bool: ...

class ChunkReader:
    path: OutPath | None
    heard_s: float
    pieces: int
    def __init__(
        self, otherwise: Callable[[bytes], object], now: Callable[[], float], unread: list[bytes]
    ) -> None: ...
    def follow(self, path: OutPath, data: bytes, start: int) -> None: ...
    def close(self) -> None: ...
    def __call__(self, data: bytes) -> None: ...

class HeaderCollector:
    fields: list[tuple[bytes, bytes]]
    open: bool
    def __init__(
        self, otherwise: Callable[[bytes, bytes], object], most_fields: int, most_bytes: int
    ) -> None: ...
    def __call__(self, name: bytes, value: bytes) -> None: ...
    def close(self) -> None: ...

def take_turns(
    ready: deque[Any],
    pieces: list[Any],
    ended: list[int],
    session: Any,
    left_bytes: int,
    most_bytes: int,
    frame_type: int,
) -> int: ...
def use_huge_pages() -> bool: ...
def collapse_pages() -> int: ...
