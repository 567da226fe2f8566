"""A gateway's end and an agent's end on real sockets, without gateway or agent around them."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from shared.handshake import AgentHandshake, GatewayHandshake, Hello, ResumeRequest
from shared.identity import GatewayKeys, JoinToken
from shared.protocol.demand import Demand
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ErrorCode, HandshakeError, HandshakeRejected, TrunklineError
from shared.protocol.messages import AgentState, Drain, RequestHead, ResponseHead, Trailers
from shared.protocol.others import Others
from shared.protocol.peers import PeerDirectory, Peers
from shared.protocol.progress import Progress
from shared.tunnel import Accepted, AcceptedTunnel, DialledTunnel, dial, read_gatherer
from tests.support.identities import AGENT_NONCE, GATEWAY, NAME, TOKEN, certificate_of, key_of


class Recorder:
    """A handler and listener that writes down what it is told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.streams: list[Stream] = []
        self.body = b""
        self.changed = asyncio.Event()

    def note(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        self.changed.set()

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    async def until(self, name: str) -> Any:
        """Waits for a call of that name and returns its value."""
        async with asyncio.timeout(60):
            while name not in self.names():
                self.changed.clear()
                await self.changed.wait()
        return next(value for called, value in self.calls if called == name)

    # StreamHandler
    def on_head(self, head: ResponseHead) -> None:
        self.note("head", head)

    def on_progress(self, progress: Progress) -> None:
        self.note("progress", progress)

    def on_data(self, data: bytes) -> None:
        self.body += data
        self.note("data", data)

    def on_end(self, trailers: Trailers | None) -> None:
        self.note("end", trailers)

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        self.note("reset", (code, reason))

    def on_writable(self) -> None:
        self.note("writable")

    def on_suspended(self) -> None:
        self.note("suspended")

    def on_resumed(self) -> None:
        self.note("resumed")

    def on_closed(self) -> None:
        self.note("closed")

    # SessionListener
    def on_open(self, stream: Stream) -> None:
        stream.handler = self
        self.streams.append(stream)
        self.note("open", stream)

    def on_slots(self, levels: Mapping[str, int]) -> None:
        self.note("slots", dict(levels))

    def on_state(self, state: AgentState) -> None:
        self.note("state", state)

    def on_demand(self, demands: Mapping[str, Demand]) -> None:
        self.note("demand", dict(demands))

    def on_peers(self, peers: Peers) -> None:
        self.note("peers", peers)

    def on_others(self, others: Others) -> None:
        self.note("others", others)

    def on_command(self, command: Mapping[str, Any]) -> None:
        self.note("command", dict(command))

    def on_result(self, result: Mapping[str, Any]) -> None:
        self.note("result", dict(result))

    def on_drain(self, drain: Drain) -> None:
        self.note("drain", drain)

    def on_session_suspended(self, error: TrunklineError | None) -> None:
        self.note("session_suspended", error)

    def on_session_resumed(self) -> None:
        self.note("session_resumed")

    def on_session_closed(self, error: TrunklineError | None) -> None:
        self.note("session_closed", error)


class Acceptor:
    """Accepts whoever joins with the test token, or refuses with ``refusal``."""

    def __init__(self, refusal: HandshakeRejected | None = None) -> None:
        self.refusal = refusal
        self.tunnels: list[AcceptedTunnel] = []
        self.refusals: list[HandshakeError] = []
        """What HELLOs that were no good were refused with."""
        self.listener = Recorder()
        self.forgets = False
        """Agents that come for their session get a new one."""
        self.connections = 0
        self.all_gone = asyncio.Event()

    @property
    def gateway_keys(self) -> GatewayKeys:
        return GatewayKeys(GATEWAY)

    def prepare(self) -> asyncio.Future[None] | None:
        return None

    def connected(self, tunnel: AcceptedTunnel) -> None:
        self.connections += 1

    def disconnected(self, tunnel: AcceptedTunnel) -> None:
        self.connections -= 1
        if not self.connections:
            self.all_gone.set()

    def refused(self, tunnel: AcceptedTunnel, error: HandshakeError) -> None:
        self.refusals.append(error)

    async def authenticate(self, hello: Hello, handshake: GatewayHandshake) -> Accepted:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        if not handshake.verify_join(TOKEN.verifier()):
            raise HandshakeRejected(ErrorCode.UNAUTHENTICATED, "unknown token")
        certificate = certificate_of(hello.name, key_of(hello.name), wall_s=time.time())
        return Accepted(hello.name, "session-1", 1, certificate.der)

    def resume(self, accepted: Accepted, request: ResumeRequest) -> SessionEndpoint | None:
        """Whatever session the newest tunnel has, unless ``forgets``."""
        endpoint = self.tunnels[-1].endpoint if self.tunnels else None
        if self.forgets or endpoint is None or endpoint.closed or request.id != accepted.session_id:
            return None
        endpoint.drop_tunnel()
        return endpoint if endpoint.session.log.can_resume(request.received) else None

    def attach(self, accepted: Accepted, tunnel: AcceptedTunnel) -> Recorder:
        self.tunnels.append(tunnel)
        self.listener.note("attached")
        return self.listener


@asynccontextmanager
async def accepting(acceptor: Acceptor, peers: PeerDirectory | None = None) -> AsyncIterator[str]:
    """A listening socket whose connections are tunnels; yields its URL."""
    loop = asyncio.get_running_loop()
    gatherer = read_gatherer(loop)
    server = await loop.create_server(
        lambda: AcceptedTunnel(acceptor, loop.time, peers=peers, gatherer=gatherer), "127.0.0.1", 0
    )
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/tunnel"
    finally:
        server.close()
        for tunnel in acceptor.tunnels:
            tunnel.abort()
        if gatherer is not None:
            assert not len(gatherer), "a closed tunnel is no longer read"
            gatherer.close()
        await server.wait_closed()


async def dial_with_token(
    url: str, listener: Recorder, token: JoinToken = TOKEN, lost: DialledTunnel | None = None
) -> DialledTunnel:
    """An authenticated tunnel of the agent that the test token lets in; with ``lost``, for its session."""
    claim = None
    if lost is not None:
        claim = ResumeRequest(lost.welcome.session_id, lost.endpoint.session.log.received)
    handshake = AgentHandshake(key_of(NAME), NAME, AGENT_NONCE, join_token=token, session=claim)
    loop = asyncio.get_running_loop()
    resumes = None if lost is None else lost.endpoint
    return await dial(url, handshake=handshake, listener=listener, clock=loop.time, resumes=resumes)


def request_head(**changes: Any) -> RequestHead:
    """A chat request, changed as told."""
    fields: dict[str, Any] = {
        "deployment": "d1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": (("content-type", "application/json"),),
        "model": "demo",
        "request_id": "req-1",
        "streaming": True,
    }
    return RequestHead(**{**fields, **changes})
