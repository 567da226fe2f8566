"""The short way of whole binary messages through a WebSocket; everything else goes through ``websockets``.

Nearly every message of a tunnel is one binary frame (PROTOCOL §2.2). These are cut and framed here, by
:mod:`shared.speedups`. What comes as anything else, malformed frames included, is handed to the library's
core, which remains the one place that knows the protocol (RFC 6455).
"""

import os
from collections.abc import Sequence
from types import GeneratorType
from typing import Any

from websockets.client import ClientProtocol
from websockets.protocol import Event as WebSocketEvent
from websockets.protocol import Protocol as WebSocket
from websockets.protocol import State
from websockets.streams import StreamReader

from shared.protocol import limits
from shared.speedups import cut_messages, frame_messages

_BINARY_AND_WHOLE = 0x82
_MASKED = 0x80
_MASK_BYTES = 4


class MessageFramer:
    """Both directions of one WebSocket, between its library's core and the bytes of its connection."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._client = isinstance(websocket, ClientProtocol)
        self._short = False
        """What comes is cut here: the core waits for the beginning of a frame."""
        self._pieces: list[bytes] = []
        """The beginning of a binary message that is not all there, and of which the core knows nothing."""
        self._missing_bytes = 0
        """Before it is looked at again, so many bytes more have to come."""

    def receive(self, data: bytes) -> Sequence[bytes | WebSocketEvent]:
        """What ``data`` completes, in order: messages as bytes, and the core's events for everything else."""
        if not self._short:
            return self._receive_otherwise(data)
        if self._pieces:
            self._pieces.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        found: list[bytes | WebSocketEvent] = []
        messages, start = cut_messages(data, 0, not self._client, self._most_bytes)
        found += messages
        if start < len(data):
            self._missing_bytes = self._missing(data, start)
            if self._missing_bytes:
                self._pieces.append(data[start:])
            else:
                found += self._receive_otherwise(data[start:])
        return found

    def frame(self, messages: list[bytes]) -> bytes:
        """The messages as they leave; a client masks each with bytes that nobody can foresee."""
        return frame_messages(messages, os.urandom(_MASK_BYTES * len(messages)) if self._client else b"")

    @property
    def _most_bytes(self) -> int:
        """The longest message the core lets through, and so do we."""
        most_bytes = self._websocket.max_message_size
        return limits.MESSAGE_BYTES if most_bytes is None else most_bytes

    def _receive_otherwise(self, data: bytes) -> list[WebSocketEvent]:
        """By way of the core, until it is between two frames and two messages again."""
        websocket = self._websocket
        websocket.receive_data(data)
        self._short = (
            websocket.state is State.OPEN
            and not websocket.expect_continuation_frame
            and _between_frames(websocket)
        )
        return websocket.events_received()

    def _missing(self, data: bytes, start: int) -> int:
        """How many bytes, at least, are missing of the binary message that begins there; 0: it is none."""
        if data[start] != _BINARY_AND_WHOLE:
            return 0
        left = len(data) - start
        if left < 2:
            return 1
        length = data[start + 1]
        if bool(length & _MASKED) is self._client:
            return 0
        length &= ~_MASKED
        more = {126: 2, 127: 8}.get(length, 0)
        if left < 2 + more:
            return 2 + more - left
        if more:
            length = int.from_bytes(data[start + 2 : start + 2 + more], "big")
        if length > self._most_bytes:
            return 0
        return 2 + more + (0 if self._client else _MASK_BYTES) + length - left


def _between_frames(websocket: WebSocket) -> bool:
    """Whether the core waits for the first byte of a frame.

    It does so in :meth:`StreamReader.at_eof` and nowhere else. Should a later version of the library do it
    otherwise, everything goes through the core.
    """
    generator: Any = websocket.parser
    while isinstance(generator, GeneratorType) and generator.gi_yieldfrom is not None:
        generator = generator.gi_yieldfrom
    return isinstance(generator, GeneratorType) and generator.gi_code is StreamReader.at_eof.__code__
