"""Messages of any length on a WebSocket, which nobody has to hold: zeros, in frames of any length."""

from collections.abc import Awaitable, Callable

from websockets.asyncio.connection import Connection
from websockets.frames import Opcode
from websockets.protocol import State

PIECE_BYTES = 256 * 1024
_FINAL, _MASKED, _LENGTH_FOLLOWS = 0x80, 0x80, 127


async def send_zeros(
    socket: Connection,
    size_bytes: int,
    frame_bytes: int,
    *,
    masked: bool = False,
    meanwhile: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """One binary message in frames of at most ``frame_bytes``, at the pace of the other side.

    ``masked`` is as a client has to, with a key of zeros. ``meanwhile`` is awaited after each piece, with
    how much was written so far. Raises websockets' ConnectionClosed.
    """
    zeros, sent_bytes, opcode = bytes(PIECE_BYTES), 0, Opcode.BINARY
    while sent_bytes < size_bytes:
        frame_end = min(sent_bytes + frame_bytes, size_bytes)
        first = opcode | (_FINAL if frame_end == size_bytes else 0)
        second = _LENGTH_FOLLOWS | (_MASKED if masked else 0)
        head = bytes((first, second)) + (frame_end - sent_bytes).to_bytes(8, "big")
        socket.transport.write(head + (bytes(4) if masked else b""))
        while sent_bytes < frame_end:
            if socket.state is not State.OPEN:
                await socket.wait_closed()
                raise socket.protocol.close_exc
            size = min(PIECE_BYTES, frame_end - sent_bytes)
            socket.transport.write(zeros[:size])
            sent_bytes += size
            await socket.drain()
            if meanwhile is not None:
                await meanwhile(sent_bytes)
        opcode = Opcode.CONT
