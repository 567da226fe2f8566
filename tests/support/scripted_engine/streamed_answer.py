"""One streamed answer of the scripted engine: its pace, and the faults that strike in the middle of it."""

import asyncio
from typing import TYPE_CHECKING

from tests.support.scripted_engine.script import Fault, Trouble
from tests.support.scripted_engine.streams import Streamed

if TYPE_CHECKING:
    from tests.support.scripted_engine.http import EngineProtocol

_BURST_TOKENS = 64
"""How many tokens an unpaced answer writes before it looks whether the reader keeps up."""

_FAULTS_OF = {
    Trouble.STALL: Fault.STALL,
    Trouble.UNWELL: Fault.STALL,
    Trouble.SILENT: Fault.STALL,
    Trouble.CUT: Fault.DIE,
    Trouble.MALFORMED: Fault.GARBAGE,
}
"""What becomes of running streams in an engine's trouble."""


class StreamedAnswer:
    """Writes one answer's chunks at the script's pace, and no faster than the reader takes them."""

    def __init__(self, protocol: "EngineProtocol", streamed: Streamed) -> None:
        self._protocol = protocol
        self._streamed = streamed
        self._script = streamed.script
        self.stepped = streamed.script.stepped
        """Its tokens come by steps."""
        self._index = 0
        self._began_s = 0.0
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        self._protocol.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self._write(self._streamed.opening())
        if (
            self._protocol.engine.repeats_head
            and self._streamed.repeats_head
            and self._streamed.planned.so_far
        ):
            self._write(self._streamed.chunk(-1, self._protocol.loop.time()))
        self._began_s = self._protocol.loop.time()
        self.advance()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def advance(self) -> None:
        """Write what is due, then set the timer for the next token, unless the reader is behind."""
        self.stop()
        pace = self._script.tokens_per_s
        for _ in range(1 if pace > 0 or self.stepped else _BURST_TOKENS):
            if self._struck():
                return
            if self._index >= self._streamed.count:
                return self._end()
            self._write(self._streamed.chunk(self._index, self._protocol.loop.time()))
            self._index += 1
            self._protocol.engine.stats.sent_tokens += 1
            self._protocol.engine.stats.computed_tokens += 1
        if not self._protocol.writable or self.stepped:
            return
        if pace > 0:
            self._handle = self._protocol.loop.call_at(self._began_s + self._index / pace, self.advance)
        else:
            self._handle = self._protocol.loop.call_soon(self.advance)

    def _struck(self) -> bool:
        """Carry out the engine's trouble, or the script's fault if its time has come."""
        fault = _FAULTS_OF.get(self._protocol.engine.trouble, Fault.NONE)
        if self._protocol.engine.trouble is Trouble.UNENDED:
            self._protocol.answer_over()
            self._protocol.transport.write(b"0\r\n\r\n")
            return True
        if fault is Fault.NONE:
            fault = self._script.fault if self._index >= self._script.after else Fault.NONE
        if fault is Fault.NONE:
            return False
        transport = self._protocol.transport
        if fault is Fault.STALL:
            return True
        self._protocol.answer_over()
        if fault is Fault.DIE:
            transport.abort()
        elif fault is Fault.CLOSE:
            transport.close()
        elif fault is Fault.GARBAGE:
            transport.write(b"zzz\r\n\x00 this is no chunk\r\n")
            transport.close()
        else:
            self._write(b"\xff\xfe not an event")
            transport.write(b"0\r\n\r\n")
        return True

    def interrupt(self) -> None:
        """End it before its end, as if that were in order."""
        self.stop()
        self._write(b"data: [DONE]\n\n")
        self._protocol.transport.write(b"0\r\n\r\n")
        self._protocol.answer_over()

    def _end(self) -> None:
        self._write(self._streamed.closing())
        self._protocol.transport.write(b"0\r\n\r\n")
        self._protocol.answer_over()

    def _write(self, data: bytes) -> None:
        if data:
            self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
