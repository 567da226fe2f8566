"""What a program does about one stream, as its endpoint tells it (:mod:`shared.protocol.endpoint`)."""

from typing import Protocol

from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from shared.protocol.progress import Progress


class StreamHandler(Protocol):
    """Is told what happens on one stream. Called from the event loop; must not block or raise."""

    def on_head(self, head: ResponseHead) -> None:
        """The response begins (gateway)."""

    def on_progress(self, progress: Progress) -> None:
        """How far the engine has come with the request (gateway). What was said before is out of date."""

    def on_data(self, data: bytes) -> None:
        """Body bytes came. Call ``stream.consumed(len(data))`` once somebody took them for good."""

    def on_end(self, trailers: Trailers | None) -> None:
        """The peer's half ended in order."""

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        """The peer gave the stream up, or the session is lost (SESSION_LOST). No ``on_end`` follows.

        An agent may be told after ``on_end`` while its own half is not over: that is a cancel. It confirms
        with ``stream.reset`` once its engine has let go of the request.
        """

    def on_writable(self) -> None:
        """``send_data`` returned False before; now it may be called again."""

    def on_suspended(self) -> None:
        """The tunnel is gone or silent. Nothing is lost, and what is sent meanwhile leaves later (§7.4)."""

    def on_resumed(self) -> None:
        """The stream goes on where it was."""

    def on_closed(self) -> None:
        """Both halves are over. The last call, made exactly once for every stream."""


class _NoHandler:
    """Stands where no handler is set: what comes is dropped."""

    def on_head(self, head: ResponseHead) -> None: ...
    def on_progress(self, progress: Progress) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_end(self, trailers: Trailers | None) -> None: ...
    def on_reset(self, code: ErrorCode, reason: str) -> None: ...
    def on_writable(self) -> None: ...
    def on_suspended(self) -> None: ...
    def on_resumed(self) -> None: ...
    def on_closed(self) -> None: ...


NO_HANDLER = _NoHandler()
