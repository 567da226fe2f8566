"""Tunnels in memory: an event loop whose time the test moves, and lines that lose, regroup, delay bytes."""

import asyncio
import time
from asyncio import events
from collections.abc import Callable
from typing import Any

from websockets.client import ClientProtocol
from websockets.protocol import Event as WebSocketEvent
from websockets.uri import parse_uri

from shared.handshake import AgentHandshake, GatewayHandshake, Hello, ResumeRequest
from shared.protocol import limits
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import ErrorCode
from shared.tunnel import Accepted, AcceptedTunnel, DialledTunnel, HandshakeQueue
from shared.tunnel.base import SUBPROTOCOL
from tests.support.identities import AGENT_NONCE, NAME, TOKEN, certificate_of, key_of
from tests.support.tunnels import Acceptor, Recorder

_CERTIFICATE = certificate_of(NAME, key_of(NAME), wall_s=time.time())


class ManualLoop(asyncio.BaseEventLoop):
    """Runs callbacks when told, fires timers when time is moved; there is no I/O. It is the running loop from
    its making to :meth:`close`."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1000.0
        self._clock_resolution = 1e-9
        self._selector: Any = self
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.failures.append(context))
        events._set_running_loop(self)

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def settle(self) -> None:
        """Run what is ready, and what that makes ready."""
        for _ in range(100_000):
            if not self._ready and not self._due():  # type: ignore[attr-defined]
                return
            self._run_once()  # type: ignore[attr-defined]
        raise AssertionError("callbacks never end")

    def _due(self) -> bool:
        return any(
            not timer.cancelled() and timer.when() <= self._now_s
            for timer in self._scheduled  # type: ignore[attr-defined]
        )

    def advance(self, by_s: float) -> None:
        """Move the time on, firing what falls due on the way."""
        end_s = self._now_s + by_s
        while True:
            self.settle()
            ahead = [timer.when() for timer in self.timers if timer.when() <= end_s]
            if not ahead:
                break
            self._now_s = max(self._now_s, min(ahead))
        self._now_s = end_s

    def stand_still(self, for_s: float) -> None:
        """Time passes and nothing runs: a callback that blocks, a process that was stopped."""
        self._now_s += for_s

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        return [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    def close(self) -> None:
        events._set_running_loop(None)
        self._ready.clear()  # type: ignore[attr-defined]
        super().close()


class LineTransport(asyncio.Transport):
    """One end of a line: what is written waits here until the line takes it."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: asyncio.Protocol
        self.buffer = bytearray()
        self.lost = False
        self._closing = False
        self._paused = False
        self._high = limits.SOCKET_BUFFER_BYTES

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def pause_reading(self) -> None:
        """Whoever moves bytes lets the loop run before the next ones come, and then reading goes on."""

    def resume_reading(self) -> None:
        pass

    def write(self, data: Any) -> None:
        if self._closing:
            return
        self.buffer += data
        if len(self.buffer) > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def take(self, most_bytes: int) -> bytes:
        """What leaves for the other end."""
        data = bytes(self.buffer[:most_bytes])
        del self.buffer[:most_bytes]
        if self._paused and len(self.buffer) <= self._high // 4 and not self.lost:
            self._paused = False
            self.protocol.resume_writing()
        if self._closing and not self.buffer:
            self._loop.call_soon(self.lose)
        return data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        if not self.buffer:
            self._loop.call_soon(self.lose)

    def abort(self) -> None:
        self._closing = True
        self.buffer.clear()
        self._loop.call_soon(self.lose)

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone, as this end sees it."""
        self._closing = True
        if not self.lost:
            self.lost = True
            self.buffer.clear()
            self.protocol.connection_lost(error)


class LineTunnel(DialledTunnel):
    """The agent's end; sends the upgrade itself."""

    def _handle_upgrade(self, event: WebSocketEvent) -> None:
        pass


