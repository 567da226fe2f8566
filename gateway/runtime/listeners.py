"""Listening sockets: one, or one for each worker of a gateway at the same address."""

import contextlib
import errno
import os
import socket

BACKLOG = 2048

UNSENT_BYTES = 128 * 1024
"""What the kernel takes of an answer beyond that which is on its way (TCP_NOTSENT_LOWAT, tcp(7)). Left alone
it takes megabytes for each client that has stopped reading."""


class ListenFailed(Exception):
    """The address cannot be listened on, or the TLS files cannot be used."""


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket; with ``reuse_port`` others of this user may listen there as well, and the kernel
    spreads connections over all of them (SO_REUSEPORT, socket(7)). Raises ListenFailed."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=reuse_port)
    except (OSError, ValueError) as error:
        why = f"{getattr(error, 'strerror', None) or error}"
        if getattr(error, "errno", 0) == errno.EADDRINUSE:
            why = "something listens there already: stop it, or take another port"
        raise ListenFailed(f"cannot listen on {host}:{port}: {why}") from error
    with contextlib.suppress(OSError, AttributeError):  # its connections inherit it; not every system has it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listener


def inherited(descriptor: int) -> socket.socket:
    """The listening socket that a supervisor made. Closing it leaves the supervisor's open."""
    return socket.socket(fileno=os.dup(descriptor))


def listen_for_each(host: str, port: int, count: int) -> list[socket.socket]:
    """``count`` listening sockets at one address, over which the kernel spreads connections. Whoever listens
    there already, even one that would share the port, is in the way. Raises ListenFailed."""
    with listen(host, port) as alone:
        port = alone.getsockname()[1]
    listeners: list[socket.socket] = []
    try:
        for _ in range(count):
            listeners.append(listen(host, port, reuse_port=True))
    except BaseException:
        for each in listeners:
            each.close()
        raise
    return listeners
