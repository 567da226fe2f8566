"""A realtime session through a backend: OpenAI's events on one side, vLLM's on the other."""

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agent.engines.http.realtime import websocket
from agent.engines.http.realtime.translation import Transcription
from agent.engines.http.realtime.websocket import (
    MESSAGE_BYTES,
    THREAD_BYTES,
    RealtimeWebSocket,
    is_translated,
)
from shared.protocol.endpoint import Stream
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import RequestHead
from shared.protocol.upgraded import CloseNotice, PieceKind, PieceReader, encode_close, encode_pieces
from tests.agent.engines.http.test_websocket import said
from tests.agent.support.canned import until
from tests.agent.support.http_backend import backend
from tests.agent.support.requests_in import Set, agent_with
from tests.support.realtime_engine import MODEL, RealtimeEngine, realtime_engine
from tests.support.tunnels import Recorder

PATH = f"/v1/realtime?model={MODEL}"


@asynccontextmanager
async def served(owner: str = "vllm") -> AsyncIterator[tuple[RealtimeEngine, Set]]:
    async with realtime_engine(owner) as engine, backend(engine.url) as made, agent_with(made) as here:
        yield engine, here


class Client:
    def __init__(self, here: Set, path: str = PATH) -> None:
        head: dict[str, Any] = {"deployment": f"e/{MODEL}", "model": MODEL}
        self.stream: Stream
        self.answer: Recorder
        self.stream, self.answer = here.ask(None, method="GET", path=path, upgrade=True, **head)

    async def send(self, **event: Any) -> None:
        await self.send_text(json.dumps(event).encode())

    async def send_text(self, text: bytes, kind: PieceKind = PieceKind.TEXT, *, final: bool = True) -> None:
        answer = self.answer
        for piece in encode_pieces(kind, text, final=final):
            answer.calls = [call for call in answer.calls if call[0] != "writable"]
            if not self.stream.send_data(piece):
                await answer.until("writable")

    async def append(self, value: int, samples: int = 300) -> None:
        audio = base64.b64encode(array("h", [value] * samples).tobytes()).decode()
        await self.send(type="input_audio_buffer.append", audio=audio)

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        events = [json.loads(text) for _, text in said(self.answer)[0]]
        return [event for event in events if event["type"].endswith(kind)]

    async def close(self) -> None:
        self.stream.send_data(encode_close(1000, ""))
        self.stream.end()
        await self.answer.until("closed")


async def standing_still(value: Callable[[], int], seconds: float) -> None:
    """Waits until ``value`` has been the same for so long."""
    before = -1
    while value() != before:
        before = value()
        await asyncio.sleep(seconds)


async def test_utterances_one_after_the_other_lose_no_audio_between_them() -> None:
    async with served() as (engine, here):
        client = Client(here)
        for value in range(12):
            await client.append(value)
            if value % 4 == 3:
                await client.send(type="input_audio_buffer.commit")
        await until(lambda: len(client.events("completed")) == 3)
        assert [event["transcript"] for event in client.events("completed")] == [
            "0 1 2 3 ",
            "4 5 6 7 ",
            "8 9 10 11 ",
        ]
        assert (engine.heard, engine.dropped, engine.sample_counts) == ([*range(12)], 0, {200})
        assert client.events()[0]["type"] == "session.created"
        assert engine.events[0] == {"type": "session.update", "model": MODEL}
        await client.close()


async def test_at_the_engines_rate_audio_is_passed_as_it_is_and_long_audio_is_read_beside() -> None:
    async with served() as (engine, here):
        client = Client(here)
        form = {"type": "audio/pcm", "rate": 16000}
        await client.send(type="session.update", session={"audio": {"input": {"format": form}}})
        await client.append(5, samples=THREAD_BYTES)
        await client.append(6, samples=THREAD_BYTES)
        await client.send(type="input_audio_buffer.commit")
        await until(lambda: client.events("completed"))
        assert (engine.heard, engine.sample_counts) == ([5, 6], {THREAD_BYTES})
        await client.close()


