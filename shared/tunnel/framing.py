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
_MASKS_BYTES = 1024
"""Random bytes are taken from the system for so many masks at once: it takes as long for one."""


class MessageFramer:
    """Both directions of one WebSocket, between its library's core and the bytes of its connection."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._client = isinstance(websocket, ClientProtocol)
        self.core_used = True
        """The core has read something, and may have something to say; the tunnel sets it to False."""
        self._short = False
        """What comes is cut here: the core waits for the beginning of a frame."""
        self._pieces: list[bytes] = []
        """The beginning of a binary message that is not all there, and of which the core knows nothing."""
        self._masks = b""
        """Random bytes for masks."""
        self._masks_used = 0
        """So many of them are used."""
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
        most_bytes = self._websocket.max_message_size or limits.MESSAGE_BYTES
        messages, start = cut_messages(data, 0, not self._client, most_bytes)
        if start == len(data):
            return messages
        self._missing_bytes = self._missing(data, start, most_bytes)
        if not self._missing_bytes:
            return [*messages, *self._receive_otherwise(data[start:])]
        self._pieces.append(data[start:])
        return messages

    def frame(self, messages: list[bytes]) -> bytes:
        """The messages as they leave; a client masks each with bytes that nobody can foresee."""
        if not self._client:
            return frame_messages(messages, b"")
        begin = self._masks_used
        end = begin + _MASK_BYTES * len(messages)
        if end > len(self._masks):
            begin, end = 0, end - begin
            self._masks = os.urandom(max(_MASKS_BYTES, end))
        self._masks_used = end
        return frame_messages(messages, self._masks[begin:end])

    def _receive_otherwise(self, data: bytes) -> list[WebSocketEvent]:
        """Parse ``data`` with the WebSocket core until it is between two frames and two messages again."""
        self.core_used = True
        websocket = self._websocket
        websocket.receive_data(data)
        self._short = (
            websocket.state is State.OPEN
            and not websocket.expect_continuation_frame
            and _between_frames(websocket)
        )
        return websocket.events_received()

    def _missing(self, data: bytes, start: int, most_bytes: int) -> int:
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
        if length > most_bytes:
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
