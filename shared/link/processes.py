"""A session with each process of a gateway (PROTOCOL §7.5); with a gateway that is one process, one session.

There is a link for each process: a dialer, and the sessions that it has one after the other. The first link
is for whatever process the gateway's address leads to; the others begin when that one names its peers.
"""

import asyncio
from collections.abc import Callable, Iterator
from hashlib import sha256

import structlog

from shared.handshake import AgentHandshake, Challenge, Welcome
from shared.link.dialer import Dial, DialTarget, LandedElsewhere, LiveTunnel, TunnelDialer
from shared.link.membership import Membership
from shared.link.session import GatewaySession
from shared.process.settings import ConfigError
from shared.protocol import limits
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import DialFailed, TrunklineError
from shared.protocol.peers import GatewayPeer

log = structlog.get_logger("link.processes")

DETOUR_S = 2.0
"""Longest attempt at the gateway's own address for a process that has one of its own, where such addresses
have led somewhere before. What answers at the gateway's may be another process, which hangs."""

DETOUR_EVERY = 4

DialAt = Callable[[str | None, str | None], Dial]
"""Gives a way to dial: to the path of a process, to the address that a process has of its own, or, with two
times None, to the gateway's own address. Raises ValueError for an address that cannot be used, ConfigError
for files that cannot be."""

SessionMaker = Callable[[], tuple[Callable[[], GatewaySession], Callable[[], None]]]
"""For one link: what makes its sessions, and what is called when there will be no more."""


def chosen(name: str, peers: list[GatewayPeer], most: int = limits.PEER_SESSIONS) -> list[GatewayPeer]:
    """Those of the gateway's processes that the agent ``name`` has sessions with (PROTOCOL §7.5)."""

    def rank(peer: GatewayPeer) -> bytes:
        return sha256(f"{name}\0{peer.process}".encode()).digest()

    return sorted(peers, key=rank, reverse=True)[:most]


class ProcessLink(DialTarget):
    """One process, or at first whatever process answers."""

    def __init__(self, owner: "GatewayProcesses", peer: GatewayPeer | None = None) -> None:
        self.process = None if peer is None else peer.process
        self.url = None if peer is None else peer.url
        self.incarnation: int | None = None
        """Of the process that the session is with; None before there is one."""
        self.newest = 0 if peer is None else peer.incarnation
        """Of the process, as far as anybody has named it."""
        self.up = False
        """There is a tunnel."""
        self.named: dict[str, GatewayPeer] = {}
        """The processes that this one named last."""
        self._owner = owner
        self._attempts = 0
        self._own_address = False
        """The last attempt was at the process's own address."""
        self._unusable: str | None = None
        """An address of the process that cannot be dialled, which was said."""
        make_session, self._over = owner.new_sessions()

        def new_session() -> GatewaySession:
            session = make_session()
            session.named = self._peers_named
            return session

        self.dialer = TunnelDialer(owner.membership, new_session, self._dial, target=self)

    async def run(self) -> None:
        """Dials until it is cancelled or fails for good."""
        try:
            await self.dialer.run()
        finally:
            self._over()

    async def _dial(
        self, handshake: AgentHandshake, listener: SessionListener, resumes: SessionEndpoint | None
    ) -> LiveTunnel:
        """By turns at the process's own address or path, and at the gateway's; seldom at the gateway's where
        addresses of processes can be reached."""
        own = self._dial_own()
        direct = self._own_address and self._owner.own_addresses_lead
        every = DETOUR_EVERY if direct else 2
        self._attempts += 1
        if own is not None and self._attempts % every:
            return await own(handshake, listener, resumes)
        self._own_address = False
        dial = self._owner.dial_at(None, None)
        try:
            async with asyncio.timeout(DETOUR_S if direct else None):
                return await dial(handshake, listener, resumes)
        except TimeoutError:
            raise DialFailed(f"the gateway's own address did not answer within {DETOUR_S:g} s") from None

    def _dial_own(self) -> Dial | None:
        """To the process's own address or, without one that can be used, its path; None: it is not known
        which process it is to be."""
        self._own_address = False
        if self.process is None:
            return None
        if self.url is not None and self.url != self._unusable:
            try:
                dial = self._owner.dial_at(None, self.url)
            except (ValueError, ConfigError) as error:
                log.warning("address not used", process=self.process, url=self.url, reason=str(error))
                self._unusable = self.url
            else:
                self._own_address = True
                return dial
        return self._owner.dial_at(self.process, None)

    # --- DialTarget

    @property
    def sessions(self) -> int:
        return self._owner.count

    def accept(self, challenge: Challenge) -> None:
        if challenge.process == self.process:
            return
        if self._owner.any_up or self._owner.link_of(challenge.process) not in (None, self):
            raise LandedElsewhere(f"{challenge.process!r} answered in place of {self.process!r}")

    def welcomed(self, welcome: Welcome) -> None:
        if welcome.process != self.process:
            self.url = None
        elif self._own_address:
            self._owner.own_addresses_lead = True
        self.process, self.incarnation = welcome.process, welcome.incarnation
        self.newest = max(self.newest, welcome.incarnation)
        self.up, self._attempts, self.named = True, 0, {}

    def lost(self) -> None:
        self.up = False
        self._owner.arrange()

    def gone(self, error: TrunklineError) -> bool:
        """Nobody listens at the process's own address: it was stopped. Its slots are for the others now."""
        refused = isinstance(error.__cause__, ConnectionRefusedError)
        return refused and self._own_address and self._owner.any_up

    def _peers_named(self, peers: tuple[GatewayPeer, ...]) -> None:
        self.named = {peer.process: peer for peer in peers}
        self._owner.arrange()


