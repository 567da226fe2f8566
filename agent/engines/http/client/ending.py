"""What the end of an engine's connection leaves of an answer."""

import asyncio

READ_BYTES = 64 * 1024


def ends_with_connection(status: int, headers: list[tuple[bytes, bytes]]) -> bool:
    """The body is as long as the connection lives (RFC 9112 §6.3)."""
    if status in (204, 304):
        return False
    fields = dict(headers)
    encoding = fields.get(b"transfer-encoding")
    if encoding is not None:
        return not encoding.lower().rstrip().endswith(b"chunked")
    return b"content-length" not in fields


def unread(transport: asyncio.Transport) -> bytes:
    """What came over a connection before it was reset and has not been read; of a long answer its beginning.

    An engine that refuses a long request answers and closes without reading the rest of it. Who is writing
    then learns of the reset first, and the transport gives up with the answer in its socket.
    """
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_extra_info("ssl_object") is not None:
        return b""
    received = bytearray()
    try:
        with socket.dup() as copy:
            copy.setblocking(False)
            while len(received) < READ_BYTES and (data := copy.recv(READ_BYTES)):
                received += data
    except OSError:  # there is no more
        pass
    return bytes(received)
