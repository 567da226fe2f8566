"""``python -m gateway.bodies.child``: reads bodies for a gateway, one after the other, until it hangs up.

Standard input and output are one socket. Each body comes as its length (eight bytes, big-endian) and itself;
each answer goes back as its length (four bytes) and a JSON object: the facts, or an ``error`` with message,
``param`` and ``code``.
"""

import gc
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

import orjson

from gateway.bodies.facts import read_facts
from gateway.errors import BadRequest


def answer(body: bytes) -> dict[str, Any]:
    try:
        return asdict(read_facts(body, long=True))
    except BadRequest as error:
        return {"error": [error.message, error.param, error.code]}


def serve(connection: socket.socket) -> None:
    """Until the other side hangs up."""
    with connection, connection.makefile("rb") as incoming:
        while len(size := incoming.read(8)) == 8:
            found = orjson.dumps(answer(incoming.read(int.from_bytes(size))))
            connection.sendall(len(found).to_bytes(4) + found)


def main() -> int:
    for each in (signal.SIGINT, signal.SIGTERM):  # what terminals and systemd send to all: the gateway, which
        signal.signal(each, signal.SIG_IGN)  # finishes what it has begun, says when to end
    gc.disable()  # parsed JSON has no cycles
    serve(socket.socket(fileno=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
