"""No honest agent is cut, whatever the order, and what a flooding one gets through is bounded."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits, other_requests
from shared.protocol.control_frames import ControlFrameLimiter, control_frame_units
from shared.protocol.errors import ControlFrameFlood
from shared.protocol.frames import FrameType

LONGEST = limits.CONTROL_PAYLOAD_BYTES
STATE_UNITS, STATE_UNITS_PER_S = limits.CONTROL_FRAMES_BURST / 2, limits.CONTROL_FRAMES_PER_S / 2
SLOTS_UNITS, SLOTS_UNITS_PER_S = limits.CONTROL_FRAMES_BURST / 8, limits.CONTROL_FRAMES_PER_S / 4
"""What agents keep to for STATE, and for the SLOTS that no request brought about."""

OTHERS_BYTES = limits.OTHERS_BYTES * 6 // 5
"""The longest OTHERS."""

LATE_STREAMS = 8
"""An agent's end of a stream and its SLOTS are a turn of its event loop apart, and but one SLOTS waits to
leave; so many are more than is ever late."""


class HonestAgent:
    """Sends what an agent sends at most: one SLOTS of the longest when a stream comes and one when it goes,
    the longest STATE, and SLOTS beside those of requests, as often as it allows itself to, an answer for each
    command.

    It may be late with any SLOTS as long as the stream is open, and after the end with those of
    ``LATE_STREAMS``.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.limiter = ControlFrameLimiter(0.0)
        self.others_units: float | None = None
        """What it may spend on OTHERS; None: they are not agreed on."""
        self.owed_open: list[int] = []
        """For each open stream the SLOTS that are still to come."""
        self.owed_ended = 0
        self.state_units = STATE_UNITS
        self.slots_units = SLOTS_UNITS

    def send(self, payload_bytes: int, frame_type: FrameType) -> None:
        self.limiter.spend(control_frame_units(payload_bytes, frame_type), self.now)

    def open(self, count: int) -> None:
        for _ in range(min(count, limits.OPEN_STREAMS - len(self.owed_open))):
            self.owed_open.append(2)
            self.limiter.earn(len(self.owed_open))

    def say_slots(self, count: int) -> None:
        for number, owed in enumerate(self.owed_open[:count]):
            if owed > 1:
                self.send(LONGEST, FrameType.SLOTS)
                self.owed_open[number] = 1

    def end(self, count: int) -> None:
        for _ in range(min(count, len(self.owed_open))):
            self.owed_ended += self.owed_open.pop(0)
            if self.owed_ended > 2 * LATE_STREAMS:
                self.catch_up(0)

    def catch_up(self, count: int) -> None:
        for _ in range(self.owed_ended):
            self.send(LONGEST, FrameType.SLOTS)
        self.owed_ended = 0

    def publish(self, count: int) -> None:
        """A frame may be more than what is left."""
        for _ in range(min(count, 10)):
            if self.state_units > 0:
                self.state_units -= control_frame_units(LONGEST)
                self.send(LONGEST, FrameType.STATE)

    def say_other_slots(self, count: int) -> None:
        for _ in range(min(count, 20)):
            if self.slots_units > 0:
                self.slots_units -= limits.SLOTS_UNITS
                self.send(LONGEST, FrameType.SLOTS)

    def say_others(self, count: int) -> None:
        """As often as it may; a frame may be more than what is left."""
        if self.others_units is None:
            self.others_units = other_requests.UNITS
            self.limiter.allow_others()
        for _ in range(min(count, 50)):
            if self.others_units > 0:
                self.others_units -= control_frame_units(OTHERS_BYTES)
                self.send(OTHERS_BYTES, FrameType.OTHERS)

    def answer_commands(self, count: int) -> None:
        for _ in range(min(count, limits.COMMANDS)):
            self.limiter.earn(len(self.owed_open))
            self.send(3 * limits.REASON_CHARS, FrameType.RESULT)

    def wait(self, count: int) -> None:
        """Each end answers a PING within."""
        self.now += count / 10
        self.state_units = min(self.state_units + count / 10 * STATE_UNITS_PER_S, STATE_UNITS)
        self.slots_units = min(self.slots_units + count / 10 * SLOTS_UNITS_PER_S, SLOTS_UNITS)
        if self.others_units is not None:
            earned = count / 10 * other_requests.UNITS_PER_S
            self.others_units = min(self.others_units + earned, other_requests.UNITS)
        self.send(8, FrameType.PONG)
        self.send(8, FrameType.PING)


