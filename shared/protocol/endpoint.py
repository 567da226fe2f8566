"""The program's end of a session: streams with handlers in place of numbers and events.

It hands the session's events to the handlers they concern and says when there is something to send. It has no
I/O and no clock of its own. Everything runs in one thread, and handlers may call back into streams and
endpoint at any time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shared.protocol.demand import Demand
from shared.protocol.errors import ErrorCode, TrunklineError, TunnelClosed
from shared.protocol.events import (
    ControlReceived,
    DataReceived,
    HeadReceived,
    PeerClosed,
    ProgressReceived,
    StreamClosed,
    StreamEnded,
    StreamOpened,
    StreamReset,
    StreamWritable,
    TunnelEvent,
)
from shared.protocol.frames import FrameType, TunnelRole
from shared.protocol.messages import AgentState, Drain, RequestHead, ResponseHead, Trailers
from shared.protocol.others import Others
from shared.protocol.peers import Peers
from shared.protocol.progress import Progress
from shared.protocol.session import ProtocolSession
from shared.protocol.session_listener import SessionListener as SessionListener
from shared.protocol.stream_handler import NO_HANDLER, StreamHandler
from shared.speedups import BodyPath, OutPath

_GATEWAY = TunnelRole.GATEWAY

LOSS_SLICE_S = 0.002
"""A session that is lost tells its streams for so long in one turn of the event loop."""


def _nothing() -> None:
    pass


class Stream:
    """One request and its response. Made by :class:`SessionEndpoint` only."""

    _end_told = False
    """The handler was told how the stream ended, and need not be told that the session is lost."""
    closed = False
    """Both halves are over, or the session is."""
    peer_ended = False
    """The peer's half is over, in order or by RESET."""

    def __init__(
        self, endpoint: "SessionEndpoint", stream_id: int, head: RequestHead, handler: StreamHandler
    ) -> None:
        self._endpoint = endpoint
        self.id = stream_id
        self.head = head
        self.handler = handler
        self.path: BodyPath | None = None
        """What takes bodies to their client without ``on_data``, while it is open; see :meth:`take_path`."""

    def take_path(self, path: BodyPath) -> None:
        """From now on bodies take ``path`` while it is open; what comes otherwise goes to ``on_data``."""
        self.path = path
        self._endpoint.session.set_path(self.id, path)

    def out_path(self) -> OutPath | None:
        """The way of a body's whole events past :meth:`send_data` (agent); None when the stream is
        closed."""
        return self._endpoint.session.out_path(self.id, self._endpoint)

    def send_head(self, head: ResponseHead) -> None:
        """Sends the response's head (agent). Raises ``StreamHalfClosed``, ``SessionClosed``."""
        self._endpoint.session.send_head(self.id, head)
        self._endpoint.wake()

    def send_progress(self, progress: Progress) -> bool:
        """Says how far the engine has come (agent), where ``progress`` is agreed on. False: not now, as too
        much was sent of late. Raises ``StreamHalfClosed``, ``SessionClosed``."""
        taken = self._endpoint.session.send_progress(self.id, progress, self._endpoint.now())
        self._endpoint.wake()
        return taken

    def send_data(self, data: bytes) -> bool:
        """Takes all of ``data``. Returns False when the next must wait for ``on_writable``.

        Raises :class:`~shared.protocol.errors.StreamHalfClosed`, ``SessionClosed``, or ``SendBufferFull``
        when the caller did not wait.
        """
        endpoint = self._endpoint
        ready = endpoint.session.send_data(self.id, data)
        endpoint.wake()
        return ready

    def hasten(self) -> None:
        """Somebody waits for what was sent last, and has nothing yet: it is not to wait for more."""
        self._endpoint.hasten()

    def send_whole(self, pieces: Sequence[bytes]) -> None:
        """Sends a whole body that the send buffer holds, and ends our half (gateway): all leaves together.
        Raises ``StreamHalfClosed``, ``SessionClosed``."""
        endpoint = self._endpoint
        endpoint.session.send_whole(self.id, pieces)
        endpoint.wake()
        if self.head.streaming:
            endpoint.hasten()

    def send_answer(self, head: ResponseHead, body: bytes, trailers: Trailers) -> None:
        """Sends a whole response (agent): all leaves together. Raises ``StreamHalfClosed``,
        ``SessionClosed``."""
        endpoint = self._endpoint
        endpoint.session.send_head(self.id, head, body, trailers)
        endpoint.wake()
        if self.head.streaming:
            endpoint.hasten()

    def end(self, trailers: Trailers | None = None) -> None:
        """Ends our half once everything has left. Raises ``StreamHalfClosed``, ``SessionClosed``."""
        self._endpoint.session.end(self.id, trailers)
        self._endpoint.wake()

    def reset(self, code: ErrorCode, reason: str = "") -> None:
        """Gives the stream up, and what it still holds. May be called at any time, and more than once."""
        if self._endpoint.session.reset(self.id, code, reason):
            self._endpoint.wake()

    def consumed(self, size_bytes: int) -> None:
        """Says that bytes of ``on_data`` were taken for good, so that the peer may send more."""
        endpoint = self._endpoint
        if endpoint.session.consume(self.id, size_bytes):
            endpoint.session.grant(self.id, endpoint.now())
            endpoint.wake()


