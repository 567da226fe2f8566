"""A gateway's core with agents in memory: real sessions without sockets, time under the test's control."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.cluster.ownership import Ownership
from gateway.cluster.placement_demands import PlacementDemands
from gateway.dispatch.dispatcher import Dispatcher, DispatchSettings, QueueSettings
from gateway.dispatch.exchange import RequestExchange
from gateway.dispatch.placement import PlacementSettings
from gateway.dispatch.response import EngineResponse
from gateway.domain.request import AgentPrincipal, Principal, Request, RequestBody
from gateway.fleet.registry import Registry, RegistrySettings
from gateway.fleet.session import AgentSession
from gateway.observability.metrics import Metrics
from shared.protocol.credit import OWN_WINDOWS, WindowSettings, own_limits
from shared.protocol.demand import Demand
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ErrorCode, TrunklineError, TunnelClosed
from shared.protocol.frames import TunnelRole
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    DeploymentState,
    DeploymentStatus,
    Drain,
    ResponseHead,
    Trailers,
)
from shared.protocol.others import Others
from shared.protocol.peers import Peers
from shared.protocol.progress import Progress
from shared.protocol.session import ProtocolSession
from tests.gateway.fleet.manual_timers import Loop

MESSAGE_BUDGET_BYTES = 1 << 20


_STEP_S = 0.5


class EngineStream:
    """The agent's end of one stream: what came, and an engine under the test's control."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.head = stream.head
        self.body = b""
        self.body_ended = False
        self.reset_code: ErrorCode | None = None
        self.closed = False
        self.begun = self.ended = False
        """What a test has sent of the answer; kept by the test."""
        self.ready = True
        """Whether the stream takes more of the answer."""
        self.takes_body = True
        """Whether the engine reads the body as it comes, so that more may be sent."""

    def on_head(self, head: ResponseHead) -> None:
        raise AssertionError("agents get no heads")

    def on_progress(self, progress: Progress) -> None:
        raise AssertionError("agents are told of no progress")

    def on_data(self, data: bytes) -> None:
        self.body += data
        if self.takes_body:
            self.stream.consumed(len(data))

    def on_end(self, trailers: Trailers | None) -> None:
        self.body_ended = True

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        self.reset_code = code

    def on_writable(self) -> None:
        self.ready = True

    def on_suspended(self) -> None:
        pass

    def on_resumed(self) -> None:
        pass

    def on_closed(self) -> None:
        self.closed = True

    def confirm(self) -> None:
        """The engine has let go."""
        self.stream.reset(ErrorCode.CANCELLED)


@dataclass
class FakeAgent:
    """An agent at the other end of a session."""

    name: str
    loop: Loop
    endpoint: SessionEndpoint
    labels: Mapping[str, str] = field(default_factory=dict)
    streams: list[EngineStream] = field(default_factory=list)
    """Every stream the gateway opened, oldest first."""
    demand: Mapping[str, Demand] | None = None
    drained: Drain | None = None
    takes_bodies: bool = True
    """What ``takes_body`` is for new streams."""
    lost: bool = False
    lost_error: TrunklineError | None = None
    host: "Callable[[Mapping[str, Any]], None] | None" = None
    """Who carries out commands, for agents that load and unload."""

    def on_open(self, stream: Stream) -> None:
        engine_stream = EngineStream(stream)
        engine_stream.takes_body = self.takes_bodies
        stream.handler = engine_stream
        self.streams.append(engine_stream)

    def on_slots(self, levels: Mapping[str, int]) -> None:
        raise AssertionError("agents get no slots")

    def on_state(self, state: AgentState) -> None:
        raise AssertionError("agents get no state")

    def on_demand(self, demands: Mapping[str, Demand]) -> None:
        self.demand = demands

    def on_peers(self, peers: Peers) -> None:
        self.peers = peers

    def on_others(self, others: Others) -> None:
        raise AssertionError("agents are told nothing of others")

    def on_command(self, command: Mapping[str, Any]) -> None:
        if self.host is not None:
            self.host(command)

    def on_result(self, result: Mapping[str, Any]) -> None:
        pass

    def on_drain(self, drain: Drain) -> None:
        self.drained = drain

    def on_session_suspended(self, error: TrunklineError | None) -> None:
        pass

    def on_session_resumed(self) -> None:
        pass

    def on_session_closed(self, error: TrunklineError | None) -> None:
        self.lost, self.lost_error = True, error

    @property
    def open_streams(self) -> list[EngineStream]:
        return [each for each in self.streams if not each.closed]

    def serve(self, *deployments: DeploymentState, status: AgentStatus = AgentStatus.READY) -> None:
        """Say STATE with these deployments and SLOTS as many as each claims."""
        self.endpoint.send_state(AgentState(status, deployments))
        self.endpoint.send_slots({each.id: each.slots for each in deployments})


