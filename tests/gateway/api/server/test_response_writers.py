"""The short way of an answer's body and the ordinary one: the same bytes, the same credit, the same ends."""

import asyncio
import re
from types import SimpleNamespace

import pytest

from gateway.api.server.request_parser import READ_AHEAD
from gateway.api.server.response_writers import DirectWriter, WriteBatch
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Headers
from shared.speedups.body_path import STEP_BYTES
from tests.gateway.api.server.test_server import ASK, HEAD, STREAM
from tests.gateway.api.support import EVENTS
from tests.gateway.api.talks import SOCKETS_BYTES, Talk, both, events, told
from tests.gateway.app.behaviour.test_memory import TIMES, cycles

WINDOW_BYTES = 128 * 1024
PLAIN = {"socket": SimpleNamespace(fileno=lambda: 7)}
LENGTH = (("content-length", str(sum(map(len, events(3))))),)


async def test_a_stream_of_events() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(500))
        await talk.say(b"data: [DONE]\n\n")
        await talk.end()

    talk = await both(scenario)
    assert talk.got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert talk.sent == [sum(map(len, events(500)[1:])) + len(b"data: [DONE]\n\n")]
    assert talk.engine.consumed_bytes == talk.engine.received_bytes > STEP_BYTES


async def test_events_that_come_in_pieces_are_passed_on_whole() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        whole = b"".join(events(30))
        await talk.say(*(whole[at : at + 31] for at in range(0, len(whole), 31)))
        await talk.end()

    assert any((await both(scenario)).sent)


async def test_what_was_held_back_of_an_event_is_dropped_when_it_breaks() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(3), b'data: {"ha')
        assert talk.record is not None
        talk.record.break_off()
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        talk.got += await talk.client.until(b"0\r\n\r\n")

    talk = await both(scenario)
    assert b'"ha' not in talk.got
    assert b'data: {"error":{"message":"The engine died."' in talk.got


async def test_an_error_becomes_an_event_of_its_own_whatever_came_before() -> None:
    async def scenario(talk: Talk) -> None:
        talk.recorded = False
        await talk.begin()
        await talk.say(*events(2), b'data: {"ha')
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        talk.got += await talk.client.until(b"0\r\n\r\n")

    talk = await both(scenario)
    assert b'data: {"ha\r\n' in talk.got
    assert b'\n\ndata: {"error":{"message":"The engine died."' in talk.got


async def test_an_answer_without_a_length_comes_in_chunks() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-type", "audio/mpeg"),), False
        await talk.begin(ASK)
        await talk.say(b"a" * 1000, b"b", b"c" * 70_000, b"d" * 1000)
        await talk.end()

    assert (await both(scenario)).sent == [1001]


async def test_an_answer_of_a_given_length_comes_as_it_is() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-length", "3000"),), False
        await talk.begin(ASK)
        await talk.say(b"a" * 1000, b"b" * 1000, b"c" * 1000)
        await talk.end(b"c" * 1000)
        await talk.begin(ASK)
        await talk.say(b"d" * 3000)
        await talk.end(b"d" * 3000)

    assert (await both(scenario)).sent == [2000, 0]


@pytest.mark.parametrize("length", ["30", "10"])
async def test_an_answer_of_another_length_than_announced_is_visibly_broken(length: str) -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-length", length),), False
        await talk.begin(ASK)
        await talk.say(b"a" * 8, b"b" * 8)
        talk.response.end(None)
        await talk.rest()

    talk = await both(scenario)
    assert talk.got.endswith(b"a" * 8 + (b"b" * 8 if length == "30" else b""))


async def test_an_answer_that_breaks_stays_unended() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (), False
        await talk.begin(ASK)
        await talk.say(b"half", b"of it")
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        await talk.rest()

    assert (await both(scenario)).got.endswith(b"5\r\nof it\r\n")


