"""Unix sockets between processes."""

import os
import socket
from pathlib import Path

from gateway.runtime.workers.sockets import receive, short_path


def test_a_long_directory_has_a_path_that_can_be_bound(tmp_path: Path) -> None:
    directory = tmp_path / ("deep" * 40)
    directory.mkdir()
    before = os.listdir("/proc/self/fd")
    with socket.socket(socket.AF_UNIX) as listener, short_path(directory, "a.sock") as path:
        listener.bind(path)
    assert (directory / "a.sock").is_socket()
    assert os.listdir("/proc/self/fd") == before


def test_sockets_come_along_with_what_is_sent_and_no_child_inherits_them() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as sent:
        socket.send_fds(ours, [b"one"], [sent.fileno(), sent.fileno()])
        data, received = receive(theirs, 100, 8)
        assert data == b"one"
        assert [each.getsockname() for each in received] == [sent.getsockname()] * 2
        assert [each.get_inheritable() for each in received] == [False, False]
        for each in received:
            each.close()
        ours.sendall(b"none")
        assert receive(theirs, 100, 8) == (b"none", [])
