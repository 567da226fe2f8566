"""Where the body of a response comes from, as far as the response has to know, and how it is done with."""

from enum import Enum, auto
from typing import Protocol

from shared.protocol.errors import ErrorCode
from shared.speedups import BodyPath


class Ending(Enum):
    """How a response was done with."""

    COMPLETE = auto()
    """Its reader was told of its end."""
    BROKEN = auto()
    """Its reader was told that it broke."""
    ABORTED = auto()
    """Its reader went away."""


class ResponseStream(Protocol):
    """:class:`shared.protocol.endpoint.Stream`, or nothing."""

    def consumed(self, size_bytes: int, /) -> None: ...
    def reset(self, code: ErrorCode, /) -> None: ...
    def take_path(self, path: BodyPath, /) -> None: ...


class NoStream:
    """Of a response that no engine works on yet, or any more."""

    def consumed(self, size_bytes: int) -> None:
        """Nobody waits for credit."""

    def reset(self, code: ErrorCode) -> None:
        """Nothing runs."""

    def take_path(self, path: BodyPath) -> None:
        """Nothing comes."""
