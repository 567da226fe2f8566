"""An agent tells each session of the requests that it runs for the others (PROTOCOL §4.11)."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.protocol import limits
from shared.protocol.other_requests import UNITS, UNITS_PER_S, OtherSessions, OthersTeller, ToldRequest
from shared.protocol.others import Expected, Others
from tests.support.clock import ManualClock

PREFIX = Expected.of(65_000, 100, range(limits.EXPECTED_FINGERPRINTS))


class Listening:
    """A session that is told, and what a gateway would know by it."""

    def __init__(self, clock: ManualClock, name: str) -> None:
        self.clock = clock
        self.name = name
        self.told: list[tuple[float, Others]] = []
        self.running: dict[int, bool] = {}
        """Number → whether its first token has come."""
        self.stuck = False
        """What was sent does not leave."""
        self.teller = OthersTeller(clock, clock.call_later, self._send, waits=lambda: self.stuck)

    def _send(self, others: Others) -> int:
        payload = others.to_payload()
        self.told.append((self.clock(), Others.from_payload(payload)))
        for request in others.began:
            assert request.number not in self.running, "it began twice"
            self.running[request.number] = request.read
        for number in others.first:
            assert self.running[number] is False
            self.running[number] = True
        for number in others.ended:
            del self.running[number]
        return len(payload)


class House:
    """An agent with sessions."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        self.now: dict[int, ToldRequest] = {}
        self.others = OtherSessions(self.clock, lambda: list(self.now.values()))
        self.sessions: dict[str, Listening] = {}
        for name in names:
            self.come(name)

    def come(self, name: str) -> Listening:
        session = self.sessions[name] = Listening(self.clock, name)
        self.others.add(session, session.teller)
        return session

    def leave(self, name: str) -> None:
        """Its session ends, and its requests with it."""
        session = self.sessions.pop(name)
        self.others.remove(session)
        for request in [each for each in self.now.values() if each.session is session]:
            self.end(request)

    def begin(self, name: str, expected: Expected | None = None) -> ToldRequest:
        request = self.others.told(self.sessions[name], "e/m", expected, self.clock())
        self.now[request.number] = request
        if self.others.wanted:
            self.others.began(request)
        return request

    def end(self, request: ToldRequest) -> None:
        del self.now[request.number]
        self.others.ended(request)


def test_a_session_is_told_of_the_requests_of_others_and_not_of_its_own() -> None:
    house = House("a", "b")
    a, b = house.sessions.values()
    request = house.begin("a", Expected(812, 160))
    house.clock.advance(0.001)
    ((_, first),) = b.told
    assert [(each.deployment, each.expected) for each in first.began] == [("e/m", Expected(812, 160))]
    house.clock.advance(0.1)
    house.others.first_token(request)
    house.clock.advance(0.1)
    house.end(request)
    house.clock.advance(0.1)
    number = request.number
    assert [(each.first, each.ended) for _, each in b.told[1:]] == [((number,), ()), ((), (number,))]
    assert not a.told


def test_what_happens_within_20_ms_is_told_together() -> None:
    house = House("a", "b")
    for _ in range(100):
        house.begin("a")
        house.clock.advance(0.001)
    times = [at_s for at_s, _ in house.sessions["b"].told]
    assert 5 <= len(times) <= 6
    assert all(later - sooner > 0.99 * limits.OTHERS_EVERY_S for sooner, later in pairwise(times))


def test_nothing_is_said_of_a_request_that_ended_before_it_was_told() -> None:
    house = House("a", "b")
    house.begin("a")
    house.clock.advance(0.001)
    short = house.begin("a")
    house.others.first_token(short)
    house.end(short)
    house.clock.advance(1.0)
    assert len(house.sessions["b"].told) == 1
    assert not len(house.sessions["b"].teller)


def test_one_that_comes_later_is_told_what_runs_and_how_long_it_has() -> None:
    house = House("a")
    assert not house.others.wanted
    early = house.begin("a")
    house.clock.advance(5.0)
    house.others.first_token(early)
    b = house.come("b")
    house.clock.advance(0.001)
    ((_, told),) = b.told
    (request,) = told.began
    assert (request.number, request.read) == (early.number, True)
    assert request.age_s == pytest.approx(5.0, abs=0.01)


def test_alone_a_session_wants_to_be_told_nothing() -> None:
    house = House("a", "b")
    assert house.others.wanted
    house.leave("b")
    assert not house.others.wanted
    house.others.add("an older process", None)
    assert house.others.wanted, "of its requests the one that knows OTHERS is told"


def test_a_session_that_ends_takes_its_requests_along() -> None:
    house = House("a", "b")
    house.begin("a")
    house.clock.advance(0.1)
    b = house.sessions["b"]
    assert len(b.running) == 1
    house.leave("a")
    house.clock.advance(0.1)
    assert not b.running


