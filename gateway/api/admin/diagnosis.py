"""``/admin/diagnosis``: the counterpart of ``trunkline doctor``, which measures what lies between it and
here.

Nothing here touches the fleet or the store, and at most so many probes run at once.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson

from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod, read_query
from gateway.api.exchange.inbound import BodyLimits
from gateway.domain.errors import BadRequest, Overloaded
from gateway.domain.scopes import AdminRole

MOST_PROBES = 16
"""That run at once."""
MOST_EVENTS = 50
MOST_GAP_S = 2.0
MOST_SILENCE_S = 3600.0

_EVENTS = {
    "count": {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS},
    "gap_s": {"type": "number", "minimum": 0, "maximum": MOST_GAP_S},
}
_SILENCE = {"s": {"type": "number", "minimum": 0, "maximum": MOST_SILENCE_S}}


@dataclass
class DiagnosisAdmin:
    """The pages."""

    version: str
    body: BodyLimits
    """Of ordinary requests."""
    comment_s: float
    """How often a stream that waits gets a comment."""
    wall: Callable[[], float] = time.time
    """Gives seconds since 1970."""
    running: int = field(default=0, init=False)
    """Probes, now."""

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        viewer = AdminRole.VIEWER
        return [
            AdminMethod("GET", "/admin/diagnosis", viewer, self.show_diagnosis),
            AdminMethod("GET", "/admin/diagnosis/events", viewer, self.probe_events, _EVENTS),
            AdminMethod("GET", "/admin/diagnosis/silence", viewer, self.probe_silence, _SILENCE),
            AdminMethod("POST", "/admin/diagnosis/body", viewer, self.probe_body),
        ]

    async def show_diagnosis(self, call: AdminCall) -> Json:
        """What a doctor compares with what it sees: the time, the limits, and how its request came here."""
        exchange = call.exchange
        return {
            "version": self.version,
            "at": self.wall(),
            "body_bytes": self.body.body_bytes,
            "comment_s": self.comment_s,
            "peer": exchange.peer,
            "client": exchange.address,
            "forwarded": any(name in exchange.fields for name in (b"x-forwarded-for", b"forwarded")),
        }

    async def probe_events(self, call: AdminCall) -> None:
        """Numbered events with a pause before each but the first. Whoever gets them all at once reads through
        something that holds them back."""
        query = read_query(call.exchange)
        count = int(_number(query, "count", 4, 1, MOST_EVENTS))
        gap_s = _number(query, "gap_s", 0.3, 0, MOST_GAP_S)
        exchange, reply = call.exchange, call.exchange.reply
        with self._place():
            async with exchange.while_here():
                await reply.start_events()
                for number in range(count):
                    if number:
                        await asyncio.sleep(gap_s)
                    said = orjson.dumps({"number": number, "at": self.wall()})
                    await reply.write(b"event: probe\ndata: %b\n\n" % said)
            await reply.end()

    async def probe_silence(self, call: AdminCall) -> Json:
        """An answer before which nothing is sent for so many seconds."""
        silence_s = _number(read_query(call.exchange), "s", 20, 0, MOST_SILENCE_S)
        with self._place():
            async with call.exchange.while_here():
                await asyncio.sleep(silence_s)
        return {"silent_s": silence_s}

    async def probe_body(self, call: AdminCall) -> Json:
        """Take a body as long as any request's may be; nothing of it is kept."""
        received_bytes = 0
        with self._place():
            async for piece in call.exchange.inbound.pieces(self.body):
                received_bytes += len(piece)
        return {"received_bytes": received_bytes}

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """Raises Overloaded."""
        if self.running >= MOST_PROBES:
            raise Overloaded(f"{MOST_PROBES} probes of trunkline doctor run already.")
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


def _number(query: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    """Raises BadRequest."""
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise BadRequest(f"{name} is a number from {least:g} to {most:g}.", param=name, code="invalid_value")
    return value
