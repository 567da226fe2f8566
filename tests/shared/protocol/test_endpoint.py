"""How a session that is lost tells its listener and its streams, and what it says is not to wait."""

from collections.abc import Callable

import pytest

from shared.protocol.endpoint import LOSS_SLICE_S, SessionEndpoint
from shared.protocol.errors import ErrorCode, TunnelClosed
from tests.support.session_pair import SessionPair, request_head
from tests.support.tunnels import Recorder

STEP_S = LOSS_SLICE_S / 9.5
"""What each handler takes to hear that its stream is lost, so that a slice is ten of them."""


class Slow(Recorder):
    """A handler that takes time to find its request another place."""

    def __init__(self, site: "Site") -> None:
        super().__init__()
        self.site = site

    def on_reset(self, code: ErrorCode, reason: str) -> None:
        super().on_reset(code, reason)
        self.site.told.append(self)
        self.site.now_s += STEP_S


class Site:
    """A gateway's endpoint with streams, on a loop that the test turns."""

    def __init__(self, streams: int) -> None:
        self.now_s = 0.0
        self.told: list[Slow] = []
        """Handlers that were told of the loss, in order."""
        self.soon: list[Callable[[], None]] = []
        self.endpoint = SessionEndpoint(SessionPair().gateway, lambda: self.now_s, lambda: None)
        self.endpoint.call_soon = self.soon.append
        self.endpoint.listener = self.listener = Recorder()
        self.handlers = [Slow(self) for _ in range(streams)]
        self.streams = [self.endpoint.open(request_head(), handler) for handler in self.handlers]

    def turn(self) -> int:
        """Runs what was put off; returns how many more handlers were told."""
        before, soon = len(self.told), self.soon[:]
        self.soon.clear()
        for step in soon:
            step()
        return len(self.told) - before


def test_the_streams_of_a_lost_session_are_told_in_slices() -> None:
    site = Site(35)
    site.endpoint.lost(TunnelClosed("cut"))
    assert len(site.told) == 10
    assert [site.turn() for _ in range(4)] == [10, 10, 5, 0]
    assert site.told == site.handlers
    assert all(handler.names() == ["reset", "closed"] for handler in site.handlers)
    assert all(stream.closed for stream in site.streams)


def test_few_streams_are_told_at_once() -> None:
    site = Site(5)
    site.endpoint.close(ErrorCode.DRAINING, "bye")
    assert (len(site.told), site.soon) == (5, [])


def test_the_listener_is_told_once_and_before_the_streams() -> None:
    site = Site(35)
    told_first: list[object] = []
    site.listener.on_session_closed = told_first.append  # type: ignore[method-assign, assignment]
    site.handlers[0].on_closed = lambda: told_first.append("stream")  # type: ignore[method-assign]
    error = TunnelClosed("cut")
    site.endpoint.lost(error)
    site.endpoint.lost(error)
    while site.soon:
        site.turn()
    assert told_first == [error, "stream"]
    assert len(site.told) == 35


def test_a_stream_that_waits_to_be_told_may_be_given_up() -> None:
    site = Site(35)
    site.endpoint.lost(TunnelClosed("cut"))
    site.streams[-1].reset(ErrorCode.CANCELLED)
    while site.soon:
        site.turn()
    assert site.handlers[-1].names() == ["reset", "closed"]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_whose_response_is_streamed_does_not_wait_for_others(streaming: bool) -> None:
    said: list[str] = []
    endpoint = SessionEndpoint(SessionPair().gateway, lambda: 0.0, lambda: said.append("wake"))
    endpoint.hasten = lambda: said.append("hasten")
    stream = endpoint.open(request_head(streaming), Recorder())
    stream.send_whole([b"{}"])
    assert said == ["wake", "wake"] + ["hasten"] * streaming