class GatewayProcesses:
    """All links. Use :meth:`run` once."""

    def __init__(self, membership: Membership, new_sessions: SessionMaker, dial_at: DialAt) -> None:
        self.membership = membership
        self.new_sessions = new_sessions
        self.dial_at = dial_at
        self._tasks: dict[ProcessLink, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] | None = None
        self._closing = False
        self.own_addresses_lead = False
        """A process was reached at an address of its own."""

    async def run(self) -> None:
        """Runs until :meth:`close` or cancelled. Raises :class:`~shared.link.dialer.Rejected` when the
        gateway does not want us, and :class:`~shared.link.membership.MembershipError` when what it gave us
        cannot be kept."""
        self._failed = asyncio.get_running_loop().create_future()
        try:
            self._start(ProcessLink(self))
            await self._failed
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def sessions(self) -> Iterator[GatewaySession]:
        """Those that there are, with or without a tunnel."""
        return (link.dialer.session for link in list(self._tasks) if link.dialer.session is not None)

    @property
    def count(self) -> int:
        """The processes that there is to be a session with; those that are known."""
        return max(1, len(self._tasks))

    @property
    def any_up(self) -> bool:
        """There is a tunnel to some process."""
        return any(link.up for link in self._tasks)

    def link_of(self, process: str | None) -> ProcessLink | None:
        return next((link for link in self._tasks if link.process == process), None)

    def drain(self, reason: str, deadline_s: float) -> None:
        """Tells every process that the agent is about to leave."""
        for session in self.sessions:
            session.drain(reason, deadline_s)

    def close(self, reason: str) -> None:
        """Leave in order: close every session, and dial no more."""
        self._closing = True
        for link in list(self._tasks):
            link.dialer.close(reason)

    def arrange(self) -> None:
        """A link has come up, was lost or named processes: begin and end what follows from that."""
        named: dict[str, GatewayPeer] = {}
        for link in self._tasks:
            for peer in link.named.values() if link.up else ():
                if peer.process not in named or named[peer.process].incarnation < peer.incarnation:
                    named[peer.process] = peer
        if not named or self._closing:
            return  # nobody says anything, so nothing has changed
        for link in list(self._tasks):
            self._follow(link, named)
        for peer in chosen(self.membership.name, list(named.values())):
            if self.link_of(peer.process) is None and len(self._tasks) < limits.PEER_SESSIONS:
                log.info("another process of the gateway", process=peer.process)
                self._start(ProcessLink(self, peer))

    def _follow(self, link: ProcessLink, named: dict[str, GatewayPeer]) -> None:
        """What is said now of a process that there is a link for."""
        peer = None if link.process is None else named.get(link.process)
        if peer is not None:
            link.url = peer.url
            if link.incarnation is not None and peer.incarnation > link.incarnation:
                link.incarnation = None
                link.dialer.end_session("the gateway's process was started anew")
            if peer.incarnation > link.newest:
                link.newest = peer.incarnation
                if not link.up:
                    link.dialer.hurry()
        elif not link.up:
            log.info("a process of the gateway is gone", process=link.process)
            link.dialer.end_session("the gateway's process is gone")
            self._tasks.pop(link).cancel()

    def _start(self, link: ProcessLink) -> None:
        task = self._tasks[link] = asyncio.get_running_loop().create_task(link.run())
        task.add_done_callback(lambda task: self._ended(link, task))

    def _ended(self, link: ProcessLink, task: asyncio.Task[None]) -> None:
        self._tasks.pop(link, None)
        failed = self._failed
        if task.cancelled() or failed is None or failed.done():
            return
        if (error := task.exception()) is not None:
            failed.set_exception(error)
        elif not self._tasks:
            failed.set_result(None)
