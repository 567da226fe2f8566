"""When to dial again. Pure: time and chance are arguments."""

import math

STEADY_S = 1.0
"""A tunnel that lived this long after the gateway let it in was a good one: its loss is answered at once.
Whatever lets us in and drops us again must not be dialled in a loop."""

PATIENT_ATTEMPTS = 20
"""Attempts before the waits grow: about ten seconds, enough for a gateway's restart. Until then the mean wait
is half of the base. Where nobody listens, twice as many attempts are made in the same time."""

SUSPICIOUS_S = 30.0
"""When another agent took over our identity: two that take it from each other must not do so in a loop."""

BASE_S = 1.0
REFUSED_BASE_S = 0.5
"""The pause if the gateway's host refuses the connection: that costs the host next to nothing, and a gateway
that restarts is back within a second. 100 agents ask 400 times a second."""
CAP_S = 30.0

MISDIRECTED_BASE_S = 0.1
MISDIRECTED_ATTEMPTS = 8
"""Attempts for each process of a gateway that led to another one, before they count as others do. Chance
decides where each lands: with 16 processes 128 attempts miss one of them once in 4000 times."""


class Backoff:
    """Full jitter: wait a random share of the base before each of the first attempts in a row, then of twice
    as much each time, capped.

    So a thousand agents whose gateway restarted come back spread out, not all in the same moment.
    """

    def __init__(self) -> None:
        self._failures = 0.0
        self._refused = False
        self._misdirected = 0

    def lost(self, lived_s: float) -> None:
        """A tunnel that was up for ``lived_s`` is gone."""
        self._refused = False
        self._misdirected = 0
        self._failures = 0 if lived_s >= STEADY_S else self._failures + 1

    def failed(self, *, refused: bool = False) -> None:
        """An attempt to connect failed; ``refused``: nothing listens at the address."""
        self._failures += 0.5 if refused else 1
        self._refused = refused
        self._misdirected = 0

    def misdirected(self, processes: int) -> None:
        """An attempt led to another of so many processes, which is well."""
        if self._misdirected >= MISDIRECTED_ATTEMPTS * processes:
            self._failures, self._refused = self._failures + 1, False
        else:
            self._misdirected += 1

    def delay_s(self, chance: float, retry_after_s: float | None = None) -> float:
        """How long to wait before the next attempt; ``chance`` is from [0, 1). ``retry_after_s``, what the
        gateway said, wins, with up to a quarter more so that not all agents come back at once."""
        if retry_after_s is not None:
            return retry_after_s * (1 + chance / 4)
        if self._misdirected and not self._failures:
            return chance * MISDIRECTED_BASE_S
        if not self._failures:
            return 0.0
        exponent = min(max(0, math.ceil(self._failures - PATIENT_ATTEMPTS)), 30)
        base_s = REFUSED_BASE_S if self._refused and not exponent else BASE_S
        return chance * min(CAP_S, base_s * 2.0**exponent)
