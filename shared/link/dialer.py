"""Keeps one session with the gateway up, over any number of tunnels (PROTOCOL §7.4)."""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from shared import __version__
from shared.handshake import AgentHandshake, Challenge, ResumeRequest, Welcome
from shared.link.backoff import SUSPICIOUS_S, Backoff
from shared.link.membership import Membership, MembershipError
from shared.link.session import GatewaySession
from shared.process.connection_errors import TRUST_OPTION
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import (
    DialMisdirected,
    ErrorCode,
    GatewayUntrusted,
    HandshakeError,
    HandshakeRejected,
    ResumeRefused,
    TrunklineError,
    TunnelClosed,
)
from shared.protocol.peers import Peers
from shared.tunnel import dial

log = structlog.get_logger("link.dialer")

FINAL = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.REVOKED, ErrorCode.VERSION})
"""Codes after which trying again as we are cannot help."""
_REJECTED = {
    ErrorCode.REVOKED: "the gateway sent this agent away for good: ",
    ErrorCode.UNAUTHENTICATED: "the gateway does not accept this agent: ",
}


class Rejected(TrunklineError):
    """The gateway does not want this agent, and will not want it later. The message says what to do."""


class LandedElsewhere(HandshakeError):
    """The tunnel leads to another process than it was dialled for, or to one that there is a session with."""


class LiveTunnel(Protocol):
    """What the dialer uses of :class:`shared.tunnel.DialledTunnel`."""

    endpoint: SessionEndpoint
    welcome: Welcome
    resumed: bool

    async def wait_closed(self) -> TrunklineError | None: ...

    def abort(self, error: TrunklineError | None = None) -> None: ...


Dial = Callable[[AgentHandshake, SessionListener, SessionEndpoint | None], Awaitable[LiveTunnel]]
"""With the listener of a new session, and the session that the handshake asks to go on with."""


