"""Tells a gateway what is served here and how much of it may be asked for (PROTOCOL §4.6, §4.7)."""

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Protocol

import structlog

from shared.protocol import limits
from shared.protocol.control_frames import control_frame_units
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.engine_state import EngineState
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    DeploymentState,
    DeploymentStatus,
    GpuState,
)

log = structlog.get_logger("link.publisher")

TICK_S = 1.0
"""How often engines' queues are looked at, and figures that only drift are compared."""

DRIFT_S = 2.0
"""Figures that only drift (load, busy or not) are sent no more often than this: a STATE carries everything,
and the slots, which are what counts, are sent at once. Those of GPUs are sent every ``TICK_S``."""

STATE_UNITS = limits.CONTROL_FRAMES_BURST / 2
STATE_UNITS_PER_S = limits.CONTROL_FRAMES_PER_S / 2
"""STATE takes half of the control frames that a gateway lets an agent send (PROTOCOL §2.6), and one frame
more, of 193 units at most: after that a change waits, with all that come meanwhile."""

GPU_UNITS = STATE_UNITS_PER_S / 4
"""A STATE that costs more is sent every ``DRIFT_S`` only, GPUs or not, so that changes need not wait."""

SLOTS_UNITS = limits.CONTROL_FRAMES_BURST / 8
SLOTS_UNITS_PER_S = limits.CONTROL_FRAMES_PER_S / 4
"""For SLOTS that no request brought about: 16 at once, then 6 a second. The rest is for PING, PONG and so on.
SLOTS after a request go at once: the gateway grants three for each, and at most two are sent."""


class RateLimiter:
    """Units that may be spent: ``most`` at once, and ``per_s`` of them are earned back in a second."""

    def __init__(self, most: float, per_s: float) -> None:
        self._most_s = most / per_s
        self._per_s = per_s
        self._until_s = 0.0
        """When all that was spent is earned back."""

    def wait_s(self, now: float) -> float:
        """How long until something may be spent; 0 if now."""
        return max(0.0, self._until_s - self._most_s - now)

    def spend(self, units: float, now: float) -> None:
        self._until_s = max(self._until_s, now) + units / self._per_s


class PublishedCapacity(Protocol):
    """What is offered and how much of it; ``agent.capacity.engine_registry.EngineRegistry`` at an agent."""

    moves: int
    """How often a request of the session that asked for its levels last, or of any whose slots are lent, was
    let in or has left."""
    on_change: Callable[[], None]
    """Called after each change of :meth:`state` or :meth:`levels`."""
    on_levels: Callable[[], None]
    """Called when levels have changed and nothing else."""

    def observe(self) -> None:
        """Looks at what drifts; called every ``TICK_S``."""

    def state(self, gpus: tuple[GpuState, ...] = ()) -> AgentState:
        """All there is to say, cut to what fits into a frame."""

    def levels(self, session: Hashable) -> Mapping[str, int]:
        """Deployment id → how many requests ``session`` may have in flight there."""


