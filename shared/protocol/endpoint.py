"""What a program holds of a session: streams with handlers instead of numbers and events.

Hands the session's events to whom they concern and says when there is something to send. No I/O and no clock
of its own; everything runs in one thread, and handlers may call back into streams and endpoint at any time.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from shared.protocol.errors import ErrorCode, TrunklineError, TunnelClosed
from shared.protocol.events import (
    CommandReceived,
    DataReceived,
    DemandReceived,
    DrainReceived,
    Event,
    HeadReceived,
    PeerClosed,
    PeerHeard,
    PeerSilent,
    ResultReceived,
    RoundTripMeasured,
    SlotsReceived,
    StateReceived,
    StreamClosed,
    StreamEnded,
    StreamOpened,
    StreamReset,
    StreamWritable,
)
from shared.protocol.messages import AgentState, Drain, RequestHead, ResponseHead, Trailers
from shared.protocol.session import ProtocolSession
from shared.protocol.streams import TunnelRole


class StreamHandler(Protocol):
    """Who is told what happens on one stream. Called from the event loop; must not block or raise."""

    def on_head(self, head: ResponseHead) -> None:
        """The response begins (gateway)."""

    def on_data(self, data: bytes) -> None:
        """Body bytes; call ``stream.consumed(len(data))`` once somebody took them for good."""

    def on_end(self, trailers: Trailers | None) -> None:
        """The peer's half ended in order."""

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        """The peer gave the stream up, or the session is lost (SESSION_LOST). No ``on_end`` follows.

        To an agent it may come after ``on_end``, while its own half is not over: a cancel. An agent confirms
        with ``stream.reset`` once its engine has let go of the request.
        """

    def on_writable(self) -> None:
        """``send_data`` had returned False; now it may be called again."""

    def on_suspended(self) -> None:
        """The tunnel is gone or silent. The session is kept for a while; nothing of the stream is lost, and
        what is done with it meanwhile takes effect at the peer later (PROTOCOL §7.4)."""

    def on_resumed(self) -> None:
        """The stream goes on where it was."""

    def on_closed(self) -> None:
        """Both halves are over. The last call, made exactly once for every stream."""


class SessionListener(Protocol):
    """Who is told what concerns the whole session. Same rules as for :class:`StreamHandler`."""

    def on_open(self, stream: "Stream") -> None:
        """A request came (agent). Set ``stream.handler`` before returning."""

    def on_slots(self, levels: Mapping[str, int]) -> None:
        """Deployment id → requests that may be in flight there (gateway)."""

    def on_state(self, state: AgentState) -> None:
        """All about the agent, whole (gateway)."""

    def on_demand(self, waiting: Mapping[str, int]) -> None:
        """Model → requests waiting at the gateway (agent)."""

    def on_command(self, command: Mapping[str, Any]) -> None:
        """A COMMAND to answer with ``endpoint.send_command`` (agent)."""

    def on_result(self, result: Mapping[str, Any]) -> None:
        """The RESULT of a COMMAND (gateway)."""

    def on_drain(self, drain: Drain) -> None:
        """The peer wants no new streams."""

    def on_session_suspended(self, error: TrunklineError | None) -> None:
        """The tunnel is gone (``error`` says why) or silent (None). The streams have been told.

        Whoever does not want to wait for another tunnel calls ``endpoint.lost``."""

    def on_session_resumed(self) -> None:
        """The session goes on; the streams have been told."""

    def on_session_closed(self, error: TrunklineError | None) -> None:
        """The session is over, every stream has been told. ``error`` None: we closed it ourselves."""


def _nothing() -> None:
    pass


class _NoHandler:
    """Stands where a handler is not set yet: what comes is dropped."""

    def on_head(self, head: ResponseHead) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self, trailers: Trailers | None) -> None: ...
    def on_reset(self, code: ErrorCode, reason: str) -> None: ...
    def on_writable(self) -> None: ...
    def on_suspended(self) -> None: ...
    def on_resumed(self) -> None: ...
    def on_closed(self) -> None: ...


_NO_HANDLER = _NoHandler()