class DialTarget:
    """What a dialer is to reach: any gateway. :class:`shared.link.processes.ProcessLink` is one process of a
    gateway that has several."""

    @property
    def sessions(self) -> int:
        """How many sessions there are to be with the gateway's processes."""
        return 1

    def accept(self, challenge: Challenge) -> None:
        """A CHALLENGE verified, and HELLO would be next. Raises HandshakeError to hang up."""

    def welcomed(self, welcome: Welcome) -> None:
        """A tunnel is up."""

    def lost(self) -> None:
        """It is gone."""

    def gone(self, error: TrunklineError) -> bool:
        """Whether an attempt that failed so shows that what was reached before is there no more."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DialSettings:
    """``url`` is the tunnel's (``ws[s]://…/tunnel``); ``proxy`` an HTTP or SOCKS proxy's."""

    url: str
    proxy: str | None = None
    tls: ssl.SSLContext | None = None
    timeout_s: float = 10.0
    trust_option: str = TRUST_OPTION
    """What errors tell people to name certificates to trust with."""


def dial_with(settings: DialSettings, clock: Callable[[], float]) -> Dial:
    """Real dialling."""

    async def dial_gateway(
        handshake: AgentHandshake, listener: SessionListener, resumes: SessionEndpoint | None
    ) -> LiveTunnel:
        try:
            return await dial(
                settings.url,
                handshake=handshake,
                listener=listener,
                clock=clock,
                resumes=resumes,
                proxy=settings.proxy,
                ssl=settings.tls,
                timeout_s=settings.timeout_s,
                trust_option=settings.trust_option,
            )
        except ImportError as error:
            raise Rejected("a SOCKS proxy needs one more package: pip install 'trunkline[socks]'") from error

    return dial_gateway


@dataclass(frozen=True, slots=True)
class _Kept:
    """A session without a tunnel."""

    id: str
    session: GatewaySession
    endpoint: SessionEndpoint
    expiry: asyncio.TimerHandle
    process: str | None = None
    incarnation: int = 0


class TunnelDialer:
    """Dials, and dials again: at once after the loss of a good tunnel, else with backoff and full jitter.

    What the gateway says about when to come wins. One line is logged per change, not per attempt.
    """

    def __init__(
        self,
        membership: Membership,
        new_session: Callable[[], GatewaySession],
        dial_gateway: Dial,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        target: DialTarget | None = None,
    ) -> None:
        self._membership = membership
        self._new_session = new_session
        self._dial = dial_gateway
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._target = target or DialTarget()
        self._backoff = Backoff()
        self._hurried = asyncio.Event()
        self._retry_after_s: float | None = None
        self._complaint = ""
        self._closing = False
        self._kept: _Kept | None = None
        self._tunnel: LiveTunnel | None = None
        self.session: GatewaySession | None = None
        """While there is one, with a tunnel or waiting for the next."""

    async def run(self) -> None:
        """Runs until :meth:`close` or cancelled. Raises :class:`Rejected` when the gateway does not want us,
        and :class:`~shared.link.membership.MembershipError` when what it gave us cannot be kept."""
        try:
            while not self._closing:
                retry_after_s, self._retry_after_s = self._retry_after_s, None
                await self._pause(self._backoff.delay_s(self._chance(), retry_after_s), retry_after_s is None)
                await self._dial_once()
        finally:
            self._give_up("the agent dials no more")

    def close(self, reason: str) -> None:
        """Leave in order: close the session, if there is one, and dial no more."""
        self._closing = True
        if self.session is not None:
            self.session.close(ErrorCode.NO_ERROR, reason)

    def end_session(self, reason: str) -> None:
        """The session is over, with a tunnel or without: the process that it was with is there no more."""
        if self._tunnel is not None:
            self._tunnel.endpoint.lost(TunnelClosed(reason))
            self._tunnel.abort(TunnelClosed(reason))
        self._give_up(reason)

    def hurry(self) -> None:
        """What was dialled in vain has been started anew: dial at once, unless it said when to come."""
        self._backoff = Backoff()
        self._hurried.set()

    async def _pause(self, seconds: float, may_hurry: bool) -> None:
        self._hurried.clear()
        if seconds <= 0.0 or not may_hurry:
            await self._sleep(seconds)
            return
        waiting = {asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._hurried.wait())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def _dial_once(self) -> None:
        if self._closing:
            return
        kept, session = self._kept, self._new_session()
        resume = ResumeRequest(kept.id, kept.endpoint.session.log.received) if kept else None

        def landed(challenge: Challenge) -> ResumeRequest | None:
            self._target.accept(challenge)
            where = challenge.process, challenge.incarnation
            return resume if kept is not None and where == (kept.process, kept.incarnation) else None

        handshake = self._membership.handshake(
            f"trunkline {__version__}", resume, landed, self._target.sessions
        )
        try:
            tunnel = await self._dial(handshake, session, kept.endpoint if kept else None)
        except Rejected:
            raise
        except ResumeRefused as error:
            self._give_up(str(error))
        except HandshakeRejected as error:
            self._refused(error)
        except TrunklineError as error:
            self._failed(error)
        else:
            await self._live(tunnel, self._session_on(tunnel, kept, session))

    def _session_on(self, tunnel: LiveTunnel, kept: _Kept | None, session: GatewaySession) -> GatewaySession:
        """The session that goes on on a new tunnel: the one asked for, or a new one in its place."""
        if kept is not None and tunnel.resumed:
            kept.expiry.cancel()
            self._kept = None
            return kept.session
        self._give_up("the gateway does not have the session any more")
        return session

    async def _live(self, tunnel: LiveTunnel, session: GatewaySession) -> None:
        """A tunnel's life, from WELCOME to its end."""
        try:
            self._welcomed(tunnel.welcome)
            member = self._membership
            log.info("connected", gateway=member.gateway, name=member.name, resumed=tunnel.resumed)
            self._complaint = ""
            began_s = self._clock()
            self.session, self._tunnel = session, tunnel
            self._target.welcomed(tunnel.welcome)
            if not tunnel.resumed:
                session.begin(tunnel.endpoint, tunnel.welcome.process, tunnel.welcome.capabilities)
            if tunnel.welcome.peers:
                session.named(Peers(tunnel.welcome.peers).newest)
            if self._closing:  # while the gateway was dialled
                session.close(ErrorCode.NO_ERROR, "the agent stopped")
            error = await tunnel.wait_closed()
        except BaseException:
            tunnel.abort()
            self.session = None
            raise
        finally:
            self._tunnel = None
            self._target.lost()
        self._keep(tunnel, session, error)
        if not self._closing:
            self._lost(error, self._clock() - began_s)

    def _keep(self, tunnel: LiveTunnel, session: GatewaySession, error: TrunklineError | None) -> None:
        """The tunnel is gone: its session waits for another one, unless it is over."""
        if tunnel.endpoint.closed:
            self.session = None
            return
        expiry = asyncio.get_running_loop().call_later(
            tunnel.welcome.resume_window_s, self._expired, f"no tunnel since: {error}"
        )
        welcome = tunnel.welcome
        self._kept = _Kept(
            welcome.session_id, session, tunnel.endpoint, expiry, welcome.process, welcome.incarnation
        )

    def _expired(self, reason: str) -> None:
        """The window is over. In this very moment the session may have got its tunnel."""
        if self._kept is not None and self._kept.endpoint.session.suspended:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """The session that waits for a tunnel, if there is one, is over; its requests are cut off."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        kept.expiry.cancel()
        if self.session is kept.session:
            self.session = None
        if not kept.endpoint.closed:
            log.warning("session given up", reason=reason, requests=len(kept.endpoint.streams))
            kept.endpoint.lost(TunnelClosed(reason))

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.doubt:
            log.warning("this host's clock or the gateway's is wrong", reason=welcome.doubt)
        member = self._membership.joined
        try:
            if self._membership.welcomed(welcome):
                log.info("joined", gateway=self._membership.gateway, name=self._membership.name)
        except MembershipError as error:
            if not member:
                raise
            log.warning("the renewed certificate cannot be kept", reason=str(error))

    def _lost(self, error: TrunklineError | None, lived_s: float) -> None:
        reason = str(error or "closed")
        code = error.code if isinstance(error, TunnelClosed) else ErrorCode.NO_ERROR
        if code in FINAL:
            raise Rejected(_REJECTED.get(code, "") + reason)
        log.warning("disconnected", reason=reason, after_s=round(lived_s, 1))
        if code is ErrorCode.REPLACED:
            log.error("another agent came with this agent's identity; give each a state directory of its own")
            self._retry_after_s = SUSPICIOUS_S
        elif code is ErrorCode.DRAINING:
            self._backoff.failed()  # the gateway is going down: a moment's patience, spread over all agents
        else:
            self._backoff.lost(lived_s)

    def _refused(self, error: HandshakeRejected) -> None:
        logged = str(error) == self._complaint or self._membership.shows_earlier
        if self._membership.try_otherwise(error):
            if not logged or self._membership.joining:
                log.warning("refused, trying otherwise", reason=error.reason, token=self._membership.joining)
            return
        error = self._membership.verdict(error)
        if error.code in FINAL and error.retry_after_s is None:
            raise Rejected(_REJECTED.get(error.code, "") + error.reason) from error
        self._retry_after_s = error.retry_after_s
        self._failed(error)

    def _failed(self, error: TrunklineError) -> None:
        """Raises :class:`Rejected` for the wrong gateway when joining: something was typed wrongly."""
        if isinstance(error, GatewayUntrusted) and not self._membership.joined:
            raise Rejected(str(error)) from error
        if self._target.gone(error):
            self._give_up(f"its process is gone: {error}")
        if isinstance(error, LandedElsewhere | DialMisdirected) and (sessions := self._target.sessions) > 1:
            self._backoff.misdirected(sessions)
            log.debug("not where it was to lead", reason=str(error))
            return
        self._backoff.failed(refused=isinstance(error.__cause__, ConnectionRefusedError))
        complaint = str(error)
        if complaint != self._complaint:
            self._complaint = complaint
            log.warning("cannot connect, trying again and again", reason=complaint)
