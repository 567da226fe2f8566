"""Answers on their way to a client that may leave at any moment: whoever leaves frees its slot at once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent.backends.torch_engine.faults import EngineFault
from agent.backends.torch_engine.generation import Generation
from agent.backends.torch_engine.shapes import TextShape

_log = logging.getLogger(__name__)

T = TypeVar("T")

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves. Raises :class:`ClientGone`.

    To be used once the request's body was read: from then on there is nothing to receive but the leaving.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGone
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class TextStream(Response):
    """The server-sent events of one text. ``holding`` is let go of when the stream ends, however it does.

    Its head goes out with the first text, so that what goes wrong before still gets its own status. What goes
    wrong later breaks the connection off: an error written into the stream would look like an answer's end,
    while an answer that is seen to be cut can be gone on with by another engine.
    """

    def __init__(
        self,
        generation: Generation,
        first: list[str],
        shape: TextShape,
        holding: ExitStack,
        on_end: Callable[[Generation], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(_STREAM_HEADERS)
        self._generation = generation
        self._first = first
        self._shape = shape
        self._holding = holding
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._holding:
            try:
                await unless_gone(receive, self._send(send))
            except ClientGone:
                return

    async def _send(self, send: Send) -> None:
        async def write(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        generation, shape = self._generation, self._shape
        pieces, opening = self._first, shape.first()
        try:
            while pieces or opening:
                await write(opening + b"".join(shape.text(piece) for piece in pieces))
                opening = b""
                pieces = await generation.next_pieces()
        except EngineFault as fault:
            _log.warning("an answer was broken off (%s): %s", fault.code, fault.message)
            return
        assert generation.finish_reason is not None
        self._on_end(generation)
        await write(shape.last(generation.finish_reason, generation.usage), more=False)
