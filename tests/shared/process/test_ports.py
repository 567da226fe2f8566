"""Ports for processes that are about to be started."""

import socket
import subprocess
import sys

from shared.process import ports
from shared.process.ports import free_port


def test_a_port_in_use_is_not_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) not in (0, port)
    assert free_port(port) == port


def test_no_port_is_given_twice_nor_one_of_those_that_outgoing_connections_get() -> None:
    given = [free_port() for _ in range(100)]
    assert len(set(given)) == len(given)
    assert all(ports._LOWEST <= port < ports._EPHEMERAL for port in given)


def test_what_one_process_was_given_another_is_not_until_it_ends() -> None:
    """With the same random numbers, so that both would take the same one."""
    take = "from shared.process.ports import free_port; print(free_port()); input()"
    command = [sys.executable, "-c", f"import random; random.seed(7); {take}"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second,
    ):
        assert first.stdout is not None
        assert second.stdout is not None
        given = {int(first.stdout.readline()), int(second.stdout.readline())}
        assert len(given) == 2
        first.communicate("\n")
        second.communicate("\n")
    again = subprocess.run(command, input="\n", capture_output=True, text=True, check=True)
    assert int(again.stdout) in given, "theirs are free again"


def test_where_files_have_no_locks_a_free_port_is_given_all_the_same() -> None:
    free = "from shared.process.ports import free_port; print(free_port())"
    absent = f"import sys; sys.modules['fcntl'] = None; {free}"
    found = subprocess.run([sys.executable, "-c", absent], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 0
