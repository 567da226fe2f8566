"""What continuing an answer consists of, whatever its route, and why it may fail."""

from abc import ABC, abstractmethod

from shared.protocol.messages import Usage


class NotContinuable(Exception):
    """The answer so far, or what was asked for, does not let another engine go on with it soundly."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SpliceFailed(Exception):
    """What the next engine sent cannot be joined to the answer soundly."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Splicer(ABC):
    """Makes the events of a continuation those of the answer that began elsewhere.

    One id, one role, one run of indices and sequence numbers, no repeated head, usage of the whole. Gives
    out whole events only, so a continuation that breaks too can itself be continued.
    """

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the continuation; gives those for the client, perhaps none.

        Raises :class:`~gateway.dispatch.recovery.SpliceFailed`; nothing may be fed after that.
        """

    @abstractmethod
    def finish(self) -> bytes:
        """The continuation is over in order: gives what was held back. Raises like :meth:`feed`."""

    @abstractmethod
    def add_up(self, usage: Usage) -> Usage:
        """The usage of the whole answer, from what was reported for the continuation."""


class Progress(ABC):
    """An answer that broke off and can go on."""

    text: str
    """What of the answer's text the client has."""
    tokens: int
    """How many tokens that is: one for each event with text, or what the engine counted."""
    finished: bool
    """The text is whole; only what follows it is missing."""
    closing: bytes | None
    """Not None: with these bytes the answer is whole, and nobody needs to be asked."""

    @abstractmethod
    def continued_request(self, mode: str) -> bytes:
        """The body of the request for the next engine, which can continue in ``mode``.

        All is as the client wrote it but what continuing changes. Raises
        :class:`~gateway.dispatch.recovery.NotContinuable` when it cannot be done in this mode.
        """

    @abstractmethod
    def splicer(self) -> Splicer:
        """For the answer to the request that :meth:`continued_request` made last."""
