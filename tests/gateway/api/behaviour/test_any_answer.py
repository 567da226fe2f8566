"""Any answer on its way from its engine's agent to its client's socket: whatever comes in between, the client
gets it, no stream stands still, and nothing of it is left.

Over real sessions, the real server and its short way to clients; by chance, and the same for each seed.
"""

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, GatewayServer, build_server
from gateway.dispatch.recovery import AnswerRecord, RecordBudget
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.response_buffers import UnreadBudget
from gateway.dispatch.response_stream import Ending
from gateway.domain.request import Principal, Request
from shared.protocol.credit import AGENT_WINDOWS, WindowSettings, own_limits
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ErrorCode, TunnelClosed
from shared.protocol.frames import TunnelRole
from shared.protocol.limits import INPUT_SLICE_BYTES, KIB
from shared.protocol.messages import ResponseHead, Trailers
from shared.protocol.session import ProtocolSession
from shared.protocol.stream_handler import _NoHandler
from tests.gateway.api.behaviour.answer_parts import Engine, Joiner, Plan, SocketClient
from tests.gateway.api.support import Surface
from tests.gateway.dispatch.response_buffers.behaviour.workers import HeldWorker, space
from tests.support.session_pair import request_head

READ_BYTES = 256 * KIB
"""Of a tunnel, at once."""
SEEDS, AT_ONCE = 80, 20


class Listener:
    """Is told of streams; nothing else matters here."""

    def __init__(self, on_open: Callable[[Stream], None]) -> None:
        self.on_open = on_open

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *facts: None


class Answer:
    """Owns one response, over one engine or several."""

    def __init__(self, plan: Plan, records: RecordBudget) -> None:
        self.plan = plan
        self.engines: list[Engine] = []
        self.held = self.over = self.wanted = False
        """``wanted``: an engine has to be found for it."""
        self.record = AnswerRecord("chat", records) if plan.kind == "events" else None
        self.response: EngineResponse | None = None
        self.attempt: Attempt | None = None
        self.settled: asyncio.Future[EngineResponse] = asyncio.get_running_loop().create_future()

    def settle(self) -> None:
        if self.response is not None and not self.settled.done():
            self.settled.set_result(self.response)

    def stop(self) -> None:
        """Its client has gone, or it is whole."""
        self.over, self.wanted = True, False
        if self.record is not None:
            self.record.release()
        if self.attempt is not None:
            self.attempt.give_up()

    def reader_done(self, ending: Ending) -> None:
        self.held = False
        if ending is Ending.ABORTED:
            self.stop()

    def much_came(self) -> None:
        self.settle()

    def held_up(self, held_up: bool) -> None:
        self.held = held_up


MakeResponse = Callable[[Answer, Stream, ResponseHead], EngineResponse]


class Attempt(_NoHandler):
    """One stream of an answer at the gateway."""

    def __init__(
        self, answer: Answer, make: Callable[[Answer, Stream, ResponseHead], EngineResponse]
    ) -> None:
        self._answer, self._make = answer, make
        self._given_up = False
        self._response: EngineResponse | None = None
        self.stream: Stream

    def give_up(self) -> None:
        self._given_up, self._response = True, None
        self.stream.reset(ErrorCode.CANCELLED)

    def on_head(self, head: ResponseHead) -> None:
        answer = self._answer
        if self._given_up:
            return
        if answer.response is None:
            answer.response = self._make(answer, self.stream, head)
            if answer.plan.kind != "kept":
                answer.settle()
        else:
            assert answer.record is not None
            answer.record.break_off()
            answer.response.go_on(self.stream, Joiner())  # type: ignore[arg-type]
        self._response = answer.response

    def on_data(self, data: bytes) -> None:
        if self._response is None:
            self.stream.consumed(len(data))
        else:
            self._response.feed(data)

    def on_end(self, trailers: Trailers | None) -> None:
        if self._response is not None and not self._given_up:
            self._response.flush()
            self._answer.over = True
            if self._answer.record is not None:
                self._answer.record.release()
            self._response.end(trailers)
            self._answer.settle()

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        if not self._given_up:
            self.give_up()
            self._answer.wanted = not self._answer.over