@pytest.mark.parametrize("headers", [EVENTS, LENGTH])
async def test_a_client_of_http_1_0_gets_the_body_as_it_is_until_the_connection_ends(
    headers: Headers,
) -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers = headers
        head = (
            b"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer sk-tl-test\r\nx-request-id: r\r\n"
        )
        await talk.begin(STREAM, head=head + b"content-length: %d\r\n\r\n" % len(STREAM))
        await talk.say(*events(3))
        talk.response.end(None)
        await talk.rest()

    talk = await both(scenario)
    head, _, body = talk.got.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert body == b"".join(events(3))
    assert talk.sent == [sum(map(len, events(3)[1:]))]


async def test_a_client_of_http_1_0_is_told_of_an_error_in_a_stream() -> None:
    async def scenario(talk: Talk) -> None:
        length = b"x-request-id: r\r\ncontent-length: %d\r\n\r\n" % len(STREAM)
        await talk.begin(STREAM, head=HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + length)
        await talk.say(*events(2))
        talk.response.break_off(ErrorCode.ENGINE_FAILED, "The engine died.")
        await talk.rest()

    assert b'}\n\ndata: {"error"' in (await both(scenario)).got


async def test_an_answer_to_head_has_no_body() -> None:
    async def scenario(talk: Talk) -> None:
        talk.headers, talk.recorded = (("content-length", "3000"),), False
        head = (
            HEAD.replace(b"POST /v1/chat/completions", b"HEAD /engines/m/page") + b"x-request-id: r\r\n\r\n"
        )
        await talk.begin(b"", head=head)
        await talk.say(b"a" * 1000, b"b" * 1000)
        talk.response.end(None)
        await talk.begin(b"", head=head)
        talk.response.end(None)

    assert not any((await both(scenario)).sent)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario(talk: Talk) -> None:
        talk.surface.dispatcher.arrived.clear()
        talk.client.post(STREAM, b"x-request-id: a")
        talk.client.post(STREAM, b"x-request-id: b")
        for _ in range(2):
            async with asyncio.timeout(60):
                await talk.surface.dispatcher.arrived.wait()
            talk.surface.dispatcher.arrived.clear()
            talk.got += await talk.client.until(b"\r\n\r\n")
            await talk.say(*events(5))
            await talk.end()

    talk = await both(scenario)
    assert talk.sent == [sum(map(len, events(5)[1:]))] * 2


@pytest.mark.parametrize("further", [1, READ_AHEAD + 1])
async def test_a_client_that_pipelines_and_leaves_frees_the_engine(further: int) -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(2))
        for number in range(further):
            talk.client.post(STREAM, b"x-request-id: b%d" % number)
        await talk.turn()
        talk.client.writer.transport.abort()
        async with asyncio.timeout(60):
            while talk.engine.reset_code is None:
                await talk.turn()
                if further > READ_AHEAD:  # the socket is not read, so only writing shows it
                    await talk.say(b"data: more\n\n")

    for direct in (True, False):
        assert (await told(scenario, direct=direct)).engine.reset_code is ErrorCode.CANCELLED


async def test_a_client_that_hangs_up_frees_the_engine() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(5))
        talk.client.writer.transport.abort()
        async with asyncio.timeout(60):
            while talk.engine.reset_code is None:
                await talk.turn()
        await talk.say(*events(2))

    talk = await both(scenario)
    assert talk.engine.reset_code is ErrorCode.CANCELLED
    assert talk.engine.consumed_bytes == talk.engine.received_bytes


@pytest.mark.parametrize("padding_bytes", [0, 300_000])
async def test_a_client_that_hangs_up_while_nothing_comes_frees_the_engine(padding_bytes: int) -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin(STREAM[:-1] + b',"p":"' + b"x" * padding_bytes + b'"}')
        talk.client.writer.transport.abort()
        async with asyncio.timeout(60):
            while talk.engine.reset_code is None:
                await talk.turn()

    assert (await both(scenario)).engine.reset_code is ErrorCode.CANCELLED


async def test_comments_and_events_of_our_own_come_in_between() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(2))
        talk.response.comment()
        await talk.turn()
        await talk.say(*events(2))
        talk.response.add(b"data: [DONE]\n\n")
        await talk.end()

    assert b"event" not in (await both(scenario)).got.partition(b"\r\n\r\n")[2]