class Publisher:
    """Sends STATE and SLOTS on one session: both at first, then what changed, once per turn of the loop, and
    never more than the gateway takes: the newest waits for its time, and what it replaces is not sent."""

    def __init__(
        self,
        registry: PublishedCapacity,
        gpus: Callable[[], tuple[GpuState, ...]],
        clock: Callable[[], float] = time.monotonic,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """``labels`` are what the host's operator says of it."""
        self._labels = dict(labels or {})
        self._registry = registry
        self._gpus = gpus
        self._clock = clock
        self._endpoint: SessionEndpoint | None = None
        self._session: Hashable = None
        self._scheduled = False
        self._levels_scheduled = False
        self._state: AgentState | None = None
        self._levels: Mapping[str, int] = {}
        self._sent_s = 0.0
        self._drift_s = DRIFT_S
        self._moves = 0
        """The registry's count of starts and ends of requests when SLOTS were last sent."""
        self._late: asyncio.TimerHandle | None = None
        """There when something is due that could not be sent yet."""
        registry.on_change = self.changed
        registry.on_levels = self.levels_changed

    def attach(self, endpoint: SessionEndpoint, session: Hashable) -> None:
        """From now on tell ``endpoint``, whose requests the registry knows under ``session``."""
        self._endpoint, self._session = endpoint, session
        self._state, self._levels, self._moves = None, {}, self._registry.moves
        self._state_limiter = RateLimiter(
            STATE_UNITS, STATE_UNITS_PER_S
        )  # the session is new, and nothing of it spent
        self._slots_limiter = RateLimiter(SLOTS_UNITS, SLOTS_UNITS_PER_S)
        self._flush()
        if self._state is not None and self._state.reason:
            failed = {engine.status for engine in self._state.engines} == {DeploymentStatus.FAILED}
            say = log.warning if failed else log.info
            say("connected, but nothing is served yet", reason=self._state.reason)

    def detach(self, session: Hashable) -> None:
        """That session is over."""
        if self._session is session:
            self._endpoint = None
            self._forget_late()

    def changed(self) -> None:
        """Something may have changed: look once everything of this turn has happened."""
        if not self._scheduled and self._endpoint is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def levels_changed(self) -> None:
        """Levels may have changed, and nothing else."""
        if not self._scheduled and not self._levels_scheduled and self._endpoint is not None:
            self._levels_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_levels)

    def tick(self) -> None:
        """To be called every ``TICK_S``."""
        self._registry.observe()
        self.look()

    def look(self) -> None:
        """Sends what is late or has drifted; to be called every ``TICK_S``."""
        if self._late is not None:
            self._flush()
        if self._endpoint is not None and self._clock() - self._sent_s >= self._drift_s:
            self._publish(lambda old, new: old != new)

    def _flush(self) -> None:
        self._scheduled = False
        self._forget_late()
        self._publish(lambda old, new: old is None or _differ_lastingly(old, new))

    def _flush_levels(self) -> None:
        self._levels_scheduled = False
        endpoint = self._endpoint
        if self._scheduled or endpoint is None or endpoint.closed:
            return
        try:
            self._publish_levels(endpoint)
        except TrunklineError as error:
            log.warning("levels not sent", reason=str(error))

    def _publish(self, differ: Callable[[AgentState | None, AgentState], bool]) -> None:
        endpoint = self._endpoint
        if endpoint is None or endpoint.closed:
            return
        wait_s = self._state_limiter.wait_s(self._clock()) if self._state is not None else 0.0
        try:
            if wait_s:  # nor is it put together before it may be sent: that takes long where it is large
                self._send_later(wait_s)
            else:
                state = self._registry.state(self._gpus())
                if self._labels:
                    state = replace(state, labels=self._labels)
                if differ(self._state, state):
                    self._send_state(endpoint, state)
            self._publish_levels(endpoint)
        except TrunklineError as error:
            log.warning("state not sent", reason=str(error))

    def _publish_levels(self, endpoint: SessionEndpoint) -> None:
        offered = {deployment.id for deployment in self._state.deployments} if self._state else ()
        levels = {key: each for key, each in self._registry.levels(self._session).items() if key in offered}
        if levels != self._levels:
            self._send_slots(endpoint, levels)
        else:
            self._moves = self._registry.moves

    def _send_state(self, endpoint: SessionEndpoint, state: AgentState) -> None:
        now = self._clock()
        endpoint.send_state(state)
        units = control_frame_units(len(state.to_payload()))
        self._state, self._sent_s = state, now
        # At every tick, which is never quite on time, unless one has just been sent.
        self._drift_s = TICK_S / 2 if state.gpus and units <= GPU_UNITS else DRIFT_S
        self._state_limiter.spend(units, now)

    def _send_slots(self, endpoint: SessionEndpoint, levels: Mapping[str, int]) -> None:
        """Now if a request of the session came or went since the last; else at the pace of its own."""
        now, moves = self._clock(), self._registry.moves
        if moves == self._moves:
            wait_s = self._slots_limiter.wait_s(now)
            if wait_s:
                self._send_later(wait_s)
                return
            self._slots_limiter.spend(limits.SLOTS_UNITS, now)
        endpoint.send_slots(levels)
        self._levels, self._moves = levels, moves

    def _send_later(self, wait_s: float) -> None:
        if self._late is None or self._late.when() > asyncio.get_running_loop().time() + wait_s:
            self._forget_late()
            self._late = asyncio.get_running_loop().call_later(wait_s, self._flush)

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Publishers:
    """A publisher for each session; all are told of every change."""

    def __init__(self, registry: PublishedCapacity, new: Callable[[], Publisher]) -> None:
        """``new`` makes one for ``registry``."""
        self._registry = registry
        self._new = new
        self._publishers: list[Publisher] = []

    def make(self) -> Publisher:
        """One more, until it is dropped."""
        publisher = self._new()
        self._publishers.append(publisher)
        self._registry.on_change, self._registry.on_levels = self._changed, self._levels_changed
        return publisher

    def drop(self, publisher: Publisher) -> None:
        """Its sessions are over."""
        self._publishers.remove(publisher)

    def tick(self) -> None:
        """To be called every ``TICK_S``."""
        self._registry.observe()
        for publisher in self._publishers:
            publisher.look()

    def _changed(self) -> None:
        for publisher in self._publishers:
            publisher.changed()

    def _levels_changed(self) -> None:
        for publisher in self._publishers:
            publisher.levels_changed()


_Member = DeploymentState | EngineState


def _differ_lastingly(old: AgentState, new: AgentState) -> bool:
    """Whether they differ in more than drifts. Of lists only members that changed are compared closely."""
    if len(old.deployments) != len(new.deployments) or len(old.engines) != len(new.engines):
        return True
    deployments = zip(old.deployments, new.deployments, strict=True)
    engines = zip(old.engines, new.engines, strict=True)
    members: Iterable[tuple[_Member, _Member]] = chain(deployments, engines)
    return _without_lists(old) != _without_lists(new) or any(
        a is not b and a != b and _lasting(a) != _lasting(b) for a, b in members
    )


def _lasting(member: _Member) -> _Member:
    """``member`` without what only drifts."""
    if isinstance(member, EngineState):
        return replace(member, load_progress=None, loading_s=None)
    return replace(member, running=0, waiting=0, kv_use=None, load_progress=None, batches=None)


def _without_lists(state: AgentState) -> AgentState:
    status = AgentStatus.READY if state.status is AgentStatus.BUSY else state.status
    return replace(state, status=status, deployments=(), gpus=(), engines=())
