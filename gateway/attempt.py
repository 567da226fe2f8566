"""One try of one request: a stream on one deployment, and the slot it holds."""

from typing import Protocol

from gateway.deployments import Deployment
from gateway.domain import Request
from gateway.response import EngineResponse
from gateway.upload import Upload
from shared.endpoint import Stream
from shared.errors import ErrorCode
from shared.messages import RequestHead, ResponseHead, Trailers


class AttemptOwner(Protocol):
    """Who is told what becomes of an attempt; :class:`gateway.exchange.Exchange`."""

    @property
    def request(self) -> Request: ...

    def answered(self, attempt: "Attempt", head: ResponseHead) -> None:
        """The response's head is there. Sets ``attempt.response``."""

    def complete(self, trailers: Trailers | None) -> None:
        """The response is complete."""

    def lost(self, code: ErrorCode, reason: str) -> None:
        """The stream was reset from the other side."""

    def body_failed(self, error: Exception) -> None:
        """The rest of the request's body could not be read."""

    def closed(self, attempt: "Attempt") -> None:
        """The stream is closed at both ends. Always last; alone after :meth:`Attempt.give_up`."""


class Attempt:
    """One stream on one deployment (a StreamHandler). It holds its slot until both ends have let go."""

    __slots__ = (
        "_owner",
        "_wanted",
        "deployment",
        "heard",
        "opened_s",
        "received_bytes",
        "response",
        "stream",
        "upload",
        "work",
    )

    def __init__(
        self, owner: AttemptOwner, deployment: Deployment, head: RequestHead, work: float, now: float
    ) -> None:
        """Opens the stream. Raises SessionClosed or TooManyStreams; nothing is held then."""
        self.deployment = deployment
        self.work = work
        self.opened_s = now
        self.heard = False
        """Whether bytes came since somebody last looked and set this back."""
        self.received_bytes = 0
        """Of the response's body."""
        self.response: EngineResponse | None = None
        self.upload: Upload | None = None
        self._owner = owner
        self._wanted = True
        self.stream: Stream = deployment.session.endpoint.open(head, self)

    @property
    def request(self) -> Request:
        """Whose attempt it is."""
        return self._owner.request

    def give_up(self, code: ErrorCode, reason: str = "") -> None:
        """Nobody wants the answer of this attempt any more."""
        self._wanted = False
        self._stop_upload()
        self.stream.reset(code, reason)

    def on_head(self, head: ResponseHead) -> None:
        self.heard = True
        if self._wanted:
            self._owner.answered(self, head)

    def on_data(self, data: bytes) -> None:
        self.heard = True
        self.received_bytes += len(data)
        if self.response is not None:
            self.response.feed(data)
        else:
            self.stream.consumed(len(data))

    def on_end(self, trailers: Trailers | None) -> None:
        self._stop_upload()
        if self._wanted:
            self._owner.complete(trailers)

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        self._stop_upload()
        if self._wanted:
            self._wanted = False
            self._owner.lost(code, reason)

    def on_writable(self) -> None:
        if self.upload is not None:
            self.upload.writable()

    def on_suspended(self) -> None:
        pass

    def on_resumed(self) -> None:
        pass

    def on_closed(self) -> None:
        self._stop_upload()
        self._owner.closed(self)

    def upload_failed(self, error: Exception) -> None:
        if self._wanted:
            self._owner.body_failed(error)

    def _stop_upload(self) -> None:
        if self.upload is not None:
            self.upload.stop()
