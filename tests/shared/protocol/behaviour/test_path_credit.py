"""What a body's path took is told when credit for it is due, and a sender waits for none of it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shared.protocol import limits
from shared.protocol.credit import GATEWAY_WINDOWS, STEP_MOST_BYTES
from shared.speedups import BodyPath
from tests.support.session_pair import OK, SessionPair, frames_of

EVENT = b"data: " + b"x" * 182 + b"\n\n"
EVENTS = 2000


class Answer:
    """One whose events take a path, and whose reader takes all of it at once."""

    def __init__(self, window: int, rtt_s: float | None) -> None:
        self.pair = SessionPair(replace(GATEWAY_WINDOWS, initial=window))
        self.pair.gateway.rtt_s = rtt_s
        self.id = self.pair.open()
        self.pair.agent.send_head(self.id, OK)
        self.pair.settle()
        self.written: list[bytes] = []
        self.told: list[int] = []
        """How many bytes at a time were said to be consumed."""
        self.granted = 0
        """How many times credit was sent for it."""
        self.path = BodyPath(self.written.append, SimpleNamespace(write_paused=False))
        self.path.open = True
        self.path.on_unsaid = self.consume
        self.pair.gateway.set_path(self.id, self.path)

    def consume(self) -> None:
        size_bytes, self.path.unsaid_bytes = self.path.unsaid_bytes, 0
        self.told.append(size_bytes)
        if self.pair.gateway.consume(self.id, size_bytes):
            self.pair.gateway.grant(self.id, self.pair.now)

    def write(self) -> None:
        """An event, all that is due for it, and the pause until the next."""
        pair = self.pair
        pair.agent.send_data(self.id, EVENT)
        pair.send(pair.agent)
        assert pair.deliver(pair.gateway) == []
        self.granted += frames_of(pair.send(pair.gateway)).count(("CREDIT", self.id))
        pair.deliver(pair.agent)
        pair.now += 0.05


@pytest.mark.parametrize("rtt_s", [None, 0.001, 10.0])
@pytest.mark.parametrize("window", [limits.STREAM_WINDOW_FLOOR_BYTES, 40_000, limits.STREAM_WINDOW_BYTES])
def test_each_event_is_written_at_once_and_grants_are_few(window: int, rtt_s: float | None) -> None:
    answer = Answer(window, rtt_s)
    for number in range(1, EVENTS + 1):
        answer.write()
        assert len(answer.written) == number
    size_bytes = EVENTS * len(EVENT)
    step_bytes = window // 2
    if rtt_s == 0.001:  # of a slow stream's window more is granted at a time
        step_bytes = window - max(window // 4, GATEWAY_WINDOWS.left_bytes)
    assert 1 <= answer.granted <= size_bytes / step_bytes + 1
    assert all(told < STEP_MOST_BYTES + len(EVENT) for told in answer.told)
    if step_bytes <= STEP_MOST_BYTES and rtt_s != 10.0:  # where it is, the window grows
        assert len(answer.told) == answer.granted, "nothing is told between"
    assert size_bytes - sum(answer.told) < STEP_MOST_BYTES


def test_what_was_told_for_another_reason_counts() -> None:
    """As when the path closes: the next credit is due as soon as it would have been."""
    answer = Answer(limits.STREAM_WINDOW_FLOOR_BYTES, None)
    for number in range(1, EVENTS + 1):
        answer.write()
        if number % 7 == 0:
            answer.consume()
        assert len(answer.written) == number
    assert answer.granted == pytest.approx(EVENTS * len(EVENT) / 8192, rel=0.05)
