"""A gateway's end for agents, over real WebSockets on loopback, and hosts that dial it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_bytes

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.auth.agents import AgentDirectory
from gateway.dispatch.dispatcher import Dispatcher, EngineResponse
from gateway.fleet.endpoint import AgentEndpoint, AgentEndpointSettings
from gateway.fleet.registry import Registry, RegistrySettings
from gateway.observability.metrics import Metrics
from gateway.storage import Store
from shared.handshake import AgentHandshake, ResumeRequest
from shared.identity import JoinToken
from shared.tunnel import DialledTunnel, dial
from tests.gateway.fleet.fleet import FakeAgent
from tests.gateway.fleet.manual_timers import Loop


async def eventually(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait until something is true; sockets take their time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        await asyncio.sleep(0.002)


Running = asyncio.Future[EngineResponse]


class Gateway:
    """Store, registry, dispatcher and agent endpoint, listening on loopback."""

    def __init__(
        self,
        state: Path,
        settings: AgentEndpointSettings,
        registry: RegistrySettings,
        wall: Callable[[], float],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.store = Store.open(state)
        self.wall = wall
        self.metrics = Metrics()
        self.registry = Registry(self.metrics, loop.time, registry)
        self.dispatcher = Dispatcher(self.registry, self.metrics, loop)
        self.agents = AgentEndpoint(
            AgentDirectory(self.store),
            self.registry,
            self.metrics,
            settings,
            note_seen=self.store.agents.touch,
            wall=wall,
        )
        self.url = ""

    async def all_exchanges_end(self) -> None:
        await eventually(lambda: not self.dispatcher.open_exchanges)

    async def cancel_is_confirmed(self, agent: FakeAgent, number: int = 0) -> None:
        """The agent's stream of that number is cancelled and its engine lets go; then nothing is open."""
        await eventually(lambda: agent.streams[number].reset_code)
        agent.streams[number].confirm()
        await self.all_exchanges_end()

    def token(self, uses: int = 100) -> JoinToken:
        token, _ = self.store.tokens.create(3600, uses, ("*",), {}, self.wall())
        return token

    def count(self, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("trunkline_tunnels_total", {"outcome": outcome})


QUICK = AgentEndpointSettings(revocation_tick_s=0.01, seen_tick_s=0.01, renewal_tick_s=0.01)


@asynccontextmanager
async def running_gateway(
    state: Path,
    settings: AgentEndpointSettings = QUICK,
    registry: RegistrySettings = RegistrySettings(),  # noqa: B008
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[Gateway]:
    gateway = Gateway(state, settings, registry, wall)
    server = await asyncio.get_running_loop().create_server(gateway.agents.protocol, "127.0.0.1", 0)
    gateway.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/tunnel"
    watch = asyncio.ensure_future(gateway.agents.watch())
    try:
        yield gateway
    finally:
        await gateway.dispatcher.close()
        await gateway.agents.close()
        watch.cancel()
        server.close()
        await eventually(lambda: not gateway.agents.unauthenticated and not gateway.dispatcher.open_exchanges)
        gateway.store.close()


class Host:
    """A GPU host: its key, and the tunnels it dials."""

    def __init__(self, gateway: Gateway, name: str = "gpu-1", token: JoinToken | None = None) -> None:
        self.gateway = gateway
        self.name = name
        self.key = Ed25519PrivateKey.generate()
        self.token: JoinToken | None = token or gateway.token()
        self.certificate: bytes | None = None

    async def dial(
        self, lost: DialledTunnel | None = None, pinned: bytes | None = None
    ) -> tuple[DialledTunnel, FakeAgent]:
        """With ``lost`` for the session of a tunnel that is gone. ``pinned`` is the fingerprint of the key
        that it takes for the gateway's, in place of that of now."""
        agent = FakeAgent(self.name, Loop(), None)  # type: ignore[arg-type]
        claim = None
        if lost is not None:
            claim = ResumeRequest(lost.welcome.session_id, lost.endpoint.session.log.received)
        handshake = AgentHandshake(
            self.key,
            self.name,
            token_bytes(32),
            certificate=self.certificate,
            join_token=None if self.certificate else self.token,
            pinned_fingerprint=pinned or self.gateway.store.gateway_identity.fingerprint,
            session=claim,
        )
        clock = asyncio.get_running_loop().time
        resumes = None if lost is None else lost.endpoint
        tunnel = await dial(
            self.gateway.url, handshake=handshake, listener=agent, clock=clock, resumes=resumes
        )
        if tunnel.welcome.certificate is not None:
            self.certificate = tunnel.welcome.certificate.der
        agent.endpoint = tunnel.endpoint
        return tunnel, agent
