"""A dialer in memory, whose gateway, time and chance are the test's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agent.capacity.engine_registry import EngineRegistry
from agent.requests.runner import RequestRunner
from shared.handshake import AgentHandshake, Welcome
from shared.identity import issue_certificate, public_bytes
from shared.link.dialer import DialTarget, LiveTunnel, TunnelDialer
from shared.link.membership import Membership
from shared.link.publisher import Publisher
from shared.link.session import GatewaySession
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import DeploymentState
from tests.agent.support.joined import Joined, PlayedBackend
from tests.support.clock import ManualClock
from tests.support.identities import GATEWAY, TOKEN, WALL_S
from tests.support.tunnels import Recorder


def sessions(
    membership: Membership, served: PlayedBackend, clock: Callable[[], float]
) -> Callable[[], GatewaySession]:
    """Makes the sessions of an agent whose one engine serves that."""
    registry = EngineRegistry(clock)
    registry.add(served)
    publisher, runner = Publisher(registry, lambda: (), clock), RequestRunner(registry, clock)
    return lambda: GatewaySession(runner, publisher, registry.carry_out, membership.renew)


class PlayedTunnel:
    """A tunnel that ends when the test says so."""

    def __init__(self, joined: Joined, welcome: Welcome) -> None:
        self.endpoint = joined.agent
        self.welcome = welcome
        self.ended: asyncio.Future[TrunklineError | None] = asyncio.get_running_loop().create_future()
        self.endpoint.on_close = lambda: self.ended.set_result(None)
        self.aborted = False
        self.resumed = False

    async def wait_closed(self) -> TrunklineError | None:
        return await self.ended

    def abort(self, error: TrunklineError | None = None) -> None:
        self.aborted = True


class DialledWorld:
    """A dialer whose attempts, time and chance are the test's. ``plan`` holds what attempts come to: an error
    to raise, or how the tunnel ends and after how long; when it is used up, the tunnel stays."""

    def __init__(
        self, directory: Path, join: str | None = TOKEN.encode(), target: DialTarget | None = None
    ) -> None:
        self.clock = ManualClock()
        self.membership = Membership.open(directory, join=join, name="gpu-1", default_name="x")
        self.plan: list[TrunklineError | tuple[TrunklineError, float]] = []
        self.waits: list[float] = []
        self.certificates: list[bool] = []
        self.tunnels: list[PlayedTunnel] = []
        self.gateway = Recorder()
        self.up = asyncio.Event()
        self.dialer = TunnelDialer(
            self.membership,
            sessions(
                self.membership, PlayedBackend(DeploymentState(id="e/m", model="m", slots=4)), self.clock
            ),
            self._dial,
            clock=self.clock,
            sleep=self._sleep,
            chance=lambda: 1.0,
            target=target,
        )

    async def _sleep(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        self.clock.advance(delay_s)
        await asyncio.sleep(0)

    async def _dial(
        self, handshake: AgentHandshake, listener: SessionListener, resumes: SessionEndpoint | None
    ) -> LiveTunnel:
        fate = self.plan.pop(0) if self.plan else None
        if isinstance(fate, TrunklineError):
            raise fate
        joining = handshake._join_token is not None
        self.certificates.append(not joining)
        key = public_bytes(handshake._key)
        certificate = issue_certificate(GATEWAY, "gpu-1", key, 1, WALL_S) if joining else None
        welcome = Welcome(
            session_id="s",
            generation=1,
            limits={},
            certificate=certificate,
            heartbeat_s=10.0,
            resume_window_s=0.0,
        )
        tunnel = PlayedTunnel(Joined(listener, self.gateway), welcome)
        self.tunnels.append(tunnel)
        if fate is None:
            self.up.set()
        else:
            error, lived_s = fate
            self.clock.advance(0)
            asyncio.get_running_loop().call_soon(self._end, tunnel, error, lived_s)
        return tunnel

    def _end(self, tunnel: PlayedTunnel, error: TrunklineError, lived_s: float) -> None:
        self.clock.advance(lived_s)
        tunnel.ended.set_result(error)

    async def until_up(self, *plan: TrunklineError | tuple[TrunklineError, float]) -> list[float]:
        """Runs the plan until a tunnel stays; gives the waits before each attempt."""
        self.plan = list(plan)
        running = asyncio.ensure_future(self.dialer.run())
        waiting = asyncio.ensure_future(self.up.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
        return self.waits

    @asynccontextmanager
    async def dialling(self) -> AsyncIterator[None]:
        """The dialer runs as long as the block."""
        running = asyncio.ensure_future(self.dialer.run())
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
