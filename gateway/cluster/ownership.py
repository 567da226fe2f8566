"""Whether this process is the one that may do what only one process may. Pure; times in seconds."""

from collections.abc import Callable
from typing import Protocol

from gateway.storage.ownership import OwnershipLease

LEADER = "leader"
"""The name of the lease. Its owner decides which models are loaded, renews certificates, keeps the backup and
takes administrative acts up into the audit log."""

TTL_S = 8.0
"""How long a lease lasts that is not renewed."""

MARGIN_S = 2.0
"""The owner stops so long before its lease ends: what it has just begun is over by then."""


class Ownership(Protocol):
    """What those ask who act for all processes, each time before they do."""

    @property
    def owns(self) -> bool:
        """Whether this process may act now."""
        ...

    @property
    def epoch(self) -> int | None:
        """Of the owner, for those who are told something by it; None: there is one process, and no epochs."""
        ...


class SoleOwner:
    """Of a gateway that is one process, which owns everything."""

    owns = True
    epoch: int | None = None


class LeasedOwnership:
    """What this process has of the lease, as far as the store said. ``clock`` is one that goes on while the
    host sleeps (:func:`gateway.domain.running_clock.running_s`)."""

    def __init__(self, process: str, incarnation: int, clock: Callable[[], float]) -> None:
        self._process, self._incarnation, self._clock = process, incarnation, clock
        self._ends_s = float("-inf")
        self._epoch: int | None = None
        self.latest: OwnershipLease | None = None
        """As it was seen last, whoever has it."""

    @property
    def owns(self) -> bool:
        """See :class:`Ownership`."""
        return self._clock() < self._ends_s

    @property
    def epoch(self) -> int | None:
        """See :class:`Ownership`; the latest this process had, whether it is still the owner or not."""
        return self._epoch

    def answered(self, lease: OwnershipLease | None, asked_s: float) -> None:
        """The store has answered a claim of ``TTL_S`` that was made at ``asked_s``, before anything of it."""
        self.latest = lease or self.latest
        if lease is None:
            return  # it may be ours as before
        if lease.held_by(self._process, self._incarnation):
            self._epoch = lease.epoch
            self._ends_s = asked_s + TTL_S - MARGIN_S
        else:
            self.end()

    def end(self) -> None:
        """Act no more, before the lease is given back."""
        self._ends_s = float("-inf")
