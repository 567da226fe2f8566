"""``python -m tests.support.fork_server SOCKET MODULE``: forks processes that run ``python -m MODULE``.

A gateway spends most of its start on imports. The fork server has done these once, and what a supervisor
does before it forks workers, and has made what is made at its first use and kept
(``tests.support.first_uses``). It has one thread and no open file, event loop or database, so what it forks
is as new as a process that was just started. A fork is a session of its own, has no file but the three
standard ones, and ends with SIGTERM when the fork server ends, which ends with its client.
``tests.support.forks`` is the client.

SOCKET is the descriptor of a socket with packets of JSON in both directions, one answer to each.
``{"run": {...}}`` with the three standard files begins a process: the answer is ``{"pid": NUMBER}``.
``{"reap": PID}`` is answered ``{"status": STATUS}``, as ``os.waitpid`` says it, or null if it runs still.

With a further argument ``ALIVE`` it is one for several clients: SOCKET listens, and each connection is served
by a fork of its own, which is to its client as a fork server. ALIVE is the descriptor of a pipe; no more
connections are taken once nobody can write to it.
"""

import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from gateway.runtime.workers.forked import end_fork
from shared.process.startup import without_collection, without_optional

PACKET_BYTES = 200_000
"""The most that one packet has: arguments and environment of a process."""

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

_NAMES = "encodings.idna"
"""The codec by which names of hosts are looked up."""
_GATEWAY = (
    *("gateway.cli.gateway", "gateway.cli.worker:prepare", "gateway.observability.logging"),
    *("gateway.storage.postgres", _NAMES),
)
_AGENT = (
    *("agent.cli", "agent.app", "agent.config.sources", "uvloop", "shared.process.event_loop"),
    *("shared.process.excerpt", "shared.process.logs", _NAMES),
)
_COMMANDS = tuple(f"gateway.cli.{name}" for name in ("resources", "usage", "live", "store", "audit"))
_ENGINE = ("tests.support.scripted_engine.http", "argparse", "gettext", "uvloop", _NAMES)
_STAND_IN = ("PIL.Image", "PIL.PngImagePlugin", "argparse", "gettext", "heapq", "tempfile", _NAMES)
_IMPORTS = {
    "gateway": (*_GATEWAY, "tests.support.first_uses:of_gateway"),
    "agent": (*_AGENT, "tests.support.first_uses:of_agent"),
    "shared.process.cli": (*_COMMANDS, *_GATEWAY, "tests.support.first_uses:of_commands"),
    "tests.support.fleet": _AGENT,
    "tests.support.scripted_engine": _ENGINE,
    "tests.support.stand_ins": ("tests.support.served_app", "tests.support.comfyui_nodes", *_STAND_IN),
}
"""Module → what it imports at its start or later, but not itself: that is what a fork runs. Functions among
these are called."""

MODULES = frozenset(_IMPORTS)
"""Those that can be forked."""


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    module = sys.argv[2]
    _prepare(module)
    accepted = connection if len(sys.argv) == 3 else _accept(connection, int(sys.argv[3]))
    order = None if accepted is None else _serve(accepted)
    if order is not None:
        _run(module)


def _run(module: str) -> None:
    """As ``python -m`` does."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    end_fork(code)


def _prepare(module: str) -> None:
    first, *others = _IMPORTS[module]
    import_module(first)
    with without_collection(), without_optional("rich"):
        for name in others:
            found = resolve_name(name)
            if callable(found):
                found()
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # it is run anew, as __main__
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"{threads} threads: a module starts one at its import, and forks would lack it")


def _accept(listener: socket.socket, alive: int) -> socket.socket | None:
    """In a fork: the connection that it serves. In the process itself: None, when there will be no more."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(alive, 0)
    while True:
        ready = [number for number, _ in poll.poll()]
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if alive in ready:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(alive)
            return connection
        connection.close()


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """In a fork: what it is to run. In the fork server: None, once its client is gone."""
    while True:
        packet, files, _, _ = socket.recv_fds(connection, PACKET_BYTES, 3)
        if not packet:
            return None
        order = json.loads(packet)
        if "reap" in order:
            pid, status = os.waitpid(order["reap"], os.WNOHANG)
            answer: dict[str, Any] = {"status": status if pid else None}
        else:
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                connection.close()
                _become(order["run"], files, server)
                return dict(order["run"])
            for file in files:
                os.close(file)
            answer = {"pid": pid}
        connection.send(json.dumps(answer).encode())


def _become(run: dict[str, Any], files: list[int], server: int) -> None:
    """Be what a process that was started with these arguments, environment and files is."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != server:
        os._exit(128 + signal.SIGTERM)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(run["directory"])
    os.environ.clear()
    os.environ.update(run["environment"])
    sys.argv[1:] = run["arguments"]


if __name__ == "__main__":
    main()