def deployment(
    model: str = "m",
    slots: int = 1,
    *,
    id: str | None = None,  # noqa: A002
    routes: tuple[str, ...] = ("chat",),
    status: DeploymentStatus = DeploymentStatus.LOADED,
    **more: Any,
) -> DeploymentState:
    return DeploymentState(id or f"d-{model}", model, routes=routes, slots=slots, status=status, **more)


class Fleet:
    """Registry, dispatcher and any number of agents, run turn by turn by :meth:`settle`."""

    def __init__(
        self,
        *,
        queue: QueueSettings | None = None,
        settings: DispatchSettings | None = None,
        registry: RegistrySettings | None = None,
        policy: str = "least-outstanding",
        placement: PlacementSettings | None = None,
        ownership: Ownership | None = None,
        demands: PlacementDemands | None = None,
    ) -> None:
        self.loop = Loop()
        self.metrics = Metrics()
        self.registry = Registry(
            self.metrics, self.loop, registry or RegistrySettings(), wall=lambda: 1_700_000_000.0
        )
        self.dispatcher = Dispatcher(
            self.registry,
            self.metrics,
            self.loop,
            queue=queue,
            settings=settings,
            policy=policy,
            placement=placement,
            jitter=lambda: 0.0,
            ownership=ownership,
            demands=demands,
        )
        self.agents: list[FakeAgent] = []
        self.sessions: dict[int, AgentSession] = {}
        self._links: list[tuple[SessionEndpoint, SessionEndpoint]] = []
        self._requests = 0

    def connect(
        self,
        name: str = "a",
        *deployments: DeploymentState,
        models: tuple[str, ...] = ("*",),
        labels: Mapping[str, str] | None = None,
        windows: WindowSettings | None = None,
    ) -> FakeAgent:
        """A new tunnel of the agent ``name``, which says at once that it serves ``deployments``."""
        gateway_windows = windows or OWN_WINDOWS[TunnelRole.GATEWAY]
        agent_windows = OWN_WINDOWS[TunnelRole.AGENT]
        ours = ProtocolSession(
            TunnelRole.GATEWAY, own_limits(agent_windows), self.loop.now_s, gateway_windows
        )
        theirs = ProtocolSession(
            TunnelRole.AGENT, own_limits(gateway_windows), self.loop.now_s, agent_windows
        )
        gateway_end = SessionEndpoint(ours, self.loop, lambda: None)
        agent_end = SessionEndpoint(theirs, self.loop, lambda: None)
        agent = FakeAgent(name, self.loop, agent_end, labels=labels or {})
        agent_end.listener = agent
        session = self.registry.attach(AgentPrincipal(name, models, labels or {}), gateway_end)
        gateway_end.listener = session
        self.sessions[id(agent)] = session
        self._links.append((gateway_end, agent_end))
        self.agents.append(agent)
        if deployments:
            agent.serve(*deployments)
        self.settle()
        return agent

    def session(self, agent: FakeAgent) -> AgentSession:
        return self.sessions[id(agent)]

    def cut(self, agent: FakeAgent) -> None:
        """The agent's tunnel breaks without a word. What is under way in either direction is lost."""
        for gateway_end, agent_end in self._links:
            if agent_end is agent.endpoint and not gateway_end.closed:
                gateway_end.lost(TunnelClosed("cut"))
                agent_end.lost(TunnelClosed("cut"))
        self.settle()

    def settle(self) -> None:
        """Run until nothing moves any more; time stands still."""
        moved = True
        while moved:
            moved = self.loop.turn()
            for gateway_end, agent_end in list(self._links):
                moved |= _carry(gateway_end, agent_end, self.loop.now_s)
                moved |= _carry(agent_end, gateway_end, self.loop.now_s)

    def advance(self, by_s: float) -> None:
        """Move the time on, with what crosses the tunnels meanwhile."""
        end_s = self.loop.now_s + by_s
        self.settle()
        for _ in range(int(by_s / _STEP_S)):
            self.loop.advance(_STEP_S)
            self.settle()
        self.loop.advance(max(0.0, end_s - self.loop.now_s))
        self.settle()

    def request(
        self,
        model: str = "m",
        *,
        route: str = "chat",
        body: RequestBody | None = None,
        **more: Any,
    ) -> Request:
        self._requests += 1
        return Request(
            id=f"r{self._requests}",
            principal=more.pop("principal", Principal("k", "key", "tenant")),
            method="POST",
            path="/v1/chat/completions",
            headers=(("content-type", "application/json"),),
            model=model,
            route=route,
            streaming=more.pop("streaming", True),
            body=body or RequestBody(b"{}"),
            arrived_s=self.loop.now_s,
            need=route,
            **more,
        )

    def submit(self, request: Request | None = None) -> "Client":
        """Send a request; admission's errors are kept like all others."""
        client = Client(request or self.request())
        try:
            client.exchange = self.dispatcher.submit(client.request, client.settle)
        except Exception as error:
            client.settle(error)
        self.settle()
        return client

    def assert_quiet(self) -> None:
        """Nothing is open, held or waiting anywhere."""
        self.settle()
        assert self.dispatcher.open_exchanges == 0
        assert self.dispatcher.room.requests == 0
        assert self.dispatcher.room.body_bytes == 0
        unread = self.dispatcher.unread
        assert (unread.used_bytes, unread.spilled_bytes, unread._waiting) == (0, 0, {})
        assert len(self.dispatcher.slow_readers) == 0
        assert not self.dispatcher._preemption._gave_way_for
        for session in self.registry.sessions:
            assert not session.endpoint.streams
            assert session.endpoint.session.held_bytes == 0
            for each in session.deployments.values():
                assert all(number < 0 for number in each.load.running), "those of other processes"
                assert (each.in_flight, each.outstanding) == (0, 0.0)


