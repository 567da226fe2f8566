"""Tells the gateway what the agent serves and how much of it may be asked for (PROTOCOL §4.6, §4.7)."""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import structlog

from agent.roster import Roster
from shared import limits
from shared.endpoint import Endpoint
from shared.errors import TrunklineError
from shared.messages import AgentState, AgentStatus, DeploymentStatus, GpuState

log = structlog.get_logger("agent.publisher")

TICK_S = 1.0
"""How often engines' queues are looked at, and figures that only drift are compared."""

DRIFT_S = 2.0
"""Figures that only drift (load, GPUs, busy or not) are sent no more often than this: a STATE carries
everything, and the slots, which are what counts, are sent at once."""


STATE_UNITS_PER_S = limits.CONTROL_FRAMES_PER_S / 2
STATE_AHEAD_S = limits.CONTROL_FRAMES_BURST / 2 / STATE_UNITS_PER_S
"""STATE takes half of the control frames that a gateway lets an agent send (PROTOCOL §2.6): after that a
change waits for the next tick, with all that come meanwhile."""


class Publisher:
    """Sends STATE and SLOTS on one session: both at first, then what changed, once per turn of the loop."""

    def __init__(
        self,
        roster: Roster,
        gpus: Callable[[], tuple[GpuState, ...]],
        clock: Callable[[], float] = time.monotonic,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """``labels`` are what the host's operator says of it."""
        self._labels = dict(labels or {})
        self._roster = roster
        self._gpus = gpus
        self._clock = clock
        self._endpoint: Endpoint | None = None
        self._session: Hashable = None
        self._scheduled = False
        self._state: AgentState | None = None
        self._levels: Mapping[str, int] = {}
        self._sent_s = 0.0
        self._spent_until_s = 0.0
        """When what STATE spent is earned back."""
        self._late = False
        """A STATE is due that could not be sent yet."""
        roster.on_change = self.changed

    def attach(self, endpoint: Endpoint, session: Hashable) -> None:
        """From now on tell ``endpoint``, whose requests the roster knows under ``session``."""
        self._endpoint, self._session = endpoint, session
        self._state, self._levels = None, {}
        self._flush()
        if self._state is not None and self._state.reason:
            failed = {engine.status for engine in self._state.engines} == {DeploymentStatus.FAILED}
            say = log.warning if failed else log.info
            say("connected, but nothing is served yet", reason=self._state.reason)

    def detach(self, session: Hashable) -> None:
        """That session is over."""
        if self._session is session:
            self._endpoint = None

    def changed(self) -> None:
        """Something may have changed: look once everything of this turn has happened."""
        if not self._scheduled and self._endpoint is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def tick(self) -> None:
        """To be called every ``TICK_S``."""
        self._roster.observe()
        if self._late:
            self._flush()
        if self._endpoint is not None and self._clock() - self._sent_s >= DRIFT_S:
            self._publish(lambda old, new: old != new)

    def _flush(self) -> None:
        self._scheduled = False
        self._publish(lambda old, new: old is None or _lasting(old) != _lasting(new))

    def _publish(self, differ: Callable[[AgentState | None, AgentState], bool]) -> None:
        endpoint = self._endpoint
        if endpoint is None or endpoint.closed:
            return
        state = self._roster.state(self._gpus())
        if self._labels:
            state = replace(state, labels=self._labels)
        try:
            if differ(self._state, state):
                self._send_state(endpoint, state)
            offered = {deployment.id for deployment in self._state.deployments} if self._state else ()
            levels = {key: each for key, each in self._roster.levels(self._session).items() if key in offered}
            if levels != self._levels:
                endpoint.send_slots(levels)
                self._levels = levels
        except TrunklineError as error:
            log.warning("state not sent", reason=str(error))

    def _send_state(self, endpoint: Endpoint, state: AgentState) -> None:
        """Now, or later when it would be more than a gateway takes."""
        now = self._clock()
        self._late = self._state is not None and now < self._spent_until_s - STATE_AHEAD_S
        if self._late:
            return
        endpoint.send_state(state)
        self._state, self._sent_s = state, now
        units = 1 + len(state.to_payload()) // limits.CONTROL_FRAME_UNIT_BYTES
        self._spent_until_s = max(self._spent_until_s, now) + units / STATE_UNITS_PER_S


def _lasting(state: AgentState) -> AgentState:
    """``state`` without what only drifts."""
    status = AgentStatus.READY if state.status is AgentStatus.BUSY else state.status
    lasting = tuple(
        replace(d, running=0, waiting=0, kv_use=None, load_progress=None) for d in state.deployments
    )
    engines = tuple(replace(engine, load_progress=None, loading_s=None) for engine in state.engines)
    return replace(state, status=status, deployments=lasting, gpus=(), engines=engines)
