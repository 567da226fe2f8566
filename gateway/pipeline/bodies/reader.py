"""Has long bodies read by processes of their own, so that no request stops the event loop. These end with the
gateway, however it ends: their socket does."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

import gateway
from gateway.domain.errors import BadRequest, BodyTooLarge, Overloaded
from gateway.pipeline.bodies.facts import ANSWER_BYTES, OUT_OF_MEMORY, JsonFacts
from shared.process.startup import environment_of_child

CHILD = (sys.executable, "-P", "-m", "gateway.pipeline.bodies.child")
"""``-P``: a package of this name in the current directory is not taken."""

READ_S = 120.0
"""For one body: two million values take a second of a slow machine."""

_CRASHES = (OUT_OF_MEMORY, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)

TOO_MUCH_MEMORY = (
    "Reading the body takes more memory than this gateway has for a body of its length; send a shorter one, "
    "or one of fewer values."
)

ENDS_WITHIN_S = 5.0
"""After a child has closed its socket."""

_log = structlog.get_logger("gateway")


class BodyReader:
    """At most ``processes`` of them, started when they are needed. Keys take turns: whoever has many long
    bodies read makes others wait for one of them."""

    def __init__(self, processes: int | None = None, child: Sequence[str] = CHILD) -> None:
        """Without a number, half as many as there are processors, and at most four."""
        self._free = processes or max(1, min(4, (os.cpu_count() or 1) // 2))
        self._child = child
        self._idle: list[_Child] = []
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    async def read(self, pieces: Sequence[bytes], owner: object = None) -> JsonFacts:
        """The facts of the body in ``pieces``. Raises BadRequest, BodyTooLarge where reading it takes more
        memory than it may, and Overloaded when it cannot be read."""
        await self._turn(owner)
        try:
            return await self._read(pieces)
        finally:
            self._leave()

    def close(self) -> None:
        """End the children. What they read is lost."""
        while self._idle:
            self._idle.pop().end()

    async def _turn(self, owner: object) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was given to us and is not used
            elif (turns := self._waiting.get(owner)) is not None and turn in turns:
                turns.remove(turn)
                if not turns:
                    del self._waiting[owner]
            raise

    def _leave(self) -> None:
        """Give the turn to the first one waiting of the owner who has waited longest for one."""
        while self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _read(self, pieces: Sequence[bytes]) -> JsonFacts:
        child = self._idle.pop() if self._idle else None
        if child is not None and not child.lives:  # somebody ended it; the system does when memory is scarce
            child.end()
            child = None
        try:
            if child is None:
                child = await _Child.start(self._child)
            async with asyncio.timeout(READ_S):
                found = await child.ask(pieces)
        except (OSError, EOFError, TimeoutError, orjson.JSONDecodeError) as error:
            code = None if child is None else await child.ended()
            size_bytes = sum(map(len, pieces))
            _log.error("body_not_read", error=type(error).__name__, exit=code, size_bytes=size_bytes)
            if code in _CRASHES:
                raise BodyTooLarge(TOO_MUCH_MEMORY) from None
            raise Overloaded("This gateway could not read the body; send the request again.") from None
        except BaseException:
            if child is not None:
                child.end()
            raise
        self._idle.append(child)
        fault = found.pop("error", None)
        if fault is not None:
            message, param, code = fault
            raise BadRequest(message, param=param, code=code)
        return JsonFacts(**found)


@dataclass(slots=True, eq=False)
class _Child:
    """One process, and the socket to it."""

    process: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, command: Sequence[str]) -> "_Child":
        """Raises OSError."""
        ours, its = socket.socketpair()
        starting = asyncio.get_running_loop().run_in_executor(None, _start, command, its)
        # Not before, also where nobody waits any more: the thread would pass on whatever has its number then.
        starting.add_done_callback(lambda done: its.close())
        try:
            process = await asyncio.shield(starting)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()  # a child that has started finds that nobody is there, and ends
            raise
        return cls(process, reader, writer)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    async def ask(self, pieces: Sequence[bytes]) -> dict[str, Any]:
        """Raises OSError, EOFError."""
        self.writer.write(sum(map(len, pieces)).to_bytes(8))
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
        size = int.from_bytes(await self.reader.readexactly(4))
        if size > ANSWER_BYTES:
            raise EOFError
        answer: dict[str, Any] = orjson.loads(await self.reader.readexactly(size))
        return answer

    async def ended(self) -> int | None:
        """How it ended, after it has closed its socket; the negative of a signal's number. None: it had not,
        and was ended."""
        try:
            return await asyncio.to_thread(self.process.wait, ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end()

    def end(self) -> None:
        """At once."""
        self.writer.close()
        with suppress(OSError):
            self.process.kill()
        # A killed process is gone in a moment; whoever waits for it is a thread.
        asyncio.get_running_loop().run_in_executor(None, self.process.wait)


def _start(command: Sequence[str], its: socket.socket) -> "subprocess.Popen[bytes]":
    number, environment = its.fileno(), environment_of_child(gateway)
    return subprocess.Popen(command, stdin=number, stdout=number, env=environment)  # noqa: S603 - our module
