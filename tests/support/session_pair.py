"""Two sessions joined in memory: a gateway's and an agent's, with whole messages in between."""

from collections import deque

from shared.protocol.credit import AGENT_WINDOWS, GATEWAY_WINDOWS, WindowSettings, own_limits
from shared.protocol.events import DataReceived, Event
from shared.protocol.frames import FrameType, TunnelRole, decode_message
from shared.protocol.messages import RequestHead, ResponseHead
from shared.protocol.session import ProtocolSession


def request_head(streaming: bool = True, model: str = "demo") -> RequestHead:
    return RequestHead(
        deployment="d1",
        method="POST",
        path="/v1/chat/completions",
        headers=(("content-type", "application/json"),),
        model=model,
        request_id="req-1",
        streaming=streaming,
    )


OK = ResponseHead(200, ())


class SessionPair:
    """``gateway`` and ``agent``, and the messages on their way. Time moves only by ``now``."""

    def __init__(
        self,
        gateway_windows: WindowSettings = GATEWAY_WINDOWS,
        agent_windows: WindowSettings = AGENT_WINDOWS,
    ) -> None:
        self.now = 0.0
        self.gateway = ProtocolSession(
            TunnelRole.GATEWAY, own_limits(agent_windows), self.now, gateway_windows
        )
        self.agent = ProtocolSession(TunnelRole.AGENT, own_limits(gateway_windows), self.now, agent_windows)
        self.to_agent: deque[bytes] = deque()
        self.to_gateway: deque[bytes] = deque()

    def open(self, streaming: bool = True) -> int:
        """A stream that both sides know."""
        stream_id = self.gateway.open_stream(request_head(streaming), self.now)
        self.settle()
        return stream_id

    def answering(self, data: bytes) -> int:
        """A stream whose answer has begun at the agent, with this much of its body."""
        stream_id = self.open()
        self.agent.send_head(stream_id, OK)
        self.agent.send_data(stream_id, data)
        return stream_id

    def send(self, session: ProtocolSession, budget_bytes: int = 1 << 20) -> list[bytes]:
        """Takes what a session has to send and puts it on its way."""
        messages = session.data_to_send(budget_bytes, self.now)
        (self.to_agent if session is self.gateway else self.to_gateway).extend(messages)
        return messages

    def deliver(self, session: ProtocolSession, count: int = 1 << 30) -> list[Event]:
        """Gives a session up to ``count`` of the messages on their way to it, and returns its events."""
        queue = self.to_gateway if session is self.gateway else self.to_agent
        while queue and count > 0:
            session.receive_message(queue.popleft(), self.now)
            count -= 1
        return session.take_events()

    def cut(self) -> None:
        """The tunnel is lost, with everything on its way."""
        self.to_agent.clear()
        self.to_gateway.clear()
        for session in (self.gateway, self.agent):
            session.suspend()

    def reconnect(self) -> None:
        """Another tunnel: HELLO and WELCOME say what each side has received."""
        at_agent, at_gateway = self.agent.log.received, self.gateway.log.received
        self.gateway.resume(at_agent, self.now)
        self.agent.resume(at_gateway, self.now)

    @property
    def connected(self) -> bool:
        return not self.gateway.suspended

    def settle(self) -> tuple[list[Event], list[Event]]:
        """Moves messages to and fro until nothing moves; returns the events of gateway and agent."""
        at_gateway: list[Event] = self.gateway.take_events()
        at_agent: list[Event] = self.agent.take_events()
        while self.send(self.gateway) or self.send(self.agent) or self.to_agent or self.to_gateway:
            at_agent += self.deliver(self.agent)
            at_gateway += self.deliver(self.gateway)
        at_gateway += self.gateway.take_events()
        at_agent += self.agent.take_events()
        return at_gateway, at_agent


def frames_of(messages: list[bytes]) -> list[tuple[str, int]]:
    """The name and the stream of every frame."""
    return [
        (FrameType(frame.type).name, frame.stream_id)
        for message in messages
        for frame in decode_message(message)[1]
    ]


def body(events: list[Event], stream_id: int) -> bytes:
    """The body bytes among events."""
    return b"".join(e.data for e in events if isinstance(e, DataReceived) and e.stream_id == stream_id)


def consumed(session: ProtocolSession, stream_id: int, size_bytes: int, now: float) -> None:
    """A program's consumer took bytes for good; credit is granted when it is due."""
    if session.consume(stream_id, size_bytes):
        session.grant(stream_id, now)
