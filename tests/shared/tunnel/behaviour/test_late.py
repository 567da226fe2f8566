"""A program that stood still does not take its own silence for its peer's. In memory, without real time."""

import pytest

from shared.protocol import limits
from shared.tunnel.deadline_wheel import STEP_S
from tests.support.lines import Line, LineAcceptor, ManualLoop
from tests.support.tunnels import Recorder


@pytest.fixture
def acceptor(loop: ManualLoop) -> LineAcceptor:
    return LineAcceptor(loop)


@pytest.fixture
def line(loop: ManualLoop, acceptor: LineAcceptor) -> Line:
    line = Line(loop, acceptor, Recorder())
    line.pump()
    assert line.welcomed
    return line


def wait_for_an_answer(loop: ManualLoop, line: Line) -> None:
    """The gateway asks, the agent answers, and the answer lies in the socket."""
    loop.advance(limits.HEARD_WITHIN_S + STEP_S)
    line.move(True)
    assert line.agent_end.buffer


@pytest.mark.parametrize("late_s", [0.2, 0.9, 1.1, 12.0, 3600.0])
def test_what_came_meanwhile_is_read_before_silence_is_judged(
    loop: ManualLoop, acceptor: LineAcceptor, line: Line, late_s: float
) -> None:
    wait_for_an_answer(loop, line)
    loop.stand_still(limits.SILENT_AFTER_S + late_s)
    loop.settle()
    line.pump()
    loop.advance(0.5)
    assert acceptor.listener.calls == []
    assert line.gateway.open


@pytest.mark.parametrize("late_s", [0.2, 0.9, 1.1, 12.0, 3600.0])
def test_a_silent_tunnel_is_not_given_up_over_bytes_that_lie_unread(
    loop: ManualLoop, acceptor: LineAcceptor, line: Line, late_s: float
) -> None:
    wait_for_an_answer(loop, line)
    loop.advance(limits.SILENT_AFTER_S + 0.5)
    assert acceptor.listener.names() == ["session_suspended"]
    loop.stand_still(limits.SILENT_MOST_S - limits.SILENT_AFTER_S - 0.5 + late_s)
    loop.settle()
    line.pump()
    loop.advance(0.5)
    assert acceptor.listener.names() == ["session_suspended", "session_resumed"]
    assert line.gateway.open


def test_a_peer_that_was_gone_before_is_given_up_all_the_same(loop: ManualLoop, line: Line) -> None:
    line.cut = True
    for _ in range(40):
        loop.stand_still(1.0)
        loop.settle()
        loop.advance(0.05)
    assert line.gateway_end.lost
    assert line.agent_end.lost


def test_a_silence_that_was_told_is_told_to_be_over(
    loop: ManualLoop, acceptor: LineAcceptor, line: Line
) -> None:
    wait_for_an_answer(loop, line)
    loop.advance(limits.SILENT_AFTER_S + 0.5)
    loop.stand_still(60.0)
    loop.settle()
    loop.advance(1.0)
    line.pump()
    assert acceptor.listener.names() == ["session_suspended", "session_resumed"]
