"""An answer on its way from the transport to whoever takes it, byte by byte, without a socket."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable

import pytest

from agent.engines.backend import BackendFailed, BackendTimeout
from agent.engines.http.client.connection import EngineConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"0\r\n\r\n"


class PlayedTransport(asyncio.Transport):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Taker:
    """Takes a body; wants more as long as ``willing``."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.willing = True

    def __call__(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        return self.willing


class Answer:
    """An answer over ``connection``; its body waits until :meth:`pour`."""

    def __init__(self, connection: EngineConnection, *, head_only: bool) -> None:
        self.connection = connection
        self.error: Exception | None = None
        self._over = asyncio.Event()
        self._pieces: list[bytes] = []
        self._take: Callable[[bytes], bool] | None = None
        connection.begin(self, head_only=head_only)

    def on_answer(self) -> None: ...

    def on_body(self, piece: bytes) -> bool:
        if self._take is not None:
            return self._take(piece)
        self._pieces.append(piece)
        return True

    def on_over(self, error: Exception | None) -> None:
        self.error = error
        self._over.set()

    async def stream_to(self, take: Callable[[bytes], bool]) -> None:
        self._take = take
        for piece in self._pieces:
            take(piece)
        await self._over.wait()
        if self.error is not None:
            raise self.error


def begun(
    received: bytes = b"", *, head_only: bool = False
) -> tuple[EngineConnection, Answer, PlayedTransport]:
    transport = PlayedTransport()
    connection = EngineConnection(lambda connection: None)
    connection.connection_made(transport)
    answer = Answer(connection, head_only=head_only)
    if received:
        connection.data_received(received)
    return connection, answer, transport


async def pouring(answer: Answer, take: Taker) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(answer.stream_to(take))
    await asyncio.sleep(0)
    return task


async def test_pieces_are_taken_in_the_turn_that_brings_them() -> None:
    connection, answer, _ = begun(CHUNKED)
    take = Taker()
    task = await pouring(answer, take)
    connection.data_received(CHUNK)
    connection.data_received(CHUNK + CHUNK)
    assert take.pieces == [EVENT, EVENT + EVENT]
    connection.data_received(LAST)
    await task
    assert connection.is_reusable()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_however_the_bytes_are_cut_the_body_is_the_same(size: int) -> None:
    connection, answer, _ = begun()
    take, received = Taker(), CHUNKED + CHUNK * 3 + LAST
    task = await pouring(answer, take)
    for start in range(0, len(received), size):
        connection.data_received(received[start : start + size])
    await task
    assert b"".join(take.pieces) == EVENT * 3
    assert connection.is_reusable()


async def test_whoever_wants_no_more_stops_the_reading_until_he_does() -> None:
    connection, answer, transport = begun(CHUNKED)
    take = Taker()
    take.willing = False
    task = await pouring(answer, take)
    connection.data_received(CHUNK)
    connection.data_received(CHUNK)  # a TLS transport may have had it already
    assert (take.pieces, transport.calls) == ([EVENT], ["pause"])
    take.willing = True
    connection.resume()
    assert (take.pieces, transport.calls) == ([EVENT, EVENT], ["pause", "resume"])
    connection.data_received(LAST)
    await task


async def test_an_answer_is_not_over_before_its_last_piece_was_taken() -> None:
    connection, answer, _ = begun(CHUNKED)
    take = Taker()
    take.willing = False
    task = await pouring(answer, take)
    connection.data_received(CHUNK)
    connection.data_received(CHUNK + LAST)
    await asyncio.sleep(0)
    assert not task.done()
    connection.resume()
    await task
    assert take.pieces == [EVENT, EVENT]


async def test_what_the_taker_raises_ends_the_request() -> None:
    def take(piece: bytes) -> bool:
        raise LookupError(piece)

    connection, answer, transport = begun(CHUNKED)
    task = asyncio.ensure_future(answer.stream_to(take))
    await asyncio.sleep(0)
    connection.data_received(CHUNK + LAST)
    with pytest.raises(LookupError):
        await task
    assert transport.calls == ["abort"]
    assert not connection.is_reusable()


async def test_interim_answers_are_skipped() -> None:
    connection, answer, _ = begun(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    assert connection.status == 0
    connection.data_received(HEAD + b"content-length: 2\r\n\r\nok")
    take = Taker()
    await answer.stream_to(take)
    assert (connection.status, take.pieces) == (200, [b"ok"])
    assert [name for name, _ in connection.raw_headers] == [b"content-type", b"content-length"]
    assert connection.is_reusable()


@pytest.mark.parametrize(
    "rest",
    [b"HTTP/1.1 200 OK\r\n", b"what is this", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"],
)
async def test_a_connection_on_which_more_came_than_the_answer_is_not_used_again(rest: bytes) -> None:
    connection, answer, _ = begun(HEAD + b"content-length: 2\r\n\r\nok" + rest)
    take = Taker()
    await answer.stream_to(take)
    assert take.pieces[0] == b"ok"
    assert b"".join(take.pieces) == b"ok"
    assert not connection.is_reusable()


async def test_an_answer_to_head_has_no_body_whatever_it_says() -> None:
    connection, answer, _ = begun(HEAD + b"content-length: 1000\r\n\r\nbut", head_only=True)
    take = Taker()
    await answer.stream_to(take)
    assert take.pieces == []
    assert not connection.is_reusable()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_some_answers_have_no_body_and_are_the_last_of_their_connection(status: bytes) -> None:
    connection, answer, _ = begun(b"HTTP/1.1 " + status + b"\r\n\r\n")
    await answer.stream_to(Taker())
    assert not connection.is_reusable()


async def test_without_framing_the_end_of_the_connection_is_the_end_of_the_body() -> None:
    connection, answer, _ = begun(HEAD + b"\r\n")
    take = Taker()
    task = await pouring(answer, take)
    connection.data_received(b"all of it")
    connection.eof_received()
    await task
    assert take.pieces == [b"all of it"]
    assert not connection.is_reusable()


@pytest.mark.parametrize(
    "head", [HEAD + b"\r\n", CHUNKED, HEAD + b"connection: close\r\ncontent-length: 10\r\n\r\n"]
)
async def test_a_connection_that_breaks_is_no_end(head: bytes) -> None:
    connection, answer, _ = begun(head)
    task = await pouring(answer, Taker())
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(BackendFailed, match="in the middle of its answer"):
        await task
    assert connection.closed
    assert connection.answered


async def test_what_came_before_the_framing_broke_is_passed_on() -> None:
    connection, answer, transport = begun(CHUNKED)
    take = Taker()
    task = await pouring(answer, take)
    connection.data_received(CHUNK + b"zz\r\n")
    with pytest.raises(BackendFailed, match="no HTTP"):
        await task
    assert (take.pieces, transport.calls) == ([EVENT], ["abort"])


@pytest.mark.parametrize(
    "piece",
    [b"HTTP/1.1 100 Continue\r\n\r\n" * 40, b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1000],
)
async def test_a_head_that_never_ends_is_given_up(piece: bytes) -> None:
    connection, answer, transport = begun(piece)
    more = piece if piece.endswith(b"\n") else b"y" * 1000
    for _ in range(100):
        if transport.closing:
            break
        connection.data_received(more)
    with pytest.raises(BackendFailed, match="no HTTP"):
        await answer.stream_to(Taker())


async def test_trailers_that_never_end_are_given_up() -> None:
    connection, answer, transport = begun(CHUNKED + CHUNK)
    task = await pouring(answer, Taker())
    connection.data_received(b"0\r\nx: ")
    for _ in range(100):
        connection.data_received(b"y" * 1000)
    with pytest.raises(BackendFailed, match="no HTTP"):
        await task
    assert transport.closing


async def test_trailers_are_nobodys_business() -> None:
    connection, answer, _ = begun(CHUNKED + CHUNK + b"0\r\nx: y\r\n\r\n")
    await answer.stream_to(Taker())
    assert b"x" not in dict(connection.raw_headers)
    assert connection.is_reusable()


async def test_silence_is_not_counted_while_nobody_wants_more() -> None:
    connection, answer, _ = begun(CHUNKED)
    take = Taker()
    take.willing = False
    connection.expect_within(0.01)
    task = await pouring(answer, take)
    connection.data_received(CHUNK)
    await asyncio.sleep(0.05)
    assert answer.error is None
    take.willing = True
    connection.resume()
    with pytest.raises(BackendTimeout, match="in the middle of"):
        await task


async def test_each_answer_may_be_silent_for_its_own_time() -> None:
    connection, answer, _ = begun()
    connection.expect_within(0.03)
    connection.data_received(HEAD + b"content-length: 0\r\n\r\n")
    await answer.stream_to(Taker())
    connection.end()
    connection.expect_within(None)
    answer = Answer(connection, head_only=False)
    await asyncio.sleep(0.04)
    assert answer.error is None, "the timer of the answer before went off"
    connection.expect_within(30)
    connection.expect_within(0.01)
    with pytest.raises(BackendTimeout, match="before its answer"):
        await answer.stream_to(Taker())


async def test_who_lets_go_of_an_answer_hears_no_more_of_it() -> None:
    connection, answer, transport = begun()

    def take(piece: bytes) -> bool:
        transport.abort()
        connection.end()
        return False

    task = asyncio.ensure_future(answer.stream_to(take))
    await asyncio.sleep(0)
    connection.data_received(CHUNKED + CHUNK + LAST)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert not task.done()
    assert transport.calls == ["abort"]
    task.cancel()


async def test_a_connection_that_was_closed_is_no_cycle() -> None:
    connection, answer, transport = begun(CHUNKED + CHUNK + LAST)
    await answer.stream_to(Taker())
    connection.end()
    connection.connection_lost(None)
    gone = weakref.ref(transport)
    gc.disable()
    try:
        del connection, answer, transport
        assert gone() is None
    finally:
        gc.enable()


async def test_one_answer_after_another_comes_over_a_connection() -> None:
    connection, answer, _ = begun(CHUNKED + CHUNK + b"0\r\nx: y\r\n\r\n")
    await answer.stream_to(Taker())
    for length in (2, 0, 1):
        connection.end()
        take, answer = Taker(), Answer(connection, head_only=False)
        for received in (b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r" % length, b"\n" + b"x" * length):
            connection.data_received(received)
        await answer.stream_to(take)
        assert (connection.status, b"".join(take.pieces)) == (201, b"x" * length)
        assert connection.raw_headers == [(b"content-length", b"%d" % length)]
        assert connection.is_reusable()


async def test_what_comes_at_rest_closes_the_connection() -> None:
    connection, answer, transport = begun(HEAD + b"content-length: 2\r\n\r\nok")
    await answer.stream_to(Taker())
    connection.end()
    connection.data_received(HEAD)
    assert transport.calls == ["abort"]


FLOODS = [
    pytest.param(HEAD, b"a:\r\n", "more than 128 headers", id="headers"),
    pytest.param(HEAD + b"a: ", b"\r\n x", "a line of more", id="a folded header"),
    pytest.param(b"", b"HTTP/1.1 100 C\r\n\r\n", "more than 16 answers of 1xx", id="interim answers"),
    pytest.param(CHUNKED + b"0\r\n", b"a:\r\n", "more than 128 headers", id="trailers"),
    pytest.param(CHUNKED + b"0\r\na: ", b"\r\n x", "a line of more", id="a folded trailer"),
    pytest.param(CHUNKED, b"0" * 100, "a line of more", id="a chunk's size"),
]


@pytest.mark.parametrize(("before", "unit", "why"), FLOODS)
async def test_what_never_ends_is_given_up_within_the_piece_that_brings_it(
    before: bytes, unit: bytes, why: str
) -> None:
    took_s = []
    for _ in range(3):  # once it may hit upon a look for garbage, or pages that a fork has not copied yet
        connection, answer, transport = begun(before)
        began_s = time.thread_time()
        connection.data_received(unit * (256 * 1024 // len(unit)))
        took_s.append(time.thread_time() - began_s)
        assert isinstance(answer.error, BackendFailed)
        assert why in answer.error.reason
        assert transport.closing
    assert min(took_s) < 0.015, "at most 2 ms are meant; the rest is for slow machines"


async def test_a_long_piece_of_a_body_is_taken_as_one() -> None:
    connection, answer, _ = begun(CHUNKED)
    take = Taker()
    task = await pouring(answer, take)
    connection.data_received(b"%x\r\n%b\r\n" % (200_000, b"x" * 200_000) + LAST)
    await task
    assert take.pieces == [b"x" * 200_000]
    assert connection.is_reusable()
