"""Whole events take a short way from the engine's connection to the tunnel: the gateway hears the same."""

from random import Random
from typing import Any

import pytest

from agent.engines.backend import BackendBody, ResponseReceiver
from agent.engines.http.client.connection import EngineConnection
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import STREAM_WINDOW_BYTES
from shared.protocol.messages import DeploymentState, RequestHead, Usage, UsageMode
from shared.protocol.progress import Progress
from shared.speedups import OutPath
from tests.agent.engines.http.client.test_connection import CHUNKED, LAST, PlayedTransport
from tests.agent.support.canned import until
from tests.agent.support.joined import PlayedBackend
from tests.agent.support.requests_in import TOKEN, agent_with

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = (TOKEN, TOKEN, TOKEN, USAGE, b": comment\n\n", b"data: 1\r\n\r\n", b"half", b"\n", b"data: x\n\n\n")
SEEDS = 60


class ConnectedBackend(PlayedBackend):
    """Its engine is what a test writes to ``connection``. Without ``short`` no body has a path of its own."""

    def __init__(self, *, short: bool = True) -> None:
        super().__init__(DeploymentState(id="e/m", model="m", slots=2))
        self.short = short
        self.transport = PlayedTransport()
        self.connection = EngineConnection(lambda connection: None)
        self.connection.connection_made(self.transport)

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> Any:
        return ConnectedRequest(self, receiver)


