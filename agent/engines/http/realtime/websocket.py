"""A client's WebSocket that speaks OpenAI's realtime events, to an engine that speaks vLLM's."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from agent.engines.backend import BackendFailed
from agent.engines.http.realtime.audio import ENGINE_RATE, Resampler
from agent.engines.http.realtime.translation import Event, EventRefused, Transcription, Translated, read_event
from agent.engines.http.websocket import EngineWebSocket
from shared.protocol.errors import PieceMalformed
from shared.protocol.limits import MIB
from shared.protocol.messages import RequestHead
from shared.protocol.upgraded import GOING_AWAY, NO_CODE, CloseNotice, PieceKind, may_be_sent

PATH = "/v1/realtime"
MESSAGE_BYTES = 16 * MIB
"""Longest message of a client: OpenAI takes 15 MiB of audio in one."""
THREAD_BYTES = 64 * 1024
"""A longer one is read in a thread: a second of audio takes a millisecond."""
TOO_BIG = 1009
ENDS_S = 0.1
"""After an error vLLM's utterance ends without a word; before that another one would not begin."""
RECOVERS_S = 5.0
"""So long after an error the engine may take to end what it has left of the utterance."""


def is_translated(head: RequestHead) -> bool:
    """Whether a request for a WebSocket comes from OpenAI's path at the gateway, which names the model in its
    query. At an engine's own path clients speak its dialect."""
    path, _, query = head.path.partition("?")
    return head.upgrade and path == PATH and "model" in parse_qs(query)


class _MessageTooLong(Exception):
    """A client's."""


class RealtimeWebSocket(EngineWebSocket):
    """Implements :class:`agent.engines.backend.BackendRequest`."""

    def __init__(self, *arguments: Any) -> None:
        """As :class:`EngineWebSocket`."""
        head: RequestHead = arguments[3]
        self._transcription = Transcription(head.model, new_id)
        self._resampler = Resampler()
        self._client_turn = asyncio.Lock()
        """Held while a message is written to the client, by either direction."""
        self._went_on = asyncio.Event()
        """Set when the engine may take audio again."""
        self._refusal: CloseNotice | None = None
        """How the client is closed, if it was wrong."""
        super().__init__(*arguments)

    async def _receive_message(self, socket: ClientConnection) -> None:
        held = ""
        async for fragment in socket.recv_streaming(decode=True):
            held += str(fragment)
            if len(held) > MESSAGE_BYTES:
                raise BackendFailed(f"the engine's message is longer than {MESSAGE_BYTES} characters")
        await self._carry_out(socket, self._transcription.from_engine(held))
        self._went_on.set()

    def _close_notice(self, closed: ConnectionClosed) -> CloseNotice | None:
        return self._refusal or super()._close_notice(closed)

    async def _close_client(self, notice: CloseNotice) -> None:
        async with self._client_turn:
            await super()._close_client(notice)

    async def _send(self, socket: ClientConnection) -> None:
        """Raises PieceMalformed, ConnectionClosed."""
        pieces = self._pieces()
        try:
            async for text in self._messages(pieces):
                await self._take(socket, text)
        except _MessageTooLong:
            self._refusal = CloseNotice(TOO_BIG, f"an event may have {MESSAGE_BYTES} bytes")
            socket.transport.abort()
            return
        except PieceMalformed:
            socket.transport.abort()
            raise
        code, reason = self._reader.end()
        await socket.close(code if may_be_sent(code) else 1000 if code == NO_CODE else GOING_AWAY, reason)

    async def _messages(self, pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        """Whole messages of the client. Raises PieceMalformed, _MessageTooLong."""
        held, kind = bytearray(), PieceKind.TEXT
        async for piece in pieces:
            if piece.kind != PieceKind.CONTINUATION:
                kind = piece.kind
            held += piece.data
            if len(held) > MESSAGE_BYTES:
                raise _MessageTooLong
            if piece.final:
                yield b"" if kind == PieceKind.BINARY else bytes(held)
                held.clear()
        if held:
            raise PieceMalformed("the body ends inside a message")

    async def _take(self, socket: ClientConnection, text: bytes) -> None:
        """One message of the client. Audio waits while the engine would drop it."""
        transcription = self._transcription
        resampler = None if transcription.rate == ENGINE_RATE else self._resampler
        try:
            if len(text) > THREAD_BYTES:
                event = await asyncio.to_thread(read_event, text, resampler)
            else:
                event = read_event(text, resampler)
            if event["type"].startswith("input_audio_buffer."):
                await self._until_it_hears()
            translated = transcription.from_client(event)
        except EventRefused as refused:
            translated = Translated(to_client=[transcription.refusal(refused)])
        else:
            if event["type"] == "input_audio_buffer.commit":
                self._resampler.clear()
        await self._carry_out(socket, translated)

    async def _until_it_hears(self) -> None:
        transcription = self._transcription
        while transcription.ending:
            self._went_on.clear()
            try:
                async with asyncio.timeout(RECOVERS_S if transcription.failed else None):
                    await self._went_on.wait()
            except TimeoutError:
                if transcription.failed:  # else the engine has ended it in this very turn
                    transcription.give_up_item()

    async def _carry_out(self, socket: ClientConnection, translated: Translated) -> None:
        await self._tell(translated.to_client)
        if translated.to_engine and self._transcription.failed:
            await asyncio.sleep(ENDS_S)
        for event in translated.to_engine:
            await socket.send(orjson.dumps(event).decode())

    async def _tell(self, events: list[Event]) -> None:
        if events:
            async with self._client_turn:
                for event in events:
                    await self._pass_pieces(PieceKind.TEXT, orjson.dumps(event), final=True)


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
