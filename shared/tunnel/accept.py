"""The gateway's end of a tunnel: an upgraded HTTP connection (PROTOCOL §2.1, §8.1)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from secrets import token_bytes
from typing import Any, Protocol

from websockets.http11 import Request
from websockets.protocol import Event as WebSocketEvent
from websockets.server import ServerProtocol

from shared.handshake import GatewayHandshake, Hello, ResumeRequest
from shared.handshake.messages import NONCE_BYTES
from shared.identity import GatewayKeys
from shared.protocol import limits
from shared.protocol.credit import OWN_WINDOWS, own_limits
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import (
    ErrorCode,
    HandshakeError,
    HandshakeRejected,
    InternalTrouble,
    TrunklineError,
    TunnelClosed,
    UnexpectedFrame,
)
from shared.protocol.frames import Frame, FrameType, TunnelRole, encode
from shared.protocol.peers import PeerDirectory
from shared.tunnel.base import GATEWAYS_HEADER, LATE_S, PATH, READ_FIRST_S, SUBPROTOCOL, Tunnel
from shared.tunnel.deadline_wheel import DeadlineWheel
from shared.tunnel.handshake_queue import HandshakeQueue, HandshakeQueueFull
from shared.tunnel.read_gatherer import ReadGatherer

_STRANGER_BYTES = limits.UPGRADE_REQUEST_BYTES + limits.HANDSHAKE_MESSAGE_BYTES + limits.KIB
"""All that comes before WELCOME: the head of the upgrade request, one message, and what frames it."""

NEW_S = 1.0
"""A session's input shares the turns of handshakes for so long after WELCOME, and so does the first input
after that. Agents that came together say together what they serve, which takes as long as a handshake."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a gateway decided about an agent; ``identity`` is the acceptor's own and comes back in attach."""

    identity: Any
    session_id: str
    generation: int
    certificate_der: bytes | None = None


class TunnelAcceptor(Protocol):
    """Decides which agents get in."""

    @property
    def gateway_keys(self) -> GatewayKeys:
        """The keys the gateway proves itself with. Raises :class:`TrunklineError` when they cannot be had."""

    def prepare(self) -> "asyncio.Future[None] | None":
        """What a new connection must wait for, so that ``gateway_keys`` are up to date; None: nothing. When
        it fails, ``gateway_keys`` raises the error."""

    def connected(self, tunnel: "AcceptedTunnel") -> None:
        """A stranger connected. Raises :class:`TrunklineError` to turn it away; every call that did not is
        followed by one of ``disconnected``."""

    def disconnected(self, tunnel: "AcceptedTunnel") -> None:
        """The connection is gone."""

    def refused(self, tunnel: "AcceptedTunnel", error: HandshakeError) -> None:
        """Its HELLO did not verify; REJECT with the reason is out."""

    async def authenticate(self, hello: Hello, handshake: GatewayHandshake) -> Accepted:
        """Raises :class:`~shared.protocol.errors.HandshakeError`, whose code and text REJECT carries."""

    def resume(self, accepted: Accepted, request: ResumeRequest) -> SessionEndpoint | None:
        """The session that the agent wants to resume, if it is the agent's and can go on. A tunnel that it
        still had has been dropped. None: the agent gets a new session."""

    def attach(self, accepted: Accepted, tunnel: "AcceptedTunnel") -> SessionListener | None:
        """WELCOME is out, and ``tunnel.endpoint`` may be used. Returns the listener of a new session; a
        session that goes on has one already."""


