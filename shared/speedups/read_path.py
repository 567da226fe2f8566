"""Reads many sockets together. The reference for its native twin."""

import os
import select
from collections.abc import Mapping
from typing import TypeVar

READ_BYTES = 256 * 1024
"""Read of a socket at once, at the most."""

MOST_EVENTS = 256
"""So many sockets are read at once, at the most."""

Member = TypeVar("Member")


def read_ready(
    poll: "select.epoll", members: Mapping[int, Member], most_events: int, most_bytes: int
) -> tuple[list[tuple[Member, bytes | None]], int, int]:
    """What has come for ``members``, by their descriptors: one read of each socket that has something. Also
    how many these are, and how many bytes.

    ``poll`` watches the descriptors for EPOLLIN and EPOLLRDHUP. Nothing is waited for. At most
    ``most_events`` sockets are read, and no further one once ``most_bytes`` have come. None in place of
    bytes: the end of the connection has come or an error, perhaps behind other bytes; nothing was read.
    Raises ValueError unless ``most_events`` is from 1 to ``MOST_EVENTS``.
    """
    if not 1 <= most_events <= MOST_EVENTS:
        raise ValueError(f"from 1 to {MOST_EVENTS} sockets are read at once")
    found: list[tuple[Member, bytes | None]] = []
    size_bytes = 0
    for descriptor, events in poll.poll(0, most_events):
        if size_bytes >= most_bytes:
            break
        member = members.get(descriptor)
        if member is None:
            continue
        data: bytes | None = None
        if events == select.EPOLLIN:
            try:
                data = os.read(descriptor, READ_BYTES) or None
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                data = None
        found.append((member, data))
        size_bytes += len(data or b"")
    return found, len(found), size_bytes
