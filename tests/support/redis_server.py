"""A Valkey or Redis server for tests: the one on the standard port, else one that is started, else none."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.process.ports import free_port

STANDARD_PORT = 6379
START_S = 20.0


def answers(port: int) -> bool:
    """Whether a server without a password is there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64) == b"+PONG\r\n"
    return False


class OwnRedisServer:
    """A server that only one test uses, which may stop it, end it and start it again on its port."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program, self._directory = program, directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start with nothing stored; return once it answers."""
        words = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(
            [*words, "--appendonly", "no", "--dir", str(self._directory)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + START_S
        while not answers(self.port):
            assert self._process.poll() is None, "the server ended at its start"
            assert time.monotonic() < deadline_s, "the server does not answer"
            time.sleep(0.02)

    def pause(self) -> None:
        """It hears nothing and answers nothing, and its connections stay."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """After :meth:`pause`."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """End it with all that it has."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextlib.contextmanager
def own_redis_server(directory: Path) -> Iterator[OwnRedisServer]:
    """Started on a free port. Skips the test where no server is installed."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    server = OwnRedisServer(program, directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[tuple[str, str]]:
    """URL and a prefix for keys that no other test has."""
    prefix = f"trunkline-test-{uuid.uuid4().hex}:"
    if answers(STANDARD_PORT):
        yield f"redis://127.0.0.1:{STANDARD_PORT}", prefix
        return
    with own_redis_server(directory) as server:
        yield server.url, prefix
