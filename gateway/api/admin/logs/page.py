"""``GET /admin/logs``: lines of the log as server-sent events."""

from dataclasses import dataclass

from gateway.api.admin.logs.follow import LogFollowing
from gateway.api.admin.logs.line_filter import SCHEMAS, BadLineFilter
from gateway.api.admin.routes import AdminCall, AdminMethod, read_body, read_query, while_allowed
from gateway.domain.errors import BadRequest
from gateway.domain.scopes import AdminRole


@dataclass(frozen=True)
class LogsAdmin:
    """The page. It takes an operator: lines name clients' addresses, paths and faults of the machine."""

    following: LogFollowing

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        return [AdminMethod("GET", "/admin/logs", AdminRole.OPERATOR, self.follow_logs, SCHEMAS)]

    async def follow_logs(self, call: AdminCall) -> None:
        """The last lines that are wanted, and with follow=true those that come."""
        exchange = call.exchange
        query = read_query(exchange)
        last_id = exchange.fields.get(b"last-event-id", b"").decode("latin-1").strip()
        await read_body(exchange)  # none is wanted, and a client that leaves is seen behind it
        async with exchange.while_here():
            try:
                lines = self.following.follow(query, last_id)
                await exchange.reply.send_events(while_allowed(call, lines))
            except BadLineFilter as error:
                said = f"{error.parameter}: {error}."
                raise BadRequest(said, param=error.parameter, code="invalid_value") from None