class AcceptedTunnel(Tunnel):
    """The gateway's end, from the HTTP upgrade on (PROTOCOL §2.1, §8.1).

    Each step of the handshake waits for its turn: the upgrade with CHALLENGE, HELLO, and WELCOME or REJECT.
    So does what the agent sends within ``NEW_S`` of WELCOME and first after that, which includes all that it
    serves. The time that a stranger has for the handshake counts while the gateway waits for it, and not
    while it waits for the gateway.
    """

    def __init__(
        self,
        acceptor: TunnelAcceptor,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        handshakes: HandshakeQueue | None = None,
        deadlines: DeadlineWheel | None = None,
        peers: PeerDirectory | None = None,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
        gatherer: ReadGatherer | None = None,
    ) -> None:
        """``wall`` gives Unix time, for the dates of certificates. Tunnels of a gateway share ``handshakes``
        and ``deadlines``; without them this one has its own. ``peers`` are the processes of a gateway that
        has several. ``at_turn_end`` has something called once the present turn of the loop is over; without
        it the loop is asked. ``gatherer`` reads all of them together, once they are no longer new."""
        websocket = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=limits.HANDSHAKE_MESSAGE_BYTES)
        super().__init__(websocket, clock, deadlines or DeadlineWheel(asyncio.get_running_loop()))
        if at_turn_end is not None:
            self._write_scheduler.at_turn_end = at_turn_end
        self._server = websocket
        self._acceptor = acceptor
        self._wall = wall
        self._handshakes = HandshakeQueue(self._loop) if handshakes is None else handshakes
        self._peers = peers
        self._gatherer = gatherer
        self._gathered = -1
        """The descriptor that the gatherer reads; -1: the transport reads."""
        self.capabilities: tuple[str, ...] = ()
        """What is agreed on with the agent (PROTOCOL §8.5)."""
        self._input_waits = True
        self._new_until_s = inf
        """Until then input waits for its turn."""
        self._unread = bytearray()
        """Input that waits for its turn."""
        self._prepared = False
        self._ended = False
        """The peer closed its direction after that input."""
        self._left_s = limits.HANDSHAKE_TIMEOUT_S
        """What was left of the stranger's time when it last stopped counting."""
        self._handshake: GatewayHandshake | None = None
        self._task: asyncio.Task[None] | None = None
        self._admitted = False
        self.upgrade_fields: Sequence[tuple[bytes, bytes]] = ()
        """The upgrade's header, names in lower case, during ``TunnelAcceptor.connected``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._count_time()

    def _put_off(self, data: bytes) -> None:
        if self._closing:
            return
        size_bytes = self.traffic.bytes_received + len(self._unread) + len(data)
        if self._session is None and size_bytes > _STRANGER_BYTES:
            self.abort(TunnelClosed("a stranger sent too much"))
            return
        waits = bool(self._unread)
        self._unread += data
        if not waits:
            if self._session is None:
                self._stop_time()
            elif self._transport is not None:
                self._transport.pause_reading()
            self._await_turn(self._read)

    def eof_received(self) -> bool:
        """Keeps the connection until earlier input has had its turn. Over TLS both directions end at once."""
        transport = self._transport
        self._ended = bool(self._unread) and transport is not None and transport.can_write_eof()
        return self._ended

    def _read(self) -> None:
        """Takes the input that waited, in its turn."""
        if not self._prepared:
            self._prepared = True
            preparing = self._acceptor.prepare()
            if preparing is not None:
                preparing.add_done_callback(lambda _: self._await_turn(self._read))
                return
        data = bytes(self._unread)
        self._unread.clear()
        new = self._loop.time() < self._new_until_s
        self._input_waits = False
        try:
            self.data_received(data)
        except Exception:
            if not self._closing:
                self.abort(InternalTrouble("the gateway failed at what came"))
            raise
        finally:
            self._input_waits = new
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._session is not None and (new or self._ended or not self._gather(transport)):
            transport.resume_reading()
        if self._ended:
            transport.close()
        elif self._task is None:
            self._count_time()

    # --- Read together with others ---

    def _gather(self, transport: asyncio.Transport) -> bool:
        """Has the gatherer read the connection, whose transport does not. False: it cannot."""
        raw = transport.get_extra_info("socket")
        if self._gatherer is None or raw is None or transport.get_extra_info("sslcontext") is not None:
            return False
        try:
            self._gatherer.add(raw.fileno(), self)
        except OSError:  # watches are limited, too
            return False
        self._gathered = raw.fileno()
        return True

    def _leave_gatherer(self) -> None:
        if self._gathered >= 0 and self._gatherer is not None:
            self._gatherer.discard(self._gathered)
            self._gathered = -1

    def read_by_transport(self) -> None:
        """Its end has come, or something else that the transport knows how to read."""
        self._leave_gatherer()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def failed(self, error: Exception) -> None:
        """The gateway failed at what came."""
        if not self._closing:
            self.abort(InternalTrouble(f"the gateway failed at what came: {type(error).__name__}"))

    def _await_turn(self, step: Callable[[], None]) -> None:
        try:
            self._handshakes.add(step)
        except HandshakeQueueFull as error:
            self.abort(error)

    # --- The stranger's time ---

    def _count_time(self) -> None:
        self._timer_at = self._loop.time() + self._left_s
        self._timer = self._loop.call_at(self._timer_at, self._give_up)

    def _stop_time(self) -> None:
        if self._timer is not None:
            self._left_s = max(0.0, self._timer_at - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._session is not None:
            return
        self._left_s = READ_FIRST_S
        if not self._reading_first and self._loop.time() > self._timer_at + LATE_S:
            self._reading_first = True
            self._count_time()
            return
        self.abort(TunnelClosed("handshake timed out"))

    # --- Its steps ---

    def _handle_upgrade(self, event: WebSocketEvent) -> None:
        assert isinstance(event, Request)
        response = self._server.accept(event)
        if (wrong := self._wrong_path(event.path.partition("?")[0])) is not None:
            response = self._server.reject(*wrong)
        elif response.status_code == 101 and "Sec-WebSocket-Protocol" not in response.headers:
            response = self._server.reject(400, f"The subprotocol must be {SUBPROTOCOL}.\n")
        keys = None
        if response.status_code == 101:
            try:
                keys = self._announce(event)
            except TrunklineError as error:
                response = self._server.reject(503, f"{error}\n")
        self._server.send_response(response)
        if keys is None:
            self._write_websocket()
            self._close_after_output(TunnelClosed(f"upgrade refused with {response.status_code}"))
            return
        handshake_limits = own_limits(OWN_WINDOWS[TunnelRole.GATEWAY]).to_mapping()
        wall_s = self._wall()
        known = " ".join(event.headers.get_all(GATEWAYS_HEADER)).split()
        self._handshake = GatewayHandshake(
            keys.choose(known, wall_s),
            token_bytes(NONCE_BYTES),
            handshake_limits,
            keys.trusted(wall_s),
            process=None if self._peers is None else self._peers.own,
        )
        self._send_messages([encode(FrameType.CHALLENGE, 0, self._handshake.challenge())])

    def _wrong_path(self, path: str) -> tuple[int, str] | None:
        """The status and text with which an upgrade at ``path`` is refused; None: it is accepted."""
        if path == PATH:
            return None
        below, _, process = path.rpartition("/")
        if self._peers is None or below != PATH:
            return 404, f"WebSockets are accepted at {PATH} only.\n"
        own = self._peers.own.process
        return None if process == own else (421, f"This is the gateway's process {own}, not another one.\n")

    def _announce(self, request: Request) -> GatewayKeys:
        """Tells the acceptor of the stranger and returns the keys to prove ourselves with. Raises
        :class:`TrunklineError` to turn the stranger away."""
        self.upgrade_fields = [
            (name.lower().encode("ascii", "surrogateescape"), value.encode("ascii", "surrogateescape"))
            for name, value in request.headers.raw_items()
        ]
        try:
            self._acceptor.connected(self)
        finally:
            self.upgrade_fields = ()
        self._admitted = True
        return self._acceptor.gateway_keys

    def _handle_handshake(self, frame: Frame) -> None:
        if self._task is not None or self._handshake is None or frame.type != FrameType.HELLO:
            raise UnexpectedFrame("only one HELLO is expected")
        try:
            hello = self._handshake.receive_hello(frame.payload, self._wall())
        except HandshakeError as error:
            self._reject(error)
            self._acceptor.refused(self, error)
            return
        self._task = self._loop.create_task(self._authenticate(hello, self._handshake))

    async def _authenticate(self, hello: Hello, handshake: GatewayHandshake) -> None:
        try:
            accepted = await self._acceptor.authenticate(hello, handshake)
        except HandshakeError as refusal:
            error = refusal
            self._await_turn(lambda: self._reject(error))
            return
        except Exception:
            trouble = HandshakeRejected(ErrorCode.INTERNAL, "the gateway cannot check this agent now", 5.0)
            self._await_turn(lambda: self._reject(trouble))
            raise
        self._await_turn(lambda: self._admit(hello, handshake, accepted))

    def _admit(self, hello: Hello, handshake: GatewayHandshake, accepted: Accepted) -> None:
        if self._closing:
            return
        try:
            self._welcome(hello, handshake, accepted)
        except Exception:
            self.abort(InternalTrouble("the gateway failed to begin the session"))
            raise

    def _welcome(self, hello: Hello, handshake: GatewayHandshake, accepted: Accepted) -> None:
        resumed = None if hello.session is None else self._acceptor.resume(accepted, hello.session)
        welcome = handshake.welcome(
            accepted.session_id if resumed is None or hello.session is None else hello.session.id,
            accepted.generation,
            accepted.certificate_der,
            None,
            limits.HEARTBEAT_S,
            limits.RESUME_WINDOW_S,
            None if resumed is None else resumed.session.log.received,
            () if self._peers is None else self._peers.peers_for(hello.name),
        )
        self.capabilities = handshake.capabilities
        self._send_messages([encode(FrameType.WELCOME, 0, welcome)])
        self._new_until_s = self._loop.time() + NEW_S
        if resumed is not None and hello.session is not None:
            self._resume_session(resumed, hello.session.received)
            self._acceptor.attach(accepted, self)
        else:
            self._start_session(TunnelRole.GATEWAY, hello.limits)
            self.endpoint.listener = self._acceptor.attach(accepted, self)

    def _reject(self, error: HandshakeError) -> None:
        if self._closing:
            return
        if self._handshake is not None and self._handshake.can_reject:
            payload = self._handshake.reject(error.code, str(error), error.retry_after_s)
            self._send_messages([encode(FrameType.REJECT, 0, payload)])
        self._close_after_output(error)

    def _finish(self, error: TrunklineError | None) -> None:
        self._leave_gatherer()  # before its socket is closed
        try:
            super()._finish(error)
        finally:
            self._unread.clear()
            if self._task is not None and self._task is not asyncio.current_task(self._loop):
                self._task.cancel()
            if self._admitted:
                self._admitted = False
                self._acceptor.disconnected(self)