class Client:
    """Who sent a request, and what came of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.exchange: RequestExchange | None = None
        self.outcomes: list[EngineResponse | Exception] = []

    def settle(self, outcome: EngineResponse | Exception) -> None:
        self.outcomes.append(outcome)

    @property
    def settled(self) -> bool:
        return bool(self.outcomes)

    @property
    def error(self) -> Exception:
        (outcome,) = self.outcomes
        assert isinstance(outcome, Exception), outcome
        return outcome

    @property
    def response(self) -> EngineResponse:
        (outcome,) = self.outcomes
        assert isinstance(outcome, EngineResponse), outcome
        return outcome

    def cancel(self) -> None:
        assert self.exchange is not None
        self.exchange.cancel()


def _carry(sender: SessionEndpoint, receiver: SessionEndpoint, now: float) -> bool:
    messages = sender.session.data_to_send(MESSAGE_BUDGET_BYTES, sender.now())
    moved = _dispatch(sender) or bool(messages)
    for message in messages:
        if not receiver.closed:
            receiver.session.bytes_received(now)
            receiver.session.receive_message(message, now)
    return _dispatch(receiver) or moved


def _dispatch(endpoint: SessionEndpoint) -> bool:
    error = endpoint.dispatch()
    if error is not None:
        endpoint.lost(error)
        return True
    return False