class Rig:
    """A gateway and an agent, what is between them, and the clients."""

    def __init__(self, seed: int, server: GatewayServer, directory: Path) -> None:
        self.rng = rng = random.Random(seed)
        self._server, self.now = server, 100.0
        streams, floor = 8, 16 * KIB
        share = rng.choice((0, 8, 64, 512, 2048)) * KIB
        initial = rng.choice((16, 20, 32, 64, 128, 256)) * KIB
        session = (floor * streams + share) * 8 // 7 + 8
        windows = WindowSettings(floor, initial, rng.choice((initial, 4096 * KIB)), session, streams)
        self.gateway = ProtocolSession(TunnelRole.GATEWAY, own_limits(AGENT_WINDOWS), self.now, windows)
        self.agent = ProtocolSession(TunnelRole.AGENT, own_limits(windows), self.now, AGENT_WINDOWS)
        self.gateway.rtt_s = rng.choice((None, 0.001, 0.05, 2.0))
        self._pool_bytes = self.gateway._pool.free
        self._ends = [SessionEndpoint(each, lambda: self.now, lambda: None) for each in self._sessions]
        for end in self._ends:
            end.listener = Listener(self._opened)
        self._to_gateway: deque[bytes] = deque()
        self._records = RecordBudget()
        self.unread, self.worker = UnreadBudget(rng.choice((0, 40, 200, 1000)) * KIB), HeldWorker()
        if rng.random() < 0.5:
            disk_bytes = rng.choice((128, 1000, 8000)) * KIB
            self.unread.spill_to(space(directory, disk_bytes, worker=self.worker))
        self._opening: dict[int, Answer] = {}
        self.answers: list[Answer] = []
        self.clients: list[SocketClient] = []
        self._moved = 0

    @property
    def _sessions(self) -> tuple[ProtocolSession, ProtocolSession]:
        return self.gateway, self.agent

    # --- Requests ---

    async def begin(self) -> None:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.rng.choice((4608, 20_000, 100_000)))
        answer = Answer(Plan(self.rng), self._records)
        self.answers.append(answer)
        self.clients.append(SocketClient(answer.plan, ours))
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._server._make_protocol(), theirs)
        while not answer.wanted:  # noqa: ASYNC110 (until the server has called ``serve``)
            await asyncio.sleep(0)

    async def serve(self, request: Request) -> Any:
        answer = self.answers[-1]
        answer.wanted = True
        try:
            return await answer.settled
        except asyncio.CancelledError:
            if answer.response is not None:
                answer.response.abort()
            answer.stop()
            raise

    def open(self) -> None:
        """Find engines for those who want one."""
        for answer in self.answers:
            if answer.wanted and len(self.gateway._streams) + len(self.gateway._owed) < 8:
                answer.wanted, answer.attempt = False, Attempt(answer, self._respond)
                head = request_head(streaming=answer.plan.kind == "events")
                answer.attempt.stream = self._ends[0].open(head, answer.attempt)
                self._opening[answer.attempt.stream.id] = answer

    def _opened(self, stream: Stream) -> None:
        answer = self._opening.pop(stream.id)
        start = 0 if answer.record is None else answer.record.data.count(b'data: {"n"')
        engine = Engine(stream, answer.plan, start, again=bool(answer.engines))
        answer.engines.append(engine)

    def _respond(self, answer: Answer, stream: Stream, head: ResponseHead) -> EngineResponse:
        kept, key = answer.plan.kind == "kept", f"k{self.rng.randrange(3)}"
        fixed = head, stream, "a", "a/d", "", 0.0, 1, answer, answer.record, kept, self.unread
        return EngineResponse(*fixed, Principal(key, "t", "default"))

    # --- What moves ---

    def speak(self, count: int) -> None:
        self._moved += sum(engine.speak(count) for answer in self.answers for engine in answer.engines)

    def trickle(self, count: int) -> None:
        """Each piece leaves in a message of its own."""
        for _ in range(count):
            self.speak(1)
            self.leave(1 << 20)

    def leave(self, budget_bytes: int) -> None:
        """What the agent has goes on its way."""
        messages = self.agent.data_to_send(budget_bytes, self.now)
        self._ends[1].dispatch()
        self._to_gateway += messages
        self._moved += len(messages)

    def arrive(self, most_bytes: int) -> None:
        """One read of the gateway's, as its tunnel takes it."""
        messages: list[bytes] = []
        while self._to_gateway and sum(map(len, messages)) < most_bytes:
            messages.append(self._to_gateway.popleft())
        later: Any = [] if sum(map(len, messages)) > INPUT_SLICE_BYTES else None
        for message in messages:
            self.gateway.receive_message(message, self.now, later)
            self._ends[0].dispatch()
        if later:
            ProtocolSession.write_bodies(later)

    def answer_back(self) -> None:
        """What the gateway has reaches the agent."""
        for message in self.gateway.data_to_send(1 << 20, self.now):
            self._moved += 1
            self.agent.receive_message(message, self.now)
            self._ends[1].dispatch()
        self._ends[0].dispatch()

    def interrupt(self) -> None:
        """The tunnel is lost, or there is another one."""
        if self.gateway.suspended:
            at_agent, at_gateway = self.agent.log.received, self.gateway.log.received
            self._ends[0].resume(at_agent)
            self._ends[1].resume(at_gateway)
            return
        self._to_gateway.clear()
        for end in self._ends:
            end.suspend(TunnelClosed("gone"))

    def comment(self) -> None:
        for answer in self.answers:
            if answer.wanted and answer.response is not None:
                answer.response.comment()

    def part(self) -> None:
        """A client leaves, seldom."""
        if self.rng.random() < 0.2:
            self.rng.choice(self.clients).leave()

    async def step(self) -> None:
        rng = self.rng
        self.now += rng.choice((0, 0.0005, 0.01, 0.3))
        steps: list[tuple[int, Callable[[], object]]] = [
            (10, lambda: self.trickle(rng.choice((2, 20, 100)))),
            (20, lambda: self.speak(rng.choice((1, 3, 20, 200)))),
            (15, lambda: self.leave(rng.choice((1000, 20_000, 1 << 20)))),
            (20, lambda: self.arrive(rng.choice((1, 16 * KIB, 64 * KIB, READ_BYTES)))),
            (10, self.answer_back),
            (15, lambda: rng.choice(self.clients).read(rng.choice((1, 9000, 70_000, 1 << 20)))),
            (3, self.worker.step),
            (5, self.open),
            (2, self.comment),
            (1, self.interrupt),
            (1, self.part),
        ]
        rng.choices([each for _, each in steps], [weight for weight, _ in steps])[0]()
        for _ in range(rng.choice((0, 1, 3, 8))):
            await asyncio.sleep(0)
        for client in self.clients:
            if client.plan.eager:
                client.read(1 << 20)

    async def settle(self, readers: list[SocketClient]) -> None:
        """Until nothing moves any more though these read; it stays so in a bounded number of turns."""
        if self.gateway.suspended:
            self.interrupt()
        still = 0
        for _ in range(6000):
            before = self._moved
            self.open()
            (self.trickle if self.rng.random() < 0.5 else self.speak)(100)
            self.leave(1 << 20)
            self.arrive(READ_BYTES)
            self.answer_back()
            self._moved += self.worker.step() + sum(client.read(64 * KIB) for client in readers)
            for _ in range(4):
                await asyncio.sleep(0)
            self.now += 0.001
            still = still + 1 if self._moved == before else 0
            if still > 12:
                return
        pytest.fail("something moves for ever")

    # --- What has to hold ---

    def check_credit(self, readers: list[SocketClient]) -> None:
        """Where an engine has to wait, it is for a client that does not read, and that is known."""
        for answer, client in zip(self.answers, self.clients, strict=True):
            for engine in answer.engines:
                stream = self.agent._streams.get(engine.stream.id)
                if stream is None or not stream.out.pending_bytes:
                    continue
                assert stream.out.credit.available == 0
                assert client not in readers, "it reads, and its engine stands still"
                assert answer.response is not None
                assert answer.response.behind, "its engine would be blamed"
                assert answer.held or not answer.settled.done(), "nobody knows that it waits"
            assert not answer.held or (answer.response is not None and answer.response.behind)

    def check_ends(self) -> None:
        """Who stayed has all of its answer, in order."""
        for client in self.clients:
            if not client.gone:
                assert client.answered
                assert client.events() == client.plan.body

    def check_rest(self) -> None:
        assert (self.unread.used_bytes, self.unread.spilled_bytes, self._records.taken_bytes) == (0, 0, 0)
        assert not self.unread._waiting
        gateway = self.gateway
        assert (gateway._streams, gateway._owed, self.agent._streams, self.agent._outbox._blocked) == (
            {},
        ) * 4
        assert gateway._pool.free == self._pool_bytes
        assert gateway.held_bytes == 0