class SessionEndpoint:
    """One end of a session, as its program sees it.

    ``now`` gives seconds of the monotonic clock. ``wake`` is called whenever there may be something to send;
    the tunnel sets it. Methods that send raise :class:`~shared.protocol.errors.SessionClosed` when the
    session is over; while there is no tunnel they work as always.
    """

    def __init__(self, session: ProtocolSession, now: Callable[[], float], wake: Callable[[], None]) -> None:
        self.session = session
        self.now = now
        self.wake = wake
        self.hasten: Callable[[], None] = _nothing
        """Called after ``wake`` where somebody waits for what is to be sent; the tunnel sets it."""
        self.listener: SessionListener | None = None
        self.on_close: Callable[[], None] = _nothing
        """Called when the program closed the session, so that CLOSE leaves; the tunnel sets it."""
        self.drop_tunnel: Callable[[], None] = _nothing
        """Ends the tunnel and keeps the session; the tunnel sets it."""
        self.on_round_trip: Callable[[], None] = _nothing
        """Called when ``rtt_s`` has changed; the program sets it."""
        self.call_soon: Callable[[Callable[[], None]], object] = lambda step: step()
        """Runs something in another turn of the event loop; the tunnel sets it."""
        self.streams: dict[int, Stream] = {}
        """Streams that are not closed, by number. Only the endpoint changes it."""
        self._streams_suspended = False
        """The streams were told that they are suspended."""
        self._peer_closed: PeerClosed | None = None
        """The peer ended the session; :meth:`dispatch` says so once everything else is handed out."""

    @property
    def closed(self) -> bool:
        return self.session.closed

    @property
    def rtt_s(self) -> float | None:
        return self.session.rtt_s

    def open(self, head: RequestHead, handler: StreamHandler) -> Stream:
        """Sends a request (gateway). Raises ``TooManyStreams``, ``SessionClosed``."""
        stream_id = self.session.open_stream(head, self.now())
        stream = self.streams[stream_id] = Stream(self, stream_id, head, handler)
        self.wake()
        return stream

    def send_state(self, state: AgentState) -> None:
        self.session.send_state(state)
        self.wake()

    def send_slots(self, levels: Mapping[str, int]) -> None:
        self.session.send_slots(levels)
        self.wake()

    def send_demand(self, demands: Mapping[str, Demand]) -> None:
        self.session.send_demand(demands)
        self.wake()

    def send_peers(self, peers: Peers) -> None:
        self.session.send_peers(peers)
        self.wake()

    def send_others(self, others: Others) -> int:
        size_bytes = self.session.send_others(others)
        self.wake()
        return size_bytes

    def send_drain(self, drain: Drain) -> None:
        self.session.send_drain(drain)
        self.wake()

    def send_command(self, command: Mapping[str, Any]) -> None:
        """COMMAND (gateway) or RESULT (agent). Raises ``LocalError`` when too many wait."""
        self.session.send_command(command)
        self.wake()

    def close(self, code: ErrorCode, reason: str) -> None:
        """Ends the session and tells the peer, the listener and the streams why."""
        if not self.session.closed:
            self.session.close(code, reason)
            try:
                self._tell_loss(None, reason)
            finally:
                self.on_close()

    def quiet_s(self) -> float:
        """How long nothing has been heard of the peer."""
        return self.session.quiet_s(self.now())

    def probe(self) -> None:
        """Asks whether the peer is there; if it does not answer, the streams are suspended soon."""
        self.session.probe(self.now())
        self.wake()

    # --- Called by the tunnel ---

    def dispatch(self) -> TrunklineError | None:
        """Hands out what has happened. Returns the peer's reason when it closed the session."""
        session = self.session
        while session.events:
            events, session.events = session.events, []
            for event in events:
                if type(event) is DataReceived:  # nearly always
                    stream = self.streams.get(event.stream_id)
                    if stream is not None:
                        stream.handler.on_data(event.data)
                else:
                    _ACTIONS[type(event)](self, event)
        closed = self._peer_closed
        if closed is None:
            return None
        self._peer_closed = None
        return TunnelClosed(closed.reason or closed.code.name, closed.code)

    def suspend(self, error: TrunklineError) -> None:
        """The tunnel is gone. The session is kept when it has a listener, which may wait for another one."""
        if self.session.closed or self.session.suspended:
            return
        self.wake = self.on_close = self.drop_tunnel = _nothing
        self.session.suspend()
        self.dispatch()
        if self.listener is None:
            self.lost(error)
        else:
            self._suspend_streams(error)

    def resume(self, peer_received: int) -> None:
        """Another tunnel is up. Raises ``ResumeRefused`` when the session cannot go on there."""
        self.session.resume(peer_received, self.now())
        self._resume_streams()

    def lost(self, error: TrunklineError | None) -> None:
        """The session cannot go on: tells the listener, then every stream, unless they know already."""
        self.session.closed = True
        self._tell_loss(error, "" if error is None else str(error))

    # --- Steps ---

    def _tell_loss(self, error: TrunklineError | None, reason: str) -> None:
        streams, self.streams = iter(list(self.streams.values())), {}
        listener, self.listener, self.on_round_trip = self.listener, None, _nothing
        if listener is not None:
            listener.on_session_closed(error)
        self._tell_streams_of_loss(streams, reason)

    def _tell_streams_of_loss(self, streams: Iterator[Stream], reason: str) -> None:
        """Tells streams for one slice of time, and the others in further turns of the event loop.

        A handler may find its request another place at once, which takes time when there are hundreds.
        """
        until_s = self.now() + LOSS_SLICE_S
        for stream in streams:
            stream.closed = stream.peer_ended = True
            if not stream._end_told:
                stream.handler.on_reset(ErrorCode.SESSION_LOST, reason)
            stream.handler.on_closed()
            stream.handler = NO_HANDLER
            if self.now() >= until_s:
                self.call_soon(lambda: self._tell_streams_of_loss(streams, reason))
                return

    def _suspend_streams(self, error: TrunklineError | None) -> None:
        """Tells the streams once that nothing comes for now, and the listener each time ``error`` is new."""
        told, self._streams_suspended = self._streams_suspended, True
        if not told:
            for stream in list(self.streams.values()):
                stream.handler.on_suspended()
        if self.listener is not None:
            self.listener.on_session_suspended(error)

    def _resume_streams(self) -> None:
        if not self._streams_suspended:
            return
        self._streams_suspended = False
        for stream in list(self.streams.values()):
            stream.handler.on_resumed()
        if self.listener is not None:
            self.listener.on_session_resumed()

    def _open_received(self, event: StreamOpened) -> None:
        stream = self.streams[event.stream_id] = Stream(self, event.stream_id, event.head, NO_HANDLER)
        if self.listener is not None:
            self.listener.on_open(stream)
        if stream.handler is NO_HANDLER:
            stream.reset(ErrorCode.REFUSED, "nobody takes requests")

    def _head_received(self, event: HeadReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.handler.on_head(event.head)

    def _progress_received(self, event: ProgressReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.handler.on_progress(event.progress)

    def _stream_ended(self, event: StreamEnded) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.peer_ended = True
            stream._end_told = self.session.role is _GATEWAY
            stream.handler.on_end(event.trailers)

    def _stream_reset(self, event: StreamReset) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.peer_ended = stream._end_told = True
            stream.handler.on_reset(event.code, event.reason)

    def _stream_writable(self, event: StreamWritable) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.handler.on_writable()

    def _stream_closed(self, event: StreamClosed) -> None:
        stream = self.streams.pop(event.stream_id, None)
        if stream is not None:
            stream.closed = True
            stream.handler.on_closed()
            stream.handler = NO_HANDLER  # breaks a cycle, so that the handler is freed at once

    def _control_received(self, event: ControlReceived) -> None:
        if self.listener is not None:
            _NOTICES[event.type](self.listener, event.content)

    def _tunnel_changed(self, event: TunnelEvent) -> None:
        if event is TunnelEvent.ROUND_TRIP_MEASURED:
            self.on_round_trip()
        elif event is TunnelEvent.PEER_SILENT:
            self._suspend_streams(None)
        else:
            self._resume_streams()

    def _session_closed(self, event: PeerClosed) -> None:
        self._peer_closed = event


_ACTIONS: dict[type, Callable[[SessionEndpoint, Any], None]] = {
    StreamOpened: SessionEndpoint._open_received,
    HeadReceived: SessionEndpoint._head_received,
    ProgressReceived: SessionEndpoint._progress_received,
    StreamEnded: SessionEndpoint._stream_ended,
    StreamReset: SessionEndpoint._stream_reset,
    StreamWritable: SessionEndpoint._stream_writable,
    StreamClosed: SessionEndpoint._stream_closed,
    ControlReceived: SessionEndpoint._control_received,
    TunnelEvent: SessionEndpoint._tunnel_changed,
    PeerClosed: SessionEndpoint._session_closed,
}
"""What each event but DataReceived leads to."""

_NOTICES: dict[int, Callable[[SessionListener, Any], None]] = {
    FrameType.SLOTS: lambda listener, levels: listener.on_slots(levels),
    FrameType.STATE: lambda listener, state: listener.on_state(state),
    FrameType.DEMAND: lambda listener, demands: listener.on_demand(demands),
    FrameType.PEERS: lambda listener, peers: listener.on_peers(peers),
    FrameType.OTHERS: lambda listener, others: listener.on_others(others),
    FrameType.COMMAND: lambda listener, command: listener.on_command(command),
    FrameType.RESULT: lambda listener, result: listener.on_result(result),
    FrameType.DRAIN: lambda listener, drain: listener.on_drain(drain),
}
