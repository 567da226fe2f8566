"""The circuit of one deployment: closed, open, half-open.

It opens after ``FAILURES_IN_A_ROW`` failures (Envoy's ``consecutive_5xx``: 5), when at least ``FAILED_SHARE``
of ``LEAST_OUTCOMES`` or more of the last 10 s failed (resilience4j's ``failureRateThreshold``: 50 %), and at
once when the engine is not there or fell silent. The cool-down doubles from 1 s to 60 s (linkerd's failure
accrual: 1 s to 60 s, with jitter). After it one request at a time goes through as a probe: its success closes
the circuit, its failure opens it again, and when its client leaves nothing has been learned.

A probe may take minutes. Where no engine answered at all, the head of an answer is success enough; and when a
probe has been running for ``PATIENCE_S`` the next one may go.

A request counts once at most: what fails because of the request itself (a prompt that an engine chokes on) is
tried at several deployments and must not open the circuits of all. That an engine cannot be reached is no
request's doing. A client that sends one such request after the other is told apart by
:mod:`gateway.scheduling.health.failing_keys`.
"""

from collections import deque
from enum import Enum, auto

from gateway.scheduling.recent import CountWindow

FAILURES_IN_A_ROW = 5
LEAST_OUTCOMES = 10
FAILED_SHARE = 0.5
COOL_DOWN_S = 1.0
GONE_COOL_DOWN_S = 0.5
"""The cool-down of an engine that cannot be connected to: asking it costs little, and it may be back soon."""
MAX_COOL_DOWN_S = 60.0
JITTER = 0.25
"""Cool-downs are shortened by up to this share, so that those that began together do not end together."""
PATIENCE_S = 5.0
RELAPSE_S = 30.0
"""A circuit that opens again so soon after it closed goes on doubling where it was."""
BLAMED = 64
"""Requests remembered as having failed here."""


class CircuitState(Enum):
    CLOSED = "closed"
    """Requests go there. Enough failures open it."""
    OPEN = "open"
    """Nothing goes there until the cool-down is over. What ran when it opened says little about now."""
    HALF_OPEN = "half_open"
    """The cool-down is over; the next request is the probe."""
    PROBING = "probing"
    """A probe is under way: its success closes the circuit, its failure opens it."""


_CLOSED = CircuitState.CLOSED
"""For the path of every request: a global is found faster."""


class Fault(Enum):
    """What went wrong, as far as it matters here."""

    FAILURE = auto()
    """The engine did not answer, or with an error."""
    CUT = auto()
    """The answer broke after it had begun."""
    GONE = auto()
    """There is no engine."""
    STALL = auto()
    """The engine fell silent: the deployment is put aside until anything succeeds on it."""


class Circuit:
    """One deployment's. ``jitter`` arguments are from 0 to 1."""

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.until_s = 0.0
        """When to look again, while open or probing."""
        self._doublings = -1
        self._closed_s = float("-inf")
        self.probes: set[str] = set()
        """Requests that went there after the cool-down and of which nothing is known yet."""
        self._fault = Fault.FAILURE
        """What opened it last."""
        self._in_a_row = 0
        self._outcomes = CountWindow()
        self._blamed: deque[str] = deque(maxlen=BLAMED)

    def advance(self, now: float) -> None:
        """Time has passed: end the cool-down, and the wait for a probe, that are over."""
        if now >= self.until_s and self.state in (CircuitState.OPEN, CircuitState.PROBING):
            self.state = CircuitState.HALF_OPEN

    def shorten(self, until_s: float) -> None:
        """The cool-down ends at ``until_s`` if it would end later."""
        if self.state is CircuitState.OPEN:
            self.until_s = min(self.until_s, until_s)

    def started(self, request: str, now: float) -> None:
        """A request goes there; in half-open it is the probe."""
        if self.state is CircuitState.HALF_OPEN:
            self.probes.add(request)
            self.until_s = now + PATIENCE_S
            self.state = CircuitState.PROBING

    def released(self, request: str) -> None:
        """A request's slot is free again. A probe of which nothing was said before that has shown nothing."""
        if request in self.probes:
            self.probes.discard(request)
            self.state = CircuitState.HALF_OPEN

    def answered(self, request: str, now: float) -> bool:
        """The head of an answer came. True when a probe closed the circuit with it."""
        if request not in self.probes or self._fault not in (Fault.FAILURE, Fault.GONE):
            return False
        self._close(now)
        return True

    def note_success(self, now: float) -> None:
        """An answer came whole while the circuit is closed and there is no probe."""
        self._in_a_row = 0
        self._outcomes.add(1.0, 0.0, now)

    def succeeded(self, request: str, now: float) -> bool:
        """An answer came whole. True when a probe closed the circuit."""
        self.note_success(now)
        is_probe = request in self.probes
        if is_probe or (self.state is not _CLOSED and self._fault is Fault.STALL):
            self._close(now)
        return is_probe

    def failed(self, request: str, fault: Fault, now: float, jitter: float, *, suspect: bool = False) -> bool:
        """A request failed there. True when that opened the circuit, from whatever state. One failure is
        enough where another gateway has seen failures too (``suspect``)."""
        first = request not in self._blamed
        if first:
            self._blamed.append(request)
            self._in_a_row += 1
            self._outcomes.add(0.0, 1.0, now)
        if request in self.probes:
            self.probes.discard(request)
            if not first and fault is not Fault.GONE:  # the failure may be the request's own doing
                self.state = CircuitState.HALF_OPEN
                return False
        else:
            enough = fault in (Fault.GONE, Fault.STALL) or (first and (suspect or self._enough(now)))
            if not enough or self.state in (CircuitState.OPEN, CircuitState.PROBING):
                return False
        self._open(fault, now, jitter)
        return True

    def discard_failure(self, request: str, now: float) -> None:
        """``request`` failed there by what it asks: while the circuit is closed that does not count."""
        if self.state is _CLOSED and request in self._blamed:
            self._blamed.remove(request)
            self._in_a_row = max(0, self._in_a_row - 1)
            self._outcomes.take_back(now)

    def success_probability(self, now: float) -> float:
        """That a request succeeds there, by the latest outcomes: over 0 to 1, and 1 without failures."""
        succeeded, failed = self._outcomes.sums(now)
        return (succeeded + 1.0) / (succeeded + failed + 1.0)

    def _enough(self, now: float) -> bool:
        succeeded, failed = self._outcomes.sums(now)
        outcomes = succeeded + failed
        return self._in_a_row >= FAILURES_IN_A_ROW or (
            outcomes >= LEAST_OUTCOMES and failed >= FAILED_SHARE * outcomes
        )

    def _open(self, fault: Fault, now: float, jitter: float) -> None:
        relapse = self.state is not _CLOSED or now - self._closed_s < RELAPSE_S
        self._doublings = min(self._doublings + 1, 16) if relapse else 0
        first_s = GONE_COOL_DOWN_S if fault is Fault.GONE else COOL_DOWN_S
        cool_down_s = min(first_s * 2.0 ** max(0, self._doublings), MAX_COOL_DOWN_S)
        self.state, self._fault = CircuitState.OPEN, fault
        self.until_s = now + cool_down_s * (1.0 - JITTER * jitter)
        self.probes.clear()

    def _close(self, now: float) -> None:
        self.state, self._closed_s = _CLOSED, now
        self._in_a_row = 0
        self._outcomes.clear()
        self.probes.clear()
