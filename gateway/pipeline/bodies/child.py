"""``python -m gateway.pipeline.bodies.child``: reads bodies for a gateway, one after the other, until it
hangs up.

Standard input and output are one socket. Each body comes as its length (eight bytes, big-endian) and itself;
each answer goes back as its length (four bytes) and a JSON object: the facts, or an ``error`` with message,
``param`` and ``code``. Where the body takes more memory than it may, it ends instead of answering.
"""

import gc
import resource
import signal
import socket
import sys
from pathlib import Path

import orjson
from msgspec.structs import asdict

from gateway.domain.errors import BadRequest
from gateway.pipeline.bodies.facts import ANSWER_BYTES, OUT_OF_MEMORY, read_facts

LIMIT_TIMES = 32
LIMIT_MORE_BYTES = 768 * 1024 * 1024
"""Reading a body may take so many times its length of addresses, and so many more. Of bodies made to take
much none took more than 0.6 of that: 1,398 MiB for a text of 64 MiB with one character that takes four bytes,
971 for two million nested objects in 29 MiB. Of memory they took 448 and 692 MiB."""


_STATM = Path("/proc/self/statm")


def limit_memory(body_bytes: int, soft: int, hard: int) -> None:
    """Let the process take as much more as a body of this length can need, so that a parser that takes more
    fails alone, and not with the machine. ``soft`` and ``hard`` are the limits it was started with.

    There is a limit where the system tells the process how much it has (Linux).
    """
    try:
        pages = int(_STATM.read_bytes().split()[0])
    except OSError:
        return
    wanted = pages * resource.getpagesize() + LIMIT_TIMES * body_bytes + LIMIT_MORE_BYTES
    limit = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def answer(body: bytes) -> bytes:
    """What is sent back for a body."""
    try:
        found = orjson.dumps(asdict(read_facts(body, long=True)))
        if len(found) > ANSWER_BYTES:
            message = f"The JSON body has more than {ANSWER_BYTES} bytes of text beside its prompt."
            raise BadRequest(message, code="invalid_json")
    except BadRequest as error:
        return orjson.dumps({"error": [error.message, error.param, error.code]})
    return found


def serve(connection: socket.socket) -> None:
    """Until the other side hangs up. Raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with connection, connection.makefile("rb") as incoming:
        while len(size := incoming.read(8)) == 8:
            limit_memory(int.from_bytes(size), soft, hard)
            found = answer(incoming.read(int.from_bytes(size)))
            connection.sendall(len(found).to_bytes(4) + found)


def main() -> int:
    for each in (signal.SIGINT, signal.SIGTERM):  # what terminals and systemd send to all: the gateway, which
        signal.signal(each, signal.SIG_IGN)  # finishes what it has begun, says when to end
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold prompts
    gc.disable()  # parsed JSON has no cycles
    try:
        serve(socket.socket(fileno=0))
    except MemoryError:
        return OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(main())
