"""Accepts agents: counts strangers, checks each HELLO against the store, and ends revoked sessions.

Implements ``shared.tunnel.TunnelAcceptor`` (PROTOCOL §8).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import Any

import structlog

from gateway.auth.agents import AdmittedAgent, AgentDirectory
from gateway.auth.refresher import StoreRefresher
from gateway.domain.slices import Stepwise
from gateway.fleet.registry import Registry
from gateway.fleet.renewals import Renewals, RenewalThreads
from gateway.fleet.repetition import repeat_in
from gateway.fleet.session import AgentSession
from gateway.fleet.unauthenticated_tunnels import UnauthenticatedTunnels
from gateway.observability.gauges import TunnelFigures
from gateway.observability.metrics import Metrics
from gateway.storage.errors import StateError
from shared.handshake import GatewayHandshake, Hello, ResumeRequest
from shared.identity import GatewayKeys
from shared.protocol import limits
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import (
    CertificateOutOfDate,
    ErrorCode,
    HandshakeError,
    HandshakeRejected,
    LocalError,
    TrunklineError,
    TunnelClosed,
)
from shared.protocol.messages import Drain
from shared.protocol.peers import PeerDirectory
from shared.tunnel import Accepted, AcceptedTunnel, DeadlineWheel, HandshakeQueue, ReadGatherer, read_gatherer

_log = structlog.get_logger(__name__)

RETRY_AFTER_S = 1.0
"""When an agent is to dial again to a gateway that is restarting."""

DATABASE_THREADS = 4
"""Handshakes that may wait for the disk at once; the others, no more than strangers, wait for a thread."""

CHECKED_AT_ONCE = 100
"""Sessions checked in one turn of the event loop, when agents have changed."""

Fields = Sequence[tuple[bytes, bytes]]
"""Fields of a header, names in lower case."""


@dataclass(frozen=True, slots=True)
class AgentEndpointSettings:
    """Bounds on connections that have not proved who they are, and how often sessions are checked."""

    max_strangers: int = 1024
    """Connections before WELCOME; each may hold 65 KiB for 5 s."""
    max_strangers_per_address: int = 256
    """From one address, or one /64 of IPv6: a whole fleet may be behind it and reconnect at once."""
    revocation_tick_s: float = 0.25
    seen_tick_s: float = 15.0
    """How often the agents that are connected are recorded."""
    renewal_tick_s: float = 5.0
    """How often certificates are checked for renewal, when no agent has changed."""
    peers: PeerDirectory | None = None
    """The processes of a gateway that has several."""


class AgentEndpoint:
    """Accepts tunnels and hands the sessions on them to the registry. Belongs to the event loop's thread."""

    def __init__(
        self,
        directory: AgentDirectory,
        registry: Registry,
        metrics: Metrics,
        settings: AgentEndpointSettings | None = None,
        *,
        client_of: Callable[[str, Fields], str] = lambda address, header: address,
        note_seen: Callable[[Sequence[str], float], None] = lambda names, wall_s: None,
        wall: Callable[[], float] = time.time,
        owns: Callable[[], bool] = lambda: True,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``client_of`` gives the address of the client from that of the connection and the header of the
        upgrade; they differ behind trusted proxies. ``note_seen`` is called in a worker thread with the
        agents that are or were connected (``Store.agents.touch``). ``wall`` gives Unix time, for the dates of
        certificates and join tokens. ``owns`` says whether it is this one of several processes that renews
        them. ``at_turn_end`` is :meth:`gateway.domain.turn_end.TurnEnd.call`; else the loop is asked."""
        self._directory = directory
        self._registry = registry
        self._metrics = metrics
        self._settings = settings or AgentEndpointSettings()
        self._client_of = client_of
        self._note_seen = note_seen
        self._wall = wall
        self._owns = owns
        self._at_turn_end = at_turn_end
        self._unauthenticated = UnauthenticatedTunnels(
            self._settings.max_strangers, self._settings.max_strangers_per_address
        )
        self._handshakes: HandshakeQueue | None = None
        """Shares the event loop among all handshakes; made with the first connection, as is what follows."""
        self._deadlines: DeadlineWheel | None = None
        self._gatherer: ReadGatherer | None = None
        self._tunnels: dict[AcceptedTunnel, AgentSession] = {}  # of agents, with the sessions on them
        self._agents: dict[AgentSession, AdmittedAgent] = {}
        """Sessions, with or without a tunnel, and what their agents were admitted with."""
        self._ended: list[AgentSession] = []  # those of them that have ended
        registry.ended = self._ended.append
        self._renewals = Renewals(self._agents)
        self._out_of_date: set[str] = set()
        """Agents refused for their certificates' dates, which is logged once; no more than were enrolled."""
        self._came: set[str] = set()
        """Agents that connected since arrivals were last recorded; no more than are enrolled."""
        self._arrival = asyncio.Event()  # set when an agent connected
        self._left: set[str] = set()
        """Agents that left since the connected ones were last recorded; no more than are enrolled."""
        self._past = TunnelFigures()  # the traffic of tunnels that are closed
        self._threads = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="admit")
        self._looks = ThreadPoolExecutor(1, thread_name_prefix="look")
        """Reads what has changed, without waiting behind threads that write."""
        self._keys = StoreRefresher(directory.changes, "identity")
        """Keeps the gateway's keys fresh, also when another process changes them."""
        self._keys.add(self._read_keys)
        self._draining: Drain | None = None
        self._closed = False
        self._followed: int | None = None  # the store's number of changes that sessions followed last
        self._changed = asyncio.Event()  # names or keys may have changed since certificates were checked
        metrics.gauges.tunnels = self.figures
        metrics.gauges.agent_certificates = lambda: [each.certificate for each in self._agents.values()]

    # --- Called by the gateway's composition ---

    def protocol(self, *_args: Any, **_options: Any) -> AcceptedTunnel:
        """The protocol of an upgraded connection, for an HTTP server (uvicorn's ``ws=``), whose arguments it
        does not need. Call it on the event loop."""
        loop = asyncio.get_running_loop()
        if self._handshakes is None:
            self._handshakes, self._deadlines = HandshakeQueue(loop), DeadlineWheel(loop)
            self._gatherer = read_gatherer(loop)
        shared = self._handshakes, self._deadlines, self._settings.peers, self._at_turn_end, self._gatherer
        return AcceptedTunnel(self, loop.time, self._wall, *shared)

    async def watch(self) -> None:
        """Ends the sessions of revoked agents and those without a tunnel for too long, and records when
        agents were last seen. Runs until cancelled or :meth:`close`."""
        loop, found, settings = asyncio.get_running_loop(), asyncio.Event(), self._settings

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                loop.call_soon_threadsafe(found.set)

        end = self._directory.changes.listen(tell)
        try:
            async with asyncio.TaskGroup() as tasks:
                begin = partial(repeat_in, tasks, lambda: self._closed)
                begin(self._look_after_sessions, settings.revocation_tick_s, found)
                begin(self._record_seen, settings.seen_tick_s)
                begin(self._record_arrivals, settings.seen_tick_s, self._arrival)
                begin(self._renew, settings.renewal_tick_s, self._changed)
        finally:
            end()

    def drain(self, reason: str, deadline_s: float) -> None:
        """Tell every agent to take its new work elsewhere, and turn away those that come from now on."""
        self._draining = Drain(reason, deadline_s)
        for session in list(self._agents):
            self._send_drain(session, self._draining)

    async def close(self, code: ErrorCode = ErrorCode.DRAINING, reason: str = "the gateway stops") -> None:
        """End every session, turn away every stranger, and wait until nothing here uses the store any more.
        Idempotent."""
        seen = set() if self._closed else self._here()
        self._closed = True
        self._draining = self._draining or Drain(reason, 0.0)
        for session in list(self._agents):
            session.close(code, reason)
        for tunnel in list(self._unauthenticated):
            tunnel.abort(TunnelClosed(reason, code))
        if self._gatherer is not None:
            self._gatherer.close()
        try:
            await self._note(seen)
        except StateError as error:
            _log.error("state_failed", doing="record_seen", error=str(error))
        self._keys.close()
        await asyncio.to_thread(self._looks.shutdown)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    @property
    def unauthenticated(self) -> int:
        """Connections that have not proved who they are."""
        return len(self._unauthenticated)

    def figures(self) -> Stepwise[TunnelFigures]:
        """Totals of all past and present tunnels, one a step. Tunnels that come meanwhile count next time."""
        total = replace(self._past)
        for tunnel in (*self._unauthenticated, *self._tunnels):
            _add(total, tunnel)
            yield
        return total

    # --- TunnelAcceptor ---

    @property
    def gateway_keys(self) -> GatewayKeys:
        """Raises LocalError while the database or a key's file cannot be read."""
        try:
            failed = None if self._keys.is_fresh() else self._keys.error
        except StateError as error:
            failed = error
        if failed is not None:
            raise LocalError("this gateway cannot use its database just now") from failed
        return self._directory.known_keys

    def prepare(self) -> asyncio.Future[None] | None:
        """Have the gateway's keys read in a thread, if anybody has changed the store."""
        with contextlib.suppress(StateError):  # which ``gateway_keys`` raises, too
            if not self._keys.is_fresh():
                reading = asyncio.ensure_future(self._keys.refresh())
                reading.add_done_callback(lambda done: done.cancelled() or done.exception())
                return reading
        return None

    def connected(self, tunnel: AcceptedTunnel) -> None:
        """Takes a stranger in. Raises LocalError when there are too many."""
        peer = tunnel.peer_address.rpartition(":")[0]
        if self._closed:
            raise LocalError("this gateway is shutting down")
        try:
            self._unauthenticated.add(tunnel, self._client_of(peer, tunnel.upgrade_fields))
        except LocalError:
            self._metrics.tunnel("too_many_strangers")
            raise

    def disconnected(self, tunnel: AcceptedTunnel) -> None:
        session = self._tunnels.pop(tunnel, None)
        if session is not None:
            self._left.add(session.principal.name)
        elif self._unauthenticated.discard(tunnel):
            self._metrics.tunnel("not_authenticated")
        _add(self._past, tunnel)

    def refused(self, tunnel: AcceptedTunnel, error: HandshakeError) -> None:
        if isinstance(error, CertificateOutOfDate) and error.name not in self._out_of_date:
            self._out_of_date.add(error.name)
            dates = {"valid_from_s": error.not_before_s, "valid_to_s": error.not_after_s}
            _log.warning("certificate_out_of_date", agent=error.name, now_s=int(self._wall()), **dates)

    async def authenticate(self, hello: Hello, handshake: GatewayHandshake) -> Accepted:
        """Raises HandshakeRejected."""
        try:
            if self._draining is not None and not self._goes_on(hello):
                raise HandshakeRejected(ErrorCode.DRAINING, "this gateway is shutting down", RETRY_AFTER_S)
            self._registry.check_room(hello.name)
            admitted = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._directory.admit, hello, handshake, self._wall()
            )
        except HandshakeRejected as error:
            _log.warning("agent_rejected", agent=hello.name, code=error.code.name, reason=error.reason)
            raise
        return Accepted(admitted, token_hex(16), self._registry.next_generation(), admitted.certificate_der)

    def resume(self, accepted: Accepted, request: ResumeRequest) -> SessionEndpoint | None:
        """The newest tunnel wins: the one the session still has, if it has, is dropped."""
        admitted: AdmittedAgent = accepted.identity
        if admitted.certificate.name != admitted.name:  # it was renamed, maybe just now
            for known, before in list(self._agents.items()):
                if before.agent_id == admitted.agent_id:
                    self._update_rights(known, before)
        session = self._registry.resumable(admitted.principal, request)
        if session is None:
            return None
        session.endpoint.drop_tunnel()
        return None if session.closed or not session.endpoint.session.suspended else session.endpoint

    def attach(self, accepted: Accepted, tunnel: AcceptedTunnel) -> SessionListener:
        admitted: AdmittedAgent = accepted.identity
        self._unauthenticated.discard(tunnel)
        self._out_of_date.discard(admitted.name)
        session = self._registry.session_on(tunnel.endpoint, admitted.name)
        self._metrics.tunnel("accepted" if session is None else "resumed")
        if session is None:
            numbers = accepted.generation, accepted.session_id
            session = self._registry.attach(admitted.principal, tunnel.endpoint, *numbers)
            if session.closed:
                return session
        self._tunnels[tunnel] = session
        self._registry.agreed(session, tunnel.capabilities)
        self._agents[session], session.software = admitted, admitted.software
        self._came.add(admitted.name)
        self._arrival.set()
        self._end_if_revoked(session, admitted)  # it may have been revoked while it was being admitted,
        self._update_rights(session, admitted)  # or have been given other rights
        if self._draining is not None and not session.closed:
            self._send_drain(session, self._draining)
        return session

    # --- Steps ---

    async def _look_after_sessions(self) -> None:
        self._registry.give_up_lost(limits.RESUME_WINDOW_S)
        while self._ended:
            self._agents.pop(self._ended.pop(), None)
        number = self._directory.changes.cached()
        if number is None or number != self._followed:  # else no thread needs to be asked
            await self.follow_store()
            self._followed = number

    async def follow_store(self) -> None:
        """Has the sessions follow what the store says of their agents now. Raises StateError."""
        if await asyncio.get_running_loop().run_in_executor(self._looks, self._directory.changed):
            await self._check_sessions(self._end_if_revoked)
            await self._check_sessions(self._update_rights)
            self._changed.set()

    async def _check_sessions(self, check: Callable[[AgentSession, AdmittedAgent], None]) -> None:
        """Checks every session against what is known of its agent now, so many in a turn of the loop. One
        that begins meanwhile is checked as it begins."""
        for number, session in enumerate(list(self._agents), 1):
            if (admitted := self._agents.get(session)) is not None:
                check(session, admitted)
            if number % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _read_keys(self) -> Callable[[], None]:
        """Raises StateError."""
        _ = self._directory.gateway_keys
        return lambda: None

    def _here(self) -> set[str]:
        """Agents that are connected, or have left since that was last recorded."""
        return self._left | {session.principal.name for session in self._tunnels.values()}

    async def _record_seen(self) -> None:
        names, self._left = self._here(), set()
        await self._note(names)

    async def _record_arrivals(self) -> None:
        """Records at once those that connected, so that no connected agent is shown as never seen."""
        names, self._came = self._came, set()
        await self._note(names)

    async def _note(self, names: set[str]) -> None:
        """Raises StateError."""
        if names:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._note_seen, sorted(names), self._wall())

    async def _renew(self) -> None:
        threads = RenewalThreads(self._looks, self._threads, lambda: self._closed)
        await self._renewals.sweep(self._directory, threads, self._wall(), owns=self._owns())

    def _goes_on(self, hello: Hello) -> bool:
        """Whether an agent comes back for its session here, whose requests may end while we drain."""
        wanted = hello.session
        return wanted is not None and any(
            session.id == wanted.id and session.principal.name == hello.name for session in self._agents
        )

    def _end_if_revoked(self, session: AgentSession, admitted: AdmittedAgent) -> None:
        reason = self._directory.refusal(admitted)
        if reason is not None and not session.closed:
            _log.warning("agent_revoked", agent=admitted.name, reason=reason)
            session.close(ErrorCode.REVOKED, reason)

    def _update_rights(self, session: AgentSession, admitted: AdmittedAgent) -> None:
        principal = self._directory.rights(admitted)
        if principal != admitted.principal and not session.closed:
            self._agents[session] = replace(admitted, principal=principal)
            self._registry.allow(session, principal)

    def _send_drain(self, session: AgentSession, drain: Drain) -> None:
        try:
            session.endpoint.send_drain(drain)
        except TrunklineError:
            _log.debug("drain_not_sent", agent=session.principal.name)  # it is gone already


def _add(figures: TunnelFigures, tunnel: AcceptedTunnel) -> None:
    traffic = tunnel.traffic
    figures.bytes_received += traffic.bytes_received
    figures.bytes_sent += traffic.bytes_sent
    figures.messages_received += traffic.messages_received
    figures.messages_sent += traffic.messages_sent
