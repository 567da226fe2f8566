"""Two sessions driven at random: whatever both programs do, in whatever order messages arrive.

What is checked: nothing is sent beyond what was granted, nothing is lost, doubled or out of order, every
stream closes on both sides once both halves are over, and in the end nothing is left behind; and all that
however often the tunnel is cut, with whatever is on its way.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.protocol.credit import WindowSettings
from shared.protocol.errors import ErrorCode, TooManyStreams
from shared.protocol.events import (
    DataReceived,
    HeadReceived,
    ProgressReceived,
    StreamEnded,
    StreamOpened,
    StreamReset,
    StreamWritable,
    TunnelEvent,
)
from shared.protocol.events import StreamClosed as Closed
from shared.protocol.messages import ResponseHead
from shared.protocol.progress import Preview, Progress
from shared.protocol.session import ProtocolSession
from tests.support.session_pair import SessionPair, consumed, request_head

WINDOWS = WindowSettings(floor=300, initial=600, maximum=2400, session=10_000, streams=8)


@dataclass(eq=False)
class Side:
    """What the program at one end knows of one stream."""

    sent: bytes = b""
    received: bytes = b""
    consumed: int = 0
    may_write: bool = True
    head: bool = False
    ended: bool = False
    reset: bool = False
    peer_over: bool = False
    peer_reset: bool = False
    closed: bool = False
    progress: float = 0.0
    """The newest that was said, or heard."""

    @property
    def over(self) -> bool:
        return self.ended or self.reset or self.closed


@dataclass
class Model:
    """One stream as both programs see it."""

    gateway: Side = field(default_factory=Side)
    agent: Side = field(default_factory=Side)
    known: bool = False


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = SessionPair(WINDOWS, WINDOWS)
        self.models: dict[int, Model] = {}
        self.numbers = count()

    # --- What programs do ---

    @rule(streaming=st.booleans())
    def open(self, streaming: bool) -> None:
        try:
            stream_id = self.pair.gateway.open_stream(request_head(streaming), self.pair.now)
        except TooManyStreams:
            return
        assert stream_id not in self.models
        self.models[stream_id] = Model()
        self.models[stream_id].gateway.head = True

    @rule(data=st.data(), size=st.integers(1, 2000))
    def write(self, data: st.DataObject, size: int) -> None:
        for session, stream_id, side in self._pick(data, lambda side: not side.over and side.may_write):
            if not side.head:
                session.send_head(stream_id, ResponseHead(200, ()))
                side.head = True
            chunk = bytes(next(self.numbers) % 251 for _ in range(size))
            side.may_write = session.send_data(stream_id, chunk)
            side.sent += chunk

    @rule(data=st.data(), size=st.integers(0, 3000))
    def report(self, data: st.DataObject, size: int) -> None:
        agents = [model.agent for model in self.models.values()]
        for session, stream_id, side in self._pick(data, lambda side: side in agents and not side.over):
            fraction = side.progress + 0.0001
            preview = Preview("image/png", bytes(size)) if size % 2 else None
            if session.send_progress(stream_id, Progress(fraction, "", preview), self.pair.now):
                side.progress = fraction

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        for session, stream_id, side in self._pick(data, lambda side: side.head and not side.over):
            session.end(stream_id)
            side.ended = True

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        for session, stream_id, side in self._pick(data, lambda side: True):
            session.reset(stream_id, ErrorCode.CANCELLED)
            side.reset = True
            side.consumed = len(side.received)

    @rule(data=st.data(), share=st.floats(0, 1))
    def consume(self, data: st.DataObject, share: float) -> None:
        for session, stream_id, side in self._pick(data, lambda side: side.consumed < len(side.received)):
            size = max(1, int((len(side.received) - side.consumed) * share))
            side.consumed += size
            consumed(session, stream_id, size, self.pair.now)

    # --- What the line does ---

    @rule(gateway=st.booleans(), budget=st.integers(0, 3000))
    def send(self, gateway: bool, budget: int) -> None:
        session = self.pair.gateway if gateway else self.pair.agent
        self.pair.send(session, budget)
        self._note(session, session.take_events())

    @rule(gateway=st.booleans(), messages=st.integers(1, 5))
    def deliver(self, gateway: bool, messages: int) -> None:
        session = self.pair.gateway if gateway else self.pair.agent
        self._note(session, self.pair.deliver(session, messages))

    @rule(seconds=st.floats(0.001, 9))
    def wait(self, seconds: float) -> None:
        self.pair.now += seconds
        for session in (self.pair.gateway, self.pair.agent):
            if not session.suspended:
                session.bytes_received(self.pair.now)
                session.handle_deadline(self.pair.now)

    @precondition(lambda self: self.pair.connected)
    @rule()
    def cut(self) -> None:
        self.pair.cut()

    @precondition(lambda self: not self.pair.connected)
    @rule()
    def reconnect(self) -> None:
        self.pair.reconnect()

    # --- What must hold ---

    @invariant()
    def nothing_lost_doubled_or_out_of_order(self) -> None:
        for model in self.models.values():
            for writer, reader in ((model.gateway, model.agent), (model.agent, model.gateway)):
                assert writer.sent.startswith(reader.received)

    @invariant()
    def memory_stays_within_what_was_granted(self) -> None:
        for session in (self.pair.gateway, self.pair.agent):
            assert 0 <= session.held_bytes <= WINDOWS.session
            windows = [s.credit.window for s in session._streams.values()]
            windows += [credit.window for credit in session._owed.values()]
            assert sum(windows) <= WINDOWS.shareable
            assert session._pool.free >= 0

    @precondition(lambda self: self.models)
    @rule()
    def everything_ends_when_both_sides_want_it(self) -> None:
        self._settle()
        for stream_id, model in self.models.items():
            for session, side in ((self.pair.gateway, model.gateway), (self.pair.agent, model.agent)):
                session.reset(stream_id, ErrorCode.CANCELLED)
                side.reset = True
        self._settle()
        for session in (self.pair.gateway, self.pair.agent):
            assert session.open_streams == 0
            assert session.held_bytes == 0
            assert session._owed == {}
            assert session._pool.free == WINDOWS.shareable - WINDOWS.floor * WINDOWS.streams
            assert not session._outbox.interactive
            assert not session._outbox._bulk
            assert not session._outbox._blocked
            assert not session._outbox.progress
        assert all(model.gateway.closed for model in self.models.values())
        assert all(model.agent.closed for model in self.models.values() if model.known)
        self.models.clear()

    @precondition(lambda self: self.models)
    @rule()
    def every_byte_arrives_when_readers_read(self) -> None:
        for _ in range(200):
            self._settle()
            moved = False
            for stream_id, model in self.models.items():
                for session, side in ((self.pair.gateway, model.gateway), (self.pair.agent, model.agent)):
                    if side.consumed < len(side.received):
                        consumed(session, stream_id, len(side.received) - side.consumed, self.pair.now)
                        side.consumed = len(side.received)
                        moved = True
            if not moved:
                break
        for model in self.models.values():
            for writer, reader in ((model.gateway, model.agent), (model.agent, model.gateway)):
                stopped = writer.reset or reader.reset or (reader is model.agent and reader.ended)
                stopped = stopped or (writer is model.gateway and model.gateway.peer_over)
                if not stopped:
                    assert reader.received == writer.sent

    # --- Helpers ---

    def _settle(self) -> None:
        if not self.pair.connected:
            self.pair.reconnect()
        for _ in range(10_000):
            moved = [self.pair.send(session) for session in (self.pair.gateway, self.pair.agent)]
            for session in (self.pair.agent, self.pair.gateway):
                self._note(session, self.pair.deliver(session))
            if not any(moved):
                return
        raise AssertionError("messages never stop")

    def _pick(self, data: st.DataObject, wanted: Any) -> list[tuple[ProtocolSession, int, Side]]:
        candidates = [
            (session, stream_id, side)
            for stream_id, model in self.models.items()
            for session, side in ((self.pair.gateway, model.gateway), (self.pair.agent, model.agent))
            if (side is model.gateway or model.known) and not side.closed and wanted(side)
        ]
        return [data.draw(st.sampled_from(candidates))] if candidates else []

    @staticmethod
    def _note_progress(model: Model, fraction: float | None) -> None:
        side = model.gateway
        assert not side.reset
        assert not side.peer_over
        assert fraction is not None
        assert side.progress < fraction <= model.agent.progress
        side.progress = fraction

    def _note(self, session: ProtocolSession, events: list[Any]) -> None:
        for event in [each for each in events if not isinstance(each, TunnelEvent)]:
            model = self.models[event.stream_id]
            side = model.gateway if session is self.pair.gateway else model.agent
            assert not side.closed, "an event after the last"
            match event:
                case StreamOpened():
                    assert not model.known
                    model.known = True
                case HeadReceived():
                    assert side.received == b""
                case DataReceived():
                    assert not side.reset
                    assert not side.peer_over
                    side.received += event.data
                case ProgressReceived():
                    self._note_progress(model, event.progress.fraction)
                case StreamEnded():
                    assert not side.peer_over
                    side.peer_over = True
                case StreamReset():  # may follow an END: that is how a gateway cancels
                    assert not side.peer_reset
                    side.peer_over = side.peer_reset = True
                case StreamWritable():
                    side.may_write = True
                case Closed():
                    side.closed = True


TestSessions = pytest.mark.hypothesis(Sessions.TestCase)
TestSessions.settings = settings(
    settings(), max_examples=max(300, settings().max_examples), stateful_step_count=60
)
