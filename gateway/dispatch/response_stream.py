"""Where the body of a response comes from, as far as the response has to know, and how it is done with."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from shared.protocol.credit import GATEWAY_WINDOWS
from shared.protocol.errors import ErrorCode
from shared.speedups import BodyPath

READ_BYTES = 64 * 1024
"""A reader gets so much at a time, so that it is known how far its client came."""

HOLD_BACK_BYTES = GATEWAY_WINDOWS.left_bytes
"""A reader that leaves less than this unread holds no engine back: the engine has credit then."""

HELD_BYTES = 8 * 1024
"""An answer in one piece is kept back until it is whole or so much is there, so that most can be asked for
again if the engine is lost in the middle. Half of what every stream may send unasked."""

Sink = Callable[[bytes], bool]
"""Takes a piece of the body at once, or returns False and has taken nothing of it. Never raises. A sink may
have a ``path`` (:class:`~shared.speedups.BodyPath`): whole events go that way without a call of the sink."""


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


class ResponseOwner(Protocol):
    """Who is told how a response fares; :class:`gateway.dispatch.exchange.RequestExchange`."""

    def reader_done(self, ending: Ending) -> None:
        """Once: the reader is done with the response. Its owner is told nothing more."""

    def much_came(self) -> None:
        """So much of an answer that was kept back is there that its client is to hear of it."""

    def held_up(self, held_up: bool) -> None:
        """The engine has to wait for its reader, as nothing has room for more; or need not any longer."""


class _Nobody:
    """Owns a response whose reader is done with it."""

    def reader_done(self, ending: Ending) -> None:
        """It is known."""

    def much_came(self) -> None:
        """It is kept from nobody."""

    def held_up(self, held_up: bool) -> None:
        """Nobody minds."""


NOBODY = _Nobody()