async def test_bad_events_are_answered_and_the_session_goes_on() -> None:
    async with served() as (engine, here):
        client = Client(here)
        await client.send_text(b"{")
        await client.send_text(b"\x00\x01", PieceKind.BINARY)
        await client.send(type="response.create", event_id="mine")
        await client.append(-1)
        await client.send(type="input_audio_buffer.commit")
        await until(lambda: client.events("transcription.failed"))
        await client.append(3)
        await client.send(type="input_audio_buffer.commit")
        await until(lambda: client.events("completed"))
        codes = [event["error"]["code"] for event in client.events("error")]
        assert codes == ["invalid_event", "invalid_event", "unknown_event"]
        assert engine.heard == [-1, 3]
        await client.close()


async def test_an_engines_close_waits_behind_what_a_client_that_does_not_read_is_told() -> None:
    async with served() as (engine, here):
        client = Client(here)
        await client.answer.until("head")

        async def err() -> None:
            while True:
                await client.send_text(b"{" + bytes(100))

        erring = asyncio.ensure_future(err())
        await standing_still(lambda: len(client.answer.body), 0.2)
        await engine.sockets[0].close(4000, "done")
        while "closed" not in client.answer.names():
            client.stream.consumed(1 << 30)
            await asyncio.sleep(0.001)
        erring.cancel()
        assert said(client.answer)[1].closed == CloseNotice(4000, "done")


async def test_a_message_without_end_closes_the_session_with_1009() -> None:
    async with served() as (_, here):
        client = Client(here)
        await client.answer.until("head")
        part = bytes(MESSAGE_BYTES // 64)

        async def send() -> None:
            with suppress(TrunklineError):  # the stream is reset before all of it is sent
                await client.send_text(part, PieceKind.TEXT, final=False)
                while True:
                    await client.send_text(part, PieceKind.CONTINUATION, final=False)

        assert here.registry.running == 1
        sending = asyncio.ensure_future(send())
        await until(lambda: here.registry.running == 0)
        sending.cancel()
        reader = PieceReader()
        reader.feed(client.answer.body)
        assert reader.closed == CloseNotice(1009, f"an event may have {MESSAGE_BYTES} bytes")


@pytest.mark.parametrize(("owner", "path"), [("tests", PATH), ("vllm", "/v1/realtime")])
async def test_an_engines_own_dialect_is_passed_where_clients_ask_for_it(owner: str, path: str) -> None:
    async with served(owner) as (_, here):
        client = Client(here, path)
        await until(lambda: client.events())
        assert client.events()[0] == {"type": "session.created", "id": "sess-1", "created": 1}
        await client.close()


@pytest.mark.parametrize(
    ("path", "upgrade", "translated"),
    [
        (PATH, True, True),
        ("/v1/realtime?intent=transcription&model=a%2Fb", True, True),
        ("/v1/realtime", True, False),
        ("/v1/realtime/x?model=a", True, False),
        (PATH, False, False),
    ],
)
def test_which_requests_are_translated(path: str, upgrade: bool, translated: bool) -> None:
    head = RequestHead("e/m", "GET", path, (), "m", "r", upgrade=upgrade)
    assert is_translated(head) is translated


async def test_an_engine_that_recovers_just_when_it_is_given_up_is_sent_audio_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "RECOVERS_S", 0.0)
    session = object.__new__(RealtimeWebSocket)
    transcription = session._transcription = Transcription("whisper", lambda kind: kind)
    session._went_on = asyncio.Event()
    transcription.from_client({"type": "input_audio_buffer.append", "audio": "AAAA"})
    transcription.from_engine('{"type": "error", "error": "x", "code": "processing_error"}')
    assert transcription.failed
    waiting = asyncio.create_task(session._until_it_hears())
    for _ in range(2):  # it waits, and its time is up
        await asyncio.sleep(0)
    transcription.from_engine('{"type": "transcription.done", "text": ""}')
    session._went_on.set()
    await waiting
