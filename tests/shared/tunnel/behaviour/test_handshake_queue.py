"""Handshakes of a crowd share the event loop with everybody else. In memory, without real time."""

import pytest

from shared.handshake import GatewayHandshake, Hello
from shared.protocol import limits
from shared.protocol.errors import TunnelClosed
from shared.tunnel import Accepted, HandshakeQueue
from shared.tunnel.accept import NEW_S
from shared.tunnel.base import LATE_S
from shared.tunnel.handshake_queue import TURN_S, HandshakeQueueFull
from tests.support.lines import Line, LineAcceptor, ManualLoop
from tests.support.tunnels import Acceptor, Recorder

PER_TURN = 3


class Dear:
    """A clock by which every look at it takes a step's time: so many fit into a turn of the loop."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += TURN_S / (PER_TURN - 0.5)
        return self.now_s


class Unmoved(HandshakeQueue):
    """Nobody gets a turn before the test gives them."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__(loop)
        self.free = False

    def _take(self) -> None:
        if self.free:
            super()._take()

    def release(self) -> None:
        self.free = True
        self._take()


def test_a_turn_of_the_loop_takes_so_many_steps_in_their_order(loop: ManualLoop) -> None:
    handshakes, done = HandshakeQueue(loop, Dear()), list[int]()
    for number in range(8):
        handshakes.add(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == []
    seen = []
    while len(handshakes):
        loop._run_once()  # type: ignore[attr-defined]
        seen.append(len(done))
    assert seen == [3, 6, 8]
    assert done == list(range(8))


def test_who_asks_within_a_turn_comes_after_those_who_asked_before(loop: ManualLoop) -> None:
    handshakes, done = HandshakeQueue(loop), list[str]()

    def first() -> None:
        done.append("first")
        handshakes.add(lambda: done.append("third"))

    handshakes.add(first)
    handshakes.add(lambda: done.append("second"))
    loop.settle()
    assert done == ["first", "second", "third"]
    handshakes.add(lambda: done.append("fourth"))
    loop.settle()
    assert done[-1] == "fourth"


def test_a_step_that_fails_is_told_of_and_holds_nobody_up(loop: ManualLoop) -> None:
    handshakes, done = HandshakeQueue(loop), list[str]()

    def fail() -> None:
        raise ValueError("broken")

    handshakes.add(fail)
    handshakes.add(lambda: done.append("next"))
    loop.settle()
    assert done == ["next"]
    failure = loop.failures.pop()
    assert str(failure["exception"]) == "broken"


def test_more_steps_than_may_wait_are_refused(loop: ManualLoop) -> None:
    handshakes = HandshakeQueue(loop, most=2)
    handshakes.add(lambda: None)
    handshakes.add(lambda: None)
    with pytest.raises(HandshakeQueueFull):
        handshakes.add(lambda: None)
    loop.settle()
    handshakes.add(lambda: None)


def test_a_crowd_shakes_hands_so_many_a_turn_and_all_are_welcome(loop: ManualLoop) -> None:
    handshakes, acceptor = HandshakeQueue(loop, Dear()), Acceptor()
    lines = [Line(loop, acceptor, Recorder(), handshakes=handshakes) for _ in range(20)]
    for line in lines:
        line.gateway.data_received(line.agent_end.take(1 << 30))
    assert len(handshakes) == 20, "each waits, and nobody has been answered before"
    most, before = 0, 0
    while len(handshakes):
        loop._run_once()  # type: ignore[attr-defined]
        answered = sum(bool(line.gateway_end.buffer) for line in lines)
        most, before = max(most, answered - before), answered
    assert most == PER_TURN
    assert before == 20
    for line in lines:
        line.pump()
        assert line.welcomed


def test_what_an_agent_says_first_waits_for_its_turn_and_the_rest_does_not(loop: ManualLoop) -> None:
    handshakes, acceptor = HandshakeQueue(loop), Acceptor()
    line = Line(loop, acceptor, Recorder(), handshakes=handshakes)
    line.pump()
    assert line.welcomed

    def say(level: int) -> int:
        """How many steps wait once it came."""
        line.agent.endpoint.send_slots({"d": level})
        loop.settle()
        line.gateway.data_received(line.agent_end.take(1 << 30))
        return len(handshakes)

    assert (say(1), acceptor.listener.names().count("slots")) == (1, 0)
    assert (say(2), acceptor.listener.names().count("slots")) == (1, 1), "saying lets the loop run"
    loop.settle()
    loop.advance(NEW_S)
    assert (say(3), acceptor.listener.names().count("slots")) == (1, 2), "the first after that"
    loop.settle()
    assert (say(4), acceptor.listener.names().count("slots")) == (0, 4)
    slots = [value for name, value in acceptor.listener.calls if name == "slots"]
    assert slots == [{"d": level} for level in (1, 2, 3, 4)]


def test_a_tunnel_that_finds_no_place_among_those_that_wait_is_closed(loop: ManualLoop) -> None:
    handshakes = HandshakeQueue(loop, most=1)
    first, second = (Line(loop, Acceptor(), Recorder(), handshakes=handshakes) for _ in range(2))
    for line in (first, second):
        line.gateway.data_received(line.agent_end.take(1 << 30))
    loop.settle()
    assert second.gateway_end.lost
    first.pump()
    assert first.welcomed


def test_who_waits_for_the_gateway_is_not_cut_off_for_it(loop: ManualLoop) -> None:
    handshakes = Unmoved(loop)
    line = Line(loop, Acceptor(), Recorder(), handshakes=handshakes)
    line.gateway.data_received(line.agent_end.take(1 << 30))
    loop.advance(3 * limits.HANDSHAKE_TIMEOUT_S)
    assert not line.gateway_end.lost
    handshakes.release()
    line.pump()
    assert line.welcomed


class Waiting(LineAcceptor):
    """Asks a database that takes its time."""

    async def authenticate(self, hello: Hello, handshake: GatewayHandshake) -> Accepted:
        self.asked = self._loop.create_future()
        await self.asked
        return await super().authenticate(hello, handshake)


def test_who_waits_for_the_database_is_not_cut_off_for_it(loop: ManualLoop) -> None:
    acceptor = Waiting(loop)
    line = Line(loop, acceptor, Recorder())
    line.pump()
    loop.advance(3 * limits.HANDSHAKE_TIMEOUT_S)
    assert not line.gateway_end.lost
    acceptor.asked.set_result(None)
    line.pump()
    assert line.welcomed


def test_the_strangers_own_time_counts_on_between(loop: ManualLoop) -> None:
    handshakes = Unmoved(loop)
    line = Line(loop, Acceptor(), Recorder(), handshakes=handshakes)
    loop.advance(limits.HANDSHAKE_TIMEOUT_S - 1.0)
    line.gateway.data_received(line.agent_end.take(1 << 30))
    loop.advance(60.0)
    handshakes.release()
    loop.settle()
    assert line.gateway_end.buffer, "the challenge"
    loop.advance(0.9)
    assert not line.gateway_end.lost
    loop.advance(0.2)
    assert line.gateway_end.lost
    assert isinstance(line.gateway._closed.result(), TunnelClosed)


@pytest.mark.parametrize("late_s", [2 * LATE_S, 60.0])
def test_what_came_while_the_loop_stood_still_is_read_first(loop: ManualLoop, late_s: float) -> None:
    line = Line(loop, Acceptor(), Recorder())
    loop.stand_still(limits.HANDSHAKE_TIMEOUT_S + late_s)
    loop.settle()
    line.pump()
    assert line.welcomed


def test_a_stranger_that_says_nothing_is_cut_off_however_late_the_loop_is(loop: ManualLoop) -> None:
    line = Line(loop, Acceptor(), Recorder())
    loop.stand_still(limits.HANDSHAKE_TIMEOUT_S + 60.0)
    loop.settle()
    loop.advance(0.1)
    assert line.gateway_end.lost
