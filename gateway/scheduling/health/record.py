"""Everything known of one deployment's health, what it may do for that, and the records of all deployments.

**Slow start**. Slots of a deployment that is new or recovered come into use little by little.
An engine that just started has cold caches, kernels to compile and weights to page in; all its slots at
once would make it slow for everybody on it. Envoy ramps the weight of a new endpoint in a straight line too
(its slow start mode, from 10 %); here it is a quarter, because a deployment often has only four slots.

Records are kept over reconnects: a flapping agent does not come back innocent.
"""

import math
from dataclasses import dataclass

from gateway.scheduling.base import NO_CAP
from gateway.scheduling.health.circuit import Circuit, CircuitState
from gateway.scheduling.health.failing_keys import ServedTenants
from gateway.scheduling.health.outliers import AnswerPace
from gateway.scheduling.health.suspicion import Suspicion

FIRST_SHARE = 0.25
STEPS = 30
"""A ramp is looked at that often at most."""


class SlowStart:
    """The slow start of one deployment, ``slow_start_s`` seconds from :meth:`begin`; 0 is none."""

    def __init__(self, slow_start_s: float) -> None:
        self._slow_start_s = slow_start_s
        self._begun_s = self.until_s = float("-inf")

    def begin(self, now: float) -> None:
        self._begun_s, self.until_s = now, now + self._slow_start_s

    def active(self, now: float) -> bool:
        return now < self.until_s

    def cap(self, slots: int, now: float) -> int:
        """How many of ``slots`` may be in use: a quarter at first, at least 1, all in the end."""
        if not self.active(now):
            return NO_CAP
        share = FIRST_SHARE + (1.0 - FIRST_SHARE) * (now - self._begun_s) / self._slow_start_s
        return max(1, math.floor(slots * share + 1e-9))

    def next_step_s(self, slots: int, now: float) -> float | None:
        """When to look again: when the cap will have grown. None when it will not."""
        if not self.active(now):
            return None
        share = (self.cap(slots, now) + 1) / max(slots, 1)
        grown_s = self._begun_s + self._slow_start_s * (share - FIRST_SHARE) / (1.0 - FIRST_SHARE)
        return min(max(grown_s, now + self._slow_start_s / STEPS), self.until_s)


