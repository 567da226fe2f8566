"""Uvicorn's HTTP protocol with the bounds it lacks (it reads heads of any size, for as long as they take).

What the parser (llhttp) and uvicorn enforce already: well-formed requests, one Content-Length, no
Content-Length beside Transfer-Encoding. What is added: the size of a request's head (431) and the time it may
take (408), the number of connections (503), of all clients and of each address, how much of a body is thrown
away after its answer has gone, heads that others could read differently
(:mod:`gateway.api.server.request_head`), and the error shape and request id of everything that is refused
here. It also offers the short way to and from its clients (:mod:`gateway.api.server.response_writers`).
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from gateway.api.errors import http_error, id_headers
from gateway.api.server.answer_cycle import CYCLE, AnswerCycle
from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.api.server.request_head import new_request_id
from gateway.api.server.request_parser import ConnectionLimits, RequestParser
from gateway.api.server.response_writers import WriteBatch
from gateway.api.server.tls import has_certificate
from gateway.api.server.tunnel_passing import TUNNEL_PATH, PassOn, pass_tunnel_on
from gateway.domain.errors import BadRequest, BodyTimeout, BuffersFull, Forbidden, RequestError
from gateway.domain.turn_end import TurnEnd
from gateway.runtime.descriptors import ConnectionVerdict, DescriptorBudget, room_for
from shared.protocol.routes import Dialect

UNREAD_BYTES = 256 * 1024 * 1024
"""Read and thrown away of a body whose answer has gone. Most clients send all of it before they look for the
answer, and closing the connection under them would lose it: the kernel resets what is not read."""

UNREAD_S = 30.0
"""The longest that may take."""

PIPELINED = 64
"""Requests of one connection that wait for their turn. One read may bring thousands, each over 1 KiB here."""

UNTAKEN_S = 300.0
"""The longest a client may leave its answer untaken, with as much of it waiting here as may wait."""

WAITING_BYTES = 64 * 1024
"""Of answers, for a client to take them. TLS would let eight times as much wait."""

PROBE_AGAIN_S = 0.1
PROBE_S = 1.0
"""A client that has closed its direction is probed at once, again after ``PROBE_AGAIN_S`` to learn what its
system answered, and then so often."""

_TASK_NAME = "request"

_STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""An interim answer, of which a client takes any number (RFC 9110 §15.2). The system of one that is gone
answers it with a reset."""

LINGER_S = 5.0
"""The longest a client that was refused may take to hang up."""


