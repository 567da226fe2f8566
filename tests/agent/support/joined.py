"""A gateway's endpoint and an agent's, joined in memory on the event loop; and a backend that tests play."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.engines.backend import BackendBody, BackendError, ResponseReceiver
from agent.engines.http.states import engine_state
from shared.handshake import GatewayHandshake, Hello
from shared.identity import issue_certificate
from shared.protocol.credit import AGENT_WINDOWS, GATEWAY_WINDOWS, own_limits
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.engine_state import EngineState
from shared.protocol.errors import ErrorCode, HandshakeRejected, TunnelClosed
from shared.protocol.frames import TunnelRole
from shared.protocol.messages import DeploymentState, Headers, RequestHead
from shared.protocol.session import ProtocolSession
from shared.tunnel import Accepted
from tests.support.identities import GATEWAY, TOKEN
from tests.support.tunnels import Acceptor


class Joined:
    """``gateway`` and ``agent``; what one sends the other has a turn of the loop later, while ``open``."""

    def __init__(self, listener: SessionListener, gateway_listener: SessionListener | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.open = True
        self._turning = False
        gateway = ProtocolSession(TunnelRole.GATEWAY, own_limits(AGENT_WINDOWS), loop.time(), GATEWAY_WINDOWS)
        agent = ProtocolSession(TunnelRole.AGENT, own_limits(GATEWAY_WINDOWS), loop.time(), AGENT_WINDOWS)
        self.gateway = SessionEndpoint(gateway, loop.time, self._wake)
        self.agent = SessionEndpoint(agent, loop.time, self._wake)
        self.agent.listener = listener
        self.gateway.listener = gateway_listener

    def _wake(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self.open:
            return
        moved = False
        for sender, receiver in ((self.gateway, self.agent), (self.agent, self.gateway)):
            for message in sender.session.data_to_send(64 * 1024, sender.now()):
                receiver.session.receive_message(message, receiver.now())
                moved = True
            sender.dispatch()
            receiver.dispatch()
        if moved:
            self._wake()

    def suspend(self) -> None:
        """The tunnel is lost; the session waits for another one. Needs a listener on both sides."""
        self.open = False
        for endpoint in (self.gateway, self.agent):
            endpoint.suspend(TunnelClosed("away"))

    def resume(self) -> None:
        """Another tunnel is up."""
        received = {side: side.session.log.received for side in (self.gateway, self.agent)}
        for side, other in ((self.gateway, self.agent), (self.agent, self.gateway)):
            side.wake = self._wake
            side.resume(received[other])
        self.open = True
        self._wake()

    def cut(self) -> None:
        """The connection is lost."""
        self.open = False
        for endpoint in (self.gateway, self.agent):
            endpoint.lost(TunnelClosed("cut"))


@dataclass
class PlayedResponse:
    status: int = 200
    headers: Headers = (("content-type", "text/event-stream"),)
    pieces: "asyncio.Queue[bytes | BackendError | None]" = field(default_factory=asyncio.Queue)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    sent_bytes: int = 0

    async def stream_to(self, take: Callable[[bytes], bool]) -> None:
        while (piece := await self.pieces.get()) is not None:
            if isinstance(piece, BackendError):
                raise piece
            await self.offer(take, piece)

    async def offer(self, take: Callable[[bytes], bool], piece: bytes) -> None:
        self.wanted.clear()
        if not take(piece):
            await self.wanted.wait()

    async def endless(self, take: Callable[[bytes], bool]) -> None:
        """Instead of ``stream_to``: an answer without an end."""
        while True:
            self.sent_bytes += 16_000
            await self.offer(take, b"x" * 16_000)

    def resume(self) -> None:
        self.wanted.set()


class PlayedBackend:
    """A backend whose engine is the test: reads bodies whole, unless ``hold_body``, answers as told."""

    def __init__(self, *deployments: DeploymentState, name: str = "e") -> None:
        self.name = name
        self.offered = deployments
        self.response = PlayedResponse()
        self.error: BackendError | None = None
        self.hold_body = False
        self.bodies: list[bytes] = []
        self.heads: list[RequestHead] = []
        self.begun = asyncio.Event()
        self.released = 0
        self.on_change: Callable[[], None] = lambda: None

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    def deployments(self) -> tuple[DeploymentState, ...]:
        return self.offered

    def engine(self) -> EngineState:
        return engine_state(self.name, self.offered, without="it offers nothing")

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self.on_change = on_change

    def offer(self, *deployments: DeploymentState) -> None:
        self.offered = deployments
        self.on_change()

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> "PlayedRequest":
        self.heads.append(head)
        return PlayedRequest(self, body, receiver)


class PlayedRequest:
    """Implements :class:`agent.engines.backend.BackendRequest`."""

    def __init__(self, backend: PlayedBackend, body: BackendBody, receiver: ResponseReceiver) -> None:
        self._backend = backend
        self._receiver = receiver
        self._over = False
        backend.begun.set()
        self._playing = asyncio.create_task(self._play(body))

    def resume(self) -> None:
        self._backend.response.resume()

    def let_go(self) -> None:
        if not self._over:
            self._end()
            self._playing.cancel()

    def _end(self) -> None:
        self._over = True
        self._backend.released += 1

    async def _play(self, body: BackendBody) -> None:
        backend, error = self._backend, None
        try:
            if backend.error is not None:
                raise backend.error
            if not backend.hold_body:
                backend.bodies.append(await whole(body))
            self._receiver.on_response(backend.response.status, backend.response.headers)
            await backend.response.stream_to(self._receiver.on_body)
        except Exception as failure:
            error = failure
        self._end()
        self._receiver.on_over(error)


async def whole(body: BackendBody) -> bytes:
    """All of a request's body."""
    pieces: list[bytes] = []
    while not body.ended:
        await body.more()
        pieces.append(body.take())
        body.taken(len(pieces[-1]))
    return b"".join(pieces)


class Doorman(Acceptor):
    """Lets in whoever has the test token or a certificate of the test's gateway."""

    async def authenticate(self, hello: Hello, handshake: GatewayHandshake) -> Accepted:
        if self.refusal is not None:
            raise self.refusal
        if hello.join is None:
            return Accepted(hello.name, "session", 1, None)
        if not handshake.verify_join(TOKEN.verifier()):
            raise HandshakeRejected(ErrorCode.UNAUTHENTICATED, "unknown token")
        certificate = issue_certificate(GATEWAY, hello.name, hello.public_key, 1, time.time())
        return Accepted(hello.name, "session", 1, certificate.der)
