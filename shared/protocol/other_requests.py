"""An agent tells each session of the requests that it runs for the others (PROTOCOL §4.11). Without input and
output; the clock and timers come from outside.

What a session has not been told yet is kept as the difference between what it was told and what is so. It is
bounded by what runs, however long nothing can be sent, and a request that ended before it was told leaves
nothing behind.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count, islice

from shared.process.timers import CallLater, Cancellable
from shared.protocol import limits
from shared.protocol.control_frames import control_frame_units
from shared.protocol.others import NOTHING_EXPECTED, Expected, OtherRequest, Others

UNITS = 150
UNITS_PER_S = 300
"""What OTHERS takes of the control frames that a gateway lets an agent send (PROTOCOL §2.6): at once, and in
a second. The gateway gives a third more, and has room for what comes late."""

REQUEST_BYTES = 150
"""A request's members in JSON without its prefix and its deployment's id, at most."""

NUMBER_BYTES = 17


@dataclass(slots=True, eq=False)
class ToldRequest:
    """A request that other sessions are told of. Its owner says when its first token comes and when it has
    ended; each once."""

    number: int
    session: Hashable
    deployment: str
    expected: Expected
    began_s: float
    read: bool = False
    """Its first token has come."""

    def at(self, now: float, *, prefix: bool) -> OtherRequest:
        """As it is told now, with its prefix or without."""
        age_s, expected = max(0.0, now - self.began_s), self.expected
        if expected.prefix and not prefix:
            expected = Expected(expected.input_tokens, expected.output_tokens)
        return OtherRequest(self.number, self.deployment, age_s, self.read, expected)

    @property
    def least_bytes(self) -> int:
        """Its members in JSON without its prefix, at most."""
        return REQUEST_BYTES + 4 * len(self.deployment)


class OthersTeller:
    """What one session is told. Nothing is sent sooner than ``OTHERS_EVERY_S`` after what was sent before."""

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: CallLater,
        send: Callable[[Others], int],
        waits: Callable[[], bool] = lambda: False,
        every_s: float = limits.OTHERS_EVERY_S,
    ) -> None:
        """``send`` sends a frame and returns the bytes of its payload; ``waits`` says whether the one before
        has not left."""
        self._clock = clock
        self._call_later = call_later
        self._send = send
        self._waits = waits
        self._every_s = every_s
        self._known: set[int] = set()
        """Numbers of requests that were told and not yet that they have ended."""
        self._began: dict[int, ToldRequest] = {}
        self._first: dict[int, None] = {}
        self._ended: dict[int, None] = {}
        self._timer: Cancellable | None = None
        self._next_s = -float("inf")
        self._spent_until_s = -float("inf")
        """When all units that were spent are earned back."""
        self._paused = False

    def __len__(self) -> int:
        """Changes that were not told."""
        return len(self._began) + len(self._first) + len(self._ended)

    def began(self, request: ToldRequest) -> None:
        """It runs. Changes nothing if that was told."""
        if request.number not in self._known:
            self._began[request.number] = request
            self._arm()

    def first_token(self, request: ToldRequest) -> None:
        if request.number in self._known:
            self._first[request.number] = None
            self._arm()

    def ended(self, request: ToldRequest) -> None:
        if request.number in self._known:
            self._known.remove(request.number)
            self._first.pop(request.number, None)
            self._ended[request.number] = None
            self._arm()
        else:
            self._began.pop(request.number, None)

    def pause(self, paused: bool) -> None:
        """While the session has no tunnel nothing is sent."""
        self._paused = paused
        if paused:
            self.close()
        else:
            self._arm()

    def close(self) -> None:
        """Send nothing more until there is something new to say."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- Within ---

    def _arm(self) -> None:
        if self._timer is None and not self._paused and self:
            now = self._clock()
            earned_s = self._spent_until_s - UNITS / UNITS_PER_S
            self._timer = self._call_later(max(0.0, self._next_s - now, earned_s - now), self._tell)

    def _tell(self) -> None:
        self._timer = None
        now = self._clock()
        self._next_s = now + self._every_s
        if not self._waits():
            others = self._take(now)
            size_bytes = self._send(others) if others.began or others.first or others.ended else 0
            spent_s = control_frame_units(size_bytes) / UNITS_PER_S
            self._spent_until_s = max(self._spent_until_s, now) + spent_s
        self._arm()

    def _take(self, now: float) -> Others:
        """As much as fits, ends first: they make a deployment look better than it did."""
        ended = self._numbers(self._ended, limits.OTHERS_BYTES)
        left_bytes = limits.OTHERS_BYTES - NUMBER_BYTES * len(ended)
        first = self._numbers(self._first, left_bytes)
        left_bytes -= NUMBER_BYTES * len(first)
        return Others(self._take_began(left_bytes, now), first, ended)

    @staticmethod
    def _numbers(of: dict[int, None], most_bytes: int) -> tuple[int, ...]:
        most = min(limits.OTHERS_NUMBERS, most_bytes // NUMBER_BYTES)
        if len(of) <= most:
            numbers = tuple(of)
            of.clear()
            return numbers
        numbers = tuple(islice(of, most))
        for number in numbers:
            del of[number]
        return numbers

    def _take_began(self, left_bytes: int, now: float) -> tuple[OtherRequest, ...]:
        """As many requests as fit, in their order; and of those as many prefixes."""
        taken: list[ToldRequest] = []
        for request in self._began.values():
            if request.least_bytes > left_bytes or len(taken) == limits.OTHERS_BEGAN:
                break
            left_bytes -= request.least_bytes
            taken.append(request)
        began: list[OtherRequest] = []
        for request in taken:
            del self._began[request.number]
            self._known.add(request.number)
            prefix_bytes = len(request.expected.prefix)
            fits = prefix_bytes <= left_bytes
            began.append(request.at(now, prefix=fits))
            left_bytes -= prefix_bytes if fits else 0
        return tuple(began)


@dataclass(slots=True, eq=False)
class OtherSessions:
    """All sessions of an agent: what runs for one is told to the others, as far as these agreed on OTHERS."""

    clock: Callable[[], float]
    running: Callable[[], Iterable[ToldRequest]] = tuple
    """All that runs now, for whatever session; asked when a session comes."""
    wanted: bool = False
    """There is a session that is to be told of the requests of another. While it is False, nothing needs to
    be said here."""
    _tellers: dict[Hashable, OthersTeller] = field(default_factory=dict)
    _sessions: dict[Hashable, None] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def add(self, session: Hashable, teller: OthersTeller | None) -> None:
        """``session`` is there; it is told by ``teller``, or nothing."""
        self._sessions[session] = None
        if teller is not None:
            self._tellers[session] = teller
        self.wanted = bool(self._tellers) and len(self._sessions) > 1
        if self.wanted:
            for request in self.running():
                self.began(request)

    def remove(self, session: Hashable) -> None:
        """It is over. Idempotent."""
        self._sessions.pop(session, None)
        teller = self._tellers.pop(session, None)
        if teller is not None:
            teller.close()
        self.wanted = bool(self._tellers) and len(self._sessions) > 1

    def pause(self, session: Hashable, paused: bool) -> None:
        """``session`` has lost its tunnel, or has one again."""
        teller = self._tellers.get(session)
        if teller is not None:
            teller.pause(paused)

    def told(
        self, session: Hashable, deployment: str, expected: Expected | None, began_s: float
    ) -> ToldRequest:
        """A request of ``session`` that others are to be told of, from when :meth:`began` is called on."""
        return ToldRequest(next(self._numbers), session, deployment, expected or NOTHING_EXPECTED, began_s)

    def began(self, request: ToldRequest) -> None:
        for session, teller in self._tellers.items():
            if session is not request.session:
                teller.began(request)

    def first_token(self, request: ToldRequest) -> None:
        request.read = True
        for session, teller in self._tellers.items():
            if session is not request.session:
                teller.first_token(request)

    def ended(self, request: ToldRequest) -> None:
        for session, teller in self._tellers.items():
            if session is not request.session:
                teller.ended(request)
