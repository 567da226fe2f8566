"""``GET /admin/events``: the feed as server-sent events."""

from dataclasses import dataclass

from gateway.api.admin.live.feed import EventFeed
from gateway.api.admin.routes import AdminCall, AdminMethod, read_body, read_query, while_allowed
from gateway.domain.errors import BadRequest
from gateway.domain.scopes import AdminRole


@dataclass(frozen=True)
class EventsAdmin:
    """The page."""

    feed: EventFeed

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        return [AdminMethod("GET", "/admin/events", AdminRole.VIEWER, self.follow_events)]

    async def follow_events(self, call: AdminCall) -> None:
        """A snapshot of the fleet, the queues and requests, then what changes, once a second."""
        exchange = call.exchange
        if unknown := next(iter(read_query(exchange)), None):
            raise BadRequest(f"There is no parameter {unknown[:100]!r} here.", param=unknown[:100])
        last_id = exchange.fields.get(b"last-event-id", b"").decode("latin-1").strip()
        await read_body(exchange)  # none is wanted, and a client that leaves is seen behind it
        async with exchange.while_here():
            await exchange.reply.send_events(while_allowed(call, self.feed.follow(last_id)))
