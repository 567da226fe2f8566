"""What a process does that is one of several workers of a gateway."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from gateway.api.admin.fleet import FleetAdmin
from gateway.api.server.server import GatewayServer
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.workers.channel import (
    BEAT,
    COVER,
    LEAVE,
    PEERS,
    READY,
    RELEASE,
    SETTLED,
    STOP,
    SupervisorLink,
)
from gateway.runtime.workers.passing import ConnectionPassing
from gateway.runtime.workers.siblings import Siblings
from gateway.runtime.workers.silence import BEAT_S

SETTLE_S = 20.0
SETTLE_LOOK_S = 0.2
"""For agents to come to a worker that replaces another one, and between two looks."""

_log = structlog.get_logger("gateway")


class WorkerMember:
    """One worker, among its siblings and under its supervisor."""

    def __init__(self, link: SupervisorLink, siblings: Siblings, passing: ConnectionPassing) -> None:
        self._link = link
        self._siblings = siblings
        self.passing = passing
        self._settling: asyncio.Task[None] | None = None
        self._server: GatewayServer | None = None
        self._covering: set[asyncio.Task[None]] = set()
        self._beat: asyncio.TimerHandle | None = None

    async def begin(self, server: GatewayServer) -> None:
        """Answer the other workers, and take connections that they pass on to ``server``."""
        self._server = server
        try:
            await self._siblings.start()
            self.passing.start(server.take_over)
        except OSError as error:
            _log.error("siblings_not_answered", error=str(error))

    def report_ready(self, fleet: FleetAdmin) -> None:
        """This worker serves, and says every second from now on that its event loop runs."""
        self._give_sign(READY + BEAT)
        if self._link.role.replaces:
            connected = fleet.fleet
            self._settling = asyncio.ensure_future(
                self._settle(lambda: connected.agents_connected, self._most_agents)
            )

    def _give_sign(self, sign: bytes = BEAT) -> None:
        self._link.report(sign)
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._give_sign)

    async def _settle(self, here: Callable[[], int], there: Callable[[], Awaitable[int]]) -> None:
        """Say when as many agents are here as at any sibling, or after ``SETTLE_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while here() < await there():  # noqa: ASYNC110 (nobody tells us)
                    await asyncio.sleep(SETTLE_LOOK_S)
        self._link.report(SETTLED)

    async def _most_agents(self) -> int:
        """As many agents as any other worker has; 0 where none answers."""
        answers = await self._siblings.ask_all("process")
        return max((each["agents"] for each in answers.found.values()), default=0)

    def watch(self, stop: StopSignals) -> None:
        """Do what the supervisor says, and end when it has died."""
        self._link.watch(asyncio.get_running_loop(), lambda what: self._hear(what, stop))

    def _hear(self, what: bytes, stop: StopSignals) -> None:
        if what.startswith(PEERS):
            names = what.decode().split()[1:]
            self._siblings.others = [name for name in names if name != self._siblings.own]
        elif what.startswith(COVER):
            self._cover(int(what.split()[1]))
        elif what.startswith(RELEASE):
            self._change(lambda server: server.release(int(what.split()[1])))
        elif what == LEAVE:
            stop.leave()
        elif what == STOP:
            stop.receive()
        else:
            if not what:
                _log.error("supervisor_lost")
            stop.end_at_once()

    def _cover(self, place: int) -> None:
        """Accept for a worker that is away, from the sockets that came along."""
        count = 1 if self._link.role.redirect is None else 2
        sockets = self._link.take_sockets(count)
        if len(sockets) < count or self._server is None:
            for each in sockets:
                each.close()
            _log.error("worker_not_covered", worker=place)
            return
        listener, plain = (*sockets, None)[:2]
        assert listener is not None
        self._change(lambda server: server.cover(place, listener, plain))

    def _change(self, change: Callable[[GatewayServer], Awaitable[None]]) -> None:
        """Changes follow one another as they were told: each waits for the server's lock in its turn."""
        if self._server is not None:
            task = asyncio.ensure_future(change(self._server))
            self._covering.add(task)
            task.add_done_callback(self._covering.discard)

    def close(self) -> None:
        """Answer siblings no more, and take nothing from them. Idempotent."""
        self._siblings.close()
        self.passing.close()
        if self._settling is not None:
            self._settling.cancel()
        if self._beat is not None:
            self._beat.cancel()
