"""How a gateway process stops: it takes nothing new, what runs finishes, and then everything ends."""

import asyncio
from dataclasses import dataclass

import structlog

from gateway.api.server.server import LAST_WORDS_S, GatewayServer
from gateway.app.job_runner import STOP_S
from gateway.app.jobs import JobParts
from gateway.cluster.member import ClusterMember
from gateway.dispatch.dispatcher import Dispatcher
from gateway.fleet.endpoint import AgentEndpoint
from gateway.pipeline.aliases import Mirrors
from gateway.pipeline.bodies.reader import BodyReader
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.stop_signals import StopSignals, until_forced
from gateway.uplink.uplink import Uplink
from gateway.uplink.worker_uplink import WorkerUplink

_log = structlog.get_logger("gateway")

STOPPING = "this gateway is shutting down"

LEAVE_S = 2.0
"""For requests that come on connections of a process that leaves; each closes its connection."""


@dataclass(frozen=True, slots=True)
class Draining:
    """The parts of a process that stop, and how long requests have."""

    drain_s: float
    lifecycle: Lifecycle
    server: GatewayServer
    dispatcher: Dispatcher
    jobs: JobParts
    mirrors: Mirrors
    agents: AgentEndpoint
    uplink: Uplink | WorkerUplink | None
    member: ClusterMember | None
    reader: BodyReader

    async def stop(self, signals: StopSignals) -> None:
        """Take nothing new, tell the agents, let what runs finish within ``drain_s``, then end everything."""
        forced = signals.forced
        async with until_forced(STOP_S, forced):
            await self.jobs.stop()
        if signals.leaving:
            await self._leave(forced)
        _log.info("stopping", requests=self.lifecycle.in_flight, drain_s=self.drain_s)
        self.lifecycle.drain()
        self.dispatcher.stop_accepting()
        self.mirrors.stop()
        self.agents.drain(STOPPING, self.drain_s)
        if self.member is not None:
            self.member.resign()
        async with until_forced(self.drain_s, forced):
            await self._wait_idle()
        if self.uplink is not None:
            await self.uplink.close()
        async with until_forced(LAST_WORDS_S, forced):
            await self.dispatcher.wait_idle()
        if self.lifecycle.in_flight:
            _log.warning("cutting_requests", requests=self.lifecycle.in_flight)
        await self.dispatcher.close()
        async with until_forced(LAST_WORDS_S, forced):
            await self.lifecycle.wait_idle()
        await self.agents.close()
        self.reader.close()
        if self.lifecycle.in_flight:
            self.server.abort_connections()

    async def _leave(self, forced: asyncio.Event) -> None:
        """Take no further connection, and one more request at most on each there is; agents stay."""
        await self.server.leave()
        async with until_forced(LEAVE_S, forced):
            await forced.wait()
        async with until_forced(self.drain_s, forced):
            await self.lifecycle.wait_idle()

    async def _wait_idle(self) -> None:
        """Returns once no request is left, of clients and of the parent gateway."""
        if self.uplink is not None:
            await self.uplink.drain(self.drain_s)
        await self.lifecycle.wait_idle()
