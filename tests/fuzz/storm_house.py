"""A gateway's end for agents in memory: real tunnels, sessions, registry and dispatcher; time is the test's.

Agents with streams whose every token is counted run beside whatever else is at the gateway.
"""

import asyncio
from typing import Any

from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.response import EngineResponse
from gateway.domain.request import AgentPrincipal, Principal, Request, RequestBody
from gateway.fleet.registry import Registry, RegistrySettings
from gateway.observability.metrics import Metrics
from shared.handshake import ResumeRequest
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.messages import ResponseHead
from shared.tunnel import Accepted, AcceptedTunnel
from tests.gateway.fleet.fleet import EngineStream, FakeAgent, deployment
from tests.support.lines import Line, ManualLoop
from tests.support.tunnels import Acceptor

MODEL = "m"
"""Of the honest agents."""
MODELS = 300
"""Remembered at most, so that new ones stop to count soon."""
_STREAMS = 4
"""Of each honest agent."""
_HEAD = ResponseHead(200, (("content-type", "application/octet-stream"),))


class _Registering(Acceptor):
    """Lets everybody in and gives their sessions to the registry, as the agent endpoint does."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry

    def resume(self, accepted: Accepted, request: ResumeRequest) -> SessionEndpoint | None:
        return None

    def attach(self, accepted: Accepted, tunnel: AcceptedTunnel) -> Any:
        name = str(accepted.identity)
        models = ("*",) if name.startswith("honest") else ("evil*",)
        return self._registry.attach(
            AgentPrincipal(name, models, {}), tunnel.endpoint, self._registry.next_generation(), name
        )


class Reader:
    """A client's side of one stream, and the engine's."""

    def __init__(self, engine: EngineStream) -> None:
        self.engine = engine
        self.sent = self.got = b""
        self._tokens = 0

    def say(self) -> None:
        """The engine's next token."""
        token = b"%d " % self._tokens
        self._tokens += 1
        self.sent += token
        self.engine.stream.send_data(token)

    async def read(self, response: EngineResponse) -> None:
        """Until it ends."""
        while chunks := await response.next_chunks():
            self.got += b"".join(chunks)
            response.consumed(sum(map(len, chunks)))


class StormHouse:
    """Use :meth:`close` at the end. ``honest`` agents have streams that go on with :meth:`tick`."""

    def __init__(self, honest: int = 2) -> None:
        self.loop = ManualLoop()
        self.metrics = Metrics()
        self.registry = Registry(self.metrics, self.loop.time, RegistrySettings(max_models=MODELS))
        self.dispatcher = Dispatcher(self.registry, self.metrics, self.loop, jitter=lambda: 0.0)
        self.acceptor = _Registering(self.registry)
        self.lines: list[Line] = []
        self.readers: list[Reader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._requests = 0
        for number in range(honest):
            self._settle_in(f"honest-{number}")
        assert len(self.readers) == honest * _STREAMS

    def dial(self, name: str, listener: SessionListener) -> Line:
        """An authenticated tunnel."""
        line = Line(self.loop, self.acceptor, listener, name=name)
        line.pump()
        assert line.welcomed, line.agent._welcomed
        return line

    def _settle_in(self, name: str) -> None:
        agent = FakeAgent(name, self.loop, None)  # type: ignore[arg-type]
        line = self.dial(name, agent)
        self.lines.append(line)
        agent.endpoint = line.agent.endpoint
        agent.serve(deployment(MODEL, _STREAMS))
        line.pump()
        for _ in range(_STREAMS):
            self.ask(MODEL)
        self.pump()
        for engine in agent.streams:
            engine.stream.send_head(_HEAD)
            self.readers.append(Reader(engine))
        self.pump()

    def ask(self, model: str) -> None:
        """A client's request; what comes is read by the next reader without an answer."""
        self._requests += 1
        request = Request(
            id=f"r{self._requests}",
            principal=Principal("k", "key", "tenant"),
            method="POST",
            path="/v1/chat/completions",
            headers=(("content-type", "application/json"),),
            model=model,
            route="chat",
            streaming=True,
            body=RequestBody(b"{}"),
            arrived_s=self.loop.time(),
            need="chat",
        )
        number = self._requests - 1

        def settle(outcome: EngineResponse | Exception) -> None:
            if isinstance(outcome, EngineResponse) and number < len(self.readers):
                self._tasks.append(self.loop.create_task(self.readers[number].read(outcome)))

        self.dispatcher.submit(request, settle)

    def session_of(self, name: str) -> Any:
        """The session of this agent, while there is one."""
        return next((each for each in self.registry.sessions if each.principal.name == name), None)

    def pump(self) -> None:
        """Move what honest agents and the gateway have for each other."""
        self.loop.settle()
        while sum(line.move(True) + line.move(False) for line in self.lines):
            self.loop.settle()

    def tick(self, by_s: float) -> None:
        """Time passes, and every honest engine says a token."""
        self.loop.advance(by_s)
        for reader in self.readers:
            reader.say()
        self.pump()

    def lagging(self) -> list[Reader]:
        """Streams whose clients have not exactly what their engines said."""
        return [reader for reader in self.readers if reader.got != reader.sent]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for line in self.lines:
            line.gateway.abort()
            line.agent.abort()
        self.loop.settle()
        self.loop.close()
