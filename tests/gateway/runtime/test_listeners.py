"""Listening sockets of one process and of several."""

import select
import socket

import pytest

from gateway.runtime.listeners import ListenFailed, inherited, listen, listen_for_each

HERE = "127.0.0.1"


def test_workers_share_an_address_that_was_free() -> None:
    listeners = listen_for_each(HERE, 0, 3)
    port = listeners[0].getsockname()[1]
    assert {each.getsockname() for each in listeners} == {(HERE, port)}
    for _ in range(200):
        with socket.create_connection((HERE, port)):
            pass
    ready = select.select(listeners, [], [], 0)[0]
    assert ready == listeners, "the kernel spreads connections over all"
    for each in listeners:
        each.close()


@pytest.mark.parametrize("reuse_port", [False, True])
def test_an_address_that_is_taken_is_refused_even_if_it_could_be_shared(reuse_port: bool) -> None:
    other = listen(HERE, 0, reuse_port=reuse_port)
    with other, pytest.raises(ListenFailed, match="something listens there already"):
        listen_for_each(HERE, other.getsockname()[1], 2)


def test_a_worker_closes_its_own_and_not_the_supervisors() -> None:
    with listen(HERE, 0) as listener:
        inherited(listener.fileno()).close()
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()


def test_a_host_that_is_none_is_named() -> None:
    with pytest.raises(ListenFailed, match=r"cannot listen on 203\.0\.113\.7:1"):
        listen("203.0.113.7", 1)