WAYS = [
    HonestAgent.open,
    HonestAgent.say_slots,
    HonestAgent.end,
    HonestAgent.catch_up,
    HonestAgent.publish,
    HonestAgent.say_other_slots,
    HonestAgent.say_others,
    HonestAgent.answer_commands,
    HonestAgent.wait,
]
STEPS = st.tuples(st.sampled_from(WAYS), st.integers(1, limits.OPEN_STREAMS))


@given(st.lists(STEPS, max_size=60))
def test_an_honest_agent_is_never_cut(
    steps: list[tuple[Callable[[HonestAgent, int], None], int]],
) -> None:
    agent = HonestAgent()
    for step, count in steps:
        step(agent, count)
    agent.end(limits.OPEN_STREAMS)
    agent.catch_up(0)


FLOOD = st.one_of(
    st.tuples(st.just("spend"), st.integers(0, LONGEST)),
    st.tuples(st.just("earn"), st.integers(0, limits.OPEN_STREAMS)),
    st.tuples(st.just("wait"), st.floats(0.0, 100.0)),
)


@given(st.lists(FLOOD, max_size=100))
def test_what_a_flooding_agent_gets_through_is_bounded(steps: list[tuple[str, float]]) -> None:
    """It sends all that is taken after each step."""
    now, earned, taken, open_streams = 0.0, 0, 0, 0
    limiter = ControlFrameLimiter(now)
    for step, value in steps:
        if step == "wait":
            now += value
        elif step == "earn":
            open_streams = int(value)
            limiter.earn(open_streams)
            earned += limits.CONTROL_FRAMES_PER_STREAM
        else:
            at_once = 0
            units = control_frame_units(int(value))
            with suppress(ControlFrameFlood):
                while True:
                    limiter.spend(units, now)
                    at_once += units
            assert at_once <= limits.CONTROL_FRAMES_BURST + limits.CONTROL_FRAMES_PER_STREAM * open_streams
            taken += at_once
    assert taken <= limits.CONTROL_FRAMES_BURST + limits.CONTROL_FRAMES_PER_S * now + earned


def test_a_flood_ends_whatever_is_sent() -> None:
    for frame_type in (None, *FrameType):
        limiter, taken = ControlFrameLimiter(0.0), 0
        with suppress(ControlFrameFlood):
            for taken in range(limits.CONTROL_FRAMES_BURST + 1):  # noqa: B007
                limiter.spend(control_frame_units(0, frame_type), 0.0)
        assert taken == limits.CONTROL_FRAMES_BURST


def test_where_others_are_agreed_on_more_is_allowed_from_then_on() -> None:
    limiter = ControlFrameLimiter(0.0)
    limiter.allow_others()
    limiter.allow_others()
    limiter.spend(limits.CONTROL_FRAMES_BURST, 0.0)
    with pytest.raises(ControlFrameFlood):
        limiter.spend(1, 0.0)
    limiter.spend(limits.CONTROL_FRAMES_PER_S + limits.OTHERS_UNITS_PER_S, 1.0)
    limiter.spend(limits.CONTROL_FRAMES_BURST + limits.OTHERS_UNITS, 1000.0)
    with pytest.raises(ControlFrameFlood, match="2500 at once, 600 a second"):
        limiter.spend(1, 1000.0)
    limiter.earn(0)
    limiter.spend(limits.CONTROL_FRAMES_PER_STREAM, 1000.0)