class ConnectedRequest:
    """Implements :class:`agent.engines.backend.BackendRequest`, and is told of the answer."""

    def __init__(self, backend: ConnectedBackend, receiver: ResponseReceiver) -> None:
        self._backend = backend
        self._receiver = receiver
        self.on_body = receiver.on_body
        self.resume = backend.connection.resume
        backend.connection.begin(self)
        backend.begun.set()

    def on_answer(self) -> OutPath | None:
        whole = self._backend.connection.whole
        path = self._receiver.on_response(200, (("content-type", "text/event-stream"),), whole=whole)
        return path if self._backend.short else None

    tells_progress = False

    def on_progress(self, progress: Progress) -> None: ...
    def on_over(self, error: Exception | None) -> None:
        self._backend.connection.end()
        self._receiver.on_over(error)

    def let_go(self) -> None:
        self._backend.connection.end()


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def an_answer(random: Random) -> list[bytes]:
    """What an engine sends, whole or spoiled, as its connection brings it."""
    bodies = [b"".join(random.choices(EVENTS, k=random.choice((1, 1, 1, 2)))) for _ in range(12)]
    pieces = [CHUNKED, *map(chunks, bodies), chunks(DONE), LAST]
    if random.random() < 0.3:
        place = random.randrange(1, len(pieces))
        pieces[place] = random.choice(
            (b"x", b"5\r\nab\r\n", b"3;a=b\r\n: \n\r\n", b"00001\r\n\n\r\n", b"\r\n")
        )
    if random.random() < 0.5:
        return pieces
    wire = b"".join(pieces)
    cuts = sorted(random.sample(range(len(wire)), random.choice((1, 5, 40))))
    return [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


async def told(
    pieces: list[bytes], mode: UsageMode, *, short: bool, gather_s: float | None = None
) -> tuple[tuple[bytes, list[tuple[str, Any]]], int]:
    """What the gateway hears of an answer, and how many pieces went the short way."""
    backend, taken = ConnectedBackend(short=short), 0
    async with agent_with(backend) as here:
        _, answer = here.ask(usage=mode, streaming=True, gather_s=gather_s)
        await backend.begun.wait()
        for piece in pieces:
            before = backend.connection.chunks.pieces
            backend.connection.data_received(piece)
            taken += backend.connection.chunks.pieces > before
        backend.connection.eof_received()
        await until(lambda: "closed" in answer.names())
    told_of_it = [each for each in answer.calls if each[0] != "data"]
    return (answer.body, told_of_it), taken


def _without_what_broke(body: bytes, calls: list[tuple[str, Any]]) -> tuple[bytes, list[tuple[str, Any]]]:
    """What waits to be sent when an answer breaks is not sent: nobody reads an answer that is not whole."""
    return b"" if "reset" in dict(calls) else body, calls


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_first_of_a_streamed_answer_is_hastened(streaming: bool, short: bool) -> None:
    backend, hastened = ConnectedBackend(short=short), list[bytes]()
    async with agent_with(backend) as here:
        here.joined.agent.hasten = lambda: hastened.append(b"")
        _, answer = here.ask(usage=UsageMode.KEEP, streaming=streaming)
        await backend.begun.wait()
        backend.connection.data_received(CHUNKED)
        assert hastened == []
        for _ in range(3):
            backend.connection.data_received(chunks(TOKEN))
            assert len(hastened) == streaming
        backend.connection.data_received(chunks(DONE) + LAST)
        await answer.until("end")
    assert len(hastened) == streaming


async def test_pieces_that_may_be_gathered_come_together() -> None:
    backend = ConnectedBackend()
    async with agent_with(backend) as here:
        _, answer = here.ask(usage=UsageMode.KEEP, streaming=True, gather_s=0.05)
        await backend.begun.wait()
        backend.connection.data_received(CHUNKED + chunks(TOKEN))
        await until(lambda: answer.body == TOKEN)  # the first at once
        for _ in range(5):
            backend.connection.data_received(chunks(TOKEN))
        await until(lambda: answer.body == TOKEN * 6)
        backend.connection.data_received(chunks(TOKEN))
        backend.connection.data_received(chunks(DONE) + LAST)
        await answer.until("end")
    pieces = [value for name, value in answer.calls if name == "data"]
    assert pieces == [TOKEN, TOKEN * 5, TOKEN + DONE]


@pytest.mark.parametrize("mode", [UsageMode.STRIP, UsageMode.KEEP])
async def test_however_an_answer_comes_the_gateway_hears_the_same(mode: UsageMode) -> None:
    all_taken = 0
    for seed in range(SEEDS):
        pieces = an_answer(Random(seed))
        short, taken = await told(pieces, mode, short=True)
        ordinary, none = await told(pieces, mode, short=False)
        gathered, no_more = await told(pieces, mode, short=True, gather_s=0.1)
        assert short == ordinary, seed
        assert (none, no_more) == (0, 0)
        assert _without_what_broke(*gathered) == _without_what_broke(*ordinary), seed
        all_taken += taken
    assert all_taken > SEEDS


@pytest.mark.parametrize("mode", [UsageMode.STRIP, UsageMode.KEEP])
async def test_of_an_answer_that_comes_whole_the_gateway_hears_the_same(mode: UsageMode) -> None:
    for pieces in ([], [chunks(TOKEN), chunks(USAGE), chunks(DONE)], [chunks(TOKEN * 2000), chunks(USAGE)]):
        one_by_one, _ = await told([CHUNKED, *pieces, LAST], mode, short=False)
        for gather_s in (None, 0.1):
            whole = CHUNKED + b"".join(pieces) + LAST
            assert (await told([whole], mode, short=True, gather_s=gather_s))[0] == one_by_one


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_answer_that_comes_whole_leaves_together_and_is_hastened(streaming: bool) -> None:
    backend, said = ConnectedBackend(), list[str]()
    async with agent_with(backend) as here:
        endpoint = here.joined.agent
        wake, endpoint.hasten = endpoint.wake, lambda: said.append("hasten")

        def woken() -> None:
            said.append("wake")
            wake()

        endpoint.wake = woken
        _, answer = here.ask(usage=UsageMode.KEEP, streaming=streaming)
        await backend.begun.wait()
        said.clear()
        backend.connection.data_received(CHUNKED + chunks(TOKEN) + LAST)
        assert said == ["wake"] + ["hasten"] * streaming
        await answer.until("end")
    assert answer.body == TOKEN


async def test_usage_behind_events_that_took_the_short_way_is_read() -> None:
    pieces = [CHUNKED + chunks(TOKEN), chunks(TOKEN), chunks(TOKEN, TOKEN), chunks(USAGE), chunks(DONE), LAST]
    backend = ConnectedBackend()
    async with agent_with(backend) as here:
        _, answer = here.ask(usage=UsageMode.STRIP, streaming=True)
        await backend.begun.wait()
        for piece in pieces[:3]:
            backend.connection.data_received(piece)
        assert backend.connection.chunks.pieces == 2
        for piece in pieces[3:]:
            backend.connection.data_received(piece)
        trailers = await answer.until("end")
    assert answer.body == TOKEN * 4 + DONE
    assert trailers.usage == Usage(7, 3)


@pytest.mark.parametrize("gather_s", [None, 0.001])
async def test_an_engine_is_not_read_while_the_gateway_takes_no_more(gather_s: float | None) -> None:
    backend = ConnectedBackend()
    async with agent_with(backend) as here:
        stream, answer = here.ask(streaming=True, gather_s=gather_s)
        await backend.begun.wait()
        backend.connection.data_received(CHUNKED + chunks(TOKEN))
        sent = 1
        while "pause" not in backend.transport.calls:
            backend.connection.data_received(chunks(TOKEN * 100))
            sent += 100
            assert sent * len(TOKEN) < 10 * STREAM_WINDOW_BYTES
        backend.connection.data_received(chunks(TOKEN))
        sent += 1
        taken = 0
        while taken < sent * len(TOKEN):
            await until(lambda taken=taken: len(answer.body) > taken)  # type: ignore[misc]
            stream.consumed(len(answer.body) - taken)
            taken = len(answer.body)
        calls = backend.transport.calls
        assert calls == ["pause", "resume"] * (len(calls) // 2)
        assert len(calls) == 2 or gather_s
        assert answer.body == TOKEN * sent
        backend.connection.data_received(chunks(TOKEN) + LAST)
        await answer.until("end")


async def test_what_an_engine_sends_after_its_request_was_cancelled_goes_nowhere() -> None:
    backend = ConnectedBackend()
    async with agent_with(backend) as here:
        stream, _ = here.ask(streaming=True)
        await backend.begun.wait()
        backend.connection.data_received(CHUNKED + chunks(TOKEN))
        backend.connection.data_received(chunks(TOKEN))
        stream.reset(ErrorCode.CANCELLED)
        await until(lambda: here.registry.running == 0)
        backend.connection.data_received(chunks(TOKEN))
        assert backend.transport.closing
        assert backend.connection.chunks.path is None


@pytest.mark.parametrize(
    "head",
    [
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        CHUNKED.replace(b"\r\n", b"\n"),
        CHUNKED.replace(b"chunked", b"gzip, chunked"),
        b"HTTP/1.1 103 Early\r\n\r\n" + CHUNKED,
    ],
)
async def test_a_body_that_may_begin_elsewhere_has_no_path(head: bytes) -> None:
    backend = ConnectedBackend()
    async with agent_with(backend) as here:
        here.ask(streaming=True)
        await backend.begun.wait()
        backend.connection.data_received(head + chunks(TOKEN))
        assert backend.connection.chunks.path is None