async def test_another_engine_goes_on_in_the_middle() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(3), b'data: {"ha')
        talk.go_on_at_another()
        await talk.say(*events(3), b"data: x\n", b"\n")
        talk.response.flush_joined()
        talk.response.flush()
        await talk.end()

    talk = await both(scenario)
    assert talk.sent == [sum(map(len, events(3)[1:]))]
    assert b"DATA: X" in talk.got
    assert b"data: joined" in talk.got
    assert all(engine.consumed_bytes == engine.received_bytes for engine in talk.engines)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 492 + b"\n\n", b"x" * 16384])
async def test_a_client_that_stops_reading_stops_its_engine_and_loses_nothing(piece: bytes) -> None:
    async def scenario(talk: Talk) -> None:
        talk.recorded = piece.startswith(b"data")
        await talk.begin()
        await talk.say(piece, piece)
        talk.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while talk.engine.held_bytes + len(piece) <= WINDOW_BYTES:
            for _ in range(64):
                if talk.engine.held_bytes + len(piece) <= WINDOW_BYTES:
                    talk.engine.received_bytes += len(piece)
                    talk.response.feed(piece)
            await talk.turn()
            assert talk.engine.received_bytes < SOCKETS_BYTES
        talk.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        talk.response.end(None)
        body = await talk.client.until(b"\r\n0\r\n\r\n")
        assert talk.engine.consumed_bytes == talk.engine.received_bytes
        assert len(re.sub(rb"(?:\A|\r\n)[0-9a-f]+\r\n(?:\r\n\Z)?", b"", body)) == talk.engine.received_bytes

    for direct in (True, False):
        talk = await told(scenario, direct=direct)
        assert (talk.sent[0] > len(piece)) == direct


async def test_nothing_of_an_answer_stays_behind() -> None:
    async def scenario(talk: Talk) -> None:
        async def answer() -> None:
            await talk.begin()
            await talk.say(*events(3))
            await talk.end()
            await talk.turn()
            talk.surface.finished.clear()
            talk.surface.dispatcher.requests.clear()

        await answer()
        with cycles() as found:
            for _ in range(TIMES):
                await answer()
        assert not [name for name, count in found.items() if count >= TIMES]

    await told(scenario, direct=True)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({}, -1), (PLAIN, 7), (PLAIN | {"sslcontext": object()}, -1), (PLAIN | {"ssl_object": object()}, -1)],
)
def test_only_a_plain_connection_s_socket_is_given_to_the_path(
    extra: dict[str, object], expected: int
) -> None:
    transport = SimpleNamespace(
        write=lambda data: None, get_write_buffer_size=lambda: 0, get_extra_info=extra.get
    )
    cycle = SimpleNamespace(
        transport=transport, flow=None, scope={"method": "POST"}, chunked_encoding=True, disconnected=False
    )
    writer = DirectWriter(cycle, WriteBatch())  # type: ignore[arg-type]
    assert writer.path is not None
    assert writer.path.descriptor == expected
    writer.detach()
    assert writer.path.descriptor == -1


async def test_a_client_whose_write_fails_holds_up_no_other_of_its_batch() -> None:
    batch, written, reported = WriteBatch(), list[bytes](), list[object]()

    def broken(data: bytes) -> None:
        raise RuntimeError("no transport any more")

    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )
    for write in (broken, written.append):
        cycle = SimpleNamespace(
            transport=SimpleNamespace(
                write=write, get_write_buffer_size=lambda: 0, get_extra_info=lambda name: None
            ),
            flow=SimpleNamespace(write_paused=False),
            scope={"method": "POST"},
            chunked_encoding=True,
            disconnected=False,
        )
        assert DirectWriter(cycle, batch)(b"data: 1\n\n")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert b"".join(written) == b"9\r\ndata: 1\n\n\r\n"
    assert [str(error) for error in reported] == ["no transport any more"]
