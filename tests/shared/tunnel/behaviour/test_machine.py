"""Whole tunnels driven at random: handshake, WebSocket, session and clock at both ends of lines in memory.

Lines are cut at any byte of either direction, noticed by both ends, by one, or by none for a while; bytes
come late and regrouped; the agent dials again and asks for its session, which the gateway sometimes has given
up.

What is checked: bytes arrive once and in order or the streams are told SESSION_LOST at both ends; every
handler is told head, data, end or reset, closed, in that order; memory is bounded; in the end everything is
given back.
"""

from contextlib import ExitStack
from itertools import count
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.protocol import limits
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.errors import ErrorCode, LocalError, ResumeRefused
from shared.protocol.messages import ResponseHead
from shared.tunnel import AcceptedTunnel
from tests.shared.tunnel.behaviour.stream_sides import AgentEnd, Side
from tests.support.lines import Line, LineAcceptor, ManualLoop
from tests.support.tunnels import request_head

RETAINED_BYTES = 60_000
"""So little that senders stop for it now and then."""

BITS = st.sampled_from([1, 10, 100, 700, 5000])
NOTICES = st.sampled_from(["both", "agent", "gateway", "nobody"])


class Tunnels(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._patches = ExitStack()
        self._patches.enter_context(mock.patch.object(limits, "RETAINED_BYTES", RETAINED_BYTES))
        self._patches.enter_context(mock.patch.object(limits, "ACK_MESSAGES", 8))
        self.loop = ManualLoop()
        self.acceptor = LineAcceptor(self.loop)
        self.acceptor.listener = AgentEnd({})  # the gateway's says nothing
        self.sides: dict[str, tuple[Side, Side]] = {}
        self.numbers = count()
        self.names = count()
        self.lines: list[Line] = []
        self.endpoints: list[SessionEndpoint] = []
        self.acceptor.on_attached = self._attached
        self.held: tuple[str, SessionEndpoint] | None = None
        """The agent's session, with a tunnel or without."""
        self.dial()

    def teardown(self) -> None:
        try:
            self.everything_ends()
        finally:
            self.loop.close()
            self._patches.close()

    # --- What programs do ---

    @rule(streaming=st.booleans())
    def open(self, streaming: bool) -> None:
        endpoint = self.acceptor.endpoint
        if endpoint is None or endpoint.closed or len(endpoint.streams) > 6:
            return
        name = f"r{next(self.names)}"
        sides = self.sides[name] = (Side("gateway"), Side("agent"))
        sides[0].stream = endpoint.open(request_head(request_id=name, streaming=streaming), sides[0])
        sides[0].suspended = endpoint._streams_suspended
        self.loop.settle()

    @rule(data=st.data(), size=st.sampled_from([1, 50, 3000, 40_000]))
    def write(self, data: st.DataObject, size: int) -> None:
        for side in self._pick(data, lambda side: not side.over and side.may_write):
            assert side.stream is not None
            if not side.headed:
                side.headed = True
                side.stream.send_head(ResponseHead(200, ()))
            start = next(self.numbers)
            piece = bytes((start + place // 7) % 251 for place in range(size))
            side.sent += piece
            side.may_write = side.stream.send_data(piece)
            self.loop.settle()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        for side in self._pick(data, lambda side: side.headed and not side.over):
            self._end(side)

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        for side in self._pick(data, lambda side: not side.our_reset):
            self._reset(side)

    @rule(data=st.data(), share=st.sampled_from([0.1, 0.5, 1.0]))
    def consume(self, data: st.DataObject, share: float) -> None:
        for side in self._pick(data, lambda side: side.consumed < len(side.received)):
            assert side.stream is not None
            size = max(1, int((len(side.received) - side.consumed) * share))
            side.consumed += size
            side.stream.consumed(size)
            self.loop.settle()

    @rule()
    def forget(self) -> None:
        if self.acceptor.endpoint is not None and self.acceptor.endpoint.session.suspended:
            self.acceptor.forget()

    # --- What lines and time do ---

    @rule(to_agent=st.booleans(), size=BITS, piece=BITS)
    def move(self, to_agent: bool, size: int, piece: int) -> None:
        self.lines[-1].move(to_agent, size, max(piece, size // 20))
        self._look()

    @rule()
    def pump(self) -> None:
        self.lines[-1].pump()
        self._look()

    @rule(up=BITS, down=BITS, notices=NOTICES)
    def cut(self, up: int, down: int, notices: str) -> None:
        line = self.lines[-1]
        line.move(False, up)
        line.move(True, down)
        line.cut = True
        if notices in ("both", "agent"):
            line.agent_end.lose()
        if notices in ("both", "gateway"):
            line.gateway_end.lose()
        self.loop.settle()
        self._look()

    @rule(line=st.integers(0, 9), agent=st.booleans())
    def notice_late(self, line: int, agent: bool) -> None:
        there = self.lines[line % len(self.lines)]
        if there.cut:
            (there.agent_end if agent else there.gateway_end).lose()
            self.loop.settle()
            self._look()

    @rule(seconds=st.sampled_from([0.05, 0.3, 2.0, 4.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.loop.advance(seconds)
        self._look()

    @precondition(lambda self: self.lines[-1].agent_end.lost)
    @rule()
    def dial(self) -> None:
        if self.held is not None and self.held[1].closed:
            self.held = None
        self.lines.append(Line(self.loop, self.acceptor, AgentEnd(self.sides), self.held))
        self.loop.settle()

    # --- What must hold ---

    @invariant()
    def bytes_come_once_and_in_order(self) -> None:
        for gateway, agent in self.sides.values():
            assert gateway.sent.startswith(agent.received)
            assert agent.sent.startswith(gateway.received)

    @invariant()
    def memory_is_bounded(self) -> None:
        for endpoint in self.endpoints:
            log = endpoint.session.log
            assert log.retained_bytes == sum(map(len, log._retained)) <= RETAINED_BYTES + limits.MESSAGE_BYTES
            assert len(endpoint.session._link) <= limits.LINK_FRAMES + 2
            assert not endpoint.session.suspended or not endpoint.session._link or endpoint.closed
        for line in self.lines:
            for end in (line.agent_end, line.gateway_end):
                assert len(end.buffer) <= limits.SOCKET_BUFFER_BYTES + 2 * limits.MESSAGE_BYTES

    @invariant()
    def nothing_fails(self) -> None:
        assert self.loop.failures == []

    def everything_ends(self) -> None:
        self._connect()
        self._finish_bodies()
        self._check_bodies()
        for gateway, agent in self.sides.values():
            for side in (agent, gateway):
                if side.stream is not None and not side.closed:
                    self._reset(side)
        self.loop.settle()
        self._pump_for_long()
        for gateway, agent in self.sides.values():
            assert gateway.closed
            assert agent.closed or agent.stream is None
        for endpoint in self.endpoints:
            if not endpoint.closed:
                self._given_back(endpoint)
        for line in self.lines:
            line.agent.abort()
            line.gateway.abort()
        self.loop.settle()
        assert self.acceptor.connections == 0
        for endpoint in self.endpoints:
            endpoint.lost(None)
        self.loop.advance(2.0)
        assert self.loop.timers == [], "a timer is left"
        assert self.loop.failures == []

    # --- Steps ---

    def _attached(self, tunnel: AcceptedTunnel) -> None:
        if tunnel.endpoint not in self.endpoints:
            self.endpoints.append(tunnel.endpoint)

    def _look(self) -> None:
        """What the agent's dialer does: keeps the session there is, gives up the one the gateway lacks."""
        line = self.lines[-1]
        if not line.agent._welcomed.done():
            return
        error = line.agent._welcomed.exception()
        assert not isinstance(error, ResumeRefused)
        if error is not None or (self.held is not None and self.held[1] is line.agent.endpoint):
            return
        if self.held is not None:
            self.held[1].lost(None)
        self.held = (line.agent.welcome.session_id, line.agent.endpoint)
        self.endpoints.append(line.agent.endpoint)
        self.loop.settle()

    def _connect(self) -> None:
        """Until there is a good line with a session."""
        for _ in range(4):
            line = self.lines[-1]
            if line.cut:
                line.agent_end.lose()
                line.gateway_end.lose()
                self.loop.settle()
            if line.agent_end.lost:
                self._look()
                self.dial()
            self._pump_for_long()
            if self.lines[-1].agent.open and self.lines[-1].gateway.open:
                return
        raise AssertionError("no tunnel to be had")

    def _pump_for_long(self) -> None:
        for _ in range(3):
            self.lines[-1].pump()
            self._look()
            self.loop.advance(limits.GATEWAY_ACK_DELAY_S / 2)
        self.lines[-1].pump()

    def _finish_bodies(self) -> None:
        for _ in range(200):
            self._pump_for_long()
            behind = [
                side
                for pair in self.sides.values()
                for side in pair
                if side.stream is not None and side.consumed < len(side.received)
            ]
            if not behind:
                return
            for side in behind:
                assert side.stream is not None
                side.stream.consumed(len(side.received) - side.consumed)
                side.consumed = len(side.received)
        raise AssertionError("bodies never end")

    def _check_bodies(self) -> None:
        """Streams whose session lives have all that was written; of others both ends know that it is lost."""
        there = self.acceptor.endpoint
        for gateway, agent in self.sides.values():
            assert gateway.stream is not None
            if gateway.stream._endpoint is not there or there.closed:
                for side in (gateway, agent):
                    assert side.closed or side.stream is None
                    told = side.peer_end or side.peer_reset is not None
                    assert side.stream is None or told or side.our_reset
                continue
            assert agent.stream is not None
            if not (gateway.our_reset or agent.our_reset):
                assert gateway.received == agent.sent
                assert gateway.peer_end == agent.our_end
                if not agent.our_end:
                    assert agent.received == gateway.sent
                    assert agent.peer_end == gateway.our_end
            assert not gateway.suspended or gateway.closed
            assert not agent.suspended or agent.closed

    def _given_back(self, endpoint: SessionEndpoint) -> None:
        session = endpoint.session
        assert not endpoint.streams
        assert session.open_streams == 0
        assert session.held_bytes == 0
        assert session._owed == {}
        windows = session._windows
        assert session._pool.free == windows.shareable - windows.floor * windows.streams
        assert session.log.retained_bytes == 0
        assert not session._outbox
        assert not session._outbox._blocked

    def _end(self, side: Side) -> None:
        assert side.stream is not None
        side.our_end = True
        try:
            side.stream.end()
        except LocalError:
            assert side.peer_end or side.peer_reset is not None
        self.loop.settle()

    def _reset(self, side: Side) -> None:
        assert side.stream is not None
        side.our_reset = True
        side.stream.reset(ErrorCode.CANCELLED)
        side.consumed = len(side.received)
        self.loop.settle()

    def _pick(self, data: st.DataObject, wanted: Any) -> list[Side]:
        sides = [
            side
            for pair in self.sides.values()
            for side in pair
            if side.stream is not None and not side.closed and wanted(side)
        ]
        return [data.draw(st.sampled_from(sides))] if sides else []


TestTunnels = pytest.mark.hypothesis(Tunnels.TestCase)
TestTunnels.settings = settings(
    settings(), max_examples=max(100, settings().max_examples), stateful_step_count=50
)
