"""An answer on its way from the transport to whoever takes it, byte by byte, without a socket."""

import asyncio
import gc
import time
import weakref

import pytest

from agent.engines.backend import BackendFailed, BackendTimeout
from agent.engines.http.client.exchange import READ_BUFFER_BYTES, EngineExchange

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


def begun(received: bytes = b"", *, head_only: bool = False) -> tuple[EngineExchange, PlayedTransport]:
    transport = PlayedTransport()
    exchange = EngineExchange(transport, head_only=head_only)
    if received:
        exchange.data_received(received)
    return exchange, transport


async def pouring(exchange: EngineExchange, take: Taker) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(exchange.pour(take))
    await asyncio.sleep(0)
    return task


async def test_pieces_are_taken_in_the_turn_that_brings_them() -> None:
    exchange, _ = begun(CHUNKED)
    take = Taker()
    task = await pouring(exchange, take)
    exchange.data_received(CHUNK)
    exchange.data_received(CHUNK + CHUNK)
    assert take.pieces == [EVENT, EVENT + EVENT]
    exchange.data_received(LAST)
    await task
    assert exchange.reusable


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_however_the_bytes_are_cut_the_body_is_the_same(size: int) -> None:
    exchange, _ = begun()
    take, answer = Taker(), CHUNKED + CHUNK * 3 + LAST
    task = await pouring(exchange, take)
    for start in range(0, len(answer), size):
        exchange.data_received(answer[start : start + size])
    await task
    assert b"".join(take.pieces) == EVENT * 3
    assert exchange.reusable


