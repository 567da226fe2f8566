"""Programs at both ends of streams, which hold what they are told against what may follow what."""

from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode, TrunklineError
from shared.protocol.messages import ResponseHead, Trailers
from shared.protocol.progress import Progress
from tests.support.tunnels import Recorder


class Side:
    """One end of one stream: a StreamHandler that holds what it is told against what may follow what."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.stream: Stream | None = None
        self.sent = bytearray()
        self.received = bytearray()
        self.consumed = 0
        self.headed = role == "gateway"
        self.may_write = True
        self.our_end = self.our_reset = False
        self.peer_head = self.peer_end = False
        self.peer_reset: ErrorCode | None = None
        self.suspended = self.closed = False

    def on_head(self, head: ResponseHead) -> None:
        assert self.role == "gateway"
        self._live()
        assert not self.peer_head
        self.peer_head = True

    def on_progress(self, progress: Progress) -> None:
        self._live()
        assert self.role == "gateway"

    def on_data(self, data: bytes) -> None:
        self._live()
        assert self.peer_head or self.role == "agent"
        if not self.our_reset:
            self.received += data

    def on_end(self, trailers: Trailers | None) -> None:
        self._live()
        self.peer_end = True

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        assert not self.closed
        assert self.peer_reset is None
        assert not self.peer_end or self.role == "agent"
        self.peer_reset = code

    def on_writable(self) -> None:
        assert not self.closed
        self.may_write = True

    def on_suspended(self) -> None:
        assert not self.closed
        assert not self.suspended
        self.suspended = True

    def on_resumed(self) -> None:
        assert not self.closed
        self.suspended = False

    def on_closed(self) -> None:
        assert not self.closed
        self.closed = True

    def _live(self) -> None:
        assert not self.closed
        assert not self.peer_end
        assert self.peer_reset is None

    @property
    def over(self) -> bool:
        return self.closed or self.our_end or self.our_reset

    @property
    def lost(self) -> bool:
        return self.peer_reset is ErrorCode.SESSION_LOST


class AgentEnd(Recorder):
    """The agent's listener: gives every stream that is opened its side."""

    def __init__(self, sides: dict[str, tuple[Side, Side]]) -> None:
        super().__init__()
        self._sides = sides

    def on_open(self, stream: Stream) -> None:
        _, side = self._sides[stream.head.request_id]
        assert side.stream is None, "opened twice"
        side.stream, stream.handler = stream, side

    def on_session_suspended(self, error: TrunklineError | None) -> None: ...
    def on_session_resumed(self) -> None: ...
