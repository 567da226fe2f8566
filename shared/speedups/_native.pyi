"""Types of the native twins; see the modules of their names."""

from collections.abc import Callable
from typing import Any

def cut_messages(data: bytes, start: int, masked: bool, most_bytes: int) -> tuple[list[bytes], int]: ...
def frame_messages(messages: list[bytes], masks: bytes) -> bytes: ...

class BodyPath:
    write: Callable[[bytes], object]
    flow: Any
    waiting: list[bytes]
    fresh: list[bytes]
    last: bytes
    open: bool
    on_unsaid: Callable[[], None] | None
    sent_bytes: int
    pieces: int
    taken_bytes: int
    unsaid_bytes: int
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
    step_bytes: int,
) -> tuple[int, list[BodyPath]]: ...