EJECT_S = 30.0
"""First time a deployment is set aside for being slow; each time in a row as much longer (Envoy's
``base_ejection_time``, times the number of ejections, at most ``max_ejection_time``)."""
MAX_EJECT_S = 300.0
LONGEST_REST_S = 60.0
"""An engine that refused a request and wants to be asked again later than this is asked after this."""
REFORMED_S = 600.0
"""Ejections longer ago than this are forgotten."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    rest_s: float = 0.1
    """How long a deployment is left alone after it refused a request: levels cross on the wire. Twice as long
    for each further refusal in a row."""
    rest_max_s: float = 5.0
    slow_start_s: float = 30.0
    """0 for none."""


class DeploymentHealth:
    """One deployment's, kept over reconnects of its agent."""

    def __init__(self, settings: HealthSettings, now: float) -> None:
        self.circuit = Circuit()
        self.pace = AnswerPace()
        self.slow_start = SlowStart(settings.slow_start_s)
        self.served = ServedTenants()
        self.suspicion = Suspicion()
        self.ready_s = now
        """Since when it serves, reconnects not counted."""
        self.resting_until_s = 0.0
        self.ejected_until_s = 0.0
        self.lost_s = float("-inf")
        """When its agent's session was last lost with requests on it."""
        self.refusals = 0
        """In a row: the more, the longer it rests. None once it has accepted a request."""
        self._settings = settings
        self._ejections = 0
        self._ejected_s = float("-inf")

    def rest(self, now: float, least_s: float = 0.0) -> None:
        """It refused a request: it gets nothing new for a short time, nor within ``least_s``, which it asked
        for."""
        settings = self._settings
        rest_s = min(settings.rest_s * 2.0 ** min(self.refusals, 16), settings.rest_max_s)
        self.refusals += 1
        asked_s = min(least_s, LONGEST_REST_S)
        self.resting_until_s = max(self.resting_until_s, now + max(rest_s, asked_s))

    def released(self, request: str) -> None:
        """A request's slot is free, and the request has shown nothing."""
        self.circuit.released(request)
        self.suspicion.released(request)

    def accepted(self) -> None:
        """The deployment accepted a request: its next rest is a short one again."""
        self.refusals = 0

    def eject(self, now: float) -> None:
        """Give an outlier nothing new for a while, and measure its speed anew after that."""
        self._ejections = 1 + (self._ejections if now - self._ejected_s < REFORMED_S else 0)
        self._ejected_s = now
        self.ejected_until_s = now + min(EJECT_S * self._ejections, MAX_EJECT_S)
        self.pace.clear()

    def advance(self, now: float) -> None:
        """Time has passed: end the ejection, the rest and the suspicion that are over."""
        self.circuit.advance(now)
        self.suspicion.advance(now)
        if 0.0 < self.ejected_until_s <= now:
            self.ejected_until_s = 0.0
            self.slow_start.begin(now)
        if 0.0 < self.resting_until_s <= now:
            self.resting_until_s = 0.0

    @property
    def healthy(self) -> bool:
        """Whether it is neither ejected nor suspect and its circuit is closed."""
        return (
            self.ejected_until_s == 0.0
            and self.circuit.state is CircuitState.CLOSED
            and not self.suspicion.active
        )

    def steady(self, now: float) -> bool:
        """Whether it is healthy, not resting and past its slow start: the passing of time changes nothing."""
        return (
            self.circuit.state is CircuitState.CLOSED
            and self.resting_until_s == self.ejected_until_s == self.suspicion.until_s == 0.0
            and now >= self.slow_start.until_s
        )

    def blocked(self) -> bool:
        """Whether its circuit or an ejection keeps all requests from it. As of the last :meth:`advance`."""
        return self.ejected_until_s > 0.0 or self.circuit.state in (CircuitState.OPEN, CircuitState.PROBING)

    def cap(self, slots: int, in_flight: int, now: float) -> int:
        """How many requests it may run at once. As of the last :meth:`advance`."""
        if self.resting_until_s > 0.0 or self.blocked():
            return 0
        if self.circuit.state is CircuitState.HALF_OPEN:
            return in_flight + 1
        most = self.slow_start.cap(slots, now)
        return min(most, self.suspicion.cap(in_flight)) if self.suspicion.active else most

    @property
    def blocked_until_s(self) -> float:
        """When a blocked deployment may take requests again."""
        opens_s = self.circuit.until_s if self.circuit.state is CircuitState.OPEN else 0.0
        return max(self.ejected_until_s, opens_s)

    def shorten(self, until_s: float) -> None:
        """End the ejection and the cool-down at ``until_s`` where they would end later."""
        self.ejected_until_s = min(self.ejected_until_s, until_s)
        self.circuit.shorten(until_s)

    def established(self, now: float) -> bool:
        """Whether it is healthy and has served for as long as a slow start takes."""
        return (
            now - self.ready_s >= self._settings.slow_start_s
            and not self.slow_start.active(now)
            and self.healthy
        )

    def next_change_s(self, slots: int, now: float) -> float | None:
        """When :meth:`advance` is due; None when only events change anything."""
        until_s = (self.resting_until_s, self.ejected_until_s, self.suspicion.until_s)
        times = [each for each in until_s if each > 0.0]
        if self.circuit.state in (CircuitState.OPEN, CircuitState.PROBING):
            times.append(self.circuit.until_s)
        if not times and self.circuit.state is CircuitState.CLOSED:
            return self.slow_start.next_step_s(slots, now)
        return min(times, default=None)

    @property
    def state_label(self) -> str:
        """One word for a metric."""
        if self.ejected_until_s > 0.0:
            return "ejected"
        state = self.circuit.state
        if state is CircuitState.CLOSED and self.suspicion.active:
            return "suspect"
        return str(CircuitState.HALF_OPEN.value if state is CircuitState.PROBING else state.value)


FORGET_S = 300.0
"""A deployment that was away for longer is new."""

MOST_GONE = 4096
"""Deployments remembered that are not there; those longest gone are forgotten first."""


class HealthRegistry:
    """The health of all deployments that are there, and for some minutes of those that left."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._present: dict[str, DeploymentHealth] = {}
        self._gone: dict[str, tuple[float, DeploymentHealth]] = {}
        """In the order they left."""

    def __len__(self) -> int:
        return len(self._present) + len(self._gone)

    def arrived(self, key: str, now: float) -> tuple[DeploymentHealth, bool]:
        """The health of a deployment that is there from now on, and whether it is new."""
        present = self._present.get(key)
        if present is not None:
            return present, False
        self._forget(now)
        _, health = self._gone.pop(key, (0.0, None))
        new = health is None
        health = self._present[key] = health or DeploymentHealth(self._settings, now)
        return health, new

    def departed(self, key: str, now: float) -> None:
        """The deployment is not there any more."""
        health = self._present.pop(key, None)
        if health is not None:
            self._gone[key] = now, health
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._gone:
            key, (gone_s, _) = next(iter(self._gone.items()))
            if now - gone_s < FORGET_S and len(self._gone) <= MOST_GONE:
                return
            del self._gone[key]