@contextmanager
def rigged(seed: int, server: GatewayServer, surface: Surface, directory: Path) -> Iterator[Rig]:
    rig = Rig(seed, server, directory)
    surface.dispatcher.serve = rig.serve
    try:
        yield rig
    finally:
        for client in rig.clients:
            client.leave()
        rig.worker.catch_up()


async def any_answers(rig: Rig) -> None:
    rng, wanted = rig.rng, rig.rng.choice((1, 2, 4, 6))
    await rig.begin()
    for _ in range(rng.choice((60, 200, 400))):
        if len(rig.clients) < wanted and rng.random() < 0.1:
            await rig.begin()
        await rig.step()
    for share in (0.5, 1.0):
        readers = [client for client in rig.clients if rng.random() < share]
        await rig.settle(readers)
        rig.check_credit(readers)
    rig.check_ends()
    rig.check_rest()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
async def test_a_client_that_reads_gets_its_answer_and_nothing_is_left(first: int, tmp_path: Path) -> None:
    surface = Surface(HttpSettings(comment_interval_s=3600.0))
    server = build_server(surface.app, Address("127.0.0.1", 0), ConnectionLimits(), lambda **options: None)
    server.lifespan = server.config.lifespan_class(server.config)
    for seed in range(first, first + AT_ONCE):
        with rigged(seed, server, surface, tmp_path) as rig:
            async with asyncio.timeout(60):
                await any_answers(rig)
    async with asyncio.timeout(60):
        await surface.lifecycle.wait_idle()