class BoundedHttpProtocol(RequestParser):
    """One client connection. Create it through :func:`bounded`."""

    __slots__ = (
        "_answering",
        "_group",
        "_idle_until_s",
        "_probe_timer",
        "_refused",
        "_turn_end",
        "_unread_bytes",
        "_untaken_timer",
    )

    descriptors: DescriptorBudget | None = None
    places = PerAddressLimiter()
    turn_end: TurnEnd | None = None
    """Told what was read."""
    leaving = False
    """Another process serves here: connections are closed after their next answer."""
    pass_on: ClassVar[PassOn | None] = None
    """Gives the connection of an agent that wants another process to that one."""
    wants_certificate = False
    """Requests are taken over connections with a client certificate only; agents' tunnels are no requests."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._turn_end = self.turn_end
        self._group = ""
        self._unread_bytes = 0
        self._idle_until_s = 0.0
        """Until when the client has time for its next request; 0: it is not waited for."""
        self._refused = False
        self._untaken_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._answering: AnswerCycle | None = None
        """Of the request that is being answered; the newest one may wait for its turn behind it."""

    # --- asyncio ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WAITING_BYTES)
        self.lacks_certificate = self.wants_certificate and not has_certificate(transport)
        group = self.places.group(self.client[0]) if self.client is not None else ""
        if not self.places.take(group):
            self._refused = True
            message = "Your address has as many connections here as it may; use them again, or close some."
            self._refuse(BuffersFull(message, code="too_many_connections"))
            return
        self._group = group
        room = room_for(transport, self.descriptors)
        if len(self.connections) > self.limits.connections or room is not ConnectionVerdict.ENOUGH:
            self._refused = room is not ConnectionVerdict.SCARCE
            self._refuse(BuffersFull("This gateway has as many connections as it takes; try again shortly."))
            return
        self._start_timer(self.limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_probe()
        self._stop_untaken_timer()
        self._unset_keepalive_if_required()
        self._leave_place()
        answering = self._answering
        if answering is not None:
            answering.detach()
        super().connection_lost(exc)
        if answering is not None:
            answering.gone()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._refused:
            self._discard(len(data))
            return
        self._idle_until_s = 0.0
        if self._switched is not None:
            self._switched.data_received(data)
            return
        self.parse(data)
        if self._turn_end is not None:
            self._turn_end.input_read()
        cycle = self.cycle
        if self._in_head and not self._head_bytes and cycle is not None and not cycle.response_complete:
            return  # a whole request: its answer has bounds of its own
        if self.transport.get_protocol() is not self or self.transport.is_closing():
            self._stop_timer()
        elif not self._refused:
            self._bound_what_follows(len(data))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. One whose whole request is here, and whose answer has not begun, may
        only have closed its direction: True keeps ours open, and probes find out whether it is gone.

        Within an answer the end counts as leaving, as does that of a client of HTTP/1.0, to which no interim
        answer may be sent, and any over TLS, which has no half of a connection to close.
        """
        cycle = self.cycle
        waits = cycle is not None and not (cycle.more_body or cycle.response_started or self.pipeline)
        waits = waits and not self._refused and self.transport.can_write_eof()
        if not waits or cycle.scope["http_version"] != "1.1":
            self._start_untaken_timer()  # the connection closes now, once the client has taken what waits
            return False
        cycle.keep_alive = False
        self._probe()
        return True

    def _probe(self, again_s: float = PROBE_AGAIN_S) -> None:
        """Find out whether the client is still there, until the answer begins, which finds it out as well."""
        cycle = self.cycle
        if cycle.response_started or cycle.disconnected or self.transport.is_closing():
            self._probe_timer = None
            return
        self.transport.write(_STILL_THERE)
        self._probe_timer = self.loop.call_later(again_s, self._probe, PROBE_S)

    def _stop_probe(self) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None

    def _bound_what_follows(self, size_bytes: int) -> None:
        """Whatever is still to come has a limit, unless an answer is being given: that one has its own."""
        if self._in_head and self._head_bytes:
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(self._head_too_large())
            elif self._timer is None:
                self._start_timer(self.limits.head_s)
        elif self.cycle is None or not self.cycle.response_complete:
            return
        elif not self._in_head:
            self._discard(size_bytes)
        elif not self._idle_until_s:  # the answer was over before its request
            self._begin_idling()

    def pause_writing(self) -> None:
        """As much as may wait is waiting."""
        super().pause_writing()
        self._start_untaken_timer()

    def resume_writing(self) -> None:
        self._stop_untaken_timer()
        if self.transport.is_closing():
            self._start_untaken_timer()  # what is left is to be taken in time as well
        super().resume_writing()

    # --- The parser ---

    def _check_further(self) -> RequestError | None:
        if self.lacks_certificate and not self._is_tunnel():
            return Forbidden(
                "This gateway takes requests only from clients that show a certificate it can check.",
                code="client_certificate_required",
            )
        if self.cycle is not None and not self.cycle.response_complete:
            return self._check_successor()
        return None

    def _check_successor(self) -> RequestError | None:
        """What is wrong with a request that comes before the answer to the one before it."""
        if len(self.pipeline) >= PIPELINED:
            return BadRequest(f"No more than {PIPELINED} requests may wait on one connection.")
        if self.parser.should_upgrade() and self._should_upgrade():
            return BadRequest("A connection can become a tunnel when its requests have been answered.")
        return None

    # --- uvicorn's own hooks ---

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():  # once the last of the answer is taken
            self._start_untaken_timer()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_until_s = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self._begin_idling()

    def _begin_idling(self) -> None:
        """The client has so long for its next request. The timer there is wakes early and waits again, as
        most requests come long before it is due."""
        self._idle_until_s = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_at(
                self._idle_until_s, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        until_s = self._idle_until_s
        if not until_s:
            return
        if self.loop.time() < until_s:
            self.timeout_keep_alive_task = self.loop.call_at(until_s, self.timeout_keep_alive_handler)
        else:
            self.close_in_time()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """It is this request's turn to be answered."""
        self._unread_bytes = 0
        before, self._answering = self._answering, cycle
        if before is not None and before.direct is not None:
            before.direct.detach()
        cycle.scope["extensions"] = {CYCLE: cycle}
        if b"upgrade" in cycle.fields:
            cycle.switch = self.switch_protocols
        if self.leaving:
            cycle.keep_alive = False
        # The loop would have a name made up for it.
        cycle.task = task = asyncio.Task(cycle.run_asgi(app), loop=self.loop, name=_TASK_NAME)
        cycle.tasks = self.tasks
        self.tasks.add(task)

    def _should_upgrade(self) -> bool:
        """Only agents speak WebSocket here; elsewhere an upgrade that is asked for is not made."""
        return self._is_tunnel() and super()._should_upgrade()

    def _is_tunnel(self) -> bool:
        path = self.url.partition(b"?")[0]
        return path == TUNNEL_PATH or path.startswith(TUNNEL_PATH + b"/")

    def handle_websocket_upgrade(self) -> None:
        """Whoever counts strangers and agents has it from here on, unless it is for another worker."""
        pass_on, method = type(self).pass_on, self.scope["method"].encode("ascii")
        if pass_on and pass_tunnel_on(pass_on, self.transport, method, self.url, self.headers):
            return
        super().handle_websocket_upgrade()
        if self._answering is not None:
            self._answering.detach()
        self._leave_place()
        self._stop_untaken_timer()

    # --- Bounds ---

    def _leave_place(self) -> None:
        group, self._group = self._group, ""
        self.places.leave(group)

    def _discard(self, size_bytes: int) -> None:
        self._unread_bytes += size_bytes
        if self._unread_bytes > UNREAD_BYTES:
            self.close_in_time()
        elif self._timer is None:
            self._start_timer(UNREAD_S)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes and not self._refused:
            self._refuse(BodyTimeout("The request's head did not come in time."))
        else:
            self.close_in_time()

    def close_in_time(self) -> None:
        """See :meth:`RequestParser.close_in_time`."""
        if not self.transport.is_closing():
            self.transport.close()
            self._start_untaken_timer()

    def _start_untaken_timer(self) -> None:
        if self._untaken_timer is None and self.transport.get_write_buffer_size():
            self._untaken_timer = self.loop.call_later(UNTAKEN_S, self.transport.abort)

    def _stop_untaken_timer(self) -> None:
        if self._untaken_timer is not None:
            self._untaken_timer.cancel()
            self._untaken_timer = None

    def _refuse(self, error: RequestError) -> None:
        """Answer in the application's place, unless it has begun to or another answer is due first; close."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            its_own = cycle.more_body and not self._in_head  # else it is of a later request
            if not its_own or self.pipeline or cycle.response_started:
                self.close_in_time()
                return
        request_id = new_request_id()
        headers, body = http_error(error, Dialect.OPENAI, request_id)
        headers += [*id_headers(Dialect.OPENAI, request_id), (b"connection", b"close")]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"".join((STATUS_LINE[error.status], lines, b"\r\n", body)))
        self._linger()

    def _linger(self) -> None:
        """Close our direction and let the client's run out, or it may never see what was written."""
        self._stop_timer()
        if self._refused or not self.transport.can_write_eof():
            self.close_in_time()
            return
        self._refused = True
        if self._answering is not None:
            self._answering.gone()
        if self.cycle is not None:
            self.cycle.waiting_for_100_continue = False  # it would be written behind the end
        self.transport.write_eof()
        self.flow.resume_reading()
        self._start_timer(LINGER_S)


def bounded(
    limits: ConnectionLimits,
    descriptors: DescriptorBudget | None = None,
    places: PerAddressLimiter | None = None,
    *,
    wants_certificate: bool = False,
    turn_end: TurnEnd | None = None,
    pass_on: PassOn | None = None,
) -> type[BoundedHttpProtocol]:
    """The protocol class with these limits, for uvicorn's ``http=``."""
    bounds = {
        "limits": limits,
        "descriptors": descriptors,
        "batch": WriteBatch(),
        "places": places or PerAddressLimiter(),
        "wants_certificate": wants_certificate,
        "turn_end": turn_end,
        "pass_on": pass_on,
    }
    return type("HttpProtocol", (BoundedHttpProtocol,), bounds)
