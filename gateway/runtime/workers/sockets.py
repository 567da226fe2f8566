"""Unix sockets between the processes of a gateway: paths that fit, and sockets that come along."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_path(directory: Path, name: str) -> Iterator[str]:
    """A path of the file ``name`` that is short enough for a socket, however long that of ``directory`` is.
    Raises OSError."""
    path = directory / name
    if not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def receive(channel: socket.socket, most_bytes: int, most_sockets: int) -> tuple[bytes, list[socket.socket]]:
    """What came, and the sockets that came along (SCM_RIGHTS, unix(7)), which no child inherits. There are
    fewer of them than were sent where this process has no descriptors left. Raises OSError."""
    data, descriptors, *_ = socket.recv_fds(channel, most_bytes, most_sockets)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, [socket.socket(fileno=descriptor) for descriptor in descriptors]
