"""What a queue of messages must be able to do to feed jobs. One implementation for each kind of broker.

::

    SourceError
    ├── BrokerAway       the broker cannot be reached: try again
    └── ReplyRefused     the broker does not take a reply, as for a queue that there is not
        └── ReplyTooLong     it takes no reply of this length
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class SourceError(Exception):
    """A broker did not do what it was asked for. Its text is for people."""


class BrokerAway(SourceError):
    """The broker cannot be reached, or refuses everything just now. What was taken and not acknowledged comes
    again."""


class ReplyRefused(SourceError):
    """The broker is there, and does not take a reply."""


class ReplyTooLong(ReplyRefused):
    """The broker takes shorter replies than this one."""


@dataclass(frozen=True, slots=True)
class TakenMessage:
    """A message that its broker keeps for us until it is acknowledged or rejected."""

    body: bytes
    handle: object
    """By which the source knows it."""
    id: str | None = None
    """What the broker calls it, if that is the same whenever it comes again."""
    reply_to: str | None = None
    """Where the broker's own properties say that the reply goes."""


class Source(Protocol):
    """A queue of one broker. Every method connects when there is no connection, and raises BrokerAway. One
    task at a time takes, acknowledges and rejects; others may reply meanwhile."""

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        """Up to ``most`` messages; none where there is none for ``wait_s``. They come again, to this
        process or another, unless they are acknowledged or rejected."""
        ...

    async def acknowledge(self, message: TakenMessage) -> None:
        """It is done with."""
        ...

    async def reject(self, message: TakenMessage, reason: str) -> None:
        """Put it where dead letters lie, with the reason, and take it out of the queue."""
        ...

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        """Put a reply, JSON, where ``to`` says; returns once the broker has it. Raises
        ReplyRefused, and ReplyTooLong for a body that the broker has no room for."""
        ...

    async def close(self) -> None:
        """End the connection. Raises nothing."""
        ...


@runtime_checkable
class OwnedSource(Source, Protocol):
    """One whose broker knows by the name of its owner what each process has taken."""

    def succeed(self, earlier: str) -> None:
        """The process that took messages as ``earlier`` is no more: the next :meth:`take` begins with what it
        held."""
        ...