def test_nothing_is_sent_while_the_one_before_has_not_left() -> None:
    house = House("a", "b")
    b = house.sessions["b"]
    b.stuck = True
    kept = house.begin("a")
    for _ in range(1000):
        house.end(house.begin("a"))
        house.clock.advance(0.001)
    assert (b.told, len(b.teller)) == ([], 1), "what waits is bounded by what runs"
    b.stuck = False
    house.clock.advance(0.05)
    assert b.running == {kept.number: False}


def test_nothing_is_sent_without_a_tunnel() -> None:
    house = House("a", "b")
    b = house.sessions["b"]
    house.others.pause(b, True)
    house.begin("a")
    house.clock.advance(1.0)
    assert not b.told
    house.others.pause(b, False)
    house.clock.advance(0.001)
    assert len(b.running) == 1


def test_prefixes_are_left_out_before_requests_are_and_frames_stay_small() -> None:
    house = House("a", "b")
    for _ in range(300):
        house.begin("a", PREFIX)
    house.clock.advance(0.001)
    b = house.sessions["b"]
    ((_, told),) = b.told
    assert 50 < len(told.began) < 300
    assert len(told.to_payload()) <= 1.2 * limits.OTHERS_BYTES
    house.clock.advance(5.0)
    assert len(b.running) == 300


def test_fewer_requests_have_their_prefixes_with_them() -> None:
    house = House("a", "b")
    for _ in range(3):
        house.begin("a", PREFIX)
    house.clock.advance(0.001)
    ((_, told),) = house.sessions["b"].told
    assert [each.expected for each in told.began] == [PREFIX] * 3


def test_an_agent_keeps_to_its_part_of_the_control_frames() -> None:
    house = House("a", "b")
    b, running = house.sessions["b"], list[ToldRequest]()
    for _ in range(5000):
        running.append(house.begin("a", PREFIX))
        if len(running) > 100:
            house.end(running.pop(0))
        house.clock.advance(0.001)
    units = sum(1 + len(each.to_payload()) // limits.CONTROL_FRAME_UNIT_BYTES for _, each in b.told)
    most = UNITS + 5.0 * UNITS_PER_S + 1.2 * limits.OTHERS_BYTES / limits.CONTROL_FRAME_UNIT_BYTES
    assert 0.8 * most < units <= most


class Sessions(RuleBasedStateMachine):
    """Whatever happens: once all is told, each session knows exactly what runs for the others."""

    @initialize()
    def begin_with_one(self) -> None:
        self.house = House("s0")
        self.names = 1

    def _some(self, draw: int) -> Iterator[ToldRequest]:
        requests = list(self.house.now.values())
        if requests:
            yield requests[draw % len(requests)]

    @rule()
    def come(self) -> None:
        if len(self.house.sessions) < 4:
            self.house.come(f"s{self.names}")
            self.names += 1

    @rule(draw=st.integers(0, 100))
    def leave(self, draw: int) -> None:
        if self.house.sessions:
            self.house.leave(list(self.house.sessions)[draw % len(self.house.sessions)])

    @rule(draw=st.integers(0, 100), long=st.booleans())
    def begin(self, draw: int, long: bool) -> None:
        names = list(self.house.sessions)
        if names:
            self.house.begin(names[draw % len(names)], PREFIX if long else None)

    @rule(draw=st.integers(0, 100))
    def first(self, draw: int) -> None:
        for request in self._some(draw):
            if not request.read:
                self.house.others.first_token(request)

    @rule(draw=st.integers(0, 100))
    def end(self, draw: int) -> None:
        for request in self._some(draw):
            self.house.end(request)

    @rule(draw=st.integers(0, 100), stuck=st.booleans(), paused=st.booleans())
    def hold_up(self, draw: int, stuck: bool, paused: bool) -> None:
        sessions = list(self.house.sessions.values())
        if sessions:
            session = sessions[draw % len(sessions)]
            session.stuck = stuck
            self.house.others.pause(session, paused)

    @rule(ms=st.integers(1, 50))
    def wait(self, ms: int) -> None:
        self.house.clock.advance(ms / 1000)

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "house"):
            for session in self.house.sessions.values():
                assert len(session.teller) <= len(self.house.now) + 2 * len(session.running)

    def teardown(self) -> None:
        if not hasattr(self, "house"):
            return
        for session in self.house.sessions.values():
            session.stuck = False
            self.house.others.pause(session, False)
        self.house.clock.advance(10.0)
        for session in self.house.sessions.values():
            others = (each for each in self.house.now.values() if each.session is not session)
            assert session.running == {each.number: each.read for each in others}


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