class Stream:
    """One request and its response. Made by :class:`SessionEndpoint` only."""

    __slots__ = ("_endpoint", "_told", "closed", "handler", "head", "id", "peer_ended")

    def __init__(
        self, endpoint: "SessionEndpoint", stream_id: int, head: RequestHead, handler: StreamHandler
    ) -> None:
        self._endpoint = endpoint
        self.id = stream_id
        self.head = head
        self.handler = handler
        self._told = False
        """The handler knows how the stream ended; the loss of the session is no news to it."""
        self.peer_ended = False
        """The peer's half is over, in order or by RESET."""
        self.closed = False
        """Both halves are over, or the session is."""

    def send_head(self, head: ResponseHead) -> None:
        """Sends the response's head (agent). Raises ``StreamClosed``, ``SessionClosed``."""
        self._endpoint.session.send_head(self.id, head)
        self._endpoint.wake()

    def send_data(self, data: bytes) -> bool:
        """Takes all of ``data``. False: wait for ``on_writable`` before the next.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed`, ``SessionClosed``, or ``SendBufferFull``
        when the caller did not wait.
        """
        endpoint = self._endpoint
        ready = endpoint.session.send_data(self.id, data)
        endpoint.wake()
        return ready

    def end(self, trailers: Trailers | None = None) -> None:
        """Ends our half once everything has left. Raises ``StreamClosed``, ``SessionClosed``."""
        self._endpoint.session.end(self.id, trailers)
        self._endpoint.wake()

    def reset(self, code: ErrorCode, reason: str = "") -> None:
        """Gives the stream up, and what it still holds. Any number of times, at any time."""
        if self._endpoint.session.reset(self.id, code, reason):
            self._endpoint.wake()

    def consumed(self, size_bytes: int) -> None:
        """Bytes of ``on_data`` were taken for good: the peer may send more. Harmless after the end."""
        endpoint = self._endpoint
        if endpoint.session.consume(self.id, size_bytes):
            endpoint.session.grant(self.id, endpoint.now())
            endpoint.wake()


