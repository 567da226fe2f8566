"""File descriptors: connections are refused while some are left, not when none are.

The event loop has no good way out of an ``accept`` that fails for want of descriptors: libuv closes the
connection without a word, or turns at full speed, or closes the listener; asyncio logs each try. And what
runs needs some: SQLite, a thread, a handshake. So the last ones are kept back. The kernel always gives out
the lowest that is free, so the number of a new connection's descriptor says how many are in use.
"""

import contextlib
import os
from asyncio import BaseTransport
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import structlog

from gateway.domain.timers import Timers
from gateway.observability.metrics import Metrics
from shared.process.startup import file_limit

RESERVE = 64
"""Descriptors kept back for what is no connection, and for telling the refused so: those of 5 s of refusals
with patience, and of any number without."""

RESERVE_SHARE = 8
"""If the limit is small, at most one part in this many is kept back."""

LOOK_S = 1.0
"""How often it is looked whether there are descriptors again."""

ACCEPT_FAILED = "socket.accept() out of system resource"
"""How asyncio's own loop says it."""

_log = structlog.get_logger("gateway")


class ConnectionVerdict(Enum):
    """What may become of a new connection."""

    ENOUGH = auto()
    SCARCE = auto()
    """It is to be refused, with an answer that it may take its time to read."""
    NONE = auto()
    """It is to be refused at once: descriptors are needed this moment."""


class DescriptorBudget:
    """Decides on new connections by the number of their descriptor. Logs once when they run out, and once
    when there are some again."""

    def __init__(
        self,
        timers: Timers,
        metrics: Metrics,
        limit: Callable[[], int | None] = file_limit,
        lowest_free: Callable[[], int | None] | None = None,
    ) -> None:
        """``limit`` is asked each time: an operator may change it while we run. ``lowest_free`` gives the
        number that the next descriptor will have, None when there is none left."""
        self._timers = timers
        self._metrics = metrics
        self._limit = limit
        self._lowest_free = lowest_free or _lowest_free
        self._began_s: float | None = None
        self._refused = 0
        metrics.machine_trouble("descriptors", False)

    @property
    def exhausted(self) -> bool:
        return self._began_s is not None

    def room_for(self, descriptor: int) -> ConnectionVerdict:
        """Whether a connection that just got this descriptor may stay."""
        limit = self._limit()
        if limit is None:
            return ConnectionVerdict.ENOUGH
        reserve = _reserve(limit)
        if descriptor < limit - reserve:
            return ConnectionVerdict.ENOUGH
        self._run_out()
        return ConnectionVerdict.SCARCE if descriptor < limit - reserve // 2 else ConnectionVerdict.NONE

    @property
    def none_left(self) -> bool:
        """Whether not even one is to be had: the limit was lowered, or the whole machine is out of them."""
        if self._limit() is None or self._lowest_free() is not None:
            return False
        self._begin()
        return True

    def loop_failed(self, loop: Any, context: dict[str, Any]) -> None:
        """An exception handler for event loops that keeps asyncio from flooding the log."""
        if context.get("message") == ACCEPT_FAILED:
            self._run_out()
        else:
            loop.default_exception_handler(context)

    def _run_out(self) -> None:
        self._refused += 1
        self._begin()

    def _begin(self) -> None:
        if self._began_s is None:
            self._began_s = self._timers.time()
            self._metrics.machine_trouble("descriptors", True)
            _log.error("descriptors_exhausted", limit=self._limit())
            self._look_later()

    def _look_later(self) -> None:
        self._timers.call_at(self._timers.time() + LOOK_S, self._look)

    def _look(self) -> None:
        limit, lowest = self._limit(), self._lowest_free()
        if limit is not None and (lowest is None or lowest >= limit - 2 * _reserve(limit)):
            self._look_later()
            return
        assert self._began_s is not None
        lasted_s = round(self._timers.time() - self._began_s, 1)
        _log.warning("descriptors_back", refused=self._refused, lasted_s=lasted_s)
        self._began_s, self._refused = None, 0
        self._metrics.machine_trouble("descriptors", False)


def room_for(transport: BaseTransport, budget: DescriptorBudget | None) -> ConnectionVerdict:
    """Whether this new connection may stay. Without a budget, or a socket, it may."""
    raw = transport.get_extra_info("socket")
    if raw is None or budget is None:
        return ConnectionVerdict.ENOUGH
    return budget.room_for(raw.fileno())


def _reserve(limit: int) -> int:
    return min(RESERVE, limit // RESERVE_SHARE)


def _lowest_free() -> int | None:
    with contextlib.suppress(OSError):
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor
    return None
