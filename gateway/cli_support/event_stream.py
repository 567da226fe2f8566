"""Server-sent events of a gateway for commands, which go on behind a connection that broke."""

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from gateway.cli_support.gateway_client import GatewayClient, GatewayFailed

SILENCE_S = 20.0
"""A stream that brings nothing for so long is lost: what is followed says something more often."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
PIECE_BYTES = 64 * 1024
EVENT_BYTES = 64 * 1024 * 1024
"""Longest event that is read: a snapshot of 1,000 deployments has 370 kB."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event, by its name."""

    name: str
    data: bytes
    id: str


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream broke off, or could not be had again."""

    why: str
    again_s: float
    """It is asked for again after so long."""
    status: int | None = None
    """What the gateway answered, where it refused."""


class EventReader:
    """Reads events with their ids from pieces of bytes, whose lines end with LF. Raises ValueError for an
    event that is too long."""

    def __init__(self, limit_bytes: int = EVENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Every event that is whole now; comments are none."""
        if b"\n\n" not in (self._held[-1][-1:] if self._held else b"") + data:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > self._limit_bytes:
                raise ValueError(f"an event is longer than {self._limit_bytes} bytes")
            return
        *whole, rest = b"".join([*self._held, data]).split(b"\n\n")
        self._held, self._held_bytes = [rest], len(rest)
        for text in whole:
            if (event := _event_of(text)) is not None:
                yield event


def _event_of(text: bytes) -> StreamEvent | None:
    """None for one without data."""
    fields: dict[bytes, bytes] = {}
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        fields[name] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None
    name, id_ = fields.get(b"event", b"message"), fields.get(b"id", b"")
    return StreamEvent(name.decode(errors="replace"), fields[b"data"], id_.decode("latin-1"))


def follow_events(
    client: GatewayClient,
    path: str,
    pause: Callable[[float], bool],
    *,
    again: Callable[[], str] | None = None,
    silence_s: float = SILENCE_S,
) -> Generator[StreamEvent | StreamLost]:
    """The events at ``path``, without end. Where the stream breaks off, that is told, and after a pause it is
    asked for again behind the last event that has an id; ``again`` gives the path then. ``pause`` waits so
    many seconds; True: it is enough, and this ends.

    Raises GatewayFailed where the first stream cannot be had.
    """
    last_id, wait_s, reached = "", FIRST_WAIT_S, False
    while True:
        failure = GatewayFailed("the stream ended")
        more = {"last-event-id": last_id} if last_id else None
        try:
            asked = path if again is None or not reached else again()
            with client.open("GET", asked, timeout_s=silence_s, more=more) as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise GatewayFailed("what answers there is no gateway: it sends no stream of events")
                reader = EventReader()
                while piece := response.read1(PIECE_BYTES):
                    for event in reader.feed(piece):
                        reached, wait_s = True, FIRST_WAIT_S
                        last_id = event.id or last_id
                        yield event
        except GatewayFailed as error:
            failure = error
        if not reached:
            raise failure
        again_s = wait_s * random.uniform(0.5, 1.0)  # those that lost one gateway do not come back at once
        yield StreamLost(str(failure).removesuffix("."), again_s, failure.status)
        if pause(again_s):
            return
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