class SessionEndpoint:
    """One end of a session, as its program sees it.

    ``now`` gives seconds of the monotonic clock. ``wake`` is called whenever there may be something to send;
    whoever moves the bytes sets it. Methods that send raise :class:`~shared.protocol.errors.SessionClosed`
    when the session is over; while there is no tunnel they work as always.
    """

    def __init__(self, session: ProtocolSession, now: Callable[[], float], wake: Callable[[], None]) -> None:
        self.session = session
        self.now = now
        self.wake = wake
        self.listener: SessionListener | None = None
        self.on_close: Callable[[], None] = _nothing
        """Called when the program closed the session: CLOSE is to leave; whoever moves the bytes sets it."""
        self.drop_tunnel: Callable[[], None] = _nothing
        """Ends the tunnel and keeps the session; whoever moves the bytes sets it."""
        self.on_round_trip: Callable[[], None] = _nothing
        """Called when ``rtt_s`` is another one; the program sets it if it wants to know."""
        self._streams: dict[int, Stream] = {}
        self._stopped = False
        """The streams have been told that nothing comes just now."""

    @property
    def streams(self) -> Mapping[int, Stream]:
        """Streams that are not closed, by number."""
        return self._streams

    @property
    def closed(self) -> bool:
        return self.session.closed

    @property
    def rtt_s(self) -> float | None:
        return self.session.rtt_s

    def open(self, head: RequestHead, handler: StreamHandler) -> Stream:
        """Sends a request (gateway). Raises :class:`~shared.protocol.errors.TooManyStreams`,
        SessionClosed.
        """
        stream_id = self.session.open_stream(head, self.now())
        stream = self._streams[stream_id] = Stream(self, stream_id, head, handler)
        self.wake()
        return stream

    def send_state(self, state: AgentState) -> None:
        self.session.send_state(state)
        self.wake()

    def send_slots(self, levels: Mapping[str, int]) -> None:
        self.session.send_slots(levels)
        self.wake()

    def send_demand(self, waiting: Mapping[str, int]) -> None:
        self.session.send_demand(waiting)
        self.wake()

    def send_drain(self, drain: Drain) -> None:
        self.session.send_drain(drain)
        self.wake()

    def send_command(self, command: Mapping[str, Any]) -> None:
        """COMMAND (gateway) or RESULT (agent). Raises ``LocalError`` when too many wait."""
        self.session.send_command(command)
        self.wake()

    def close(self, code: ErrorCode, reason: str) -> None:
        """Ends the session and tells the peer why. Streams and listener are told at once."""
        if not self.session.closed:
            self.session.close(code, reason)
            try:
                self._lose(None, reason)
            finally:
                self.on_close()

    def quiet_s(self) -> float:
        """How long nothing has been heard of the peer."""
        return self.session.quiet_s(self.now())

    def probe(self) -> None:
        """Asks whether the peer is there; if it does not answer, the streams are suspended soon."""
        self.session.probe(self.now())
        self.wake()

    # --- For whoever moves the bytes ---

    def dispatch(self) -> TrunklineError | None:
        """Hands out what has happened. Returns the peer's reason when it closed the session."""
        closed: PeerClosed | None = None
        while events := self.session.take_events():
            for event in events:
                if type(event) is DataReceived:  # nearly always
                    stream_id, data = event
                    stream = self._streams.get(stream_id)
                    if stream is not None:
                        stream.handler.on_data(data)
                elif isinstance(event, PeerClosed):
                    closed = event
                elif isinstance(event, PeerSilent):
                    self._stop(None)
                elif isinstance(event, PeerHeard):
                    self._go_on()
                else:
                    self._dispatch_one(event)
        if closed is None:
            return None
        return TunnelClosed(closed.reason or closed.code.name, closed.code)

    def suspend(self, error: TrunklineError) -> None:
        """The tunnel is gone; the session is kept if its listener wants to wait for another one."""
        if self.session.closed or self.session.suspended:
            return
        self.wake = self.on_close = self.drop_tunnel = _nothing
        self.session.suspend()
        self.dispatch()
        if self.listener is None:
            self.lost(error)
        else:
            self._stop(error)

    def resume(self, peer_received: int) -> None:
        """Another tunnel is up. Raises :class:`~shared.protocol.errors.ResumeRefused`: the session
        cannot go on.
        """
        self.session.resume(peer_received, self.now())
        self._go_on()

    def lost(self, error: TrunklineError | None) -> None:
        """The session cannot go on: tells every stream, then the listener, unless they know already."""
        self.session.closed = True
        self._lose(error, "" if error is None else str(error))

    def _lose(self, error: TrunklineError | None, reason: str) -> None:
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.closed = stream.peer_ended = True
            if not stream._told:
                stream.handler.on_reset(ErrorCode.SESSION_LOST, reason)
            stream.handler.on_closed()
            stream.handler = _NO_HANDLER
        listener, self.listener, self.on_round_trip = self.listener, None, _nothing
        if listener is not None:
            listener.on_session_closed(error)

    def _stop(self, error: TrunklineError | None) -> None:
        """Nothing comes just now: the streams are told once, the listener each time something is new."""
        told, self._stopped = self._stopped, True
        if not told:
            for stream in list(self._streams.values()):
                stream.handler.on_suspended()
        if self.listener is not None:
            self.listener.on_session_suspended(error)

    def _go_on(self) -> None:
        if not self._stopped:
            return
        self._stopped = False
        for stream in list(self._streams.values()):
            stream.handler.on_resumed()
        if self.listener is not None:
            self.listener.on_session_resumed()

    def _dispatch_one(self, event: Event) -> None:
        action = _ACTIONS.get(type(event))
        if action is not None:
            stream = self._streams.get(event.stream_id)  # type: ignore[union-attr]
            if stream is not None:
                action(self, stream, event)
        elif isinstance(event, StreamOpened):
            self._opened(event)
        elif isinstance(event, RoundTripMeasured):
            self.on_round_trip()
        elif self.listener is not None:
            _NOTICES[type(event)](self.listener, event)

    def _opened(self, event: StreamOpened) -> None:
        stream = self._streams[event.stream_id] = Stream(self, event.stream_id, event.head, _NO_HANDLER)
        if self.listener is not None:
            self.listener.on_open(stream)
        if stream.handler is _NO_HANDLER:
            stream.reset(ErrorCode.REFUSED, "nobody takes requests")

    def _ended(self, stream: Stream, event: StreamEnded) -> None:
        stream.peer_ended = True
        stream._told = self.session.role is TunnelRole.GATEWAY
        stream.handler.on_end(event.trailers)

    def _reset(self, stream: Stream, event: StreamReset) -> None:
        stream.peer_ended = stream._told = True
        stream.handler.on_reset(event.code, event.reason)

    def _closed(self, stream: Stream, event: StreamClosed) -> None:
        del self._streams[stream.id]
        stream.closed = True
        stream.handler.on_closed()
        stream.handler = _NO_HANDLER  # who held the stream can go at once, and not when cycles are looked for


_ACTIONS: dict[type, Callable[[SessionEndpoint, Stream, Any], None]] = {
    HeadReceived: lambda endpoint, stream, event: stream.handler.on_head(event.head),
    StreamEnded: SessionEndpoint._ended,
    StreamReset: SessionEndpoint._reset,
    StreamWritable: lambda endpoint, stream, event: stream.handler.on_writable(),
    StreamClosed: SessionEndpoint._closed,
}

_NOTICES: dict[type, Callable[[SessionListener, Any], None]] = {
    SlotsReceived: lambda listener, event: listener.on_slots(event.levels),
    StateReceived: lambda listener, event: listener.on_state(event.state),
    DemandReceived: lambda listener, event: listener.on_demand(event.waiting),
    CommandReceived: lambda listener, event: listener.on_command(event.command),
    ResultReceived: lambda listener, event: listener.on_result(event.result),
    DrainReceived: lambda listener, event: listener.on_drain(event.drain),
}
