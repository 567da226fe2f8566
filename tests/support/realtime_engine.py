"""An engine that speaks vLLM's realtime dialect (vllm/entrypoints/speech_to_text/realtime/connection.py).

Its "transcript" of a piece of audio is the piece's first sample, so that a client sees what was lost, doubled
or changed. What vLLM drops it drops.
"""

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.support.websocket_server import listed_model, websocket_server

MODEL = "voxtral"


@dataclass(slots=True)
class RealtimeEngine:
    url: str = ""
    owner: str = "vllm"
    heard: list[int] = field(default_factory=list)
    """The first samples of all pieces that were transcribed."""
    sample_counts: set[int] = field(default_factory=set)
    """How long the pieces were."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """What clients said, but for audio."""
    dropped: int = 0
    """Pieces that came while an utterance was being ended."""
    ending_s: float = 0.01
    """How long it takes to end an utterance."""
    sockets: list[ServerConnection] = field(default_factory=list)

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if "upgrade" in request.headers:
            return None
        return listed_model(connection, request, MODEL, self.owner)

    async def serve(self, socket: ServerConnection) -> None:
        self.sockets.append(socket)
        session = _Session(self, socket)
        try:
            await session.run()
        except ConnectionClosed:
            pass
        finally:
            session.end()


class _Session:
    def __init__(self, engine: RealtimeEngine, socket: ServerConnection) -> None:
        self._engine = engine
        self._socket = socket
        self._audio: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._generation: asyncio.Task[None] | None = None
        self._validated = False

    async def run(self) -> None:
        await self._send(type="session.created", id="sess-1", created=1)
        async for message in self._socket:
            try:
                event = json.loads(message)
            except ValueError:
                await self._send(type="error", error="Invalid JSON", code="invalid_json")
                continue
            await self._take(event)

    def end(self) -> None:
        if self._generation is not None:
            self._generation.cancel()

    async def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "input_audio_buffer.append":
            self._audio.put_nowait(base64.b64decode(event["audio"]))
            return
        self._engine.events.append(event)
        if kind == "session.update":
            self._validated = event.get("model") == MODEL
            if not self._validated:
                await self._send(type="error", error="The model `x` does not exist.", code="model_not_found")
        elif kind != "input_audio_buffer.commit":
            await self._send(type="error", error=f"Unknown event type: {kind}", code="unknown_event")
        elif not self._validated:
            await self._send(type="error", error="Model not validated.", code="model_not_validated")
        elif event.get("final"):
            self._audio.put_nowait(None)
        elif self._generation is None or self._generation.done():
            self._generation = asyncio.create_task(self._transcribe())

    async def _transcribe(self) -> None:
        text = ""
        count = 0
        while (piece := await self._audio.get()) is not None:
            samples = array("h", piece)
            self._engine.heard.append(samples[0])
            self._engine.sample_counts.add(len(samples))
            if samples[0] < 0:
                await self._send(type="error", error="no such sound", code="processing_error")
                return
            delta = f"{samples[0]} "
            text, count = text + delta, count + 1
            await self._send(type="transcription.delta", delta=delta)
        await asyncio.sleep(self._engine.ending_s)
        usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
        await self._send(type="transcription.done", text=text, usage=usage)
        while not self._audio.empty():
            self._engine.dropped += self._audio.get_nowait() is not None

    async def _send(self, **event: Any) -> None:
        await self._socket.send(json.dumps(event))


@asynccontextmanager
async def realtime_engine(owner: str = "vllm") -> AsyncIterator[RealtimeEngine]:
    """One on a free port of loopback."""
    engine = RealtimeEngine(owner=owner)
    async with websocket_server(engine.serve, engine.answer) as engine.url:
        yield engine
