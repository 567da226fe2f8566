"""Everything known of one deployment's health, and what it may do for that."""

from dataclasses import dataclass

from gateway.scheduling.health.circuit import Circuit, CircuitState
from gateway.scheduling.health.pace import AnswerPace
from gateway.scheduling.health.ramp import Ramp
from gateway.scheduling.health.suspects import ServedTenants

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

    __slots__ = (
        "_ejected_s",
        "_ejections",
        "_refusals",
        "_settings",
        "circuit",
        "ejected_until_s",
        "lost_s",
        "pace",
        "ramp",
        "ready_s",
        "resting_until_s",
        "served",
    )

    def __init__(self, settings: HealthSettings, now: float) -> None:
        self.circuit = Circuit()
        self.pace = AnswerPace()
        self.ramp = Ramp(settings.slow_start_s)
        self.served = ServedTenants()
        self.ready_s = now
        """Since when it serves, reconnects not counted."""
        self.resting_until_s = 0.0
        self.ejected_until_s = 0.0
        self.lost_s = float("-inf")
        """When its agent's session was last lost with requests on it."""
        self._settings = settings
        self._refusals = 0
        self._ejections = 0
        self._ejected_s = float("-inf")

    def rest(self, now: float, least_s: float = 0.0) -> None:
        """It refused a request: nothing new for a moment, nor within the ``least_s`` for which it asked."""
        settings = self._settings
        rest_s = min(settings.rest_s * 2.0 ** min(self._refusals, 16), settings.rest_max_s)
        self._refusals += 1
        asked_s = min(least_s, LONGEST_REST_S)
        self.resting_until_s = max(self.resting_until_s, now + max(rest_s, asked_s))

    def took(self) -> None:
        """It did not refuse."""
        self._refusals = 0

    def eject(self, now: float) -> None:
        """It is an outlier: nothing new for a while, and then it must show anew how fast it is."""
        self._ejections = 1 + (self._ejections if now - self._ejected_s < REFORMED_S else 0)
        self._ejected_s = now
        self.ejected_until_s = now + min(EJECT_S * self._ejections, MAX_EJECT_S)
        self.pace.clear()

    def look(self, now: float) -> None:
        """Time has passed: what is over ends."""
        self.circuit.look(now)
        if 0.0 < self.ejected_until_s <= now:
            self.ejected_until_s = 0.0
            self.ramp.begin(now)
        if 0.0 < self.resting_until_s <= now:
            self.resting_until_s = 0.0

    @property
    def well(self) -> bool:
        """Neither shut nor on probation."""
        return self.ejected_until_s == 0.0 and self.circuit.state is CircuitState.CLOSED

    def calm(self, now: float) -> bool:
        """Well, not resting, all slots in use: time changes nothing."""
        return (
            self.circuit.state is CircuitState.CLOSED
            and self.resting_until_s == self.ejected_until_s == 0.0
            and not self.ramp.climbing(now)
        )

    def shut(self) -> bool:
        """It may take nothing, and not just for a moment. As of the last :meth:`look`."""
        return self.ejected_until_s > 0.0 or self.circuit.state in (CircuitState.OPEN, CircuitState.PROBING)

    def cap(self, slots: int, in_flight: int, now: float) -> int:
        """How many requests it may run at once. As of the last :meth:`look`."""
        if self.resting_until_s > 0.0 or self.shut():
            return 0
        if self.circuit.state is CircuitState.HALF_OPEN:
            return in_flight + 1
        return self.ramp.cap(slots, now)

    @property
    def shut_until_s(self) -> float:
        """When it may take something again, while it is shut."""
        opens_s = self.circuit.until_s if self.circuit.state is CircuitState.OPEN else 0.0
        return max(self.ejected_until_s, opens_s)

    def hasten(self, until_s: float) -> None:
        """It is not shut for longer than until then."""
        self.ejected_until_s = min(self.ejected_until_s, until_s)
        self.circuit.hasten(until_s)

    def established(self, now: float) -> bool:
        """It has served for as long as a slow start takes, and is well."""
        return now - self.ready_s >= self._settings.slow_start_s and not self.ramp.climbing(now) and self.well

    def next_look_s(self, slots: int, now: float) -> float | None:
        """When :meth:`look` is due; None when only events change anything."""
        times = [each for each in (self.resting_until_s, self.ejected_until_s) if each > 0.0]
        if self.circuit.state in (CircuitState.OPEN, CircuitState.PROBING):
            times.append(self.circuit.until_s)
        if not times and self.circuit.state is CircuitState.CLOSED:
            return self.ramp.next_s(slots, now)
        return min(times, default=None)

    @property
    def shown_state(self) -> str:
        """One word for a metric."""
        if self.ejected_until_s > 0.0:
            return "ejected"
        state = self.circuit.state
        return str(CircuitState.HALF_OPEN.value if state is CircuitState.PROBING else state.value)