async def test_what_comes_before_anybody_takes_it_waits_and_no_more_than_the_buffer_is_read() -> None:
    exchange, transport = begun(HEAD + b"content-length: 1000000\r\n\r\n")
    for _ in range(READ_BUFFER_BYTES // 16_384):
        exchange.data_received(b"x" * 16_384)
    assert transport.calls == ["pause"]
    take = Taker()
    task = await pouring(exchange, take)
    assert [len(piece) for piece in take.pieces] == [READ_BUFFER_BYTES]
    assert transport.calls == ["pause", "resume"]
    task.cancel()


async def test_whoever_wants_no_more_stops_the_reading_until_he_does() -> None:
    exchange, transport = begun(CHUNKED)
    take = Taker()
    take.willing = False
    task = await pouring(exchange, take)
    exchange.data_received(CHUNK)
    exchange.data_received(CHUNK)  # a TLS transport may have had it already
    assert (take.pieces, transport.calls) == ([EVENT], ["pause"])
    take.willing = True
    exchange.resume()
    assert (take.pieces, transport.calls) == ([EVENT, EVENT], ["pause", "resume"])
    exchange.data_received(LAST)
    await task


async def test_an_answer_is_not_over_before_its_last_piece_was_taken() -> None:
    exchange, _ = begun(CHUNKED)
    take = Taker()
    take.willing = False
    task = await pouring(exchange, take)
    exchange.data_received(CHUNK)
    exchange.data_received(CHUNK + LAST)
    await asyncio.sleep(0)
    assert not task.done()
    exchange.resume()
    await task
    assert take.pieces == [EVENT, EVENT]


async def test_what_the_taker_raises_ends_the_request() -> None:
    def take(piece: bytes) -> bool:
        raise LookupError(piece)

    exchange, transport = begun(CHUNKED)
    task = asyncio.ensure_future(exchange.pour(take))
    await asyncio.sleep(0)
    exchange.data_received(CHUNK + LAST)
    with pytest.raises(LookupError):
        await task
    assert transport.calls == ["abort"]
    assert not exchange.reusable


async def test_interim_answers_are_skipped() -> None:
    exchange, _ = begun(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    assert exchange.status == 0
    exchange.data_received(HEAD + b"content-length: 2\r\n\r\nok")
    take = Taker()
    await exchange.head()
    await exchange.pour(take)
    assert (exchange.status, take.pieces) == (200, [b"ok"])
    assert [name for name, _ in exchange.raw_headers] == [b"content-type", b"content-length"]
    assert exchange.reusable


@pytest.mark.parametrize(
    "rest",
    [b"HTTP/1.1 200 OK\r\n", b"what is this", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"],
)
async def test_a_connection_on_which_more_came_than_the_answer_is_not_used_again(rest: bytes) -> None:
    exchange, _ = begun(HEAD + b"content-length: 2\r\n\r\nok" + rest)
    take = Taker()
    await exchange.pour(take)
    assert take.pieces[0] == b"ok"
    assert b"".join(take.pieces) == b"ok"
    assert not exchange.reusable


async def test_an_answer_to_head_has_no_body_whatever_it_says() -> None:
    exchange, _ = begun(HEAD + b"content-length: 1000\r\n\r\nbut", head_only=True)
    take = Taker()
    await exchange.pour(take)
    assert take.pieces == []
    assert not exchange.reusable


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_some_answers_have_no_body_and_leave_the_connection(status: bytes) -> None:
    exchange, _ = begun(b"HTTP/1.1 " + status + b"\r\n\r\n")
    await exchange.pour(Taker())
    assert exchange.reusable


async def test_without_framing_the_end_of_the_connection_is_the_end_of_the_body() -> None:
    exchange, _ = begun(HEAD + b"\r\n")
    take = Taker()
    task = await pouring(exchange, take)
    exchange.data_received(b"all of it")
    exchange.eof_received()
    await task
    assert take.pieces == [b"all of it"]
    assert not exchange.reusable


@pytest.mark.parametrize(
    "head", [HEAD + b"\r\n", CHUNKED, HEAD + b"connection: close\r\ncontent-length: 10\r\n\r\n"]
)
async def test_a_connection_that_breaks_is_no_end(head: bytes) -> None:
    exchange, _ = begun(head)
    task = await pouring(exchange, Taker())
    exchange.connection_lost(ConnectionResetError())
    with pytest.raises(BackendFailed, match="in the middle of its answer"):
        await task
    assert exchange.closed
    assert exchange.answered


async def test_what_came_before_the_framing_broke_is_passed_on() -> None:
    exchange, transport = begun(CHUNKED)
    take = Taker()
    task = await pouring(exchange, take)
    exchange.data_received(CHUNK + b"zz\r\n")
    with pytest.raises(BackendFailed, match="no HTTP"):
        await task
    assert (take.pieces, transport.calls) == ([EVENT], ["abort"])


@pytest.mark.parametrize(
    "piece",
    [b"HTTP/1.1 100 Continue\r\n\r\n" * 40, b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1000],
)
async def test_a_head_that_never_ends_is_given_up(piece: bytes) -> None:
    exchange, transport = begun(piece)
    more = piece if piece.endswith(b"\n") else b"y" * 1000
    for _ in range(100):
        if transport.closing:
            break
        exchange.data_received(more)
    with pytest.raises(BackendFailed, match="no HTTP"):
        await exchange.head()


async def test_trailers_that_never_end_are_given_up() -> None:
    exchange, transport = begun(CHUNKED + CHUNK)
    task = await pouring(exchange, Taker())
    exchange.data_received(b"0\r\nx: ")
    for _ in range(100):
        exchange.data_received(b"y" * 1000)
    with pytest.raises(BackendFailed, match="no HTTP"):
        await task
    assert transport.closing


async def test_trailers_are_nobodys_business() -> None:
    exchange, _ = begun(CHUNKED + CHUNK + b"0\r\nx: y\r\n\r\n")
    await exchange.pour(Taker())
    assert b"x" not in dict(exchange.raw_headers)
    assert exchange.reusable


async def test_silence_is_not_counted_while_nobody_wants_more() -> None:
    exchange, _ = begun(CHUNKED)
    take = Taker()
    take.willing = False
    exchange.expect_within(0.01)
    task = await pouring(exchange, take)
    exchange.data_received(CHUNK)
    await asyncio.sleep(0.05)
    assert exchange.error is None
    take.willing = True
    exchange.resume()
    with pytest.raises(BackendTimeout, match="in the middle of"):
        await task


async def test_an_exchange_that_was_let_go_is_no_cycle() -> None:
    exchange, transport = begun(CHUNKED + CHUNK + LAST)
    await exchange.pour(Taker())
    exchange.let_go(cut=False)
    gone = weakref.ref(transport)
    gc.disable()
    try:
        del exchange, transport
        assert gone() is None
    finally:
        gc.enable()


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
    exchange, transport = begun(before)
    began_s = time.thread_time()
    exchange.data_received(unit * (256 * 1024 // len(unit)))
    assert time.thread_time() - began_s < 0.015, "at most 2 ms are meant; the rest is for slow machines"
    assert isinstance(exchange.error, BackendFailed)
    assert why in exchange.error.reason
    assert transport.closing


async def test_a_long_piece_of_a_body_is_taken_as_one() -> None:
    exchange, _ = begun(CHUNKED)
    take = Taker()
    task = await pouring(exchange, take)
    exchange.data_received(b"%x\r\n%b\r\n" % (200_000, b"x" * 200_000) + LAST)
    await task
    assert take.pieces == [b"x" * 200_000]
    assert exchange.reusable