class Line:
    """One connection between an agent that dials and an acceptor. Bytes move when the test says so."""

    def __init__(
        self,
        loop: ManualLoop,
        acceptor: Any,
        listener: SessionListener,
        resumes: tuple[str, SessionEndpoint] | None = None,
        handshakes: HandshakeQueue | None = None,
        name: str = NAME,
    ) -> None:
        self._loop = loop
        claim = None
        if resumes is not None:
            claim = ResumeRequest(resumes[0], resumes[1].session.log.received)
        handshake = AgentHandshake(key_of(name), name, AGENT_NONCE, join_token=TOKEN, session=claim)
        websocket = ClientProtocol(
            parse_uri("ws://gateway/tunnel"),
            subprotocols=[SUBPROTOCOL],
            max_size=limits.HANDSHAKE_MESSAGE_BYTES,
        )
        self.agent = LineTunnel(
            websocket, loop.time, handshake, listener, None if resumes is None else resumes[1]
        )
        self.gateway = AcceptedTunnel(acceptor, loop.time, handshakes=handshakes)
        self.agent_end, self.gateway_end = LineTransport(loop), LineTransport(loop)
        self.agent_end.protocol, self.gateway_end.protocol = self.agent, self.gateway
        self.cut = False
        self.agent.connection_made(self.agent_end)
        self.gateway.connection_made(self.gateway_end)
        websocket.send_request(websocket.connect())
        self.agent._write_websocket()

    def move(self, to_agent: bool, most_bytes: int = 1 << 30, piece_bytes: int = 1 << 30) -> int:
        """Takes bytes along one direction, in pieces; gives how many. On a line that is cut they vanish."""
        source, target = self.ends(to_agent)
        data = source.take(most_bytes)
        for start in range(0, len(data), piece_bytes):
            if self.cut or target.lost or target.is_closing():
                break
            target.protocol.data_received(data[start : start + piece_bytes])
            self._loop.settle()
        if source.lost and not self.cut and not target.is_closing() and not source.buffer:
            target.lose()  # the end of the stream arrives after all that was said
        self._loop.settle()
        return len(data)

    def ends(self, to_agent: bool) -> tuple[LineTransport, LineTransport]:
        return (self.gateway_end, self.agent_end) if to_agent else (self.agent_end, self.gateway_end)

    def pump(self) -> None:
        """Moves bytes to and fro until none move."""
        self._loop.settle()
        while self.move(True) + self.move(False):
            self._loop.settle()

    @property
    def welcomed(self) -> bool:
        return self.agent._welcomed.done() and self.agent._welcomed.exception() is None

    @property
    def over(self) -> bool:
        return self.agent_end.lost and self.gateway_end.lost


class LineAcceptor(Acceptor):
    """An acceptor with one agent, whose newest tunnel wins as at a real gateway."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._sessions = 0
        self.endpoint: SessionEndpoint | None = None
        self.session_id = ""
        self.on_attached: Callable[[AcceptedTunnel], None] = lambda tunnel: None

    async def authenticate(self, hello: Hello, handshake: GatewayHandshake) -> Accepted:
        await asyncio.sleep(0)
        assert handshake.verify_join(TOKEN.verifier())
        self._sessions += 1
        return Accepted(hello.name, f"session-{self._sessions}", self._sessions, _CERTIFICATE.der)

    def resume(self, accepted: Accepted, request: ResumeRequest) -> SessionEndpoint | None:
        endpoint = self.endpoint
        if endpoint is None or endpoint.closed or request.id != self.session_id:
            return None
        if not endpoint.session.log.can_resume(request.received):
            return None
        endpoint.drop_tunnel()
        return None if endpoint.closed else endpoint

    def attach(self, accepted: Accepted, tunnel: AcceptedTunnel) -> Recorder:
        old = self.endpoint
        self.tunnels.append(tunnel)
        if old is not tunnel.endpoint:
            if old is not None:
                old.close(ErrorCode.REPLACED, "a newer tunnel took over")
            self.endpoint, self.session_id = tunnel.endpoint, accepted.session_id
        self.on_attached(tunnel)
        return self.listener

    def forget(self) -> None:
        """The gateway gives the session up by itself."""
        if self.endpoint is not None:
            self.endpoint.lost(None)
