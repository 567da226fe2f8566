"""A client's socket gets what it reads, and one that does not read delays nobody."""

import asyncio
from pathlib import Path
from typing import Any

from agent.engines.comfyui.own_paths import PASSING, QUEUED, TRY_LATER, ComfyUIPaths, PromptSocket
from agent.engines.settings import EngineSettings
from shared.protocol.messages import RequestHead
from shared.protocol.upgraded import PieceKind, PieceReader, encode_close, encode_pieces
from tests.agent.engines.comfyui.test_backend import Receiver, ask, engine, steps, until


class Body:
    """What a client sends."""

    def __init__(self) -> None:
        self._data = b""
        self._there = asyncio.Event()
        self.ended = False

    def put(self, data: bytes, *, last: bool = False) -> None:
        self._data, self.ended = self._data + data, last and not data
        self._there.set()

    def take(self) -> bytes:
        data, self._data = self._data, b""
        self._there.clear()
        return data

    def taken(self, size_bytes: int) -> None: ...

    async def more(self) -> None:
        await self._there.wait()


def messages(receiver: Receiver) -> list[str]:
    return [piece.data.decode() for piece in PieceReader().feed(bytes(receiver.body))]


async def test_a_client_is_told_of_its_own_prompts_and_of_the_queue(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, backend):
        paths = ComfyUIPaths(EngineSettings(url=server_url(backend), name="c"), backend)
        await paths.start()
        (state,) = paths.deployments()
        assert (state.model, state.upgrades, state.slots) == ("c", True, 64)
        body, receiver = Body(), Receiver()
        head = RequestHead("c.paths/c", "GET", "/ws?clientId=me", (), "c", "r", upgrade=True)
        paths.request(head, body, receiver)
        await until(lambda: receiver.status == 101)
        _, other = ask(backend, steps())
        assert await other.over is None
        assert not any("execution_start" in message for message in messages(receiver))
        prompt = b'{"prompt": %b, "client_id": "me"}' % _json(steps())
        asked = Receiver()
        fields = (("content-length", str(len(prompt))),)
        posting = RequestHead("c.paths/c", "POST", "/prompt", fields, "c", "r")
        whole = Body()
        whole.put(prompt)
        request = paths.request(posting, _ended(whole), asked)
        assert await asked.over is None
        assert b"prompt_id" in asked.body
        await until(lambda: any('"node": null' in message for message in messages(receiver)))
        assert '"sid":"me"' in messages(receiver)[0]
        request.let_go()
        body.put(encode_close(1000))
        assert await receiver.over is None
        await paths.close()


def _json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)


def _ended(body: Body) -> Body:
    """``body``, with nothing after what is there."""
    take = body.take

    def once() -> bytes:
        body.ended = True
        return take()

    body.take = once  # type: ignore[method-assign]
    return body


def server_url(backend: Any) -> str:
    return str(backend._settings.url)


async def test_one_that_does_not_read_misses_progress_and_is_closed_at_last() -> None:
    ended: list[Exception | None] = []
    receiver = Receiver(room=1)
    socket = PromptSocket(Body(), receiver, ended.append)
    await until(lambda: receiver.status == 101)
    socket.say("first")
    await until(lambda: receiver.room == 0)
    for _ in range(10 * PASSING):
        socket.say('{"type": "progress", "data": {}}')
        socket.say(b"picture")
    for number in range(QUEUED + 5):
        socket.say(f"executed {number}")
    receiver.room = 10 * QUEUED
    socket.resume()
    assert await receiver.over is None
    assert ended == [None]
    reader = PieceReader()
    told = reader.feed(bytes(receiver.body))
    assert len(told) == QUEUED + 1
    assert [piece.kind for piece in told].count(PieceKind.BINARY) == PASSING // 2
    assert reader.closed is not None
    assert reader.closed.code == TRY_LATER


async def test_one_that_closes_and_does_not_read_is_answered_when_there_is_room() -> None:
    ended: list[Exception | None] = []
    receiver, body = Receiver(room=1), Body()
    socket = PromptSocket(body, receiver, ended.append)
    socket.say("first")
    socket.say("never told")
    await until(lambda: receiver.room == 0)
    told = bytes(receiver.body)
    body.put(encode_close(4001))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (bytes(receiver.body), ended) == (told, [])
    receiver.room = 10
    socket.resume()
    assert await receiver.over is None
    assert ended == [None]
    reader = PieceReader()
    assert [piece.data for piece in reader.feed(bytes(receiver.body))] == [b"first"]
    assert reader.closed is not None
    assert reader.closed.code == 4001


async def test_what_is_no_message_ends_the_socket_alone() -> None:
    ended: list[Exception | None] = []
    receiver, body = Receiver(), Body()
    PromptSocket(body, receiver, ended.append)
    body.put(b"".join(encode_pieces(PieceKind.TEXT, b'{"type":"feature_flags"}', final=True)))
    body.put(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff")
    assert await receiver.over is None
    assert ended == [None]


async def test_a_socket_that_is_let_go_says_nothing_more() -> None:
    ended: list[Exception | None] = []
    receiver = Receiver()
    socket = PromptSocket(Body(), receiver, ended.append)
    socket.let_go()
    socket.say("late")
    socket.let_go()
    await asyncio.sleep(0)
    assert ended == [None]
    assert not receiver.over.done()
