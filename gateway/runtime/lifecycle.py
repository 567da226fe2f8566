"""Whether the gateway takes requests, and how many it has not finished."""

import asyncio
from enum import StrEnum

from gateway.domain.errors import ShuttingDown

RETRY_AFTER_S = 2.0
"""A load balancer has seen ``/readyz`` fail by then, a restarted gateway is up again."""


class LifecyclePhase(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """Starts as STARTING; moves forward only."""

    def __init__(self) -> None:
        self.phase = LifecyclePhase.STARTING
        self.draining = False
        """``phase`` is DRAINING."""
        self.in_flight = 0
        self._idle: asyncio.Event | None = None
        """Made when somebody waits for the last request."""

    def check(self) -> None:
        """Raises :class:`ShuttingDown` once the gateway takes no new requests."""
        if self.draining:
            message = "This gateway is shutting down and takes no new requests; send the request again."
            raise ShuttingDown(message, retry_after_s=RETRY_AFTER_S)

    def serve(self) -> None:
        if self.phase is LifecyclePhase.STARTING:
            self.phase = LifecyclePhase.SERVING

    def drain(self) -> None:
        self.phase = LifecyclePhase.DRAINING
        self.draining = True

    def enter(self) -> None:
        """A request has begun."""
        self.in_flight += 1

    def leave(self) -> None:
        """Its last byte went out, or its client is gone."""
        self.in_flight -= 1
        if self._idle is not None and not self.in_flight:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when no request is in flight. Put a timeout around it."""
        while self.in_flight:
            if self._idle is None or self._idle.is_set():
                self._idle = asyncio.Event()
            await self._idle.wait()
