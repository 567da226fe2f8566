"""The agent's end of a tunnel: dials out, through a proxy where there is one (PROTOCOL §2.1)."""

import asyncio
import ssl as ssl_module
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidProxy, InvalidStatus, WebSocketException
from websockets.protocol import Event as WebSocketEvent
from websockets.protocol import Protocol as WebSocket

from shared import __version__
from shared.handshake import AgentHandshake, Welcome
from shared.process.connection_errors import TRUST_OPTION, gateway_of
from shared.protocol import limits
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import (
    DialFailed,
    DialMisdirected,
    HandshakeError,
    ResumeRefused,
    TrunklineError,
    TunnelClosed,
)
from shared.protocol.frames import Frame, FrameType, TunnelRole, encode
from shared.tunnel.base import GATEWAYS_HEADER, SUBPROTOCOL, Tunnel
from shared.tunnel.deadline_wheel import DeadlineWheel
from shared.tunnel.dial_errors import explain_dial_error


class _DiallingConnection(ClientConnection):
    """Keeps frames that come before the tunnel has taken over the transport."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.early: list[WebSocketEvent] = []

    def process_event(self, event: WebSocketEvent) -> None:
        if self.response is None:
            super().process_event(event)
        else:
            self.early.append(event)


class DialledTunnel(Tunnel):
    """The agent's end; made by :func:`dial`."""

    def __init__(
        self,
        websocket: WebSocket,
        clock: Callable[[], float],
        handshake: AgentHandshake,
        listener: SessionListener,
        resumes: SessionEndpoint | None = None,
    ) -> None:
        super().__init__(websocket, clock, DeadlineWheel(asyncio.get_running_loop()))
        self._listener = listener
        self._resumes = resumes
        self.welcome: Welcome
        self.resumed = False
        """The session that was to be resumed goes on; ``endpoint`` is the one it had."""
        self._handshake = handshake
        self._welcomed: asyncio.Future[Welcome] = self._loop.create_future()

    async def start(self, connection: _DiallingConnection) -> None:
        """Takes the transport over and completes the handshake. Raises HandshakeError, TunnelClosed."""
        self.connection_made(connection.transport)
        connection.transport.set_protocol(self)
        self._handle_input(connection.early, self._clock())
        if connection.transport.is_closing():  # its end may have come before set_protocol
            self.abort(TunnelClosed("connection closed by the peer"))
        await self._welcomed

    def _handle_handshake(self, frame: Frame) -> None:
        try:
            if frame.type == FrameType.CHALLENGE:
                hello = self._handshake.receive_challenge(frame.payload)
                self._send_messages([encode(FrameType.HELLO, 0, hello)])
                return
            # A certificate's dates are the one thing here that a wall clock decides.
            self.welcome = self._handshake.receive_answer(frame.type, frame.payload, time.time())
        except HandshakeError as error:
            self._close_after_output(error)
            return
        try:
            self._begin()
        except ResumeRefused as error:
            self._close_after_output(error)
            return
        if not self._welcomed.done():
            self._welcomed.set_result(self.welcome)

    def _begin(self) -> None:
        resumes, received = self._resumes, self.welcome.received
        if resumes is not None and received is not None and not resumes.closed:
            self._resume_session(resumes, received)
            self.resumed = True
        elif received is None:
            self._start_session(TunnelRole.AGENT, self.welcome.limits, self._handshake.windows)
            self.endpoint.listener = self._listener
        else:
            raise ResumeRefused("the session was given up during the handshake")

    def _finish(self, error: TrunklineError | None) -> None:
        super()._finish(error)
        if not self._welcomed.done():
            self._welcomed.set_exception(error or TunnelClosed("closed during the handshake"))
            self._welcomed.exception()  # so that it is no unretrieved exception when the caller has given up


async def dial(
    url: str,
    *,
    handshake: AgentHandshake,
    listener: SessionListener,
    clock: Callable[[], float],
    resumes: SessionEndpoint | None = None,
    proxy: str | None = None,
    ssl: ssl_module.SSLContext | None = None,
    timeout_s: float = 10.0,
    trust_option: str = TRUST_OPTION,
) -> DialledTunnel:
    """Dials the gateway at ``url`` (``ws://`` or ``wss://``, with the path) and authenticates both ends.

    ``resumes`` is the session that ``handshake`` is to resume; the tunnel's ``resumed`` says whether it did.
    ``trust_option`` is what errors tell people to name certificates to trust with.

    Raises :class:`~shared.protocol.errors.ResumeRefused` when it was to go on and cannot,
    :class:`~shared.protocol.errors.DialFailed` when there is no WebSocket to be had at such a URL, through
    such a proxy, within ``timeout_s``, :class:`~shared.protocol.errors.HandshakeError` when one side does not
    accept the other, and :class:`~shared.protocol.errors.TunnelClosed` when the connection breaks before that
    is decided.
    """
    tunnel: DialledTunnel | None = None
    try:
        async with asyncio.timeout(timeout_s):
            connection = await _connect(url, " ".join(handshake.gateways), proxy, ssl, trust_option)
            tunnel = DialledTunnel(connection.protocol, clock, handshake, listener, resumes)
            await tunnel.start(connection)
    except TimeoutError:
        if tunnel is not None:
            tunnel.abort()
        raise DialFailed(
            f"{gateway_of(url)} did not answer within {timeout_s:g} s: is the address right, and does a "
            "firewall let it through?"
        ) from None
    except BaseException:
        if tunnel is not None:
            tunnel.abort()
        raise
    return tunnel


async def _connect(
    url: str, gateways: str, proxy: str | None, ssl: ssl_module.SSLContext | None, trust_option: str
) -> _DiallingConnection:
    """Raises :class:`~shared.protocol.errors.DialFailed`. What is said of a proxy does not repeat its URL,
    which may hold a password."""
    try:
        connection = await connect(
            url,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            proxy=proxy,
            ping_interval=None,
            open_timeout=None,
            max_size=limits.HANDSHAKE_MESSAGE_BYTES,
            user_agent_header=f"trunkline/{__version__}",
            additional_headers={GATEWAYS_HEADER: gateways},
            create_connection=_DiallingConnection,
            **({} if ssl is None else cast(Any, {"ssl": ssl})),
        )
    except InvalidProxy as error:
        raise DialFailed(f"the proxy's URL cannot be used: {error.msg}") from None
    except InvalidStatus as error:
        misdirected = error.response.status_code == HTTPStatus.MISDIRECTED_REQUEST
        raise (DialMisdirected if misdirected else DialFailed)(
            explain_dial_error(url, error, proxy, trust_option)
        ) from error
    except (OSError, WebSocketException, ValueError) as error:  # ValueError: no name, no port
        raise DialFailed(explain_dial_error(url, error, proxy, trust_option)) from error
    return cast(_DiallingConnection, connection)
